"""How much of the weights each optimizer step changes, measured while a trainer trains."""

import time
from typing import Any

import torch
from accelerate.state import AcceleratorState

from ..training.callback import LiveCallback, add_to_log
from ..training.rows import is_of_a_step
from ..training.updates import count_moved, sample_of


class UpdateShare(LiveCallback):
    """Logs `update/moved`: of the trained elements that have a gradient, the share that an optimizer step changed.

    It is measured on a fixed sample of 20,000 elements, in the weights' own dtype; a log line for several steps has their
    mean. Nothing is logged if the learning rate or all gradients are 0, if a step was skipped, or if DeepSpeed or FSDP holds
    the weights. `attach_watch` attaches it; without a watch, pass it to the trainer in `callbacks`.

    Args:
        every: steps between two measurements, whatever they cost; None: as often as 1% of the training's time allows.
    """

    name = "measurement of updates"

    def __init__(self, every: int | None = None):
        super().__init__(None, every)
        self._reset()

    def detach(self) -> None:
        """Measure no more."""
        self.on = False

    def _reset(self) -> None:
        self._trained: list[torch.nn.Parameter] = []
        self._gradients: list[torch.Tensor] = []
        self._before: list[torch.Tensor] = []
        self._counts: list[torch.Tensor] = []  # read when they are logged: the device need not be waited for
        self._cost: float | None = None  # seconds of the last measurement

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any):
        self._reset()
        self._began, self.seconds = time.monotonic(), 0.0
        self.on = self.on and state.is_world_process_zero and not _is_sharded()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any):
        self._before = []
        due = self.affordable(self._cost or 0.0) if self._every is None else state.global_step % self._every == 0
        if due or self._cost is None:
            start = self.seconds
            self.guarded(self._note, model)
            self._cost = self.seconds - start

    def on_optimizer_step(self, args: Any, state: Any, control: Any, *, optimizer: Any, **_: Any):
        skipped = getattr(optimizer, "step_was_skipped", False)
        if self._before and not skipped and any(group["lr"] for group in optimizer.param_groups):
            start = self.seconds
            self.guarded(self._count)
            self._cost = (self._cost or 0.0) + self.seconds - start

    def _note(self, model: Any) -> None:
        self._trained = [p for p in model.parameters() if p.grad is not None]
        self._gradients = [
            values.clone() for values in sample_of([p.grad for p in self._trained if p.grad is not None])
        ]
        self._before = [values.clone() for values in sample_of(self._trained)]

    def _count(self) -> None:
        self._counts.append(count_moved(self._before, sample_of(self._trained), self._gradients))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any):
        if self._counts and is_of_a_step(logs):
            self.guarded(self._log, logs, state)
            self._counts = []

    def _log(self, logs: Any, state: Any) -> None:
        with_gradient, moved = sum(self._counts).tolist()
        if with_gradient:
            add_to_log({"update/moved": moved / with_gradient}, logs, state)


def _is_sharded() -> bool:
    state = AcceleratorState()
    return any(getattr(state, f"{name}_plugin", None) is not None for name in ("deepspeed", "fsdp", "megatron_lm"))
