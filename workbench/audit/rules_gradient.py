"""Rules about steps that teach nothing: which of several causes makes the gradient zero."""

import numpy as np
import pandas as pd

from ..logs.log import Log
from .finding import CANNOT_TELL, FOUND, NOTE, PROBLEM, WARNING, Finding, absent, found, unknown
from .rule import COMPLETIONS, UPDATES, rule
from .trends import (
    LEAST,
    carried,
    ends_at_the_top,
    highest_reward,
    quarters,
    reward_of,
    rises,
    zero_rate,
    zeros_are_small,
)

_FEW, _MANY, _THIRD, _HALF = 0.05, 0.2, 1 / 3, 0.5  # share of steps
_SHORT = 40  # steps
_APART = 0.2  # by which the last quarter's share of equal groups is off that of the run, so that it is said too
_CLIPPED = 1 / 3  # share of tokens; GRPO with an epsilon of 0.2 clips a few percent, GSPO some 15%
_UNIT = 2.0**-23  # between 1 and the next number of fp32
_OF_BATCH = (("scale_rewards", "batch"), ("multi_objective_aggregation", "normalize_then_sum"))


def equal_groups(log: Log) -> np.ndarray | None:
    """Share of groups at each step whose rewards are all equal, (N,), as logged or from the completions.

    Where only the spread of the rewards is logged, or verl's advantages, or a loss that is often exactly 0, it is 1 where all
    groups are equal, and else 0. A share that is of the batch is used where it is 1: then all of them are.
    """
    logged = log.metric("zero_std_share")
    if logged is not None:
        return logged
    if log.groups is not None and "rewards" in log.groups:
        return _share(log, log.groups["step"], log.groups["rewards"] <= 1)
    if (of_batch := log.logged("zero_std_share")) is not None:
        return np.where(of_batch >= 1 - 1e-6, 1.0, np.nan) if np.nanmax(of_batch) >= 1 - 1e-6 else None
    spread = _spread(log)
    spread = _loss_with_zeros(log) if spread is None else spread
    if spread is None or not log.grouped:
        return None
    return np.where(np.isnan(spread), np.nan, (spread == 0) | _is_rounding(log))


def _spread(log: Log) -> np.ndarray | None:
    """A logged spread of the rewards or advantages at each step, (N,)."""
    spread = log.metric("reward_std")
    for low, high in (("advantage_min", "advantage_max"), ("score_min", "score_max")):
        lowest, highest = log.metric(low), log.metric(high)
        if spread is None and lowest is not None and highest is not None:
            spread = highest - lowest
    return spread


def _is_rounding(log: Log) -> np.ndarray:
    """True at the steps, (N,), whose rewards spread by less than fp32 rounds their mean: they are equal."""
    spread, reward = log.metric("reward_std"), log.metric("reward")
    if spread is None or reward is None:
        return np.zeros(len(log.steps), bool)
    return (spread > 0) & (spread <= 4 * _UNIT * np.abs(reward))


def _only_the_loss_tells(log: Log) -> bool:
    """True where zeros of the loss are all that shows equal groups: left-out completions make the same zeros."""
    of_texts = log.groups is not None and "rewards" in log.groups
    return (
        log.logged("zero_std_share") is None
        and not of_texts
        and _spread(log) is None
        and log.metric("loss") is not None
    )


def _loss_with_zeros(log: Log) -> np.ndarray | None:
    """The loss, (N,), where no gradient is logged and its zeros are exact: others are a hundred of its last digits."""
    loss = log.metric("loss")
    if loss is None or log.logged("grad_norm") is not None or _has_a_kl_term(log):
        return None
    size = np.abs(loss[np.nan_to_num(loss) != 0])
    digits = next((n for n in range(7) if np.allclose(size * 10**n, np.round(size * 10**n), rtol=0, atol=1e-9)), None)
    exact = len(size) > 0 and (digits is None or np.median(size) >= 100 / 10**digits)
    return loss if exact else None


