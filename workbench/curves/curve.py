"""A curve with its unit and range, and what one asks of curves: where they peak and settle, whether two of them agree."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..errors import ParameterError
from .stats import Interval, block_interval, seed_interval

AXES = ("step", "elapsed_s", "prompts")


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
            raise ParameterError(f"{self.label}: axis={self.axis!r}: expected one of {', '.join(AXES)}")
        if x.shape != y.shape or x.ndim != 1 or not len(x):
            raise ParameterError(
                f"{self.label}: expected equally many x and y, at least 1; got {x.shape} and {y.shape}"
            )
        if not (np.diff(x) > 0).all():
            n = int(np.argmin(np.diff(x) > 0))
            raise ParameterError(
                f"{self.label}: {self.axis} {x[n + 1]:g} follows {x[n]:g}; expected increasing {self.axis}"
            )
        if (self.low is not None and (y < self.low).any()) or (self.high is not None and (y > self.high).any()):
            raise ParameterError(
                f"{self.label}: values from {np.nanmin(y):.4g} to {np.nanmax(y):.4g} lie outside {self.range}; "
                "mend low and high"
            )

    @property
    def range(self) -> str:
        """The bounds in words, `(-inf, 0]`."""
        low = "(-inf" if self.low is None else f"[{self.low:g}"
        return f"{low}, " + ("inf)" if self.high is None else f"{self.high:g}]")


def why_incomparable(one: Curve, other: Curve) -> str:
    """Why two curves do not belong on one axis: unit, range or x-axis; empty when they do."""
    if one.unit != other.unit:
        return f"{one.label} is in {one.unit}, {other.label} in {other.unit}"
    if (one.low, one.high) != (other.low, other.high):
        return f"{one.label} ranges over {one.range}, {other.label} over {other.range}"
    if one.axis != other.axis:
        return f"{one.label} is over {one.axis}, {other.label} over {other.axis}"
    return ""


def running_mean(values: Sequence[float], window: int) -> np.ndarray:
    """Mean of each value and the `window - 1` before it, of fewer at the start."""
    total = np.cumsum(np.concatenate([[0.0], np.asarray(values, float)]))
    ends = np.arange(1, len(total))
    starts = np.maximum(ends - window, 0)
    return (total[ends] - total[starts]) / (ends - starts)


def on_common_x(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """The positions that all curves have, and the values there, (curves, positions).

    Seconds never coincide; they are read off between the steps of each curve, over the span that all cover.

    Raises:
        ParameterError: curves that do not belong on one axis, or share no position.
    """
    for other in curves[1:]:
        if reason := why_incomparable(curves[0], other):
            raise ParameterError(reason)
    if curves[0].axis == "elapsed_s":
        start, end = max(c.x[0] for c in curves), min(c.x[-1] for c in curves)
        x = curves[0].x[(curves[0].x >= start) & (curves[0].x <= end)]
        values = np.stack([np.interp(x, c.x, c.y) for c in curves])
    else:
        x = curves[0].x
        for curve in curves[1:]:
            x = np.intersect1d(x, curve.x)
        values = np.stack([c.y[np.isin(c.x, x)] for c in curves])
    if not len(x):
        raise ParameterError(f"{', '.join(c.label for c in curves)}: no {curves[0].axis} in common")
    return x, values


# --- one curve, or the seeds of one ----------------------------------------------------------------------------------


def peak(curve: Curve, window: int = 10) -> tuple[float, float]:
    """Where the running mean over `window` points is highest, and its value there."""
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
    """Where curves first reach a threshold: IQM over seeds with a bootstrap interval; infinite for never.

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
    """
    if not curves:
        raise ParameterError("steps_to_threshold: no curves")
    for other in curves[1:]:
        if reason := why_incomparable(curves[0], other):
            raise ParameterError(reason)
    first = []
    for curve in curves:
        smooth = running_mean(curve.y, window)
        reached = smooth >= threshold if rising else smooth <= threshold
        first.append(float(curve.x[reached.argmax()]) if reached.any() else np.inf)
    if len(first) == 1:
        about = "1 seed: no interval; how far another seed would be from it is unknown"
        return Interval(first[0], np.nan, np.nan, 0.95, 1, about)
    # A seed that never got there is put far beyond every step: its rank counts, its distance does not.
    beyond = 1e9 * (1 + max(float(c.x[-1]) for c in curves))
    found = seed_interval(np.minimum(first, beyond), rng)
    ends = [np.inf if v > beyond / 1000 else max(0.0, float(v)) for v in (found.estimate, found.low, found.high)]
    never = int(np.isinf(first).sum())
    about = found.about + (f"; {never} of {len(first)} never reach it" if never else "")
    return Interval(*ends, found.level, len(first), about)


# --- two curves ------------------------------------------------------------------------------------------------------


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
    """
    if not tolerance > 0:
        raise ParameterError(f"tolerance={tolerance}: expected more than 0 {documented.unit}")
    if not measured:
        raise ParameterError(f"no measured curve to compare with {documented.label}")
    for curve in (*measured, documented):
        if reason := _refusal(curve, documented):
            return Agreement("cannot compare", reason)
    residuals, covered = _residuals(measured, documented)
    if covered < 0.5 or residuals.shape[1] < 8:
        reason = f"only {residuals.shape[1]} of {len(documented.x)} documented points are covered by every run"
        return Agreement("cannot compare", reason, residuals.shape[1])
    mean = residuals.mean(axis=0)
    inner = block_interval(mean, rng, level=level)
    low, high = float(inner.low), float(inner.high)
    if len(measured) > 1:
        outer = seed_interval(residuals.mean(axis=1), rng, statistic=np.mean, level=level)
        low, high = min(low, float(outer.low)), max(high, float(outer.high))
    worst = float(mean[np.abs(mean).argmax()])
    numbers = (residuals.shape[1], worst, float(mean.mean()), low, high)
    return Agreement(*_verdict(documented, numbers, tolerance, covered), *numbers)


