"""The trainer's own loss, asked about the log-probs of later updates, and compared with its definition token by token.

In the first update of a generation every ratio of new to old log-probs is 1. The clip, `delta`, the KL of a policy that has
moved and the ratio of a sequence are then not met, and a loss that has them wrong gives the right number. So the loss is
asked: it gets the recorded completions, with old, reference and sampled log-probs, weights of the sampler's correction and
advantages that are moved by a known amount. The model does not run: the loss gets log-probs in place of the model's, and
autograd gives its slope by each of them. The amounts are as large as the limits that the settings name, half of them beyond,
on both sides. Only what the loss gets anyway is moved: a loss that is never given old log-probs is not asked about them.
Every other question also cuts rows at other lengths: where all rows are equally long, divisors of several loss types agree.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..consistency.padding import evaluating
from ..replay.grpo_math import Loss, LossRow
from ..replay.report import Stage
from ..replay.stages import ALL_ONE, SAME, losses_of
from ..replay.step import MicroRows, Step
from ..training.record_step import adapted_coefficient, as_it_was, ask_loss, loss_mask_of, value_of_loss
from ..training.step_numbers import micro_rows
from ..training.step_record import MicroBatch, StepRecord

_ALLOWED = 1e-3  # difference of a slope or value, relative to its size
_ROUNDING = 1e-6  # of a sum of log-probs in fp32, relative to their size
_WIDTH = 0.5  # nats, where no limit says how far to go
_NARROWEST, _WIDEST = 1e-3, 3.0  # nats
_BEYOND = 1.5  # times a limit: about half of the ratios are then within it
_CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")  # loss types with a clip
_LOSS_TYPES = (*_CLIPPED, "cispo", "sapo", "vespo")


@dataclass(frozen=True)
class Asked:
    """The answer of the loss: `wrong` is the largest difference from the definition, relative to its size."""

    problem: str = ""  # why it could not be asked
    said: str = ""  # what was asked
    wrong: float = 0.0
    cause: str = ""  # "" where every answer is as defined
    where: str = ""
    explained: bool = False  # another definition gives each answer
    by_ratios: bool = False  # and it is another in its ratios
    is_kl_unseen: bool = False  # the reference is the policy itself, so each KL is 0
    parts: str = "value and slopes of each token"  # what of an answer is compared, in words


@dataclass(frozen=True)
class _Answer:
    """The rows of one micro-batch that were asked, and the value and slopes that the trainer gave."""

    rows: MicroRows
    value: float
    slopes: list[np.ndarray] | None  # of each row (T,); None where only the value was asked for
    entropy_slopes: list[np.ndarray] | None
    elsewhere: float  # the largest slope by a token that is no part of the row
    tokens: Sequence[float] = ()  # in the loss of the generation, where rows were cut


Definition = Callable[[Step], list[Loss | None]]


def ask_off_policy(
    trainer: Any, step: Step, record: StepRecord, by_value: bool = False, definition: Definition = losses_of
) -> Asked:
    """Ask the trainer's loss about moved log-probs and advantages, and compare value and slopes with the definition.

    No forward pass of the model runs. What the loss logs is dropped, and the trainer is afterwards as it was.

    Args:
        by_value: the loss takes its log-probs elsewhere, and those of `step` are as the model gives them. Then the model runs,
            without dropout, and values are compared alone.
        definition: of the loss.
    """
    micro_batches = record.micro_batches
    if not micro_batches or any(micro.logps is None for micro in micro_batches):
        return Asked(problem="the trainer computes its loss elsewhere (Liger, or a method of its own)")
    first = trainer._step if step.reused else 0
    try:
        with as_it_was(trainer), evaluating(trainer.model) if by_value else contextlib.nullcontext():
            if not by_value:
                trainer.model.train()
            trainer.current_gradient_accumulation_steps = len(micro_batches)
            questions = range(2 * len(widths_of(step)))
            rounds = [_ask(trainer, step, micro_batches, number, first, by_value) for number in questions]
    except Exception as error:  # a loss is anybody's
        problem = f"the loss cannot be asked: {type(error).__name__}: {str(error)[:200]}"
        return Asked(problem=problem, is_kl_unseen=_is_kl_unseen(step))
    asked = compare(step, rounds, definition)
    return replace(asked, parts="the value of each micro-batch") if by_value else asked


def _is_kl_unseen(step: Step) -> bool:
    """True where a step has a KL whose reference is the policy itself, up to rounding."""
    if step.kind != "GRPO" or not step.settings["beta"]:
        return False
    rows = [row for micro in step.micro_batches for row in micro.rows if row.ref_logps is not None]
    return all(np.abs(row.logps - row.ref_logps).max(initial=0.0) < _WIDTH / 100 for row in rows)


def _ask(
    trainer: Any, step: Step, micro_batches: Sequence[MicroBatch], number: int, first: int, by_value: bool
) -> list[_Answer]:
    """The answers to one question for each micro-batch; the first of them is the trainer's micro-batch number `first`."""
    answers, tokens = [], list[float]()
    if number % 2 and _may_be_cut(step, micro_batches):
        micro_batches, tokens = _cut(micro_batches, number, bool(step.settings.get("mask_truncated_completions")))
    for place, micro in enumerate(micro_batches):
        trainer._step = first + place  # a loss may treat one of them otherwise
        inputs, coefficient = moved_inputs(step, micro, number, place), adapted_coefficient(trainer)
        asked = replace(micro, inputs=inputs, logps=scored(micro), entropy_coef=coefficient)
        if by_value:
            rows = micro_rows(asked, step.pad_token_id)
            answers.append(_Answer(rows, value_of_loss(trainer, inputs), None, None, 0.0, tokens))
            continue
        value, by_logp, by_entropy = ask_loss(trainer, inputs, scored(micro), micro.entropies, micro.others)
        rows = micro_rows(replace(asked, loss=value), step.pad_token_id)
        there = inputs["completion_mask"].bool()
        slopes = _of_rows(by_logp, there)
        entropy_slopes = None if by_entropy is None else _of_rows(by_entropy, there)
        elsewhere = float(by_logp[~there].abs().max()) if (~there).any() else 0.0
        answers.append(_Answer(rows, value, slopes, entropy_slopes, elsewhere, tokens))
    return answers


