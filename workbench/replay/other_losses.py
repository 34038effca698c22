"""A loss that differs from its definition, compared with other definitions: of the file's own numbers, by name."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from .grpo_math import LOSS_TYPES, Loss
from .published import kl_terms
from .report import Stage
from .stages import SAME, check_loss, losses_of, size_of_losses
from .step import Step

_FAR = 700.0  # nats: the slope of k3 by a log-prob is 1 there


def with_other_loss(step: Step, losses: Sequence[Loss | None], stage: Stage) -> Stage:
    """The stage of a loss; where it differs, with the definition that gives it, if exactly one does, or several equal ones.

    `losses` are as `losses_of` gives them.
    """
    size = size_of_losses([loss for loss in losses if loss is not None])
    finite = all(math.isfinite(micro.loss) for micro in step.micro_batches)
    if stage.verdict != "different" or step.kind != "GRPO" or not finite or None in losses:
        return stage
    fitting: list[tuple[str, np.ndarray]] = []
    with np.errstate(over="ignore", invalid="ignore"):
        for name, others in _definitions(step):
            found = check_loss(step, others)
            # A definition of large slopes is near to anything by its own size.
            if found.verdict == "same" and (found.largest or 0.0) <= SAME * size:
                fitting.append((name, np.array([loss.value for loss in others])))
    values = [value for _, value in fitting]
    if not fitting or not all(np.allclose(value, values[0], rtol=1e-9, atol=0.0) for value in values):
        return stage
    names = " or ".join(name for name, _ in fitting)
    return dataclasses.replace(stage, cause=f"{stage.cause}; {names} gives this one")


def _definitions(step: Step) -> Iterator[tuple[str, list[Loss]]]:
    """Other definitions by name, with the loss of each micro-batch."""
    s = step.loss_settings()
    for loss_type in LOSS_TYPES:
        # The constant of `dr_grpo` is a setting.
        known = loss_type != "dr_grpo" or step.settings.get("max_completion_length") is not None
        if loss_type != s.loss_type and known:
            yield f"loss_type={loss_type!r}", _known(_with_settings(step, loss_type=loss_type))
    if s.beta:
        yield "beta=0", _known(_with_settings(step, beta=0.0))
        corrected = not s.use_bias_correction_kl
        yield f"use_bias_correction_kl={corrected}", _known(_with_settings(step, use_bias_correction_kl=corrected))
        for estimator in ("k1", "k2"):
            yield f"{estimator} in place of k3 for the KL", _with_kl(step, estimator)


def _with_settings(step: Step, **changes: object) -> Step:
    return dataclasses.replace(step, settings=step.settings | changes)


def _known(step: Step) -> list[Loss]:
    return [loss for loss in losses_of(step) if loss is not None]


def _with_kl(step: Step, estimator: str) -> list[Loss]:
    """The loss of each micro-batch with another estimate of the KL.

    What the KL of a token is multiplied by is the slope of k3 by a reference that is far below: 1 times that.
    """
    s = step.loss_settings()
    plain = _known(_with_settings(step, beta=0.0))
    far = _known(_far_reference(_with_settings(step, use_bias_correction_kl=False)))
    found = []
    for micro, without, distant in zip(step.micro_batches, plain, far, strict=True):
        value = without.value
        for i, row in enumerate(micro.rows):
            weight = distant.slopes[i] - without.slopes[i]
            scale = without.ratios[i] if s.use_bias_correction_kl else 1.0
            value += float((weight * scale * kl_terms(row.logps, row.ref_logps, estimator)[0]).sum())
        found.append(dataclasses.replace(without, value=value))
    return found


def _far_reference(step: Step) -> Step:
    def far(rows: Sequence) -> list:
        return [dataclasses.replace(row, ref_logps=row.logps - _FAR) for row in rows]

    micro_batches = [dataclasses.replace(micro, rows=far(micro.rows)) for micro in step.micro_batches]
    return dataclasses.replace(step, micro_batches=micro_batches)
