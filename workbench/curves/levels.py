"""Three levels of comparison: on one axis where unit and range are the same, by shape, and by figures alone."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from ..runs.run import Run
from .agreement import Agreement, agreement
from .baselines import Baseline
from .curve import Curve, why_incomparable
from .likeness import Shaped, likeness_table, shape_table, shapes_of, training_shares
from .stated import figures_table, training_hours

NO_CURVE, OTHER_UNIT = "no numeric curve was published", "another unit, range or axis: compared by shape"


def verdict_tables(
    groups: Mapping[str, Sequence[Curve]],
    baselines: Iterable[Baseline],
    *,
    tolerance: float = 0.0,
    metric: str = "reward",
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Whether each measured group agrees with each documented run on its axis, and why the others cannot be asked.

    Args:
        groups: name -> curves, one a seed.
        baselines: documented runs.
        tolerance: of `agreement`, in the curves' unit; 0 for a tenth of the documented curve's range.
        metric: of the baselines.

    Returns:
        `measured, seeds, documented, verdict, why`, a row a pair that shares unit and range; and
        `cannot compare, measured, documented`, a row a reason with all the names it concerns.

    Raises:
        ParameterError: a tolerance below 0.
    """
    rows: list[dict] = []
    reasons: dict[str, dict[str, list[str]]] = {}  # why -> documented -> measured
    baselines = list(baselines)
    for name, curves in groups.items():
        for baseline in baselines:
            found = _verdict(curves, baseline, metric, tolerance)
            if found.verdict == "cannot compare":
                reasons.setdefault(found.reason, {}).setdefault(baseline.title, []).append(name)
            else:
                row = {"measured": name, "seeds": len(curves), "documented": baseline.title}
                rows.append(row | {"verdict": found.verdict, "why": found.reason})
    concerned = [{"cannot compare": why} | _concerned(pairs, list(groups)) for why, pairs in sorted(reasons.items())]
    verdicts = pd.DataFrame(rows, columns=["measured", "seeds", "documented", "verdict", "why"])
    return verdicts, pd.DataFrame(concerned, columns=["cannot compare", "measured", "documented"])


def _verdict(curves: Sequence[Curve], baseline: Baseline, metric: str, tolerance: float) -> Agreement:
    if metric not in baseline.curves:
        return Agreement("cannot compare", NO_CURVE)
    documented = baseline.curve(metric)
    if why_incomparable(curves[0], documented):
        return Agreement("cannot compare", OTHER_UNIT)
    return agreement(curves, documented, tolerance=tolerance or float(f"{0.1 * np.ptp(documented.y) or 1e-9:.2g}"))


def _concerned(pairs: Mapping[str, Sequence[str]], groups: Sequence[str]) -> dict[str, str]:
    """The names that a reason concerns; a documented run that shares its unit with some groups says with which."""
    measured = [name for name in groups if any(name in names for names in pairs.values())]
    titles = []
    for title, names in pairs.items():
        fitting = [name for name in measured if name not in names]
        titles.append(title + (f" (but for {', '.join(fitting)})" if fitting else ""))
    return {"measured": "all" if measured == list(groups) else "; ".join(measured), "documented": "; ".join(titles)}


@dataclasses.dataclass(frozen=True)
class Levels:
    """Measured groups beside documented runs, from the strictest comparison to the loosest.

    Attributes:
        verdicts: of pairs on one axis, see `verdict_tables`.
        shapes: see `shape_table`.
        likeness: see `likeness_table`.
        figures: see `figures_table`.
        reasons: why pairs have no verdict, each reason once, see `verdict_tables`.
        shaped: the shapes as numbers.
    """

    verdicts: pd.DataFrame
    shapes: pd.DataFrame
    likeness: pd.DataFrame
    figures: pd.DataFrame
    reasons: pd.DataFrame
    shaped: list[Shaped]


def compare_levels(
    trainings: Mapping[str, Sequence[tuple[Run, Curve]]],
    baselines: Sequence[Baseline],
    *,
    tolerance: float = 0.0,
    metric: str = "reward",
    seed: int = 0,
) -> Levels:
    """All three levels.

    Args:
        trainings: of `measured_trainings`.
        baselines: documented runs.
        tolerance: as for `verdict_tables`.
        metric: of the baselines.
        seed: of the draws.

    Raises:
        ParameterError: a tolerance below 0.
    """
    groups = {name: [curve for _, curve in members] for name, members in trainings.items()}
    shares: dict[str, dict[str, list[float]]] = {name: {} for name in trainings}
    for name, members in trainings.items():
        for run, _ in members:
            for share, value in training_shares(run).items():
                shares[name].setdefault(share, []).append(value)
    hours = {name: [training_hours(run) for run, _ in members] for name, members in trainings.items()}
    verdicts, reasons = verdict_tables(groups, baselines, tolerance=tolerance, metric=metric)
    shaped = shapes_of(groups, baselines, metric=metric, shares=shares, seed=seed)
    figures = figures_table(groups, baselines, hours=hours, seed=seed)
    return Levels(verdicts, shape_table(shaped), likeness_table(shaped, seed=seed), figures, reasons, shaped)
