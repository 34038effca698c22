"""Rules about what the run came to: no learning, collapse, lengths that run away, a task that is solved."""

import numpy as np

from ..curves.stats import Interval
from ..logs.log import Log
from ..logs.names import canonical
from .finding import FOUND, NOTE, PROBLEM, WARNING, Finding, absent, found, unknown
from .rule import rule
from .rules_gradient import clipped_late, equal_groups
from .rules_reward import tool_failures
from .trends import (
    LEAST,
    carried,
    change,
    ends_at_its_best,
    ends_at_the_top,
    highest_reward,
    nears_its_ceiling,
    quarters,
    reward_of,
    rises,
    zero_rate,
)

_SURE = 40  # steps from which a flat reward says something
_ABSURD = 1e4  # of a gradient norm
_OFTEN_CLIPPED = 0.1  # share of tokens
_NEARLY_EQUAL = 0.9  # share of groups
# A text came to answer all prompts if it is at least this share of the last completions, at most this share of the first,
# and the last ones have at least this many prompts.
_NEARLY_ALL, _SELDOM, _PROMPTS = 0.8, 0.25, 10
_SHOWN = 60  # letters of a text in a sentence
_GENTLER = "Lower the learning rate, or add a KL penalty (beta)."
_RELATIVE = "Log the reward before the trainer centres it within its batch, or evaluate checkpoints."


@rule
def solved(log: Log) -> Finding:
    """Whether the reward is at its highest in the last quarter: a note, further steps teach little.

    How: the settings, or rewards of only 0 and 1.
    Wrong where: the reward can be had without solving the task.
    """
    reward, top = log.metric("reward"), highest_reward(log)
    if reward is None:
        return unknown("Log the reward.")
    first, last = quarters(reward)
    if top is None or top <= 0:
        best = f"The reward ends at {last:.3g}, the highest of the run. " if ends_at_its_best(reward) else ""
        return unknown(f"{best}The log does not say how large the reward can be.")
    if not ends_at_the_top(log):
        return absent(f"The reward ends at {last:.3g} of at most {top:.3g}.", last=last, highest=top)
    if _is_constant(reward):
        return unknown("Check the reward function on a wrong answer.", "The reward is at its highest in every step.")
    says = f"The task is solved: the reward ends at {last:.3g} of at most {top:.3g}."
    evidence = {"first quarter": first, "last quarter": last, "highest": top}
    where = log.at(np.nan_to_num(reward, nan=-np.inf) >= 0.95 * top)
    return found(NOTE, says, "End the run earlier, or take harder prompts.", steps=where, evidence=evidence)


