"""How often the positive control is wrong: recorded seeds left out, simulated ones, other rounding, damaged trainers.

    python -m benchmarks.verdicts.control [--trainings FOLDER] [--seeds 3] [--repeats 2000] [--out FILE.json] [--page FILE.md]

Trains about 30 short runs, one after the other; started again it goes on where it ended. `--page` writes the page of error
rates, of `--out` and of what `error_rates.py` left in data/measured.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from benchmarks.pages import write_page
from benchmarks.record import MEASURED, parser, publish
from benchmarks.verdicts.error_rates import page
from benchmarks.verdicts.record_controls import SEEDS, as_judged, control_arms, fifths_of, tolerance_for, with_recipe
from tools.make_toys import one_thread
from workbench.curves import load_baseline
from workbench.curves.compare import DIFFERENT, INCONCLUSIVE, PARTS, SAME, another_seed
from workbench.curves.curve import Curve
from workbench.curves.documented import Baseline
from workbench.curves.measured import run_curve
from workbench.experiments.arms import Arm, train_arms
from workbench.experiments.recipes import resolve_model
from workbench.runs.environment import hardware
from workbench.runs.run import Run
from workbench.training.grpo import GRPOTrainer
from workbench.training.recording import quiet_libraries

CONTROLS = {name: f"workbench-{name}-docs-example" for name in ("starter", "starter-gpt2")}
VERDICTS = (SAME, INCONCLUSIVE, DIFFERENT)
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
SHIFTS = (0.0, 1.0, 2.0, 3.0, 4.0)


class WrongSign(GRPOTrainer):
    """Climbs the loss instead of descending it."""

    def compute_loss(self, *args, **kwargs):
        return -super().compute_loss(*args, **kwargs)


def damaged() -> dict[str, tuple[str, Arm]]:
    """Name -> the control it belongs to, and the arm of a trainer with one thing wrong."""
    plain, gpt2 = control_arms()["starter"], control_arms()["starter-gpt2"]
    rate = plain.recipe.learning_rate
    unseen = dict(gpt2.options) | {"explicit_positions": False}
    return {
        "wrong sign": ("starter", dataclasses.replace(plain, trainer=WrongSign)),
        "rate x 0.1": ("starter", with_recipe(plain, learning_rate=0.1 * rate)),
        "rate x 0.5": ("starter", with_recipe(plain, learning_rate=0.5 * rate)),
        "positions off": ("starter-gpt2", dataclasses.replace(gpt2, options=unseen)),
    }


def noisy_starter(folder: Path, scale: float) -> str:
    """The starter with every weight changed by about this share of it, in a folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (folder / "config.json").is_file():
        path, generator = resolve_model("starter"), torch.Generator().manual_seed(0)
        model = AutoModelForCausalLM.from_pretrained(path)
        with torch.no_grad():
            for weights in model.parameters():
                weights.mul_(1 + scale * torch.randn(weights.shape, generator=generator))
        AutoTokenizer.from_pretrained(path).save_pretrained(folder)
        model.save_pretrained(folder)
    return str(folder)


def rounded(folder: Path, seeds: list[int]) -> dict[str, list[Run]]:
    """The starter's control with recorded seeds, but other rounding: arm -> runs."""
    arm = control_arms()["starter"]
    found = {}
    with one_thread():
        noisy = {
            f"weights changed by {scale:g}": with_recipe(arm, model=noisy_starter(folder / f"noisy-{scale:g}", scale))
            for scale in (1e-7, 1e-4)
        }
        found |= train_arms(noisy, out_dir=folder, seeds=seeds)
    torch.set_num_threads(2)
    found |= train_arms({"two threads": arm}, out_dir=folder, seeds=seeds)
    torch.set_num_threads(1)
    name = "AVX2, starter made with it"
    command = [sys.executable, "-m", "benchmarks.verdicts.control", "--avx2", name]
    command += ["--trainings", str(folder), "--seeds", str(len(seeds))]
    subprocess.run(command, env=os.environ | AVX2, check=True)
    return found | {name: [Run(folder / "AVX2--starter-made-with-it" / f"seed-{seed}") for seed in seeds]}


def judged(runs: list[Run], control: Baseline) -> dict[str, dict]:
    """Of each metric that a control judges: each run's verdict, and how far its worst fifth lies."""
    found = {}
    for metric, tolerance in control.recorded["tolerance"].items():
        seeds = [as_judged(curve, metric) for curve in control.curves_by_seed(metric)]
        curves = [dataclasses.replace(run_curve(run, metric, sparse=True), span=seeds[0].span) for run in runs]
        ones = [another_seed(as_judged(curve, metric), seeds, tolerance=tolerance) for curve in curves]
        found[metric] = {"verdicts": [one.verdict for one in ones], "worst": [round(one.difference, 3) for one in ones]}
    return found


