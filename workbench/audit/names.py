"""One table from the names that metrics have in TRL's versions, verl, W&B and TensorBoard to the one name used here."""

from collections.abc import Iterable

# Canonical name -> the names that logs use, best first. `train/` in front, as W&B and TensorBoard write it, is left out.
NAMES: dict[str, tuple[str, ...]] = {
    "step": ("step", "global_step", "training/global_step", "_step", "Step"),
    "epoch": ("epoch", "training/epoch"),
    "reward": ("reward", "critic/rewards/mean", "critic/score/mean", "objective/scores"),
    "reward_std": ("reward_std",),
    "zero_std_share": ("frac_reward_zero_std",),
    "loss": ("loss", "actor/pg_loss", "loss/policy_avg"),
    "grad_norm": ("grad_norm", "actor/grad_norm"),
    "learning_rate": ("learning_rate", "lr", "actor/lr"),
    "entropy": ("entropy", "actor/entropy", "actor/entropy_loss", "policy/entropy_avg"),
    "clipped_ratio": ("completions/clipped_ratio", "response_length/clip_ratio"),
    "mean_length": ("completions/mean_length", "completion_length", "response_length/mean"),
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
}


def canonical(columns: Iterable[str]) -> dict[str, str]:
    """The columns of a log that are known here -> their name here.

    Where a log has two columns for one metric, the first in `NAMES` is taken. The name here is known too.

    Example:
        >>> canonical(["train/global_step", "_step", "train/reward", "gpu"])
        {'train/global_step': 'step', 'train/reward': 'reward'}
    """
    there = {column.removeprefix("train/"): column for column in columns}
    there |= {column: column for column in columns}
    found = {}
    for name, spellings in NAMES.items():
        column = next((there[s] for s in (*spellings, name) if s in there), None)
        if column is not None:
            found[column] = name
    return found