@rule
def no_learning(log: Log) -> Finding:
    """Whether the reward of a long enough run did not change: a warning, since a flat curve is no proof of a fault.

    How: a 95% interval of the change, from 40 steps on; a constant reward, also of the last half of a run if that is 40 steps
    or more, or a rate of 0 is a problem. A reward that ends at its largest, or above 0.9 where rewards go from 0 to 1, is
    none.
    Wrong where: the run is too short for its learning rate.
    """
    reward = log.metric("reward")
    rate, idle = log.metric("learning_rate"), zero_rate(log)
    if rate is not None and idle is not None and len(rate) > 2 and idle[1:].any() and not np.nansum(rate[1:]):
        says = "The learning rate is 0 in all steps."
        return found(PROBLEM, says, "Set learning_rate.", cause="learning-rate", steps=log.at(idle))
    if reward is None:
        return unknown("Log the reward.")
    if reward_of(log) is None:
        return unknown(_RELATIVE, f"The mean reward is at most {np.nanmax(np.abs(reward)):.2g}, which is 0, rounded.")
    if ends_at_the_top(log) and not _is_constant(reward):
        return absent("The task is solved.")
    if nears_its_ceiling(log) and not _is_constant(reward):
        return absent(f"The reward ends at {quarters(reward)[1]:.3g}, near 1: little is left to learn.")
    changed = change(reward, level=0.95)
    steps = int((~np.isnan(reward)).sum())
    spread = log.metric("reward_std")
    if changed is None and steps >= LEAST and spread is not None and np.nanmax(spread) > 1e-6:
        says = f"The mean reward is {np.nanmax(reward):.4g} in every step, though rewards differ: they are relative."
        return unknown(_RELATIVE, says)
    if changed is None and steps >= LEAST:
        says = f"The reward is {np.nanmax(reward):.4g} in every step."
        advice = "Check what the reward function sees: a reward that never varies teaches nothing."
        return found(WARNING if np.nanmax(reward) > 0 else PROBLEM, says, advice, cause="constant")
    if changed is None:
        return unknown(f"Log at least {LEAST} steps with a reward; this log has {steps}.")
    evidence = {"change of the reward": changed.estimate, "95% interval": [changed.low, changed.high], "steps": steps}
    by, between = f"changed by {changed.estimate:+.3g}", f"{changed.low:.3g} to {changed.high:.3g}"
    if changed.low > 0:
        return absent(f"The reward {by}.", **evidence)
    if changed.high < 0:
        if _fall(reward) is not None:
            return absent(f"The reward fell, see collapse: {changed.estimate:+.3g}.", **evidence)
        says = f"The reward did not rise: it {by}, {between} at 95%."
        advice = "Look at the other findings first; else lower the learning rate, or train more seeds to be sure."
        advice = _not_where_tools_fail(log, _not_where_gradients_are_absurd(log, advice))
        return found(WARNING, says, advice, cause="falls", evidence=evidence)
    ending = _equal_at_the_end(reward)
    if ending and (spread is None or np.nan_to_num(spread[-ending:]).max() <= 1e-6):
        says = f"The reward is {carried(reward)[-1]:.4g} in each of the last {ending} steps, less than it has been."
        advice = "Read completions of these steps: they may all be one text. "
        advice += "A lower learning rate or a KL penalty (beta) keeps them apart."
        severity = WARNING if carried(reward)[-1] > 0 else PROBLEM
        where = log.at(np.arange(len(reward)) >= len(reward) - ending)
        return found(severity, says, advice, cause="constant", steps=where)
    if not _is_narrow(changed, reward):
        says = f"The reward {by}; its 95% interval, {between}, holds 0."
        more = _not_where_gradients_are_absurd(log, "Train more steps, or more seeds.")
        return unknown(more, says, **evidence)
    says = f"No learning shows: over {steps} steps the reward {by} ({between} at 95%), less than it scatters from step "
    says += "to step."
    advice = "See the other findings, and whether more reward is possible; else train longer. "
    advice += "Raise the learning rate only where kl and grad_norm stay small."
    if (clipped := clipped_late(log)) >= _OFTEN_CLIPPED:
        advice = (
            f"Do not raise the learning rate: {clipped:.0%} of the tokens are clipped at the end of the run. Lower it, "
        )
        advice += "or num_iterations."
    elif _runs_away(log):
        advice = "Do not raise the learning rate: completions grow or are truncated, or the policy drifts. "
        advice += "Lower it, and read completions of the last steps."
    advice = _not_where_tools_fail(log, _not_where_gradients_are_absurd(log, advice))
    return found(WARNING, says, advice, evidence=evidence, notebook="05_grpo_docs_example")


def _is_narrow(changed: Interval, reward: np.ndarray) -> bool:
    """Say whether so many steps are so alike that an interval of their change which holds 0 shows no change."""
    logged = reward[~np.isnan(reward)]
    noise = float(np.std(np.diff(logged)) / np.sqrt(2))
    return len(logged) >= _SURE and bool(changed.high - changed.low <= 3 * noise)


def _equal_at_the_end(reward: np.ndarray) -> int:
    """In how many steps at the end the reward is one number, below the largest; 0 if they are too few, or not half of all."""
    reward = carried(reward)  # a step without a reward trains on the completions of the one before
    others = np.flatnonzero(reward != reward[-1])
    count = len(reward) - 1 - int(others[-1]) if len(others) else 0
    return count if count >= max(_SURE, len(reward) / 2) and np.nanmax(reward) > reward[-1] else 0


