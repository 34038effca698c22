"""One update of TRL's AsyncGRPOTrainer, which trains on packed rows from a queue that a server fills: run and taken down."""

import contextlib
import dataclasses
import itertools
import sys
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any
from unittest import mock

import numpy as np
import torch

from ..errors import ParameterError
from .engine import hook
from .record_step import check_model, finish_update, restored, weights_put_back
from .step_record import StepRecord

_TRL = "trl.experimental.async_grpo.async_grpo_trainer"
_MOST_REPEATS = 1000  # of the rows that a user gives, until they fill an update


@dataclass
class TakenRow:
    """A row as the worker queued it (TRL's `RolloutSample`), and the trainer's version when it was taken from the queue."""

    sample: Any
    trainer_version: int

    @property
    def staleness(self) -> int:
        """Weight updates between its sampling and its training."""
        return self.trainer_version - self.sample.model_version


@dataclass
class PackedBatch:
    """The rows of one micro-batch, the tensors that the trainer packed them into, and what its loss made of them."""

    rows: list[TakenRow]
    lost: int  # rows taken before the last of these that were neither packed nor had to be dropped
    inputs: Mapping[str, Any] = field(default_factory=dict)
    logps: torch.Tensor | None = None  # (P,), of the label of each packed position
    loss: float = float("nan")


@dataclass
class TakenUpdate:
    """Collect one update as the training loop does: micro-batches as they come from the data loader."""

    batches: list[PackedBatch]
    items: Any  # what the loop passes on as `num_items_in_batch`


@dataclass
class AsyncRecord(StepRecord):
    """One update of an AsyncGRPOTrainer."""

    packed: list[PackedBatch] = field(default_factory=list)


class RowsTap:
    """Notes which rows a trainer takes from its queue and how it packs them, until `off` is called; it changes none."""

    def __init__(self, trainer: Any, guarded: Callable = lambda note, *args: note(*args)):
        self._trainer, self._guarded = trainer, guarded
        self._taken: dict[int, TakenRow] = {}  # by the id of its array of tokens, in the order of the queue
        self._packed: deque[PackedBatch] = deque()  # in the order of the data loader, which works ahead of the training
        self._hooks = [hook(trainer, "get_train_dataloader", self._around_loader)]

    def off(self) -> None:
        """Note no more."""
        for each in self._hooks:
            each()

    def update(self, batches: Sequence[Mapping], items: Any) -> TakenUpdate | None:
        """The rows of the micro-batches that the loop has just collected; None where other processes hold them."""
        if len(self._packed) < len(batches):
            return None
        packed = [self._packed.popleft() for _ in batches]
        for each, inputs in zip(packed, batches, strict=True):
            each.inputs = inputs
        return TakenUpdate(packed, items)

    def _around_loader(self, original: Callable, *args: Any, **kwargs: Any):
        loader = original(*args, **kwargs)
        self._taken.clear()
        self._packed.clear()
        if self._trainer.rollout_queue is not None:  # the main process has it
            self._hooks.append(hook(self._trainer.rollout_queue, "get", self._around_get))
            self._hooks.append(hook(loader.collate_fn, "torch_call", self._around_packing))
        return loader

    def _around_get(self, original: Callable, *args: Any, **kwargs: Any):
        sample = original(*args, **kwargs)
        self._guarded(self._note_row, sample)
        return sample

    def _note_row(self, sample: Any) -> None:
        self._taken[id(sample.input_ids)] = TakenRow(sample, self._trainer.model_version)

    def _around_packing(self, original: Callable, examples: Any):
        packed = original(examples)
        self._guarded(self._note_packing, examples)
        return packed

    def _note_packing(self, examples: Any) -> None:
        """Note the rows of a micro-batch, and forget those that were taken before the last of them."""
        keys = [id(row["input_ids"]) for group in examples[0] for row in group.samples]
        rows = [self._taken[key] for key in keys if key in self._taken]
        lost = 0
        last = next((key for key in reversed(self._taken) if key in set(keys)), None)
        while last in self._taken:
            first = next(iter(self._taken))
            row = self._taken.pop(first)
            lost += first not in keys and not self._has_to_be_dropped(row)
        self._packed.append(PackedBatch(rows, lost))

    def _has_to_be_dropped(self, row: TakenRow) -> bool:
        budget = self._trainer.args.token_budget or 0
        too_long = budget > 0 and len(row.sample.input_ids) > budget
        return too_long or row.staleness > self._trainer.args.max_staleness


