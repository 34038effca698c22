"""Records the positive controls: the starters' own documented runs, over ten seeds, as baselines.

    python -m benchmarks.controls [--trainings build/control] [--out data/baselines]
    python -m benchmarks.controls --rates 300 --out data/measured/control.json

Trains one after the other, each on one thread, about 20 minutes on one idle core; started again it goes on where it ended. Then
it writes `data/baselines/workbench-....json`: every seed's curve, what identifies the runs, and how far a run may lie from them
on another machine (`tolerance`), by a simulation on how far the runs of starters made again were apart. With `--rates` nothing
is trained: how often the recorded controls are wrong, on so many simulated runs.
"""

import dataclasses
import platform
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from tools.make_toys import make_model, one_thread
from tools.record import ROOT, about, made_with, measured, parser, publish
from workbench.curves.compare import DIFFERENT, INCONCLUSIVE, PARTS, SAME, another_seed
from workbench.curves.curve import Curve
from workbench.curves.documented import Baseline, as_text, list_baselines, load_baseline, stored
from workbench.curves.measured import run_curve, training_of
from workbench.experiments.arms import Arm, train_arms
from workbench.experiments.recipes import make_recipe
from workbench.experiments.toys.starter import CORPUS, starter_corpus, toy_hash
from workbench.experiments.train import quiet_libraries
from workbench.runs.files import write_text
from workbench.training.rewards import describe_reward, length_reward

LEVEL = 0.99  # of runs on another machine that lie within the tolerance: a false alarm costs an afternoon
SEEDS = range(1000, 1010)  # none that a notebook takes by default: a run with a recorded seed would be no test
OTHER_SEED = 1010
LEAST_SEEDS = 8  # of a documented run: below it `another_seed` is slow to say different
OTHER_STARTERS = 6
ARCHITECTURES = {"starter": "qwen2", "starter-gpt2": "gpt2"}
METRICS = {  # of each control: recorded -> whether it is judged
    "starter": {"reward": True, "completions/mean_length": False, "frac_reward_zero_std": False},
    "starter-gpt2": {"reward": True, "padding/max_difference": True},
}

# Rounding errors differ by factors between processors, so these are judged by their order of magnitude.
IN_DECADES = ("padding/max_difference", "padding/mean_difference")
NO_ERROR = 1e-6  # nats; a batch in which nothing is padded has 0, and what fp32 rounds is no finer: both read the same


def as_judged(curve: Curve, metric: str) -> Curve:
    """Return the curve on the scale on which its metric is judged: rounding errors by their logarithm, others as they are."""
    if metric not in IN_DECADES:
        return curve
    y = np.log10(np.maximum(curve.y, NO_ERROR))
    return dataclasses.replace(curve, y=y, unit=f"decades of {curve.unit}", low=None, high=None)


def fifths_of(curves: Sequence[Curve], metric: str) -> np.ndarray:
    """Return the means of fifths on the scale that a metric is judged on, (curves, 5)."""
    judged = [np.array_split(as_judged(curve, metric).y, PARTS) for curve in curves]
    return np.array([[part.mean() for part in parts] for parts in judged]).round(4)


def control_arms() -> dict[str, Arm]:
    """Return the runs that have a control, by model: notebook 05's with its defaults, and notebook 03's with position ids."""
    reward, watched = length_reward(20), {"monitor_every": 5, "disable_dropout": True}
    return {
        "starter": Arm(make_recipe("starter"), reward),
        "starter-gpt2": Arm(make_recipe("starter-gpt2", max_steps=50), reward, options=watched),
    }


def other_starters(model: str, folder: Path) -> list[str]:
    """Make starters again, each of a corpus that lacks another tenth: more than rounding or another Python makes of one."""
    paths = []
    for n in range(OTHER_STARTERS):
        rng = random.Random(n)
        corpus = [row for row in starter_corpus() if rng.random() < 0.9]
        path = folder / f"other-{n}-{ARCHITECTURES[model]}"
        paths.append(str(path if path.is_dir() else make_model(corpus, path, ARCHITECTURES[model])))
    return paths