def _surely_did_not_rise(reward: np.ndarray) -> bool:
    """Say whether the reward is constant, fell, or shows no change, by a 95% interval; False where too few steps tell."""
    changed = change(reward, level=0.95)
    if changed is None:
        return _is_constant(reward)
    fell, may_be_flat = bool(changed.high < 0), bool(changed.low <= 0)
    return fell or (may_be_flat and _is_narrow(changed, reward))


def _not_where_tools_fail(log: Log, advice: str) -> str:
    """The advice of a run that does not learn: no learning rate repairs a tool."""
    failures = tool_failures(log)
    return failures.advice if failures.verdict == FOUND else advice


def _not_where_gradients_are_absurd(log: Log, advice: str) -> str:
    """The advice of a run that does not learn: neither steps nor a rate help where the gradient is no number to follow."""
    norm = _absurd_norm(log)
    if norm is None:
        return advice
    return f"Repair the gradient first, whose norm is {np.nanmedian(norm):.2g} in the median; see spikes."


def _absurd_norm(log: Log) -> np.ndarray | None:
    """The gradient norms, (N,), where their median is far above what a loss with scaled advantages has; else None."""
    norm = log.metric("grad_norm")
    return norm if norm is not None and np.nanmedian(norm) >= _ABSURD else None


def _runs_away(log: Log) -> bool:
    """Say whether lengths doubled, many completions count as cut, or the KL or the entropy says that the policy is lost."""
    length, clipped = log.logged("mean_length"), log.metric("clipped_ratio")
    first, last = (0.0, 0.0) if length is None else quarters(length)
    cut = clipped is not None and quarters(clipped)[1] >= 0.25
    return cut or last > 2 * first or FOUND in (collapse(log).verdict, kl_runaway(log).verdict)


def _is_constant(reward: np.ndarray) -> bool:
    return bool((~np.isnan(reward)).sum() >= LEAST and np.nanmin(reward) == np.nanmax(reward))