def _may_be_cut(step: Step, micro_batches: Sequence[MicroBatch]) -> bool:
    """True where the micro-batches are one whole generation, whose tokens can be counted again if rows are cut."""
    items = micro_batches[0].inputs.get("num_items_in_batch")
    if step.kind != "GRPO" or step.processes > 1 or len(step.advantages) != 1 or items is None:
        return False
    return float(items) == sum(float(loss_mask_of(micro.inputs).sum()) for micro in micro_batches)


def _cut(micro_batches: Sequence[MicroBatch], number: int, may_be_masked: bool) -> tuple[list[MicroBatch], list[float]]:
    """The micro-batches with rows that end earlier, each at a length of its own, and the tokens that are left in the loss.

    Args:
        may_be_masked: one row of several has no token in the loss, as where truncated completions are masked.
    """
    rng, cut = np.random.default_rng([number, 7]), []
    for micro in micro_batches:
        mask = micro.inputs["completion_mask"]
        lengths = mask.sum(1)
        ends = [int(rng.integers(1, n + 1)) if n else 0 for n in lengths.tolist()]
        if may_be_masked and len(ends) > 2:
            ends[number % len(ends)] = 0
        kept = mask.cumsum(1) <= torch.tensor(ends, device=mask.device)[:, None]
        cut.append(replace(micro, inputs=dict(micro.inputs) | {"completion_mask": mask * kept.to(mask.dtype)}))
    items = torch.stack([loss_mask_of(micro.inputs).sum() for micro in cut]).sum()
    of_step = micro_batches[0].inputs["num_items_in_batch"]
    counted = (
        torch.as_tensor(items, dtype=of_step.dtype, device=of_step.device) if torch.is_tensor(of_step) else float(items)
    )
    return [replace(m, inputs=dict(m.inputs) | {"num_items_in_batch": counted}) for m in cut], [float(items)]


def scored(micro: MicroBatch) -> torch.Tensor:
    """The log-probs (B, T) that the loss of a micro-batch took, in fp32, in which it is asked."""
    assert micro.logps is not None  # else the loss is not asked
    return micro.logps.float()


