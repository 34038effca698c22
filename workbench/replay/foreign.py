"""A step that another trainer than TRL's wrote: what it may choose otherwise, for which TRL's config has no setting."""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from .dump_stages import NO_BASELINE, compared_with_formulas
from .grpo_math import Loss, LossSettings, grpo_loss, row_rewards
from .report import Stage
from .stages import SETTING_STAGES, advantage_of_rows, compared
from .step import Step

# Settings that a replay reads; those of the loss, and those that decide a stage, are named elsewhere.
_READ = {
    "gradient_accumulation_steps",
    "steps_per_generation",
    "normalize_advantages",
    "reward_func_names",
    "rollout_func",
}
_OF_LOSSES = re.compile("^(?!adam_).*(clip|(?<!st)eps|beta|kl|adv|loss|agg)")  # what their settings are called
_BY_DEVIATION = "standard deviation"  # in the name of a formula
_OF_ROWS = ("grpo", "dr_grpo", "luspo")  # whose loss is a mean over rows, or over rows times a constant


def with_choices(step: Step, losses: Sequence[Loss | None], stages: Sequence[Stage | None]) -> list[Stage | None]:
    """The stages, where rewards, advantages and loss that TRL would compute otherwise are compared with what others compute."""
    known = {
        "rewards": lambda stage: _rewards(step, stage),
        "advantages": lambda stage: _advantages(step, stage),
        "loss": lambda stage: _loss(step, losses, stage),
    }
    return [known[stage.name](stage) if stage and stage.name in known else stage for stage in stages]


def _rewards(step: Step, stage: Stage) -> Stage:
    """Rewards of a file that leaves out what the functions returned."""
    if step.returned is not None or stage.verdict != "cannot tell":
        return stage
    said = "the file has no `returned`: what each reward function returned, to compare the rewards with"
    return dataclasses.replace(stage, cause=said)


def _advantages(step: Step, stage: Stage) -> Stage:
    """Advantages that are not TRL's, against the published formulas."""
    used, settings = advantage_of_rows(step), step.settings
    if stage.verdict != "different" or used is None or not np.isfinite(used).all():
        return stage
    if step.processes > 1 or settings.get("multi_objective_aggregation") == "normalize_then_sum":
        return stage
    if step.kind == "RLOO":  # its definition is one of the formulas, and none of them takes a KL off
        return stage
    rewards = np.concatenate([row_rewards(table, settings["reward_weights"]) for table in step.rewards])
    size = step.num_generations
    groups = [range(first, first + size) for first in range(0, len(rewards), size)]
    found = compared_with_formulas(rewards, used, groups)
    if found.verdict == "different":
        return found
    if found.cause.startswith(NO_BASELINE):
        return dataclasses.replace(stage, cause="they are the rewards: nothing is taken off")
    if found.verdict == "cannot tell":
        return stage
    if (_BY_DEVIATION in found.cause) == (settings["scale_rewards"] == "group"):
        return found
    said = (
        f"they are: {found.cause}. scale_rewards={settings['scale_rewards']!r} is another formula: is this one meant?"
    )
    return Stage("advantages", "cannot tell", said, stage.largest)


def _loss(step: Step, losses: Sequence[Loss | None], stage: Stage) -> Stage:
    """A loss that is not TRL's, with the divisor or the weights of micro-batches that other trainers take."""
    said = f"the file's settings {', '.join(unread)} are not read" if (unread := unread_settings(step)) else ""
    # RLOO's loss has no divisor to choose.
    if stage.verdict == "different" and step.kind == "GRPO" and all(loss is not None for loss in losses):
        stage = _of_a_part(step) or _as_given(step) or _by_rows(step, losses) or stage
    return dataclasses.replace(stage, cause="; ".join(filter(None, [stage.cause, said])))


def unread_settings(step: Step) -> list[str]:
    """Names of settings that sound as if advantages or loss depended on them, and that no stage of a replay reads.

    Example:
        >>> step = Step("GRPO", "float32", 1, 0, {"epsilon": 0.2, "clip_ratio_high": 0.28}, [], [], [], None, [], [])
        >>> unread_settings(step)
        ['clip_ratio_high']
    """
    names = {field.name for field in dataclasses.fields(LossSettings)} | SETTING_STAGES.keys() | _READ
    return sorted(name for name in step.settings if name not in names and _OF_LOSSES.search(name))


def _of_a_part(step: Step) -> Stage | None:
    """The stage of an update that takes some of the rows and divides by their tokens alone."""
    tokens = sum(float(row.mask.sum()) for micro in step.micro_batches for row in micro.rows)
    rows = sum(len(micro.rows) for micro in step.micro_batches)
    if rows == len(step.rows) or not _fits(step, _divided(step, tokens)):
        return None
    return Stage(
        "loss", "same", f"the update takes {rows} of {len(step.rows)} rows, and divides by their {tokens:g} tokens"
    )


def _as_given(step: Step) -> Stage | None:
    """The stage of a loss that is divided by another number of tokens, which the file gives as `items`."""
    items = {micro.items for micro in step.micro_batches}
    if len(items) > 1 or None in items or not _fits(step, _divided(step, given := float(items.pop() or 0.0))):
        return None
    tokens = sum(float(row.mask.sum()) for row in step.rows)
    said = f"it is divided by items={given:g}, and {tokens:g} tokens of these rows are in the loss: are others in the update?"
    return Stage("loss", "cannot tell", said)


def _by_rows(step: Step, losses: Sequence[Loss | None]) -> Stage | None:
    """The stage of micro-batches of several sizes that weigh as their rows do, where TRL weighs them alike."""
    rows = np.array([len(micro.rows) for micro in step.micro_batches], dtype=float)
    if step.loss_settings().loss_type not in _OF_ROWS or np.ptp(rows) == 0:
        return None
    expected = np.array([loss.value for loss in losses if loss]) * rows / rows.mean()
    if not _fits(step, expected):
        return None
    said = (
        f"micro-batches of {', '.join(f'{n:g}' for n in rows)} rows weigh as their rows do, where TRL weighs them alike"
    )
    return Stage("loss", "same", said)


def _divided(step: Step, items: float) -> np.ndarray:
    """The loss of each micro-batch, divided by a number of tokens."""
    accumulation, settings = step.settings["gradient_accumulation_steps"], step.loss_settings()
    found = [grpo_loss(micro.rows, settings, accumulation, items, 1 / accumulation) for micro in step.micro_batches]
    return np.array([loss.value for loss in found])


def _fits(step: Step, expected: np.ndarray) -> bool:
    used = np.array([micro.loss for micro in step.micro_batches])
    size = max(1e-9, float(np.abs(expected).max(initial=0.0)))
    return compared("loss", step, used, expected, "", size).verdict != "different"
