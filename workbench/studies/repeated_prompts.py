"""The search task trained under vLLM where prompts repeat and where none does, with and without a seed (article A3).

For notebook 04. `duplicate_prompts.py` looks at single batches of equal prompts; here their curves are made.
"""

import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd

from ..curves.stats import Interval, one_seed, seed_interval
from ..errors import ParameterError
from ..generation.stops import StopSpec
from ..recipes.recipes import Recipe, make_recipe
from ..runs.files import read_json
from ..runs.run import Run
from ..toys.search_task import CLOSE, search_prompts
from ..training.rewards import exact_match_reward
from .arms import Arm, column_means, train_arms
from .custom_stops import ObservedGRPOTrainer
from .duplicate_prompts import sampler_layout

SEEDED, STOCK, OURS, SHARED = "stock, a seed", "stock, no seed", "workbench, generation_seed", "workbench, shared too"
LEARNING = (STOCK, OURS, SHARED)
NONE, HALF = "no prompt repeats", "half of the prompts repeat"
ROWS, TIMES, PROMPTS_PER_BATCH = 96, 6, 16  # six whole batches; TRL's sampler drops what does not fill one


def repeating_rows(rows: Sequence[dict], count: int, times: int, seed: int = 0) -> list[dict]:
    """`count` rows, half of them prompts that stand once, half of them prompts that stand `times` times.

    TRL's sampler shuffles rows, so that a prompt that stands but twice seldom meets itself in a batch; few prompts that
    stand often do.

    Args:
        rows: all different, at least as many as are needed.
        count: rows wanted, a multiple of 2 x times.
        times: 1 for no repetition.
        seed: which rows are taken, and which of them repeat.

    Raises:
        ParameterError: too few rows, or a count that cannot be split so.

    Example:
        >>> made = repeating_rows([{"prompt": name} for name in "abcdefgh"], 8, 2)
        >>> pd.Series([row["prompt"] for row in made]).value_counts().tolist()
        [2, 2, 1, 1, 1, 1]
    """
    if times < 1 or count < 1 or count % (2 * times):
        raise ParameterError(f"count={count}: expected a multiple of 2 x times, 2 x {times}")
    once, often = count // 2, count // 2 // times
    if len(rows) < once + often:
        raise ParameterError(
            f"{len(rows)} rows: {once + often} different ones are needed for count={count}, times={times}"
        )
    mixed = random.Random(seed).sample(list(rows), len(rows))
    return mixed[:once] + mixed[once : once + often] * times


def save_data(folder: Path) -> dict[str, Path]:
    """Write the two data sets as JSONL with `prompt` and `answer`; name -> file. Equally many rows, in no order."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, times in {NONE: 1, HALF: TIMES}.items():
        files[name] = folder / f"{name.replace(' ', '-')}.jsonl"
        rows = repeating_rows(search_prompts(), ROWS, times)
        files[name].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return files


def repeats_in_batches(prompts: Sequence[str], *, num_generations: int, seed: int) -> list[int]:
    """Of each batch of one epoch, as TRL's sampler draws them: how many of its prompts are there already.

    Args:
        prompts: of the data set's rows.
        num_generations: G.
        seed: of the training, which decides the shuffle.

    Example:
        >>> repeats_in_batches(["a"] * 16 + ["b"] * 16, num_generations=2, seed=0)
        [14, 14]
    """
    sizes = {"num_generations": num_generations, "prompts_per_batch": PROMPTS_PER_BATCH, "seed": seed}
    batches = sampler_layout(prompts=len(prompts), **sizes)
    return [PROMPTS_PER_BATCH - len({prompts[n] for n in batch}) for batch in batches]


def search_recipe(model: str, *, steps: int, num_generations: int) -> Recipe:
    """Whole epochs of `save_data`'s rows in few steps, at a rate at which the search model learns in them."""
    sizes = {"num_generations": num_generations, "per_device_train_batch_size": PROMPTS_PER_BATCH * num_generations}
    return make_recipe(model, backend="vllm", max_steps=steps, learning_rate=6e-4, max_completion_length=24, **sizes)


def repeated_prompt_arms(recipe: Recipe, sampling_seed: int) -> dict[str, Arm]:
    """Stock TRL with a seed among `generation_kwargs` and without; the workbench's with `generation_seed`, and sharing.

    Args:
        recipe: with `backend="vllm"` and a data set that has an `answer` column; reward 1 for the exact answer.
        sampling_seed: of the three arms that have one.
    """
    reward, spec = exact_match_reward("answer"), StopSpec(stop=(CLOSE,))
    kwargs = {"stop": [CLOSE], "include_stop_str_in_output": True}
    common = {"mask_truncated_completions": False, "save_strategy": "no"}  # masking is the matter of notebook 02
    ours = {"generation_seed": sampling_seed} | common
    seeded = {"generation_kwargs": kwargs | {"seed": sampling_seed}} | common
    return {
        SEEDED: Arm(recipe, reward, ObservedGRPOTrainer, spec, seeded),
        STOCK: Arm(recipe, reward, ObservedGRPOTrainer, spec, {"generation_kwargs": kwargs} | common),
        OURS: Arm(recipe, reward, stops=spec, options=ours),
        SHARED: Arm(recipe, reward, stops=spec, options=ours | {"share_generation": True}),
    }


