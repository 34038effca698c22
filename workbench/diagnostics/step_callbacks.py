"""Callbacks for single steps of a training: one keeps them in files, one checks them before they are trained."""

from collections.abc import Callable, Collection
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from ..errors import ParameterError
from ..training.engine import hook
from ..training.rows import tokenizer_of
from .callback import LiveCallback, say
from .check_step import check_step
from .step_file import save_step, step_path
from .step_numbers import kind_of, step_of
from .step_record import StepRecord, listen
from .step_report import StepReport

Steps = int | Collection[int]


def check_steps(name: str, steps: Steps) -> None:
    """Refuse what names no steps."""
    numbers = steps if isinstance(steps, Collection) and not isinstance(steps, str) else [steps]
    if not numbers or not all(type(number) is int and number > 0 for number in numbers):
        raise ParameterError(
            f"{name}={steps!r}: expected step numbers from 1 on, or N for the first step and every N-th"
        )


def is_due(step: int, steps: Steps) -> bool:
    """Whether a step is one of `steps`: numbers, or N for the first and every N-th.

    Example:
        >>> [step for step in range(1, 8) if is_due(step, 3)], is_due(2, [2, 9])
        ([1, 3, 6], True)
    """
    return step == 1 or step % steps == 0 if isinstance(steps, int) else step in steps


class StepRecorder(LiveCallback):
    """Keeps what the loss consumed of some steps, each in a file of the record; each process its own rows."""

    name = "recorder of steps"

    def __init__(self, trainer: Any, record_dir: str | Path, steps: Steps):
        check_steps("record_steps", steps)
        super().__init__(trainer)
        self._kind, self._folder, self._steps = kind_of(trainer), Path(record_dir), steps
        self._record = StepRecord(losses=False)
        self._hooks = [listen(trainer, self._record, self.guarded)]
        trainer.add_callback(self)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any):
        self._record.stale, self._record.micro_batches = True, []
        self._record.losses = is_due(state.global_step + 1, self._steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any):
        if self._record.losses:
            self.guarded(self._write, state.global_step)
        self._record.losses = False

    def _write(self, number: int) -> None:
        trainer, record = self._trainer, self._record
        record.metrics = {name: list(values) for name, values in trainer._metrics["train"].items()}
        versions = {name: version(name) for name in ("trl", "transformers", "torch")}
        path = step_path(self._folder, number, trainer.accelerator.process_index)
        step = step_of(trainer, self._kind, record)
        size = save_step(path, number, step, tokenizer_of(trainer).decode, versions)
        say(f"step {number} is kept: {path} ({size / 1000:.0f} KB); see it with `workbench replay {path}`")


class StepCheck(LiveCallback):
    """Runs `check_step` before the first and every N-th step, on the batch that is about to be trained.

    Weights, optimizer and random state are afterwards as they were: the training is the same with and without. `reports` are
    by step. The first difference of each stage goes to `tell`, once.
    """

    name = "check of steps"

    def __init__(self, trainer: Any, every: int, tell: Callable[[str], None] = say):
        check_steps("check_every", every)
        super().__init__(trainer, every)
        kind_of(trainer)
        self.reports: dict[int, StepReport] = {}
        self._tell, self._told = tell, set[str]()
        self._batch: Any = None
        self._hooks = [hook(trainer, "get_batch_samples", self._around_batches)]
        trainer.add_callback(self)

    def _around_batches(self, original: Callable, *args: Any, **kwargs: Any):
        result = original(*args, **kwargs)
        self._batch = result[0][0] if result[0] else None
        return result

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any):
        step, accelerator = state.global_step + 1, self._trainer.accelerator
        if self._batch is None or not is_due(step, self._every or 1):
            return
        if accelerator.num_processes > 1:  # they sample and score together, or none does
            self.on = all(gather_object([self.on]))
        self.guarded(self._check, step, accelerator.process_index)

    def _check(self, step: int, process: int) -> None:
        report = self.reports[step] = check_step(self._trainer, batch=self._batch)
        if report.first is not None and report.first.name not in self._told:
            self._told.add(report.first.name)
            where = f"step {step}" + f", process {process}" * (self._trainer.accelerator.num_processes > 1)
            advice = "look at `check_step(trainer)` (workbench.diagnostics). More: docs/how-to/check_a_step.md"
            self._tell(f"{where}: step-check: {report.first.name} is different: {report.first.cause}. Do: {advice}")
