"""The stage `update` of a step: what the optimizer made of the gradient."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ..replay.report import Stage
from ..training.optimizer_step import MUCH_CLIPPED, GroupStep, OptimizerStep
from ..training.step_record import StepRecord
from ..training.updates import LEAST_MOVED

_CLIPPED_NORM = 0.02  # by how much the norm after clipping may be another; bfloat16 rounds by up to 0.4% an element
_LEAST_KEPT = 0.01  # of a step's length after clipping: below it next to nothing is left
_DOMINATES = 0.5  # share of a step
_MUCH_FASTER = 10.0  # times the config's learning rate, above which a schedule of one's own is asked about


def update_stage(record: StepRecord, policy: Any, args: Any, state: Any) -> Stage:
    """Check that the optimizer takes the step that its definition and the trainer's config give, and that weights move."""
    step = record.update
    if record.unlike:
        cause = f"{_listed(record.unlike)} differ between the processes, each of which trains weights of its own"
        return Stage("update", "different", cause)
    if step is None:
        return Stage("update", "cannot tell", record.problem)
    if fault := _fault_of_groups(step, policy):
        return Stage("update", "different", fault)
    if step.unlike_args:
        # Later in a training an optimizer that the user passed can look like one that transformers made.
        asked = ": is the optimizer your own, or does a callback set it?"
        verdict, asked = ("different", "") if step.is_new else ("cannot tell", asked)
        return Stage("update", verdict, "; ".join(step.unlike_args) + asked)
    if step.learning_rate == 0:
        return Stage("update", "cannot tell", _why_no_rate(args, state))
    if not step.with_gradient:
        return Stage("update", "cannot tell", "nothing has a gradient")
    share = step.moved / step.with_gradient
    said = _said(step, policy, share, args.max_grad_norm or 0)
    if fault := _fault_of_step(step, args) or _fault_of_moves(step, policy, args, share):
        return Stage("update", "different", f"{said}; {fault}", share)
    if not step.is_computed:
        cause = f"{said}; its step is not computed again: check_step knows AdamW, Adam, SGD and transformers' Adafactor"
        if share < LEAST_MOVED:
            cause += (
                f"; the rounding of {_dtype_of(policy)} weights, or the optimizer itself, leaves the other elements"
            )
        if any(group.slope > 0 for group in step.groups):
            cause += "; it goes along the gradient, which a momentum or weight decay can explain"
        return Stage("update", "cannot tell", cause, share)
    usual = next(f.default for f in fields(args) if f.name == "learning_rate")
    is_schedules = step.has_own_schedule and not step.is_own
    # One that was passed has a rate of its own; one that `create_optimizer` makes is meant to have the config's.
    is_asked = is_schedules or (step.is_own and step.is_new and args.learning_rate != usual)
    if is_asked and step.learning_rate is not None and step.learning_rate > _MUCH_FASTER * args.learning_rate:
        times = f"{step.learning_rate / args.learning_rate:.3g} times" if args.learning_rate else "above"
        return Stage("update", "cannot tell", f"{said}; the rate is {times} args.learning_rate", share)
    if step.other_decay:
        cause = (
            f"{said}; weight decay leaves out what transformers decays, or the reverse, in {_listed(step.other_decay)}"
        )
        return Stage("update", "cannot tell", f"{cause}: is the optimizer your own?", share)
    if step.decay_share > _DOMINATES:
        decay = max(group.weight_decay for group in step.groups)
        cause = f"{said}; {step.decay_share:.0%} of the step is weight decay (weight_decay={decay:g})"
        return Stage("update", "cannot tell", cause, share)
    return Stage("update", "same", said, share)


def _said(step: OptimizerStep, policy: Any, share: float, limit: float) -> str:
    rate = "a rate of its own" if step.learning_rate is None else f"a learning rate of {step.learning_rate:g}"
    said = f"{step.optimizer} moves {share:.2%} of the elements that have a gradient, at {rate}"
    if step.is_own:
        said += "; its settings are not compared with the config, since it may be your own"
    elif step.has_own_schedule:
        said += "; its schedule is not compared with the config, since it may be your own"
    if 0 < step.norm < limit:
        said += f"; its norm {step.norm:.3g} is below max_grad_norm={limit:g}, so clipping is not asked"
    if resting := [name for group in step.groups if group.rests for name in group.names]:
        said += f"; {_listed(resting)} rest, at a rate of 0"
    total = sum(p.numel() for p in policy.parameters())
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    if trained < total:
        said += f"; {trained / total:.2%} of the parameters train"
    return said


