"""Rules about steps that teach nothing: which of several causes makes the gradient zero."""

import numpy as np
import pandas as pd

from ..logs.log import Log
from .finding import FOUND, INFORMATION, PROBLEM, WARNING, Finding, absent, unknown
from .trends import highest_reward, rises, zero_rate

_FEW, _MANY, _HALF = 0.05, 0.2, 0.5  # share of steps
_SHORT = 40  # steps


def equal_groups(log: Log) -> np.ndarray | None:
    """Share of groups at each step whose rewards are all equal, (N,), as logged or from the completions.

    Where only the spread of the rewards is logged, or verl's advantages, it is 1 where all groups are equal, and else 0.
    """
    logged = log.metric("zero_std_share")
    if logged is not None:
        return logged
    if log.groups is not None and "rewards" in log.groups:
        return _share(log, log.groups["step"], log.groups["rewards"] <= 1)
    spread = log.metric("reward_std")
    for low, high in (("advantage_min", "advantage_max"), ("score_min", "score_max")):
        lowest, highest = log.metric(low), log.metric(high)
        if spread is None and lowest is not None and highest is not None:
            spread = highest - lowest
    if spread is None or not log.grouped:
        return None
    return np.where(np.isnan(spread), np.nan, spread == 0)


def same_texts(log: Log) -> np.ndarray | None:
    """Share of groups at each step whose completions are all the same text, (N,)."""
    if log.groups is None:
        return log.metric("identical_groups")
    return _share(log, log.groups["step"], log.groups["texts"] <= 1)


def _share(log: Log, steps: pd.Series, groups: pd.Series) -> np.ndarray | None:
    """Share of the groups at each step, (N,); None where no group is of a logged step."""
    share = groups.groupby(steps).mean().reindex(log.steps["step"]).to_numpy(float)
    return None if np.isnan(share).all() else share