def _of_rows(table: torch.Tensor, there: torch.Tensor) -> list[np.ndarray]:
    return [row[mask].double().numpy(force=True) for row, mask in zip(table, there, strict=True)]


def moved_inputs(step: Step, micro: MicroBatch, number: int, place: int) -> dict[str, Any]:
    """The inputs of a loss with what a later update would change moved by known noise; what is not among them stays out.

    Args:
        step: whose settings say how far to go.
        micro: of the step.
        number: of the question, from 0; two for each of the `widths_of` the step, with advantages of the other sign.
        place: of the micro-batch in the update.
    """
    rng = np.random.default_rng([number, place])
    inputs, logps = dict(micro.inputs), scored(micro)
    mask = inputs["completion_mask"].double().numpy(force=True)
    if inputs.get("tool_mask") is not None:
        mask = mask * inputs["tool_mask"].double().numpy(force=True)
    level, limits, widths = level_of(step), limits_of(step), widths_of(step)
    width = widths[number // 2]

    def table(values: np.ndarray) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logps.device)

    def noise() -> np.ndarray:
        return log_ratios(rng, mask, width, level, limits)

    if inputs.get("old_logps") is not None:  # RLOO's, a sum for each row
        inputs["old_logps"] = ((logps - table(noise())) * table(mask)).sum(1)
    if inputs.get("old_per_token_logps") is not None:
        inputs["old_per_token_logps"] = logps - table(noise())
    if inputs.get("ref_per_token_logps") is not None:
        inputs["ref_per_token_logps"] = logps - table(log_ratios(rng, mask, _WIDTH, "token", ()))
    if inputs.get("sampling_per_token_logps") is not None:
        inputs["sampling_per_token_logps"] = logps - table(noise())
    if inputs.get("importance_sampling_ratio") is not None:
        weights = np.exp(mask * log_ratios(rng, mask, _WIDTH, level, ()))
        columns = inputs["importance_sampling_ratio"].shape[1]
        inputs["importance_sampling_ratio"] = table(weights[:, :columns])
    shape = tuple(inputs["advantages"].shape)
    signs = (-1.0) ** (np.arange(shape[0]) + number + place)
    sizes = rng.uniform(0.5, largest_advantage(step), shape)
    if number % 2 and shape[0] > 2:  # a row of equal rewards: it teaches nothing, but its KL and its tokens count
        sizes[(number + place) % shape[0]] = 0.0
    inputs["advantages"] = table(signs.reshape([-1] + [1] * (len(shape) - 1)) * sizes)
    return inputs


def largest_advantage(step: Step) -> float:
    """The size that advantages of such a step can have, at least 1.5; in a scaled group that of one row against the rest."""
    size = step.num_generations
    seen = max((float(np.abs(table).max()) for table in step.advantages if table.size), default=0.0)
    scaled = (size - 1) / math.sqrt(size) if step.settings.get("scale_rewards") == "group" else 2 * seen
    return max(1.5, scaled)


def level_of(step: Step) -> str:
    """The unit of a ratio: each `token`, the `mean` of a sequence's tokens, or their `sum`."""
    if step.kind == "RLOO" or step.settings["loss_type"] == "vespo":
        return "sum"
    return "mean" if step.settings["importance_sampling_level"] == "sequence" else "token"


def limits_of(step: Step) -> list[float]:
    """The log-ratios at which the loss changes its form, by its settings."""
    s = step.loss_settings()
    high = s.epsilon if s.epsilon_high is None else s.epsilon_high
    limits = []
    if step.kind == "RLOO":
        limits = [1 - s.epsilon, 1 + high]
    elif s.loss_type == "gmpo":
        return [-s.epsilon, high]
    elif s.loss_type == "cispo":
        limits = [high]
    elif s.loss_type in _CLIPPED:
        limits = [1 - s.epsilon, 1 + high] + ([] if s.delta is None else [s.delta])
    found = [math.log(limit) for limit in limits if limit > 0]
    if step.kind == "GRPO" and s.off_policy_mask_threshold is not None:
        found.append(-s.off_policy_mask_threshold)
    return found


def widths_of(step: Step) -> list[float]:
    """The widths by which log-ratios are moved, in nats: to each limit and beyond, and as far as a policy may drift."""
    widths = [_BEYOND * abs(limit) for limit in limits_of(step)]
    return [*(min(max(width, _NARROWEST), _WIDEST) for width in widths), _WIDTH]