def tolerance_for(metric: str, seeds: np.ndarray, made_anew: np.ndarray, repeats: int = 20_000) -> list[float]:
    """Work out the tolerance of a metric as the control's file holds it, (5,), from means of fifths, (runs, 5).

    It is the largest of what a run on another machine shows, of what another seed shows, and, for rounding errors, of one
    decade. Simulated runs on another machine scatter around the recorded mean as those on starters made again did, with their
    covariance; it is known from few runs, so the simulated ones are t distributed. `LEVEL` is of all fifths together.
    """
    rng, away = np.random.default_rng(0), made_anew - seeds.mean(axis=0)
    n, scale = len(away), np.sqrt((away**2).mean(axis=0))
    normal = rng.normal(size=(repeats, n)) @ (away / scale) / np.sqrt(n)
    worst = np.abs(normal / np.sqrt(rng.chisquare(n, size=(repeats, 1)) / n)).max(axis=1)
    machine = np.quantile(worst, LEVEL) * scale
    n = len(seeds)
    another = stats.t.isf((1 - LEVEL) / 2 / PARTS, n - 1) * seeds.std(axis=0, ddof=1) * np.sqrt(1 + 1 / n)
    largest = np.maximum(np.maximum(machine, another), 1.0 if metric in IN_DECADES else 0)
    return [float(f"{value:.2g}") for value in largest]


def record_control(model: str, arm: Arm, trainings: Path) -> dict:
    """Train a control where it is not trained yet, and put all of it into the format of `data/README.md`."""
    runs = train_arms({model: arm}, out_dir=trainings, seeds=SEEDS)[model]
    anew = enumerate(other_starters(model, trainings / "starters"))
    arms = {f"{model}, made anew {n}": _with_model(arm, path) for n, path in anew}
    others = [only for (only,) in train_arms(arms, out_dir=trainings, seeds=[OTHER_SEED]).values()]
    curves, made_anew, tolerance = {}, {}, {}
    for metric, judged in METRICS[model].items():
        by_seed = {training_of(run.path)["recipe"]["seed"]: run_curve(run, metric, sparse=True) for run in runs}
        curves[metric] = stored(by_seed)
        if judged:
            made_anew[metric] = fifths_of([run_curve(run, metric, sparse=True) for run in others], metric)
            tolerance[metric] = tolerance_for(metric, fifths_of(list(by_seed.values()), metric), made_anew[metric])
    step = float(np.median([run.metrics["step_time"].median() for run in runs]))
    whole = float(np.median([run.metrics["elapsed_s"].iloc[-1] for run in runs]))
    what = "seconds a step, median over steps, then over seeds"
    recipe, here, reward = arm.recipe, about(), describe_reward(arm.reward_funcs)
    training = training_of(runs[0].path)
    del training["recipe"]["seed"]
    return {
        "name": f"workbench-{model}-docs-example",
        "title": f"Control: {model}, GRPO, target 20 characters, {len(runs)} seeds",
        "source": "recorded here, by `python -m benchmarks.controls`",
        "date": here["date"][:7],
        "method": f"GRPO in TRL {here['packages']['trl']}, {recipe.num_generations} completions a prompt, learning rate "
        f"{recipe.learning_rate:g}, {recipe.lr_scheduler_type}, {recipe.per_device_train_batch_size} completions a step, at "
        f"most {recipe.max_completion_length} tokens",
        "model": f"{model}: 2 layers, 0.65 M parameters, made by tools.make_toys",
        "data": f"first sentences of docstrings in Python {here['python']}'s standard library",
        "hardware": f"1 thread of {here['cpu']}",
        "time": f"{whole:.0f} s a seed, on a machine with other load",
        "seeds": len(runs),
        "reward": {"name": "-abs(20 - characters of the completion)", "unit": reward["unit"]}
        | {"low": reward["lowest"], "high": reward["highest"]},
        "unknown": ["other versions of TRL, transformers and torch", "anything about a real model: this is toy scale"],
        "curves": curves,
        "figures": {"step_seconds": {"value": round(step, 3), "unit": "seconds", "what": what, "from": "full log"}},
        "recorded": {
            "training": training,
            "made_with": [made_with({"environment": here})],
            "python": here["python"],
            "packages": here["packages"],
            "corpus_sha256": toy_hash(CORPUS),
            "weights_sha256": toy_hash(f"starter-{ARCHITECTURES[model]}/model.safetensors"),
            "cpu": [platform.machine(), torch.backends.cpu.get_cpu_capability(), here["cpu"]],
            "threads": 1,
            "tolerance": tolerance,
            "made_anew": made_anew,
        },
    }


def of_fifths(values: np.ndarray, like: Curve) -> Curve:
    """Return a curve like another, but for the means of its fifths, (5,), which are these."""
    parts = zip(values, np.array_split(like.y, PARTS), strict=True)
    y = np.concatenate([part + value - part.mean() for value, part in parts])
    return dataclasses.replace(like, y=y, low=None, high=None)


