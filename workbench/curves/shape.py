"""The shape of a curve without its unit, the same for measured and documented curves.

Both axes are normalised: on y, 0 is the mean of the first steps and 1 the best running mean; x is the share of the steps.
"""

import dataclasses

import numpy as np

from .curve import Curve, stretches

POINTS = 50  # a shape is taken of as many points: documented curves have 50 to 60, and a finer curve would look rougher
FIRST = 0.04  # of the points, whose mean is 0 of the normalised y
WINDOW = 0.1  # of the points, which a running mean is taken over; 3 points or more


@dataclasses.dataclass(frozen=True)
class Outline:
    """A curve of at most `POINTS` points: `share` of the steps, 0..1, and `y` in its own unit, each (points,)."""

    share: np.ndarray
    y: np.ndarray


def outline(curve: Curve, points: int = POINTS) -> Outline:
    """The curve as means over its neighbouring points, so that there are at most `points`; it starts at 0 and ends at 1.

    Example:
        >>> outline(Curve("seed 0", range(1, 5), [1, 3, 5, 9], "characters"), points=2)
        Outline(share=array([0.25, 0.75]), y=array([2., 7.]))
    """
    low, high = stretches(curve)
    share = ((low + high) / 2 - low[0]) / (high[-1] - low[0])
    return Outline(rebinned(share, points), rebinned(curve.y, points))


def rebinned(values: np.ndarray, points: int) -> np.ndarray:
    """Means of neighbours along the last axis, (..., N) -> (..., points); unchanged where there are no more.

    Each value counts in one mean alone: shared values would make the means smoother than those of a logged curve.

    Example:
        >>> rebinned(np.array([1.0, 3, 5, 9, 9]), 2)
        array([3., 9.])
    """
    n = values.shape[-1]
    if n <= points:
        return values
    parts = np.array_split(np.arange(n), points)
    return np.add.reduceat(values, [part[0] for part in parts], axis=-1) / [len(part) for part in parts]


def window_of(points: int) -> int:
    """Points in the running mean of a curve of `points` points."""
    return min(points, max(3, round(WINDOW * points)))


def running_means(values: np.ndarray, window: int) -> np.ndarray:
    """Means of `window` points in a row, (..., N) -> (..., N - window + 1)."""
    return np.lib.stride_tricks.sliding_window_view(values, window, axis=-1).mean(axis=-1)


def start_and_rise(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean of the first points, and how far the best running mean lies above it; (..., N) -> (...) each.

    Example:
        >>> start, rise = start_and_rise(np.array([-30.0, -20, -10, -4, -4, -4]))
        >>> float(start), float(rise)
        (-30.0, 26.0)
    """
    n = y.shape[-1]
    start = y[..., : max(1, round(FIRST * n))].mean(axis=-1)
    return start, running_means(y, window_of(n)).max(axis=-1) - start
