"""One update of a user's own trainer, run and taken down stage by stage; the trainer is afterwards as it was."""

import contextlib
import copy
import functools
import hashlib
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from accelerate.utils import convert_outputs_to_fp32, gather_object
from transformers import GenerationConfig
from transformers.trainer_utils import has_length

from ..errors import ParameterError, RunError
from ..replay.step import is_option, neutral_options
from .engine import finish_reasons, hook, hook_requests, unhook
from .match_rows import counts_of, match_rows
from .optimizer_step import has_modes, step_and_undo
from .processes import (
    average_gradients,
    check_engine,
    check_placed,
    ending_failed_passes,
    held_parameters,
    is_sharded,
    own_part,
    whole,
)
from .record_rewards import Hearing, apart, heard, is_same, note_groups, note_nan, note_prompts
from .rows import eos_ids, policy_of, stops_of, tokenizer_of
from .snapshot import Snapshot, host_copy, modules_restored, sums_of
from .step_record import MicroBatch, StepRecord, row_tokens

# A parameter's hooks, which may step: those that run when its gradient is there, and those that get it.
_STEPPING = ("_post_accumulate_grad_hooks", "_backward_hooks")
_FROZEN = 1024  # elements of a frozen weight that are compared


def record_step(
    trainer: Any,
    batch: list[dict] | None = None,
    reuse: bool = False,
    record: StepRecord | None = None,
    steps: int | None = None,
) -> StepRecord:
    """Run one update of a trainer on its first batch and leave weights, random state, metrics and record as they were.

    With `reuse` it is the update that comes next in the training, on completions that were sampled before an earlier one.
    A `record` of a kind of its own can be given, to be filled. `steps` are the micro-batches of the update, where these are
    fewer than `gradient_accumulation_steps`.

    Raises:
        RunError: vLLM that does not sample, as one that is closed; a `training_step` or a reward function that needs what
            `train()` makes; a `trainer.model` that is not the one that the loss is taken of.
        ParameterError: a trainer without data; a batch that is no whole number of groups.
        Exception: whatever the training itself would raise, as from a reward function.
    """
    record = StepRecord() if record is None else record
    size = getattr(trainer, "num_generations", 1)  # a distillation samples once for each prompt
    if batch is not None and (not batch or len(batch) * trainer.accelerator.num_processes % size):
        raise ParameterError(
            f"check_step: batch has {len(batch)} rows, expected {size} (num_generations) for each prompt"
        )
    check_engine(trainer, "check_step")
    check_placed(trainer)
    check_model(trainer)
    record.stale = reuse
    with as_it_was(trainer, reuse), ending_failed_passes(trainer), contextlib.ExitStack() as stack:
        stack.callback(StepListener(trainer, record).off)
        batches = _batches(trainer, batch)
        if not reuse:
            trainer.current_gradient_accumulation_steps = steps or trainer.args.gradient_accumulation_steps
        steps = trainer.current_gradient_accumulation_steps
        model = trainer.model_wrapped
        whole_everywhere = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        record.averaged = whole_everywhere or is_sharded(model)
        model.train()
        model.zero_grad(set_to_none=True)
        lengths = _with_length(trainer, batch is None)
        with weights_put_back(trainer, record) as weights, lengths, _autocast_as_trained(trainer):
            for number in range(steps):
                # As in a training: an entropy controller asks it.
                trainer.accelerator.sync_gradients = number == steps - 1
                try:
                    record.step_losses.append(float(trainer.training_step(model, next(batches), None)))
                except Exception as error:
                    _explain(error, trainer, record)
                    raise
        _notice_evaluation(record)
        finish_update(trainer, record, weights)
        record.tokens = _tokens_of_all(trainer, record)
        _find_entropy_thresholds(trainer, record)
        if trainer.accelerator.num_processes > 1:
            states = gather_object([record.drawn_from])
            record.drawn_alike = bool(record.drawn_from) and states.count(record.drawn_from) > 1
            record.unlike = _unlike_weights(policy_of(trainer)) if whole_everywhere else []
    return record


@contextlib.contextmanager
def _autocast_as_trained(trainer: Any) -> Iterator[None]:
    """Inside, autocast is around the policy's `forward` alone, where `train()` has accelerate put it.

    Around the step it would reach reward functions and rollouts too, and keep rounded copies of weights that change.
    """
    policy = policy_of(trainer)
    forward = policy.forward

    @functools.wraps(forward)
    def rounding(*args: Any, **kwargs: Any):
        with trainer.accelerator.autocast():
            return forward(*args, **kwargs)

    is_there = getattr(policy, "_original_forward", None) is not None  # `train()` was called
    if is_there or not trainer.accelerator.native_amp:
        yield
    else:
        with mock.patch.object(policy, "forward", convert_outputs_to_fp32(rounding)):
            yield


def check_model(trainer: Any) -> None:
    """Refuse a trainer whose `model` was replaced: the loss is that of `model_wrapped`.

    Raises:
        RunError: the two have no parameter in common.
    """
    taken = {id(parameter) for parameter in trainer.model_wrapped.parameters()}
    if taken.isdisjoint(map(id, trainer.model.parameters())):
        raise RunError(
            "check_step: trainer.model is not the model that training takes the loss of (trainer.model_wrapped): it was "
            "replaced after the trainer was made, and train() would go on with the old one. Give the new model to the trainer "
            "when you make it, or load its weights: trainer.model_wrapped.load_state_dict(new.state_dict())"
        )


