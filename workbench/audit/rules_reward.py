"""Rules about what the reward is made of: its parts, those that never vary, and tools whose calls fail."""

import re
from typing import Any

import numpy as np

from ..curves.stats import Interval
from ..logs.log import Log
from ..logs.names import plain
from .finding import NOTE, PROBLEM, WARNING, Finding, absent, found, unknown
from .rule import REWARDS, TOOLS, rule
from .trends import LEAST, change, quarters, reward_of, rises

_PARTS = f"Log the mean of each of several reward functions over {LEAST} steps or more, as TRL does."
_FAILING = 0.1  # share of calls
_CLOSED = re.compile(r"</(\w+)>")
_SOME = 100  # completions
_ADDS_UP = 1e-3  # share of the range of the reward that parts may miss it by and still add up to it
FORM_ONLY = "form-only"  # cause of reward-parts
# Words in the names of reward functions that score the answer, and of those that score its form whatever else is in the name.
_OF_ANSWER = re.compile(
    r"correct|accura|answer|solv|match|verif|outcome|success|equation|exact|ground_truth|numbers|unit_?test|tests_?pass|pass_?rate"
)
_OF_FORM = re.compile(
    r"(?<!in)(?<!trans)format|xml|(?<![a-z])tag|length|think|structur|style|penalt|repet|brev|language"
)


def _parts(log: Log) -> dict[str, np.ndarray]:
    """Reward function with a mean in 8 steps and more -> its means, (N,)."""
    return {name: means for name, means in log.parts.items() if (~np.isnan(means)).sum() >= LEAST}


def scores_the_answer(name: str) -> bool:
    """True for a reward function whose name says that it scores the answer, and not its form.

    Example:
        >>> [scores_the_answer(name) for name in ("correctness_reward_func", "check_answer", "answer_format", "xmlcount")]
        [True, True, False, False]
    """
    words = plain(name)
    return bool(_OF_ANSWER.search(words)) and not _OF_FORM.search(words)


def _is_at_its_top(means: np.ndarray) -> bool:
    """True where a part ends within 5% of 1, or of a larger whole number that is its highest: all of some step earned it."""
    top, last = float(np.nanmax(means)), quarters(means)[1]
    whole = top >= 1 and abs(top - round(top)) < 1e-6
    return last >= 0.95 * top if whole else 0.95 <= last <= 1 and top <= 1


def _weights(reward: np.ndarray | None, parts: dict[str, np.ndarray]) -> dict[str, float]:
    """The weight of each part, where some add the parts up to the reward in all steps; else 1 for each.

    They do not where a function gave no reward for some completions, or the trainer scales rewards before it adds them.
    """
    ones = dict.fromkeys(parts, 1.0)
    columns = np.array(list(parts.values())).T
    known = np.zeros(len(columns), bool) if reward is None else ~np.isnan(columns).any(axis=1) & ~np.isnan(reward)
    if reward is None or known.sum() < len(parts) + LEAST:
        return ones
    scale = np.maximum(np.abs(columns[known]).max(axis=0), 1e-12)
    found, _, rank, _ = np.linalg.lstsq(columns[known] / scale, reward[known], rcond=1e-6)
    missed = np.abs(columns[known] / scale @ found - reward[known]).max()
    if rank < len(parts) or missed > _ADDS_UP * np.ptp(reward[known]):
        return ones
    largest = np.abs(found).max()
    return {
        name: float(weight / size) if abs(weight) > _ADDS_UP * largest else 0.0
        for name, weight, size in zip(parts, found, scale, strict=True)
    }


def _only_the_form(parts: dict[str, np.ndarray], total: Interval | None) -> list[str]:
    """The parts that score the answer, if the total surely rises and they do not: even the ends of their intervals are small.

    Where no name says that a part scores the answer, all are taken whose names do not speak of its form. An empty list where
    one of the parts may explain half of the rise, or is at its top.
    """
    answers = [name for name in parts if scores_the_answer(name)]
    answers = answers or [name for name in parts if not _OF_FORM.search(plain(name))]
    if total is None or total.low <= 0 or not answers or any(_is_at_its_top(parts[name]) for name in answers):
        return []
    moves = {name: change(means) for name, means in parts.items()}
    if any(moved is not None and moved.low > 0 for name, moved in moves.items() if name in answers):
        return []
    most = sum(max(float(moved.high), 0.0) for name, moved in moves.items() if moved is not None and name in answers)
    others = [float(moved.estimate) for name, moved in moves.items() if moved is not None and name not in answers]
    return answers if most < 0.5 * sum(rise for rise in others if rise > 0) else []


