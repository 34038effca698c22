"""The audit while a training runs: `attach_watch` records anybody's trainer and warns at the step where a rule fires."""

import contextlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from accelerate.utils import gather_object

from ..audit.check import check, checked
from ..audit.finding import FOUND, NOTE, Finding
from ..audit.rule import Rule
from ..errors import ParameterError
from ..logs.completions import completions_table
from ..logs.log import Log
from ..logs.names import steps_table
from ..logs.rows import steps_of
from ..logs.settings import facts_of
from ..replay.report import StepReport, stage_names
from ..runs.files import WATCHED
from ..training.callback import LiveCallback, attach_first, others_with, say
from ..training.engine import hook
from ..training.optimizer_step import has_modes
from ..training.processes import StepNotChecked, all_failed, check_engine, held_parameters
from ..training.record_async import RowsTap
from ..training.record_distillation import rows_of
from ..training.record_step import copied, samples_of_next_step
from ..training.recording import StepRecorder, Steps, check_kept, check_record_dir, check_steps, is_due
from ..training.snapshot import sums_of
from ..training.step_numbers import collected_means, kind_of
from .check_step import check_any_step, check_new_step, check_reused_step
from .recorder import Watch
from .sampler_probe import attach_sampler_probe
from .update_share import UpdateShare

# Rules that are not `at_once` judge a course or a share: they are asked from `_SOON` steps on, ever more seldom, and reported
# when they were found twice in a row, since a rule that is asked at each of 1,000 steps is wrong at one of them.
_SOON, _GROWTH = 20, 1.25


class Warnings:
    """Asks the rules of the audit about a run so far, and words what is new; `reported` are the findings by rule."""

    def __init__(self, folder: Path, rules: Sequence[Rule] = ()):
        self.reported: dict[str, Finding] = {}
        self._folder, self._facts, self._own = folder, dict[str, Any](), checked(rules)
        self._next, self._before = _SOON, frozenset[str]()

    def __call__(self, lines: Sequence[dict], completions: pd.DataFrame) -> list[str]:
        """Lines to print, one a rule that is found for the first time, of what was logged a step and of the completions."""
        if not lines:
            return []
        if not self._facts:
            self._facts = facts_of(self._folder)[0]
        table = steps_of(lines)
        steps, order, damage = steps_table(table, str(self._folder))
        damage = [*table.attrs["lost"], *damage]
        rows = completions_table(completions) if len(completions) else None
        log = Log(str(self._folder), "live", steps, tuple(order), rows, self._facts, tuple(damage), (), table, order)
        found = {f.rule: f for f in check(log, self._own) if f.verdict == FOUND and f.severity != NOTE}
        certain = {f.rule for f in found.values() if f.by.at_once}
        if len(steps) >= self._next:
            certain |= found.keys() & self._before
            self._next, self._before = int(len(steps) * _GROWTH), frozenset(found)
        new = {rule: f for rule, f in found.items() if rule in certain and rule not in self.reported}
        self.reported |= new
        said = [f for f in new.values() if f.follows_from not in self.reported]
        step = int(steps["step"].iloc[-1])
        return [f"step {step}: {f.rule}: {f.says} Do: {f.advice} More: {f.more}" for f in said]


def raise_alerts(trainer, lines: Sequence[str]) -> None:
    """The lines as alerts of W&B and Trackio, where the trainer reports there; an alert that fails is dropped."""
    for name in {"wandb", "trackio"} & set(trainer.args.report_to or ()):
        tracker = sys.modules.get(name)  # transformers has imported it
        if tracker is None:
            continue
        for line in lines:
            with contextlib.suppress(Exception):  # of a network, or of a run that is closed
                title = f"workbench: {line.split(': ')[1]}"
                tracker.alert(title=title, text=line, level=tracker.AlertLevel.WARN)