def same_texts(log: Log) -> np.ndarray | None:
    """Share of groups at each step whose completions are all the same text, (N,)."""
    if log.groups is None:
        return log.metric("identical_groups")
    return _share(log, log.groups["step"], log.groups["texts"] <= 1)


def _share(log: Log, steps: pd.Series, groups: pd.Series) -> np.ndarray | None:
    """Share of the groups at each step, (N,); None where no group is of a logged step."""
    share = groups.groupby(steps).mean().reindex(log.steps["step"]).to_numpy(float)
    return None if np.isnan(share).all() else share


@rule
def false_zero_std(log: Log) -> Finding:
    """Whether the logged share of groups with equal rewards is wrong: TRL computed it of the batch, or fp32 rounded a mean.

    TRL compares the standard deviation by which it scales with 0. With scale_rewards="batch" and with
    multi_objective_aggregation="normalize_then_sum" that is the one of the batch: the share is 0 even if all groups have equal
    rewards. The rule looks at the completions, and at steps with a gradient of exactly 0 although the log says that rewards
    differ, if other steps have a gradient. The settings alone make the share doubtful.

    In fp32 the mean of eight times 0.7 is not 0.7, and a standard deviation of 6e-8 is not 0. Then the share is too low too,
    and these groups have a small advantage, all of one sign, of which the steps make noise.

    Wrong where: the batch has only one group: then the standard deviation of the batch is that of the group.
    """
    logged = log.logged("zero_std_share")
    if logged is None:
        return absent("No share of equal groups is logged, so none is false.")
    setting = next((f"{name}={value!r}" for name, value in _OF_BATCH if log.facts.get(name) == value), "")
    norm, rate, clipped = log.metric("grad_norm"), log.metric("learning_rate"), log.logged("clipped_ratio")
    true, table = None, log.completions
    if log.groups is not None and log.sure_of_groups and log.each_step and table is not None:
        whole = "reward" in table and not table["reward"].isna().any()
        true = None if not whole else _share(log, log.groups["step"], log.groups["rewards"] <= 1)
    of_kl = log.trainer == "RLOOTrainer" and _has_a_kl_term(log)  # it is in the rewards, and makes equal ones differ
    if (rounded := _rounded_groups(log, logged)).any() and not (setting or of_kl):
        return _rounded_means(log, logged, rounded)
    if true is not None:
        wrong, why = np.nan_to_num(true - logged) > 0.005, f"it is {np.nanmean(true):.0%} in the completions"
    else:
        wrong = np.zeros(len(logged), bool)
        shown = log.each_step and log.trainer not in ("verl", "ms-swift")
        of_one_number = bool(np.isin(logged, (0, 1)).all())  # as a batch's is
        if norm is not None and rate is not None and clipped is not None and of_one_number and shown:
            wrong = (norm == 0) & (rate > 0) & (clipped < 1 - 1e-6) & (logged == 0)
        known = setting or (norm is not None and np.nanmax(norm) > 0)
        if _often(wrong) and not known:
            advice = "Say how rewards are scaled, such as --set scale_rewards=batch; else see whether the training "
            advice += "engine, such as DeepSpeed, loses the gradient."
            return unknown(advice, "The log says that rewards differ in all groups, but every gradient is 0.")
        why = f"the gradient is exactly 0 in {wrong.mean():.0%} of the steps, at a learning rate above 0"
    wrong &= _often(wrong)
    if not wrong.any() and not setting:
        return absent("Nothing contradicts the share of equal groups.")
    because = setting or "as with scale_rewards='batch'"
    says = f"frac_reward_zero_std says that {np.nanmean(logged):.0%} of the groups have equal rewards. "
    says += f"That is wrong: {why}." if wrong.any() else "This is no share of groups: it is of the whole batch."
    if log.trainer == "RLOOTrainer":
        says += " RLOO compares rewards less the KL penalty, which nearly always differ."
    else:
        says += f" TRL computes it from the standard deviation by which it scales, here that of the batch ({because})."
    advice = (
        "Count equal groups from the completions (log_completions=True). Only this number is wrong, not the training."
    )
    evidence = {"logged share": float(np.nanmean(logged)), "steps that contradict it": int(wrong.sum())}
    severity, contradicts = WARNING if wrong.any() else NOTE, ("zero_std_share",)
    return found(severity, says, advice, steps=log.at(wrong), evidence=evidence, contradicts=contradicts)


