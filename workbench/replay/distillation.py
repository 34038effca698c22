"""The loss of on-policy distillation, row by row in float64: no padding, no TRL, no torch.

A row has T completion tokens over a vocabulary of V. The student samples it; student and teacher give each token's place a
distribution, both at the temperature of the config. Source: the generalized Jensen-Shannon divergence of
https://arxiv.org/abs/2306.13649, as `DistillationConfig.beta` of TRL defines it.
"""

from collections.abc import Mapping

import numpy as np

from .grpo_math import Row
from .report import Stage
from .stages import logged_lengths, of_logged
from .step import Step


def divergence(student: np.ndarray, teacher: np.ndarray, beta: float) -> tuple[Row, np.ndarray]:
    """The divergence of two distributions at each token, and its slopes by the student's logits (at the temperature).

    Args:
        student, teacher: (T, V), log-probs in nats.
        beta: 0 to 1. 0: KL(teacher || student), called forward. 1: KL(student || teacher), reverse. In between, with the
            mixture m = (1 - beta) student + beta teacher: beta KL(teacher || m) + (1 - beta) KL(student || m).

    Returns:
        (T,) in nats, and (T, V).

    Example: the student is sure of a half, the teacher of nine tenths.
        >>> student, teacher = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
        >>> [divergence(student, teacher, beta)[0].round(3).item() for beta in (0.0, 0.5, 1.0)]
        [0.368, 0.102, 0.511]
        >>> divergence(student, teacher, 0.0)[1]
        array([[-0.4,  0.4]])
    """
    p, q = np.exp(student), np.exp(teacher)
    if beta == 0:
        return (q * (teacher - student)).sum(-1), p - q
    mixture = teacher if beta == 1 else np.logaddexp(student + np.log(1 - beta), teacher + np.log(beta))
    gap = student - mixture
    of_student = (p * gap).sum(-1)
    share = 1.0 if beta == 1 else 1 - beta
    value = share * of_student + (beta * (q * (teacher - mixture)).sum(-1) if beta < 1 else 0.0)
    return value, share * p * (gap - of_student[:, None])


def check_distilled_metrics(step: Step, entropies: Mapping[str, float]) -> Stage:
    """Compare the logged lengths, the share of truncated completions and the entropy with those of the rows."""
    expected = dict(entropies) | logged_lengths(step)
    if all(row.ended is not None for row in step.rows):
        expected["completions/clipped_ratio"] = float(np.mean([not row.ended for row in step.rows]))
    return of_logged(step.metrics, expected)
