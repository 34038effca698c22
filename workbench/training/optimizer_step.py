"""One step of a trainer's optimizer: taken, compared with what the optimizer's definition gives, and undone."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import gather_object
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau
from transformers import Adafactor, Trainer, get_scheduler

from ..replay.optimizers import adafactor_step, adam_step, clip_factor, sgd_step
from .processes import is_sharded, own_part, share_of, sum_over_processes
from .snapshot import Snapshot, host_copy
from .updates import count_moved

MUCH_CLIPPED = 1000.0  # times the limit: a gradient of which clipping leaves next to nothing
_ULPS = 2.0  # one rounding after weight decay, one after the step
_LEAST_RELATIVE = 1e-4  # of a step: the norm of a gradient of 10^8 elements is that inexact in fp32
_ROUNDINGS = 4.0  # of the coarsest dtype among weights, gradient and state, in a step
_PART = 2**23  # elements that are computed at a time, where each is computed from itself alone
_PART_ON_CPU = 2**17  # which its cache holds

_ADAM = ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay")
_SGD = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
_ADAFACTOR: tuple[str, ...] = ("lr", "eps", "clip_threshold", "decay_rate", "beta1", "weight_decay")
_ADAFACTOR += ("scale_parameter", "relative_step", "warmup_init")
# Of subclasses nobody knows what they changed, so the class itself is looked up.
_RULES: dict[type, tuple[Callable, tuple[str, ...]]] = {
    torch.optim.AdamW: (adam_step, _ADAM),
    torch.optim.Adam: (adam_step, _ADAM),
    torch.optim.SGD: (sgd_step, _SGD),
    Adafactor: (adafactor_step, _ADAFACTOR),
}
_ARGUMENTS = {"lr": "learning_rate", "betas": "(adam_beta1, adam_beta2)", "eps": "adam_epsilon"}


@dataclass
class GroupStep:
    """One parameter group of the optimizer, of which the model has parameters with a gradient."""

    names: list[str]
    maximize: bool
    weight_decay: float
    rests: bool = False  # its learning rate is 0
    slope: float = 0.0  # the sum of gradient times step: below 0 where the loss falls


@dataclass
class OptimizerStep:
    """One step of the optimizer: how it moved the weights, and how far it is from the definition."""

    optimizer: str  # its class
    is_new: bool  # made for this step, since the trainer has not made its own yet
    is_first: bool  # no parameter has a state yet
    learning_rate: float | None  # the largest of the groups; None: the optimizer sets it
    with_gradient: int = 0  # elements, without those of groups whose rate is 0
    moved: int = 0  # of these, in the weights' own dtype
    holds_any: bool = True  # a parameter of the model
    without_group: list[str] = field(default_factory=list)  # parameters with a gradient
    groups: list[GroupStep] = field(default_factory=list)
    is_own: bool = False  # the user's, of which the config says nothing
    unlike_args: list[str] = field(default_factory=list)  # its settings that are not those of the config
    other_decay: list[str] = field(default_factory=list)  # parameters that transformers puts into the other group
    has_own_schedule: bool = False  # a scheduler that transformers did not make
    is_scheduled: bool = True  # False: the trainer's scheduler sets the rate of another optimizer
    norm: float = 0.0  # of the gradient, before clipping
    expected_norm: float = 0.0  # after clipping
    clipped_norm: float = 0.0  # after the trainer's own clipping
    is_computed: bool = False  # the rest is known
    elements: int = 0
    wrong: int = 0  # elements that are further away than rounding
    worst: str = ""  # the parameter with most of these
    finite: bool = True
    times: float = 1.0  # the step, along the expected one
    counted: int = 0  # steps that the state counts before the first update, while each of its averages is 0
    decay_share: float = 0.0  # of the step that weight decay is, 0 to 1
    kept_by_clipping: float = 1.0  # how long the step is, of one without clipping; only known where much is clipped


class _Whole:
    """Makes numbers of the parts of the weights that this process holds those of the whole weights."""

    def __init__(self, trained: Mapping[str, torch.Tensor], processes: int, are_sharded: bool):
        self.are_sharded = are_sharded
        self._shares = {name: share_of(p, processes) if are_sharded else 1.0 for name, p in trained.items()}

    def total(self, values: Sequence[float]) -> list[float]:
        """The sum of each number over the processes, which all come here."""
        return sum_over_processes(values) if self.are_sharded else list(values)

    def norm(self, tensors: Mapping[str, torch.Tensor]) -> float:
        """The norm of all tensors, by parameter."""
        norms = {name: float(torch.linalg.vector_norm(x, dtype=_exact(x))) for name, x in tensors.items()}
        return math.sqrt(*self.total([sum(self._shares[name] * norm**2 for name, norm in norms.items())]))


def step_and_undo(
    trainer: Any,
    policy: Any,
    gradients: Mapping[str, torch.Tensor],
    copies: Mapping[str, torch.Tensor] | None = None,
) -> OptimizerStep:
    """Take the step and undo it; `gradients` by parameter, before clipping. Weights and state are copied to the host.

    Where FSDP2 holds the weights in parts, `gradients` are of the part of this process, which it compares, and numbers are
    those of all processes together. `copies` are weights as they are now, where the host has them already.
    """
    trained = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    whole = _Whole(trained, trainer.accelerator.num_processes, is_sharded(policy))
    gradients = {name: gradient for name, gradient in gradients.items() if name in trained}
    is_new = trainer.optimizer is None
    outer = trainer.create_optimizer() if is_new else trainer.optimizer
    optimizer = _without_accelerate(outer)
    copies = copies or {}
    weights = {name: copies[name] if name in copies else host_copy(own_part(p)) for name, p in trained.items()}
    snapshot = Snapshot([vars(outer), vars(optimizer)], others=trained.values())
    states = {name: dict(optimizer.state.get(p, {})) for name, p in trained.items()}
    step = _described(trainer, optimizer, trained, gradients, is_new, whole)
    options = {id(p): dict(group) for group in optimizer.param_groups for p in group["params"]}
    try:
        _clip(trainer, policy)
        step.clipped_norm = whole.norm({n: own_part(p.grad) for n, p in trained.items() if p.grad is not None})
        if has_modes(optimizer):  # transformers switches it before each step, but not one that is made here
            optimizer.train()
        optimizer.step()
        # Adafactor has numbers of whole rows and columns.
        is_elementwise = type(optimizer) is not Adafactor
        if type(optimizer) in _RULES and step.holds_any and (is_elementwise or not whole.are_sharded):
            step.is_computed = True
            _compare(step, type(optimizer), trained, weights, gradients, states, options, snapshot, whole)
        _count(step, trained, weights, gradients, whole)
    finally:
        with torch.no_grad():
            for name, parameter in trained.items():
                own_part(parameter).copy_(weights[name])
        snapshot.restore()
    return step


def has_modes(optimizer: Any) -> bool:
    """Say whether an optimizer trains other weights than it evaluates, as schedule-free ones do."""
    inner = _without_accelerate(optimizer)  # accelerate's has these methods for every optimizer
    return all(callable(getattr(inner, name, None)) for name in ("train", "eval"))


def _without_accelerate(optimizer: Any) -> Any:
    """The optimizer in accelerate's, which passes over steps between micro-batches; one of the user's may do anything."""
    return optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer


def _described(
    trainer: Any,
    optimizer: Any,
    trained: Mapping[str, Any],
    gradients: Mapping[str, torch.Tensor],
    is_new: bool,
    whole: _Whole,
) -> OptimizerStep:
    """The state of optimizer and weights before the step."""
    rates = [float(group["lr"]) for group in optimizer.param_groups if group.get("lr") is not None]
    step = OptimizerStep(type(optimizer).__name__, is_new, not optimizer.state, max(rates, default=None))
    names = {id(p): name for name, p in trained.items()}
    grouped = [[names[id(p)] for p in group["params"] if id(p) in names] for group in optimizer.param_groups]
    step.holds_any = any(grouped)
    held = {name for group in grouped for name in group}
    step.without_group = [name for name in gradients if name not in held]
    for group, members in zip(optimizer.param_groups, grouped, strict=True):
        with_gradient = [name for name in members if name in gradients]
        if with_gradient:
            decay = float(group.get("weight_decay") or 0.0)
            rests = group.get("lr") is not None and not float(group["lr"])
            step.groups.append(GroupStep(with_gradient, bool(group.get("maximize")), decay, rests))
    step.norm = whole.norm(gradients)
    step.expected_norm = step.norm * clip_factor(step.norm, trainer.args.max_grad_norm)
    if trainer.state.global_step == 0:
        step.counted = _steps_without_averages(optimizer.state.values())
    step.is_own = not _is_made_by_transformers(trainer, optimizer, is_new)
    step.has_own_schedule = trainer.lr_scheduler is not None and not getattr(trainer, "_created_lr_scheduler", False)
    if not step.is_own:
        step.unlike_args = _settings_unlike_args(trainer, optimizer)
    step.is_scheduled = not _is_scheduler_of_another(trainer, optimizer)
    if is_new or trainer.optimizer is not optimizer:
        step.other_decay = _of_the_other_group(trainer, optimizer)
    return step


def _is_scheduler_of_another(trainer: Any, optimizer: Any) -> bool:
    """Say whether the trainer's scheduler sets rates in no group of the optimizer, and `train()` will not replace it."""
    scheduler = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)  # accelerate's has one inside
    if getattr(trainer, "_created_lr_scheduler", False) and not getattr(trainer, "is_in_train", False):
        return False
    scheduled = getattr(getattr(scheduler, "optimizer", None), "param_groups", None)
    own = {id(group) for group in optimizer.param_groups}
    return scheduled is not None and own.isdisjoint(map(id, scheduled))


