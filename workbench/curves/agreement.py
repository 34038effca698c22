"""Whether measured runs agree with a documented curve: its offset and its shape, each judged by itself."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..errors import ParameterError
from .curve import Curve, stretches, why_incomparable
from .stats import noise_covariance

PARTS = 5  # a curve's shape is the means of its fifths
# They are free to vary in 4 ways a seed. Taken so, 8% of verdicts were false where seeds learn at speeds of their own,
# which moves all fifths together.
FREEDOM = 3
LEAST = 8  # documented points


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Whether measured runs agree with a documented curve.

    All numbers are in the curves' unit, NaN where there is none; a residual is measured less documented.

    Attributes:
        verdict: agrees, differs, undecided or cannot compare.
        reason: why.
        points: documented points that were compared.
        worst: largest mean residual of a fifth of the points, which the tolerance is for.
        offset: mean residual.
        offset_reach: how large the offset of another seed would be; NaN for one measured seed, which cannot tell.
        shape: largest distance of a fifth's mean residual from the offset.
        shape_reach: how large it would be for another seed; for one measured seed, how large noise within runs makes it.
    """

    verdict: str
    reason: str
    points: int = 0
    worst: float = float("nan")
    offset: float = float("nan")
    offset_reach: float = float("nan")
    shape: float = float("nan")
    shape_reach: float = float("nan")

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}"


