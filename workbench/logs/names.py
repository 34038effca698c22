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
    "step": ("step", "global_step", "training/global_step", "global_step/max_steps", "trainer/global_step", "_step",
             "training_step", "rollout/step", "progress/batch", "iteration", "iter", "update"),
    "epoch": ("epoch", "training/epoch"),
    # Any mean of rewards is known without a place here, see `_is_mean_reward`.
    "reward": ("reward", "critic/score/mean", "critic/rewards/mean", "objective/scores", "reward/mean", "rollout/raw_reward",
               "env/all/reward/total", "reward/avg_raw_reward", "ppo_actor/task_reward/avg", "grpo_actor/task_reward/avg",
               "rewards/total_mean", "avg_r_total", "scores", "objective/verifiable_reward"),
    "reward_std": ("reward_std", "group_reward_std"),
    "zero_std_share": ("frac_reward_zero_std", "zero_advantage"),
    # Groups in which nothing, everything and something was solved, as shares, percent or counts.
    "all_bad_share": ("env/all/by_group/frac_all_bad", "by_group/frac_all_bad", "batch/solve_none", "solve_none", "solved_none",
                      "all/all/solved_none", "baseline_reward/pct_0"),
    "all_good_share": ("env/all/by_group/frac_all_good", "by_group/frac_all_good", "batch/solve_all", "solve_all", "solved_all",
                       "all/all/solved_all", "baseline_reward/pct_1"),
    "mixed_share": ("env/all/by_group/frac_mixed", "by_group/frac_mixed", "batch/solve_partial", "solve_partial",
                    "solved_some", "all/all/solved_some", "baseline_reward/pct_mixed"),
    "score_min": ("critic/score/min",),
    "score_max": ("critic/score/max",),
    "advantage_min": ("critic/advantages/min",),
    "advantage_max": ("critic/advantages/max",),
    "loss": ("loss", "Training Loss", "actor/pg_loss", "loss/policy_avg", "loss/mean", "policy_loss", "pg_loss", "actor_loss",
             "act_loss", "policy/policy_loss", "ppo_actor/update/actor_loss/avg", "grpo_actor/actor_loss/avg", "policy_avg"),
    "value_loss": ("loss/value_avg", "critic/vf_loss", "critic_loss", "vf_loss", "value_loss", "policy/value_loss"),
    "grad_norm": ("grad_norm", "actor/grad_norm", "optim/grad_norm", "actor_grad_norm", "policy/grad_norm",
                  "policy/raw_grad_norm", "ppo_actor/update/grad_norm", "grpo_actor/grad_norm"),
    "learning_rate": ("learning_rate", "lr", "actor/lr", "optim/lr", "actor_lr", "policy/policy_lr", "lr-pg_0",
                      "ppo_actor/update/lr", "grpo_actor/lr"),
    "entropy": ("entropy", "actor/entropy", "actor/entropy_loss", "policy/entropy_avg", "optim/entropy", "entropy/all/mean",
                "entropy_loss", "policy/policy_entropy", "ppo_actor/update/entropy/avg", "grpo_actor/entropy/avg",
                "entropy_avg"),
    "kl": ("kl", "actor/kl_loss", "critic/kl", "actor/reward_kl_penalty", "objective/kl", "kl_divergence", "mean_kl", "kl_avg",
           "kl_loss", "kl_div", "kl_ref", "policy/policy_kl"),
    "clipped_ratio": ("completions/clipped_ratio", "response_length/clip_ratio", "rollout/truncated_ratio",
                      "rollout/truncated_rate", "rollout/truncated", "is_truncated/mean", "truncation",
                      "ppo_actor/no_eos_ratios/avg", "grpo_actor/no_eos_ratios/avg", "response_clip_ratio",
                      "val/truncated_completion_fraction", "truncation_rate", "length/cap_hit_rate"),
    "stopped_share": ("val/stop_rate", "stop_rate", "val/contain_eos_token"),  # `clipped_ratio` where that is not logged
    "mean_length": ("completions/mean_length", "completion_length", "response_length/mean", "response_length",
                    "avg_response_len", "rollout/response_len/mean", "rollout/response_length_mean",
                    "env/all/ac_tokens_per_turn", "generate/avg_num_tokens", "mean_gen_tokens_per_sample",
                    "gen_tokens_per_sample/mean",
                    "mean_generation_length", "num_output_tokens/mean", "batch/step_response_length/mean",
                    "val/sequence_lengths", "sequence_lengths", "gen_len", "length/mean", "avg_resp_len"),
    "max_length": ("completions/max_length", "response_length/max", "rollout/response_len/max", "generate/max_num_tokens",
                   "val/sequence_lengths_max", "num_output_tokens/max"),
    "prompt_clipped": ("prompt_length/clip_ratio",),
    "prompt_max": ("prompt_length/max",),
    "prompt_min": ("prompt_length/min",),
    "mean_terminated_length": ("completions/mean_terminated_length",),
    "clip_region": ("clip_ratio/region_mean", "clip_ratio", "actor/pg_clipfrac", "policy/clipfrac_avg", "pg_clipfrac",
                    "clip_fraction", "policy/ppo_clip_ratio", "ppo_actor/update/clip_ratio/avg", "grpo_actor/clip_ratio/avg",
                    "clipfrac_avg", "clip_frac"),
    "logp_difference": ("sampling/sampling_logp_difference/mean", "train/train_rollout_logprob_abs_diff",
                        "policy/rollout_train_logprobs_abs_diff_mean"),
    "probability_difference": ("training/rollout_probs_diff_mean",),
    "mismatch_kl": ("mismatch_kl/all/mean", "mismatch_kl/mean", "optim/kl_sample_train_v1", "gen_kl_error",
                    "generation_kl_error"),
    "ratio_min": ("sampling/importance_sampling_ratio/min",),
    "ratio_mean": ("sampling/importance_sampling_ratio/mean", "rollout_corr/rollout_is_mean", "mismatch/rollout_is_mean"),
    "ratio_max": ("sampling/importance_sampling_ratio/max",),
    "tool_calls": ("tools/call_frequency",),
    # Shares from 0 to 1: of calls that fail (TRL), of rollouts that end in an error (prime-rl); of valid turns (verl).
    "tool_failures": ("tools/failure_frequency", "error/mean"),
    "tool_successes": ("env/ratio_of_valid_action",),
    "eos_tokens": ("val/num_eos_tokens",),
    "episodes": ("episode",),
    "step_time": ("step_time", "timing_s/step", "perf/time_per_step"),
    # Recorded by the workbench's own runs, from the ids and the weights.
    "moved": ("update/moved",),
    "true_clipped": ("stops/clipped_ratio",),
    "identical_groups": ("groups/identical",),
}  # fmt: skip
# Columns that part the runs of one table, where they hold numbers; those of words need no name.
RUN_NAMES = {"run", "run_id", "seed", "experiment", "exp", "trial", "config", "group"}
PART = "rewards/"  # before the name of a reward function, whose mean the column holds
FINITE = {"loss", "grad_norm", "reward"}  # a run whose numbers these are not is damaged
# What only trainings by rewards log: supervised ones have a loss, a gradient and an entropy too.
_RL = {"reward", "mean_length", "clipped_ratio", "zero_std_share", "all_bad_share", "reward_std", "eos_tokens", "clip_region",
       "logp_difference", "mismatch_kl"}  # fmt: skip
