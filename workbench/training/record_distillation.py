"""One update of TRL's DistillationTrainer, run and taken down: both models' hidden states, as its divergence took them."""

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from .record_step import record_step
from .step_record import StepRecord


@dataclass
class DivergenceCall:
    """The arguments of TRL's `_chunked_divergence_loss` for one micro-batch, without gradients."""

    arguments: Mapping[str, Any]
    dtype: torch.dtype  # in which it multiplies hidden states and heads

    def logits(self, row: int, there: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits of one row, of the student and of the teacher, at the temperature that the divergence took.

        Args:
            there: (C,), True for the tokens that are no padding.

        Returns:
            (T, V) each, in float32.
        """
        return self.of("student", row, there), self.of("teacher", row, there)

    def of(self, model: str, row: int, there: torch.Tensor) -> torch.Tensor:
        """One of them."""
        hidden = self.arguments[f"{model}_hidden_states"][row][there].to(self.dtype).float()
        logits = hidden @ self.arguments[f"{model}_lm_head_weight"].to(self.dtype).float().T
        bias, cap = (self.arguments[f"{model}_{name}"] for name in ("lm_head_bias", "final_logit_softcapping"))
        if bias is not None:
            logits = logits + bias.float()
        logits = logits * self.arguments[f"{model}_logit_scale"]
        if cap is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits / self.arguments["temperature"]


@dataclass
class DistillationRecord(StepRecord):
    """One update of a DistillationTrainer."""

    calls: list[DivergenceCall] = field(default_factory=list)  # one a micro-batch; none where the loss is another


def record_distillation_step(trainer: Any, batch: list[dict] | None = None) -> DistillationRecord:
    """Run one update of a DistillationTrainer on its first batch, as `record_step` does."""
    record, module = DistillationRecord(), importlib.import_module("trl.trainer.distillation_trainer")
    original = module._chunked_divergence_loss
    signature = inspect.signature(original)

    def noted(*args: Any, **kwargs: Any):
        if trainer.model.training:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            arguments = {n: x.detach() if isinstance(x, torch.Tensor) else x for n, x in bound.arguments.items()}
            record.calls.append(DivergenceCall(arguments, _computed_dtype(arguments["student_hidden_states"])))
        return original(*args, **kwargs)

    with mock.patch.object(module, "_chunked_divergence_loss", noted):
        record_step(trainer, batch, record=record)
    return record


def rows_of(inputs: Mapping[str, torch.Tensor]) -> list[tuple]:
    """The tokens of each row of a micro-batch without its padding: prompt, -1, completion."""
    names = [f"{part}_{what}" for part in ("prompt", "completion") for what in ("ids", "mask")]
    parts = zip(*(inputs[name].cpu() for name in names), strict=True)
    return [(*ids[mask.bool()].tolist(), -1, *own[there.bool()].tolist()) for ids, mask, own, there in parts]


def _computed_dtype(hidden: torch.Tensor) -> torch.dtype:
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