@rule(needs=REWARDS)
def reward_parts(log: Log) -> Finding:
    """Which parts of the reward move, and whether the total hides it: a warning if the answer does not get better.

    How: 99% intervals of the changes of `rewards/<f>/mean`, from the first to the last fifth of the steps, and of the total.
    The log does not have the weights. Where some add the functions up to the total, these are taken, and a function of weight 0
    is no part; else the rule compares the functions themselves. It is a warning, and comes first, if the total rises and no
    function that scores the answer does: even the upper ends of their intervals are less than half of what the others gain,
    weights or not. Names tell such functions (correct, accuracy, answer, solved, match, ...). Where none does, all count whose
    names do not speak of form (format, xml, tags, length, ...). It is a warning too if some parts lose what others gain. A note
    if only some of the parts move, unless all of them have their lowest value in all steps of the last quarter.
    Wrong where: a part is a penalty that has to grow when the policy improves, such as one on length; or a name misleads.
    """
    parts, total = _parts(log), change(reward_of(log))
    if len(parts) < 2:
        return _too_few_parts(log)
    moves = {name: moved for name, means in parts.items() if (moved := change(means)) is not None}
    rise = {name: float(moved.estimate) for name, moved in moves.items() if moved.low > 0}
    fall = {name: float(moved.estimate) for name, moved in moves.items() if moved.high < 0}
    still = {name: float(moved.estimate) for name, moved in moves.items() if name not in rise | fall}
    constant = {name: float(np.nanmax(means)) for name, means in parts.items() if name not in moves}
    course = 0 if total is None else int(total.low > 0) - int(total.high < 0)
    evidence: dict[str, Any] = {"rise": rise, "fall": fall, "no sure change": still, "constant": constant}
    evidence |= {} if total is None else {"total": float(total.estimate)}
    answers = _only_the_form(parts, total)
    if total is not None and answers:
        return _learns_the_form(answers, rise | fall | still, constant, float(total.estimate), evidence)
    weights = _weights(reward_of(log), parts)
    paid = {name: weights[name] * value for name, value in (rise | fall).items() if weights[name]}
    gains, losses = (sum(max(sign * value, 0.0) for value in paid.values()) for sign in (1, -1))
    if not paid or not (any(weights[name] for name in still | constant) or (gains and losses)):
        return absent("All parts of the reward move alike." if paid else "No part surely moves.", **evidence)
    if _all_end_at_their_lowest(parts):
        return absent("Every part of the reward ends at its lowest, and so does the total.", **evidence)
    cancel = course >= 0 and bool(gains) and losses >= 0.5 * gains
    which = next(iter(paid))
    if gains and losses:
        lead = "Parts of the reward go against each other"
    else:
        rising = paid.keys() & rise.keys()
        count, verb = len(paid), "rise" if rising == paid.keys() else "fall" if not rising else "move"
        lead = f"Only {which} {verb}s" if count == 1 else f"{count} of {len(parts)} parts of the reward {verb}"
        if not course and log.metric("reward") is not None:
            lead += ", which the total hides"
    words = [f"{name} {value:+.2g}{_of_weight(weights[name])}" for name, value in (rise | fall).items()]
    words += [f"{name} no sure change ({value:+.2g})" for name, value in still.items()]
    words += [_constant_part(name, value) for name, value in constant.items()]
    says = f"{lead}: {'; '.join(words)}. The total "
    says += "is not known to move" if total is None else f"{('shows no sure change', 'rises', 'falls')[course]}"
    says += "." if total is None else f" ({total.estimate:+.2g})."
    advice = "Judge the run by the part that measures the task, and in an evaluation: the total does not show it."
    if cancel:
        advice += " If that part falls, lower the weight of those that rise (reward_weights), or pay them only with it."
    severity, cause = WARNING if cancel else NOTE, "cancel" if cancel and not course else ""
    return found(severity, says, advice, cause=cause, evidence=evidence)


