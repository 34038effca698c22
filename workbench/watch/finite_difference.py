"""The gradient against what the loss does: how far it moves when the weights move.

Reference and trainer both take gradients by a backward pass through the same modules. A layer whose output is detached, a
kernel with a wrong backward and a hook on a parameter are wrong in both. A difference of two forward passes needs no
backward pass: `(L(w + v) - L(w - v)) / 2` is the gradient times v.

L is the sum of each token's slope times its log-prob, and of entropies likewise: its gradient is that of the loss. The loss
itself would not do: it holds numbers as constants whose change a difference sees (old log-probs, the weight of CISPO, which
tokens have the highest entropy). That its slopes are right is asked apart, in `off_policy`.

v goes along the reference's gradient in each tensor, equally far in each, as long as that is little next to its size, and where
an element has no gradient at random: there the loss must not move. The row of a pad in an embedding stays: torch gives it no
gradient as an input. So do the norms of DoRA, which its definition keeps out of the gradient
(https://arxiv.org/abs/2402.09353, section 4.3).
"""

import contextlib
import math
import os
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import psutil
import torch
from accelerate.utils import gather_object

from ..consistency.logits import without_autocast
from ..consistency.padding import evaluating
from ..replay.grpo_math import Loss
from ..replay.stages import tolerance_of
from ..replay.step import Step
from ..training.engine import hook
from ..training.processes import failing_together, is_sharded
from ..training.record_step import as_it_was, score_with_loss
from ..training.step_numbers import multiplied_in
from ..training.step_record import MicroBatch, StepRecord

_MOVED = 2e-3  # nats a token by which v moves the loss along the gradient
_ROUGHLY = 5e-2  # of a weight's size, by which elements without a gradient move
_SMALLEST = 0.02  # size that a tensor of zeros or of smaller numbers counts as: that of weights before training
_FARTHEST = 0.1  # of a tensor's size, by which it moves along its gradient at most: further away the loss is another
_ROUNDING = 5e-6  # nats of a log-prob in fp32
_SEEN = 5.0  # times the rounding, which a movement exceeds that shows the gradient
_CLOSER = 4.0  # times as small is the v that confirms a difference
_CURVED = 5e-3  # share of a movement that the curvature of the loss may make


@dataclass(frozen=True)
class Moved:
    """The movement of the loss: `verdict` is `same`, `different` or `cannot tell`."""

    verdict: str
    cause: str
    size: float = 0.0  # difference, as a share of what the gradient says


def check_by_moving(
    trainer: Any,
    policy: Any,
    step: Step,
    record: StepRecord,
    losses: Sequence[Loss | None],
    expected: Mapping[str, torch.Tensor],
    scale: float = 1.0,
) -> Moved:
    """Compare the trainer's gradient with how its loss moves, along `expected` and where there is no gradient.

    It costs two forward passes of the trainer over the micro-batches of the update, in evaluation, so without dropout, and
    without autocast. If they disagree, four more confirm it, and two for each doubling of the number of tensors find where.
    A copy of the trained weights lies in the host's memory. Trainer and weights are afterwards as they were.

    Args:
        losses: of each micro-batch, with its slopes.
        expected: the reference's gradient, by parameter.
        scale: of the slopes, 1 / accumulation where the trainer divides the loss afterwards.
    """
    trained = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    if record.problem:
        return Moved("cannot tell", record.problem)
    wide = (torch.float32, torch.float64)
    narrow = sorted({str(p.dtype).removeprefix("torch.") for p in policy.parameters() if p.dtype not in wide})
    if narrow:
        return Moved("cannot tell", f"{', '.join(narrow)} weights round away the steps that this takes")
    if (product := multiplied_in(policy)) != "float32":
        return Moved(
            "cannot tell", f"torch multiplies float32 in {product}, which rounds away the steps that this takes"
        )
    if record.averaged and not _fit_in_memory(trained.values()):
        return Moved("cannot tell", "a copy of the weights of each process does not fit into half of the host's memory")
    if any(torch.is_tensor(other) for micro in record.micro_batches for other in micro.others):
        return Moved("cannot tell", "the loss of a router has a part in the gradient")
    try:
        # TRL opens accelerate's autocast around the head too.
        in_fp32 = mock.patch.object(trainer.accelerator, "native_amp", False)
        users = torch.autocast(trainer.accelerator.device.type, enabled=False)  # the user's, around all
        with as_it_was(trainer), evaluating(trainer.model), without_autocast(policy), in_fp32, users:
            trainer.current_gradient_accumulation_steps = len(record.micro_batches)
            probe = _Probe(trainer, step, record, losses, expected, scale, trained, policy)
            with norms_held(policy, probe.score):
                return probe.verdict()
    except Exception as error:  # a loss is anybody's
        if is_sharded(trainer.model):  # FSDP is in the middle of a pass, which ends the check
            raise
        return Moved("cannot tell", f"the loss cannot be taken again: {type(error).__name__}: {str(error)[:200]}")