def copies(log: Log) -> Finding:
    """Whether each group is one completion, copied: from the first steps on, by a policy that is not sure of itself.

    A policy that has learned one answer repeats it too, but not from the start. Where the entropy is near zero from the
    start, nothing tells the two apart.
    """
    rule, same = "copies", same_texts(log)
    if not log.grouped:
        return absent(rule, "This trainer does not compare groups.")
    if same is None:
        equal = equal_groups(log)
        if equal is not None and np.nanmean(equal) < 0.9:
            return absent(rule, "Rewards differ within groups, so completions do.")
        return unknown(
            rule, "Give completions (log_completions=True), and num_generations where prompts do not show it."
        )
    known = same[~np.isnan(same)]
    start = known[: max(1, len(known) // 4)]
    if known.mean() < 0.9 or start.mean() < 0.9:
        return absent(rule, f"{known.mean():.0%} of the groups are one text repeated.", share=float(known.mean()))
    entropy, length = log.metric("entropy"), log.metric("mean_length")
    spread = None if entropy is None else np.nanmedian(entropy * (1 if length is None else length))
    if spread is not None and spread < (0.01 if length is None else 1.0):
        return unknown(
            rule,
            "Sample the prompts again without a seed and with temperature 1.",
            "All completions of a group are the same, but the policy is so sure of its answers that it would repeat them "
            "anyway.",
        )
    shown = "" if entropy is None else f", although the policy's entropy is {np.nanmedian(entropy):.2g}"
    return Finding(
        rule,
        FOUND,
        f"{known.mean():.0%} of the groups are one completion, copied{shown}: there is nothing to compare, so nothing is "
        "learned.",
        severity=PROBLEM,
        steps=log.at(np.nan_to_num(same) >= 0.9),
        evidence={
            "share of groups of one text": float(known.mean()),
            "the same in the first quarter": float(start.mean()),
        },
        cost={"share of groups": float(known.mean())},
        advice="Remove `seed` from generation_kwargs (each request gets the same one), and check that temperature is not 0.",
        notebook="04_duplicate_prompts",
    )


def zero_gradient(log: Log) -> Finding:
    """Which steps had a gradient of zero, and why: `masked`, `copies`, `equal-rewards`, `learning-rate`, `clip`."""
    rule, norm, equal = "zero-gradient", log.metric("grad_norm"), equal_groups(log)
    if norm is None and equal is None:
        return unknown(rule, "Log grad_norm or frac_reward_zero_std.")
    dead = np.zeros(len(log.steps), bool) if norm is None else np.asarray(norm == 0)
    if equal is not None and (norm is None or _has_a_kl_term(log)):  # whose gradient is never exactly 0
        dead |= equal >= 1 - 1e-6
    share = float(dead.mean())
    idle = zero_rate(log)
    idle = np.zeros(len(dead), bool) if idle is None else idle
    if len(idle) > 2 and idle[1:-1].mean() >= _MANY:
        return _dead(log, idle, "learning-rate", {"learning-rate": int(idle.sum())})
    if share < _FEW:
        return absent(rule, f"{share:.0%} of the steps have no gradient.", share=share)
    causes = _causes(log, dead, equal)
    counts = {name: int(where.sum()) for name, where in causes.items() if where.any()}
    cause = max(counts, key=counts.__getitem__)
    # A line of several steps has the gradient of the last one, and a share of equal groups that is a mean over all.
    if cause == "unknown" and equal is not None and not log.each_step and share <= np.nanmean(equal) + 0.25:
        cause = "equal-rewards"
    return _dead(log, dead, cause, counts)


def _has_a_kl_term(log: Log) -> bool:
    """Whether something other than rewards makes a gradient: a penalty on the KL to the reference, or verl's entropy."""
    kl = log.metric("kl")
    return (kl is not None and bool(np.nanmax(np.abs(kl)) > 0)) or log.trainer == "verl"


def _causes(log: Log, dead: np.ndarray, equal: np.ndarray | None) -> dict[str, np.ndarray]:
    """Cause -> the dead steps that it explains, each step once."""
    none = np.zeros(len(dead), bool)
    alike = none if equal is None else (_carried(equal) >= 1 - 1e-6)
    # The mask follows the clipped ratio as it was logged, true or not.
    clipped, region = log.logged("clipped_ratio"), log.metric("clip_region")
    clipped = None if clipped is None else _carried(clipped)
    left = dead.copy()
    found: dict[str, np.ndarray] = {}

    def take(name: str, where: np.ndarray) -> None:
        found[name] = left & where
        left[found[name]] = False

    take("copies", alike if copies(log).verdict == FOUND else none)
    take("equal-rewards", alike)
    if equal is not None:
        take("masked", none if clipped is None else (clipped >= 1 - 1e-6))
        take("clip", none if region is None else (region >= 0.999))
    take("unknown", ~none)
    return found


def _carried(values: np.ndarray) -> np.ndarray:
    """Where a step has no value, that of the step before: it used the same completions once more."""
    return pd.Series(values).ffill().to_numpy()


_WORDS = {
    "masked": "all completions were left out of the loss as truncated, although rewards differ",
    "copies": "all completions of a group are the same",
    "equal-rewards": "all completions of each group got the same reward",
    "learning-rate": "the learning rate is 0",
    "clip": "every token's ratio was clipped",
    "unknown": "the log does not show why",
}
_ADVICE = {
    "masked": "Set mask_truncated_completions=False, or make completions that stop count as such; see masked-stops.",
    "copies": "Remove `seed` from generation_kwargs.",
    "equal-rewards": "Use prompts of which some completions succeed and some fail, a finer reward, or more generations.",
    "learning-rate": "Check learning_rate, the scheduler and its warm-up.",
    "clip": "Lower the learning rate or num_iterations, or raise epsilon.",
    "unknown": "Log {}.",
}
_NOTEBOOKS = {"masked": "02_grpo_custom_stops", "copies": "04_duplicate_prompts"}


def _dead(log: Log, dead: np.ndarray, cause: str, counts: dict) -> Finding:
    share, words, severity = float(dead.mean()), _WORDS[cause], PROBLEM
    reward, top = log.metric("reward"), highest_reward(log)
    if cause == "equal-rewards" and reward is not None and not np.isnan(reward[dead]).all():
        where, severity = _level(float(np.nanmean(reward[dead])), reward, top)
        words += where
    chance = share < 2 / 3 and len(dead) < _SHORT  # too few steps to say that the others do not raise the reward
    many = _HALF if cause == "equal-rewards" else _MANY  # a batch of few groups has such steps now and then
    if severity == PROBLEM and (share < many or (cause == "equal-rewards" and (chance or rises(reward)))):
        severity = WARNING
    return Finding(
        "zero-gradient",
        FOUND,
        f"{share:.0%} of the {'steps' if log.each_step else 'logged steps'} {_what(log, dead)}: {words}.",
        severity=severity,
        cause=cause,
        steps=log.at(dead),
        evidence={"steps": int(dead.sum()), "of": len(dead), "steps by cause": counts},
        cost={"share of steps": share} | _seconds(log, dead),
        advice=_advice(log, cause),
        notebook=_NOTEBOOKS.get(cause),
    )


def _what(log: Log, dead: np.ndarray) -> str:
    norm = log.metric("grad_norm")
    moved = norm is not None and float((norm[dead] > 0).mean()) > 0.5
    return "learn nothing from rewards, whatever gradient other terms give" if moved else "change nothing"


def _advice(log: Log, cause: str) -> str:
    wanted = {"zero_std_share": "frac_reward_zero_std", "clipped_ratio": "completions/clipped_ratio"}
    absent = [name for metric, name in wanted.items() if log.logged(metric) is None]
    if cause != "unknown" or absent:
        return _ADVICE[cause].format(", ".join([*absent, "completions"]))
    return (
        "Rewards differ, and no row is masked: see whether the training engine, such as DeepSpeed, loses the gradient."
    )


def _level(dead: float, reward: np.ndarray, top: float | None) -> tuple[str, str]:
    """Where the reward of steps without gradient stands, in words, and how severe that is.

    Args:
        dead: mean reward of those steps.
        reward: of all steps.
        top: the largest possible, or None: then the largest of the run may be a solved task, which is no problem.

    Example:
        >>> _level(1.0, np.array([0.0, 1.0]), 1.0), _level(0.0, np.array([0.0, 0.5]), 1.0)
        ((', the highest there is', 'information'), (', the lowest of the run', 'problem'))
        >>> _level(1.0, np.array([0.0, 1.0]), None)
        (', the highest of the run', 'warning')
    """
    low, high = float(np.nanmin(reward)), float(np.nanmax(reward))
    if top is not None and top > 0 and dead >= 0.95 * top:
        return ", the highest there is", INFORMATION
    if top is None and high - dead <= 0.05 * (high - low) and (high > low or high > 0):
        return ", the highest of the run", WARNING
    return (", the lowest of the run" if dead - low <= 0.05 * (high - low) else ""), PROBLEM


def _seconds(log: Log, where: np.ndarray) -> dict[str, float]:
    time = log.metric("step_time")
    return {} if time is None else {"seconds": float(np.nansum(time[where]))}