@rule(explains=("zero-gradient (equal-rewards)", "wasted-groups", "length-runaway", "true-clipping", "no-learning"))
def collapse(log: Log) -> Finding:
    """Find a reward that fell (over the run or from its peak), one text for all prompts, or an entropy that vanished.

    How: a 99% interval of the change of the reward; a text that is four of five completions in the last tenth of the steps,
    over ten prompts or more, and at most one of four in the first tenth; completions that shrink below a twentieth of their
    length; an entropy below 5% of its start while the reward did not rise; one above three times its start and at least 1 nat
    above it. That one is a problem if the reward ends at its lowest, and a warning if it surely did not rise. So is an entropy
    that vanished after a rise, if nine of ten groups end with equal rewards and the reward stays below its highest.
    Wrong where: the data become harder on purpose, as in a curriculum; most prompts have the same right answer.
    """
    reward = reward_of(log)
    fall = None if ends_at_the_top(log) else _fall(reward)
    if fall is not None:
        kind, fell = fall
        slight = -fell.estimate < _step_noise(reward)  # in thousands of steps the slightest drift is sure
        says = f"The reward fell by {-fell.estimate:.3g} {kind}" + (", less than between steps." if slight else ".")
        advice = "Look at the other findings first; else lower the learning rate, or add a KL penalty (beta)."
        evidence = {"change of the reward": fell.estimate, "99% interval": [fell.low, fell.high]}
        return found(WARNING if slight else PROBLEM, says, advice, cause="reward", evidence=evidence)
    if (one := _one_text(log)) is not None:
        text, share, prompts, at_first = one
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        return found(
            WARNING,
            f"One text is {share:.0%} of the completions in the last tenth of the steps, whatever of {prompts} prompts: "
            f"{shown!r}. In the first tenth it was {at_first:.0%}.",
            "Read completions. If the right answer depends on the prompt, the reward pays for something else: change it, "
            "or stop earlier.",
            cause="one-text",
            evidence={"share of one text, first tenth": at_first, "share of one text, last tenth": share},
        )
    if reward is None:
        return unknown("Log the reward.")
    entropy, norm, length = log.metric("entropy"), log.logged("grad_norm"), log.metric("mean_length")
    if length is not None and change(length) is not None and not (rises(reward) or ends_at_the_top(log)):
        first, last = quarters(length)
        if last < 0.05 * first:
            says = f"Completions shrank from {first:.4g} to {last:.4g} tokens, and no rise of the reward is sure."
            advice = "Read the completions: the reward may pay for empty ones."
            lengths = {"mean length, first quarter": first, "mean length, last quarter": last}
            return found(PROBLEM, says, advice, cause="length", evidence=lengths)
    if entropy is None:
        return absent("No fall of the reward is sure, or it ends at its highest.")
    if norm is not None:  # without a token in the loss its entropy is a mean over nothing
        entropy = np.where((norm == 0) & (entropy == 0), np.nan, entropy)
    first, last = quarters(entropy)
    start = float(entropy[~np.isnan(entropy)][0]) if not np.isnan(first) else np.nan
    evidence = {"entropy, first step": start, "entropy, first quarter": first, "entropy, last quarter": last}
    learns, severity = ends_at_the_top(log) or rises(reward) or ends_at_its_best(reward), PROBLEM
    exploded, vanished = last > 3 * start and last > start + 1, first > 0 and last < 0.05 * first
    if exploded and _ends_low(log, reward):
        says = f"The policy diverged: its entropy rose from {start:.3g} to {last:.3g}; the reward ends at its lowest."
        cause, advice = "diverged", _GENTLER
    elif exploded and not (learns or nears_its_ceiling(log) or _is_constant(reward)) and _surely_did_not_rise(reward):
        says = f"The policy diverges: its entropy rose from {start:.3g} to {last:.3g}, and the reward did not rise."
        cause, advice, severity = "diverged", f"Read completions of the last steps. {_GENTLER}", WARNING
    elif vanished and not learns:
        says = f"The policy stopped exploring: its entropy fell from {first:.3g} to {last:.3g}, and the reward did not rise."
        cause, advice = "entropy", "Lower the learning rate, or raise the temperature."
    elif vanished and (equal := _stuck(log, reward)) is not None:
        says = f"The policy stopped exploring: its entropy fell from {first:.3g} to {last:.3g}, {equal:.0%} of the groups have "
        says += f"equal rewards in the last quarter, and the reward stays at {quarters(reward)[1]:.3g}, below the highest of "
        says += f"the run ({np.nanmax(reward):.3g})."
        cause, severity = "entropy", WARNING
        advice = (
            "Read completions of one prompt from the last steps. If they are all alike, go back to a checkpoint from "
        )
        advice += "before that, and lower the learning rate, raise the temperature, or add a KL penalty (beta)."
    else:
        says = f"Entropy {first:.3g} to {last:.3g}; no fall of the reward is sure, or it ends at its highest."
        return absent(says, **evidence)
    return found(severity, says, advice, cause=cause, evidence=evidence)