_OF_A_MEAN = {"mean", "avg", "average", "total", "raw", "all", "env", "train", "rollout", "batch", "task", "final"}
_SHARES = ("all_bad_share", "all_good_share", "mixed_share")
_FROM_0_TO_1 = ("zero_std_share", "clipped_ratio", "clip_region", "stopped_share")
_OF_PAIRS = {
    "chosen",
    "rejected",
    "margins",
    "accuracies",
}  # what DPO logs as rewards: log-ratios, which no function gives
_DECIMAL_POINT = r"[-+]?\d+\.\d+(?:[eE][-+]?\d+)?"
_DECIMAL_COMMA, _THOUSANDS = r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?", r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?"
COUNTED = "the log has no step numbers: its lines are counted"
_ABOUT = ["step", "epoch", "episodes", "step_time"]  # a line of these alone, as of an evaluation, logs no step
_REWARD = re.compile(r"(?:train/)?rewards ?/ ?(.+?)(?: ?/ ?mean)?")
_LIKE_ONE = re.compile("reward|score|return|length|truncat|success")  # what a name that is not known may mean
_APART = re.compile(r"[\s/_.-]+")


def plain(name) -> str:
    """A metric's name without what parts its words.

    Example:
        >>> plain("train/completions / mean_length")
        'completions_mean_length'
    """
    return _APART.sub("_", str(name)).strip("_").lower().removeprefix("train_")


