"""One question about curves: is this one more seed of those?"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..errors import ParameterError
from .curve import FIFTHS, WHOLE, Curve, on_common_stretches, whole_seeds, why_incomparable
from .documented import Baseline
from .stats import check_level, noise_covariance

SAME, DIFFERENT, INCONCLUSIVE, NOT_COMPARABLE = "same process", "different", "inconclusive", "not comparable"
PARTS = len(FIFTHS)  # a curve is judged by its means over fifths of the steps
LEAST = 3  # seeds, for "different": two say too little of a third
# Where an outcome of a seed is a matter of luck, n seeds that share it and one that does not are seen in up to
# n**n / (n + 1)**(n + 1) of cases: 10% for 3 seeds, 4% for 8, which leaves 1% for all else.
MANY = 8


@dataclasses.dataclass(frozen=True)
class SeedVerdict:
    """Whether a curve is one more seed of others.

    Attributes:
        verdict: same process, different, inconclusive or not comparable.
        reason: why, with the numbers.
        difference: the curve's mean over a fifth of the steps less that of the seeds, of the fifth that decides, in the
            curves' unit; NaN where nothing was compared.
        reach: how far the same fifth of one more seed would lie at most; infinite for one seed.
        tolerance: of that fifth, as given.
        seeds: that were compared with.
    """

    verdict: str
    reason: str
    difference: float = float("nan")
    reach: float = float("nan")
    tolerance: float = float("nan")
    seeds: int = 0

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}"


def another_seed(one: Curve, seeds: Sequence[Curve], *, tolerance: ArrayLike, level: float = 0.95) -> SeedVerdict:
    """Is this curve one more seed of those? Judged by its means over fifths of the steps that all curves cover.

    - same process: no fifth is further from the seeds' mean than the tolerance.
    - different: a fifth is further away than the tolerance and than one more seed would be (a t prediction interval over the
      seeds, of the fifth in which they scatter most, and at least as wide as the noise within this curve). Below 8 seeds
      the curve also has to differ from a seed that learns sooner, later, never or not for good: no sign of another process.
      This verdict needs 3 seeds or more.
    - inconclusive: further than the tolerance, but not different.
    - not comparable: another unit or range, a value that is not finite, too few points of a curve or too few steps in common.

    Curves are compared over the same steps, however often each was logged. Seeds that ended before most others are left out,
    and the reason says so. `docs/evidence/error_rates.md` has the measured rates of wrong verdicts, for sparse rewards and
    for seeds that never learn or collapse too.

    Args:
        one: a curve, measured or documented.
        seeds: curves of one process, one a seed.
        tolerance: largest difference that is none, in the curves' unit, above 0: one number, or one for each fifth, (5,).
        level: share of seeds of the same process that are not said to be different, 0..1.

    Raises:
        ParameterError: a tolerance that is not above 0, no seed, or a level that is not between 0 and 1.

    Example:
        >>> rise = np.linspace(-30, -4, 10)
        >>> seeds = [Curve(f"seed {n}", range(10), rise + n / 10, "characters") for n in range(5)]
        >>> print(another_seed(Curve("mine", range(10), 1.01 * rise, "characters"), seeds, tolerance=1))
        same process: its first fifth is 0.486 below the mean of 5 seeds, the tolerance is 1 (characters); over 10 steps
        >>> another_seed(Curve("mine", range(10), -rise, "characters"), seeds, tolerance=1).verdict
        'different'
    """
    check_level(level)
    limit = np.asarray(tolerance, float)
    if limit.shape not in ((), (PARTS,)):
        raise ParameterError(f"tolerance of shape {limit.shape}: expected one number, or {PARTS}, one for each fifth")
    limit = np.broadcast_to(limit, PARTS)
    if not (limit > 0).all():
        raise ParameterError(f"tolerance={limit.min():g}: expected more than 0 {one.unit}")
    if not seeds:
        raise ParameterError(f"no seed to compare with {one.label}")
    for curve in (one, *seeds):
        finite = np.isfinite(curve.y)
        broken = "" if finite.all() else f"{curve.label}: not finite at step {curve.x[finite.argmin()]:g}"
        if reason := why_incomparable(curve, one) or broken:
            return SeedVerdict(NOT_COMPARABLE, reason)
    kept, left_out = whole_seeds(seeds)
    start, width, values = on_common_stretches([one, *kept])
    if reason := _too_little([one, *kept], start, width):
        return SeedVerdict(NOT_COMPARABLE, "; ".join([reason, *left_out]), seeds=len(kept))
    means = _fifths(start, width, values)
    starts = values[1:, start - start[0] < width.sum() / 40].mean(axis=1)
    found = _judge(one, means[0], means[1:], starts, limit, level)
    end = min(curve.x[-1] for curve in kept)
    if one.x[-1] < WHOLE * end:
        left_out = [f"{one.label} ended at step {one.x[-1]:g} of {end:g}", *left_out]
    reason = "; ".join([found.reason, f"over {width.sum():g} steps", *left_out])
    return dataclasses.replace(found, reason=reason)


def _too_little(curves: Sequence[Curve], start: np.ndarray, width: np.ndarray) -> str:
    one, fewest = curves[0], min(curves, key=lambda curve: len(curve.x))
    low, high = one.stretches
    whole, shared = (high - low).sum(), width.sum()
    if len(fewest.x) < PARTS:  # a point that is the mean of two fifths is neither's
        return f"{fewest.label} has {len(fewest.x)} points; {PARTS} or more are needed"
    if shared < 0.5 * whole or len(np.unique(_part_of(start, width))) < PARTS:
        return f"only {shared:g} of the {whole:g} steps of {one.label} are covered by every run"
    return ""


def _part_of(start: np.ndarray, width: np.ndarray) -> np.ndarray:
    """The fifth, 0..4, that each common stretch lies in."""
    middle, end = start + width / 2, start[-1] + width[-1]
    return (PARTS * (middle - start[0]) / (end - start[0])).astype(int)


def _fifths(start: np.ndarray, width: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Means of curves over the fifths, (curves, T) -> (curves, 5)."""
    weights = width * (_part_of(start, width) == np.arange(PARTS)[:, None])
    return values @ (weights / weights.sum(axis=1, keepdims=True)).T


