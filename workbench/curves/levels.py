"""Three levels of comparison: on one axis where unit and range are the same, by shape, and by figures alone."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from ..errors import RunError
from ..runs.files import load_metrics
from ..runs.run import Run
from .agreement import Agreement, agreement
from .baselines import Baseline
from .curve import Curve, peak, plateau, stretches, why_incomparable
from .measured import TAIL, run_curve, training_of
from .shape import NUMBERS, RISE_NUMBERS, Shape, shape_of
from .stats import Interval, one_seed, seed_interval, share_at, zero_variance_share

NO_CURVE, OTHER_UNIT = "no numeric curve was published", "another unit, range or axis: compared by shape"


def verdict_tables(
    groups: Mapping[str, Sequence[Curve]], baselines: Iterable[Baseline], *, tolerance: float, metric: str = "reward"
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Whether each measured group agrees with each documented run on its axis, and why the others cannot be asked.

    Args:
        groups: name -> curves, one a seed.
        baselines: documented runs.
        tolerance: of `agreement`, in the curves' unit.
        metric: of the baselines.

    Returns:
        `measured, seeds, documented, verdict, why`, a row a pair that shares unit and range; and
        `cannot compare, measured, documented`, a row a reason with all the names it concerns.

    Raises:
        ParameterError: a tolerance that is not above 0.
    """
    rows: list[dict] = []
    reasons: dict[str, dict[str, list[str]]] = {}  # why -> documented -> measured
    for baseline in baselines:
        for name, curves in groups.items():
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
    if why_incomparable(curves[0], baseline.curve(metric)):
        return Agreement("cannot compare", OTHER_UNIT)
    return agreement(curves, baseline.curve(metric), tolerance=tolerance)


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
    shaped: list["Shaped"]


