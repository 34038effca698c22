"""The shape of a curve without its unit, the same for measured and documented curves.

Both axes are normalised: on y, 0 is the mean of the first steps and 1 the best running mean; x is the share of the steps.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import ParameterError
from .curve import Curve, stretches
from .stats import UNKNOWN_BETWEEN_RUNS, Interval, noise_covariance, one_seed, seed_interval, weighted_interval

POINTS = 50  # a shape is taken of as many points: documented curves have 50 to 60, and a finer curve would look rougher
LEAST = 8  # points
FIRST = 0.04  # of the points, whose mean is 0 of the normalised y
WINDOW = 0.1  # of the points, which a running mean is taken over; 3 points or more
PARTS = 5  # a change is the mean of a fifth of the points less that of the first fifth
DRAWS = 300  # of the bootstrap

NUMBERS = {  # with what they are; those of RISE_NUMBERS are defined for a curve that rises
    "change": "mean of the last fifth less that of the first, in standard deviations of the noise of a point",
    "at half time": "share of the rise at half of the steps",
    "half reached": "share of the steps at which half of the rise is reached",
    "roughness": "deviation of the points around their running mean, as a share of the rise",
    "late drift": "what the last third of the steps adds, as a share of the rise; below 0: it loses that much",
    "at the cap": "share of steps whose mean completion length is the length cap",
    "no gradient": "share of prompt groups, or of steps of one group, whose completions all got one reward",
}
RISE_NUMBERS = ("at half time", "half reached", "roughness", "late drift")
SHARES = ("at the cap", "no gradient")
_RANGES = {"half reached": (0, 1), "roughness": (0, np.inf)} | dict.fromkeys(SHARES, (0, 1))


@dataclasses.dataclass(frozen=True)
class Shape:
    """The shape of a group of seeds, or of one curve.

    Attributes:
        learns: "yes"; "yes, then loses it": a fifth in the middle lies above the first, the last does not; "no, falls";
            "not shown": the interval of the change holds 0; "too short": fewer than 8 points.
        points: that it was taken of. Shapes of fewer points look smoother: compare shapes of equally many.
        seeds: number of curves.
        numbers: name -> estimate with its 95% interval, see `NUMBERS`; NaN where it is unknown or there is no rise.
    """

    learns: str
    points: int
    seeds: int
    numbers: dict[str, Interval]

    @property
    def rises(self) -> bool:
        return self.learns.startswith("yes")


def shape_of(
    curves: Sequence[Curve],
    rng: np.random.Generator,
    *,
    points: int = POINTS,
    rising: bool = True,
    shares: Mapping[str, Sequence[float]] | None = None,
) -> Shape:
    """The shape of one curve, or of a group of seeds; it stays the same in other units and at other numbers of steps.

    Error bars are 95% intervals. Those of a group are between its seeds (`seed_interval`). Those of one curve are within
    this run: the curve is taken as a trend (a local line) and noise that neighbouring steps share (`noise_covariance`),
    and made again `DRAWS` times. They do not say how far another seed would be. The best running mean of noise is too
    high, which the same draws tell, and each number is corrected for it. `docs/shapes.md` has the measured rates: where a
    rise is nearly always seen these intervals hold the truth in 89 to 100% of cases; in louder runs in fewer, above all
    that of the roughness.

    A curve is shown to rise or fall by its last fifth less its first, as in `change_interval` but with a trend that
    bends more, since a curve that rises at once and then stays would count as noise. A group rises where the interval
    between its seeds says so, or where each of its seeds rises by itself: with 2 or 3 seeds that start apart the first
    is too wide to tell. A rise that is lost again is looked for in the fifths between, at a third of the error rate each.

    Args:
        curves: one a seed, of one metric; finite.
        rng: decides the draws and resamples.
        points: the curve's points are averaged to as many, where it has more.
        rising: False for a metric that is to fall.
        shares: "at the cap" and "no gradient" where they are known, each one value a seed, 0..1.

    Raises:
        ParameterError: no curve, or a value that is not finite.

    Example:
        >>> steps = np.arange(1, 101)
        >>> noise = np.random.default_rng(0).normal(0, 0.5, 100)
        >>> curve = Curve("seed 0", steps, 21 * (1 - np.exp(-steps / 30)) - 25 + noise, "characters")
        >>> found = shape_of([curve], np.random.default_rng(0))
        >>> found.learns, found.points, round(found.numbers["half reached"].estimate, 1)
        ('yes', 50, 0.2)
    """
    if not curves:
        raise ParameterError("shape_of: no curve")
    for curve in curves:
        if not (finite := np.isfinite(curve.y)).all():
            raise ParameterError(f"{curve.label}: not finite at {curve.axis} {curve.x[finite.argmin()]:g}")
    share, y = outlines(curves, points)
    y = y if rising else -y
    seeds, n = y.shape
    numbers = dict.fromkeys(NUMBERS, one_seed(np.nan))
    for name, values in (shares or {}).items():
        numbers[name] = _share_interval(np.asarray(values, float), [stretches(c)[1][-1] for c in curves], rng)
    if n < LEAST:
        return Shape("too short", n, seeds, numbers)
    numbers["change"], learns = _changes(y, rng)
    if learns.startswith("yes"):
        numbers |= _over_seeds([_within(share, one, rng) for one in y], rng)
    return Shape(learns, n, seeds, numbers)


def outlines(curves: Sequence[Curve], points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Curves as means over neighbouring points, equally many of each: share of the steps (points,), and y (seeds, points).

    Example:
        >>> outlines([Curve("seed 0", range(1, 5), [1, 3, 5, 9], "characters")], points=2)
        (array([0.25, 0.75]), array([[2., 7.]]))
    """
    points = min(points, *(len(c.x) for c in curves))
    low, high = stretches(curves[0])
    share = ((low + high) / 2 - low[0]) / (high[-1] - low[0])
    return _rebinned(share, points), np.stack([_rebinned(c.y, points) for c in curves])