def _rounded_groups(log: Log, logged: np.ndarray) -> np.ndarray:
    """True at the steps, (N,), whose share is too low because fp32 rounds the mean of equal rewards."""
    if (shown := _is_rounding(log) & (logged < 1)).any():
        return shown
    groups, size = log.groups, log.num_generations
    if groups is None or size is None or "reward" not in groups or not (log.sure_of_groups and log.each_step):
        return np.zeros(len(logged), bool)
    sums = groups["reward"].to_numpy(np.float32).astype(float)[:, None] * np.arange(1, size + 1)
    exact = (np.float32(sums) == sums).all(axis=1)
    highest = _share(log, groups["step"], groups["rewards"] <= 1)
    lowest = _share(log, groups["step"], (groups["rewards"] <= 1) & exact)
    if highest is None or lowest is None:
        return np.zeros(len(logged), bool)
    return (highest - logged > 0.005) & (lowest - logged <= 0.005)


def _rounded_means(log: Log, logged: np.ndarray, where: np.ndarray) -> Finding:
    says = f"frac_reward_zero_std is {np.nanmean(logged[where]):.0%} in {where.sum()} steps in which more groups have equal "
    says += "rewards: fp32 rounds the mean of rewards such as 0.7, and TRL takes what is left for a difference. These groups "
    says += "have a small advantage, all of one sign, of which the steps make noise."
    advice = "Give rewards that are multiples of a quarter, whose means fp32 has, or count equal groups from the completions."
    evidence = {"logged share": float(np.nanmean(logged)), "steps that contradict it": int(where.sum())}
    severity = WARNING if _often(where) else NOTE
    return found(severity, says, advice, steps=log.at(where), evidence=evidence, contradicts=("zero_std_share",))


def _often(where: np.ndarray) -> bool:
    return bool(where.mean() >= _MANY and where.sum() >= LEAST)