def log_ratios(rng: np.random.Generator, mask: np.ndarray, width: float, level: str, limits: Sequence[float]):
    """Random log-ratios of rows, of which what the loss takes is at no limit, where rounding would decide.

    Args:
        rng: where the noise is from.
        mask: (B, T), 1 for tokens that count.
        width: standard deviation of the ratios that the loss takes, in nats.
        level: as `level_of` says.
        limits: in nats.

    Returns:
        (B, T).

    Example:
        >>> moves = log_ratios(np.random.default_rng(0), np.ones((2, 3)), 0.3, "mean", [0.2])
        >>> moves.shape, moves.mean(1).round(2)
        ((2, 3), array([0.39, 0.28]))
    """
    counts = np.maximum(mask.sum(1, keepdims=True), 1.0)
    noise = rng.normal(0, width, mask.shape)
    noise = noise - (noise * mask).sum(1, keepdims=True) / counts
    of_row = _off_limits(rng.normal(0, width, (len(mask), 1)), limits)
    if level == "token":
        return _off_limits(noise + of_row, limits)
    return noise + (of_row / counts if level == "sum" else of_row)


def _off_limits(values: np.ndarray, limits: Sequence[float]) -> np.ndarray:
    """The values, with those that are at a limit moved next to it."""
    for limit in limits:
        margin = 0.05 * abs(limit) + 5e-5
        side = np.where(values >= limit, 1.0, -1.0)
        values = np.where(np.abs(values - limit) < margin, limit + side * margin, values)
    return values


def compare(step: Step, rounds: Sequence[list[_Answer]], definition: Definition = losses_of) -> Asked:
    """Judge the answers, each round one question for every micro-batch."""
    said = _what_was_asked(step, rounds)
    worst, where = _worst(step, rounds, definition)
    if worst <= _ALLOWED:
        return Asked(said=said, wrong=worst)
    off = f"the loss is off by up to {worst:.2g} of its size"
    fitting = [other for other in _other_definitions(step) if _worst(step, rounds, other[2])[0] <= _ALLOWED]
    if not fitting:
        return Asked(said=said, wrong=worst, cause=f"{off}; {said}", where=where)
    cause = f"the loss answers {', or '.join(name for name, *_ in fitting)}; {off}; {said}"
    return Asked(said=said, wrong=worst, cause=cause, where=where, explained=True, by_ratios=fitting[0][1])


def _what_was_asked(step: Step, rounds: Sequence[list[_Answer]]) -> str:
    taken = []
    for answers in rounds:
        for row in (row for answer in answers for row in answer.rows.rows if row.mask.any()):
            if row.old_sum is not None:
                taken.append(np.array([(row.logps * row.mask).sum() - row.old_sum]))
            elif row.old_logps is not None:
                difference = (row.logps - row.old_logps)[row.mask > 0]
                taken.append(difference if level_of(step) == "token" else _of_sequence(step, difference))
    kinds = "advantages" + (", reference" if step.kind == "GRPO" and step.settings["beta"] else "")
    questions = f"asked {len(rounds)} times with other {kinds}"
    if not taken:
        return f"{questions}; every ratio is 1 with these settings"
    ratios = np.exp(np.concatenate(taken))
    return f"{questions} and old log-probs, ratios of {ratios.min():.3g} to {ratios.max():.3g}"


def _of_sequence(step: Step, difference: np.ndarray) -> np.ndarray:
    total = difference.sum(keepdims=True)
    return total if level_of(step) == "sum" else total / len(difference)


def _worst(step: Step, rounds: Sequence[list[_Answer]], definition: Definition) -> tuple[float, str]:
    """The largest difference between answers and a definition, relative to its size; and where, at a token if there is one."""
    largest = {"value": (0.0, ""), "slope": (0.0, "")}
    for number, answers in enumerate(rounds):
        tokens = answers[0].tokens or step.tokens
        losses = definition(replace(step, micro_batches=[answer.rows for answer in answers], tokens=tokens))
        for place, (answer, loss) in enumerate(zip(answers, losses, strict=True)):
            for off, kind, name in [] if loss is None else _differences(step, answer, loss):
                size = math.inf if math.isnan(off) else off
                if size > largest[kind][0]:
                    largest[kind] = size, f"question {number + 1}, micro-batch {place + 1}, {name}"
    where = largest["slope"] if largest["slope"][0] > _ALLOWED else largest["value"]
    return max(size for size, _ in largest.values()), where[1]


