"""A curve with its unit and range, and where curves peak, settle and reach a threshold."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..errors import ParameterError
from .stats import Interval, one_seed, seed_interval

AXES = {"step": "step", "elapsed_s": "seconds of training", "prompts": "prompts"}  # in words
PLACES = ("end", "start", "centre")


@dataclasses.dataclass(frozen=True)
class Curve:
    """One metric of one run over steps, seconds or prompts.

    Args:
        label: names it in figures and messages.
        x: N increasing positions.
        y: N values; NaN where none is known.
        unit: of `y`: tokens, characters, share of right answers, ...
        low, high: bounds the metric cannot leave; None where there is none.
        axis: what `x` counts: step, elapsed_s or prompts.
        at: where a point stands in the stretch of `x` that it is the mean of: end, as trainers log, start or centre.
        span: length of that stretch; None where a point reaches to the one beside it.

    Raises:
        ParameterError: an unknown `axis` or `at`, a `span` that is not above 0, lengths differ, there is no point, `x`
            does not increase, or a value lies outside the bounds.

    Example:
        >>> curve = Curve("seed 0", [1, 2, 3], [-30, -12, -4], "characters from the target of 20", high=0)
        >>> curve.y.max(), curve.range
        (np.float64(-4.0), '(-inf, 0]')
    """

    label: str
    x: np.ndarray
    y: np.ndarray
    unit: str
    low: float | None = None
    high: float | None = None
    axis: str = "step"
    at: str = "end"
    span: float | None = None

    def __post_init__(self):
        x, y = np.asarray(self.x, float), np.asarray(self.y, float)
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", y)
        if self.axis not in AXES:
            wrong = f"axis={self.axis!r}: expected one of {', '.join(AXES)}"
        elif self.at not in PLACES:
            wrong = f"at={self.at!r}: expected one of {', '.join(PLACES)}"
        elif self.span is not None and not self.span > 0:
            wrong = f"span={self.span}: expected more than 0, or None"
        elif x.shape != y.shape or x.ndim != 1 or not len(x):
            wrong = f"expected equally many x and y, at least 1; got {x.shape} and {y.shape}"
        elif not (np.diff(x) > 0).all():
            n = int(np.argmin(np.diff(x) > 0))
            wrong = f"{self.axis} {x[n + 1]:g} follows {x[n]:g}; expected increasing {self.axis}"
        elif (self.low is not None and (y < self.low).any()) or (self.high is not None and (y > self.high).any()):
            lowest, highest = np.nanmin(y), np.nanmax(y)
            wrong = f"values from {lowest:.4g} to {highest:.4g} lie outside {self.range}; mend low and high"
        else:
            return
        raise ParameterError(f"{self.label}: {wrong}")

    @property
    def range(self) -> str:
        """The bounds in words, `(-inf, 0]`."""
        low = "(-inf" if self.low is None else f"[{self.low:g}"
        return f"{low}, " + ("inf)" if self.high is None else f"{self.high:g}]")


def why_incomparable(first: Curve, *others: Curve) -> str:
    """Why curves do not belong on one axis: unit, range or x-axis; empty when they do."""
    for other in others:
        if first.unit != other.unit:
            return f"{first.label} is in {first.unit}, {other.label} in {other.unit}"
        if (first.low, first.high) != (other.low, other.high):
            return f"{first.label} ranges over {first.range}, {other.label} over {other.range}"
        if first.axis != other.axis:
            return f"{first.label} is over {first.axis}, {other.label} over {other.axis}"
    return ""


def stretches(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """The x from which and up to which each point of a curve is a mean, (N,) each; they do not overlap.

    Example:
        >>> stretches(Curve("documented", [10, 20, 30], [-368, -370, -313], "characters"))
        (array([ 0., 10., 20.]), array([10., 20., 30.]))
    """
    x, gaps = curve.x, np.diff(curve.x)
    if curve.span is not None or len(x) == 1:
        before = after = np.full(len(x), curve.span or 1.0)
    else:
        before, after = np.concatenate([gaps[:1], gaps]), np.concatenate([gaps, gaps[-1:]])
    share = {"end": 1, "centre": 0.5, "start": 0}[curve.at]  # of the stretch that lies before its point
    low, high = x - share * before, x + (1 - share) * after
    if curve.at == "start":
        high[:-1] = np.minimum(high[:-1], low[1:])
    else:
        low[1:] = np.maximum(low[1:], high[:-1])
    return low, high


def running_mean(values: ArrayLike, window: int) -> np.ndarray:
    """Mean of each value and the `window - 1` before it, of fewer at the start; a NaN is left out of the means.

    Example:
        >>> running_mean([2, 4, 6, 8], window=2)
        array([2., 3., 5., 7.])
    """
    import pandas as pd

    return pd.Series(np.asarray(values, float)).rolling(window, min_periods=1).mean().to_numpy()


def on_common_x(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """The positions that all curves have, (T,), and the values there, (curves, T).

    Two runs never log at the same second; over seconds, values between two steps are interpolated, in the span that all
    curves cover.

    Raises:
        ParameterError: curves that do not belong on one axis, or share no position.
    """
    if reason := why_incomparable(*curves):
        raise ParameterError(reason)
    if curves[0].axis == "elapsed_s":
        start, end = max(c.x[0] for c in curves), min(c.x[-1] for c in curves)
        x = curves[0].x[(curves[0].x >= start) & (curves[0].x <= end)]
        values = np.stack([np.interp(x, c.x, c.y) for c in curves])
    else:
        x = functools.reduce(np.intersect1d, [c.x for c in curves])
        values = np.stack([c.y[np.isin(c.x, x)] for c in curves])
    if not len(x):
        raise ParameterError(f"{', '.join(c.label for c in curves)}: no {curves[0].axis} in common")
    return x, values


def _full_means(curve: Curve, window: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean over each `window` points in a row, and the x at which each ends.

    A mean of fewer points scatters more: with those at the start, the highest mean of pure noise lay in its first 5
    steps in 29% of runs.
    """
    if not 1 <= window <= len(curve.y):
        raise ParameterError(f"{curve.label}: window={window}: expected 1 to {len(curve.y)}, the points of the curve")
    return curve.x[window - 1 :], np.lib.stride_tricks.sliding_window_view(curve.y, window).mean(axis=1)