def train_repeated(
    recipe: Recipe, data: Mapping[str, Path], *, out_dir: Path, seeds: Iterable[int]
) -> dict[str, dict[str, list[Run]]]:
    """Every arm on every data set, one after the other on one engine: data set -> arm -> runs in the order of the seeds.

    Each seed is that of sampling too: with one for all, the luck of its random numbers would be in every run, and outside
    of any interval over seeds.

    Args:
        recipe: its data set is replaced.
        data: name -> file, as from `save_data`.
        out_dir: holds `<data set>/<arm>/seed-<n>`.
        seeds: of the study.
    """
    runs: dict[str, dict[str, list[Run]]] = {name: {} for name in data}
    for name, seed in itertools.product(data, seeds):
        arms = repeated_prompt_arms(dataclasses.replace(recipe, dataset=str(data[name])), seed)
        for arm, members in train_arms(arms, out_dir=Path(out_dir) / data[name].stem, seeds=[seed]).items():
            runs[name].setdefault(arm, []).extend(members)
    return runs


def ends(run: Run) -> tuple[float, float]:
    """Mean reward over the first and the last quarter of a run's steps, one step at least.

    With the notebook's numbers a quarter is an epoch, so that both ends are over the same prompts.
    """
    reward = run.metrics["reward"].to_numpy(float)
    quarter = max(1, len(reward) // 4)
    return float(reward[:quarter].mean()), float(reward[-quarter:].mean())


def rise(arms: Sequence[Sequence[Run]], rng: np.random.Generator) -> Interval:
    """Reward over the last quarter of the steps less that over the first, of each seed the mean over the arms.

    Args:
        arms: one or several, each with its runs in the order of the seeds.
        rng: of the interval.
    """
    return _over_seeds(_by_seed(arms, lambda run: ends(run)[1] - ends(run)[0]), rng)


def end_gain(ours: Sequence[Sequence[Run]], theirs: Sequence[Sequence[Run]], rng: np.random.Generator) -> Interval:
    """Reward over the last quarter of the steps, ours less theirs; arguments as in `rise`."""
    return _over_seeds(_by_seed(ours, lambda run: ends(run)[1]) - _by_seed(theirs, lambda run: ends(run)[1]), rng)


def _by_seed(arms: Sequence[Sequence[Run]], value: Callable[[Run], float]) -> np.ndarray:
    return np.mean([[value(run) for run in members] for members in arms], axis=0)


def _over_seeds(values: np.ndarray, rng: np.random.Generator) -> Interval:
    return seed_interval(values, rng) if len(values) > 1 else one_seed(float(values[0]))


def repeated_table(runs: Mapping[str, Mapping[str, Sequence[Run]]], rng: np.random.Generator) -> pd.DataFrame:
    """A row per data set and arm, over its seeds.

    Args:
        runs: of `train_repeated`.
        rng: of the intervals.

    Returns:
        Reward over the first and the last quarter of the steps, the rise with its interval (NaN of one seed); share of
        steps without any gradient; requests and prompt tokens a step; median seconds a step; share of batches in which a
        prompt stands twice.
    """
    rows = {(data, name): _row(members, rng) for data, arms in runs.items() for name, members in arms.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["data", "trainer"])


def _row(members: Sequence[Run], rng: np.random.Generator) -> dict[str, float]:
    first, last = np.mean([ends(run) for run in members], axis=0)
    change = rise([members], rng)
    return {
        "reward, first quarter": first,
        "reward, last quarter": last,
        "rise": change.estimate,
        "low": change.low,
        "high": change.high,
        "steps without gradient": fmean((run.metrics["grad_norm"] == 0).mean() for run in members),
        "requests a step": column_means(members, "vllm/requests"),
        "prompt tokens a step": column_means(members, "vllm/prompt_tokens"),
        "seconds a step": fmean(run.metrics["step_time"].median() for run in members),
        "batches with equal prompts": fmean(batches_with_repeats(run) for run in members),
    }


def batches_with_repeats(run: Run) -> float:
    """Share of a run's steps in which a prompt has more completions than the G of one group."""
    most = run.completions.groupby("step")["prompt"].agg(lambda prompts: prompts.value_counts().max())
    return float((most > read_json(run.path / "recipe.json", {})["recipe"]["num_generations"]).mean())
