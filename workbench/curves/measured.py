"""Measured curves: from the metrics of run folders, grouped into the seeds of one experiment."""

import json
import re
from collections.abc import Sequence

import numpy as np

from ..errors import ParameterError, RunError
from ..runs.files import load_metrics, read_json
from ..runs.run import Run
from .curve import Curve

_UNITS = {  # what TRL's metrics are in; a reward is in whatever its function returns
    "completions/mean_length": ("tokens", 0.0, None),
    "completions/clipped_ratio": ("share of completions", 0.0, 1.0),
    "frac_reward_zero_std": ("share of groups", 0.0, 1.0),
}


def run_curve(
    run: Run,
    metric: str = "reward",
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    axis: str = "step",
    sparse: bool = False,
) -> Curve:
    """One metric of a run's `metrics.jsonl` as a curve.

    Args:
        run: the run folder, or a training folder below one.
        metric: its name in the log.
        unit, low, high: of the metric; known for TRL's lengths and shares, needed for a reward that is to be compared.
        axis: step, elapsed_s, or prompts (optimizer steps times prompts a step, of `recipe.json`).
        sparse: leave out steps without the metric, as for evaluations; else a gap is refused.

    Raises:
        RunError: no metrics, no such metric, steps out of order, or a value that is not finite: it says where.
        ParameterError: a value outside `low` and `high`.
    """
    path = run.path / "metrics.jsonl"
    table = load_metrics(path)
    wanted = {"step", metric} | ({"elapsed_s"} if axis == "elapsed_s" else set())
    if missing := wanted - set(table):
        raise RunError(f"{path}: no {', '.join(sorted(missing))}; it has {', '.join(table) or 'no line'}")
    if sparse:
        table = table[table[metric].notna()]
    steps, values = table["step"].to_numpy(float), table[metric].to_numpy(float)
    late = np.flatnonzero(np.diff(steps) <= 0)
    if len(late):
        n = late[0]
        raise RunError(
            f"{path}: step {steps[n + 1]:g} follows step {steps[n]:g}; two logs were joined, keep one of them"
        )
    if not np.isfinite(values).all():
        n = np.isfinite(values).argmin()
        raise RunError(f"{path}: {metric} at step {steps[n]:g} is not finite; nothing can be compared with that")
    x = steps
    if axis == "elapsed_s":
        x = table["elapsed_s"].to_numpy(float)
    elif axis == "prompts":
        x = steps * _prompts_a_step(run)
    if not unit:
        unit, low, high = _UNITS.get(metric, ("as logged", low, high))
    return Curve(f"{run.notebook}, seed {_seed(run)}", x, values, unit, low, high, axis)


def _prompts_a_step(run: Run) -> float:
    recipe = read_json(run.path / "recipe.json", {})
    try:
        rows = recipe["per_device_train_batch_size"] * recipe["gradient_accumulation_steps"]
        return rows / recipe["num_generations"]
    except KeyError as error:
        raise RunError(f"{run.path}: recipe.json lacks {error}; prompts a step are unknown, use axis='step'") from None


def _seed(run: Run) -> int | None:
    return read_json(run.path / "recipe.json", run.params).get("seed")


def measured_groups(
    runs: Sequence[Run], metric: str = "reward", *, labels: Sequence[str] = (), **about
) -> tuple[dict[str, list[Curve]], list[str]]:
    """The trainings in runs that are done, as groups that differ in nothing but the seed.

    A run may hold several trainings, each in a folder with its `recipe.json`. Of one seed that was run twice only the
    later one counts: a repetition is no further sample.

    Args:
        runs: oldest first, as `list_runs` gives them.
        metric: of their logs.
        labels: one a run, where more than the recipe tells runs apart (a sweep over the reward's target); names groups.
        about: `unit`, `low`, `high`, `axis` for `run_curve`.

    Returns:
        Group name -> curves, one a seed; and a line for each training left out, with the reason.
    """
    found: dict[tuple, dict] = {}
    left_out = []
    for run, label in zip(runs, labels or [""] * len(runs), strict=True):
        if (state := run.status["state"]) != "done":
            left_out.append(f"{run.notebook}/{run.id}: {state}")
            continue
        trainings = sorted(p.parent for p in run.path.glob("**/metrics.jsonl"))
        if not trainings:
            left_out.append(f"{run.notebook}/{run.id}: no metrics; it logged no step")
        for folder in trainings:
            try:
                curve = run_curve(Run(folder), metric, **about)
            except (RunError, ParameterError) as error:
                left_out.append(str(error))
                continue
            inside = re.sub(r"\d+", "", folder.relative_to(run.path).as_posix()).strip(".-_/ ")
            recipe = {k: v for k, v in read_json(folder / "recipe.json", {}).items() if k != "seed"}
            key = (label, inside, json.dumps(recipe, sort_keys=True))
            found.setdefault(key, {})[_seed(Run(folder))] = curve
    return {_name(key, found): list(by_seed.values()) for key, by_seed in found.items()}, left_out


def _name(key: tuple, others) -> str:
    """Label, folder, model, learning rate and steps; a number where that does not tell two groups apart."""

    def short(key: tuple) -> str:
        label, inside, recipe = key[0], key[1], json.loads(key[2])
        rate = recipe.get("learning_rate")
        parts = [label, inside, recipe.get("model"), f"lr {rate:g}" if rate else ""]
        parts.append(f"{recipe['max_steps']} steps" if "max_steps" in recipe else "")
        return ", ".join(p for p in parts if p) or "run"

    alike = [k for k in others if short(k) == short(key)]
    return short(key) + (f" ({alike.index(key) + 1})" if len(alike) > 1 else "")