def _differences(step: Step, answer: _Answer, loss: Loss) -> Iterator[tuple[float, str, str]]:
    """Each part of an answer: how far it is from the definition, `value` or `slope`, and in words."""
    pairs = [] if answer.slopes is None else [(answer.slopes, loss.slopes, "slope")]
    if answer.slopes is not None and (loss.entropy_slopes or answer.entropy_slopes):
        none = [np.zeros_like(slopes) for slopes in loss.slopes]
        pairs.append((answer.entropy_slopes or none, loss.entropy_slopes or none, "slope by the entropy"))
    size = sum(float(np.abs(slopes).sum()) for slopes in loss.slopes)
    rounding = 0.0
    if level_of(step) == "sum":
        rounding = _ROUNDING * max(float(np.abs(row.logps * row.mask).sum()) for row in answer.rows.rows)
    yield abs(answer.value - loss.value) / max(size + abs(loss.value), 1e-12) - rounding, "value", "value"
    for used, expected, name in pairs:
        rows = zip(expected, answer.rows.rows, strict=True)
        counted = np.concatenate([np.abs(slopes[row.mask > 0]) for slopes, row in rows])
        typical = max(float(counted.mean()) if len(counted) else 0.0, 1e-12)
        yield answer.elsewhere / typical, "slope", "slope by a pad"
        for i, (ours, row) in enumerate(zip(used, answer.rows.rows, strict=True)):
            if not len(ours):
                continue
            off = np.abs(ours - expected[i]) / np.maximum(np.abs(expected[i]), typical)
            token = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
            said = f"row {i}, token {token}: {name} {ours[token]:.3g}, defined {expected[i][token]:.3g}"
            advantage = np.broadcast_to(row.advantage, off.shape)[token]
            yield float(off[token]) - rounding, "slope", f"{said}, advantage {advantage:+.2g}"


def _with_settings(**changes: Any) -> Definition:
    return lambda step: losses_of(replace(step, settings=step.settings | changes))


def _with_rows(change: Callable[[LossRow], LossRow], **changes: Any) -> Definition:
    def definition(step: Step) -> list[Loss | None]:
        micro_batches = [replace(m, rows=[change(row) for row in m.rows]) for m in step.micro_batches]
        return losses_of(replace(step, micro_batches=micro_batches, settings=step.settings | changes))

    return definition


