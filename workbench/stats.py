"""Numbers about reward curves: pure functions of arrays."""

from collections.abc import Sequence

import numpy as np

from .errors import ParameterError


def curve_summary(steps: Sequence[float], rewards: Sequence[float], tail: int = 20) -> dict[str, float]:
    """What a reader asks of one reward curve.

    Args:
        steps: N increasing step numbers.
        rewards: N rewards.
        tail: steps at the end taken as the result (fewer when the run is shorter).

    Returns:
        `first` (mean of the first 3 steps), `last` (mean of the last `tail`), `lowest`, `highest`, `best_step`, and
        `flips`, the share of steps in the tail after which the curve turns: 0 for a smooth rise, 2/3 for pure noise.

    Raises:
        ParameterError: no steps, lengths differ, or `tail` below 1.
    """
    if tail < 1:
        raise ParameterError(f"tail={tail}: expected at least 1 step")
    steps, rewards = np.asarray(steps, float), np.asarray(rewards, float)
    if not len(rewards) or steps.shape != rewards.shape:
        raise ParameterError(
            f"expected equally many steps and rewards, at least 1; got {len(steps)} and {len(rewards)}"
        )
    end = rewards[-tail:]
    turns = np.diff(np.sign(np.diff(end))) != 0
    return {
        "first": float(rewards[:3].mean()),
        "last": float(end.mean()),
        "lowest": float(rewards.min()),
        "highest": float(rewards.max()),
        "best_step": float(steps[rewards.argmax()]),
        "flips": float(turns.mean()) if len(turns) else 0.0,
    }
