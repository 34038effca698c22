"""A curve with its unit and range; where curves peak and settle, and whether two of them agree."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..errors import ParameterError
from .stats import Interval, block_interval, one_seed, seed_interval

AXES = {"step": "step", "elapsed_s": "seconds of training", "prompts": "prompts"}  # in words


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

    Raises:
        ParameterError: lengths differ, there is no point, `x` does not increase, or a value lies outside the bounds.

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

    def __post_init__(self):
        x, y = np.asarray(self.x, float), np.asarray(self.y, float)
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", y)
        if self.axis not in AXES:
            wrong = f"axis={self.axis!r}: expected one of {', '.join(AXES)}"
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


def peak(curve: Curve, window: int = 10) -> tuple[float, float]:
    """Where the running mean over `window` points is highest, and its value there.

    Example:
        >>> peak(Curve("seed 0", [1, 2, 3, 4], [0, 4, 6, 2], "characters"), window=2)
        (3.0, 5.0)
    """
    smooth = running_mean(curve.y, window)
    return float(curve.x[smooth.argmax()]), float(smooth.max())


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
        window: points of the running mean.
        band: the running mean counts as settled while it stays this share of its own range from the level.

    Returns:
        `start`: first x from which the running mean stays within the band; `volatility`: standard deviation of the
        points from there on, in the curve's unit.
    """
    smooth = running_mean(curve.y, window)
    level = float(curve.y[-max(1, len(curve.y) // 4) :].mean())
    away = np.abs(smooth - level) > band * (smooth.max() - smooth.min())
    first = int(np.flatnonzero(away).max()) + 1 if away.any() else 0
    if len(curve.y) - first < max(2, len(curve.y) // 4):
        return Plateau(None, level, None)
    return Plateau(float(curve.x[first]), level, float(curve.y[first:].std(ddof=1)))


def steps_to_threshold(
    curves: Sequence[Curve], threshold: float, rng: np.random.Generator, *, rising: bool = True, window: int = 1
) -> Interval:
    """Where curves first reach a threshold: IQM over seeds with its interval; infinite for never.

    Args:
        curves: one a seed, of one axis.
        threshold: in the curves' unit.
        rng: decides the resamples.
        rising: reached from below; False for a metric that is to fall.
        window: points of the running mean that has to reach it.

    Returns:
        Of one seed: its position without bounds (NaN), and `about` says why.

    Raises:
        ParameterError: no curves, or curves that cannot be compared.

    Example:
        >>> curves = [Curve(f"seed {n}", [1, 2, 3, 4], [0, n, 5, 9], "characters") for n in (2, 4, 6)]
        >>> steps_to_threshold(curves, 5, np.random.default_rng(0)).estimate  # reached at steps 3, 3 and 2
        2.6666666666666665
    """
    if not curves:
        raise ParameterError("steps_to_threshold: no curves")
    if reason := why_incomparable(*curves):
        raise ParameterError(reason)
    first: list[float] = []
    for curve in curves:
        smooth = running_mean(curve.y, window)
        reached = smooth >= threshold if rising else smooth <= threshold
        first.append(float(curve.x[reached.argmax()]) if reached.any() else np.inf)
    if len(first) == 1:
        return one_seed(first[0])
    # A seed that never got there is put far beyond every step: its rank counts, its distance does not.
    beyond = 1e9 * (1 + max(float(c.x[-1]) for c in curves))
    found = seed_interval(np.minimum(first, beyond), rng)
    middle, low, high = (np.inf if v > beyond / 1000 else max(0.0, v) for v in (found.estimate, found.low, found.high))
    never = int(np.isinf(first).sum())
    about = found.about + (f"; {never} of {len(first)} never reach it" if never else "")
    return dataclasses.replace(found, estimate=middle, low=low, high=high, about=about)


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Whether measured runs agree with a documented curve.

    `verdict` is agrees, differs or cannot compare; `reason` says why. `mean_residual` is measured less documented over
    the `points` compared, with the bounds of its interval; `worst` is the largest residual.
    """

    verdict: str
    reason: str
    points: int = 0
    worst: float = float("nan")
    mean_residual: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}"


def agreement(
    measured: Sequence[Curve], documented: Curve, rng: np.random.Generator, *, tolerance: float, level: float = 0.95
) -> Agreement:
    """Compare runs with a documented curve by absolute tolerance and by the mean of the residuals.

    Two curves agree when no residual (mean over seeds, within each documented point's bin of steps) exceeds the
    tolerance, and their mean is compatible with zero: a one-sided drift inside the tolerance is still a difference.
    The interval of that mean is the wider of the one over seeds and the one over blocks of points, since the documented
    curve, mostly one run, scatters too. How far another documented seed would lie is unknown and not counted.

    Args:
        measured: one curve a seed.
        documented: curve of points, each the mean of its bin of steps.
        rng: decides the resamples.
        tolerance: largest residual accepted, in the curves' unit.
        level: of the mean's interval.

    Raises:
        ParameterError: a tolerance that is not above 0, or no measured curve.

    Example:
        >>> rise = np.linspace(-30, -4, 10)
        >>> documented = Curve("documented", range(10), rise, "characters")
        >>> measured = [Curve("seed 0", range(10), rise + 3, "characters")]
        >>> print(agreement(measured, documented, np.random.default_rng(0), tolerance=5))
        differs: within 5, but always above: mean residual 3 to 3, over 10 points
    """
    if not tolerance > 0:
        raise ParameterError(f"tolerance={tolerance}: expected more than 0 {documented.unit}")
    if not measured:
        raise ParameterError(f"no measured curve to compare with {documented.label}")
    for curve in (*measured, documented):
        finite = np.isfinite(curve.y)
        broken = "" if finite.all() else f"{curve.label}: not finite at {curve.axis} {curve.x[finite.argmin()]:g}"
        if reason := why_incomparable(curve, documented) or broken:
            return Agreement("cannot compare", reason)
    if len(documented.x) < 8:
        return Agreement("cannot compare", f"{documented.label} has {len(documented.x)} points; 8 or more are needed")
    residuals, covered = _residuals(measured, documented)
    points = residuals.shape[1]
    if covered < 0.5 or points < 8:
        reason = f"only {points} of {len(documented.x)} documented points are covered by every run"
        return Agreement("cannot compare", reason, points)
    mean = residuals.mean(axis=0)
    intervals = [block_interval(mean, rng, level=level)]
    if len(measured) > 1:
        intervals.append(seed_interval(residuals.mean(axis=1), rng, statistic=np.mean, level=level))
    low, high = min(float(i.low) for i in intervals), max(float(i.high) for i in intervals)
    worst, middle = float(mean[np.abs(mean).argmax()]), float(mean.mean())
    verdict, unit = "differs", documented.unit
    if abs(worst) > tolerance:
        reason = f"a residual of {worst:.4g} {unit} exceeds the tolerance {tolerance:g}"
    elif low > 0 or high < 0:
        side = "above" if low > 0 else "below"
        reason = f"within {tolerance:g}, but always {side}: mean residual {low:.4g} to {high:.4g}"
    else:
        verdict, reason = "agrees", f"within {tolerance:g} {unit}, mean residual {middle:.4g} ({low:.4g} to {high:.4g})"
    over = f"over {points} points" + ("" if covered == 1 else f", {covered:.0%} of the documented ones")
    return Agreement(verdict, f"{reason}, {over}", points, worst, middle, low, high)


def _residuals(measured: Sequence[Curve], documented: Curve) -> tuple[np.ndarray, float]:
    """Measured less documented, (runs, points all runs cover), and the covered share of the documented points."""
    import pandas as pd

    x = documented.x
    middle = (x[1:] + x[:-1]) / 2
    edges = [2 * x[0] - middle[0], *middle, 2 * x[-1] - middle[-1]]
    means = [pd.Series(c.y).groupby(pd.cut(c.x, edges), observed=False).mean() for c in measured]
    found = np.stack(means)
    shared = np.isfinite(found).all(axis=0)
    return found[:, shared] - documented.y[shared], float(shared.mean())