def _noise_reach(one: Curve, error: float) -> np.ndarray:
    """Return how far noise around its own trend moves a curve's mean over each fifth at most, (5,)."""
    from scipy.special import stdtrit

    noise, freedom = noise_covariance(one.y, degree=int(np.clip(len(one.y) // 8, 2, 6)))
    parts = np.array_split(np.arange(len(one.y)), PARTS)
    return -stdtrit(freedom, error) * np.sqrt([noise[np.ix_(part, part)].mean() for part in parts])


def _judge(curve: Curve, one, seeds, starts, limit, level: float) -> SeedVerdict:
    """The verdict on means over fifths, of one curve (5,) and of the seeds (seeds, 5), and where these start, (seeds,)."""
    from scipy.special import stdtrit

    n, away = len(seeds), one - seeds.mean(axis=0)
    error, between = (1 - level) / 2 / PARTS, np.inf  # of all fifths together (Bonferroni)
    if n > 1:
        between = -stdtrit(n - 1, error) * seeds.std(axis=0, ddof=1).max() * np.sqrt(1 + 1 / n)
    reach, beyond = np.full(PARTS, between), np.abs(away) / limit
    if n >= LEAST and ((beyond > 1) & (np.abs(away) > between)).any():
        reach = np.maximum(between, _noise_reach(curve, error))
    told = np.where(np.abs(away) > reach, beyond, 0)
    part = int((told if told.max() > 1 else beyond).argmax())
    count, side = f"{n} seed{'s' * (n > 1)}", "above" if away[part] > 0 else "below"
    where = f"its {FIFTHS[part]} fifth is {abs(away[part]):.3g} {side} the mean of {count}"
    reason = f"{where}, the tolerance is {limit[part]:.2g} ({curve.unit})"
    if beyond.max() <= 1:
        verdict = SAME
    elif n < LEAST:
        verdict, reason = INCONCLUSIVE, f"{reason}; {count} cannot tell how far another would be"
    elif told.max() <= 1:
        verdict, reason = INCONCLUSIVE, f"{reason}, but one more seed would lie within {reach[part]:.2g}"
    elif n < MANY and any(_is_other_speed(one, path, np.maximum(between, limit)) for path in np.c_[starts, seeds]):
        why = f"{count} cannot tell that from one that learns sooner, later, never or not for good"
        verdict, reason = INCONCLUSIVE, f"{reason}; {why}"
    else:
        verdict, reason = DIFFERENT, f"{reason}; one more seed would lie within {reach[part]:.2g}"
    return SeedVerdict(verdict, reason, float(away[part]), float(reach[part]), float(limit[part]), n)


def _is_other_speed(one: np.ndarray, path: np.ndarray, near: np.ndarray) -> bool:
    """Say whether a curve's fifths, (5,), pass the levels of a seed's path in its order: sooner, later or not to the end.

    From anywhere on the path it may also go back: a seed that loses what it learned.
    """
    there, at = np.interp(np.arange(0, len(path) - 0.99, 0.01), np.arange(len(path)), path), 0
    levels = np.concatenate([there, there[::-1]])
    for value, reach in zip(one, near, strict=True):
        fits = np.abs(levels[at:] - value) <= reach
        if not fits.any():
            return False
        at += int(fits.argmax())
    return True


def documented_verdicts(
    groups: Mapping[str, Sequence[Curve]],
    baselines: Iterable[Baseline],
    *,
    tolerance: float = 0.0,
    metric: str = "reward",
):
    """Of each documented run whether it is one more seed of each measured group, where they share unit and range.

    Args:
        groups: name -> curves, one a seed.
        baselines: documented runs; those without a curve of the metric have no row.
        tolerance: of `another_seed`, in the curves' unit; 0 for a tenth of the documented curve's range.
        metric: of the baselines.

    Returns:
        A DataFrame, a row a pair: `measured, seeds, documented, verdict, why`.
    """
    import pandas as pd

    rows, baselines = [], list(baselines)
    for name, curves in groups.items():
        for baseline in (one for one in baselines if metric in one.curves):
            documented = baseline.curve(metric)
            if why_incomparable(curves[0], documented):
                continue
            known = documented.y[np.isfinite(documented.y)]
            spread = np.ptp(known) if len(known) else 0.0
            near = tolerance or float(f"{0.1 * spread or 1e-9:.2g}")
            found = another_seed(documented, curves, tolerance=near)
            rows.append([name, len(curves), baseline.title, found.verdict, found.reason])
    return pd.DataFrame(rows, columns=["measured", "seeds", "documented", "verdict", "why"])