_PLAIN = {name: [plain(s) for s in dict.fromkeys((*spellings, name))] for name, spellings in NAMES.items()}


_KNOWN = {spelling for spellings in _PLAIN.values() for spelling in spellings}


def _is_mean_reward(name) -> bool:
    """Say whether a name says a reward and nothing but a mean of it; slime's `rollout/rewards` are centred, so their mean is 0.

    Example:
        >>> [_is_mean_reward(n) for n in ("Total rewards mean", "avg_reward", "format_reward", "reward_max", "rollout/rewards")]
        [True, True, False, False, False]
    """
    words = plain(name).split("_")
    rest = {word for word in words if word not in ("reward", "rewards")}
    return len(rest) < len(set(words)) and rest <= _OF_A_MEAN and plain(name) != "rollout_rewards"


def is_asked_for(name) -> bool:
    """Say whether a column is known, or is of one of several reward functions."""
    short = plain(name)
    return short in _KNOWN or short.startswith("rewards_") or _is_mean_reward(name)


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
        if name == "reward":
            column = column or next(filter(_is_mean_reward, columns), None)
        if column is not None:
            found.setdefault(column, name)
    return found


def of_reinforcement_learning(columns: Iterable[str]) -> bool:
    """Say whether a log with these columns has a reward, a completion length or a metric of groups."""
    return bool(_RL & set(canonical(columns).values()))


def reward_columns(columns: Iterable) -> dict[str, str]:
    """Reward function -> the column with its mean, as TRL names it: `rewards/f/mean`, or `rewards/f` before 0.17.

    Example:
        >>> reward_columns(["reward", "rewards/mean", "rewards/f/mean", "rewards/f/std"])
        {'f': 'rewards/f/mean'}
    """
    columns = list(columns)
    found = {column: _REWARD.fullmatch(str(column)) for column in columns}
    known = {"reward", "rewards/mean", "rewards/std", *canonical(map(str, columns))}
    parts = {m[1]: c for c, m in found.items() if m and str(c) not in known and not m[1].endswith(("/std", "/ std"))}
    return {name: c for name, c in parts.items() if name not in _OF_PAIRS or not {"chosen", "rejected"} <= parts.keys()}


