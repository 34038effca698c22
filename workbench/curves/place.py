"""What a documented run shows, and where one's own log stands among them.

Each gives a `Verdict`: a word, why, and the numbers behind it. How often each is wrong:
docs/evidence/documented_verdicts.md.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ..errors import ParameterError, WorkbenchError
from ..logs.log import Log
from ..logs.read import read_logs
from ..runs.files import training_folders
from ..runs.run import Run
from .curve import FIFTHS, Curve, at_bounds, mean_between, on_common_stretches, why_incomparable
from .documented import Baseline, Beginning
from .measured import run_curve
from .stats import POWER, SHORT, change_interval, ends

RISES, FLAT, FALLS = "rises", "flat", "falls"
COPY, OTHER = "same table", "another table"
INSIDE, ABOVE, BELOW = "inside the spread", "above", "below"
UNCLEAR = "inconclusive"
TOO_FEW = "too few points"
NOT_COMPARABLE = "not comparable"

LEAST = SHORT  # points, for a trend: `change_interval` is wrong too often on fewer
ALIKE = 10  # points that two tables share, to be one
DISTINCT = 5  # values among them: a reward that is stuck is alike in every run
WINDOW = 20  # steps at the end whose mean is a run's result
PEOPLE = 3  # runs, for a spread
# Points from which on, and the share of runs without a trend whose slow noise looks like one: the worst of eight kinds of
# noise, of which the smoothest is a mean over ten steps (data/measured/documented_verdicts.json).
WRONG = ((200, 0.09), (100, 0.14), (LEAST, 0.22))
FAR = 1e-2  # as a share of the scatter: with one point that differs by more, two tables are different
DECIMALS = 6  # from so many on a number is not rounded
COUNTS = (0, -1, 1)  # steps between two ways to count the steps of one run


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A word of those above, why, and the numbers: an estimate with its bounds where there are some, else NaN."""

    word: str
    why: str
    value: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")

    def __str__(self) -> str:
        return f"{self.word}: {self.why}"


