"""From the names that metrics have in TRL's versions, verl, W&B, TensorBoard and notebooks to one table of steps."""

import re
from bisect import bisect_left
from collections.abc import Iterable

import numpy as np
import pandas as pd

from ..errors import RunError

# Canonical name -> the names that logs use, best first. `train/` in front, as W&B and TensorBoard write it, is left out; so is
# what parts the words of a name: `critic/score/mean`, `critic_score_mean` and `critic / score / mean` are one.
NAMES: dict[str, tuple[str, ...]] = {
    "step": ("step", "global_step", "training/global_step", "global_step/max_steps", "_step", "training_step", "iteration"),
    "epoch": ("epoch", "training/epoch"),
    "reward": ("reward", "critic/score/mean", "critic/rewards/mean", "objective/scores", "reward/mean", "mean_reward",
               "rewards/mean", "rewards/total_mean", "avg_reward", "average_reward", "reward_avg"),
    "reward_std": ("reward_std",),
    "zero_std_share": ("frac_reward_zero_std",),
    "score_min": ("critic/score/min",),
    "score_max": ("critic/score/max",),
    "advantage_min": ("critic/advantages/min",),
    "advantage_max": ("critic/advantages/max",),
    "loss": ("loss", "Training Loss", "actor/pg_loss", "loss/policy_avg"),
    "grad_norm": ("grad_norm", "actor/grad_norm"),
    "learning_rate": ("learning_rate", "lr", "actor/lr"),
    "entropy": ("entropy", "actor/entropy", "actor/entropy_loss", "policy/entropy_avg"),
    "kl": ("kl", "actor/kl_loss", "critic/kl", "actor/reward_kl_penalty", "objective/kl", "kl_divergence", "mean_kl"),
    "clipped_ratio": ("completions/clipped_ratio", "response_length/clip_ratio"),
    "mean_length": ("completions/mean_length", "completion_length", "response_length/mean", "response_length",
                    "avg_response_len"),
    "max_length": ("completions/max_length", "response_length/max"),
    "mean_terminated_length": ("completions/mean_terminated_length",),
    "clip_region": ("clip_ratio/region_mean", "clip_ratio", "actor/pg_clipfrac", "policy/clipfrac_avg"),
    "logp_difference": ("sampling/sampling_logp_difference/mean",),
    "probability_difference": ("training/rollout_probs_diff_mean",),
    "ratio_min": ("sampling/importance_sampling_ratio/min",),
    "ratio_mean": ("sampling/importance_sampling_ratio/mean",),
    "ratio_max": ("sampling/importance_sampling_ratio/max",),
    "tool_calls": ("tools/call_frequency",),
    "eos_tokens": ("val/num_eos_tokens",),
    "episodes": ("episode",),
    "step_time": ("step_time", "timing_s/step", "perf/time_per_step"),
    # Recorded by the workbench's own runs, from the ids.
    "true_clipped": ("stops/clipped_ratio",),
    "identical_groups": ("groups/identical",),
}  # fmt: skip
PART = "rewards/"  # before the name of a reward function, whose mean the column holds
_FINITE = ("loss", "grad_norm", "reward")  # a run whose numbers these are not is damaged
_RL = {"reward", "mean_length", "clipped_ratio", "zero_std_share", "reward_std", "eos_tokens"}
_ABOUT = ["step", "epoch", "episodes", "step_time"]  # a line of these alone, as of an evaluation, logs no step
_REWARD = re.compile(r"(?:train/)?rewards ?/ ?(.+?)(?: ?/ ?mean)?")
_APART = re.compile(r"[\s/_.-]+")


def plain(name) -> str:
    """A metric's name without what parts its words.

    Example:
        >>> plain("train/completions / mean_length")
        'completions_mean_length'
    """
    return _APART.sub("_", str(name)).strip("_").lower().removeprefix("train_")


_PLAIN = {name: [plain(s) for s in dict.fromkeys((*spellings, name))] for name, spellings in NAMES.items()}