def steps_table(raw: pd.DataFrame, source: str) -> tuple[pd.DataFrame, pd.Series, list[str]]:
    """The steps of a log under canonical names, in order and each once.

    Also the step of each row that logs one, as they stood, and a sentence for each thing that is wrong with the values.

    Example:
        >>> table, order, damage = steps_table(pd.DataFrame({"global_step": [2, 1], "train/reward": ["0.5", 1]}), "a.csv")
        >>> table.to_dict("list"), list(order), damage
        ({'step': [1.0, 2.0], 'reward': [1.0, 0.5]}, [2.0, 1.0], [])
    """
    raw = raw.rename(columns=str)
    known = _with_a_step_that_counts(raw, canonical(raw.columns))
    if not (_RL & set(known.values()) or _has_dead_steps(raw, known)):
        first = sorted(raw.columns, key=lambda column: not _LIKE_ONE.search(column.lower()))[:12]
        has = f"it has {', '.join(first)}" if first else "it has no column"
        more = f" and {len(raw.columns) - len(first)} more" * (len(raw.columns) > len(first))
        raise RunError(
            f"{source}: no reward, completion length or group metric in it by a known name, {has}{more}; "
            "expected the log of a GRPO, RLOO, PPO or OnlineDPO training. A column called `reward` is always known"
        )
    entropy = next((column for column, name in known.items() if name == "entropy"), "")
    parts = {column: PART + name for name, column in reward_columns(raw.columns).items()}
    table = raw[[*known, *parts]].rename(columns=known | parts)
    if "step" in table and not pd.api.types.is_numeric_dtype(table["step"]):
        table["step"] = table["step"].astype(str).str.partition("/")[0]  # ms-swift's `9/547`
    table = _without_signs(table).apply(pd.to_numeric, errors="coerce").astype(float)
    if entropy.endswith("entropy_loss") and (table["entropy"].dropna() <= 0).all():
        table["entropy"] = -table["entropy"]  # a loss that is minus the entropy
    damage, counted = [], False
    for name in set(_FROM_0_TO_1) & set(table):
        if (most := table[name].max()) > 1 + 1e-6:
            column = next(column for column, known_as in known.items() if known_as == name)
            damage.append(f"{column} goes up to {most:.4g} and is no share from 0 to 1: it is left out")
            del table[name]
    if "step" not in table:
        table.insert(0, "step", np.arange(1, len(table) + 1, dtype=float))
        damage.append(COUNTED)
        counted = True
    logged = table.drop(columns=_ABOUT, errors="ignore").notna().any(axis=1)
    table = table[logged & table["step"].notna() & np.isfinite(table["step"])]
    if not len(table):
        raise RunError(f"{source}: no step with a number in it; expected at least one logged step")
    for name in FINITE & set(table):
        # verl may train the critic alone at first; a log that shows what was NaN may end before the last steps are trained.
        until = table[name].last_valid_index() if "rows" in raw.attrs else None
        begun = table[name].loc[table[name].first_valid_index() : until]
        if bad := int(np.isinf(table[name]).sum()):
            damage.append(f"{name} is infinite in {bad} of {len(table)} steps")
        elif name != "reward" and 0 < (bad := int(begun.isna().sum())) < 0.2 * len(table):
            first = table["step"][begun.index[begun.isna()][0]]
            damage.append(f"{name} is no number in {bad} of {len(table)} steps, first in step {first:.0f}")
    if "stopped_share" in table:
        stopped = table.pop("stopped_share")
        table = table.assign(clipped_ratio=1 - stopped) if "clipped_ratio" not in table else table
    table = _with_shares(table.replace([np.inf, -np.inf], np.nan) if np.isinf(table.to_numpy()).any() else table)
    if counted and "epoch" in table:
        table["step"] = _counted(table["epoch"].ffill())
    elif "epoch" in table:
        table["step"] = _on_over_epochs(table["step"], table["epoch"])
    if not table["step"].is_unique:
        again = ((table == table.shift()) | (table.isna() & table.shift().isna())).all(axis=1)
        if table["step"][~again].is_unique:  # a progress bar, or several processes, printed each line again
            table = table[~again]
    order = table["step"].copy()
    if not (order.is_unique and order.is_monotonic_increasing):
        by_step = table.groupby("step", as_index=False)  # in a log that goes back the last value of each metric counts
        table = by_step.mean() if order.is_monotonic_increasing else by_step.last()
    table = table.reset_index(drop=True)
    return table[[name for name in (*NAMES, *parts.values()) if name in table]], order, sorted(damage)


def _with_a_step_that_counts(raw: pd.DataFrame, known: dict[str, str]) -> dict[str, str]:
    """With W&B's own `_step` as the step where the trainer's is one number in all lines, as one is that nobody counts up.

    With `global_step` where `step` begins again and it does not.
    """
    step = next((column for column, name in known.items() if name == "step"), None)
    other = next((column for column in raw if plain(column) == "global_step" and column != step), None)
    if step is not None and other is not None and not _only_rises(raw[step]) and _only_rises(raw[other]):
        return {other if column == step else column: name for column, name in known.items()}
    reward = next((column for column, name in known.items() if name == "reward"), None)
    if step is None or reward is None or "_step" not in raw or not raw["_step"].is_unique:
        return known
    rewarded = raw[raw[reward].notna()]
    if len(rewarded) < 3 or rewarded[step].nunique() > 1:
        return known
    return {"_step" if column == step else column: name for column, name in known.items()}