def _stuck(log: Log, reward: np.ndarray) -> float | None:
    """The share of groups with equal rewards in the last quarter, if nearly all are and the reward stays below its highest."""
    equal, logged = equal_groups(log), reward[~np.isnan(reward)]
    if equal is None or not log.grouped or ends_at_the_top(log) or nears_its_ceiling(log):
        return None
    share, below = quarters(equal)[1], logged.max() - quarters(logged)[1] > 0.1 * np.ptp(logged)
    rises_still = rises(logged[-(len(logged) // 4) :])
    return share if share >= _NEARLY_EQUAL and below and not rises_still else None


def _one_text(log: Log) -> tuple[str, float, int, float] | None:
    """The text that came to answer nearly all prompts, its share, how many prompts, and its share at first; else None."""
    table = log.completions
    if table is None:
        return None
    steps = np.unique(table["step"])
    tenth = max(1, len(steps) // 10)
    first, last = (table[table["step"].isin(part)] for part in (steps[:tenth], steps[-tenth:]))
    text = last["completion"].value_counts().index[0]
    share, at_first = (float((part["completion"] == text).mean()) for part in (last, first))
    prompts = last["prompt"].nunique()
    came = share >= _NEARLY_ALL and at_first <= _SELDOM and prompts >= _PROMPTS and len(steps) >= LEAST
    return (text, share, prompts, at_first) if came and text.strip() else None


def _ends_low(log: Log, reward: np.ndarray) -> bool:
    """Whether the reward ends at the bottom of its range, and that is below its top by more than rewards of a step scatter."""
    spread = log.metric("reward_std")
    low, high, last = np.nanmin(reward), np.nanmax(reward), quarters(reward)[1]
    least = 0.0 if spread is None else 0.25 * np.nanmax(spread)
    return bool(high > low and last <= low + 0.1 * (high - low) and high - last > least)


def _step_noise(values: np.ndarray | None) -> float:
    """Standard deviation of a step around what its neighbours share."""
    return 0.0 if values is None else float(np.std(np.diff(values[~np.isnan(values)])) / np.sqrt(2))


def _fall(reward: np.ndarray | None):
    """A sure fall of the reward and where: over the run, or in its second half to below the middle of what was gained."""
    whole = change(reward)
    if whole is None or reward is None:
        return None
    if whole.high < 0:
        return "over the run", whole
    values = reward[~np.isnan(reward)]
    if len(values) < _SURE:
        return None
    half = change(values[len(values) // 2 :])
    window = max(4, len(values) // 10)
    total = np.cumsum(np.concatenate([[0.0], values]))
    smooth = (total[window:] - total[:-window]) / window
    if half is not None and half.high < 0 and smooth[-1] < (smooth.max() + smooth[0]) / 2:
        return "in the second half of the run", half
    return None


@rule(explains=("no-learning",))
def kl_runaway(log: Log) -> Finding:
    """Whether the policy leaves its reference: the KL grew tenfold, and no rise of the reward is sure; or the KL is negative.

    How: medians of the first and the last quarter: tenfold, and above 0.5 nats. It is negative if it is in 95% of at least 20
    steps, and below -0.05 in the median of the last quarter. Samples of the policy itself make it positive in the mean.
    `objective/kl` is a sum over a completion: ten times these bounds hold for it.
    Wrong where: the reward is too noisy to show a rise that is there; the log writes the KL with the other sign.
    """
    kl, reward = log.metric("kl"), reward_of(log)
    if kl is None:
        return unknown("Log kl; it is logged where beta is above 0.")
    of_completions = log.lines is not None and canonical(map(str, log.lines)).get("objective/kl") == "kl"
    times, unit = (10, "nats a completion") if of_completions else (1, "nats")
    finite = np.abs(kl[~np.isnan(kl)])
    quarter = max(1, len(finite) // 4)
    signed = kl[~np.isnan(kl)]
    if (
        len(signed) >= 20
        and (signed < 0).mean() >= 0.95
        and (least := float(np.median(signed[-quarter:]))) < -0.05 * times
    ):
        says = f"The KL to the reference is negative in {(signed < 0).mean():.0%} of the steps, {least:.3g} at the end, which "
        says += (
            "samples of the policy cannot make it: they come from another distribution, or the log has the other sign."
        )
        advice = "Sample with temperature 1, top_p=1, top_k=0 and no minimal length, leave padding out of the log-probs, and "
        advice += "score the tokens that were sampled: a penalty on a negative KL pays for leaving the reference."
        return found(WARNING, says, advice, cause="negative", evidence={"KL, last quarter": least})
    first, last = float(np.median(finite[:quarter])), float(np.median(finite[-quarter:]))
    evidence = {"KL, first quarter": first, "KL, last quarter": last, "KL, largest": float(finite.max())}
    if len(finite) < LEAST or last < 10 * first or last < 0.5 * times:
        return absent(f"KL {first:.3g} to {last:.3g}.", **evidence)
    if reward is None:
        return unknown("Log the reward.", f"The KL grew from {first:.3g} to {last:.3g}.", **evidence)
    if rises(reward) or ends_at_the_top(log):
        return absent(f"The KL grew from {first:.3g} to {last:.3g}, and the reward rose.", **evidence)
    grew = f"the KL grew from {first:.3g} to {last:.3g} {unit}, and no rise of the reward is sure"
    advice = "Lower the learning rate, or raise beta, the weight of the KL penalty."
    return found(WARNING, f"The policy leaves its reference: {grew}.", advice, evidence=evidence)


@rule
def spikes(log: Log) -> Finding:
    """Steps whose gradient norm or KL is a hundred times the usual one: a note, since gradients are clipped and runs recover.

    How: steps a hundred times above the median, and above 10. A gradient norm of 10,000 and more in the median is a warning: no
    step stands out, because all are.
    Wrong where: the usual value is nearly 0, as at the start of a warm-up; or a loss is a sum over tokens and has such a norm.
    """
    norm = _absurd_norm(log)
    if norm is not None:
        where = np.nan_to_num(norm) >= _ABSURD
        share = f"{_ABSURD:.0g} or more in {where.mean():.0%} of the steps"
        says = f"The gradient norm is {np.nanmedian(norm):.2g} in the median, and {share}. Clipping to max_grad_norm leaves "
        says += "such a gradient its direction alone, if it has one."
        advice = "Compute the loss of one step by hand: look for ratios of log-probs that overflow, a divisor of nearly 0, and "
        advice += "rewards or advantages that are not scaled."
        evidence = {"median gradient norm": float(np.nanmedian(norm))}
        return found(WARNING, says, advice, cause="always", steps=log.at(where), evidence=evidence)
    far = {}
    for name in ("grad_norm", "kl"):
        values = log.metric(name)
        usual = 0.0 if values is None else float(np.nanmedian(np.abs(values)))
        if values is not None and usual > 0 and (~np.isnan(values)).sum() >= LEAST:
            far[name] = np.nan_to_num(np.abs(values)) > max(100 * usual, 10)
    if not far:
        if all(log.metric(name) is None for name in ("grad_norm", "kl")):
            return unknown("Log grad_norm or kl.")
        return unknown(f"The usual grad_norm or kl is 0, or it was logged for fewer than {LEAST} steps.")
    where = np.any(list(far.values()), axis=0)
    if not where.any():
        return absent("No step stands far above the others.")
    largest = {name: float(np.nanmax(log.steps[name])) for name, at in far.items() if at.any()}
    words = " and ".join(f"{name} up to {value:.4g}" for name, value in largest.items())
    says = f"{int(where.sum())} of {len(where)} steps are a hundred times above the median: {words}."
    advice = "Read the completions of these steps; lower max_grad_norm or the learning rate if such steps are frequent."
    evidence = {f"largest {name}": value for name, value in largest.items()}
    return found(NOTE, says, advice, steps=log.at(where), evidence=evidence)


@rule(explains=("true-clipping",))
def length_runaway(log: Log) -> Finding:
    """Whether completions at least doubled in length while the reward did not rise.

    How: 99% intervals of the changes of the length's logarithm and of the reward. A problem only if the reward is constant, or
    a 95% interval shows a fall, or no change over 40 steps or more; else a warning, since it may have risen.
    Wrong where: the task pays for long reasoning later than the log goes.
    """
    length, reward = log.metric("mean_length"), reward_of(log)
    longer = None if length is None else change(np.log(np.maximum(length, 1.0)))  # lengths grow by factors
    if longer is None or length is None:
        if length is not None and (~np.isnan(length)).sum() >= LEAST:
            return absent(f"All completions have {np.nanmax(length):.4g} tokens in the mean.")
        return unknown(f"Log the mean length of completions over at least {LEAST} steps.")
    first, last = quarters(length)
    evidence = {"mean length, first quarter": first, "mean length, last quarter": last}
    if longer.low <= 0 or last < 2 * first:
        return absent(f"Mean length {first:.4g} to {last:.4g}.", **evidence)
    if reward is None:
        return unknown("Log the reward.", f"Completions grew from {first:.4g} to {last:.4g} tokens.", **evidence)
    grown = change(reward)
    if grown is not None and grown.low > 0:
        return absent(f"Completions grew from {first:.4g} to {last:.4g} tokens, and the reward rose.", **evidence)
    serious = _surely_did_not_rise(reward) and not ends_at_the_top(log)
    says = f"Completions grew from {first:.4g} to {last:.4g} tokens, and no rise of the reward is sure."
    advice = "Read the longest completions. loss_type='grpo' favours long wrong ones: with it, take 'dr_grpo' or 'dapo'. Else "
    advice += "try a penalty on length."
    cost = {"tokens per completion": last - first}
    return found(PROBLEM if serious else WARNING, says, advice, evidence=evidence, cost=cost)
