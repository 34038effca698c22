"""What sources state as numbers, beside the same of measured runs."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from ..runs.files import load_metrics
from ..runs.run import Run
from .baselines import Baseline
from .curve import Curve, peak, plateau, stretches
from .measured import TAIL
from .stats import one_seed, seed_interval

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
        A row a documented run, then a row a group, with text in `start` (mean of the first 3 steps), `end` (of the last
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
        values, times = _measured_figures(curves), (hours or {}).get(name, ())
        row |= {column: _over_seeds(values[column], rng) for column in values}
        row["hours"] = f"{np.mean(times):.2g}" if len(times) else ""  # how far they spread depends on what else ran
        rows.append(row | {"unit": curves[0].unit, "comparable": ""})
    return pd.DataFrame(rows, columns=["run", "kind", *_STATED, "unit", "comparable"])


def _measured_figures(curves: Sequence[Curve]) -> dict[str, list[float]]:
    """One value a seed; NaN where there is none, as where a curve does not settle."""
    found: dict[str, list[float]] = {column: [] for column in _STATED if column != "hours"}
    for c in curves:
        window = min(10, len(c.y))
        settled = plateau(c, window).start if len(c.y) >= 8 else None
        values = {"start": c.y[:3].mean(), "end": c.y[-TAIL:].mean(), "highest": c.y.max()}
        values |= {"peak at step": peak(c, window)[0], "settles at step": np.nan if settled is None else settled}
        for column, value in (values | {"steps": stretches(c)[1][-1]}).items():
            found[column].append(float(value))
    return found


def _over_seeds(values: Sequence[float], rng: np.random.Generator) -> str:
    if not values or not np.isfinite(values).all():
        return "" if not np.isfinite(values).any() else f"{np.isfinite(values).sum()} of {len(values)} seeds"
    if np.ptp(values) == 0:
        return f"{values[0]:.3g}"
    return (seed_interval(values, rng) if len(values) > 1 else one_seed(values[0])).in_brief(".3g")


def _comparable(b: Baseline, stated: dict, groups: Mapping[str, Sequence[Curve]]) -> str:
    reward, said = (b.reward["unit"], b.reward["low"], b.reward["high"]), []
    same = any((curves[0].unit, curves[0].low, curves[0].high) == reward for curves in groups.values())
    if stated["start"] or stated["end"] or stated["highest"]:
        said.append("values: with the groups of its unit" if same else "values: no, nothing was measured in their unit")
        if any("accuracy" in name for name in (*stated["start"], *stated["end"])):
            said.append("they are accuracies on held-out data, not rewards of training")
    if stated["peak at step"] or stated["settles at step"] or stated["steps"]:
        said.append("steps: by their order of magnitude, since model, batch and learning rate differ")
    if stated["hours"] or b.time:
        said.append(f"hours: no, on {b.hardware or 'hardware that is not named'}")
    return "; ".join(said)


def training_hours(run: Run) -> float:
    """Hours of training up to the last logged step; NaN where the log has no times."""
    metrics = load_metrics(run.path / "metrics.jsonl")
    return float(metrics["elapsed_s"].max()) / 3600 if "elapsed_s" in metrics else np.nan