def _steps_without_averages(states: Iterable[Mapping[str, Any]]) -> int:
    """The most steps that Adam's state counts; 0 where one of its averages is not 0, so that it has seen gradients."""
    states = [state for state in states if "exp_avg_sq" in state and "step" in state]
    if any(bool(own_part(state["exp_avg_sq"]).any()) for state in states):
        return 0
    return max((int(state["step"]) for state in states), default=0)


def _is_made_by_transformers(trainer: Any, optimizer: Any, is_new: bool) -> bool:
    """True where class and groups are those that transformers makes from the config."""
    passed = not is_new and trainer.optimizer is optimizer  # one that transformers made is wrapped by accelerate
    if passed or getattr(trainer, "optimizer_cls_and_kwargs", None) is not None:
        return False
    decayed = set(trainer.get_decay_parameter_names(trainer.model))
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    groups = [{names.get(id(p)) for p in group["params"]} for group in optimizer.param_groups]
    expected_class = trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)[0]
    return (
        type(optimizer) is expected_class
        and len(groups) == 2
        and groups[0] <= decayed
        and groups[1] <= set(names.values()) - decayed
    )


def _of_the_other_group(trainer: Any, optimizer: Any) -> list[str]:
    """The parameters that transformers puts into the other one of two groups, whose weight decay is as it gives them."""
    decays = [group.get("weight_decay") for group in optimizer.param_groups]
    if not trainer.args.weight_decay or decays != [trainer.args.weight_decay, 0.0]:
        return []
    decayed = set(Trainer.get_decay_parameter_names(trainer, trainer.model))  # a subclass may have its own
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    groups = [[names.get(id(p)) for p in group["params"]] for group in optimizer.param_groups]
    wrong = [[name for name in groups[0] if name not in decayed], [name for name in groups[1] if name in decayed]]
    return [name for part in wrong for name in part if name is not None]


