"""One update of TRL's PPO, run and taken down from the variables of its `train`; the trainer is afterwards as it was."""

import contextlib
import copy
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

from ..errors import ParameterError
from ..training.engine import hook
from ..training.ppo_rewards import NotifyingLoader
from ..training.updates import count_moved
from .step_record import StepRecord, restored

# Names of variables in TRL's `train`, (B, T) or (B,): of the whole batch, and of a micro-batch.
_OF_BATCH: tuple[str, ...] = ("responses", "logprobs", "ref_logprobs", "values", "scores", "sequence_lengths")
_OF_BATCH += ("contain_eos_token", "padding_mask", "padding_mask_p1", "kl", "rewards", "advantages", "returns")
_OF_MICRO_BATCH = ("micro_batch_inds", "new_logprobs", "vpred", "ratio", "pg_loss", "vf_loss")

Numbers = dict[str, np.ndarray]


@dataclass
class PPORecord(StepRecord):
    """What a PPO trainer used at each stage of one update, of this process."""

    prompts: list[list[int]] = field(default_factory=list)  # B, without padding
    batch: Numbers = field(default_factory=dict)
    micros: list[Numbers] = field(default_factory=list)  # of all epochs
    updates: list[int] = field(default_factory=list)  # of each optimizer step, the micro-batches until then
    sums: list[float] = field(default_factory=list)  # B of the reward functions, where there are some
    logged: Mapping[str, float] = field(default_factory=dict)


class _Enough(BaseException):
    """Ends `train` after its first update; no handler of errors takes it for one."""


def record_ppo(trainer: Any, batch: list[dict] | None = None) -> PPORecord:
    """Run the update of a trainer's first batch, with all its epochs, and put back what it changes.

    Raises:
        ParameterError: weights that DeepSpeed or FSDP holds in parts; fewer rows than an update takes; a batch of another size;
            a trainer with a `train` of its own, in which nothing has TRL's names.
        Exception: whatever the training itself would raise, as from a reward function.
    """
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise ParameterError("check_step: PPO with weights that DeepSpeed or FSDP holds in parts is not checked")
    size = trainer.args.local_batch_size
    if batch is not None and len(batch) != size:
        raise ParameterError(f"check_step: batch has {len(batch)} rows, expected {size}, which an update of PPO takes")
    if batch is None and not len(trainer.dataloader):
        raise ParameterError(f"check_step: train_dataset has fewer rows than the {size} that an update of PPO takes")
    record, accelerator = PPORecord(), trainer.accelerator

    def around_backward(original: Any, loss: Any, **kwargs: Any):
        _note(record, _variables_of_train(), loss, trainer.processing_class.pad_token_id)
        return original(loss, **kwargs)

    def around_log(original: Any, logs: Mapping, *args: Any, **kwargs: Any):
        record.logged = dict(logs)
        raise _Enough

    def around_functions(original: Any, *args: Any, **kwargs: Any):
        result = original(*args, **kwargs)
        record.sums.extend(result[0])
        return result

    with restored(trainer), _unmoved(trainer, record), contextlib.ExitStack() as stack:
        handled = (getattr(trainer.callback_handler, name) for name in _HANDLED)
        trainer.callback_handler = CallbackHandler([DefaultFlowCallback()], *handled)
        trainer.control = copy.copy(trainer.control)
        vars(trainer).update({"forwards": [], "_completion_metrics": {}})  # ours writes into them
        if functions := getattr(trainer, "_functions", None):
            stack.enter_context(_kept(functions))
            stack.callback(hook(functions, "score_next", around_functions))
        if batch is not None:
            collated = [trainer.data_collator(batch)]
            trainer.dataloader = NotifyingLoader(collated, functions) if functions else collated
        stack.callback(hook(accelerator, "backward", around_backward))
        stack.callback(hook(accelerator, "print", lambda *_, **__: None))
        stack.callback(hook(trainer, "log", around_log))
        with contextlib.suppress(_Enough):
            trainer.train()
    if not record.batch or not record.logged:
        raise ParameterError(f"check_step: {type(trainer).__name__}.train is not TRL's: its variables have other names")
    if not record.updates:
        record.problem = "the optimizer takes no step in this update"
    return record


_HANDLED = ("model", "processing_class", "optimizer", "lr_scheduler")


def _variables_of_train() -> Mapping[str, Any]:
    """The variables of the `train` that is running, which has TRL's names."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "train" and {*_OF_BATCH, *_OF_MICRO_BATCH} <= frame.f_locals.keys():
            return frame.f_locals
        frame = frame.f_back
    return {}


def _note(record: PPORecord, variables: Mapping[str, Any], loss: torch.Tensor, pad_id: int) -> None:
    if not variables:
        return
    if not record.batch:
        record.batch = {name: _numbers(variables[name]) for name in _OF_BATCH}
        queries = variables["queries"]
        there = variables["data"].get("attention_mask", queries != pad_id).to(queries.device).bool()
        record.prompts = [ids[mask].tolist() for ids, mask in zip(queries, there, strict=True)]
    micro = {name: _numbers(variables[name]) for name in _OF_MICRO_BATCH}
    record.micros.append(micro | {"loss": _numbers(loss)})


def _numbers(values: Any) -> np.ndarray:
    if not isinstance(values, torch.Tensor):
        return np.array(values)
    values = values.detach()
    return (values.double() if values.is_floating_point() else values).clone().numpy(force=True)


@contextlib.contextmanager
def _unmoved(trainer: Any, record: PPORecord) -> Iterator[None]:
    """Take down the gradients and the step of the optimizer; put weights, optimizer and accelerate's counters back."""
    accelerator, model = trainer.accelerator, trainer.accelerator.unwrap_model(trainer.model)
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # accelerate's passes over steps
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    before = {name: p.detach().clone() for name, p in trained.items()}
    state, of_gradients = copy.deepcopy(optimizer.state_dict()), accelerator.gradient_state
    counters = accelerator.step, of_gradients.sync_gradients, of_gradients.dataloader_references
    scaler = accelerator.scaler.state_dict() if accelerator.scaler is not None else None

    def before_step(*_: Any) -> None:
        if not record.updates:
            record.gradients = {name: p.grad.detach().clone() for name, p in trained.items() if p.grad is not None}
            record.learning_rate = max(group["lr"] for group in optimizer.param_groups)

    def after_step(*_: Any) -> None:
        if not record.updates:
            sides = ([of[name] for name in record.gradients] for of in (before, trained, record.gradients))
            record.with_gradient, record.moved = count_moved(*sides).tolist()
        record.updates.append(len(record.micros))

    hooks = optimizer.register_step_pre_hook(before_step), optimizer.register_step_post_hook(after_step)
    model.zero_grad(set_to_none=True)
    try:
        with _kept(trainer.dataloader):
            yield
    finally:
        for each in hooks:
            each.remove()
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(before[name])
        optimizer.load_state_dict(state)
        if scaler is not None:
            accelerator.scaler.load_state_dict(scaler)
        accelerator.step, sync, of_gradients.dataloader_references = counters
        of_gradients._set_sync_gradients(sync)


@contextlib.contextmanager
def _kept(owner: Any) -> Iterator[None]:
    """Restore an object's attributes."""
    attributes = dict(vars(owner))
    try:
        yield
    finally:
        vars(owner).clear()
        vars(owner).update(attributes)