def _fit_in_memory(weights: Iterable[torch.Tensor]) -> bool:
    """Say whether each process of this machine can copy its weights into half of the memory that is free on all machines."""
    copies = sum(p.numel() * p.element_size() for p in weights) * int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return all(gather_object([2 * copies < psutil.virtual_memory().available]))


class _Probe:
    """Weights that can be moved along v and back."""

    def __init__(
        self,
        trainer: Any,
        step: Step,
        record: StepRecord,
        losses: Sequence[Loss | None],
        expected: Mapping[str, torch.Tensor],
        scale: float,
        trained: dict[str, torch.nn.Parameter],
        policy: Any,
    ):
        self.trainer, self.record, self.expected, self.trained = trainer, record, expected, trained
        self.limits = tolerance_of(step)
        with failing_together(record.averaged):
            self.tables = [
                _tables(m, loss, scale) for m, loss in zip(record.micro_batches, losses, strict=True) if loss
            ]
            slopes = torch.cat([table.flatten() for tables in self.tables for table in tables if table is not None])
        total, square = self._over_processes([float(slopes.abs().sum()), float((slopes**2).sum())])
        self.noise = _ROUNDING * math.sqrt(square)
        norms = [float(gradient.norm()) for gradient in expected.values()]
        self.step_size = _MOVED * total / max(sum(norms), 1e-30)
        self.held_back = False
        self.before = {name: p.detach().to("cpu", copy=True) for name, p in trained.items()}
        self.pads = {name: pad_places_of(policy, p) for name, p in trained.items()}

    def verdict(self) -> Moved:
        names = [*self.trained]
        said, does = self.measure(names)
        if not self._far(said, does):
            if self.held_back and abs(said) < _SEEN * self.noise:
                cause = f"the gradient is so small that weights moved by {_FARTHEST:.0%} of their size do not show it"
                return Moved("cannot tell", cause)
            return Moved(
                "same", f"the loss moves as it says, within {_share(said, does):.1g} of it", _share(said, does)
            )
        said_closer, does_closer = self.measure(names, 1 / _CLOSER)
        gap, gap_closer = does - said, (does_closer - said_closer) * _CLOSER
        if not 0.5 < gap_closer / gap < 2:
            cause = f"the loss is too uneven for it: it is off by {gap:.2g}, and by {gap_closer:.2g} of a smaller step"
            return Moved("cannot tell", cause)
        cause = f"the loss moves by other than its gradient says: by {does:.3g} where it says {said:.3g}, "
        return Moved("different", cause + f"most in {self._most_wrong(names)}", _share(said, does))

    def _far(self, said: float, does: float) -> bool:
        return abs(does - said) > max(self.limits.norm, _CURVED) * abs(said) + self.noise

    def _most_wrong(self, names: Sequence[str]) -> str:
        """The tensor that half after half has the larger part of the difference, which is a sum over tensors."""
        names = list(names)
        said, does = self.measure(names)
        gap = does - said
        while len(names) > 1:
            first, second = names[: len(names) // 2], names[len(names) // 2 :]
            said, does = self.measure(first)
            if abs(does - said) >= abs(gap - (does - said)):
                names, gap = first, does - said
            else:
                names, gap = second, gap - (does - said)
        return names[0]

    def measure(self, names: Sequence[str], shorter: float = 1.0) -> tuple[float, float]:
        """The movement of the loss along v in these tensors: by the gradient, and as measured; both of half the way."""
        with failing_together(self.record.averaged):
            said, moved_by = self._measured(names, shorter)
        (does,) = self._over_processes([moved_by])
        return said, does

    def _measured(self, names: Sequence[str], shorter: float) -> tuple[float, float]:
        values, said = [], 0.0
        try:
            for side in (1.0, -1.0):
                for name in names:
                    before = self.before[name].to(self.trained[name].device)
                    if side > 0:
                        moved = before + shorter * self._direction(name, before)
                    else:  # as far away as the first side, so v is not drawn a second time
                        moved = 2 * before - self.trained[name].detach()
                    self.trained[name].data.copy_(moved)
                    gradient = self.record.gradients.get(name)
                    if gradient is not None:
                        taken = self.trained[name].detach() - before
                        said += side * float((gradient.double() * taken.double()).sum()) / 2
                values.append(self.score())
        finally:
            for name in names:
                self.trained[name].data.copy_(self.before[name])
        return said, (values[0] - values[1]) / 2

    def _direction(self, name: str, weights: torch.Tensor) -> torch.Tensor:
        """v in one tensor."""
        v = self._whole_direction(name, weights)
        for place in self.pads[name]:
            v[place] = 0
        return v

    def _whole_direction(self, name: str, weights: torch.Tensor) -> torch.Tensor:
        gradient = self.expected.get(name)
        size = max(float(weights.square().mean().sqrt()), _SMALLEST) if weights.numel() else 0.0
        norm = 0.0 if gradient is None else float(gradient.norm())
        length = min(self.step_size, _FARTHEST * size * math.sqrt(weights.numel()))
        self.held_back |= norm > 0 and length < self.step_size
        along = None if gradient is None else gradient * (length / norm if norm else 0.0)
        if gradient is not None and along is not None and bool((gradient != 0).all()):
            return along
        device = weights.device  # on which half a billion signs take no time
        generator = torch.Generator(device).manual_seed(zlib.crc32(name.encode()))
        signs = torch.randint(0, 2, weights.shape, generator=generator, dtype=torch.int8, device=device) * 2 - 1
        random = signs * (_ROUGHLY * size)
        return random if gradient is None or along is None else torch.where(gradient == 0, random, along)

    def score(self) -> float:
        """L of the moved weights: slopes times log-probs, in float64."""
        total = 0.0
        for micro, (by_logp, by_entropy) in zip(self.record.micro_batches, self.tables, strict=True):
            logps_before: Any = micro.logps
            entropies_before: Any = micro.entropies
            logps: Any
            entropies: Any
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of checkpoints without gradients
                logps, entropies = score_with_loss(self.trainer, micro.inputs)
            total += float(((logps.double() - logps_before.double()) * by_logp)[by_logp != 0].sum())
            if by_entropy is not None:
                total += float(((entropies.double() - entropies_before.double()) * by_entropy)[by_entropy != 0].sum())
        return total

    def _over_processes(self, values: list[float]) -> list[float]:
        if not self.record.averaged:
            return values
        device = next(iter(self.trained.values())).device
        table = torch.tensor(values, dtype=torch.float32, device=device)
        torch.distributed.all_reduce(table)
        return (table / torch.distributed.get_world_size()).tolist()


@contextlib.contextmanager
def norms_held(model: torch.nn.Module, score: Callable[[], Any]) -> Iterator[None]:
    """Inside the block each layer of DoRA divides by its norm at the weights of now, however these move; `score` runs them."""
    kept: dict[torch.nn.Module, Any] = {}

    def holding(layer: torch.nn.Module) -> Callable:
        def held(original: Callable, *args: Any, **kwargs: Any):
            if layer not in kept:
                kept[layer] = original(*args, **kwargs)
            return kept[layer]

        return held

    layers = [layer for layer in model.modules() if hasattr(layer, "get_weight_norm")]
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.callback(hook(layer, "get_weight_norm", holding(layer)))
        if layers:
            score()
        yield


def pad_places_of(model: torch.nn.Module, parameter: torch.nn.Parameter) -> list[tuple]:
    """Where an embedding gets no gradient as an input, because torch takes it for that of a pad: an index of the parameter.

    A model whose pad is its EOS reads that row wherever a turn ended, so the loss moves with it. PEFT passes the pad on to its
    own tables: the first one of a LoRA has a column for each token, that of single tokens a row for each of them.
    """
    places: list[tuple] = []
    for module in model.modules():
        table = getattr(module, "base_layer", module)
        if not isinstance(table, torch.nn.Embedding) or table.padding_idx is None:
            continue
        if table.weight is parameter:
            places.append((table.padding_idx,))
        if any(each is parameter for each in getattr(module, "lora_embedding_A", {}).values()):
            places.append((slice(None), table.padding_idx))
        for adapter, delta in getattr(module, "trainable_tokens_delta", {}).items():
            tokens = list(module.token_indices[adapter])
            if delta is parameter and table.padding_idx in tokens:
                places.append((tokens.index(table.padding_idx),))
    return places


def _tables(micro: MicroBatch, loss: Loss, scale: float) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(B, T) of the slopes by log-probs and by entropies, 0 at pads."""
    there = micro.inputs["completion_mask"].bool()

    def table(rows: Sequence[np.ndarray]) -> torch.Tensor:
        full = torch.zeros(there.shape, dtype=torch.float64, device=there.device)
        full[there] = torch.tensor(np.concatenate(rows), device=there.device) * scale
        return full

    return table(loss.slopes), table(loss.entropy_slopes) if loss.entropy_slopes else None


def _share(said: float, does: float) -> float:
    return abs(does - said) / max(abs(said), abs(does), 1e-30)