def _settings_unlike_args(trainer: Any, optimizer: Any) -> list[str]:
    """The settings of an optimizer that transformers made which are not those that the config gives, in words."""
    kind, expected = trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
    expected = _defaults_of(kind) | expected
    scheduler = trainer.lr_scheduler
    unlike = []
    for number, group in enumerate(optimizer.param_groups):
        settings = dict(expected) | {"weight_decay": 0.0 if number else trainer.args.weight_decay}
        if scheduler is not None and "initial_lr" in group:
            settings["initial_lr"] = settings.pop("lr")
            settings["lr"] = scheduler.get_last_lr()[number]
        elif isinstance(scheduler, ReduceLROnPlateau) and scheduler.last_epoch:  # it has seen an evaluation
            settings["lr"] = scheduler.get_last_lr()[number]
        for name, value in settings.items():
            if name in group and not _is_equal(group[name], value):
                unlike.append(_unlike(name, group[name], value, number, "initial_lr" in settings))
    done = trainer.state.global_step
    counts = isinstance(scheduler, LRScheduler) and not isinstance(scheduler, ReduceLROnPlateau)
    scaler = trainer.accelerator.scaler
    leaves_out = scaler is not None and scaler.is_enabled()  # a step that overflows in fp16
    if counts and (scheduler.last_epoch > done or (scheduler.last_epoch < done and not leaves_out)):
        unlike.append(f"the scheduler counts {scheduler.last_epoch} steps before update {done + 1}")
    unlike += _schedule_unlike_args(trainer)
    return list(dict.fromkeys(unlike))


