"""Trains the starter with the divisors of three definitions: how far apart do two right implementations end?

    python -m benchmarks.divisor --seeds 0 1 2 3 4 --out data/measured/divisor.json

Everything else is the same: model, data, reward, seeds, stock TRL, two micro-batches an update. `dapo` is the mean over the
tokens of the update (TRL, verl, SkyRL, AReaL), `grpo` the mean over completions of the mean over their tokens (slime), `bnpo`
the mean of the micro-batches' means (TRL's AsyncGRPO). A second call goes on, and counts the trainings that are there.
"""

from pathlib import Path

import numpy as np

from tools.record import ROOT, finished, parser, publish, run_main, use_one_thread
from workbench.curves.stats import seed_interval
from workbench.experiments.arms import Arm, ObservedGRPOTrainer, train_arms
from workbench.experiments.recipes import make_recipe
from workbench.training.rewards import length_reward

DIVISORS = ("dapo", "grpo", "bnpo")
TAIL = 10  # steps at the end whose mean is a training's result


def divisor_arms(steps: int) -> dict[str, Arm]:
    """An arm for each divisor, by its `loss_type`."""
    small = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "max_completion_length": 32}
    recipe = make_recipe("starter", max_steps=steps, **small)
    options = {"save_strategy": "no"}
    return {
        kind: Arm(recipe, length_reward(20), ObservedGRPOTrainer, options=options | {"loss_type": kind})
        for kind in DIVISORS
    }


def ends(folder: Path) -> dict[str, dict[int, dict[str, float]]]:
    """`loss_type` -> seed -> reward and length of completions, means of the last steps."""
    names = {"reward": "reward", "length": "completions/mean_length"}
    table: dict[str, dict[int, dict[str, float]]] = {}
    for kind, by_seed in finished(folder).items():
        for seed, run in by_seed.items():
            tail = run.metrics.tail(TAIL)
            values = {name: round(float(tail[column].mean()), 4) for name, column in names.items()}
            table.setdefault(kind, {})[seed] = values
    return table


def against_dapo(table: dict[str, dict[int, dict[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Mean and 95% interval over seeds of what another divisor ends with, less what `dapo` ends with.

    Example:
        >>> table = {kind: {seed: {"reward": seed + add} for seed in (0, 1, 2)} for kind, add in (("dapo", 0), ("grpo", 1))}
        >>> against_dapo(table)
        {'grpo': {'reward': [1.0, 1.0, 1.0]}}
    """
    found: dict[str, dict[str, list[float]]] = {}
    for kind in [kind for kind in table if kind != "dapo"]:
        seeds = sorted(table[kind].keys() & table["dapo"].keys())
        for name in table[kind][seeds[0]]:
            apart = [table[kind][seed][name] - table["dapo"][seed][name] for seed in seeds]
            interval = seed_interval(apart, np.random.default_rng(0), statistic=np.mean)
            numbers = [float(number) for number in (interval.estimate, interval.low, interval.high)]
            found.setdefault(kind, {})[name] = [round(number, 4) for number in numbers]
    return found


def main() -> None:
    args = parser(__doc__, seeds=[0], steps=40, runs=ROOT / "runs" / "divisor").parse_args()
    use_one_thread()
    arms = divisor_arms(args.steps)
    for seed in args.seeds:
        train_arms(arms, out_dir=args.runs, seeds=[seed])
    table = ends(args.runs)
    publish({"steps": args.steps, "tail": TAIL, "ends": table, "less dapo": against_dapo(table)}, args.out)


if __name__ == "__main__":
    run_main(main)
