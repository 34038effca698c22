"""What callbacks share that look at a training while it runs and change nothing of it."""

import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any

from transformers import TrainerCallback

from ..errors import ParameterError

SHARE = 0.01  # of the training's time that a callback may take


class LiveCallback(TrainerCallback):
    """A callback that takes at most 1% of the training's time, and that its first error switches off.

    `every` counts optimizer steps between two measurements, None measures as often as that time allows. `on` is False after
    an error and after `detach`; `seconds` were spent in here.
    """

    name = "callback"  # as the line about an error says

    def __init__(self, trainer: Any, every: int | None = None):
        if every is not None and every < 1:
            raise ParameterError(f"every={every}: expected at least 1 step, or None")
        self.on, self.seconds = True, 0.0
        self._trainer, self._every = trainer, every
        self._hooks: list[Callable[[], None]] = []
        self._began = 0.0  # when the training did

    def detach(self) -> None:
        """Look no more, and leave trainer and engine as they were."""
        self.on = False
        for off in self._hooks:
            off()
        if self in self._trainer.callback_handler.callbacks:
            self._trainer.remove_callback(self)

    def affordable(self, cost: float) -> bool:
        """Say whether a measurement of `cost` seconds keeps within the share of time."""
        self._began = self._began or time.monotonic()
        return self.seconds + cost <= SHARE * (time.monotonic() - self._began)

    def guarded(self, do: Callable[..., Any], *args: Any) -> Any:
        """`do(*args)`, or None: an error is printed, once, and ends this callback and not the training."""
        if not self.on:
            return None
        start = time.monotonic()
        try:
            return do(*args)
        except Exception as error:  # whatever it is: the training is worth more than what is said of it
            self.on = False
            say(f"the {self.name} is off, the training goes on: {type(error).__name__}: {str(error)[:300]}")
            return None
        finally:
            self.seconds += time.monotonic() - start


def attach_first(trainer: Any, callback: TrainerCallback) -> None:
    """Attach before all other callbacks, so that whatever writes logs (files, W&B, TensorBoard) has its numbers."""
    trainer.callback_handler.callbacks.insert(0, callback)


def others_with(trainer: Any, method: str) -> list[str]:
    """The classes of a trainer's callbacks with a method of their own, without those of transformers, TRL and the workbench."""
    own = ("transformers.", "trl.", "workbench.")
    kinds = [type(each) for each in trainer.callback_handler.callbacks]
    changed = [kind for kind in kinds if getattr(kind, method, None) is not getattr(TrainerCallback, method)]
    return [kind.__name__ for kind in changed if not kind.__module__.startswith(own)]


def add_to_log(numbers: MutableMapping[str, float], logs: MutableMapping, state: Any) -> None:
    """Put numbers into the line that the trainer is about to log, and into its history."""
    logs.update(numbers)
    state.log_history[-1].update(numbers)


def say(text: str) -> None:
    """Print a line about the training, apart from the trainer's own output."""
    print(f"workbench: {' '.join(text.split())}", file=sys.stderr, flush=True)