def canonical(columns: Iterable[str]) -> dict[str, str]:
    """The columns of a log that are known here -> their name here.

    Where a log has two columns for one metric, the first in `NAMES` is taken. The name here is known too.

    Example:
        >>> canonical(["train/global_step", "_step", "train/reward", "gpu"])
        {'train/global_step': 'step', 'train/reward': 'reward'}
        >>> canonical(["Step", "critic_score_mean", "completions / mean_length"])
        {'Step': 'step', 'critic_score_mean': 'reward', 'completions / mean_length': 'mean_length'}
    """
    columns = list(columns)
    exact = {column.removeprefix("train/"): column for column in columns} | {column: column for column in columns}
    loose = {plain(column): column for column in reversed(columns)}
    found: dict[str, str] = {}
    for name, spellings in NAMES.items():
        column = next((exact[s] for s in (*spellings, name) if s in exact), None)
        column = column or next((loose[s] for s in _PLAIN[name] if s in loose), None)
        if column is not None:
            found.setdefault(column, name)
    return found


def of_reinforcement_learning(columns: Iterable[str]) -> bool:
    """Whether a log with these columns has a reward, a completion length or a metric of groups."""
    return bool(_RL & set(canonical(columns).values()))


def reward_columns(columns: Iterable) -> dict[str, str]:
    """Reward function -> the column with its mean, as TRL names it: `rewards/f/mean`, or `rewards/f` before 0.17.

    Example:
        >>> reward_columns(["reward", "rewards/mean", "rewards/f/mean", "rewards/f/std"])
        {'f': 'rewards/f/mean'}
    """
    columns = list(columns)
    found = {column: _REWARD.fullmatch(str(column)) for column in columns}
    known = {"reward", *canonical(map(str, columns))}
    return {m[1]: c for c, m in found.items() if m and str(c) not in known and not m[1].endswith(("/std", "/ std"))}


def steps_table(raw: pd.DataFrame, source: str) -> tuple[pd.DataFrame, tuple[float, ...], list[str]]:
    """The steps of a log under canonical names, in order and each once.

    Also the step numbers as they stood, and a sentence for each thing that is wrong with the values.

    Example:
        >>> table, order, damage = steps_table(pd.DataFrame({"global_step": [2, 1], "train/reward": ["0.5", 1]}), "a.csv")
        >>> table.to_dict("list"), order, damage
        ({'step': [1.0, 2.0], 'reward': [1.0, 0.5]}, (2.0, 1.0), [])
    """
    raw = raw.rename(columns=str)
    known = canonical(raw.columns)
    if not _RL & set(known.values()):
        has = ", ".join(list(raw.columns)[:12]) or "no column"
        raise RunError(f"{source}: no reward, completion length or group metric in it, it has {has}; expected the log of "
                       "a GRPO, RLOO, PPO or OnlineDPO training")  # fmt: skip
    parts = {column: PART + name for name, column in reward_columns(raw.columns).items()}
    table = raw[[*known, *parts]].rename(columns=known | parts)
    if "step" in table and not pd.api.types.is_numeric_dtype(table["step"]):
        table["step"] = table["step"].astype(str).str.partition("/")[0]  # ms-swift's `9/547`
    table = table.apply(pd.to_numeric, errors="coerce").astype(float)
    damage, counted = [], False
    if "step" not in table:
        table.insert(0, "step", np.arange(1, len(table) + 1, dtype=float))
        damage.append("the log has no step numbers: its lines are counted")
        counted = True
    logged = table.drop(columns=_ABOUT, errors="ignore").notna().any(axis=1)
    table = table[logged & table["step"].notna() & np.isfinite(table["step"])]
    if not len(table):
        raise RunError(f"{source}: no step with a number in it; expected at least one logged step")
    for name in set(_FINITE) & set(table):
        begun = table[name].loc[table[name].first_valid_index() :]  # verl may train the critic alone at first
        if bad := int(np.isinf(table[name]).sum()):
            damage.append(f"{name} is infinite in {bad} of {len(table)} steps")
        elif name != "reward" and 0 < (bad := int(begun.isna().sum())) < 0.2 * len(table):
            damage.append(f"{name} is no number in {bad} of {len(table)} steps")
    table = table.replace([np.inf, -np.inf], np.nan)
    if counted and "epoch" in table:
        table["step"] = _counted(table["epoch"].ffill())
    order = tuple(table["step"])
    table = table.groupby("step", as_index=False).last()  # of a step that is there twice the last value of each metric
    return table[[name for name in (*NAMES, *parts.values()) if name in table]], order, sorted(damage)


def _counted(epochs: Iterable[float]) -> list[float]:
    """Step numbers by epochs: where these go back, it is to the step after the last one with an earlier epoch."""
    order: list[float] = []
    path: list[float] = []  # epochs of the steps up to here
    for epoch in epochs:
        if path and epoch < path[-1]:
            del path[bisect_left(path, epoch) :]
        path.append(epoch)
        order.append(float(len(path)))
    return order
