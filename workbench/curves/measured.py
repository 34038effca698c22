"""Measured curves: from the metrics of run folders, grouped into the seeds of one experiment."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import ParameterError, RunError
from ..runs.files import load_metrics, read_json, training_folders
from ..runs.parameters import SET_BY_RUNNER
from ..runs.run import Run
from .curve import Curve, at_bounds, mean_between, whole_seeds
from .stats import seed_interval

TAIL = 20  # steps at the end whose mean is a run's result
_SEED = r"(?<!\d)(?<!\d\.)(?<!\de-)\d+$"  # at the end of a folder's name; the end of 0.1 or 1e-4 is none

_UNITS = {  # unit and bounds of metrics of TRL and of the padding monitor; those of a reward stand in the run's recipe.json
    "completions/mean_length": ("tokens", 0.0, None),
    "completions/clipped_ratio": ("share of completions", 0.0, 1.0),
    "frac_reward_zero_std": ("share of groups", 0.0, 1.0),
    "padding/max_difference": ("nats", 0.0, None),
    "padding/mean_difference": ("nats", 0.0, None),
}


def run_curve(run: Run, metric: str = "reward", *, sparse: bool = False) -> Curve:
    """One metric of a run's `metrics.jsonl` as a curve; a step or value that makes it none is a RunError that says where.

    Its unit and bounds are those of TRL's lengths and shares, or those that `recipe.json` says of the run's one reward
    function; else the unit is "as logged". `sparse` leaves out steps without the metric, as for evaluations; else a gap is
    refused.
    """
    path = run.path / "metrics.jsonl"
    table = load_metrics(path)
    if missing := {"step", metric} - set(table):
        raise RunError(f"{path}: no {', '.join(sorted(missing))}; it has {', '.join(table) or 'no line'}")
    if not metric.startswith("eval_"):  # lines of evaluations repeat a step's number
        table = without_evaluations(table)
    # With num_iterations above 1 a line of reused completions tells nothing of them.
    if "completions/mean_length" in table:
        made = table.filter(["reward", "completions/mean_length"]).notna().any(axis=1)
        table = table[made | table[metric].notna()]
    if sparse:
        table = table[table[metric].notna()]
    steps, values = table["step"].to_numpy(float), table[metric].to_numpy(float)
    late = np.diff(steps) <= 0
    if late.any():
        before, after = steps[late.argmax() :][:2]
        raise RunError(f"{path}: step {after:g} follows step {before:g}; two logs were joined, keep one of them")
    if not np.isfinite(values).all():
        n = np.isfinite(values).argmin()
        raise RunError(f"{path}: {metric} at step {steps[n]:g} is not finite; nothing can be compared with that")
    unit, low, high = _UNITS.get(metric) or _recorded_reward(run, metric)
    return Curve(f"{run.notebook}, seed {_seed(run)}", steps, at_bounds(values, low, high), unit, low, high)


def without_evaluations(metrics):
    """The rows of training steps. A reward function may log a metric of its own named `eval_...` in each of them."""
    own = metrics.filter(regex="^eval_").notna()
    timed = own.filter(regex="_runtime$").any(axis=1)  # as transformers logs each evaluation
    apart = metrics["step"].duplicated() | metrics.filter(["reward", "loss"]).isna().all(axis=1)
    return metrics[~(timed if timed.any() else own.any(axis=1) & apart)]


def training_of(folder: Path) -> dict:
    """A training's `recipe.json`, with an empty `recipe` where none is recorded."""
    return {"recipe": {}} | read_json(folder / "recipe.json", {})


def _recorded_reward(run: Run, metric: str) -> tuple[str, float | None, float | None]:
    """Unit, lowest and highest value of the one reward function that a metric is of, where that says what it returns.

    A weighted reward has no unit of its function; the function's own metric, `rewards/<name>/mean`, has.
    """
    record = training_of(run.path)
    rewards, weights = record.get("reward_funcs", []), record.get("overrides", {}).get("reward_weights")
    alone = len(rewards) == 1 and all(weight == 1 for weight in weights or ())
    for reward in rewards:
        own = metric == f"rewards/{reward['name']}/mean"
        if reward["unit"] and (own or (alone and metric == "reward")):
            return reward["unit"], reward["lowest"], reward["highest"]
    return "as logged", None, None


def _seed(run: Run) -> int | None:
    return (training_of(run.path)["recipe"] or run.params).get("seed")


