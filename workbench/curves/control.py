"""The positive control: whether a training is what the recorded seeds of its own recipe are.

A control is a baseline that holds a curve of each of its seeds, recorded here by `python -m workbench.studies.control`.
Another seed is one more of the same process, and so is another machine, whose rounding makes another starter; a damaged
trainer is not.
`benchmarks/control.py` measures how often this judgement is wrong; `docs/error_rates.md` has the figures.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..errors import ParameterError, RunError
from ..runs.files import files_named
from ..runs.run import Run
from .baselines import Baseline, list_baselines, load_baseline
from .curve import Curve, why_incomparable
from .measured import run_curve, training_of

PARTS = 5  # a curve is judged by the means of its fifths
LEVEL = 0.99  # of one judgement: a report makes about ten, and a false alarm costs an afternoon
LEAST = 3  # recorded seeds
# Rounding errors differ by factors between processors, so these are judged by their order of magnitude.
IN_DECADES = ("padding/max_difference", "padding/mean_difference")
NO_ERROR = 1e-9  # what stands for a difference of 0, in nats: below the rounding of fp32


@dataclasses.dataclass(frozen=True)
class Judged:
    """Whether a curve is another seed of a recorded process.

    Attributes:
        verdict: agrees, differs, undecided or cannot compare.
        reason: why, with the numbers.
        worst: mean of a fifth less that of the recorded seeds, of the fifth nearest to its tolerance or furthest beyond.
        reach: how far the same fifth of another seed would lie at most, by a prediction interval over the recorded seeds.
        tolerance: how far it may lie on another machine.
        unit: of the three numbers above.
    """

    verdict: str
    reason: str
    worst: float = float("nan")
    reach: float = float("nan")
    tolerance: float = float("nan")
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}"


def judge(curve: Curve, recorded: Sequence[Curve], *, tolerance: ArrayLike, level: float = LEVEL) -> Judged:
    """Is this curve what another seed of the recorded ones could be? Judged by the means of its fifths.

    - differs: a fifth lies beyond what another seed would show, and beyond its tolerance.
    - agrees: no fifth lies beyond its tolerance.
    - undecided: a fifth lies beyond its tolerance, but another seed could.

    Args:
        curve: of one run.
        recorded: of the same unit and the same x, one a seed, 3 or more.
        tolerance: how far the fifths may lie from the recorded seeds' mean though nothing is wrong, as on another machine;
            above 0, one number or (5,), in the curve's unit.
        level: share of seeds of the same process that are not said to differ, 0..1.

    Raises:
        ParameterError: fewer than 3 recorded seeds, or a tolerance that is not above 0.

    Example:
        >>> rise, unit = np.linspace(-30, -4, 10), "characters"
        >>> recorded = [Curve(f"seed {n}", range(10), rise + n / 10, unit) for n in range(5)]
        >>> print(judge(Curve("mine", range(10), 1.01 * rise, unit), recorded, tolerance=1))  # doctest: +NORMALIZE_WHITESPACE
        agrees: no fifth lies beyond its tolerance; the nearest to it, fifth 1 of 5 is 0.486 below the mean of 5 seeds; the
        tolerance is 1 (characters)
        >>> judge(Curve("mine", range(10), -rise, unit), recorded, tolerance=1).verdict
        'differs'
    """
    limit = np.broadcast_to(np.asarray(tolerance, float), PARTS)
    if len(recorded) < LEAST:
        raise ParameterError(f"{len(recorded)} recorded seeds: expected {LEAST} or more")
    if not (limit > 0).all():
        raise ParameterError(f"tolerance={limit.min():g}: expected more than 0 {curve.unit}")
    if reason := _why_not(curve, recorded):
        return Judged("cannot compare", reason)
    seeds = np.stack([fifths(one) for one in recorded])
    away, reach = fifths(curve) - seeds.mean(axis=0), another_seed(seeds, level)
    share = np.abs(away) / limit
    told = share * (np.abs(away) > reach)
    n = int(told.argmax() if told.max() > 1 else share.argmax())
    side = "above" if away[n] > 0 else "below"
    where = f"fifth {n + 1} of {PARTS} is {abs(away[n]):.3g} {side} the mean of {len(seeds)} seeds"
    seed, limits = f"another seed would lie within {reach[n]:.2g}", f"the tolerance is {limit[n]:.2g} ({curve.unit})"
    verdict = "differs" if told[n] > 1 else "undecided" if share[n] > 1 else "agrees"
    reason = {
        "differs": f"{where}; {seed}, {limits}",
        "undecided": f"{where}; {limits}, but {seed}",
        "agrees": f"no fifth lies beyond its tolerance; the nearest to it, {where}; {limits}",
    }[verdict]
    return Judged(verdict, reason, float(away[n]), float(reach[n]), float(limit[n]), curve.unit)


def _why_not(curve: Curve, recorded: Sequence[Curve]) -> str:
    if reason := why_incomparable(curve, *recorded):
        return reason
    for one in (curve, *recorded):
        if not np.isfinite(one.y).all():
            return f"{one.label}: not finite at {one.axis} {one.x[np.isfinite(one.y).argmin()]:g}"
        if not np.array_equal(one.x, recorded[0].x):
            logged, wanted = (f"{len(c.x)} points up to {c.axis} {c.x[-1]:g}" for c in (one, recorded[0]))
            return f"{one.label} has {logged}, the control {wanted}; only a whole run of its recipe can be judged"
    return "" if len(curve.x) >= PARTS else f"{curve.label} has {len(curve.x)} points; {PARTS} or more are needed"


def fifths(curve: Curve) -> np.ndarray:
    """Means of a curve's fifths, (5,), in its unit.

    Example:
        >>> fifths(Curve("seed 0", range(10), range(10), "tokens"))
        array([0.5, 2.5, 4.5, 6.5, 8.5])
    """
    return np.array([part.mean() for part in np.array_split(curve.y, PARTS)])


def another_seed(seeds: np.ndarray, level: float = LEVEL) -> np.ndarray:
    """How far each fifth of one more seed would lie from the mean of these, by a t prediction interval; (5,).

    The level is of all fifths together (Bonferroni).

    Args:
        seeds: means of fifths, (seeds, 5).
        level: 0..1.

    Example:
        >>> another_seed(np.array([[0.0, 10], [1, 10], [2, 13]]), level=0.95).round(1)
        array([ 7.2, 12.4])
    """
    from scipy import stats

    n, parts = seeds.shape
    return seeds.std(axis=0, ddof=1) * np.sqrt(1 + 1 / n) * stats.t.isf((1 - level) / 2 / parts, n - 1)


def as_judged(curve: Curve, metric: str) -> Curve:
    """The curve on the scale on which its metric is judged: rounding errors by their logarithm, others as they are.

    Example:
        >>> as_judged(Curve("seed 0", [1, 2], [1e-6, 1e-3], "nats", low=0), "padding/max_difference").y
        array([-6., -3.])
    """
    if metric not in IN_DECADES:
        return curve
    y = np.log10(np.maximum(curve.y, NO_ERROR))
    return dataclasses.replace(curve, y=y, unit=f"decades of {curve.unit}", low=None, high=None)


def judge_metric(curve: Curve, control: Baseline, metric: str = "reward") -> Judged:
    """`judge` against one metric of a control, with the tolerance that stands in the control's file.

    Raises:
        ParameterError: the control does not judge this metric.
    """
    if metric not in control_metrics(control):
        judged = ", ".join(control_metrics(control)) or "nothing"
        raise ParameterError(f"metric={metric!r}: {control.name} judges {judged}")
    recorded = [as_judged(one, metric) for one in control.curves_by_seed(metric)]
    return judge(as_judged(curve, metric), recorded, tolerance=control.recorded["tolerance"][metric])


def list_controls() -> list[Baseline]:
    """All controls: baselines recorded here whose runs others are judged by, those with a tolerance."""
    return [one for one in map(load_baseline, list_baselines()) if control_metrics(one)]


def control_metrics(control: Baseline) -> list[str]:
    """The metrics that a control judges, those with a tolerance."""
    return list(control.recorded.get("tolerance", {}))


def why_not_control(training: dict, control: Baseline) -> str:
    """Why a training is not the control's own recipe: what differs, seeds aside; empty where nothing does.

    Args:
        training: what `recipe.json` says.
        control: recorded here.
    """
    mine, own = _flat(training), _flat(control.recorded["training"])
    for part in (mine, own):
        for free in ("recipe.seed", "recipe.save_steps"):  # neither is part of the process
            part.pop(free, None)
    odd = [name for name in {**own, **mine} if mine.get(name) != own.get(name)]
    return "; ".join(f"{name} is {mine.get(name)!r}, of the control {own.get(name)!r}" for name in odd[:3])


def _flat(value, name: str = "") -> dict:
    """Nested dictionaries and lists as one dictionary, `recipe.model` -> value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if pairs is None:
        return {name: value}
    parts = [_flat(part, f"{name}.{key}" if name else str(key)) for key, part in pairs]
    return {key: part for one in parts for key, part in one.items()}