def _other_definitions(step: Step) -> Iterator[tuple[str, bool, Definition]]:
    """Definitions that a faulty loss may follow: in words, whether they are of the ratios, and how they are computed."""
    s = step.loss_settings()
    high = s.epsilon if s.epsilon_high is None else s.epsilon_high
    yield "as if every ratio were 1: it ignores the old log-probs", True, _with_rows(_without_old)
    if step.kind == "RLOO":
        yield "as without a clip", False, _with_settings(epsilon=math.inf, epsilon_high=math.inf)
        yield from _of_the_other_side(s.epsilon, high)
        yield "as with the larger of the plain and the clipped loss for the smaller", False, _larger_for_smaller
        return
    other = "token" if s.importance_sampling_level == "sequence" else "sequence"
    yield f"as importance_sampling_level={other!r} does", True, _with_settings(importance_sampling_level=other)
    if s.importance_sampling_level == "sequence":
        yield "as with the sum of a sequence's log-ratios for their mean", True, _sum_for_mean
    if s.loss_type in (*_CLIPPED, "cispo", "gmpo"):
        yield "as without a clip", False, _with_settings(epsilon=math.inf, epsilon_high=math.inf, delta=None)
        yield from _of_the_other_side(s.epsilon, high)
        yield "as with the larger of the plain and the clipped loss for the smaller", False, _larger_for_smaller
    if s.delta is not None:
        yield "as without delta", False, _with_settings(delta=None)
    if s.beta:
        yield "as if the reference were the policy itself: no KL", False, _with_settings(beta=0.0)
        yield "as if the reference were the policy that sampled", False, _with_rows(_old_for_reference)
        yield "as with k1, the log-ratio itself, for k3 of the KL", False, _k1_for_k3
        corrected = not s.use_bias_correction_kl
        yield f"as use_bias_correction_kl={corrected} does", False, _with_settings(use_bias_correction_kl=corrected)
    if s.loss_type == "sapo":
        swapped = {"sapo_temperature_pos": s.sapo_temperature_neg, "sapo_temperature_neg": s.sapo_temperature_pos}
        yield "as with SAPO's two temperatures in each other's place", False, _with_settings(**swapped)
    if s.loss_type == "vespo":
        swapped = {"vespo_k_pos": s.vespo_k_neg, "vespo_k_neg": s.vespo_k_pos}
        swapped |= {"vespo_lambda_pos": s.vespo_lambda_neg, "vespo_lambda_neg": s.vespo_lambda_pos}
        yield "as with VESPO's numbers for the two signs in each other's place", False, _with_settings(**swapped)
    if s.top_entropy_quantile < 1:
        yield "as without top_entropy_quantile", False, _with_settings(top_entropy_quantile=1.0)
    if s.off_policy_mask_threshold is not None:
        yield "as without off_policy_mask_threshold", False, _with_settings(off_policy_mask_threshold=None)
    if s.entropy_coef:
        yield "as without entropy_coef", False, _with_settings(entropy_coef=0.0)
        yield "as with entropy_coef of the other sign", False, _with_settings(entropy_coef=-s.entropy_coef)
    yield "as without the sampler's correction", False, _with_rows(lambda row: replace(row, correction=None))
    for loss_type in _LOSS_TYPES:
        if loss_type != s.loss_type:
            yield f"as loss_type={loss_type!r} does", False, _with_settings(loss_type=loss_type)


def _of_the_other_side(low: float, high: float) -> Iterator[tuple[str, bool, Definition]]:
    """Definitions that take one width of the clip for the other."""
    if low == high:
        return
    swapped = {"epsilon": high, "epsilon_high": low}
    yield "as with epsilon and epsilon_high in each other's place", False, _with_settings(**swapped)
    yield "as with epsilon for epsilon_high", False, _with_settings(epsilon_high=low)
    yield "as with epsilon_high for epsilon", False, _with_settings(epsilon=high, epsilon_high=high)


def in_log_probs(step: Step) -> list[Loss | None]:
    """Losses with log-probs for ratios, whose gradient is the same while every ratio is 1; right in their values alone."""
    return _with_rows(lambda row: replace(row, advantage=row.advantage * row.logps))(step)


def _without_old(row: LossRow) -> LossRow:
    return replace(row, old_logps=None, old_sum=None)


def _old_for_reference(row: LossRow) -> LossRow:
    return replace(row, ref_logps=row.logps if row.old_logps is None else row.old_logps)


def _larger_for_smaller(step: Step) -> list[Loss | None]:
    """The larger branch of the clip is the smaller one of the negated advantages, negated; KL and entropy stay."""
    negated = _with_rows(lambda row: replace(row, advantage=-row.advantage), **_POLICY_ALONE)(step)
    return _sums([(1.0, losses_of(step)), (-1.0, _with_settings(**_POLICY_ALONE)(step)), (-1.0, negated)])


def _sum_for_mean(step: Step) -> list[Loss | None]:
    """With a log-ratio as many times as large as a sequence has tokens, the mean is the sum, and so are its slopes."""

    def longer(row: LossRow) -> LossRow:
        old = row.logps if row.old_logps is None else row.old_logps
        return replace(row, old_logps=row.logps - row.mask.sum() * (row.logps - old))

    summed = []
    losses = _with_rows(longer, **_POLICY_ALONE)(step)
    for micro, loss in zip(step.micro_batches, losses, strict=True):
        if loss is not None:
            slopes = [row.mask.sum() * part for row, part in zip(micro.rows, loss.slopes, strict=True)]
            loss = replace(loss, slopes=slopes)
        summed.append(loss)
    return _sums([(1.0, losses_of(step)), (-1.0, _with_settings(**_POLICY_ALONE)(step)), (1.0, summed)])