def left_out(control: Baseline, metric: str) -> dict[str, list[str]]:
    """Judge each recorded seed by the others, and each run on a starter made anew with the tolerance that the others give."""
    seeds = [as_judged(curve, metric) for curve in control.curves_by_seed(metric)]
    tolerance, anew = (control.recorded[part][metric] for part in ("tolerance", "made_anew"))
    own = [another_seed(one, [o for o in seeds if o is not one], tolerance=tolerance).verdict for one in seeds]
    values, others = fifths_of(control.curves_by_seed(metric), metric), []
    for n, one in enumerate(np.array(anew)):
        without = tolerance_for(metric, values, np.delete(np.array(anew), n, axis=0))
        recorded = [of_fifths(row, seeds[0]) for row in values]
        others.append(another_seed(of_fifths(one, seeds[0]), recorded, tolerance=without).verdict)
    return {"recorded seeds": own, "starters made anew": others}


def documented_seeds() -> dict[str, dict]:
    """Judge each real seed that others published by the others of its run: all are one process, so `different` is wrong.

    The tolerance is a tenth of what the mean over the seeds moves, as `documented_verdicts` takes it.
    """
    found = {}
    for run in map(load_baseline, list_baselines()):
        for metric in () if run.recorded else run.curves:
            seeds = run.curves_by_seed(metric)
            if len(seeds) >= LEAST_SEEDS:
                near = float(f"{0.1 * np.ptp(run.curve(metric).y):.2g}")
                judged = [another_seed(one, [o for o in seeds if o is not one], tolerance=near) for one in seeds]
                found[f"{run.name}; {metric}"] = {
                    "tolerance": near, "unit": seeds[0].unit, "verdicts": [one.verdict for one in judged],
                }  # fmt: skip
    return found


def simulated(control: Baseline, metric: str, shift: float, repeats: int) -> dict[str, float]:
    """Count verdicts on made-up seeds with the recorded ones' mean and covariance, of which the judged one is shifted."""
    rng, like = np.random.default_rng(0), as_judged(control.curves_by_seed(metric)[0], metric)
    seeds, tolerance, found = (
        fifths_of(control.curves_by_seed(metric), metric),
        control.recorded["tolerance"][metric],
        [],
    )
    for _ in range(repeats):
        one, *others = rng.multivariate_normal(seeds.mean(axis=0), np.cov(seeds.T), size=len(seeds) + 1)
        recorded = [of_fifths(values, like) for values in others]
        found.append(another_seed(of_fifths(one + shift, like), recorded, tolerance=tolerance).verdict)
    return {verdict: found.count(verdict) / repeats for verdict in (SAME, INCONCLUSIVE, DIFFERENT)}


def rates(repeats: int) -> dict:
    """Work out how often the shipped controls are wrong; what older ones said of trained runs is kept under `older`."""
    older = measured("control")
    older = older.get("older") or {part: older[part] for part in ("stored_in", "environment", "rounding", "damaged")}
    result: dict = {"repeats": repeats, "controls": {}, "documented": documented_seeds(), "older": older}
    for model in ARCHITECTURES:
        control = load_baseline(f"workbench-{model}-docs-example")
        for metric, tolerance in control.recorded["tolerance"].items():
            result["controls"][f"{model}; {metric}"] = {
                "tolerance": tolerance,
                "unit": as_judged(control.curve(metric), metric).unit,
                "left out": left_out(control, metric),
                "simulated": {f"{s}": simulated(control, metric, s, repeats) for s in range(5)},
            }
    return result


def _with_model(arm: Arm, model: str) -> Arm:
    return dataclasses.replace(arm, recipe=dataclasses.replace(arm.recipe, model=model))


def main(argv: list[str] | None = None) -> None:
    """Train what is not trained yet, and write a file a control."""
    options = parser(__doc__, trainings=Path("build/control"), rates=0)
    options.set_defaults(out=ROOT / "data" / "baselines")
    args = options.parse_args(argv)
    if args.rates:
        return publish(rates(args.rates), args.out, quietly=True)
    quiet_libraries()
    with one_thread():
        for model, arm in control_arms().items():
            control = record_control(model, arm, args.trainings)
            path = args.out / f"{control['name']}.json"
            write_text(path, as_text(control))
            print(f"{path}: tolerance {control['recorded']['tolerance']}", flush=True)


if __name__ == "__main__":
    main()