def _explain(error: Exception, trainer: Any, record: StepRecord) -> None:
    """Raise an error of a step as one that says what to do, where it comes from what a check cannot have."""
    if trainer.args.use_vllm and record.open and len(record.generated) == len(record.outputs):
        raise RunError(f"check_step: vLLM does not sample ({error!r}): is its engine closed?") from error
    if isinstance(error, AttributeError) and "'NoneType'" in str(error) and trainer.lr_scheduler is None:
        raise RunError(
            f"check_step: training_step needs what train() makes ({error}). If that is the scheduler, first "
            "call trainer.create_optimizer_and_scheduler(STEPS), with the optimizer steps of the training; "
            "or attach_watch(trainer, check_every=100) before train()"
        ) from error
    if isinstance(error, ZeroDivisionError) and trainer.state.max_steps <= 0:
        raise RunError(
            f"check_step: the step divides by 0 ({error}). Before train(), trainer.state.max_steps is 0, and it is not known "
            "here: set max_steps of the config, or call attach_watch(trainer, check_every=100) before train()"
        ) from error


@contextlib.contextmanager
def _with_length(trainer: Any, is_needed: bool) -> Iterator[None]:
    """Inside the block the state says how long the training will be, as from the begin of `train()` on.

    Args:
        is_needed: the step takes its rows from the data loader. Else one that fails leaves the length unknown.
    """
    state, args = trainer.state, trainer.args
    before = state.max_steps, state.num_train_epochs, state.epoch
    if state.max_steps <= 0 and trainer.train_dataset is not None:
        with contextlib.suppress(*() if is_needed else (Exception,)):
            loader = trainer.get_train_dataloader()
            each = math.ceil(len(loader) / args.gradient_accumulation_steps) if has_length(loader) else args.max_steps
            each = max(each, 1)
            whole_epochs = math.ceil(args.num_train_epochs)
            state.num_train_epochs = math.ceil(args.max_steps / each) if args.max_steps > 0 else whole_epochs
            state.max_steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * each)
    elif state.max_steps <= 0:
        state.max_steps = max(args.max_steps, 0)
    state.epoch = state.epoch or 0
    try:
        yield
    finally:  # the schedule of an optimizer that is there may be made for another length
        state.max_steps, state.num_train_epochs, state.epoch = before


@contextlib.contextmanager
def weights_put_back(trainer: Any, record: StepRecord) -> Iterator[dict[str, torch.Tensor]]:
    """Inside the block weights may move, as where an optimizer steps in the backward pass; the record says that they did.

    Frozen weights are not copied; of each some elements are compared.

    Yields:
        The weights that train as they were before, copied to the host, by name; none where they are in parts, or where a
        step switches to others (which `restored` puts back).
    """
    policy, trained = policy_of(trainer), dict[str, torch.Tensor]()
    if not is_sharded(policy) and not has_modes(trainer.optimizer):
        trained = {name: parameter for name, parameter in policy.named_parameters() if parameter.requires_grad}
    weights, before = {name: host_copy(p) for name, p in trained.items()}, sums_of(trained.values())
    frozen = {} if is_sharded(policy) else _some_frozen(policy)
    try:
        yield weights
    finally:
        if not np.array_equal(sums_of(trained.values()), before, equal_nan=True):
            with torch.no_grad():
                for name, parameter in trained.items():
                    parameter.copy_(weights[name])
            _notice_moves(record, [*trained.values()])
        _notice_frozen(record, policy, frozen)