def compare_levels(
    trainings: Mapping[str, Sequence[tuple[Run, Curve]]],
    baselines: Sequence[Baseline],
    *,
    tolerance: float,
    metric: str = "reward",
    seed: int = 0,
) -> Levels:
    """All three levels.

    Args:
        trainings: of `measured_trainings`.
        baselines: documented runs.
        tolerance: largest difference that still agrees, in the curves' unit.
        metric: of the baselines.
        seed: of the draws.

    Raises:
        ParameterError: a tolerance that is not above 0.
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


def training_hours(run: Run) -> float:
    """Hours of training up to the last logged step; NaN where the log has no times."""
    metrics = load_metrics(run.path / "metrics.jsonl")
    return float(metrics["elapsed_s"].max()) / 3600 if "elapsed_s" in metrics else np.nan


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
        return _with_bounds(number, ".2f")
    return "no rise" if name in RISE_NUMBERS and not shape.rises else "unknown"


def _with_bounds(number: Interval, digits: str) -> str:
    bounds = f" ({number.low:{digits}} to {number.high:{digits}})" if np.isfinite(number.low) else ""
    return f"{number.estimate:{digits}}{bounds}"


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
    """Over the numbers that both have; shapes of equally many points.

    Example:
        >>> def shape(half):
        ...     return Shape("yes", 50, 1, {"half reached": Interval(half, half - 0.03, half + 0.04, 0.95, 1, "t", "")})
        >>> distance(shape(0.1), shape(0.3))
        Distance(value=4.04, number='half reached', why='half reached 0.10 and 0.30')
    """
    found = {}
    for name, one in first.numbers.items():
        other = second.numbers[name]
        widths = float(np.hypot(one.high - one.low, other.high - other.low)) / 2
        apart = abs(one.estimate - other.estimate) / max(widths, 1e-9)
        if np.isfinite(apart):
            found[name] = apart
    if not found:
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


_STATED = {  # column -> figures of baselines that are its documented counterpart
    "start": ("before_sft", "base_accuracy", "eval_accuracy_base"),
    "end": ("after_rl", "ppo_accuracy", "grpo_lora_accuracy", "final_accuracy", "eval_accuracy_step_100"),
    "highest": ("highest_reward",),
    "peak at step": ("peak_step",),
    "settles at step": ("steps_to_converge",),
    "steps": ("rl_steps",),
    "hours": ("hours",),
}


def figures_table(
    groups: Mapping[str, Sequence[Curve]],
    baselines: Iterable[Baseline],
    *,
    hours: Mapping[str, Sequence[float]] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """What sources state as numbers beside the same of the measured groups, and what makes them comparable or not.

    Args:
        groups: name -> curves, one a seed.
        baselines: those with a published figure that has a measured counterpart become a row.
        hours: of training, group name -> one a seed.
        seed: of the resamples.

    Returns:
        A row a documented run, then a row a group, with text in `start` (mean of the first 20 steps), `end` (of the last
        20), `highest` (single step), `peak at step` (`curve.peak`), `settles at step` (`curve.plateau`), `steps`,
        `hours`, `unit` and `comparable`.
    """
    rng, rows = np.random.default_rng(seed), []
    for b in baselines:
        stated = {column: [f for f in names if f in b.figures] for column, names in _STATED.items()}
        if any(stated.values()):
            cells = {column: "; ".join(f"{b.figure(f):g}" for f in names) for column, names in stated.items()}
            cells["hours"] = cells["hours"] or b.time or ""
            row = {"run": b.title, "kind": "documented"} | cells
            rows.append(row | {"unit": b.reward["unit"], "comparable": _comparable(b, stated, groups)})
    for name, curves in groups.items():
        row = {"run": name, "kind": f"measured, {len(curves)} seed{'s' * (len(curves) > 1)}"}
        values = _measured_figures(curves) | {"hours": list((hours or {}).get(name, ()))}
        row |= {column: _over_seeds(values[column], rng) for column in _STATED}
        rows.append(row | {"unit": curves[0].unit, "comparable": ""})
    return pd.DataFrame(rows, columns=["run", "kind", *_STATED, "unit", "comparable"])


def _measured_figures(curves: Sequence[Curve]) -> dict[str, list[float]]:
    """One value a seed; NaN where there is none, as where a curve does not settle."""
    found: dict[str, list[float]] = {column: [] for column in _STATED}
    for c in curves:
        window = min(10, len(c.y))
        settled = plateau(c, window).start if len(c.y) >= 8 else None
        values = {"start": c.y[:TAIL].mean(), "end": c.y[-TAIL:].mean(), "highest": c.y.max()}
        values |= {"peak at step": peak(c, window)[0], "settles at step": np.nan if settled is None else settled}
        for column, value in (values | {"steps": stretches(c)[1][-1]}).items():
            found[column].append(float(value))
    return found


def _over_seeds(values: Sequence[float], rng: np.random.Generator) -> str:
    if not values or not np.isfinite(values).all():
        return "" if not np.isfinite(values).any() else f"{np.isfinite(values).sum()} of {len(values)} seeds"
    if np.ptp(values) == 0:
        return f"{values[0]:.3g}"
    return _with_bounds(seed_interval(values, rng) if len(values) > 1 else one_seed(values[0]), ".3g")


def _comparable(b: Baseline, stated: dict, groups: Mapping[str, Sequence[Curve]]) -> str:
    unit, said = b.reward["unit"], []
    same = [name for name, curves in groups.items() if curves[0].unit == unit]
    if stated["start"] or stated["end"] or stated["highest"]:
        said.append(f"values with {', '.join(same)}" if same else "values: no, nothing was measured in their unit")
        if any("accuracy" in name for name in (*stated["start"], *stated["end"])):
            said.append("they are accuracies on held-out data, not rewards of training")
    if stated["peak at step"] or stated["settles at step"] or stated["steps"]:
        said.append("steps: by their order of magnitude, since model, batch and learning rate differ")
    if stated["hours"] or b.time:
        said.append(f"hours: no, on {b.hardware or 'hardware that is not named'}")
    return "; ".join(said)