def _all_end_at_their_lowest(parts: dict[str, np.ndarray]) -> bool:
    """True where each part has one value in all steps of the last quarter, the lowest of the run: no reward comes any more."""
    ends = [(np.nanmin(means), means[~np.isnan(means)]) for means in parts.values()]
    return all((means[-max(LEAST, len(means) // 4) :] == lowest).all() for lowest, means in ends)


def _learns_the_form(
    answers: list[str], moved: dict[str, float], constant: dict[str, float], total: float, evidence: dict
) -> Finding:
    """The warning that the reward rises and the answers do not get better."""
    of_answers = [f"{name} {moved[name]:+.2g}" for name in answers if name in moved]
    of_answers += [_constant_part(name, constant[name]) for name in answers if name in constant]
    others = [f"{name} {value:+.2g}" for name, value in moved.items() if name not in answers]
    others += [_constant_part(name, value) for name, value in constant.items() if name not in answers]
    says = f"The reward rises ({total:+.2g}), but no part that scores the answer does: {'; '.join(of_answers)}."
    says += f" Of the others: {'; '.join(others)}."
    advice = (
        "Read ten completions of the last steps: the policy learns the form and not the task. Take prompts of which it "
    )
    advice += (
        "solves some; then pay the form only with a right answer, or lower the weight of the form (reward_weights)."
    )
    return found(WARNING, says, advice, cause=FORM_ONLY, evidence=evidence | {"score the answer": answers})


def _of_weight(weight: float) -> str:
    return "" if abs(weight - 1) < 0.05 else f" (weight {weight:.2g})"


def _constant_part(name: str, value: float) -> str:
    return f"{name} {value:.4g} in every step" + (", never earned" if value == 0 else "")


@rule(needs=REWARDS)
def dead_rewards(log: Log) -> Finding:
    """Whether one of several reward functions gave the same value in every step: a note, since it teaches nothing.

    How: `rewards/<f>/mean` over 8 steps and more. Where completions close a tag that they do not open, as `<think>`, which many
    chat templates write into the prompt, the advice says so.
    Wrong where: a function guards against what never happens: then it is right that it never varies.
    """
    parts = _parts(log)
    constant = {name: float(np.nanmax(means)) for name, means in parts.items() if np.nanmax(means) == np.nanmin(means)}
    if len(parts) < 2:
        return _too_few_parts(log)
    if not constant:
        return absent("Each reward function varies.")
    words = ", ".join(f"{name} gave {value:.4g}" for name, value in constant.items())
    says = f"Of {len(parts)} reward functions {len(constant)} never varied: {words} in every step."
    always = [name for name, value in constant.items() if value]
    earns = "gets" if any(constant[name] < 0 for name in always) else "earns"
    advice = (
        f"{', '.join(always)}: every completion {earns} it. Keep it if it is a guard, else ask for more."
        if always
        else ""
    )
    if len(always) < len(constant):
        never = "Call the function on a completion that should earn its reward: what it looks for may never be sampled."
        asks_for_form = not any(scores_the_answer(name) for name in constant if name not in always)
        advice = f"{(asks_for_form and _of_opened_tag(log)) or never} {advice}".strip()
    return found(NOTE, says, advice, evidence={"constant": dict(constant)})


def _of_opened_tag(log: Log) -> str:
    """Advice where at least half of the completions close a tag, and at most one in twenty opens it."""
    if log.completions is None or not len(log.completions):
        return ""
    texts = log.completions["completion"].astype(str)
    for tag in dict.fromkeys(tag for text in texts.head(_SOME) for tag in _CLOSED.findall(text)):
        closed, opened = (texts.str.contains(mark, regex=False) for mark in (f"</{tag}>", f"<{tag}>"))
        if closed.mean() < 0.5 or opened.mean() > 0.05:
            continue
        by_prompt = log.completions["prompt"].astype(str).str.rstrip().str.endswith(f"<{tag}>").mean()
        where = "the prompt opens it, so it is no part of them" if by_prompt > 0.5 else "the chat template may open it"
        return f"Completions close </{tag}> and do not open it: {where}. Let the function ask for the end alone."
    return ""


def failing_calls(log: Log) -> np.ndarray | None:
    """Share of the calls of tools that fail at each step, (N,) from 0 to 1; None where the log does not have it."""
    share, right = log.metric("tool_failures"), log.metric("tool_successes")
    if share is None and right is not None:
        share = 1 - right
    if share is None or np.nanmin(share) < 0 or np.nanmax(share) > 1:
        return None
    calls = log.metric("tool_calls")
    return share if calls is None else np.where(calls == 0, np.nan, share)  # without a call TRL logs 0


@rule(needs=TOOLS, explains=("no-learning",))
def tool_failures(log: Log) -> Finding:
    """Whether calls of tools fail: their completions get the reward of a wrong answer, and the policy avoids the tool.

    How: the mean over all steps of TRL's `tools/failure_frequency` (calls that fail), prime-rl's `error/mean` (rollouts that
    end in an error) or 1 - `env/ratio_of_valid_action` (turns without a valid call, verl with Search-R1's loop). A warning from
    10% on; a problem from half of them on, unless the reward rises.
    Wrong where: a failing call is a part of the task, such as code that the tests of the task have to refuse.
    """
    share = failing_calls(log)
    if share is None or np.isnan(share).all():
        return unknown("Log the share of calls that fail, as TRL's tools/failure_frequency, where tools are called.")
    mean, (first, last) = float(np.nanmean(share)), quarters(share)
    of = (
        "rollouts end in an error"
        if log.logged("tool_failures") is not None and log.logged("tool_calls") is None
        else ""
    )
    of = of or ("turns have no valid call" if log.logged("tool_failures") is None else "calls of tools fail")
    evidence = {"share that fails": mean, "first quarter": first, "last quarter": last}
    if mean < _FAILING:
        return absent(f"{mean:.0%} of the {of}.", **evidence)
    says = f"{mean:.0%} of the {of}, {first:.0%} in the first quarter of the run and {last:.0%} in the last."
    says += " Their completions are scored like wrong answers."
    advice = (
        "Read the errors that the tool or sandbox returned: repair time-outs, limits and the format of a call first. Where the "
        "tool itself failed, leave the completion out: in TRL every reward function returns None for it. If failures grow, the "
        "policy may be at fault too."
    )
    severity = PROBLEM if mean >= 0.5 and not rises(reward_of(log)) else WARNING
    where = log.at(np.nan_to_num(share) >= max(_FAILING, mean / 2))
    return found(severity, says, advice, steps=where, evidence=evidence, cost={"share of calls": mean})


def _too_few_parts(log: Log) -> Finding:
    return unknown(_PARTS, f"It has {len(log.parts)} of them, in too few steps." if len(log.parts) > 1 else "")