def _some_frozen(policy: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Up to 1,024 elements of each frozen weight, spread over it, on the host."""
    frozen = {n: p for n, p in policy.named_parameters() if not p.requires_grad and p.is_floating_point() and p.numel()}
    return {
        name: p.detach().reshape(-1)[:: -(-p.numel() // _FROZEN)].to("cpu", copy=True) for name, p in frozen.items()
    }


def _notice_frozen(record: StepRecord, policy: torch.nn.Module, before: Mapping[str, torch.Tensor]) -> None:
    """Notice frozen weights that moved by more than an adapter rounds them that is merged into them and taken out again."""
    moves = {}
    for name, now in (_some_frozen(policy) if before else {}).items():
        was = before.get(name, now)
        largest, moved = was.double().abs().max(), (now.double() - was.double()).abs().max()
        if float(moved) > 2 * torch.finfo(was.dtype).eps * float(largest):
            moves[name] = float(moved)
    if moves:
        worst = max(moves, key=lambda name: moves[name])
        cause = f"{len(moves)} frozen tensors move inside training_step, {worst} by {moves[worst]:.2g}: no optimizer trains "
        record.notice("update", "different", f"{cause}them, and they are not put back")


def _notice_moves(record: StepRecord, trained: Sequence[torch.Tensor]) -> None:
    hooked = sum(bool(getattr(parameter, _STEPPING[0], None)) for parameter in trained)
    record.moving = "the weights move inside training_step, before the trainer's optimizer steps: a method steps there"
    if hooked:
        record.moving = (
            f"the weights move inside the backward pass: {hooked} of {len(trained)} parameters have a hook that steps there "
            "(register_post_accumulate_grad_hook); the check has put the weights back, but not what such a hook keeps, as the "
            "state of its optimizer"
        )
    record.notice("update", "different", record.moving)
    record.notice("gradient", "cannot tell", "the weights move before the gradient of the update is there")
    if len(record.micro_batches) > 1:
        for stage in ("log-probs", "ratios"):
            record.notice(stage, "cannot tell", "the weights move between the micro-batches of the update")


@contextlib.contextmanager
def hooks_at_rest(trainer: Any, record: StepRecord) -> Iterator[None]:
    """Inside the block no hook of a parameter runs, where weights moved while the step ran: a backward pass would move them."""
    if not record.moving:
        yield
        return
    parameters = list(policy_of(trainer).parameters())
    hooks = [found for p in parameters for name in _STEPPING if (found := getattr(p, name, None))]
    before = [dict(each) for each in hooks]
    for each in hooks:
        each.clear()
    try:
        with weights_put_back(trainer, StepRecord()):  # a hook of a module may step too
            yield
    finally:
        for each, own in zip(hooks, before, strict=True):
            each.update(own)


def _notice_evaluation(record: StepRecord) -> None:
    """Notice losses that were taken while the policy was in evaluation."""
    number = record.losses_in_evaluation
    if not number:
        return
    cause = f"the policy is in evaluation in {number} of {len(record.micro_batches)} losses of this step"
    if names := ", ".join(sorted(record.left_in_evaluation)):
        cause += f": the reward function {names} leaves it so; let it call train() again"
    cause += "; there it trains without dropout, and what the loss logs counts as of an evaluation"
    record.notice("loss", "different", cause)


def _tokens_of_all(trainer: Any, record: StepRecord) -> list[float]:
    """Count the tokens in the loss of each generation together with the other processes, which all come here."""
    counts = [loss_mask_of(output).sum().float() for output in record.outputs]
    return [float(trainer.accelerator.reduce(count, "sum")) for count in counts]


def _find_entropy_thresholds(trainer: Any, record: StepRecord) -> None:
    """Take the quantile of entropies (`top_entropy_quantile`) with the other processes, which all come here."""
    share = getattr(trainer, "top_entropy_quantile", 1.0)
    own = [(micro.entropies, loss_mask_of(micro.inputs).bool()) for micro in record.micro_batches]
    if trainer.accelerator.num_processes == 1 or share >= 1 or any(entropies is None for entropies, _ in own):
        return
    everyone = gather_object([[entropies[mask].float().cpu() for entropies, mask in own if entropies is not None]])
    for micro, parts in zip(record.micro_batches, zip(*everyone, strict=True), strict=True):
        entropies = torch.cat(parts)
        micro.entropy_threshold = float(torch.quantile(entropies, 1 - share)) if len(entropies) else 0.0


def _unlike_weights(policy: torch.nn.Module) -> list[str]:
    """Name the parameters of which the processes have other values; each has all of them, as in data parallel training."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    # A sum of the bits as integers is exact, in whatever order a device adds them.
    sums = {name: int(p.detach().view(integers[p.itemsize]).sum()) for name, p in policy.named_parameters()}
    everyone = gather_object([sums])
    return [name for name in sums if any(other[name] != sums[name] for other in everyone)]


def loss_mask_of(output: Mapping[str, Any]) -> torch.Tensor:
    """(R, T), 1 for the tokens of a generation's rows that the loss takes."""
    return output["completion_mask"] * output["tool_mask"] if "tool_mask" in output else output["completion_mask"]


def finish_update(trainer: Any, record: StepRecord, weights: Mapping[str, torch.Tensor] | None = None) -> None:
    """Take down the metrics and gradients of the micro-batches, and what the optimizer makes of these.

    `weights` are those that train, where they are copied to the host already.
    """
    record.metrics = {name: list(values) for name, values in trainer._metrics["train"].items()}
    policy = policy_of(trainer)
    _take_gradients(trainer, policy, record)
    record.problem = record.moving or record.problem
    if not record.problem:
        own = record.gradients if not is_sharded(policy) else _gradients(policy, own_part)
        record.update = step_and_undo(trainer, policy, own, weights)


def _take_gradients(trainer: Any, policy: Any, record: StepRecord) -> None:
    record.problem = _unscale(trainer.accelerator.scaler, policy)
    device = trainer.accelerator.device  # FSDP can leave gradients on the host
    record.gradients = _gradients(policy, lambda gradient: whole(gradient).to(device))


def _gradients(policy: Any, of: Callable) -> dict[str, torch.Tensor]:
    return {name: of(p.grad.detach()).clone() for name, p in policy.named_parameters() if p.grad is not None}


def record_without_dropout(trainer: Any, record: StepRecord) -> StepRecord:
    """The forward and backward passes of a recorded update once more, on the same micro-batches, without dropout.

    Returns:
        The record with the log-probs, losses and gradients of these passes. The trainer is afterwards as it was.
    """
    again = replace(record, micro_batches=[], metrics={}, gradients={}, noticed={})
    micro_batches = iter(record.micro_batches)

    def around_inputs(original: Callable, *args: Any, **kwargs: Any):
        switch_dropout_off(trainer.model)  # here, since transformers has just put all modules into training
        return dict(next(micro_batches).inputs)

    with as_it_was(trainer), contextlib.ExitStack() as stack:
        stack.callback(StepListener(trainer, again).off)
        stack.callback(hook(trainer, "_prepare_inputs", around_inputs))
        trainer.current_gradient_accumulation_steps = len(record.micro_batches)
        model = trainer.model_wrapped
        model.train()
        model.zero_grad(set_to_none=True)
        with weights_put_back(trainer, again), _autocast_as_trained(trainer):
            for number in range(len(record.micro_batches)):
                trainer.accelerator.sync_gradients = number == len(record.micro_batches) - 1
                trainer.training_step(model, None, None)
        if is_sharded(model):  # whose weights are whole here, so that a backward pass averages nothing
            average_gradients(policy_of(trainer))
        _take_gradients(trainer, policy_of(trainer), again)
        _find_entropy_thresholds(trainer, again)
    return again


def dropouts_of(model: torch.nn.Module) -> list[str]:
    """The dropout that a model applies while it trains, as `name=probability`.

    Some modules are a dropout, others have its probability as an attribute, as attention has.

    Example:
        >>> dropouts_of(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.1), torch.nn.Dropout(0.0)))
        ['Dropout=0.1']
    """
    found = []
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            names = [part for part in path.split(".") if "drop" in part] or [type(module).__name__]
            found.append((names[-1], module.p))
        else:
            attributes = [(name, value) for name, value in vars(module).items() if "drop" in name]
            found += [(name, value) for name, value in attributes if isinstance(value, float)]
    return list(dict.fromkeys(f"{name}={value:g}" for name, value in found if value > 0))


def switch_dropout_off(model: torch.nn.Module) -> None:
    """Put the modules of a model in evaluation, but for the model itself, which a trainer asks whether it trains.

    Modules that checkpoint their activations do so only in training. They stay there, for their memory, unless they have a
    dropout of their own.
    """
    for module in model.modules():
        own_dropout = any("drop" in name and isinstance(value, float) for name, value in vars(module).items())
        checkpoints = bool(getattr(module, "gradient_checkpointing", False))
        module.training = module is model or (checkpoints and not own_dropout)


def _batches(trainer: Any, batch: list[dict] | None) -> Iterator:
    if batch is not None:
        while True:
            yield apart(batch)  # a reward function may write into rows that are trained afterwards
    if trainer.train_dataset is None:
        raise ParameterError(
            "check_step: the trainer has no train_dataset; give rows with batch=[{'prompt': ...}, ...]"
        )
    while True:
        empty = True
        for each in trainer.get_train_dataloader():
            empty = False
            yield each
        if empty:
            raise ParameterError(
                "check_step: train_dataset has fewer prompts than one generation takes; give more rows"
            )


def _unscale(scaler: Any, policy: Any) -> str:
    """Divide gradients by the loss scale of fp16, in place; why the scaler leaves the update out, where it does."""
    if scaler is None or not scaler.is_enabled():
        return ""
    scale, gradients = scaler.get_scale(), [p.grad for p in policy.parameters() if p.grad is not None]
    for gradient in gradients:
        gradient.div_(scale)
    finite = all(bool(own_part(gradient).isfinite().all()) for gradient in gradients)
    if is_sharded(policy):  # all skip an update, or none does
        finite = all(gather_object([finite]))
    if finite:
        return ""
    return f"gradients overflow at a loss scale of {scale:g}: the scaler leaves this update out and lowers its scale"


@contextlib.contextmanager
def as_it_was(trainer: Any, reuse: bool = False):
    """Restore what a step of GRPO or RLOO changes. It starts without earlier metrics, and unless `reuse` without samples."""
    with restored(trainer):
        trainer._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        # The last two hold what reward functions note: one that fails in this step leaves nothing for the next.
        for name in ("_logs", "_pending_extra_logs", "_pending_metrics"):
            if hasattr(trainer, name):
                setattr(trainer, name, copy.deepcopy(getattr(trainer, name)))
        buffers = Snapshot([trainer._buffered_inputs if reuse else None])  # a loss may write into its inputs
        if not reuse:
            trainer._buffered_inputs, trainer._step = None, 0
        try:
            yield
        finally:
            buffers.restore()


def samples_of_next_step(trainer: Any) -> str:
    """The completions of the coming update: `new`, `reused`, or `both`, where it samples in its middle."""
    if not hasattr(trainer, "num_iterations"):  # a distillation or AsyncGRPO, which take each completion once
        return "new"
    every = trainer.args.steps_per_generation * trainer.num_iterations
    place = trainer._step % every
    if trainer._buffered_inputs is None or place == 0:
        return "new"
    return "reused" if place + trainer.current_gradient_accumulation_steps <= every else "both"


def ask_loss(
    trainer: Any, inputs: Mapping[str, Any], logps: torch.Tensor, entropies: torch.Tensor | None, others: tuple = ()
) -> tuple[float, torch.Tensor, torch.Tensor | None]:
    """The trainer's loss for log-probs that are given: no model runs.

    Args:
        trainer: inside `as_it_was`.
        inputs: of the loss, as a `MicroBatch` has them.
        logps, entropies: (B, T), returned in place of the model's.
        others: what the scoring returns behind them.

    Returns:
        The loss, and its slopes by `logps` and `entropies`: (B, T), None where it does not depend on entropies.

    Raises:
        LookupError: the loss takes its log-probs from elsewhere.
        Exception: any error of the loss.
    """
    leaf = logps.detach().float().requires_grad_()
    leaf_entropies = None if entropies is None else entropies.detach().float().requires_grad_()
    scored = []

    def around_scoring(original: Callable, *args: Any, **kwargs: Any):
        taken = dict(zip(("model", "input_ids", "attention_mask", "logits_to_keep"), args, strict=False)) | kwargs
        if len(taken["input_ids"]) != len(leaf) or taken["logits_to_keep"] != leaf.shape[1]:
            raise LookupError("the loss scores other rows than it is given")
        scored.append(True)
        if not torch.is_grad_enabled():  # a loss that scores for old log-probs: these have no slope
            return leaf.detach(), None if leaf_entropies is None else leaf_entropies.detach(), *others
        return leaf, leaf_entropies, *(torch.zeros_like(x) if torch.is_tensor(x) else x for x in others)

    off = hook(trainer, "_get_per_token_logps_and_entropies", around_scoring)
    try:
        with torch.enable_grad(), trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(trainer.model_wrapped, dict(inputs))
    finally:
        off()
    if not scored:
        raise LookupError("the loss takes its log-probs from elsewhere than `_get_per_token_logps_and_entropies`")
    leaves = [leaf] if leaf_entropies is None else [leaf, leaf_entropies]
    slopes = torch.autograd.grad(loss, leaves, allow_unused=True) if loss.requires_grad else [None, None]
    by_logp = torch.zeros_like(leaf) if slopes[0] is None else slopes[0]
    return float(loss.detach()), by_logp, slopes[1] if len(leaves) > 1 else None


def value_of_loss(trainer: Any, inputs: Mapping[str, Any]) -> float:
    """The trainer's loss for inputs, wherever it takes its log-probs, without gradients; inside `as_it_was`."""
    with torch.no_grad(), trainer.compute_loss_context_manager():
        return float(trainer.compute_loss(trainer.model_wrapped, dict(inputs)))


def score_with_loss(trainer: Any, inputs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The log-probs and entropies (B, T) that the trainer's loss takes of its model now, without gradients.

    Raises:
        LookupError: the loss takes them from elsewhere.
    """
    scored: list[tuple] = []

    def around_scoring(original: Callable, *args: Any, **kwargs: Any):
        result = original(*args, **kwargs)
        if kwargs.get("compute_entropy"):
            scored.append(result[:2])
        return result

    off = hook(trainer, "_get_per_token_logps_and_entropies", around_scoring)
    try:
        with torch.no_grad():
            trainer.compute_loss(trainer.model_wrapped, dict(inputs))
    finally:
        off()
    if not scored:
        raise LookupError("the loss takes its log-probs from elsewhere than `_get_per_token_logps_and_entropies`")
    return scored[-1]


@contextlib.contextmanager
def restored(trainer: Any):
    """Restore what a step changes: attributes of the trainer and of modules, gradients, random states; nothing is recorded."""
    model = trainer.model
    attributes = dict(vars(trainer))
    gradients = {name: p.grad for name, p in model.named_parameters()}
    states = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    scheduled, syncs = [(each, dict(each)) for each in _of_schedule(trainer)], trainer.accelerator.sync_gradients
    trainer.state, trainer.recorder = copy.deepcopy(trainer.state), None
    for name in attributes:  # of a watch, which records the training
        unhook(trainer, name)
    engine = getattr(trainer, "engine", None)  # ours counts requests, for their seeds
    counts = dict(vars(engine)) if engine is not None else {}
    # A step switches such an optimizer to the weights that it trains.
    held = [own_part(p) for p in held_parameters(model) if p.requires_grad] if has_modes(trainer.optimizer) else []
    weights = {p: host_copy(p) for p in held}
    try:
        with modules_restored(trainer):
            yield
    finally:
        vars(trainer).clear()
        vars(trainer).update(attributes)
        trainer.accelerator.sync_gradients = syncs
        with torch.no_grad():
            for parameter, before_it in weights.items():
                parameter.copy_(before_it)
        for each, before in scheduled:
            each.update(before)
        if engine is not None:
            vars(engine).update(counts)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.random.set_rng_state(states[2])
        if on_gpus is not None:
            torch.cuda.set_rng_state_all(on_gpus)


def _of_schedule(trainer: Any) -> list[dict]:
    """Attributes of the schedulers, and the optimizer's groups: a `training_step` of one's own may change them."""
    scheduler, optimizer = trainer.lr_scheduler, trainer.optimizer
    schedulers = [] if scheduler is None else [scheduler, *getattr(scheduler, "_schedulers", [])]
    return [*map(vars, schedulers), *([] if optimizer is None else optimizer.param_groups)]


class StepListener:
    """Takes down what goes through a trainer's own methods, each of which runs as it is, until `off` is called.

    Evaluations are passed over, and the losses of a record that has `losses=False`. `guarded` calls what takes notes.
    """

    def __init__(self, trainer: Any, record: StepRecord, guarded: Callable = lambda note, *args: note(*args)):
        self._trainer, self._record, self._guarded = trainer, record, guarded
        self._scored: list[tuple] = []  # log-probs, entropies and what else there is, for the loss that is open
        self._of_samples: list[torch.Tensor] = []  # (N, T) each, the log-probs of each scoring within a generation
        self._asked: list[tuple] = []  # what policy or engine were asked in this turn, and what they sampled
        self._stepping = self._generating = False  # inside of `training_step`, of a generation
        self._prompts: list | None = None  # of the data rows from which the last generation sampled
        # A rollout function samples by itself, with the policy or the engine.
        self._rolls = getattr(trainer, "rollout_func", None) is not None
        self._sampled = False  # by the policy's `generate`, in this generation
        around: dict[str, Callable] = {
            "training_step": self._around_step,
            "compute_loss": self._around_outer_loss,
            "_compute_loss": self._around_loss,
            "_generate_and_score_completions": self._around_generation,
            "_get_per_token_logps_and_entropies": self._around_scoring,
            "_calculate_rewards": self._around_rewards,
            "_generate": self._around_generate,
            "_generate_single_turn": self._around_turn,
        }
        self._hooks = [hook(trainer, name, each) for name, each in around.items() if hasattr(trainer, name)]
        if getattr(trainer, "vllm_generation", None) is not None:
            self._hooks.append(hook_requests(trainer.vllm_generation, self._around_requests))

    def off(self) -> None:
        """Listen no more."""
        for each in self._hooks:
            each()

    def _around_step(self, original: Callable, model: Any, inputs: Any, *args: Any, **kwargs: Any):
        self._stepping, before = True, len(self._record.outputs)
        try:
            result = original(model, inputs, *args, **kwargs)
        finally:
            self._stepping = False
        if len(self._record.outputs) == before:
            self._guarded(self._note_left_out, inputs)
        return result

    def _note_left_out(self, rows: Any) -> None:
        """Note rows of the data for which nothing is sampled: TRL's sampler of the data repeats those that are in use."""
        if self._prompts is None or not isinstance(rows, list) or not hasattr(self._trainer, "num_iterations"):
            return
        given = [row.get("prompt") for row in rows]
        if not is_same(given, self._prompts):
            cause = f"the data loader gives {len(given)} rows that nothing is sampled from, as the completions in use are of "
            cause += "others; a `_get_train_sampler` has to repeat these (repeat_count=num_iterations * steps_per_generation)"
            self._record.notice("batches", "different", cause)

    def _trains(self) -> bool:
        """Say whether a loss is one to take down: of a training, also where something has put the policy in evaluation."""
        return self._record.losses and (self._stepping or self._trainer.model.training)

    def _around_outer_loss(self, original: Callable, model: Any, inputs: Any, *args: Any, **kwargs: Any):
        """Take down the batch of a subclass whose loss is not TRL's `_compute_loss`."""
        before = len(self._record.micro_batches)
        coefficient = adapted_coefficient(self._trainer)
        loss = original(model, inputs, *args, **kwargs)
        if self._trains() and len(self._record.micro_batches) == before:
            self._scored.clear()
            self._guarded(self._note_loss, loss, inputs, coefficient)
        return loss

    def _around_loss(self, original: Callable, model: Any, inputs: Any, *args: Any):
        self._scored.clear()
        coefficient = adapted_coefficient(self._trainer)  # the loss moves it on
        loss = original(model, inputs, *args)
        if self._trains():
            self._guarded(self._note_loss, loss, inputs, coefficient)
        return loss

    def _note_loss(self, loss: Any, inputs: Any, coefficient: float | None) -> None:
        logps, entropies, *others = self._scored[-1] if self._scored else (None, None)
        if logps is not None and (there := inputs.get("completion_mask")) is not None and logps.shape != there.shape:
            same = len(logps) == len(there)  # a subclass may filter or cut what it is given
            said = "other tokens than it is given" if same else f"{len(logps)} of {len(there)} rows"
            for stage in ("loss", "gradient"):
                self._record.notice(stage, "cannot tell", f"the loss scores {said}")
            logps = entropies = None
        if isinstance(loss, tuple):  # a distillation's, with numbers for the log
            loss = loss[0]
        generation, value = len(self._record.outputs) - 1, float(loss.detach())
        taken = MicroBatch(copied(inputs), logps, entropies, value, generation, coefficient, tuple(others))
        self._record.micro_batches.append(taken)
        self._record.losses_in_evaluation += not self._trainer.model.training
        self._record.reused |= self._record.stale

    def _around_generation(self, original: Callable, inputs: Any):
        record = self._record
        if self._generating:  # a method that samples again calls itself: the outermost one returns what the loss takes
            return original(inputs)
        record.open = self._trainer.model.training
        self._asked.clear()
        if record.open and record.stale:
            if not record.micro_batches:  # else this step has begun with rows of the generation before
                record.forget_generation()
            record.stale = False
        rows, before, sampled = apart(inputs) if record.open else inputs, counts_of(record), len(record.generated)
        self._generating = True
        self._of_samples.clear()
        try:
            result = original(inputs)
        finally:
            self._generating = False
        if record.open:
            if getattr(self._trainer, "beta", 0.0):
                self._guarded(self._note_kl, result)
            record.inputs.extend(rows)
            self._prompts = [row.get("prompt") for row in rows]
            if hasattr(self._trainer, "environments") and len(record.generated) == sampled + 1:
                ids, size = record.generated[-1][0], self._trainer.num_generations
                self._guarded(note_prompts, record, rows, ids, size, self._trainer.environments)
            if functions := getattr(self._trainer, "reward_funcs", None):  # a distillation has none
                self._guarded(note_groups, record, functions, rows, self._trainer.num_generations)
            record.outputs.append(copied(result))
            self._guarded(match_rows, record, before, tokenizer_of(self._trainer).pad_token_id)
        record.open = False
        return result

    def _note_kl(self, output: Any) -> None:
        """Note what RLOO takes off the rewards: TRL scores the samples with the policy, then with the reference."""
        mask, scorings = output["completion_mask"], self._of_samples
        if len(scorings) in (1, 2) and all(each.shape == mask.shape for each in scorings):
            ref = scorings[1] if len(scorings) == 2 else torch.full_like(scorings[0], torch.nan)
            penalty = self._trainer.beta * ((scorings[0] - ref) * mask).sum(-1)  # in TRL's own dtype
            self._record.kl.append(penalty.double() / self._trainer.beta)

    def _around_scoring(self, original: Callable, *args: Any, **kwargs: Any):
        result = original(*args, **kwargs)
        if self._generating and self._record.open:
            self._of_samples.append(result[0].detach())
        if kwargs.get("compute_entropy") and self._record.losses:  # the scoring of samples asks for no entropies
            self._guarded(self._note_detached, *result[:2])
            self._scored.append(tuple(x.detach() if torch.is_tensor(x) else x for x in result))
        return result

    def _note_detached(self, logps: torch.Tensor, entropies: torch.Tensor) -> None:
        """Note entropies without a gradient, where the loss has a bonus for them: half precision rounds a small one away."""
        if getattr(self._trainer, "_entropy_bonus_enabled", False) and logps.requires_grad > entropies.requires_grad:
            cause = "entropy_coef is on, and the scoring gives entropies without their gradient"
            self._record.notice("gradient", "different", cause)

    def _around_rewards(self, original: Callable, *args: Any, **kwargs: Any):
        trainer, record = self._trainer, self._record
        if not record.open:
            return original(*args, **kwargs)
        names = ("inputs", "prompts", "completions", "completion_ids_list")
        own = dict(zip(names, args, strict=False)) | kwargs
        own |= {name: apart(own[name]) for name in ("inputs", "prompts", "completions") if name in own}
        own["completion_ids"] = [row_tokens(ids) for ids in own.get("completion_ids_list") or []]
        record.texts.extend(zip(own.get("prompts", ()), own.get("completions", ()), strict=False))
        calls: list[list[list]] = [[] for _ in trainer.reward_funcs]  # what each function returned, call by call
        hearing = Hearing(trainer.model, record, own)
        with contextlib.ExitStack() as stack:
            noting = [heard(*each, hearing, stack) for each in zip(trainer.reward_funcs, calls, strict=True)]
            stack.enter_context(mock.patch.object(trainer, "reward_funcs", noting))
            result = original(*args, **kwargs)
        self._guarded(note_nan, record, trainer.reward_funcs, calls)
        # A function that is not called once for all rows gives a call that fits no table.
        record.scored.extend(own_calls[0] if len(own_calls) == 1 else [] for own_calls in calls)
        record.rewards.append(result.detach().clone())
        return result

    def _around_generate(self, original: Callable, *args: Any, **kwargs: Any):
        policy, self._sampled = policy_of(self._trainer), False
        off = hook(policy, "generate", self._around_policy) if hasattr(policy, "generate") else lambda: None
        try:
            result = original(*args, **kwargs)
        finally:
            off()
        if self._record.open and not (self._sampled or self._has_sampler()):
            cause = "the policy's own generate is not called: does what samples have its weights, in later steps too?"
            self._record.notice("sampling", "cannot tell", cause, over=("same", "rounding", "cannot tell"))
        if self._record.open:
            # Copies: a reward function may write into the ids that it gets.
            self._record.generated.append(tuple(_own_rows(part) for part in result))
        return result

    def _has_sampler(self) -> bool:
        """Say whether TRL samples by something else than the policy's `generate`."""
        args = self._trainer.args
        return args.use_vllm or self._rolls or getattr(args, "use_transformers_continuous_batching", False)

    def _around_turn(self, original: Callable, prompt_ids: Any, *args: Any, **kwargs: Any):
        self._asked.clear()
        result = original(prompt_ids, *args, **kwargs)
        rows = result[0] if isinstance(result, tuple) else result
        if not self._record.open:
            return result
        if len(self._asked) == len(rows):  # a row that is shorter or longer is a matter of its end
            pairs = [(p, row if _agree(ids, row) else ids) for (p, ids), row in zip(self._asked, rows, strict=True)]
            self._guarded(self._note_turn, *zip(*pairs, strict=True))
        else:
            self._guarded(self._note_turn, prompt_ids, rows)
        return result

    def _note_turn(self, prompts: Any, completions: Any) -> None:
        """Note copies: TRL's loop of tools writes into its lists."""
        self._record.turns.append(([row_tokens(ids) for ids in prompts], [row_tokens(ids) for ids in completions]))

    def _note_answer(self, pairs: list[tuple]) -> None:
        self._asked.extend(pairs)
        if self._rolls:
            self._note_turn(*zip(*pairs, strict=True))

    def _around_policy(self, original: Callable, *args: Any, **kwargs: Any):
        self._sampled = True
        if self._record.open:
            self._guarded(self._note_random_state)
            self._guarded(self._note_options, kwargs)
        output = original(*args, **kwargs)
        ids = kwargs.get("input_ids", kwargs.get("inputs", args[0] if args else None))
        if self._record.open and ids is not None:
            self._guarded(self._note_sampled, output, ids, kwargs.get("attention_mask"))
        return output

    def _note_random_state(self) -> None:
        record, state = self._record, _state_of_generators()
        record.drawn_from = record.drawn_from or state
        if state in record.states:
            cause = "two calls of the policy's generate begin with the same random numbers: a seed is set before each"
            record.notice("sampling", "different", cause)
        record.states.add(state)

    def _note_options(self, kwargs: Mapping[str, Any]) -> None:
        """Note what is given to `generate` alone, past the trainer's args and its generation config."""
        args, given = self._trainer.args, kwargs.get("generation_config")
        own, neutral = (
            getattr(self._trainer, "generation_config", None),
            neutral_options(getattr(args, "temperature", None)),
        )
        known = neutral.keys() | vars(GenerationConfig()).keys()
        of_args = vars(args) | dict(getattr(args, "generation_kwargs", None) or {})
        of_args.setdefault("min_new_tokens", stops_of(self._trainer)["min_tokens"])
        for name in sorted(known - {"logits_processor"}):
            value = kwargs.get(name, getattr(given, name, None) if given is not own else None)
            meant = of_args.get(name), getattr(own, name, None)
            if is_option(name, value, neutral) and not any(value == each for each in meant):
                self._record.notice("sampling", "different", f"{name}={value} is given to the policy's generate alone")
        if kwargs.get("logits_processor"):
            cause = "the policy's generate gets a logits_processor: does it change what is sampled?"
            self._record.notice("sampling", "cannot tell", cause, over=("same", "rounding", "cannot tell"))

    def _note_sampled(self, output: Any, input_ids: Any, attention_mask: Any) -> None:
        self._note_answer(_unpadded(self._trainer, output, input_ids, attention_mask))

    def _around_requests(self, original: Callable, *args: Any, **kwargs: Any):
        answer = original(*args, **kwargs)
        if self._record.open:
            self._guarded(self._note_reasons, answer)  # TRL drops them
            if not isinstance(answer, dict):
                self._guarded(self._note_requests, answer)
        return answer

    def _note_reasons(self, answer: Any) -> None:
        self._record.finish_reasons.extend(finish_reasons(answer))

    def _note_requests(self, answer: Any) -> None:
        self._note_answer([(request.prompt_token_ids, x.token_ids) for request in answer for x in request.outputs])


def _unpadded(trainer: Any, output: Any, input_ids: Any, attention_mask: Any) -> list[tuple]:
    """Prompt ids and completion ids of a call of transformers' `generate`, without what stands behind an end."""
    copies, length = len(output) // len(input_ids), input_ids.shape[1]
    there = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    prompts = [ids[mask.bool()].tolist() for ids, mask in zip(input_ids, there, strict=True) for _ in range(copies)]
    stops, pad = set(eos_ids(trainer)), tokenizer_of(trainer).pad_token_id
    completions = []
    for ids in output[:, length:].tolist():
        end = next((i for i, token in enumerate(ids) if token in stops or token == pad), len(ids))
        completions.append(ids[: end + 1] if end < len(ids) and ids[end] in stops else ids[:end])
    return [*zip(prompts, completions, strict=True)]


def _agree(ids: Any, row: Any) -> bool:
    """Say whether one of two begins with the other."""
    length = min(len(ids), len(row))
    return list(ids[:length]) == list(row[:length])


def copied(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a generation gives or a loss takes, as it is now: a trainer may later write into its tables."""
    return {
        name: x.clone() if torch.is_tensor(x) and x.dim() < 3 and not name.startswith("pixel") else x
        for name, x in tables.items()
    }


def _own_rows(part: Any) -> Any:
    """A list of rows, each of them copied as what it is; anything else as it is."""
    if not isinstance(part, list):
        return part
    copies = [copy.copy(row) if isinstance(row, list | np.ndarray) else row for row in part]
    return [row.clone() if isinstance(row, torch.Tensor) else row for row in copies]


def adapted_coefficient(trainer: Any) -> float | None:
    """The coefficient of the entropy that the coming loss applies, where TRL adapts it; None where it is the setting."""
    if not getattr(trainer, "use_adaptive_entropy", False):
        return None
    low = trainer._last_world_entropy <= trainer.args.entropy_target
    return float(trainer.entropy_coef) if low else 0.0


def _state_of_generators() -> str:
    """A hash of the states from which torch draws its next numbers."""
    states = [torch.random.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]
    return hashlib.sha256(b"".join(state.numpy().tobytes() for state in states)).hexdigest()