def control_verdicts(runs: Sequence[Run], controls: Sequence[Baseline] | None = None):
    """Every training in these runs that is a control's own recipe, judged by each metric of the control.

    Args:
        runs: run folders, which may hold several trainings.
        controls: default all.

    Returns:
        A DataFrame, a row a training and metric: `run`, `training` (the folder inside the run, empty for the run's own),
        `seed`, `control`, `metric`, `verdict` (agrees, differs, undecided, cannot compare), `reason`. No row for a
        training with another recipe, so that it may be empty.
    """
    import pandas as pd

    columns = ["run", "training", "seed", "control", "metric", "verdict", "reason"]
    rows = []
    controls = list_controls() if controls is None else controls
    for run in runs:
        for folder in sorted(path.parent for path in files_named(run.path, "recipe.json")):
            training = training_of(folder)
            inside = folder.relative_to(run.path).as_posix().strip(".")
            for control in controls:
                if not why_not_control(training, control):
                    about = [f"{run.notebook}/{run.id}", inside, training["recipe"].get("seed"), control.name]
                    rows += [
                        [*about, metric, *_judged(Run(folder), control, metric)] for metric in control_metrics(control)
                    ]
    return pd.DataFrame(rows, columns=columns)


def _judged(run: Run, control: Baseline, metric: str) -> tuple[str, str]:
    try:
        found = judge_metric(run_curve(run, metric, sparse=True), control, metric)
    except (RunError, ParameterError) as error:
        return "cannot compare", str(error)
    return found.verdict, found.reason


def control_check(verdicts, otherwise: str = "no training here has a control's own recipe") -> bool | str:
    """Of a table of `control_verdicts`, what a notebook's check says: True, False, or `not run: <reason>`.

    Args:
        verdicts: with `verdict` and `reason`.
        otherwise: why there is no row.

    Example:
        >>> import pandas as pd
        >>> control_check(pd.DataFrame({"verdict": ["agrees", "agrees"], "reason": ["", ""]}))
        True
        >>> control_check(pd.DataFrame({"verdict": ["agrees", "differs"], "reason": ["", "..."]}))
        False
        >>> control_check(pd.DataFrame({"verdict": [], "reason": []}))
        "not run: no training here has a control's own recipe"
    """
    if not len(verdicts):
        return f"not run: {otherwise}"
    if (verdicts["verdict"] == "differs").any():
        return False
    unclear = verdicts[verdicts["verdict"] != "agrees"]
    return f"not run: {unclear['verdict'].iloc[0]}: {unclear['reason'].iloc[0]}" if len(unclear) else True