def _rebinned(values: np.ndarray, points: int) -> np.ndarray:
    """Means of neighbours, (N,) -> (points,). Each value counts in one alone: shared ones would make them smoother."""
    ends = np.linspace(0, len(values), points + 1).round().astype(int)[1:-1]
    return np.array([part.mean() for part in np.split(values, ends)])


def window_of(points: int) -> int:
    """Points in the running mean of a curve of so many."""
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


def rise_numbers(share: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """The numbers of `RISE_NUMBERS` as they are, uncorrected, and the rise in the curve's unit; NaN where nothing rises.

    Args:
        share: of the steps, (N,).
        y: (..., N).

    Returns:
        Name -> (...).

    Example:
        >>> found = rise_numbers(np.linspace(0.05, 0.95, 10), np.linspace(0, 9, 10))
        >>> {name: round(float(value), 2) for name, value in found.items()}
        {'at half time': 0.56, 'half reached': 0.45, 'roughness': 0.0, 'late drift': 0.23, 'rise': 8.0}
    """
    window = window_of(len(share))
    start, rise = start_and_rise(y)
    rise = np.where(rise > 0, rise, np.nan)
    smooth, at = running_means(y, window), running_means(share, window)
    level = (smooth - start[..., None]) / rise[..., None]
    around = y[..., (window - 1) // 2 :][..., : len(at)] - smooth
    deviation = np.sqrt((around**2).mean(axis=-1) / (1 - 1 / window))  # a point is a part of its own running mean
    return {
        "at half time": _interpolated(at, level, 0.5),
        "half reached": _first_reached(at, level),
        "roughness": deviation / rise,
        "late drift": level[..., -1] - _interpolated(at, level, 2 / 3),
        "rise": rise,
    }


def _interpolated(at: np.ndarray, level: np.ndarray, share: float) -> np.ndarray:
    n = int(np.clip(np.searchsorted(at, share), 1, len(at) - 1))
    after = (share - at[n - 1]) / (at[n] - at[n - 1])
    return level[..., n - 1] * (1 - after) + level[..., n] * after


def _first_reached(at: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Where the level first reaches one half, between two points by a straight line."""
    first = np.maximum((level >= 0.5).argmax(axis=-1), 1)
    before, after = (np.take_along_axis(level, (first - n)[..., None], -1)[..., 0] for n in (1, 0))
    part = np.divide(0.5 - before, after - before, out=np.zeros_like(after), where=after != before)
    return at[first - 1] + np.clip(part, 0, 1) * (at[first] - at[first - 1]) + 0 * after  # NaN stays


def _degree(n: int) -> int:
    """Of the polynomial that noise is told from: a rise in the first tenth of 50 points needs 6."""
    return int(np.clip(n // 8, 3, 6))


def _changes(y: np.ndarray, rng: np.random.Generator) -> tuple[Interval, str]:
    """Change from the first fifth to the last, in deviations of the noise, and whether the curves learn."""
    seeds, n = y.shape
    parts = np.array_split(np.arange(n), PARTS)
    to_parts = np.stack([np.isin(np.arange(n), part) / len(part) for part in parts])
    noise = np.sqrt(np.mean([noise_covariance(one, _degree(n))[0][0, 0] for one in y]))
    if not np.ptp(y):
        return one_seed(np.nan), "not shown"  # a constant
    noise = max(noise, 1e-9 * np.ptp(y))  # runs without any noise

    def change(part: int, level: float) -> Interval:
        weights = (to_parts[part] - to_parts[0]) / noise
        if seeds == 1:
            return weighted_interval(y[0], weights, level=level, degree=_degree(n))
        return seed_interval(y @ weights, rng, level=level)

    last = change(PARTS - 1, 0.95)
    if last.low > 0 or (seeds > 1 and all(_changes(one[None], rng)[1] == "yes" for one in y)):
        return last, "yes"
    between = [change(part, 1 - 0.05 / (PARTS - 2)) for part in range(1, PARTS - 1)]
    if any(one.low > 0 for one in between):
        return last, "yes, then loses it"
    return last, "no, falls" if last.high < 0 else "not shown"


def _within(share: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> dict[str, tuple[float, float]]:
    """Of one curve: each number, corrected for what noise adds to it, and half the width of its interval."""
    n = len(y)
    covariance, _ = noise_covariance(y, _degree(n))
    ridge = max(1e-12 * covariance[0, 0], np.finfo(float).tiny)
    trend = _smoother(n) @ y
    noise = rng.normal(size=(DRAWS, n)) @ np.linalg.cholesky(covariance + ridge * np.eye(n)).T
    found, drawn, truth = (rise_numbers(share, values) for values in (y, trend + noise, trend))
    truth["roughness"] = np.sqrt(np.nanmean((drawn["roughness"] * drawn["rise"]) ** 2)) / truth["rise"]
    result = {}
    for name in RISE_NUMBERS:
        low, middle, high = np.nanquantile(drawn[name] - truth[name], [0.025, 0.5, 0.975])
        result[name] = float(found[name] - middle), float(high - low) / 2
    return result


@functools.cache
def _smoother(n: int) -> np.ndarray:
    """Matrix (N, N) that draws a straight line through the neighbours of each point, near ones with more weight."""
    rows = []
    for point in range(n):
        away = (np.arange(n) - point) / window_of(n)
        weights = np.clip(1 - np.abs(away) ** 3, 0, None) ** 3
        line = np.column_stack([np.ones(n), away])
        rows.append(np.linalg.solve(line.T * weights @ line, line.T * weights)[0])
    return np.stack(rows)


def _over_seeds(found: Sequence[dict], rng: np.random.Generator) -> dict[str, Interval]:
    """An interval for each number: between seeds, of one curve within the run."""
    intervals = {}
    for name in RISE_NUMBERS:
        values = [one[name] for one in found if np.isfinite(one[name][0])]
        if len(values) > 1:
            one = seed_interval([middle for middle, _ in values], rng)
        elif len(found) == 1 and values:
            middle, half = values[0]
            one = Interval(middle, middle - half, middle + half, 0.95, 1, "bootstrap", UNKNOWN_BETWEEN_RUNS)
        else:
            one = one_seed(np.nan)
        intervals[name] = _clipped(one, name)
    return intervals


def _clipped(one: Interval, name: str) -> Interval:
    low, high = _RANGES.get(name, (-np.inf, np.inf))
    middle, bottom, top = (float(np.clip(value, low, high)) for value in (one.estimate, one.low, one.high))
    return dataclasses.replace(one, estimate=middle, low=bottom, high=top)


def _share_interval(values: np.ndarray, steps: Sequence[float], rng: np.random.Generator) -> Interval:
    """A share of steps over seeds, and at least as wide as a share of so many independent steps is (Wilson)."""
    values = values[np.isfinite(values)]
    if not len(values):
        return one_seed(np.nan)
    middle, n, z = float(values.mean()), float(np.sum(steps)), 1.96
    centre = (middle + z**2 / 2 / n) / (1 + z**2 / n)
    half = z * np.sqrt(middle * (1 - middle) / n + z**2 / 4 / n**2) / (1 + z**2 / n)
    one = Interval(middle, centre - half, centre + half, 0.95, len(values), "Wilson", UNKNOWN_BETWEEN_RUNS)
    if len(values) > 1:
        between = seed_interval(values, rng)
        one = dataclasses.replace(between, low=min(one.low, between.low), high=max(one.high, between.high))
    return _clipped(one, "no gradient")