def _defaults_of(kind: type) -> dict[str, Any]:
    """The options of a known optimizer that decide its step, as its class has them by default."""
    known = _RULES[kind][1] if kind in _RULES else ()
    return {name: each.default for name, each in inspect.signature(kind).parameters.items() if name in known}


def _schedule_unlike_args(trainer: Any) -> list[str]:
    """The first step at which a schedule of the trainer's own making has another rate than the config gives, in words."""
    scheduler, args, steps = trainer.lr_scheduler, trainer.args, trainer.state.max_steps
    is_made_here = type(scheduler) is LambdaLR and getattr(trainer, "_created_lr_scheduler", False)
    if not is_made_here or steps < 1 or not args.learning_rate:
        return []
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.learning_rate)  # which some schedules ask
    warmup, kwargs = args.get_warmup_steps(steps), args.lr_scheduler_kwargs
    planned = get_scheduler(args.lr_scheduler_type, other, warmup, steps, scheduler_specific_kwargs=kwargs)
    if type(planned) is not LambdaLR:
        return []
    name = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    for done in sorted({steps * part // 8 for part in range(8)} | {min(scheduler.last_epoch, steps)}):
        used, given = (args.learning_rate * each.lr_lambdas[0](done) for each in (scheduler, planned))
        if not math.isclose(used, given, rel_tol=1e-6, abs_tol=1e-12):
            said = f"the schedule gives update {done + 1} of {steps} a learning rate of {used:g}"
            return [f"{said}, lr_scheduler_type={name!r} gives {given:g}"]
    return []


def _unlike(name: str, used: Any, expected: Any, number: int, is_scheduled: bool) -> str:
    if name == "lr" and is_scheduled:
        return f"the learning rate is {float(used):g}, the scheduler gives {float(expected):g}"
    if name == "initial_lr":
        return (
            f"the scheduler starts from a learning rate of {float(used):g}, args.learning_rate is {float(expected):g}"
        )
    if name == "weight_decay" and number:
        return f"weight_decay is {used:g} for biases and norms, which transformers leaves out"
    return f"{_ARGUMENTS.get(name, name)} is {used}, args give {expected}"


def _is_equal(used: Any, expected: Any) -> bool:
    if isinstance(used, torch.Tensor):
        used = used.tolist()
    if isinstance(used, tuple | list):
        return tuple(used) == tuple(expected)
    if isinstance(used, float) and isinstance(expected, float | int):
        return math.isclose(used, expected, rel_tol=1e-6)
    return used == expected


def _clip(trainer: Any, policy: Any) -> None:
    """Clip the gradients by the trainer's own method; with a scaler by torch's, since the gradients are unscaled already."""
    limit, scaler = trainer.args.max_grad_norm, trainer.accelerator.scaler
    if not limit or limit < 0:
        return
    if scaler is not None and scaler.is_enabled():
        torch.nn.utils.clip_grad_norm_([p for p in policy.parameters() if p.requires_grad], limit)
    elif hasattr(trainer, "_clip_grad_norm"):  # since transformers 5
        trainer._clip_grad_norm(policy)
    else:
        trainer.accelerator.clip_grad_norm_(policy.parameters(), limit)


def _exact(tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if tensor.device.type == "mps" else torch.float64  # which Apple's GPUs lack


def _count(
    step: OptimizerStep,
    trained: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor],
    gradients: Mapping[str, torch.Tensor],
    whole: _Whole,
) -> None:
    """Count moved elements of the groups that have a learning rate, and sum gradient times step by group."""
    slopes, resting = {}, {name for group in step.groups if group.rests for name in group.names}
    for name, gradient in gradients.items():
        after = own_part(trained[name]).detach()
        before = weights[name].to(after.device)
        with_gradient, moved = count_moved([before], [after], [gradient]).tolist()
        if name not in resting:
            step.with_gradient += with_gradient
            step.moved += moved
        slopes[name] = float(((after.float() - before.float()) * gradient.float()).sum())
    sums = whole.total([math.fsum(slopes[name] for name in group.names) for group in step.groups])
    for group, slope in zip(step.groups, sums, strict=True):
        group.slope = slope
    step.with_gradient, step.moved = map(int, whole.total([step.with_gradient, step.moved]))


def _compare(
    step: OptimizerStep,
    kind: type,
    trained: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor],
    gradients: Mapping[str, torch.Tensor],
    states: Mapping[str, dict],
    options: Mapping[int, dict],
    snapshot: Snapshot,
    whole: _Whole,
) -> None:
    """Compute the step of each parameter in float64 and compare."""
    sums, most_wrong = _Sums(), 0
    function, option_names = _RULES[kind]
    factor = step.expected_norm / step.norm if step.norm else 1.0
    is_much_clipped = factor * MUCH_CLIPPED < 1
    for name, gradient in gradients.items():
        if id(trained[name]) not in options:
            continue
        parameter, group = own_part(trained[name]), options[id(trained[name])]
        chosen = {option: group[option] for option in option_names}
        chosen["lr"] = None if chosen["lr"] is None else float(chosen["lr"])
        state = {key: snapshot.copy_of(value) for key, value in states[name].items()}
        values = {"weight": weights[name], "gradient": gradient, "after": parameter.detach()} | state
        relative = max(_LEAST_RELATIVE, _ROUNDINGS * _coarsest(values.values()))
        rule, wrong = _Rule(function, chosen, factor, parameter.dtype, relative), 0
        for number, part in enumerate(_parts(values, parameter, kind is not Adafactor)):
            expected = rule.expected(part)
            wrong += rule.count_wrong(part, expected)
            sums.add(part, expected)
            if number == 0:
                sums.add_parts(part, expected, rule, is_much_clipped)
        step.elements += parameter.numel()
        step.wrong += wrong
        if wrong > most_wrong:
            most_wrong, step.worst = wrong, name
    sums = _Sums(*whole.total(astuple(sums)))
    step.elements, step.wrong = map(int, whole.total([step.elements, step.wrong]))
    if whole.are_sharded:
        step.worst = max(gather_object([(most_wrong, step.worst)]))[1]
    step.finite = math.isfinite(sums.product) and math.isfinite(sums.expected)
    if sums.expected and step.finite:
        step.times = sums.product / sums.expected
    if sums.decay:
        step.decay_share = math.sqrt(sums.decay) / (math.sqrt(sums.decay) + math.sqrt(sums.rest))
    if sums.unclipped:
        step.kept_by_clipping = math.sqrt(sums.rest / sums.unclipped)


def _coarsest(values: Any) -> float:
    """The largest rounding of the dtypes of tensors of floats."""
    return max(torch.finfo(v.dtype).eps for v in values if isinstance(v, torch.Tensor) and v.is_floating_point())


def _parts(whole: dict[str, Any], parameter: Any, is_elementwise: bool) -> Iterator[dict[str, Any]]:
    """Weights, gradient and state of a parameter in float64, on its device, piece by piece."""
    exact, shape, device = _exact(parameter), parameter.shape, parameter.device
    part = _PART_ON_CPU if device.type == "cpu" else _PART
    size = part if is_elementwise else max(1, parameter.numel())
    for start in range(0, parameter.numel(), size):
        values = {}
        for name, value in whole.items():
            if not isinstance(value, torch.Tensor):
                values[name] = value
            elif name == "step":
                values[name] = float(value)
            elif is_elementwise and value.shape == shape:
                values[name] = value.reshape(-1)[start : start + size].to(device).to(exact)
            else:
                values[name] = value.to(device).to(exact)
        yield values


@dataclass
class _Rule:
    """The function and options by which one parameter is stepped."""

    function: Callable
    options: dict[str, Any]
    factor: float  # of clipping
    dtype: torch.dtype  # of the weights
    relative: float  # the rounding of a step

    def expected(self, part: Mapping[str, Any], *, is_clipped: bool = True, **options: Any) -> torch.Tensor:
        """The weights after the step; `options` replace those of the group."""
        state = {name: v for name, v in part.items() if name not in ("weight", "gradient", "after") and v is not None}
        gradient = part["gradient"] * self.factor if is_clipped else part["gradient"]
        return self.function(part["weight"], gradient, state, **(self.options | options))[0]

    def count_wrong(self, part: Mapping[str, Any], expected: torch.Tensor) -> int:
        """The number of elements that are further from the expected ones than rounding."""
        distance = (part["after"] - expected.to(self.dtype).to(expected.dtype)).abs()
        allowed = _ULPS * _spacing(torch.maximum(part["weight"].abs(), expected.abs()), self.dtype)
        allowed += self.relative * (expected - part["weight"]).abs()
        if not bool((wrong := ~(distance <= allowed)).any()):
            return 0
        # The terms of a step may cancel: its rounding is that of their magnitudes.
        magnitudes = {name: value if value is None else abs(value) for name, value in part.items()}
        climbing = {"maximize": False} if "maximize" in self.options else {}
        size = (magnitudes["weight"] - self.expected(magnitudes, **climbing)).abs()
        return int((wrong & ~(distance <= allowed + self.relative * size + self._by_decay(part))).sum())

    def _by_decay(self, part: Mapping[str, Any]) -> Any:
        """By how much rounding moves a step of Adam, which divides by the gradient: weight decay in it may cancel it."""
        decay = self.options["weight_decay"]
        if "betas" not in self.options or not decay or self.options.get("decoupled_weight_decay"):
            return 0.0
        rounding = self.relative * (part["gradient"].abs() + decay * part["weight"].abs() / self.factor)
        less, more = (self.expected(dict(part) | {"gradient": part["gradient"] + r}) for r in (-rounding, rounding))
        return (more - less).abs()


@dataclass
class _Sums:
    """Sums of squares, and of products, of steps and their parts."""

    expected: float = 0.0
    product: float = 0.0  # of the step with the expected one
    decay: float = 0.0  # this and the rest of a sample, the first piece of each parameter
    rest: float = 0.0  # the expected step without weight decay
    unclipped: float = 0.0  # the same without clipping

    def add(self, part: Mapping[str, Any], expected: torch.Tensor) -> None:
        """Add a piece of a parameter."""
        step = expected - part["weight"]
        self.expected += _square(step)
        self.product += float(((part["after"] - part["weight"]) * step).sum())

    def add_parts(self, part: Mapping[str, Any], expected: torch.Tensor, rule: _Rule, is_much_clipped: bool) -> None:
        """Add what weight decay and clipping make of the step."""
        rest = rule.expected(part, weight_decay=0.0) if rule.options["weight_decay"] else expected
        self.decay += _square(expected - rest)
        self.rest += _square(rest - part["weight"])
        if is_much_clipped:
            unclipped = rule.expected(part, is_clipped=False, weight_decay=0.0)
            self.unclipped += _square(unclipped - part["weight"])


def _square(values: torch.Tensor) -> float:
    return float((values**2).sum())


def _spacing(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance between neighbouring numbers of a dtype, at least that at the smallest normal number.

    Example:
        >>> _spacing(torch.tensor([1.0, 3.0, -0.3], dtype=torch.float64), torch.bfloat16).tolist()
        [0.0078125, 0.015625, 0.001953125]
    """
    limits = torch.finfo(dtype)
    exponents = torch.frexp(values.abs().clamp(min=limits.tiny))[1]
    return torch.ldexp(torch.full_like(values, limits.eps), exponents - 1)
