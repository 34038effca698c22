"""Several ways to train the same task, each over some seeds: the arms of a comparison."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pandas as pd

from ..runs.files import load_metrics
from ..runs.run import Run
from ..training.grpo import train_grpo
from ..training.recipes import Recipe
from ..training.vllm_sync import sharing_engines


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to train: a recipe, whose seed is replaced, and a reward function."""

    recipe: Recipe
    reward: Callable
    seeds: int = 1


def train_arms(arms: Mapping[str, Arm], *, out_dir: Path, first_seed: int = 0) -> dict[str, list[Run]]:
    """Train every arm with its seeds, each in a folder of its own; what is complete on disk is not repeated.

    Args:
        arms: name -> arm.
        out_dir: holds `<arm>/seed-<n>`.
        first_seed: the seeds are this one and those after it.

    Returns:
        Arm -> its runs, in the order of the seeds.
    """
    runs: dict[str, list[Run]] = {}
    with sharing_engines():
        for name, arm in arms.items():
            folder = Path(out_dir) / "".join(c if c.isalnum() or c in ".-" else "-" for c in name)
            seeds = range(first_seed, first_seed + arm.seeds)
            runs[name] = [_train(name, arm, seed, folder / f"seed-{seed}") for seed in seeds]
    return runs


def _train(name: str, arm: Arm, seed: int, folder: Path) -> Run:
    print(f"{name}, seed {seed}", flush=True)
    if not _is_complete(folder, arm.recipe.max_steps):
        train_grpo(dataclasses.replace(arm.recipe, seed=seed), reward_funcs=arm.reward, out_dir=folder)
    return Run(folder)


def _is_complete(folder: Path, steps: int) -> bool:
    path = folder / "metrics.jsonl"
    return path.is_file() and len(load_metrics(path)) >= steps


def arm_table(runs: Mapping[str, Iterable[Run]]) -> pd.DataFrame:
    """Per arm, over its seeds: reward at both ends, length at the end, seconds per step, groups without spread."""
    rows = {}
    for name, members in runs.items():
        metrics = [run.metrics for run in members]
        rows[name] = {
            "seeds": len(metrics),
            "reward, first 3 steps": _mean(m["reward"].head(3).mean() for m in metrics),
            "reward, last 20 steps": _mean(m["reward"].tail(20).mean() for m in metrics),
            "tokens, last 20 steps": _mean(m["completions/mean_length"].tail(20).mean() for m in metrics),
            "seconds per step": _mean(m["step_time"].median() for m in metrics),
            "groups without spread": _mean(m["frac_reward_zero_std"].mean() for m in metrics),
        }
    return pd.DataFrame(rows).T


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)


def comparisons(
    recipe: Recipe, documented: Recipe, *, reward: Callable, wrong_reward: Callable, seeds: int
) -> dict[str, Arm]:
    """The arms of the docs example (claims A4.2, A4.3, A4.5 to A4.7), all on the recipe's model and data.

    Args:
        recipe: tuned, one that learns.
        documented: of TRL's docs; its settings are used, not its model, data or length.
        reward: the documented one.
        wrong_reward: with the sign as printed in TRL v0.14.
        seeds: of the tuned and the documented learning rate.
    """
    same = {"model": recipe.model, "dataset": recipe.dataset, "backend": recipe.backend}
    same |= {"max_steps": recipe.max_steps, "max_completion_length": recipe.max_completion_length}
    return {
        "tuned": Arm(recipe, reward, seeds),
        "documented rate": Arm(dataclasses.replace(recipe, learning_rate=documented.learning_rate), reward, seeds),
        "documented settings": Arm(dataclasses.replace(documented, **same), reward),
        "sign of TRL 0.14": Arm(recipe, wrong_reward),
        "tuned, vLLM": Arm(dataclasses.replace(recipe, backend="vllm"), reward),
    }
