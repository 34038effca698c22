"""The stages of one update of a DistillationTrainer, each computed again from the stage before it."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ..consistency.logits import without_autocast
from ..consistency.padding import evaluating, logits_of, model_inputs
from ..replay.batches import check_batches
from ..replay.distillation import check_distilled_metrics, divergence
from ..replay.grpo_math import Loss
from ..replay.report import Stage, StepReport
from ..replay.stages import TOLERANCES, check_ends, check_mask, check_turns, compared
from ..training.processes import average_gradients, failing_together
from ..training.record_distillation import DistillationRecord
from ..training.record_step import dropouts_of
from ..training.step_numbers import coarsest_dtype, distillation_step_of
from .judge import Judge, own_gradients, text_key
from .update_stage import update_stage

_AT_ONCE = 2**22  # numbers of a distribution that are compared at once, in float64
_SCALE = 0.01  # nats a token, below which a divergence is compared with this and not with itself
_NAMES = {0.0: "forward KL", 1.0: "reverse KL"}


class DistillationJudge(Judge):
    """The stages of an update of a distillation, with both models."""

    record: DistillationRecord

    def __init__(self, trainer: Any, record: DistillationRecord):
        self.teacher_model = None
        if trainer.teacher_model is not None:
            self.teacher_model = trainer.accelerator.unwrap_model(trainer.teacher_model)
        self.by_teacher: dict[tuple, np.ndarray] = {}  # log-probs of completions alone, by prompt and completion
        self.entropies: list[float] = []  # of the student, the mean over the tokens of each micro-batch
        step = distillation_step_of(trainer, record)
        self.beta = float(step.settings["beta"])
        super().__init__(trainer, step, record)

    def report(self) -> StepReport:
        step = self.step
        loss = self.loss()
        stages = [
            self.sampling(),
            check_ends(step, self.tokenizer.decode),
            check_turns(step),
            check_mask(step),
            check_batches(step),
            self.logprobs(),
            self.teacher(),
            loss,
            self.gradient_of_other_trainers(loss),
            update_stage(self.record, self.policy, self.trainer.args, self.trainer.state),
            self.metrics(),
        ]
        return self._report(stages)

    def _items(self) -> float:
        """Tokens in the loss of the whole update, over all processes."""
        micro_batches = self.step.micro_batches
        if self.step.processes > 1 and self.step.tokens:
            return max(sum(self.step.tokens), 1.0)
        return max(sum(float(row.mask.sum()) for micro in micro_batches for row in micro.rows), 1.0)

    def _losses(self) -> list[Loss | None]:
        """The definition's loss of the distributions that the trainer computed."""
        if len(self.record.calls) != len(self.step.micro_batches):
            return [None] * len(self.step.micro_batches)
        weight = self.step.processes / self._items()
        losses = list[Loss | None]()
        for micro, batch, call in zip(
            self.step.micro_batches, self.record.micro_batches, self.record.calls, strict=True
        ):
            value, slopes, entropy, count = 0.0, list[np.ndarray](), 0.0, 0.0
            for i, (row, ids) in enumerate(zip(micro.rows, micro.ids, strict=True)):
                tables = call.logits(i, batch.inputs["completion_mask"][i].bool())
                own = np.zeros(len(ids))
                for start, tokens in _parts(ids, tables[0].shape[-1]):
                    part = slice(start, start + len(tokens))
                    student, teacher = (_log_softmax(table[part]) for table in tables)
                    each, by_logit = divergence(student, teacher, self.beta)
                    value += weight * float((each * row.mask[part]).sum())
                    own[part] = weight * row.mask[part] * by_logit[np.arange(len(tokens)), np.array(tokens)]
                    entropy -= float(((np.exp(student) * student).sum(-1) * row.mask[part]).sum())
                slopes.append(own)
                count += float(row.mask.sum())
            self.entropies.append(entropy / max(count, 1.0))
            losses.append(Loss(value, slopes, [np.ones(len(each)) for each in slopes]))
        return losses

    def _score_and_differentiate(self) -> dict[str, torch.Tensor]:
        """Score each row alone by both models; the gradient is that of their divergences."""
        weight = self.step.processes / self._items()
        with own_gradients(self.policy) as gradients:
            with failing_together(self.record.averaged):
                for number, micro in enumerate(self.step.micro_batches):
                    for i, (row, prompt, ids) in enumerate(zip(micro.rows, micro.prompt_ids, micro.ids, strict=True)):
                        if ids:
                            self.alone[text_key(prompt, ids)] = self._score(self.policy, prompt, ids)
                            self._differentiate(prompt, ids, weight * row.mask, self._taken_of_teacher(number, i))
            if self.record.averaged:
                average_gradients(self.policy)
        return gradients

    def _taken_of_teacher(self, number: int, row: int) -> torch.Tensor | None:
        """(T, V) of a row, as a micro-batch's divergence took them: their own rounding is then not that of the gradient."""
        if len(self.record.calls) != len(self.step.micro_batches):
            return None
        there = self.record.micro_batches[number].inputs["completion_mask"][row].bool()
        return self.record.calls[number].of("teacher", row, there)

    def _differentiate(
        self, prompt: list[int], ids: list[int], weights: np.ndarray, taken: torch.Tensor | None = None
    ) -> None:
        """Add the gradient of a row's divergences, from `taken` if it is given, and keep the teacher's log-probs of it."""
        if self.teacher_model is None:
            return
        with torch.no_grad(), evaluating(self.teacher_model), without_autocast(self.teacher_model):
            teacher_logits = self._logits(self.teacher_model, prompt, ids)
        with torch.enable_grad():
            logits = self._logits(self.policy, prompt, ids)
            slopes, by_teacher = torch.empty_like(logits), []
            for start, tokens in _parts(ids, logits.shape[-1]):
                part = slice(start, start + len(tokens))
                student, teacher = _log_softmax(logits[part]), _log_softmax(teacher_logits[part])
                target = teacher if taken is None else _log_softmax(taken[part])
                by_logit = divergence(student, target, self.beta)[1] * weights[part, None]
                slopes[part] = torch.tensor(by_logit, dtype=logits.dtype, device=logits.device)
                by_teacher.append(teacher[np.arange(len(tokens)), np.array(tokens)])
            if logits.requires_grad:
                (logits * slopes.detach()).sum().backward()
        self.by_teacher[text_key(prompt, ids)] = np.concatenate(by_teacher)

    def _logits(self, model: Any, prompt: list[int], ids: list[int]) -> torch.Tensor:
        """(T, V) at the temperature, of a row alone."""
        tokens = torch.tensor([prompt + ids], device=next(model.parameters()).device)
        inputs = model_inputs(model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, "explicit")
        return logits_of(model, inputs)[0, len(prompt) - 1 : -1].float() / self.temperature

    def teacher(self) -> Stage:
        """Compare the teacher's log-probs with those of each row alone, at the temperature."""
        if self.teacher_model is None:
            return Stage("teacher", "cannot tell", "the teacher is no model in this process")
        own = {id(parameter) for parameter in self.teacher_model.parameters()}
        if any(parameter.requires_grad and id(parameter) in own for parameter in self.policy.parameters()):
            return Stage("teacher", "different", "it has weights of the student itself, which move with it")
        pairs = [
            (row.ref_logps, self.by_teacher[text_key(prompt, ids)])
            for row, prompt, ids, _ in self._scored()
            if row.ref_logps is not None
        ]
        if not pairs:
            return Stage("teacher", "cannot tell", "no token is in the loss, or the divergence is computed elsewhere")
        used, alone = (np.concatenate(part) for part in zip(*pairs, strict=True))
        cause = "the teacher gives a row alone, at the temperature of the config, other log-probs"
        dtype = _coarsest([self.step.dtype, coarsest_dtype(self.teacher_model)])
        return self._close("teacher", used, alone, cause, dtype=dtype)

    def _why(self) -> str:
        """A known cause of different log-probs in a distillation, whose scoring is not run again to test it."""
        if dropouts := dropouts_of(self.policy):
            return f": not tested: dropout ({', '.join(dropouts)}) is on in training; disable_dropout=True may help"
        if any(not micro.inputs["prompt_mask"].all() for micro in self.record.micro_batches):
            return ": not tested: padding (positions without position_ids, or attention to pads)"
        return ""

    def loss(self) -> Stage:
        """Compare each micro-batch's loss with the mean divergence over the tokens of the update."""
        losses = [loss for loss in self.losses if loss is not None]
        if not losses or len(losses) < len(self.losses):
            return Stage("loss", "cannot tell", "the trainer computes its divergence elsewhere")
        used = np.array([micro.loss for micro in self.step.micro_batches])
        expected = np.array([loss.value for loss in losses])
        size = max(float(np.abs(expected).max()), _SCALE / len(expected))
        name = _NAMES.get(self.beta, "generalized JSD")
        cause = f"beta={self.beta:g} ({name}) gives another loss for these distributions"
        if expected.any():
            times = float(used @ expected / (expected @ expected))
            if np.abs(used - times * expected).max() < 1e-3 * np.abs(times * expected).max():
                cause += f": {times:.3g} times as much"
        return compared("loss", self.step, used, expected, cause, size)

    def metrics(self) -> Stage | None:
        """Compare the logged numbers with those of the rows; the entropy only where the model computes in fp32."""
        if self.step.processes > 1:  # which have a part in each of them
            return None
        precise = self.step.dtype == "float32" and self.entropies
        return check_distilled_metrics(self.step, {"entropy": float(np.mean(self.entropies))} if precise else {})


def _parts(ids: Sequence[int], vocabulary: int) -> Iterator[tuple[int, Sequence[int]]]:
    """Pieces of a row whose distributions fit into memory, each with its start."""
    size = max(1, _AT_ONCE // vocabulary)
    for start in range(0, len(ids), size):
        yield start, ids[start : start + size]


def _log_softmax(logits: torch.Tensor) -> np.ndarray:
    return logits.detach().double().log_softmax(-1).numpy(force=True)


def _coarsest(dtypes: Sequence[str]) -> str:
    """The dtype with the widest tolerance."""
    known = [dtype for dtype in dtypes if dtype in TOLERANCES]
    return max(known, key=lambda dtype: TOLERANCES[dtype].mean, default="float32")