def peak(curve: Curve, window: int = 10) -> tuple[float, float]:
    """Where the mean over `window` points in a row is highest, and its value there.

    Args:
        curve: finite.
        window: 1 up to the curve's number of points.

    Returns:
        The x at which the best window ends, and the mean over it in the curve's unit.

    Raises:
        ParameterError: a window below 1, or longer than the curve.

    Example:
        >>> peak(Curve("seed 0", [1, 2, 3, 4], [6, 1, 5, 4], "characters"), window=2)
        (4.0, 4.5)
    """
    x, means = _full_means(curve, window)
    return float(x[means.argmax()]), float(means.max())


@dataclasses.dataclass(frozen=True)
class Plateau:
    """`start` and `volatility` are None when the curve does not stay settled for its last quarter, whose mean `level` is."""

    start: float | None
    level: float
    volatility: float | None


def plateau(curve: Curve, window: int = 10, band: float = 0.15) -> Plateau:
    """Where a curve settles, and how much single points still scatter from there on.

    Args:
        curve: at least 8 points, finite.
        window: points in a row that a mean is taken of, 1 up to the curve's number of points.
        band: the means count as settled while they stay this share of their own range from the level; 0..1.

    Returns:
        `start`: the x at which the first window ends from which on the means stay within the band; `volatility`:
        standard deviation of the points from there on, in the curve's unit.

    Raises:
        ParameterError: a window below 1, or longer than the curve.

    Example:
        >>> found = plateau(Curve("seed 0", range(1, 17), [0, 2, 4, 6] + [7, 9] * 6, "characters"), window=2)
        >>> found.start, found.level
        (6.0, 8.0)
    """
    ends, smooth = _full_means(curve, window)
    level = float(curve.y[-max(1, len(curve.y) // 4) :].mean())
    away = np.abs(smooth - level) > band * (smooth.max() - smooth.min())
    first = int(np.flatnonzero(away).max()) + 1 if away.any() else 0
    after = curve.y[first + window - 1 :]
    if len(after) < max(2, len(curve.y) // 4):
        return Plateau(None, level, None)
    return Plateau(float(ends[first]), level, float(after.std(ddof=1)))


def reached_at(curve: Curve, threshold: float, *, rising: bool = True, window: int = 1) -> float:
    """The x at which the mean of `window` points in a row first reaches a threshold; infinite for never.

    Example:
        >>> curve = Curve("seed 0", [1, 2, 3, 4], [0, 4, 5, 9], "characters")
        >>> reached_at(curve, 4.5), reached_at(curve, 4.5, window=2), reached_at(curve, 10)
        (3.0, 3.0, inf)
    """
    ends, smooth = _full_means(curve, window)
    reached = smooth >= threshold if rising else smooth <= threshold
    return float(ends[reached.argmax()]) if reached.any() else float("inf")


def steps_to_threshold(
    curves: Sequence[Curve], threshold: float, rng: np.random.Generator, *, rising: bool = True, window: int = 1
) -> Interval:
    """Where curves first reach a threshold: IQM over seeds with its interval; infinite for never.

    Args:
        curves: one a seed, of one axis.
        threshold: in the curves' unit.
        rng: decides the resamples.
        rising: reached from below; False for a metric that is to fall.
        window: points in a row whose mean has to reach it, 1 up to the points of the shortest curve; the position is
            where the window ends.

    Returns:
        Of one seed: its position without bounds (NaN), and `about` says why.

    Raises:
        ParameterError: no curves, curves that cannot be compared, or a window longer than one of them.

    Example:
        >>> curves = [Curve(f"seed {n}", [1, 2, 3, 4], [0, n, 5, 9], "characters") for n in (2, 4, 6)]
        >>> steps_to_threshold(curves, 5, np.random.default_rng(0)).estimate  # reached at steps 3, 3 and 2
        2.6666666666666665
    """
    if not curves:
        raise ParameterError("steps_to_threshold: no curves")
    if reason := why_incomparable(*curves):
        raise ParameterError(reason)
    first = [reached_at(curve, threshold, rising=rising, window=window) for curve in curves]
    if len(first) == 1:
        return one_seed(first[0])
    # A seed that never got there is put far beyond every step: its rank counts, its distance does not.
    beyond = 1e9 * (1 + max(float(c.x[-1]) for c in curves))
    found = seed_interval(np.minimum(first, beyond), rng)
    middle, low, high = (np.inf if v > beyond / 1000 else max(0.0, v) for v in (found.estimate, found.low, found.high))
    never = int(np.isinf(first).sum())
    about = found.about + (f"; {never} of {len(first)} never reach it" if never else "")
    return dataclasses.replace(found, estimate=middle, low=low, high=high, about=about)
