"""Which documented run a measured group is most like, by the shapes of their curves."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from ..errors import RunError
from ..runs.run import Run
from .baselines import Baseline
from .curve import Curve
from .measured import run_curve, training_of
from .shape import NUMBERS, RISE_NUMBERS, Shape, shape_of
from .stats import share_at, zero_variance_share


@dataclasses.dataclass(frozen=True)
class Shaped:
    """A measured group or a documented run with its shape, and what the shape was taken of."""

    name: str
    documented: bool
    curves: Sequence[Curve]
    shares: Mapping[str, Sequence[float]]
    shape: Shape

    def at(self, points: int, seed: int) -> Shape:
        """Its shape at fewer points."""
        if points >= self.shape.points:
            return self.shape
        return shape_of(self.curves, np.random.default_rng(seed), points=points, shares=self.shares)


def shapes_of(
    groups: Mapping[str, Sequence[Curve]],
    baselines: Iterable[Baseline],
    *,
    metric: str = "reward",
    shares: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
    seed: int = 0,
) -> list[Shaped]:
    """The shape of every measured group, and of every documented curve of the metric.

    Args:
        groups: name -> curves, one a seed.
        baselines: documented runs.
        metric: of the baselines.
        shares: group name -> what `training_shares` finds, a value a seed; unknown where they are not given.
        seed: of the draws.
    """
    found = [(name, False, curves, (shares or {}).get(name, {})) for name, curves in groups.items()]
    for b in baselines:
        if metric in b.curves:
            found.append((b.title, True, documented_curves(b, metric), documented_shares(b)))
    return [Shaped(*one, shape_of(one[2], np.random.default_rng(seed), shares=one[3])) for one in found]


def documented_curves(baseline: Baseline, metric: str = "reward") -> list[Curve]:
    """The curve of each seed where the file holds them, else the one curve."""
    return baseline.curves_by_seed(metric) or [baseline.curve(metric)]


def documented_shares(baseline: Baseline) -> dict[str, list[float]]:
    """Shares of steps at the length cap and without gradient that a documented run states or that its steps show.

    Example:
        >>> from .baselines import load_baseline
        >>> documented_shares(load_baseline("unsloth-qwen2.5-3b-gsm8k-grpo"))
        {'at the cap': [0.372], 'no gradient': [0.312]}
    """
    figures, curves, found = baseline.figures, baseline.curves, {}
    if "share_at_cap" in figures:
        found["at the cap"] = [baseline.figure("share_at_cap")]
    elif "max_completion_length" in figures and curves.get("completion_length", {}).get("steps_per_point") == 1:
        cap = baseline.figure("max_completion_length")
        found["at the cap"] = [share_at(baseline.curve("completion_length").y, cap)]
    if "share_zero_reward_std" in figures:
        found["no gradient"] = [baseline.figure("share_zero_reward_std")]
    elif "frac_reward_zero_std" in curves:
        found["no gradient"] = [zero_variance_share(c.y) for c in documented_curves(baseline, "frac_reward_zero_std")]
    return found


def training_shares(run: Run) -> dict[str, float]:
    """The same shares of a training that was measured; NaN where its log or its recipe does not tell.

    Args:
        run: the run folder, or a training folder below one.
    """
    found = {"at the cap": np.nan, "no gradient": np.nan}
    cap = training_of(run.path)["recipe"].get("max_completion_length")
    try:
        if cap:
            found["at the cap"] = share_at(run_curve(run, "completions/mean_length").y, cap)
        found["no gradient"] = zero_variance_share(run_curve(run, "frac_reward_zero_std").y)
    except RunError:  # not every trainer logs both
        pass
    return found


def shape_table(shaped: Sequence[Shaped]) -> pd.DataFrame:
    """A row a shape, the numbers with their error bars as text; `Shaped.shape.numbers` has them as numbers.

    Returns:
        `curve, kind, seeds, points, learns`, and a column for each of `shape.NUMBERS`.
    """
    rows = []
    for one in shaped:
        kind = "documented" if one.documented else "measured"
        row = {"curve": one.name, "kind": kind, "seeds": one.shape.seeds, "points": one.shape.points}
        row["learns"] = one.shape.learns
        rows.append(row | {name: _cell(one.shape, name) for name in NUMBERS})
    return pd.DataFrame(rows, columns=["curve", "kind", "seeds", "points", "learns", *NUMBERS])


def _cell(shape: Shape, name: str) -> str:
    number = shape.numbers[name]
    if np.isfinite(number.estimate):
        return number.in_brief("z.2f")  # z: no minus before 0.00
    return "no rise" if name in RISE_NUMBERS and shape.learns in ("no, falls", "not shown") else "unknown"


@dataclasses.dataclass(frozen=True)
class Distance:
    """How far two shapes are apart: root mean square of their numbers' differences, in widths of their error bars.

    A difference counts in units of both half widths together, so that below about 1 the two cannot be told apart. What
    has wide error bars is near to everything.

    Attributes:
        value: NaN where they have no number in common.
        number: the one that adds most.
        why: its two values, in words.
    """

    value: float
    number: str = ""
    why: str = ""


def distance(first: Shape, second: Shape) -> Distance:
    """Over the numbers that both have, the change among them; shapes of equally many points.

    Example:
        >>> from workbench.curves.stats import Interval
        >>> def shape(half):
        ...     numbers = {"change": (8, 7, 9), "half reached": (half, half - 0.03, half + 0.04)}
        ...     return Shape("yes", 50, 1, {name: Interval(*n, 0.95, 1, "t", "") for name, n in numbers.items()})
        >>> distance(shape(0.1), shape(0.3))
        Distance(value=2.86, number='half reached', why='half reached 0.10 and 0.30')
    """
    found = {}
    for name, one in first.numbers.items():
        other = second.numbers[name]
        widths = float(np.hypot(one.high - one.low, other.high - other.low)) / 2
        apart = abs(one.estimate - other.estimate) / max(widths, 1e-9)
        if np.isfinite(apart):
            found[name] = apart
    if "change" not in found:  # of a constant, or of too few points
        return Distance(np.nan)
    most = max(found, key=found.__getitem__)
    why = f"{most} {first.numbers[most].estimate:.2f} and {second.numbers[most].estimate:.2f}"
    return Distance(round(float(np.sqrt(np.mean(np.square(list(found.values()))))), 2), most, why)


def likeness_table(shaped: Sequence[Shaped], *, seed: int = 0) -> pd.DataFrame:
    """For each measured group the documented run whose shape is nearest, and the one whose shape is furthest.

    Each pair is compared at the points of the coarser of the two, since fewer points look smoother.

    Args:
        shaped: of `shapes_of`.
        seed: of the draws.

    Returns:
        `measured, most like, distance, differs most in, least like, its distance, because of`; see `Distance`.
    """
    columns = ["measured", "most like", "distance", "differs most in", "least like", "its distance", "because of"]
    documented, rows = [one for one in shaped if one.documented], []
    for one in [one for one in shaped if not one.documented]:
        pairs = [(_apart(one, other, seed), other.name) for other in documented]
        pairs = sorted([pair for pair in pairs if np.isfinite(pair[0].value)], key=lambda pair: pair[0].value)
        if pairs:
            (near, nearest), (far, furthest) = pairs[0], pairs[-1]
            rows.append([one.name, nearest, near.value, near.why, furthest, far.value, far.why])
    return pd.DataFrame(rows, columns=columns)


def _apart(one: Shaped, other: Shaped, seed: int) -> Distance:
    points = min(one.shape.points, other.shape.points)
    return distance(one.at(points, seed), other.at(points, seed))