def _refusal(curve: Curve, documented: Curve) -> str:
    if reason := why_incomparable(curve, documented):
        return reason
    finite = np.isfinite(curve.y)
    return "" if finite.all() else f"{curve.label}: not finite at {curve.axis} {curve.x[finite.argmin()]:g}"


def _residuals(measured: Sequence[Curve], documented: Curve) -> tuple[np.ndarray, float]:
    """Measured less documented, (runs, points all runs cover), and the covered share of the documented points."""
    x = documented.x
    middle = (x[1:] + x[:-1]) / 2
    edges = np.concatenate([[-np.inf], middle, [x[-1] + (x[-1] - middle[-1] if len(middle) else 0.5)]])
    if len(middle):
        edges[0] = x[0] - (middle[0] - x[0])
    rows = []
    for curve in measured:
        bins = np.searchsorted(edges, curve.x, side="left") - 1
        rows.append([curve.y[bins == n].mean() if (bins == n).any() else np.nan for n in range(len(x))])
    rows = np.asarray(rows)
    shared = np.isfinite(rows).all(axis=0)
    return rows[:, shared] - documented.y[shared], float(shared.mean())


def _verdict(documented: Curve, numbers: tuple, tolerance: float, covered: float) -> tuple[str, str]:
    points, worst, mean, low, high = numbers
    over = f"over {points} points" + ("" if covered == 1 else f", {covered:.0%} of the documented ones")
    drift = low > 0 or high < 0
    if abs(worst) > tolerance:
        return "differs", f"a residual of {worst:.4g} {documented.unit} exceeds the tolerance {tolerance:g}, {over}"
    if drift:
        side = "above" if low > 0 else "below"
        return "differs", f"within {tolerance:g}, but always {side}: mean residual {low:.4g} to {high:.4g}, {over}"
    return (
        "agrees",
        f"within {tolerance:g} {documented.unit}, mean residual {mean:.4g} ({low:.4g} to {high:.4g}), {over}",
    )
