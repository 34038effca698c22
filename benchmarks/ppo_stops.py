"""Keeps what PPO with and without a stop costs SmolLM2: the trainings of notebook 01, one after the other.

    python -m benchmarks.ppo_stops RUN

RUN is a run folder of notebook 01, finished or not, with its env.json; in it a folder for each arm and seed. Of each training
that is finished `data/measured/ppo_stops.json` keeps, by update, the forward passes of generation, the value loss, and the
reward of the text up to EOS. Trainings that the file has of another run stay in it.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tools.record import MEASURED, by_versions, finished, made_with, measured, run_main, table
from workbench.curves.stats import Interval, seed_interval
from workbench.experiments.instruments.ppo_learning import ratio_of
from workbench.runs.files import read_json, write_json
from workbench.runs.results import Result

NOTEBOOK = "01_ppo_eos_stop"
PASSES, LOSS, REWARD = "generation/forwards", "loss/value_avg", "rewards/reward_len_up_to_eos/mean"
AT_EOS, WHOLE, UNTIL = "stop-at-EOS", "no-stop--whole-text-scored", "no-stop--text-up-to-EOS-scored"
FAR = -10  # characters from the target: a policy that has lost what the untrained one does
LAST = 3  # updates at the end whose mean reward is compared
# A sentence of notebook 01 for each number of `compared`, and the number that would be no cost.
COSTS = (
    ("Without a stop an update takes {} times the forward passes", 1),
    ("No stop and all scored: the value loss is {} times as high", 1),
    ("With a stop the reward up to EOS ends {} higher than without one, if all text is scored", 0),
    ("With a stop the reward up to EOS ends {} higher than without one, if the text up to EOS is scored", 0),
)


def compared(trainings: Sequence[dict]) -> dict[str, tuple[int, Interval]]:
    """What a stop at EOS changes, of the seeds that both arms have: the number of seeds, and the number.

    Example:
        >>> def arm(name, passes, reward):
        ...     curves = {PASSES: [passes] * 3, LOSS: [1.0] * 3, REWARD: [reward] * 3}
        ...     return [{"arm": name, "seed": seed, "curves": curves} for seed in range(3)]
        >>> found = compared([*arm(AT_EOS, 12, -1.0), *arm(WHOLE, 48, -3.0), *arm(UNTIL, 48, -2.0)])
        >>> seeds, passes = found["passes of an update, no stop / stop"]
        >>> seeds, passes.in_brief(".2g")
        (3, '4 (4 to 4)')
    """
    rng = np.random.default_rng(0)
    curves = {(one["arm"], one["seed"]): one["curves"] for one in trainings}

    def means(arm: str, metric: str, seeds: list[int], last: int = 0) -> np.ndarray:
        return np.array([np.mean(curves[arm, seed][metric][-last:]) for seed in seeds])

    both = {a: [seed for arm, seed in sorted(curves) if arm == a and (AT_EOS, seed) in curves] for a in (WHOLE, UNTIL)}
    whole, until = both[WHOLE], both[UNTIL]
    passes = ratio_of(means(WHOLE, PASSES, whole), means(AT_EOS, PASSES, whole), rng)
    loss = ratio_of(means(WHOLE, LOSS, whole), means(AT_EOS, LOSS, whole), rng)
    gains = [
        seed_interval(means(AT_EOS, REWARD, seeds, LAST) - means(arm, REWARD, seeds, LAST), rng, statistic=np.mean)
        for arm, seeds in both.items()
    ]
    return {
        "passes of an update, no stop / stop": (len(whole), passes),
        "value loss, no stop and whole text scored / stop": (len(whole), loss),
        "reward at the end, stop less no stop, whole text scored": (len(whole), gains[0]),
        "the same, text up to EOS scored": (len(until), gains[1]),
    }


def size() -> dict[str, int]:
    """Steps and seeds of the stored trainings."""
    trainings = measured("ppo_stops")["trainings"]
    return {
        "steps": max(len(one["curves"][PASSES]) for one in trainings),
        "seeds": len({one["seed"] for one in trainings}),
    }


def in_training() -> list[Result]:
    """Judge these numbers as notebook 01 judges those of a toy, in its sentences."""
    numbers = [number for _, number in compared(measured("ppo_stops")["trainings"]).values()]
    judged = [(says, number, number.above(least)) for (says, least), number in zip(COSTS, numbers, strict=True)]
    return [Result.of(*one, claim="A0.2", digits=".2g") for one in judged]


def with_more_seeds(results: Sequence[dict]) -> list[dict]:
    """Replace what a run says of these numbers by what the stored trainings say, with their size and commits as `of`."""
    commits = {one["environment"]["git_commit"][:7] for one in measured("ppo_stops")["trainings"]}
    of = size() | {"commit": ", ".join(sorted(commits))}
    begins = tuple(says.partition("{")[0] for says, _ in COSTS)
    rest = [one for one in results if not one["says"].startswith(begins)]
    return [*({**dataclasses.asdict(one), "of": of} for one in in_training()), *rest]


def page() -> list[str]:
    """Make the section of docs/evidence/real_weights.md."""
    trainings = measured("ppo_stops")["trainings"]
    updates = {len(one["curves"][PASSES]) for one in trainings}
    fell = [min(one["curves"][REWARD]) <= FAR for one in trainings]
    cells = [[what, str(seeds), number.in_brief(".2g")] for what, (seeds, number) in compared(trainings).items()]
    return [
        '<a id="ppo-without-a-stop-in-training"></a>',
        "",
        "## PPO without a stop, in training",
        "",
        f"Notebook 01, {' or '.join(map(str, sorted(updates)))} updates a training. The first completions are near the target,",
        f"and {sum(fell)} of {len(fell)} trainings fall to {FAR} or less in an update: they say nothing about learning.",
        "",
        *table(["number", "seeds", "measured"], cells),
        "",
    ]


def provenance() -> list[tuple[str, str, str]]:
    """Return what made the trainings, for the end of the page."""
    trainings = measured("ppo_stops")["trainings"]
    made = by_versions(map(made_with, trainings))
    command = "`python -m benchmarks.ppo_stops`"
    return [("PPO in training", command, versions.partition(", transformers")[0]) for versions in made]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("run", type=Path, help="run folder of notebook 01")
    options.add_argument("--out", type=Path, default=MEASURED / "ppo_stops.json")
    args = options.parse_args()
    environment = read_json(args.run / "env.json", {})
    kept = {(one["arm"], one["seed"]): one for one in read_json(args.out, {}).get("trainings", [])}
    for arm, seeds in finished(args.run).items():
        for seed, one in seeds.items() if arm in (AT_EOS, WHOLE, UNTIL) else ():
            curves = {name: [float(f"{y:.5g}") for y in one.metrics[name]] for name in (PASSES, LOSS, REWARD)}
            kept[arm, seed] = {"arm": arm, "seed": seed, "curves": curves, "environment": environment}
    write_json(args.out, {"trainings": [one for _, one in sorted(kept.items())]})
    print(args.out)


if __name__ == "__main__":
    run_main(main)