def trend(curve: Curve) -> Verdict:
    """Does one run rise, fall or stay level? Its last fifth less its first, with noise that neighbouring steps share.

    - rises, falls: the interval of the change leaves 0 out. The reason says how often slow noise alone looks so.
    - flat: it holds 0 and lies within a tenth of the reward's range, as do the fifths in between: a reward that was learned
      and lost again is not flat. Said only where the range has both ends.
    - inconclusive: neither.
    - too few points: fewer than 25, whatever they do; the change is given, and no test of it.

    How far the noise of neighbouring steps is alike is judged from the curve (`noise_covariance`), not given.

    Example:
        >>> rising = Curve("a", range(1, 41), [n / 40 + 0.1 * (-1) ** n for n in range(40)], "points", low=-1, high=2)
        >>> trend(rising).word, trend(Curve("b", range(1, 41), [0.5, 0.55] * 20, "points", low=0, high=1)).word
        ('rises', 'flat')
    """
    y = curve.y[np.isfinite(curve.y)]
    if len(y) < LEAST:
        first, last = ends(y) if len(y) else (np.nan, np.nan)
        why = f"{len(y)} points, from {first:.3g} to {last:.3g}; {LEAST} or more are needed to test that"
        return Verdict(TOO_FEW, why, last - first)
    # A reward that is learned in the first steps and then stays would look like noise around a cubic.
    change = change_interval(y, degree=int(np.clip(len(y) // 8, 3, 6)), mixed=True)
    low, high, middle = float(change.low), float(change.high), float(change.estimate)
    numbers = f"{middle:+.3g} ({low:+.3g} to {high:+.3g}) from its first fifth to its last"
    near = (curve.high - curve.low) / 10 if curve.low is not None and curve.high is not None else None
    if low > 0 or high < 0:
        word = RISES if low > 0 else FALLS
        rate = next(share for least, share in WRONG if len(y) >= least)
        numbers += f"; up to {rate:.0%} of runs so long without a trend look like it, where their noise is slow"
        numbers += " (more where each point is a mean over more than ten)"
    elif near is not None and max(-low, high) <= near:
        word, numbers = FLAT, f"{numbers}, within a tenth of the range ({near:.3g})"
        between = np.array([part.mean() for part in np.array_split(y, len(FIFTHS))])
        away = np.abs(between - between[[0, -1]].mean())
        if away.max() > near:
            word = UNCLEAR
            numbers += f", but its {FIFTHS[away.argmax()]} fifth is at {between[away.argmax()]:.3g}"
    elif not np.ptp(y):
        word, numbers = UNCLEAR, f"all of its {len(y)} points are {y[0]:.3g}, so how far it scatters is unknown"
    else:
        shows = f"a change of {change.detectable:.2g} would show in {POWER:.0%} of such runs"
        word, numbers = UNCLEAR, f"{numbers}, which holds 0; {shows}"
    return Verdict(word, numbers, middle, low, high)


def same_table(one: Curve, other: Curve) -> Verdict:
    """Are these the numbers of one run? Two trainings never agree digit for digit, even with one seed on two machines.

    - same table: at 10 points or more, 5 values among them, none differs in its first three digits, or by a thousandth of
      how far the values scatter, and none by a hundredth of that. Where one of the tables has rounded numbers, their rounding
      is allowed too, up to a tenth of the scatter. One may count its steps from 0 and the other from 1.
    - another table: one differs by more.
    - inconclusive: fewer points in common, or fewer values: a reward that is stuck is alike in every run; or coarser rounding.

    The finer curve is averaged over the stretches of the coarser one first.

    Example:
        >>> y = np.random.default_rng(0).normal(size=60)
        >>> fine = Curve("a log", range(1, 61), y, "points")
        >>> coarse = Curve("of two steps", range(2, 61, 2), y.reshape(-1, 2).mean(axis=1), "points")
        >>> same_table(fine, coarse).word, same_table(fine, Curve("b", range(1, 61), -y, "points")).word
        ('same table', 'another table')
    """
    as_counted, *moved = (_same_numbers(one, other, by) for by in COUNTS)
    return next((found for found in (as_counted, *moved) if found.word == COPY), as_counted)


def _same_numbers(one: Curve, other: Curve, by: int) -> Verdict:
    mine, theirs = common_points(one, _counted_from(other, by))
    distinct = len(np.unique(np.round(mine, 6)))
    if len(mine) < ALIKE or distinct < DISTINCT:
        need = f"{ALIKE} points with {DISTINCT} values are needed"
        return Verdict(UNCLEAR, f"{len(mine)} points in common with {distinct} values; {need}")
    away, scatter = np.abs(mine - theirs), mine.std()
    near = np.clip(1e-3 * np.abs(mine), 1e-3 * scatter, FAR * scatter)
    rounding = rounding_of(one.y) + rounding_of(other.y)
    word = COPY if (away <= near + min(rounding, scatter / 10)).all() else OTHER
    if word == OTHER and (away <= near + rounding).all():
        return Verdict(
            UNCLEAR, f"{len(mine)} points differ by no more than rounding to {rounding:.2g}", float(away.max())
        )
    counted = ", where one of them counts its steps from 0" if by else ""
    return Verdict(word, f"{len(mine)} points differ by at most {away.max():.2g}{counted}", float(away.max()))


def _counted_from(curve: Curve, by: int) -> Curve:
    return dataclasses.replace(curve, x=curve.x + by) if by else curve


def rounding_of(values: np.ndarray) -> float:
    """By how much rounding may have changed values that are all rounded to some decimals; 0 for 6 decimals or more.

    Example:
        >>> rounding_of(np.array([0.25, 0.5, 1.0])), rounding_of(np.array([0.1234567]))
        (0.005, 0.0)
    """
    known = values[np.isfinite(values)]
    digits = (n for n in range(DECIMALS) if np.allclose(known, np.round(known, n), rtol=0, atol=1e-9))
    return next((0.5 * 10.0**-n for n in digits), 0.0)


def common_points(one: Curve, other: Curve) -> tuple[np.ndarray, np.ndarray]:
    """The points that two curves share, (N,) each: those of the coarser one, and the means of the finer one over them."""
    end = min(one.stretches[1][-1], other.stretches[1][-1])
    coarse, fine = sorted((one, other), key=lambda curve: (curve.stretches[1] <= end).sum())
    low, high = coarse.stretches
    start, width, (_, values) = on_common_stretches([coarse, fine])
    point = np.searchsorted(high, start + width / 2)
    covered, total = (np.bincount(point, parts, minlength=len(low)) for parts in (width, width * values))
    whole = (covered > 0.99 * (high - low)) & np.isfinite(coarse.y) & np.isfinite(total)
    mine, theirs = coarse.y[whole], total[whole] / covered[whole]
    return mine, theirs


def may_be_same(one: Curve, beginning: Beginning) -> bool:
    """False where the first points of a documented curve show that `one` is another table."""
    finite = one.y[np.isfinite(one.y)]
    scatter = max(float(np.ptp(finite)) if len(finite) else 0.0, beginning.spread)
    near = FAR * scatter + min(rounding_of(finite), scatter / 10)  # the scatter of means is at most the spread
    points = (common_points(one, _counted_from(beginning.first, by)) for by in COUNTS)
    return any(bool((np.abs(mine - theirs) <= near).all()) for mine, theirs in points)


def result_at(curve: Curve, end: float) -> float:
    """The mean of the 20 steps up to `end`, or to where the curve ends; NaN for one that ends before nine tenths of it.

    Example:
        >>> result_at(Curve("a", range(1, 101), range(100), "points"), 100)
        89.5
    """
    last = min(end, float(curve.x[-1]))
    return mean_between(curve, last - WINDOW, last) if last >= 0.9 * end else float("nan")


def place(one: Curve, others: Sequence[Curve]) -> Verdict:
    """Return where a run stands among others of the same recipe: means of the last 20 steps that it and 3 others or more have.

    - inside the spread: within the t prediction interval over the others, which holds one more run of 95%.
    - above, below: outside.
    - inconclusive: fewer than 3 others, or fewer than 3 points.
    - not comparable: another unit or range; nothing is said of it then.

    The verdict's `value` is the run's result, `low` and `high` the interval.

    Example:
        >>> flat = lambda label, level: Curve(label, range(1, 101), np.full(100, level), "points")
        >>> others = [flat(f"person {n}", n) for n in (1.0, 1.2, 1.4, 1.1)]
        >>> [place(flat("mine", level), others).word for level in (1.3, 9)], place(flat("mine", 1), others[:2]).word
        (['inside the spread', 'above'], 'inconclusive')
    """
    from scipy import stats

    if not others:
        return Verdict(NOT_COMPARABLE, f"no documented run has its unit ({one.unit}), task and range")
    for other in others:
        if reason := why_incomparable(one, other):
            return Verdict(NOT_COMPARABLE, reason)
    if len(one.x) < 3:
        return Verdict(UNCLEAR, f"{one.label} has {len(one.x)} points; 3 or more are needed")
    if len(others) < PEOPLE:
        return Verdict(UNCLEAR, f"{len(others)} others; {PEOPLE} or more are needed")
    end = float(min(one.x[-1], sorted(other.x[-1] for other in others)[-PEOPLE]))
    result = result_at(one, end)
    theirs = np.array([result_at(other, end) for other in others])
    reached = theirs[np.isfinite(theirs)]
    if not np.isfinite(result):
        return Verdict(UNCLEAR, f"{one.label} has no finite reward in all of the {WINDOW} steps up to {end:g}")
    if (n := len(reached)) < PEOPLE:
        return Verdict(UNCLEAR, f"{n} others have a reward up to step {end:g}; {PEOPLE} or more are needed", result)
    half = float(stats.t.ppf(0.975, n - 1) * reached.std(ddof=1) * np.sqrt(1 + 1 / n))
    low, high = float(reached.mean()) - half, float(reached.mean()) + half
    # Logs have means in float32: where all others are equal, less than its rounding is no difference.
    rounding = 1e-7 * max(abs(result), float(np.abs(reached).max()))
    word = ABOVE if result > high + rounding else BELOW if result < low - rounding else INSIDE
    spread = f"{n} others at step {end:g}: {reached.min():.3g} to {reached.max():.3g}"
    why = f"{result:.3g}; {spread}; one more is expected within {low:.3g} to {high:.3g}"
    return Verdict(word, why, result, low, high)


def peers(like: Baseline, runs: Iterable[Baseline]) -> list[Baseline]:
    """The documented runs that one of the recipe of `like` stands among: of its recipe, or else of its task, in its unit.

    `like` is one of them. A run under whose table several models stand is not separated from the others here.
    """
    same = [run for run in runs if "reward" in run.curves and run.reward["unit"] == like.reward["unit"]]
    same = [run for run in same if run.task == like.task]
    return [run for run in same if run.recipe == like.recipe] if like.recipe else same


def curves_of(paths: Sequence[str | Path], like: Baseline | None = None) -> tuple[list[Curve], list[str]]:
    """The reward curves of anybody's logs that `workbench audit` reads, and a line for each that could not be used.

    Logs that do not say their unit are of the reward function of `like`, a documented run; without it of "as logged".

    Example:
        >>> curves_of(["no/such/log.jsonl"])
        ([], ['no/such/log.jsonl: no such file or folder'])
    """
    curves, left_out = [], []
    for path in map(Path, paths):
        try:
            trainings = training_folders(path) if path.is_dir() else []
            found: list[Run] | list[Log] = [*map(Run, trainings)] or read_logs(path)
        except WorkbenchError as error:
            left_out.append(str(error))
            continue
        for one in found:
            try:
                curve = run_curve(one, sparse=True) if isinstance(one, Run) else _logged(one)
                curves.append(_in_unit_of(like, curve))
            except WorkbenchError as error:
                left_out.append(str(error))
    return curves, left_out


def _in_unit_of(like: Baseline | None, one: Curve) -> Curve:
    if like is None or one.unit != "as logged":
        return one
    unit, low, high = (like.reward[part] for part in ("unit", "low", "high"))
    try:
        return dataclasses.replace(one, y=at_bounds(one.y, low, high), unit=unit, low=low, high=high)
    except ParameterError as error:
        outside = str(error).partition(";")[0]
        raise ParameterError(f"{outside} of {like.title} ({unit}): another reward, or per cent and shares") from None


def _logged(log: Log) -> Curve:
    y = log.logged("reward")
    if y is None:
        raise ParameterError(f"{log.name}: no reward in it; it has {', '.join(log.steps)}")
    known = np.isfinite(y)
    return Curve(log.name, log.steps["step"].to_numpy(float)[known], y[known], "as logged")