def _only_rises(steps: pd.Series) -> bool:
    numbers = pd.to_numeric(steps, errors="coerce").dropna()
    return bool(numbers.is_monotonic_increasing and numbers.nunique() > 1)


def _has_dead_steps(raw: pd.DataFrame, known: dict[str, str]) -> bool:
    """Say whether a log of loss and gradient alone has gradients of exactly 0, which supervised trainings never have."""
    norm = next((column for column, name in known.items() if name == "grad_norm"), None)
    if norm is None or "loss" not in known.values():
        return False
    return bool((pd.to_numeric(raw[norm], errors="coerce") == 0).mean() >= 0.1)


def _with_shares(table: pd.DataFrame) -> pd.DataFrame:
    """Groups without a signal as shares of all groups, whatever unit they have; `zero_std_share` where it is not logged."""
    if not {"all_bad_share", "all_good_share"} <= set(table):
        return table.drop(columns=[name for name in _SHARES if name in table])
    known = table[[name for name in _SHARES if name in table]]
    values = known.to_numpy()[np.isfinite(known.to_numpy())]
    if len(known.columns) < len(_SHARES) and values.max(initial=0) > 1 and not (values % 1).any():
        return table.drop(columns=list(known))  # counts, and of how many groups nobody can say
    whole = known.sum(axis=1) if len(known.columns) == len(_SHARES) else 100.0 if known.max(axis=None) > 1 else 1.0
    shares = known.div(whole, axis=0).drop(columns="mixed_share", errors="ignore")
    own = table["zero_std_share"] if "zero_std_share" in table else shares.sum(axis=1, min_count=2)
    return table.drop(columns=list(known)).assign(zero_std_share=own, **shares)


def _without_signs(table: pd.DataFrame) -> pd.DataFrame:
    """With plain numbers for texts such as `1,024`, for `0,5` where a table has a decimal comma, and for `12.5%`."""
    texts = {
        name: table[name].astype(str).str.strip() for name in table if not pd.api.types.is_numeric_dtype(table[name])
    }
    bare = {name: text.str.removesuffix("%").str.strip() for name, text in texts.items()}
    with_commas = {name: text.str.fullmatch(_DECIMAL_COMMA) for name, text in bare.items()}
    thousands = {name: text.str.fullmatch(_THOUSANDS) for name, text in bare.items()}
    decimal = any((where & ~thousands[name]).any() for name, where in with_commas.items())
    if table.attrs.get("separator") == ";":  # which a spreadsheet takes where the decimals have the comma
        numbers = table.select_dtypes("number").to_numpy(float)
        decimal |= not (
            (numbers % 1 > 0).any() or any(text.str.fullmatch(_DECIMAL_POINT).any() for text in bare.values())
        )
    for name, text in bare.items():
        comma, percent = with_commas[name] if decimal else thousands[name], texts[name].str.endswith("%")
        if comma.any() or percent.any():
            numbers = pd.to_numeric(text.mask(comma, text.str.replace(",", "." if decimal else "")), errors="coerce")
            table = table.assign(**{name: numbers / np.where(percent, 100.0, 1.0)})
    return table


def _on_over_epochs(steps: pd.Series, epochs: pd.Series) -> pd.Series:
    """Step numbers that go on where those of a loop begin again with each epoch, of which every line has the number."""
    back, later = steps.diff() < 0, epochs.diff()
    if not back.any() or epochs.isna().any() or (epochs % 1).any() or (later < 0).any() or (back != (later > 0)).any():
        return steps
    usual = float(steps.diff()[~back].median())
    gained = (steps.shift() + np.where(steps > 0, 0.0, 1.0 if np.isnan(usual) else usual)).where(back, 0.0)
    return steps + gained.cumsum()


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
