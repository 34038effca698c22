"""One training step, checked: every stage again, from the stage before it, and the first that differs."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ParameterError
from ..replay.report import Stage, StepReport, stage_names
from ..replay.step import Step
from ..training.callback import others_with
from ..training.optimizer_step import has_modes
from ..training.processes import failing_together, whole_weights
from ..training.record_async import record_async_step
from ..training.record_distillation import record_distillation_step
from ..training.record_rewards import is_same
from ..training.record_step import hooks_at_rest, record_step, restored
from ..training.snapshot import modules_restored
from ..training.step_numbers import kind_of, step_of, with_counted_items
from ..training.step_record import Noticed, StepRecord
from .async_judge import AsyncJudge
from .distillation_judge import DistillationJudge
from .judge import Judge


def check_step(trainer: Any, batch: list[dict] | None = None, meant: Sequence[str] = ()) -> StepReport:
    """Run one step of a trainer and compute each of its stages again.

    The step runs on the trainer's own data, with its own sampler and reward functions. Afterwards these are the same, bit for
    bit: weights, buffers and modes of the models, the optimizer's state and its attributes, scheduler, random states, the
    place in the data, metrics and record. So a training with checks is the training without.

    The check cannot put back what it does not know: a list or an average that a subclass changes in place in a method of
    its own (`training_step`), what a reward function keeps or writes (each is called once more), what the hooks of parameters
    keep that step in the backward pass, objects inside the optimizer that are no tensor, number or container, and a data set
    that can be read only once.

    The check needs the memory of a training step and of a second gradient; copies of the trained weights and of the
    optimizer's state lie in the host's memory. Beyond a step it takes a forward and a backward pass for each completion
    alone, two forward passes of the step's batches, and one of each reward model for each completion.

    Args:
        trainer: TRL's `GRPOTrainer`, `RLOOTrainer`, `GMPOTrainer`, `DistillationTrainer` or `AsyncGRPOTrainer` (TRL 1.16), the
            workbench's, or a subclass; before or after training.
        batch: rows of the data set, each `num_generations` times in a row: as many as one generation takes. Default: the
            first batch of the trainer's own data. For an AsyncGRPOTrainer, rows as TRL's `RolloutSample`, again from the first
            one until they fill an update.
        meant: stages at which your subclass means to differ, such as `("rewards",)`. Where one differs its verdict is `meant`,
            and `report.first` passes it over. The stages after it are judged from what was used.

    Returns:
        `report.first` is the first stage that differs, or None; `report.tokens(i)` has the tokens of a completion. The stages:
        `sampling` (do the tokens come from the scored policy), `ends`, `turns`, `mask`, `rewards`, `advantages`, `batches`
        (the loss takes the rows as they were generated), `log-probs` (each row alone, unpadded), `reference`, `mismatch` (the
        log-probs that vLLM or a rollout function gives), `ratios` and `loss` (also for ratios that a later update meets),
        `correction`, `gradient` (also against how far the loss moves with the weights), `update`, `metrics`.
        A distillation has `teacher` in place of rewards, advantages and ratios. An AsyncGRPOTrainer's `batches` and `mask`
        say what each packed row sees and trains; its server's ends and rewards cannot be seen. Rows with images have
        `images` (the loss takes a row's own), and what a row alone would show is not known.
        Their verdicts: `same`, `rounding`, `different`, `cannot tell`, `meant`. A setting of the trainer that is not what its
        `args` say is named at the stage that it decides.

        If `log-probs` or `sampling` differs, each suspect is changed alone (padding, dropout, temperature, precision, ...). The
        one without which the difference goes is named, else the sentence says which were tested. This takes some forward passes
        more. A gradient that differs under dropout is taken again without it.

    Raises:
        RunError: vLLM does not sample, for example because its engine is closed; `trainer.model` was replaced; the step needs
            what only `train()` makes.
        ParameterError: another trainer, one without data, a batch that is no whole number of groups, cannot be split into
            micro-batches or has several prompts in a group, or a name in `meant` that is no stage's.
        Exception: any error of the step itself, for example in a reward function; the trainer is then unchanged, too.
    """
    names = stage_names("meant", meant)
    if batch and kind_of(trainer) in ("GRPO", "RLOO") and len(batch) % trainer.num_generations == 0:
        _check_groups(batch, trainer.num_generations)
        _check_size(batch, trainer.num_generations, trainer.args.steps_per_generation)
    if batch and kind_of(trainer) == "Distillation":
        _check_size(batch, 1, trainer.args.gradient_accumulation_steps)
    return _without_callbacks(trainer, check_any_step(trainer, batch)).with_meant(names)


def _check_groups(batch: Sequence[Mapping[str, Any]], size: int) -> None:
    """Refuse rows that are not repeated as the trainer's own sampler repeats them: their groups would hold several tasks."""
    pairs = [(row, batch[start]) for start in range(0, len(batch), size) for row in batch[start : start + size]]
    for name in dict.fromkeys(["prompt", *(name for row in batch for name in row)]):
        if not all(is_same(row.get(name), first.get(name)) for row, first in pairs):
            raise ParameterError(
                f"check_step: batch has another {name} within a group; give each row {size} times in a row "
                f"(num_generations): batch=[row for row in rows for _ in range({size})]"
            )


def _check_size(batch: Sequence, groups: int, parts: int) -> None:
    """Refuse a batch that TRL cannot split into the micro-batches of a generation: some would be empty, or rows left out."""
    if len(batch) % parts:
        raise ParameterError(
            f"check_step: batch has {len(batch)} rows, expected {math.lcm(groups, parts)} or a multiple: TRL splits the rows "
            f"of a generation into {parts} micro-batches"
        )


def check_any_step(trainer: Any, batch: list[dict] | None = None) -> StepReport:
    """As `check_step`, of a trainer whose callbacks the watch sees."""
    kind = kind_of(trainer)
    if kind == "AsyncGRPO":
        update = record_async_step(trainer, batch)
        with _judging(trainer, update):
            return with_noticed(AsyncJudge(trainer, update).report(), update)
    if kind == "Distillation":
        distilled = record_distillation_step(trainer, batch)
        with _judging(trainer, distilled):
            return with_noticed(DistillationJudge(trainer, distilled).report(), distilled)
    record = record_step(trainer, batch)
    with _judging(trainer, record):
        return with_noticed(Judge(trainer, _step_of(trainer, kind, record), record).report(), record)


@contextlib.contextmanager
def _judging(trainer: Any, record: StepRecord) -> Iterator[None]:
    """Inside the block the model computes for the check, and is afterwards as it was."""
    with contextlib.ExitStack() as stack:
        if has_modes(trainer.optimizer):  # after an evaluation it holds other weights than the step has trained
            stack.enter_context(restored(trainer))
            trainer.optimizer.train()
        for each in (modules_restored(trainer), whole_weights(trainer), hooks_at_rest(trainer, record)):
            stack.enter_context(each)
        yield


def with_noticed(report: StepReport, record: StepRecord) -> StepReport:
    """The report, with what was noticed while the step ran."""
    stages = []
    for stage in report.stages:
        for noticed in record.noticed.get(stage.name, ()):
            stage = _noticed(stage, noticed)
        stages.append(stage)
    return replace(report, stages=stages)


def _noticed(stage: Stage, noticed: Noticed) -> Stage:
    if stage.verdict not in noticed.over:
        return stage
    # What is not known by its numbers either is not known for this reason.
    is_said = noticed.cause in stage.cause or noticed.verdict == stage.verdict == "cannot tell"
    said = [noticed.cause, "" if is_said else stage.cause]
    return replace(stage, verdict=noticed.verdict, cause="; ".join(filter(None, said)))


def _step_of(trainer: Any, kind: str, record: StepRecord) -> Step:
    with failing_together(record.averaged):
        return step_of(trainer, kind, record)


def _without_callbacks(trainer: Any, report: StepReport) -> StepReport:
    """The report: its update is not known if a callback acts between clipping and optimizer, since none is called here."""
    names = ", ".join(others_with(trainer, "on_pre_optimizer_step"))
    if not names:
        return report
    said = f"{names} acts between clipping and optimizer and is not called here: attach_watch(trainer, check_every=1) sees it"
    stages = [
        replace(s, verdict="cannot tell", cause=f"{said}; {s.cause}")
        if s.name == "update" and s.verdict == "same"
        else s
        for s in report.stages
    ]
    return replace(report, stages=stages)


def check_new_step(
    trainer: Any, batch: list[dict], step: int, meant: Sequence[str] = (), drawn: dict[str, int] | None = None
) -> StepReport:
    """Check the coming update of a training, at which the trainer has to sample.

    It starts with the completions that the trainer still has, so that one that trains these once more is found.

    Args:
        drawn: the states of torch's generators from which earlier steps drew their tokens, with these; this one is added.
    """
    kind, names = kind_of(trainer), stage_names("meant", meant)
    if kind == "Distillation":
        distilled = record_distillation_step(trainer, batch)
        with _judging(trainer, distilled):
            report = with_noticed(DistillationJudge(trainer, distilled).report(), distilled)
        return _not_drawn_before(distilled, step, report, drawn).with_meant(names)
    if kind not in ("GRPO", "RLOO"):
        return check_any_step(trainer, batch).with_meant(names)
    # The last update of an epoch can have fewer micro-batches.
    steps, reuse = trainer.current_gradient_accumulation_steps, trainer._buffered_inputs is not None
    record = record_step(trainer, batch, reuse, steps=steps)
    with _judging(trainer, record):
        judge = Judge(trainer, _step_of(trainer, kind, record), record)
        if not record.reused:
            report = with_noticed(judge.report(), record)
            return _not_drawn_before(record, step, report, drawn).with_meant(names)
        report = with_noticed(judge.report_of_reused(step - 1, None), record)
    cause = "the trainer has to sample at this update, and trains completions that it sampled before an earlier one"
    stages = [replace(s, verdict="different", cause=cause) if s.name == "batches" else s for s in report.stages]
    return replace(report, stages=stages).with_meant(names)


def _not_drawn_before(record: StepRecord, step: int, report: StepReport, drawn: dict[str, int] | None) -> StepReport:
    """The report of a step; different in `sampling` if an earlier step drew its tokens from the same random numbers."""
    earlier = {} if drawn is None or not record.drawn_from else drawn
    drawn_at = earlier.setdefault(record.drawn_from, step)
    if drawn_at == step:
        return report
    said = f"step {drawn_at} drew its tokens from the same random numbers: a seed is set before each generation"
    stages = [
        replace(s, verdict="different", cause=f"{said}; {s.cause}") if s.name == "sampling" else s
        for s in report.stages
    ]
    return replace(report, stages=stages)


def check_reused_step(
    trainer: Any,
    batch: list[dict],
    sampled_at: int,
    earlier: StepReport | None,
    meant: Sequence[str] = (),
    generated: Mapping[str, Any] | None = None,
    taken: Sequence[Mapping[str, Any]] = (),
) -> StepReport:
    """Check the coming update of a training, which trains once more on completions of an earlier step.

    It is the update that the training is about to make, with its real old log-probs. The stages of the generation are those
    of the step that sampled it.

    Args:
        batch: what the training is about to give its step.
        sampled_at: the number of the step that sampled the completions.
        earlier: the report of that step, None where it was not checked.
        meant: as in `check_step`.
        generated: what generation and scoring gave at that step; None: not known, and neither are the batches.
        taken: the inputs of earlier losses in this round of the generation.
    """
    kind, names = kind_of(trainer), stage_names("meant", meant)
    record = record_step(trainer, batch, reuse=True)
    step = _step_of(trainer, kind, record)
    if generated is not None:
        step = with_counted_items(step, generated)
    with _judging(trainer, record):
        report = Judge(trainer, step, record).report_of_reused(sampled_at, earlier, generated, taken)
        return with_noticed(report, record).with_meant(names)
