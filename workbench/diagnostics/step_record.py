"""One update of a user's own trainer, run and taken down stage by stage; the trainer is afterwards as it was."""

import contextlib
import copy
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..errors import ParameterError
from ..training.engine import finish_reasons, hook_requests
from ..training.rows import policy_of


@dataclass
class MicroBatch:
    """What one call of the loss took and gave. Tensors (B, P + T) or (B, T) as TRL padded them."""

    inputs: Mapping[str, Any]
    logps: torch.Tensor | None = None  # (B, T), without gradients
    entropies: torch.Tensor | None = None
    loss: float = float("nan")


@dataclass
class StepRecord:
    """What a trainer used at each stage of one update, of this process."""

    inputs: list[dict] = field(default_factory=list)  # N rows of the data set, of each generation
    generated: list[tuple] = field(default_factory=list)  # what `_generate` returned, of each generation
    turns: list[tuple[list, list]] = field(
        default_factory=list
    )  # prompt ids and completion ids of each call of the sampler
    finish_reasons: list[str] = field(default_factory=list)  # N of the engine, where it says them
    scored: list[list] = field(default_factory=list)  # what each reward function returned, call by call
    rewards: list[torch.Tensor] = field(default_factory=list)  # (N, F), over all processes
    outputs: list[Mapping[str, Any]] = field(default_factory=list)  # of each generation, as the loss will get it
    micro_batches: list[MicroBatch] = field(default_factory=list)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)  # on their device, before clipping
    moved: dict[str, tuple[int, int]] = field(default_factory=dict)  # elements that the optimizer moved, and all
    problem: str = ""  # why there is no update


def record_step(trainer: Any, batch: list[dict] | None = None) -> StepRecord:
    """Run one update of a trainer on its first batch and leave weights, random state, metrics and record as they were.

    Raises:
        ParameterError: no trainer of TRL's GRPO or RLOO; a trainer without data.
        Exception: whatever the training itself would raise, as from a reward function.
    """
    record = StepRecord()
    with _as_it_was(trainer), _listening(trainer, record):
        batches = _batches(trainer, batch)
        steps = trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        model = trainer.model_wrapped
        model.train()
        model.zero_grad(set_to_none=True)
        for _ in range(steps):
            with trainer.accelerator.autocast():
                trainer.training_step(model, next(batches), None)
        record.metrics = {name: list(values) for name, values in trainer._metrics["train"].items()}
        policy = policy_of(trainer)
        record.gradients = {n: p.grad.detach().clone() for n, p in policy.named_parameters() if p.grad is not None}
        _update(trainer, policy, record)
    return record


def _batches(trainer: Any, batch: list[dict] | None) -> Iterator:
    if batch is not None:
        while True:
            yield batch
    if trainer.train_dataset is None:
        raise ParameterError(
            "check_step: the trainer has no train_dataset; give rows with batch=[{'prompt': ...}, ...]"
        )
    while True:
        yield from trainer.get_train_dataloader()


def _update(trainer: Any, policy: Any, record: StepRecord) -> None:
    """One step of the optimizer; the share of each parameter's elements that it moves, in the weights' own dtype."""
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        record.problem = "weights that DeepSpeed or FSDP holds in parts"
        return
    trained = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    before = {name: p.detach().clone() for name, p in trained.items()}
    optimizer = trainer.optimizer or trainer.create_optimizer()
    state = copy.deepcopy(optimizer.state_dict())
    try:
        if trainer.args.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(trained.values(), trainer.args.max_grad_norm)
        optimizer.step()
        for name, parameter in trained.items():
            record.moved[name] = int((parameter.detach() != before[name]).sum()), parameter.numel()
    finally:
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(before[name])
        optimizer.load_state_dict(state)


@contextlib.contextmanager
def _as_it_was(trainer: Any):
    """Restore what a step changes: attributes of the trainer, gradients, mode and random states."""
    model = trainer.model
    attributes = dict(vars(trainer))
    mode, gradients = model.training, {name: p.grad for name, p in model.named_parameters()}
    states = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    trainer._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    trainer._logs = copy.deepcopy(trainer._logs)
    trainer.state = copy.deepcopy(trainer.state)
    trainer._buffered_inputs, trainer._step, trainer.recorder = None, 0, None
    try:
        yield
    finally:
        vars(trainer).clear()
        vars(trainer).update(attributes)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        model.train(mode)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.random.set_rng_state(states[2])
        if on_gpus is not None:
            torch.cuda.set_rng_state_all(on_gpus)


@contextlib.contextmanager
def _listening(trainer: Any, record: StepRecord):
    """Take down what goes through the trainer's own methods, each of which runs as it is."""

    def listen(name: str, note: Any) -> None:
        method = getattr(trainer, name, None)
        if method is None:
            return

        def listened(*args: Any, **kwargs: Any):
            result = method(*args, **kwargs)
            note(result, *args, **kwargs)
            return result

        setattr(trainer, name, listened)

    def note_scoring(result: Any, model: Any, inputs: Any, *_: Any, **kwargs: Any) -> None:
        if kwargs.get("compute_entropy"):  # the loss asks for entropies, the scoring of samples does not
            open_batch.append((result[0].detach(), result[1].detach()))

    open_batch: list[tuple] = []
    compute_loss = trainer._compute_loss

    def loss_of(model: Any, inputs: Any):
        open_batch.clear()
        loss = compute_loss(model, inputs)
        logps, entropies = open_batch[-1] if open_batch else (None, None)
        record.micro_batches.append(MicroBatch(dict(inputs), logps, entropies, float(loss.detach())))
        return loss

    def note_generation(result: Any, inputs: Any) -> None:
        record.inputs.extend(inputs)
        record.outputs.append(result)

    def note_turn(result: Any, prompt_ids: Any, *_: Any, **__: Any) -> None:
        record.turns.append((prompt_ids, result[0] if isinstance(result, tuple) else result))

    listen("_generate", lambda result, *_: record.generated.append(tuple(result)))
    listen("_generate_single_turn", note_turn)
    listen("_calculate_rewards", lambda result, *_: record.rewards.append(result.detach().clone()))
    listen("_generate_and_score_completions", note_generation)
    listen("_get_per_token_logps_and_entropies", note_scoring)
    trainer._compute_loss = loss_of
    trainer.reward_funcs = [_heard(function, record) for function in trainer.reward_funcs]
    off = _hear_engine(trainer, record)
    try:
        yield
    finally:
        off()


def _heard(function: Any, record: StepRecord) -> Any:
    """A reward function that notes what it returns; a reward model, which TRL calls otherwise, as it is."""
    if isinstance(function, torch.nn.Module) or not callable(function):
        return function

    def scored(*args: Any, **kwargs: Any):
        result = function(*args, **kwargs)
        record.scored.append(list(result) if isinstance(result, (list, tuple)) else [])
        return result

    return scored


def _hear_engine(trainer: Any, record: StepRecord) -> Callable[[], None]:
    """Note the finish reasons of vLLM, which TRL drops; returns what ends it."""
    generation = getattr(trainer, "vllm_generation", None)
    if generation is None:
        return lambda: None

    def answered(original: Any, *args: Any, **kwargs: Any):
        answer = original(*args, **kwargs)
        record.finish_reasons.extend(finish_reasons(answer))
        return answer

    return hook_requests(generation, answered)