def measured_groups(
    runs: Sequence[Run], metric: str = "reward", *, labels: Sequence[str] = ()
) -> tuple[dict[str, list[Curve]], list[str]]:
    """The curves of finished trainings, as groups that differ in nothing but their seeds, of data order or sampling.

    A run may hold several trainings, each in a folder with its `recipe.json`. Of one seed that was run twice only the
    later one counts: a repetition is no further sample. `runs` are oldest first, as `list_runs` gives them; `labels`, one a
    run, name groups where runs differ in more than the recipe (a sweep over the reward's target).

    Returns:
        Group name -> the curve of each seed; and a line for each training left out, with the reason.
    """
    found: dict[tuple, dict] = {}
    left_out = []
    for run, label in zip(runs, labels or [""] * len(runs), strict=True):
        try:
            state, trainings = run.status["state"], training_folders(run.path)
        except (RunError, OSError) as error:  # one damaged run hides no others
            left_out.append(str(error))
            continue
        if state != "done":
            left_out.append(f"{run.notebook}/{run.id}: {state}")
            continue
        if not trainings:
            left_out.append(f"{run.notebook}/{run.id}: no metrics; it logged no step")
        for folder in trainings:
            try:
                curve = run_curve(Run(folder), metric)
                seed, inside = _seed(Run(folder)), folder.relative_to(run.path).as_posix()
                if (ends := re.search(rf"[\s._/-]*(seed)?[\s._-]*({_SEED})", inside)) and (
                    ends[1] or seed in (None, int(ends[2]))
                ):  # else it is the value of a setting, as in `mu-2`
                    inside = inside[: ends.start()]
                inside = inside.removeprefix("arms/").strip(".-_/ ")
                training = training_of(folder)
                recipe = {k: v for k, v in training["recipe"].items() if k != "seed"}
                overrides = _without_seeds(training.get("overrides", {}))
                params = {k: v for k, v in run.params.items() if k not in ("seed", *SET_BY_RUNNER)}
                record = json.dumps([params, training | {"recipe": recipe, "overrides": overrides}], sort_keys=True)
                group = (_name(label, inside, recipe), label, inside, record)
            except (RunError, ParameterError) as error:
                left_out.append(str(error))
                continue
            except Exception as error:  # files of a notebook's own form
                left_out.append(f"{folder}: {type(error).__name__}: {error}")
                continue
            if seed is None and (digits := re.search(_SEED, folder.relative_to(run.path).as_posix())):
                seed = int(digits[0])  # `seed-2`, where no recipe says so
            members = found.setdefault(group, {})
            if seed in members:
                known = "has the seed of an earlier one" if seed is not None else "has no known seed"
                left_out.append(f"{folder}: {known}; it counts in the place of that training")
            members[seed] = curve
    groups, names = {}, [name for name, *_ in found]
    for n, (name, by_seed) in enumerate(zip(names, found.values(), strict=True)):
        number = f" ({names[:n].count(name) + 1})" if names.count(name) > 1 else ""
        groups[name + number] = list(by_seed.values())
    return groups, left_out


def _without_seeds(overrides):
    """Options of a training, with all seeds of sampling made equal: only whether there is one makes a difference."""
    if not isinstance(overrides, dict):
        return overrides
    seeds = {name: "any" for name in ("seed", "data_seed", "generation_seed") if overrides.get(name) is not None}
    return {name: _without_seeds(value) for name, value in overrides.items()} | seeds


def _name(label: str, inside: str, recipe: dict) -> str:
    """Return what distinguishes most groups; groups that it does not are numbered."""
    rate, steps = recipe.get("learning_rate"), recipe.get("max_steps")
    inside = re.sub(r"-(?=\S)|-$", " ", inside.replace("--", ", ")).strip(", ")  # a folder's name as it was in words
    parts = [
        label,
        inside,
        last_part(str(recipe.get("model") or "")),
        rate and f"lr {rate:g}",
        steps and f"{steps} steps",
    ]
    return ", ".join(filter(None, parts)) or "run"


def last_part(value: str) -> str:
    """The name of a file or folder that a local path leads to; another text, such as an id of the hub, as it is.

    Example:
        >>> last_part("/home/me/models/mine"), last_part("Qwen/Qwen3-0.6B")
        ('mine', 'Qwen/Qwen3-0.6B')
    """
    return Path(value).name if value.startswith(("/", "./", "../", "~/")) else value


def group_table(groups: dict[str, list[Curve]], rng: np.random.Generator):
    """A row for each group of seeds: `n seeds`, `left out`, `result` with `low`, `high` and the `interval`, logged `points`.

    The result is the mean over seeds of the mean of the last `TAIL` steps, however often a run was logged, up
    to the last step that all have. Seeds that ended before nine tenths of what half of them reach are left out.
    """
    import pandas as pd

    rows = []
    for name, curves in groups.items():
        kept, left_out = whole_seeds(curves)
        end = min(c.x[-1] for c in kept)
        ends = np.array([mean_between(c, end - TAIL, end) for c in kept])
        result = seed_interval(ends, rng, statistic=np.mean)
        points = min(int(((c.stretches[1] > end - TAIL) & (c.x <= end)).sum()) for c in kept)
        row = {"group": name, "n seeds": len(kept), "left out": "; ".join(left_out)}
        row |= {"result": result.estimate, "low": result.low, "high": result.high, "interval": result.name}
        rows.append(row | {"points": points})
    return pd.DataFrame(rows)