def _k1_for_k3(step: Step) -> list[Loss | None]:
    """The slope of k3 by a reference that is far below is 1: this gives what KL is multiplied by at each token."""
    settings, found = step.loss_settings(), list[Loss | None]()
    without = _with_settings(beta=0.0)(step)
    far = _with_rows(lambda row: replace(row, ref_logps=row.logps - 700), use_bias_correction_kl=False)(step)
    for micro, plain, distant in zip(step.micro_batches, without, far, strict=True):
        if plain is None or distant is None:
            found.append(None)
            continue
        value, slopes = plain.value, []
        for i, row in enumerate(micro.rows):
            weight = distant.slopes[i] - plain.slopes[i]
            kl = row.logps - row.ref_logps
            by_ratio = np.zeros_like(kl)
            if settings.use_bias_correction_kl:
                weight = weight * plain.ratios[i]
                by_ratio = weight * kl
                if settings.importance_sampling_level == "sequence":
                    by_ratio = by_ratio.sum() * row.mask / max(float(row.mask.sum()), 1.0)
            value += float((weight * kl).sum())
            slopes.append(plain.slopes[i] + weight + by_ratio)
        found.append(replace(plain, value=value, slopes=slopes))
    return found


_POLICY_ALONE = {"beta": 0.0, "entropy_coef": 0.0}


def _sums(terms: Sequence[tuple[float, list[Loss | None]]]) -> list[Loss | None]:
    """The sum of losses, each times a factor, of each micro-batch; entropy slopes are those of the first term."""
    found: list[Loss | None] = []
    for place, first in enumerate(terms[0][1]):
        parts = [(factor, loss) for factor, losses in terms if (loss := losses[place]) is not None]
        if first is None or len(parts) < len(terms):
            found.append(None)
            continue
        value, slopes = 0.0, [np.zeros_like(row) for row in first.slopes]
        for factor, loss in parts:
            value += factor * loss.value
            slopes = [total + factor * row for total, row in zip(slopes, loss.slopes, strict=True)]
        found.append(replace(first, value=value, slopes=slopes))
    return found


def stages_with_answers(ratios: Stage | None, loss: Stage, asked: Asked) -> tuple[Stage | None, Stage]:
    """The stages of ratios and loss, of the step as it was, with what the loss answered.

    A fault that another definition of the ratios explains is one of the ratios; for these ratios the loss is then right.
    """
    if loss.verdict == "cannot tell":
        return _never_asked(ratios, loss.cause), loss
    if asked.problem:
        if ratios is None and asked.is_kl_unseen and loss.verdict != "different":
            cause = f"the reference is the policy itself, so each KL is 0, and {asked.problem}"
            return None, replace(loss, verdict="cannot tell", cause=cause)
        if ratios is None:
            return None, loss
        kept = loss if loss.verdict == "different" else replace(loss, verdict="cannot tell", cause="")
        said = f"{ALL_ONE}: {asked.problem}"
        return _never_asked(ratios, asked.problem), replace(kept, cause=kept.cause or said)
    if not asked.cause:
        if ratios is not None and ratios.cause == ALL_ONE:
            verdict = "same" if (ratios.largest or 0.0) <= 2 * SAME else "rounding"
            rounded = "" if verdict == "same" else f" but for rounding (log-ratios up to {ratios.largest:.2g})"
            ratios = replace(ratios, verdict=verdict, cause=f"all are 1{rounded}, as they must be here; {asked.said}")
        return ratios, replace(loss, cause=loss.cause or f"{asked.parts}, {asked.said}")
    wrong: dict[str, Any] = {"verdict": "different", "cause": asked.cause, "largest": asked.wrong, "where": asked.where}
    if asked.by_ratios and ratios is not None and ratios.verdict != "different":
        return replace(ratios, **wrong), replace(loss, cause=loss.cause or "for the ratios that it takes")
    if ratios is not None and ratios.cause == ALL_ONE:
        ratios = replace(ratios, cause=f"{ALL_ONE}, and what the loss makes of others is not as defined")
    return ratios, replace(loss, **wrong) if asked.explained or loss.verdict != "different" else loss


def _never_asked(ratios: Stage | None, problem: str) -> Stage | None:
    if ratios is None or ratios.cause != ALL_ONE:
        return ratios
    return replace(ratios, cause=f"{ALL_ONE}: {problem}")