def agreement(measured: Sequence[Curve], documented: Curve, *, tolerance: float, level: float = 0.95) -> Agreement:
    """Compare runs with one documented run: is it what another seed of theirs could be, and within the tolerance?

    Residuals (measured less documented, over the steps that a documented point is the mean of) are split into their
    mean, the offset, and what the means of their fifths show beyond it, the shape.

    - differs: offset or shape lie beyond what another seed would show, by a prediction interval over the measured
      seeds, and beyond what noise within the runs makes of them, whichever is wider. One measured seed says nothing of
      others: its offset never differs, its shape does when it exceeds the tolerance by more than noise explains.
    - agrees: neither, and no fifth's mean residual exceeds the tolerance.
    - undecided: a fifth exceeds the tolerance, but another seed of the same process could be as far.

    Where the process is the same, 1 to 4% of verdicts are "differs" for 2 to 10 seeds, with independent noise and with
    AR(0.8), and none for one seed; where seeds also learn at speeds that are 20% apart, up to 6%. `docs/error_rates.md`
    has the table, and how often a true difference is seen: with 2 or 3 seeds only a large one.

    Args:
        measured: one curve a seed.
        documented: 8 points or more; its `at` and `span` say which steps a point is the mean of.
        tolerance: largest mean residual of a fifth that agrees, in the curves' unit, above 0.
        level: share of right verdicts where the process is the same, 0..1; half of the errors go to each part.

    Raises:
        ParameterError: a tolerance that is not above 0, or no measured curve.

    Example:
        >>> rise = np.linspace(-30, -4, 10)
        >>> documented = Curve("documented", range(10), rise, "characters")
        >>> measured = [Curve("seed 0", range(10), rise + 3, "characters")]
        >>> print(agreement(measured, documented, tolerance=5))  # doctest: +NORMALIZE_WHITESPACE
        agrees: within the tolerance of 5 characters; with 1 seed an offset of 3 cannot be told from another seed, nor the
        shape; over 10 points
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
    if len(documented.x) < LEAST:
        few = f"{documented.label} has {len(documented.x)} points; {LEAST} or more are needed"
        return Agreement("cannot compare", few)
    residuals, covered = _residuals(measured, documented)
    points = residuals.shape[1]
    if covered < 0.5 or points < LEAST:
        reason = f"only {points} of {len(documented.x)} documented points are covered by every run"
        return Agreement("cannot compare", reason, points)
    found = _judge(residuals, tolerance, (1 - level) / 2, documented.unit)
    over = f"over {points} points" + ("" if covered == 1 else f", {covered:.0%} of the documented ones")
    return dataclasses.replace(found, reason=f"{found.reason}; {over}")


def _judge(residuals: np.ndarray, tolerance: float, error: float, unit: str) -> Agreement:
    """The verdict on residuals (seeds, points); `error` is the rate of false "differs" granted to offset and shape each."""
    seeds, points = residuals.shape
    parts = np.array_split(np.arange(points), PARTS)
    to_parts = np.stack([np.isin(np.arange(points), part) / len(part) for part in parts])
    offsets, fifths = residuals.mean(axis=1), residuals @ to_parts.T
    shapes = fifths - offsets[:, None]
    offset, worst, shape = float(offsets.mean()), _largest(fifths.mean(axis=0)), _largest(shapes.mean(axis=0))
    noise, freedom = noise_covariance(residuals.mean(axis=0))
    from_mean = to_parts - 1 / points
    shape_reach = _reach(np.diag(from_mean @ noise @ from_mean.T).mean(), freedom, error, PARTS)
    offset_reach = np.nan
    if seeds > 1:
        another = 1 + 1 / seeds  # variance of one more seed less the mean of these
        by_seeds = shapes.var(axis=0, ddof=1).mean() * another
        least = 1e-9 * tolerance  # runs without any noise differ by rounding
        shape_reach = max(shape_reach, _reach(by_seeds, (seeds - 1) * FREEDOM, error, PARTS), least)
        by_seeds = _reach(offsets.var(ddof=1) * another, seeds - 1, error)
        offset_reach = max(_reach(noise.mean(), freedom, error), by_seeds, least)
    found = Agreement("", "", points, worst, offset, offset_reach, shape, shape_reach)
    told = {"offset": abs(offset) > offset_reach, "shape": abs(shape) > shape_reach + (tolerance if seeds == 1 else 0)}
    verdict = "differs" if any(told.values()) else "agrees" if abs(worst) <= tolerance else "undecided"
    return dataclasses.replace(found, verdict=verdict, reason=_reason(found, told, tolerance, unit, seeds))


def _largest(values: np.ndarray) -> float:
    return float(values[np.abs(values).argmax()])


def _reach(variance: float, freedom: int, error: float, comparisons: int = 1) -> float:
    """How far from 0 a t variable of this variance lies at most, but for the error rate; Bonferroni for several."""
    from scipy import stats

    return float(np.sqrt(variance) * stats.t.isf(error / 2 / comparisons, freedom))


def _reason(found: Agreement, told: dict[str, bool], tolerance: float, unit: str, seeds: int) -> str:
    offset, another = f"an offset of {found.offset:.4g}", "another seed would lie within"
    why = [f"{offset} {unit}, {another} {found.offset_reach:.2g}"] if told["offset"] else []
    if told["shape"]:
        beyond = f"beyond the tolerance of {tolerance:g} and {found.shape_reach:.2g} of noise within runs"
        beyond = beyond if seeds == 1 else f"{another} {found.shape_reach:.2g}"
        why.append(f"the shape: a fifth lies {found.shape:.4g} {unit} off the mean residual, {beyond}")
    if why:
        return "; ".join(why)
    if abs(found.worst) > tolerance:
        exceeds = f"a fifth differs by {found.worst:.4g} {unit}, beyond the tolerance of {tolerance:g}; "
        return exceeds + ("1 seed cannot tell how far another would be" if seeds == 1 else "another seed could too")
    alone = "with 1 seed " if seeds == 1 else ""
    return (
        f"within the tolerance of {tolerance:g} {unit}; {alone}{offset} cannot be told from another seed, nor the shape"
    )


def _residuals(measured: Sequence[Curve], documented: Curve) -> tuple[np.ndarray, float]:
    """Measured less documented, (runs, points all runs cover), and the covered share of the documented points."""
    low, high = stretches(documented)
    means = []
    for curve in measured:
        # A stretch that begins at its point holds its first step, the others hold their last.
        index = np.searchsorted(high, curve.x, side="right" if documented.at == "start" else "left")
        inside = index < len(high)
        index, x, y = index[inside], curve.x[inside], curve.y[inside]
        inside = (x >= low[index]) if documented.at == "start" else (x > low[index])
        count = np.bincount(index[inside], minlength=len(high))
        total = np.bincount(index[inside], weights=y[inside], minlength=len(high))
        means.append(np.divide(total, count, out=np.full(len(high), np.nan), where=count > 0))
    found = np.stack(means)
    shared = np.isfinite(found).all(axis=0)
    return found[:, shared] - documented.y[shared], float(shared.mean())