def _fault_of_groups(step: OptimizerStep, policy: Any) -> str:
    """Parameters that the optimizer lacks, a scheduler of other groups, and groups that climb."""
    if not any(p.requires_grad for p in policy.parameters()):
        cause = "no parameter of the model requires a gradient, so nothing trains"
        if hasattr(policy, "peft_config"):
            cause += ": PeftModel.from_pretrained needs is_trainable=True"
        return cause
    if not step.holds_any:
        return f"no parameter of {step.optimizer} trains: it was made for another model, or before an adapter"
    if step.without_group:
        return f"no group of the optimizer holds {_listed(step.without_group)}: they have a gradient and do not move"
    if not step.is_scheduled:
        rate = "its own" if step.learning_rate is None else f"{step.learning_rate:g}"
        cause = f"the scheduler was made for another optimizer, whose learning rate it sets: that of {step.optimizer}"
        return f"{cause}, which trains, stays {rate}"
    for group in step.groups:
        if group.maximize:
            return f"{step.optimizer} climbs the loss: maximize=True {_of(group, step.groups)}"
        # Only a first step without decay must go down: later ones may go on along an average of earlier gradients.
        if step.is_first and not step.is_computed and group.slope > 0 and not group.weight_decay:
            return f"{step.optimizer} climbs the loss: it steps along the gradient {_of(group, step.groups)}"
    return ""


def _fault_of_step(step: OptimizerStep, args: Any) -> str:
    """Sentences on how the step differs from the definition."""
    if abs(step.clipped_norm - step.expected_norm) > _CLIPPED_NORM * step.expected_norm:
        cause = (
            f"the gradient has norm {step.clipped_norm:.3g} after clipping, max_grad_norm={args.max_grad_norm:g} gives"
        )
        return f"{cause} {step.expected_norm:.3g}"
    if not step.finite:
        return "a weight is not finite after the step"
    if step.counted:
        cause = (
            f"the state of {step.optimizer} counts {step.counted} steps before the first update, but its averages are 0"
        )
        return f"{cause}: their bias is not corrected"
    if step.is_computed and step.wrong:
        climbs = ": it climbs the loss" if step.times < 0 else ""
        cause = f"it is not the step of {step.optimizer}, but {step.times:.3g} times that{climbs}: {step.wrong:,} of"
        return f"{cause} {step.elements:,} elements differ by more than rounding, most in {step.worst}"
    return ""


def _fault_of_moves(step: OptimizerStep, policy: Any, args: Any, share: float) -> str:
    """The cause that leaves the weights where they are."""
    is_much_clipped = 0 < MUCH_CLIPPED * (args.max_grad_norm or 0) < step.norm  # below 0 nothing is clipped either
    if is_much_clipped and (share < LEAST_MOVED or step.kept_by_clipping < _LEAST_KEPT):
        return f"max_grad_norm={args.max_grad_norm:g} cuts a gradient of norm {step.norm:.3g}"
    if share < LEAST_MOVED and step.is_computed:  # another optimizer may leave elements on purpose
        return f"the rounding of {_dtype_of(policy)} weights loses the other updates"
    return ""


def _dtype_of(policy: Any) -> str:
    return str(next(p.dtype for p in policy.parameters() if p.requires_grad)).removeprefix("torch.")


def _why_no_rate(args: Any, state: Any) -> str:
    schedule = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    said = f"the learning rate of this step is 0: learning_rate={args.learning_rate:g}, lr_scheduler_type={schedule!r}"
    warmup = args.get_warmup_steps(state.max_steps)
    if args.learning_rate and state.global_step < warmup:
        return f"{said}, at the start of a warmup of {warmup} steps"
    return f"{said}, step {state.global_step + 1} of {state.max_steps}" if args.learning_rate else said


def _of(group: GroupStep, groups: Sequence[GroupStep]) -> str:
    return "of all parameters" if len(groups) == 1 else f"of the group of {_listed(group.names)}"


def _listed(names: Sequence[str]) -> str:
    """The first names of many.

    Example:
        >>> _listed(["a", "b"]), _listed(["a", "b", "c", "d"])
        ('a, b', '4 parameters (a, b, ...)')
    """
    return ", ".join(names) if len(names) < 3 else f"{len(names)} parameters ({', '.join(names[:2])}, ...)"