def parting(run: Run, control: Baseline, seed: int) -> int | None:
    """First step at which a run's reward is another than that of the recorded run of its seed."""
    (own,) = [one for one in control.curves_by_seed() if one.label.endswith(f"seed {seed}")]
    apart = np.abs(run_curve(run).y - own.y) > 1e-3
    return int(own.x[apart.argmax()]) if apart.any() else None


def left_out(control: Baseline, metric: str) -> dict:
    """Each recorded seed judged by the others; each run on a starter made anew with a tolerance from the others."""
    seeds = [as_judged(curve, metric) for curve in control.curves_by_seed(metric)]
    tolerance = control.recorded["tolerance"][metric]
    own = [another_seed(one, [o for o in seeds if o is not one], tolerance=tolerance).verdict for one in seeds]
    values, anew = fifths_of(control.curves_by_seed(metric), metric), np.array(control.recorded["made_anew"][metric])
    recorded, others = [of_fifths(row, seeds[0]) for row in values], []
    for n, one in enumerate(anew):
        without = tolerance_for(metric, values, np.delete(anew, n, axis=0))
        others.append(another_seed(of_fifths(one, seeds[0]), recorded, tolerance=without).verdict)
    return {"recorded seeds": own, "starters made anew": others}


def of_fifths(values: np.ndarray, like: Curve) -> Curve:
    """A curve like another, but for the means of its fifths, which are these."""
    parts = zip(values, np.array_split(like.y, PARTS), strict=True)
    y = np.concatenate([part + value - part.mean() for value, part in parts])
    return dataclasses.replace(like, y=y, low=None, high=None)


def simulated(control: Baseline, metric: str, shift: float, repeats: int, seed: int = 0) -> dict[str, float]:
    """Share of each verdict on made-up seeds with the recorded ones' mean and covariance, the judged one shifted."""
    rng, like = np.random.default_rng(seed), as_judged(control.curves_by_seed(metric)[0], metric)
    seeds, tolerance = fifths_of(control.curves_by_seed(metric), metric), control.recorded["tolerance"][metric]
    verdicts = []
    for _ in range(repeats):
        made = rng.multivariate_normal(seeds.mean(axis=0), np.cov(seeds.T), size=len(seeds) + 1)
        recorded = [of_fifths(values, like) for values in made[1:]]
        verdicts.append(another_seed(of_fifths(made[0] + shift, like), recorded, tolerance=tolerance).verdict)
    return {verdict: verdicts.count(verdict) / repeats for verdict in VERDICTS}


def measure(folder: Path, seeds: int, repeats: int) -> dict:
    """Everything that `control.json` holds."""
    controls = {model: load_baseline(name) for model, name in CONTROLS.items()}
    result: dict = {"environment": hardware(), "repeats": repeats, "controls": {}, "rounding": {}, "damaged": {}}
    for model, control in controls.items():
        for metric in control.recorded["tolerance"]:
            result["controls"][f"{model}; {metric}"] = {
                "tolerance": control.recorded["tolerance"][metric],
                "unit": as_judged(control.curve(metric), metric).unit,
                "left out": left_out(control, metric),
                "simulated": {f"{s:g}": simulated(control, metric, s, repeats) for s in SHIFTS},
            }
    same = list(SEEDS)[:seeds]
    for name, runs in rounded(folder, same).items():
        steps = [parting(run, controls["starter"], seed) for run, seed in zip(runs, same, strict=True)]
        result["rounding"][name] = {"metrics": judged(runs, controls["starter"]), "parts at step": steps}
    with one_thread():
        for name, (model, arm) in damaged().items():
            runs = train_arms({name: arm}, out_dir=folder, seeds=range(2000, 2000 + seeds))[name]
            result["damaged"][name] = {"control": model, "metrics": judged(runs, controls[model])}
    return result


def main() -> None:
    options = parser(__doc__, trainings=Path("build/control-benchmark"), seeds=3, repeats=2000, page=Path(""))
    options.add_argument("--avx2", metavar="ARM", help=argparse.SUPPRESS)  # the part that needs a process of its own
    args = options.parse_args()
    quiet_libraries()
    if args.avx2:
        with one_thread():
            train_arms({args.avx2: control_arms()["starter"]}, out_dir=args.trainings, seeds=list(SEEDS)[: args.seeds])
        return
    result = measure(args.trainings, args.seeds, args.repeats)
    publish(result, args.out)
    if args.page.name:
        write_page(args.page, page(json.loads((MEASURED / "verdicts" / "error_rates.json").read_text()), result))


if __name__ == "__main__":
    main()