class StepCheck(LiveCallback):
    """Runs `check_step` before the first and every N-th step, on the batch that is about to be trained.

    An update that trains once more on completions of an earlier step is checked with its real old log-probs. Weights, optimizer
    and random state are afterwards as they were: the training is the same with and without. `reports` are
    by step. A stage that differs goes to `tell` once, at the first such update; of several the first with its cause.
    """

    name = "check of steps"

    def __init__(self, trainer: Any, every: int, tell: Callable[[str], None] = say, meant: Sequence[str] = ()):
        check_steps("check_every", every)
        self._meant = stage_names("meant", meant)
        super().__init__(trainer, every)
        self.reports: dict[int, StepReport] = {}
        self._tell, self._told = tell, set[str]()
        self._batch: Any = None
        self._sampled: tuple[int, StepReport | None] = 0, None  # the step of the generation in use, and its report
        self._generated: dict[str, Any] | None = None  # what later updates take again
        self._taken: list[dict[str, Any]] = []  # what the losses of earlier updates took of this generation
        self._checking = False
        self._distilled: list[tuple] = []  # the rows that this update of a distillation has trained
        self._seen: dict[int, int] = {}  # the rows of an update, hashed, and the first one that sampled or trained them
        self._drawn: dict[str, int] = {}  # the states of torch's generators at the sampling of each step
        # Of models that do not train, when they were first seen: the step, and the sums of their weights.
        self._frozen: dict[str, tuple[int, list[float]]] = {}
        self._tap: RowsTap | None = None  # notes the rows of a trainer that takes them from a queue
        if kind_of(trainer) == "AsyncGRPO":
            if trainer.accelerator.num_processes > 1:
                raise ParameterError(
                    "check_every: an AsyncGRPOTrainer is checked in one process; this training has several"
                )
            self._tap = RowsTap(trainer, self.guarded)
            self._hooks.append(self._tap.off)
        self._start: list[float] = []  # the sums of the weights before a checked update
        self._moved: tuple[int, list[float]] | None = None  # a checked update, and the sums of the weights that it made
        self._hooks.append(hook(trainer, "get_batch_samples", self._around_batches))
        handler = trainer.callback_handler
        self._before: dict[str, list[float]] | None = None  # what callbacks may change, as the checked update has it
        for event in ("on_step_begin", "on_substep_end", "on_pre_optimizer_step"):
            self._hooks.append(hook(handler, event, partial(self._around_callbacks, event)))
        self._hooks.append(hook(handler, "on_optimizer_step", self._around_weights))
        if hasattr(trainer, "num_iterations"):
            self._hooks.append(hook(trainer, "_generate_and_score_completions", self._around_generation))
            self._hooks.append(hook(trainer, "_compute_loss", self._around_loss))
        elif kind_of(trainer) == "Distillation" and not trainer.args.use_vllm:  # an engine draws others in the check
            self._hooks.append(hook(trainer, "compute_loss", self._around_distillation))
        if kind_of(trainer) != "AsyncGRPO":  # whose log takes its server's numbers first
            self._hooks.append(hook(trainer, "log", self._around_log))
        trainer.add_callback(self)

    def _around_log(self, original: Callable, *args: Any, **kwargs: Any):
        history = self._trainer.state.log_history
        lines, trains = len(history), self.reports and self._trainer.model.training
        means = self.guarded(collected_means, self._trainer) if trains else None
        result = original(*args, **kwargs)
        for line in history[lines:] if means else ():
            self.guarded(self._compare_log, line, means)
        return result

    def _compare_log(self, line: dict[str, Any], means: dict[str, float]) -> None:
        """Say of a checked update that its line of the log has another number than the steps collected."""
        step = max(self.reports)
        if line.get("step") != step:
            return
        others = [
            f"{name}={line[name]:.6g} where the steps collected {mean:.6g}"
            for name, mean in means.items()
            if isinstance(line.get(name), float | int)
            and not math.isclose(line[name], mean, rel_tol=1e-3, abs_tol=1e-4)
        ]  # a log may be rounded
        if others:
            self._amend(step, f"the trainer's log() writes {', '.join(others[:3])}", "metrics")

    def _around_batches(self, original: Callable, *args: Any, **kwargs: Any):
        result = original(*args, **kwargs)
        if self._tap is not None:
            self._batch = self.guarded(self._tap.update, *result)
        else:
            self._batch = result[0][0] if result[0] else None
        return result

    def _around_generation(self, original: Callable, *args: Any, **kwargs: Any):
        result = original(*args, **kwargs)
        if self._takes_again():
            self._generated, self._taken = self.guarded(copied, result), []
        return result

    def _around_loss(self, original: Callable, model: Any, inputs: Any, *args: Any):
        if self._takes_again() and (taken := self.guarded(copied, inputs)) is not None:
            self._taken.append(taken)
        return original(model, inputs, *args)

    def _around_distillation(self, original: Callable, model: Any, inputs: Any, *args: Any, **kwargs: Any):
        if not self._checking and self._trainer.model.training:
            self._distilled += self.guarded(rows_of, inputs) or []
        return original(model, inputs, *args, **kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any):
        if self._distilled:
            self.guarded(self._compare_distilled, state.global_step)

    def _compare_distilled(self, step: int) -> None:
        """Say of a checked update of a distillation that it trained the completions of an earlier one, and not its own."""
        trained, self._distilled = hash(tuple(sorted(self._distilled))), []
        report = self.reports.get(step)
        own = (
            None if report is None else hash(tuple(sorted((*r.prompt_ids, -1, *r.completion_ids) for r in report.rows)))
        )
        earlier = self._seen.setdefault(trained, step)
        if own is not None and self._seen.setdefault(own, step) == step and earlier < step:
            self._amend(step, f"this update trains the completions of update {earlier} again", "batches")

    def _takes_again(self) -> bool:
        """Say whether later updates of this training take a generation again."""
        args, model = self._trainer.args, self._trainer.model
        again = args.steps_per_generation * self._trainer.num_iterations > args.gradient_accumulation_steps
        return again and model.training

    def _taken_before(self) -> list[dict[str, Any]]:
        """The inputs of earlier losses in this pass over the generation; none where the watch has not seen all of them."""
        every = self._trainer.args.steps_per_generation
        if len(self._taken) != self._trainer._step % (every * self._trainer.num_iterations):
            return []
        return self._taken[len(self._taken) // every * every :]

    def _around_callbacks(self, event: str, original: Callable, *args: Any, **kwargs: Any):
        """Compare what the optimizer will take before and after the callbacks of an event; at the begin, those added later."""
        step = self._trainer.state.global_step + 1
        self._before = self.guarded(self._of_update) if step in self.reports else None
        result = original(*args, **kwargs)
        before, after = self._before, None if self._before is None else self.guarded(self._of_update)
        self._before = None
        if before is not None and after is not None:
            changed = [name for name in before if not np.array_equal(before[name], after[name], equal_nan=True)]
            names = ", ".join(others_with(self._trainer, event)) or "a callback"
            what = f"{' and the '.join(changed)} of the checked update in {event}"
            if (event, changed) == ("on_pre_optimizer_step", ["gradient"]):
                what = "gradient after it is clipped, before the optimizer takes it"
            if changed:
                self._amend(step, f"{names} changes the {what}")
        return result

    def _of_update(self) -> dict[str, list[float]]:
        """Sums of gradients and of weights, and the learning rates, by what they are."""
        optimizer = self._trainer.optimizer
        groups = [] if optimizer is None else optimizer.param_groups
        rates = [float(group["lr"]) for group in groups if group.get("lr") is not None]
        # An optimizer with two modes switches to other weights.
        weights = [] if has_modes(optimizer) else self._sums("data")
        return {"gradient": self._sums("grad"), "weights": weights, "learning rate": rates}

    def _around_weights(self, original: Callable, *args: Any, **kwargs: Any):
        step = self._trainer.state.global_step + 1
        # An optimizer with two modes shows an evaluation other weights.
        is_seen = step in self.reports and not has_modes(self._trainer.optimizer)
        sums = self.guarded(self._sums, "data") if is_seen else None
        self._moved = None if sums is None else (step, sums)
        skipped = getattr(self._trainer.optimizer, "step_was_skipped", False)  # where a scaled gradient overflows
        if sums is not None and sums == self._start and self.reports[step]["update"].verdict == "same" and not skipped:
            self._amend(
                step, "the training's own step moves no weight: something around `optimizer.step` holds it back"
            )
        return original(*args, **kwargs)

    def _differ(self, name: str, before: list[float]) -> bool:
        """Say whether the sums of gradients or weights are others now; a gradient that overflows is NaN both times."""
        now = self._sums(name)
        return len(now) != len(before) or not np.array_equal(now, before, equal_nan=True)

    def _sums(self, name: str) -> list[float]:
        """Sum each gradient (`grad`) or weight (`data`) that trains."""
        tensors = [getattr(p, name) for p in held_parameters(self._trainer.model) if p.requires_grad]
        return sums_of(tensor for tensor in tensors if tensor is not None)

    def _amend(self, step: int, cause: str, stage: str = "update") -> None:
        """Say of an update that was checked what its optimizer's step, a callback after it, or the log made of it."""
        self.reports[step] = _said(self.reports[step], stage, "different", cause).with_meant(self._meant)
        self._say(step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any):
        step, accelerator = state.global_step + 1, self._trainer.accelerator
        if self._moved is not None and self.guarded(self._differ, "data", self._moved[1]):
            self._amend(
                self._moved[0],
                "the weights change between the optimizer's step and the next update: a callback moves them",
            )
        self._moved = None
        samples = samples_of_next_step(self._trainer)
        if samples != "reused":
            self._sampled = step, None
        if self._batch is None or not self._is_due(step, samples):
            return
        if accelerator.num_processes > 1:  # they sample and score together, or none does
            self.on = all(gather_object([self.on]))
        if accelerator.num_processes > 1 and self.on:
            self._check_together(step, samples)
        else:
            self.guarded(self._check, step, samples)

    def _is_due(self, step: int, samples: str) -> bool:
        """Say whether an update is checked: one that is due, and the one that samples the completions of one that is due."""
        args, every = self._trainer.args, self._every or 1
        updates = 1
        if samples == "new" and hasattr(self._trainer, "num_iterations"):
            updates = args.steps_per_generation * self._trainer.num_iterations // args.gradient_accumulation_steps
        return any(is_due(later, every) for later in range(step, step + max(updates, 1)))

    def _check_together(self, step: int, samples: str) -> None:
        """Check a step; an error in the step itself ends the training if not all have it, since the others wait for ever."""
        try:
            self._check(step, samples)
        except (ParameterError, StepNotChecked) as error:  # in each process alike
            self.guarded(_raised, error)
        except Exception as error:
            if not all_failed():
                say(
                    f"the {self.name} failed in process {self._trainer.accelerator.process_index}, for which others wait"
                )
                raise
            self.guarded(_raised, error)

    def _changed(self, step: int) -> dict[str, str]:
        """Describe, by its stage, a reference or teacher whose weights have changed since the first check."""
        said = {}
        for name, stage in (("ref_model", "reference"), ("teacher_model", "teacher")):
            model = getattr(self._trainer, name, None)
            if not isinstance(model, torch.nn.Module) or model is self._trainer.model:
                continue
            sums = sums_of(held_parameters(model))
            first, before = self._frozen.setdefault(name, (step, sums))
            if sums != before and not getattr(self._trainer.args, "sync_ref_model", False):
                said[stage] = f"the {stage} has other weights than before step {first}: a callback or method moves them"
        return said

    def _check(self, step: int, samples: str) -> None:
        self._checking = True
        try:
            self._check_alone(step, samples)
        finally:
            self._checking = False

    def _check_alone(self, step: int, samples: str) -> None:
        self._changed(step)  # notes the weights at first
        left = np.any(self._sums("grad"))  # `train()` adds to them; the check begins without
        self._start = self._sums("data")
        if samples == "reused":
            known = self._generated, self._taken_before()
            report = check_reused_step(self._trainer, self._batch, *self._sampled, self._meant, *known)
        elif samples == "new":
            report = check_new_step(self._trainer, self._batch, step, self._meant, self._drawn)
        else:
            report = check_any_step(self._trainer, self._batch).with_meant(self._meant)
        if left:
            cause = "gradients are there before the update, and train() adds its own to them: a callback or method has called "
            report = _said(report, "gradient", "different", f"{cause}backward and not zero_grad").with_meant(
                self._meant
            )
        if changed := self._changed(step):
            for name in (stage.name for stage in report.stages if stage.verdict in ("same", "rounding")):
                report = _said(report, name, "cannot tell", changed[name]) if name in changed else report
        if samples == "new":
            self._sampled = step, report
        self.reports[step] = report
        self._before = self._of_update()
        self._say(step)

    def _say(self, step: int) -> None:
        """Tell the first stage that differs in an update and in no checked one before, and name the others that are new."""
        report = self.reports[step]
        new = [stage for stage in report.different if stage.name not in self._told]
        self._told.update(stage.name for stage in new)
        if not new:
            return
        accelerator = self._trainer.accelerator
        where = f"step {step}" + f", process {accelerator.process_index}" * (accelerator.num_processes > 1)
        advice = f"look at `reports[{step}]` of what `attach_watch` returned. More: docs/how-to/check_a_step.md"
        if report.advice:
            advice += f". And: {report.advice}"
        said = f"{where}: step-check: {new[0].name} is different: {new[0].cause}"
        if len(new) > 1:
            said += f"; also different: {', '.join(stage.name for stage in new[1:])}"
        self._tell(f"{said}. Do: {advice}")


def _said(report: StepReport, name: str, verdict: str, cause: str) -> StepReport:
    """The report with another verdict on a stage, for a cause that stands before the one that it has."""
    stages = [
        replace(stage, verdict=verdict, cause=f"{cause}; {stage.cause}") if stage.name == name else stage
        for stage in report.stages
    ]
    return replace(report, stages=stages)


def _raised(error: Exception) -> None:
    raise error


def attach_watch(
    trainer,
    record_dir: str | os.PathLike | None = None,
    *,
    every: int | None = None,
    tokens: bool = True,
    rules: Sequence[Rule] = (),
    record_steps: Steps | None = None,
    check_every: int | None = None,
    meant: Sequence[str] = (),
) -> Watch | None:
    """Record the run of a TRL trainer for `workbench audit`, and print a warning at the step where a rule finds something.

    The watch changes no number of the run. An error in the watch is printed once and ends the watch, never the training. If
    the trainer reports to W&B or Trackio, each warning is an alert there. The environment variable `WORKBENCH_WATCH=0`
    switches the watch off; no code has to change. If vLLM runs in the trainer's process, the watch also calls
    `attach_sampler_probe`, which logs `sampler/*` and warns if the engine does not sample from the trained policy. The watch
    logs `update/moved`, the share of the weights that an optimizer step changes (`workbench.watch.UpdateShare`).

    Args:
        trainer: TRL's GRPOTrainer, RLOOTrainer, AsyncGRPOTrainer or DistillationTrainer, or a subclass of one; attach the
            watch before `train()`.
        record_dir: folder of the record; default `_watch` in the trainer's `output_dir`. A push to the hub leaves it out.
        every: number of steps from one check of the rules to the next; default 1, more where checks would take over 1% of the
            time.
        tokens: record ids and log-probs of all tokens too (`tokens/`, about 12 bytes a token before compression).
        rules: your own rules, made by `workbench.audit.rule`, in addition to the built-in ones.
        record_steps: steps whose loss inputs are kept in files for `workbench replay`: step numbers, or N for the first step
            and every N-th.
        check_every: run `check_step` at the first and every N-th step, and at the one that sampled its completions; print the
            first stage that differs, and later each that did not differ before. Such a step takes three to seven times as
            long, and reward functions are called once more. Of several processes each has to attach it, and a reward function
            that fails in one of them then ends the training, as it does without a check.
        meant: stages of these checks at which your subclass means to differ, as `check_step` takes them.

    Returns:
        The watch; its `detach()` ends it, its `reports` are those of `check_every`, by step. None if `WORKBENCH_WATCH=0`.

    Raises:
        ParameterError: another trainer, `every` or `check_every` below 1, `check_every` with DeepSpeed or FSDP version 1,
            `record_steps` that name no step, a name in `meant` that is no stage's, a `record_dir` that is a file, or a rule
            with the name of another.
    """
    if os.environ.get("WORKBENCH_WATCH") == "0":
        return None
    kind = kind_of(trainer)
    if record_steps is not None:
        check_kept(trainer)
    folder = Path(trainer.args.output_dir) / WATCHED if record_dir is None else Path(record_dir)
    check_record_dir(folder)
    for name, steps in (("record_steps", record_steps), ("check_every", check_every)):
        if steps is not None:
            check_steps(name, steps)
    if check_every is not None:
        check_engine(trainer, "check_every")
    stage_names("meant", meant)
    warnings = Warnings(folder, rules)

    def look(lines: Sequence[dict], completions: pd.DataFrame) -> list[str]:
        said = warnings(lines, completions)
        raise_alerts(trainer, said)
        return said

    def tell(line: str) -> None:
        say(line)
        raise_alerts(trainer, [line])

    watch = Watch(trainer, folder, look, tokens=tokens, every=every)
    watch.others.append(UpdateShare(every))
    attach_first(trainer, watch.others[0])
    if kind in ("GRPO", "RLOO") and trainer.args.use_vllm and trainer.args.vllm_mode == "colocate":
        watch.others += filter(None, [attach_sampler_probe(trainer)])
    if record_steps is not None:
        watch.others.append(StepRecorder(trainer, folder, record_steps))
    if check_every is not None:
        check = StepCheck(trainer, check_every, tell, meant)
        watch.reports = check.reports
        watch.others.append(check)
    return watch