@rule(
    needs=COMPLETIONS,
    explains=("zero-gradient (copies)", "wasted-groups", "collapse", "no-learning"),
    notebook="04_duplicate_prompts",
)
def copies(log: Log) -> Finding:
    """Whether all completions of a group are copies of one, from the first steps on, though the policy is not sure of it.

    A policy that has learned one answer repeats it too, but not from the start. If the entropy is near zero from the
    start, the log does not distinguish the two.

    Wrong where: the task has one short answer that the policy knew from the start.
    """
    same = same_texts(log)
    if not log.grouped:
        return absent("This trainer's completions do not lie in groups of one prompt.")
    if same is None:
        equal, seed = equal_groups(log), log.facts.get("request_seed")
        if _only_the_loss_tells(log):
            equal = None
        if equal is not None and min(np.nanmean(equal), quarters(equal)[0]) < 0.9:
            return absent("Rewards differ within groups, so completions do.")
        if equal is not None and seed is not None:
            says = f"The settings give every request the seed {seed} (generation_kwargs), and the rewards of "
            says += f"{np.nanmean(equal):.0%} of the groups are equal: the completions of a group are copies."
            return found(PROBLEM, says, _CAUSES["copies"][1], cost={"share of groups": float(np.nanmean(equal))})
        return unknown("Give completions (log_completions=True), and num_generations where prompts do not show it.")
    known = same[~np.isnan(same)]
    start, share = known[: max(1, len(known) // 4)], float(known.mean())
    if share < 0.9 or start.mean() < 0.9:
        return absent(f"{share:.0%} of the groups are one text repeated.", share=share)
    entropy, length = log.metric("entropy"), log.metric("mean_length")
    spread = None if entropy is None else np.nanmedian(entropy * (1 if length is None else length))
    if spread is not None and spread < (0.01 if length is None else 1.0):
        says = "All completions of a group are the same, but the policy is so sure of its answers that it would repeat them "
        return unknown("Sample the prompts again without a seed and with temperature 1.", f"{says}anyway.")
    shown = "" if entropy is None else f", although the policy's entropy is {np.nanmedian(entropy):.2g}"
    return found(
        PROBLEM,
        f"{share:.0%} of the groups are one completion, copied{shown}: there is nothing to compare, so nothing is learned.",
        "Remove `seed` from generation_kwargs (each request gets the same one), and check that temperature is not 0.",
        steps=log.at(np.nan_to_num(same) >= 0.9),
        evidence={"share of groups of one text": share, "the same in the first quarter": float(start.mean())},
        cost={"share of groups": share},
    )


def clipped_late(log: Log) -> float:
    """Share of the tokens whose ratio is clipped, the mean of the last quarter; 0 where fewer than 8 steps log it.

    So it is for one number below 1 in all steps, as a setting of that name has: a share of tokens varies.
    """
    clipped = log.metric("clip_region")
    if clipped is None or (~np.isnan(clipped)).sum() < LEAST or np.nanmin(clipped) == np.nanmax(clipped) < 1:
        return 0.0
    return quarters(clipped)[1]


@rule(explains=("no-learning",))
def zero_gradient(log: Log) -> Finding:
    """Which steps had a gradient of zero, and why: `masked`, `copies`, `equal-rewards`, `learning-rate`, `clip`, `zero-loss`.

    How: the gradient norm and the other metrics of the step. With a KL term the gradient is never exactly 0, so the rule also
    counts steps in which all groups have equal rewards. Equal rewards are a note below a third of the steps, which is usual,
    and a problem only if they fill half of them and the reward neither rises nor is at its highest. Where nothing but zeros of
    the loss shows them, completions may as well be left out of the loss: that is no problem. A rate printed as 0.000 does not
    count as 0, nor does a gradient where the others are hardly larger. A token whose ratio is clipped has no gradient either:
    where that is a third of them or more in the last quarter, it is a warning, and a note if the reward rises.
    Wrong where: the logged gradient of a step is only that of the last of its micro-steps; the method clips most tokens on
    purpose.
    """
    norm, equal = log.metric("grad_norm"), equal_groups(log)
    if norm is None and equal is None:
        return _clipped_tokens(log) or unknown("Log grad_norm or frac_reward_zero_std.")
    small = norm is not None and bool(np.nanmax(norm) > 0) and zeros_are_small(log, norm, most=10)
    dead = np.zeros(len(log.steps), bool) if norm is None or small else np.asarray(norm == 0)
    if equal is not None and (norm is None or small or _has_a_kl_term(log)):  # whose gradient is never exactly 0
        dead |= carried(equal) >= 1 - 1e-6
    share = float(dead.mean())
    idle = zero_rate(log)
    idle = np.zeros(len(dead), bool) if idle is None else idle
    if len(idle) > 2 and idle[1:-1].mean() >= _MANY:
        return _dead(log, idle, "learning-rate", {"learning-rate": int(idle.sum())})
    if share < _THIRD and (clipped := _clipped_tokens(log)):
        return clipped
    if share < _FEW or (share < _MANY and len(dead) >= LEAST and dead.sum() < 3):  # a small batch has one now and then
        return absent(f"{share:.0%} of the steps have no gradient.", share=share)
    counts = {name: int(where.sum()) for name, where in _causes(log, dead, equal).items() if where.any()}
    cause = max(counts, key=counts.__getitem__)
    # A line of several steps has the gradient of the last one, and a share of equal groups that is a mean over all.
    if cause == "unknown" and equal is not None and not log.each_step and share <= np.nanmean(equal) + 0.25:
        cause = "equal-rewards"
    if cause == "equal-rewards" and norm is None and _only_the_loss_tells(log) and not _at_its_ends(log, dead):
        cause = "zero-loss"
        counts = {cause: counts["equal-rewards"]}
    return _dead(log, dead, cause, counts)


def _clipped_tokens(log: Log) -> Finding | None:
    """The finding that many tokens have no gradient, though the steps have one; None where they are not many."""
    late, clipped = clipped_late(log), log.metric("clip_region")
    if clipped is None or late < _CLIPPED:
        return None
    says = f"{late:.0%} of the tokens are clipped in the last quarter of the run: their ratio, of the policy to the one that "
    says += (
        "sampled them, left the range that epsilon allows, so rewards give them no gradient. A few percent are usual."
    )
    learns = rises(reward_of(log)) or ends_at_the_top(log)
    says += " The reward rises all the same, or is at its highest." if learns else ""
    advice = f"Do not raise the learning rate. {_CAUSES['clip'][1]}"
    where, evidence = log.at(np.nan_to_num(clipped) >= _CLIPPED), {"share of tokens clipped, last quarter": late}
    cost = {"share of tokens": float(np.nanmean(clipped))}
    return found(NOTE if learns else WARNING, says, advice, cause="clip", steps=where, evidence=evidence, cost=cost)


def _at_its_ends(log: Log, dead: np.ndarray) -> bool:
    """Say whether the dead steps are those in which the mean reward is the run's lowest or its highest.

    All rewards of such a step are equal, if none can be lower or higher.
    """
    reward = log.metric("reward")
    if reward is None or dead.all() or np.nanmin(reward) == np.nanmax(reward):
        return False
    return bool((dead == np.isin(reward, (np.nanmin(reward), np.nanmax(reward)))).all())


@rule
def wasted_groups(log: Log) -> Finding:
    """Which share of all groups had equal rewards and taught nothing: a note from a third on, a warning from half on.

    How: the mean over all steps of the share of equal groups, as logged or from completions. Whether they are too hard or too
    easy: from logged shares of both, from the rewards of the completions, or from the reward of steps with more such groups,
    unless it is in between where nearly all groups are equal.
    Wrong where: the trainer samples such groups again until they differ, and logs the share before that.
    """
    of_texts = log.groups is not None and "rewards" in log.groups
    equal = log.metric("zero_std_share")
    equal = equal_groups(log) if equal is None and of_texts else equal
    if not log.grouped:
        return absent("This trainer's completions do not lie in groups of one prompt.")
    if equal is None:
        return unknown("Log frac_reward_zero_std, or give completions.")
    share, rows = float(np.nanmean(equal)), log.completions
    if share < _THIRD:
        return absent(f"{share:.0%} of the groups have equal rewards.", share=share)
    if copies(log).verdict == CANNOT_TELL and share >= 0.9:
        return unknown("Give completions (log_completions=True): equal groups may be copies, see zero-gradient.")
    hard, easy, shown = _hard_and_easy(log, equal)
    known, line = int((~np.isnan(equal)).sum()), "step" if log.each_step else "line"
    mean = f"in the mean of {known} {line}s" if known > 1 else f"in the only {line}"
    says = f"{share:.0%} of the groups have equal rewards, {mean}, and teach nothing"
    if abs((late := quarters(equal)[1]) - share) >= _APART:
        says += f" ({late:.0%} in the last quarter)"
    says += f": the run samples {1 / (1 - share):.1f} completions for each that teaches." if share < 0.995 else "."
    cost = {"share of groups": share} | _seconds(log, carried(equal))
    cost |= {"completions": share * len(rows)} if rows is not None and of_texts else {}
    harder = "prompts that are mostly solved: leave them out, or take harder ones"
    easier = "prompts that are never solved: take easier ones, reward parts of an answer, or raise num_generations"
    advice = f"For {harder}. For {easier}."
    if hard is not None and easy is not None:
        advice = f"For {easier}." if easy < 0.2 * hard else f"For {harder}." if hard < 0.2 * easy else advice
    severity = WARNING if share >= _HALF and not ends_at_the_top(log) else NOTE
    return found(severity, f"{says}{shown}", advice, evidence={"too hard": hard, "too easy": easy}, cost=cost)


def _hard_and_easy(log: Log, equal: np.ndarray) -> tuple[float | None, float | None, str]:
    """Shares of the groups that are all at the lowest and all at the highest reward, None where neither is known; in words."""
    bad, good, groups, rows = log.metric("all_bad_share"), log.metric("all_good_share"), log.groups, log.completions
    if groups is not None and "rewards" in groups and rows is not None and rows["reward"].nunique() > 1:
        alike = groups["rewards"] <= 1
        ends = rows["reward"].min(), rows["reward"].max()
        hard, easy = ((alike & (groups["reward"] == end)).mean() for end in ends)
    elif bad is not None and good is not None:
        hard, easy = np.nanmean(bad), np.nanmean(good)
    else:
        reward = reward_of(log)
        known = np.zeros(len(equal), bool) if reward is None else ~np.isnan(reward) & ~np.isnan(equal)
        if reward is None or known.sum() < 12 or not np.ptp(equal[known]) or not np.ptp(reward[known]):
            return None, None, ""
        r = np.corrcoef(equal[known], reward[known])[0, 1]
        if abs(r) * np.sqrt((known.sum() - 2) / max(1 - r**2, 1e-9)) < 4:  # t
            return None, None, ""
        share, words = float(np.nanmean(equal)), " Steps with more of them have a {} reward: most are too {}."
        if (middle := _reward_in_between(equal[known], reward[known], hard=r < 0)) is not None:
            words = f" Where nearly all groups are equal, the mean reward is {middle:.3g}: prompts that are always solved and "
            words += "prompts that never are, or all with a reward in between. The log does not tell which."
            return None, None, words
        if r < 0:
            return share, 0.0, words.format("lower", "hard")
        if np.nanmax(reward) > 0:
            return 0.0, share, words.format("higher", "easy")
        return None, None, ""  # the highest may be what no answer gets, above what wrong ones cost
    words = f" In {hard:.0%} of all groups every completion has the lowest reward, in {easy:.0%} the highest."
    return float(hard), float(easy), words


def _reward_in_between(equal: np.ndarray, reward: np.ndarray, *, hard: bool) -> float | None:
    """The mean reward of steps in which nearly all groups are equal, if groups that are all too hard, or easy, have another.

    None where they do not, or there are too few such steps. Rewards from 0 to 1 may reach 1, whatever the run's highest.
    """
    full = equal >= 0.9
    if full.sum() < LEAST:
        return None
    low, high, mean = float(reward.min()), float(reward.max()), float(reward[full].mean())
    high = max(high, 1.0) if low >= 0 else high
    distance = mean - low if hard else high - mean
    return mean if distance > 0.25 * (high - low) else None  # nearer to that end most are such groups


def _has_a_kl_term(log: Log) -> bool:
    """Say whether something other than rewards makes a gradient: a penalty on the KL to the reference, or verl's entropy."""
    kl = log.metric("kl")
    return (kl is not None and bool(np.nanmax(np.abs(kl)) > 0)) or log.trainer == "verl"


def _causes(log: Log, dead: np.ndarray, equal: np.ndarray | None) -> dict[str, np.ndarray]:
    """Cause -> the dead steps that it explains, each step once."""
    none = np.zeros(len(dead), bool)
    alike = none if equal is None else (carried(equal) >= 1 - 1e-6)
    # The mask follows the clipped ratio as it was logged, true or not.
    clipped, region = log.logged("clipped_ratio"), log.metric("clip_region")
    clipped = None if clipped is None else carried(clipped)
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
    if "zero_std_share" in log.disputed:  # without a mask and a clip, nothing else makes the gradient exactly 0
        equal_too = none if clipped is None else (clipped < 1 - 1e-6)
        found["equal-rewards"] |= left & equal_too
        left &= ~equal_too
    take("unknown", ~none)
    return found


_CAUSES = {  # cause -> in words, what to do, the notebook that shows it
    "masked": (
        "all completions with an advantage were left out of the loss as truncated",
        "If they were really cut, raise max_completion_length. If they stopped, set mask_truncated_completions=False; see "
        "masked-stops.",
        "02_grpo_custom_stops"),
    "copies": ("all completions of a group are the same", "Remove `seed` from generation_kwargs.", "04_duplicate_prompts"),
    "equal-rewards": (
        "all completions of each group got the same reward",
        "Run the reward function on five of these completions by hand. If it is right, use prompts for which some completions "
        "succeed and some fail, a finer reward, or more generations.", None),
    "zero-loss": (
        "the loss is exactly 0, which is all this log shows: groups got equal rewards, or completions were left out of it",
        "Log grad_norm, frac_reward_zero_std and completions/clipped_ratio, which show which of the two it is.", None),
    "learning-rate": ("the learning rate is 0", "Check learning_rate, the scheduler and its warm-up.", None),
    "clip": (
        "every token's ratio was clipped",
        "See that the ratio is 1 before the first update on these completions; then lower the learning rate or num_iterations.",
        None),
    "unknown": ("the log does not show why", "Log {}.", None),
}  # fmt: skip


def _dead(log: Log, dead: np.ndarray, cause: str, counts: dict) -> Finding:
    share = float(dead.mean())
    words, _, notebook = _CAUSES[cause]
    severity: str = PROBLEM
    reward, top = reward_of(log), highest_reward(log)
    if cause == "equal-rewards" and reward is not None and not np.isnan(reward[dead]).all():
        where, severity = _level(float(np.nanmean(reward[dead])), reward, top)
        words += where
    advice = _advice(log, cause)
    if cause == "equal-rewards" and severity == PROBLEM and copies(log).verdict == CANNOT_TELL:
        words += ". They may also be the same text, as with a seed in generation_kwargs: the log has no texts to see it"
        advice = f"If they differ, {advice[0].lower()}{advice[1:]}"
        advice = f"If so, remove `seed` from generation_kwargs, and check that temperature is not 0. {advice}"
        advice = f"Read two completions of one group (log_completions=True): are they the same text? {advice}"
    chance = share < 2 / 3 and len(dead) < _SHORT  # too few steps to say that the others do not raise the reward
    # A batch of few groups has equal rewards now and then. A line of several steps does not show whether that is why.
    usual = cause == "equal-rewards" or (cause == "unknown" and not log.each_step)
    if severity == PROBLEM and (share < (_HALF if usual else _MANY) or (usual and (chance or rises(reward)))):
        severity = WARNING
    if severity == PROBLEM and cause == "unknown" and dead.all() and rises(reward):
        severity = WARNING
        words += ", and the reward rises all the same, so the logged norm is wrong, or rounded"
    is_sure = log.metric("grad_norm") is not None or not _only_the_loss_tells(log)
    if cause == "zero-loss" or (cause == "equal-rewards" and severity == PROBLEM and not is_sure):
        severity = WARNING
    if cause in ("equal-rewards", "zero-loss") and share < _THIRD:
        severity = NOTE
    return found(
        severity,
        f"{share:.0%} of the {'steps' if log.each_step else 'logged steps'} {_what(log, dead, cause)}: {words}.",
        advice,
        cause=cause,
        steps=log.at(dead),
        evidence={"steps": int(dead.sum()), "of": len(dead), "steps by cause": counts},
        cost={"share of steps": share} | _seconds(log, dead),
        notebook=notebook,
    )


def _what(log: Log, dead: np.ndarray, cause: str) -> str:
    if cause == "learning-rate":  # whatever the gradient
        return "change nothing"
    norm = log.metric("grad_norm")
    moved = _has_a_kl_term(log) if norm is None else float((norm[dead] > 0).mean()) > 0.5
    return "learn nothing from rewards, whatever gradient other terms give" if moved else "change nothing"


def _advice(log: Log, cause: str) -> str:
    wanted = {"zero_std_share": "frac_reward_zero_std", "clipped_ratio": "completions/clipped_ratio"}
    absent = [name for metric, name in wanted.items() if log.logged(metric) is None]
    if cause != "unknown" or absent:
        return _CAUSES[cause][1].format(", ".join([*absent, "completions"]))
    return (
        "Neither equal rewards nor a mask of all rows explains it: see whether the rows left in the loss got equal rewards, or "
        "the engine, such as DeepSpeed, loses the gradient."
    )


def _level(dead: float, reward: np.ndarray, top: float | None) -> tuple[str, str]:
    """Return where the mean reward of steps without gradient stands, in words, and how severe that is.

    Where `top`, the largest possible, is None, the largest of the run may be a solved task, which is no problem.
    """
    low, high = float(np.nanmin(reward)), float(np.nanmax(reward))
    if top is not None and top > 0 and dead >= 0.95 * top:
        return ", the highest there is", NOTE
    if top is None and high - dead <= 0.05 * (high - low) and (high > low or high > 0):
        return ", the highest of the run (the log does not say whether more is possible)", WARNING
    return (", the lowest of the run" if dead - low <= 0.05 * (high - low) else ""), PROBLEM


def _seconds(log: Log, share: np.ndarray) -> dict[str, float]:
    """The time of the steps, each by its share, (N,) of bool or float; a line of several steps has their mean time."""
    time, steps = log.metric("step_time"), log.steps["step"].to_numpy()
    if time is None or len(steps) < 2 or log.facts.get("lines_counted"):
        return {}
    return {"seconds": float(np.nansum(time * share) * np.median(np.diff(steps)))}


@rule(needs=UPDATES, explains=("no-learning",), notebook="10_do_the_weights_move")
def lost_updates(log: Log) -> Finding:
    """Whether an optimizer step leaves most weights as they were: in bf16 a small update is lost to rounding.

    How: the median of `update/moved` below a half, over the steps whose learning rate is at least half of the highest. A note
    where the reward rises all the same. The rule cannot tell while the rate still rises.
    Wrong where: the optimizer rounds at random, or stores the rounding error: few elements move, but no update is lost.
    """
    moved, rate = log.metric("moved"), log.metric("learning_rate")
    if moved is None:
        return unknown("Call attach_watch(trainer) before training: it logs update/moved.")
    full = ~np.isnan(moved)
    if rate is not None:
        full &= np.nan_to_num(rate) >= _HALF * np.nanmax(rate)
    if not full.any():
        return unknown("Log update/moved at steps of the full learning rate.")
    share = float(np.median(moved[full]))
    at = "" if rate is None else f", at a learning rate of {float(np.median(rate[full])):.2g}"
    evidence = {
        "share of elements that a step changes, median": share,
        "dtype of the saved model": log.facts.get("dtype"),
    }
    says = f"A step changes {share:.2g} of the trained elements that have a gradient{at}."
    if share >= _HALF:
        return absent(says, **evidence)
    if rate is not None and len(rate) > 1 and rate[-1] > rate[-2]:
        return unknown("Audit the run again when its learning rate no longer rises.", says, **evidence)
    fp32 = log.facts.get("dtype") == "float32"
    advice = "The weights are fp32: see whether learning_rate, max_grad_norm or the optimizer's epsilon is why."
    if not fp32:
        advice = (
            "Keep the trained weights in fp32: load the model with dtype=torch.float32; with bf16=True it still computes in "
            "bf16. Choose the learning rate again then: one that was tuned with bf16 weights can be too high. Or train LoRA "
            "on weights that are not quantised: PEFT keeps its adapters in fp32."
        )
    reward = reward_of(log)
    learns = reward is not None and (rises(reward) or ends_at_the_top(log))
    says += " The others stay as they were: the update is smaller than the rounding of the weights."
    if learns:
        says += " The reward rises all the same."
    return found(NOTE if learns else WARNING, says, advice, evidence=evidence, steps=log.at(full & (moved < _HALF)))