class _GivenRows:
    """In place of the trainer's queue: rows that a user gives, again from the first one when they run out."""

    def __init__(self, samples: Sequence[Any]):
        self._rows = itertools.cycle(samples)
        self._left = _MOST_REPEATS * len(samples)

    def get(self, timeout: float | None = None) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ParameterError(
                "check_step: the rows in batch fill no update: all are older than max_staleness, longer than token_budget, "
                "or too short to fill it; give newer, shorter or more rows"
            )
        sample = next(self._rows)
        # A row that comes again is another row, with an array of its own.
        return dataclasses.replace(sample, input_ids=np.array(sample.input_ids))

    def qsize(self) -> int:
        return 0


def record_async_step(trainer: Any, batch: Sequence[Any] | TakenUpdate | None = None) -> AsyncRecord:
    """Run one update of an AsyncGRPOTrainer and leave weights, random state, metrics and queue as they were.

    Args:
        batch: rows as TRL's `RolloutSample`, or what a `RowsTap` noted.

    Raises:
        ParameterError: no rows, rows that fill no update, or several processes.
        Exception: whatever the training itself would raise.
    """
    if trainer.accelerator.num_processes > 1:
        raise ParameterError("check_step: an AsyncGRPOTrainer is checked in one process; this training has several")
    if not isinstance(batch, TakenUpdate) and not batch:
        raise ParameterError(
            "check_step: an AsyncGRPOTrainer gets its rows from a server while it trains; give rows as TRL's "
            "RolloutSample, check_step(trainer, batch=[...]), or attach_watch(trainer, check_every=100) before train()"
        )
    if find_spec("trl.experimental.async_grpo.packing") is None:
        raise ParameterError("check_step: it reads the packed rows of AsyncGRPOTrainer from TRL 1.16 on; update TRL")
    check_model(trainer)
    record = AsyncRecord()
    with restored(trainer), contextlib.ExitStack() as stack:
        trainer._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        trainer._trained_groups = set(trainer._trained_groups)
        update = batch if isinstance(batch, TakenUpdate) else stack.enter_context(_given_update(trainer, batch or ()))
        record.packed = [PackedBatch(each.rows, each.lost) for each in update.batches]
        trainer.current_gradient_accumulation_steps = len(update.batches)
        model = trainer.model_wrapped
        model.train()
        model.zero_grad(set_to_none=True)
        with weights_put_back(trainer, record) as weights:
            for packed, taken in zip(record.packed, update.batches, strict=True):
                with _loss_noted(trainer, packed), trainer.accelerator.autocast():
                    trainer.training_step(model, taken.inputs, update.items)
        finish_update(trainer, record, weights)
    return record


@contextlib.contextmanager
def _given_update(trainer: Any, samples: Sequence[Any]) -> Iterator[TakenUpdate]:
    """The update that the trainer's own data loader makes of some rows."""
    trainer.rollout_queue, budget = _GivenRows(samples), trainer.args.token_budget
    tap = RowsTap(trainer)
    try:
        # The rows of a check are no traces of the training, and TRL's thread for traces would never end.
        with mock.patch.object(sys.modules[_TRL], "threading", types.SimpleNamespace(Thread=_NoThread)):
            loader = trainer.get_train_dataloader()
        steps, device = trainer.args.gradient_accumulation_steps, trainer.args.device
        update = tap.update(*trainer.get_batch_samples(iter(loader), steps, device))
        assert update is not None  # one process holds them all
        yield update
    finally:
        tap.off()
        trainer.args.token_budget = budget  # which TRL fills from its server


class _NoThread:
    """In place of a thread: it does nothing."""

    def __init__(self, **_: Any):
        pass

    def start(self) -> None:
        pass


@contextlib.contextmanager
def _loss_noted(trainer: Any, packed: PackedBatch) -> Iterator[None]:
    """Inside the block the trainer's loss is noted with its inputs and the log-probs that the model gave it."""

    def note_logps(_: Any, __: Any, output: Any) -> None:
        if getattr(output, "log_probs", None) is not None:
            packed.logps = output.log_probs.detach().flatten()

    def around_loss(original: Callable, model: Any, inputs: Any, *args: Any, **kwargs: Any):
        loss = original(model, inputs, *args, **kwargs)
        packed.inputs, packed.loss = dict(inputs), float(loss.detach())
        return loss

    handle, off = trainer.model.register_forward_hook(note_logps), hook(trainer, "compute_loss", around_loss)
    try:
        yield
    finally:
        handle.remove()
        off()
