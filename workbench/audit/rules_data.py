"""Rules about the log itself and the rows in it: damage, groups of one prompt, repeated prompts, rewards that are missing."""

import re
from functools import cache

import numpy as np
import pandas as pd

from ..curves.curve import Curve
from ..curves.documented import Beginning, beginnings, load_baseline
from ..curves.place import COPY, may_be_same, same_table
from ..logs.log import Log
from ..logs.names import canonical, plain, reward_columns
from ..logs.rows import CSV
from .finding import NOTE, PROBLEM, WARNING, Finding, absent, found, unknown
from .rule import BASELINE, COMPLETIONS, rule

_NEVER = " is no finite number in "  # between a metric and the steps, in the damage of a log
_VITAL = re.compile(r"(?:^|_)(?:grad_norm|(?:actor|critic|policy|value|pg|vf)_loss)$")
_MOST_NAMED = 5
_OFTEN = 0.05  # share of steps; fp16 skips a step now and then


@rule
def log_damage(log: Log) -> Finding:
    """Whether steps are missing, twice or out of order, two runs share the file, or something could not be read.

    How: step numbers, or epochs where a console log has none; any series that is NaN or infinite in some step. That is a
    problem where it is a loss, a gradient or a reward, also one of a critic, in 5% of the steps or more. Of another metric it
    is a warning, or a note where its name is not known. So is an empty cell of a CSV that spells no NaN: the number is missing,
    or was NaN.
    Wrong where: a log was thinned on purpose at uneven distances: its steps count as missing.
    """
    order = np.array(log.order)
    counted = [d for d in log.damage if "are counted" in d]  # a console log has no step numbers: that is no damage
    broken = [d for d in log.damage if d not in counted]
    each = np.unique(order)
    distances = np.diff(each)
    usual = float(np.median(distances)) if len(distances) else 1.0
    back = np.flatnonzero(np.diff(order) < 0) if len(order) > 1 else np.array([], int)
    restarts = [int(n) for n in back if order[n + 1] <= each[0] and len(order) - n > 3 and n > 1]
    logged = np.unique(np.concatenate([each, _of_all_lines(log)]))  # a line of an evaluation alone is no lost step
    between = np.searchsorted(logged, each[1:]) - np.searchsorted(logged, each[:-1]) - 1
    gaps = [int(step) for step in each[:-1][(distances > 1.5 * usual) & (between == 0)]] if len(each) > 1 else []
    lines = np.unique(order, return_counts=True)[1]
    twice = int((lines > 1).sum())
    if restarts:
        runs = 1 + int(((np.diff(order) <= 0) & (order[1:] <= each[0])).sum())
        says = f"The file holds {runs} runs: step numbers start again after step {order[restarts[0]]:.0f}."
        return _damaged(log, PROBLEM, "two-runs", says, "Give each run its own file; the other findings mix the runs.")
    lost = {name: where for name in ("loss", "grad_norm") if (where := _not_a_number(log, name)).any()}
    if lost and max(where.mean() for where in lost.values()) >= _OFTEN:
        name = max(lost, key=lambda name: lost[name].mean())
        says = f"{name} is no finite number in {lost[name].mean():.0%} of the steps"
        steps = log.steps["step"].to_numpy()
        if not any(where[steps <= _last_logged(log, name)][-1] for name, where in lost.items()):
            says += ", and the last steps have one, so the weights were not lost."
            advice = (
                "A step of fp16 that overflows is skipped, and a file may lack values. If steps were skipped, train in "
            )
            advice += "bf16 or fp32, or lower the learning rate."
            return _damaged(log, WARNING, "not-finite", says, advice, steps=log.at(lost[name]))
        if log.kind == CSV and np.isinf(_last_logged(log, name)):
            says = f"{name} has no number in {lost[name].mean():.0%} of the steps, also in the last: a CSV has an empty cell "
            says += "for what was NaN, and for what was not logged."
            advice = "Look into the trainer's own log. If it was NaN, the weights may be lost."
            return _damaged(log, WARNING, "not-finite", says, advice, steps=log.at(lost[name]))
        says += ", also of the last: the weights may be lost."
        advice = "Go back to a checkpoint before the first of these steps; lower the learning rate, or train in bf16 or fp32."
        return _damaged(log, PROBLEM, "not-finite", says, advice, steps=log.at(lost[name]))
    never = [d for d in broken if _NEVER in d]
    parts = (
        set() if log.lines is None else set(reward_columns(log.lines.columns).values())
    )  # a function may score no row
    known = {name for d in never if canonical([name := d.partition(_NEVER)[0]]) and name not in parts}
    vital = [d for d in never if (name := d.partition(_NEVER)[0]) not in parts and _is_vital(name) and _is_often(d)]
    if vital:  # an engine may not compute the others
        others = [d for d in never if d not in vital]
        from_the_start = any(d.endswith("any step") for d in vital)
        when = "were lost before the first step ended" if from_the_start else "may be lost from there on"
        says = f"{_joined([*vital, *others])}: the weights {when}, or the metric is wrong."
        advice = "Compute one loss by hand in fp32; lower the learning rate, or train in bf16 or fp32."
        return _damaged(log, PROBLEM, "not-finite", says, advice)
    broken = [d for d in broken if d not in never]
    wrong = []
    if twice and len(back):
        wrong.append(f"{twice} steps are in the log twice; the audit uses the last line of each")
    elif twice:
        wrong.append(f"{twice} of {len(each)} steps have several lines; the audit uses their means")
    wrong += [f"steps are out of order at {len(back)} places"] * bool(len(back))
    wrong += [f"steps are missing after {', '.join(map(str, gaps[:5]))}"] * bool(gaps) + broken
    if not wrong and never:
        often = any(d.partition(_NEVER)[0] in known and _is_often(d) for d in never)
        advice = "Look at how this metric is computed: a mean of nothing and a division by 0 are no numbers either."
        return _damaged(log, WARNING if often else NOTE, "not-finite", f"{_joined(never)}.", advice)
    wrong += never
    if not wrong:
        return absent("; ".join((*counted, *log.notes)) or "Every step is there once and in order.")
    if any(text.startswith("reward is infinite") for text in broken):
        advice = "Let the reward function return finite numbers: a single infinite reward makes the mean of its step useless."
        return _damaged(log, PROBLEM, "not-finite", "; ".join(wrong) + ".", advice)
    if len(wrong) == 1 and not len(back) and (as_usual := np.median(lines)) > 1 and (lines == as_usual).mean() >= 0.9:
        says = (
            f"Each step has {as_usual:.0f} lines, as of several completions or minibatches; the audit uses their means."
        )
        return _damaged(log, NOTE, "several-lines", says, "Log the mean of each step, so that other tools read it too.")
    cause = "twice" if twice else "order" if len(back) else "missing" if gaps else "unreadable"
    advice = "The findings are about what could be read; check how the file was written."
    if any("is no number" in text for text in broken):
        advice += " A gradient that overflowed is often written as null."
    return _damaged(log, WARNING, cause, "; ".join(wrong) + ".", advice)


def _of_all_lines(log: Log) -> np.ndarray:
    """The step numbers of all lines of the file, also of those that log no metric of a step."""
    known = {} if log.lines is None else canonical(map(str, log.lines.columns))
    column = next((column for column, name in known.items() if name == "step"), None)
    if log.lines is None or column not in log.lines:
        return np.zeros(0)
    own = pd.to_numeric(log.lines[column], errors="coerce").dropna().to_numpy(float)
    return np.concatenate([own, log.lines.attrs.get("steps of evaluations", [])])


def _is_often(sentence: str) -> bool:
    """True where a series is no finite number in 5% of its steps or more."""
    counts = re.search(r"(\d+) of (\d+) steps$", sentence)
    return counts is None or int(counts[1]) >= _OFTEN * int(counts[2])


def _is_vital(name: str) -> bool:
    """True for a loss of the actor or critic, a gradient or a reward, which are numbers unless weights or rewards are none."""
    known = canonical([name]).get(name)
    return known in ("loss", "grad_norm", "reward", "value_loss") or bool(_VITAL.search(plain(name)))


def _joined(sentences: list[str]) -> str:
    more = f"; and {len(sentences) - _MOST_NAMED} metrics more" if len(sentences) > _MOST_NAMED else ""
    return "; ".join(sentences[:_MOST_NAMED]) + more


def _not_a_number(log: Log, name: str) -> np.ndarray:
    """Steps without a value of a metric that other steps log in addition to the reward, (N,) of bool.

    A metric that no two lines in a row have is logged less often than the reward, and not lost. Nor is one that the last lines
    of a console log or of JSON do not have at all: there the trainer is behind the rollouts, as in asynchronous training.
    """
    values, reward = log.logged(name), log.logged("reward")
    none = np.zeros(len(log.steps), bool)
    if values is None or reward is None:
        return none
    beside = ~np.isnan(values) & ~np.isnan(reward)
    if not beside.any() or (beside.sum() > 1 and not (beside[1:] & beside[:-1]).any()):
        return none
    steps = log.steps["step"].to_numpy()
    return (
        np.isnan(values) & ~np.isnan(reward) & (steps > steps[np.argmax(beside)]) & (steps <= _last_logged(log, name))
    )


def _last_logged(log: Log, name: str) -> float:
    """The last step that has a value of a metric, finite or not; a table of CSV does not show which have none."""
    known = {} if log.lines is None else canonical(map(str, log.lines.columns))
    column = next((column for column, metric in known.items() if metric == name), None)
    if column is None or log.lines is None or "rows" not in log.lines.attrs or (series := log.raw(column)) is None:
        return np.inf
    return float(series.index.max())


def _damaged(log: Log, severity: str, cause: str, says: str, advice: str, **about) -> Finding:
    return found(severity, says, advice, cause=cause, evidence={"lines": len(log.order)}, **about)


@rule(needs=COMPLETIONS, explains=("collapse", "no-learning"), at_once=True, notebook="04_duplicate_prompts")
def mixed_groups(log: Log) -> Finding:
    """Whether completions of one group have different prompts: then rewards of different tasks are compared.

    How: completions in the order of the log; num_generations from the settings, the prompts, or advantages that add up to
    0.
    Wrong where: another program wrote the completions in another order.
    """
    if not log.grouped:
        return absent("This trainer's completions do not lie in groups of one prompt.")
    if log.groups is None:
        return unknown("Give completions, and num_generations where prompts do not show it.")
    mixed = log.groups["prompts"] > 1
    if "compared" in log.groups and log.groups["compared"].any():
        mixed &= log.groups["compared"]
    if not mixed.any() and log.sure_of_groups:
        return absent("Each group has one prompt.", groups=len(mixed))
    if not mixed.any():
        return unknown("Give num_generations: groups that are found by their prompt never hold two prompts.")
    return found(
        PROBLEM,
        f"{mixed.mean():.0%} of the groups hold more than one prompt, so rewards of different prompts are compared.",
        "Make the sampler repeat each prompt num_generations times in a row; workbench.training.groups.check_groups names "
        "the group.",
        steps=log.groups["step"][mixed].unique(),
        evidence={"groups": len(mixed), "mixed": int(mixed.sum()), "num_generations": log.num_generations},
        cost={"share of groups": float(mixed.mean())},
    )


@rule(needs=BASELINE, notebook="06_curves_against_baselines")
def reward_scale(log: Log) -> Finding:
    """Whether rewards lie outside the range of the documented curve (`--baseline`): then scale or sign differs.

    How: every logged reward against the range that `data/baselines` states for the run of `--baseline`, and the unit, where
    the run's `recipe.json` states one. Wrong where: the run has another reward function on purpose.
    """
    reward, documented = log.metric("reward"), log.facts.get("documented")
    if documented is None or reward is None:
        return unknown("Name the documented run to compare with: --baseline NAME.")
    low = -np.inf if documented["low"] is None else documented["low"]
    high = np.inf if documented["high"] is None else documented["high"]
    outside = (reward < low) | (reward > high)
    evidence = {"rewards": [float(np.nanmin(reward)), float(np.nanmax(reward))], "documented": [low, high]}
    unit = log.facts.get("reward_unit")
    if not outside.any() and unit and unit != documented["unit"]:
        says = f"The reward of this run is {unit!r}, that of {documented['name']} {documented['unit']!r}."
        return found(NOTE, says, "Compare heights only if both mean the same.", evidence=evidence)
    if not outside.any():
        says = f"Rewards lie in the range of {documented['name']}; whether they are the same reward no log shows."
        return absent(says, **evidence)
    says = f"Rewards from {np.nanmin(reward):.4g} to {np.nanmax(reward):.4g} cannot be compared with {documented['name']}, "
    says += f"whose reward lies in {low:g} to {high:g} ({documented['unit']}): the scale or the sign differs."
    advice = "Compare with a run of the same reward function, or rescale one of them."
    return found(WARNING, says, advice, steps=log.at(outside), evidence=evidence)


@rule
def documented_run(log: Log) -> Finding:
    """Whether the numbers equal those of a published run: a note, since this log is that run, or a copy of its log.

    How: `curves.place.same_table` of the log and of each curve in `data/baselines`, over the same steps: at least 10
    points agree in three digits and have at least 5 different values, because a reward stuck at 0 is the same in every run.
    Wrong where: a run was repeated with the same seed and software, and gave the same numbers.
    """
    steps = log.steps["step"].to_numpy()
    for column, published in _published().items():
        values, last = log.logged(column), max(beginning.last for beginning in published)
        if values is None or steps[0] > last:
            continue
        own = Curve(log.name, steps[steps <= last], values[steps <= last], "")
        for beginning in published:
            if not may_be_same(own, beginning):
                continue
            baseline = load_baseline(beginning.run)
            alike = same_table(own, baseline.curve(beginning.metric))
            if alike.word == COPY:
                return found(
                    NOTE,
                    f"This is a documented run: {baseline.title} ({baseline.source}).",
                    f"Compare other runs with it: --baseline {baseline.name}.",
                    evidence={"name": baseline.name, "metric": beginning.metric, "agreement": alike.why},
                )
    return absent("No published run has these numbers.")


@cache
def _published() -> dict[str, list[Beginning]]:
    """Name of a metric in logs -> the beginnings of the documented curves of it."""
    by_column: dict[str, list[Beginning]] = {}
    by_run: dict[str, list[Beginning]] = {}
    for beginning in beginnings():
        by_run.setdefault(beginning.run, []).append(beginning)
    for curves in by_run.values():
        columns = canonical(beginning.metric for beginning in curves)
        for beginning in curves:
            if beginning.metric in columns:
                by_column.setdefault(columns[beginning.metric], []).append(beginning)
    return by_column


@rule(needs=COMPLETIONS)
def duplicate_prompts(log: Log) -> Finding:
    """Whether a batch holds a prompt in more than one group. Every release of TRL handles this correctly, so it is a note.

    How: prompts of the completions of a step.
    Wrong where: the data repeat prompts on purpose.
    """
    if not log.grouped:
        return absent("This trainer's completions do not lie in groups of one prompt.")
    table = log.completions
    if log.groups is None or table is None:
        return unknown("Give completions, and num_generations where prompts do not show it.")
    prompts = table.groupby("step")["prompt"].nunique()
    if len(prompts) >= 8 and table["prompt"].nunique() == 1:
        return found(NOTE, "All steps have one prompt.", "Train on more prompts.", cause="one-prompt")
    groups = log.groups.groupby("step").size()
    repeats = (groups - prompts).clip(lower=0)
    share = float(repeats.sum() / groups.sum())
    if not share:
        return absent("No prompt has two groups in a step.")
    says = f"{share:.0%} of the groups repeat a prompt of the same step."
    advice = "Harmless in every release of TRL. Shuffle or deduplicate the data."
    evidence, where = {"share of groups": share}, repeats.index[repeats > 0]
    return found(NOTE, says, advice, steps=where, evidence=evidence, notebook="04_duplicate_prompts")


def _reused(log: Log) -> np.ndarray:
    """Steps on completions of a step before, (N,) of bool: with num_iterations or steps_per_generation above 1."""
    lengths = log.logged("mean_length")
    return np.zeros(len(log.steps), bool) if lengths is None else np.isnan(lengths)


@rule(needs=COMPLETIONS, at_once=True)
def missing_rewards(log: Log) -> Finding:
    """Whether completions or steps have no reward: their advantage is zero, and the logged means hide this.

    How: completions without a reward, or steps without one that did not reuse completions. The mean of a step leaves out
    completions without a reward, so the rule needs the completions to find them.
    Wrong where: the reward function leaves out completions on purpose.
    """
    reward, table = log.logged("reward"), log.completions
    rows = table["reward"].isna() if table is not None and "reward" in table else None
    if reward is None and rows is None:
        return unknown("Log the reward.")
    if any(text.startswith("reward is infinite") for text in log.damage):
        return unknown("Let the reward function return finite numbers: here infinite ones count as missing.")
    steps = np.zeros(len(log.steps), bool) if reward is None else np.isnan(reward) & ~_reused(log)
    if rows is None and steps.any() and log.logged("mean_length") is None:
        advice = "Log completions/mean_length too: steps that reuse completions (num_iterations) have no reward either."
        return unknown(advice, f"{steps.mean():.1%} of the steps have no reward in this log.")
    if steps.any() and rows is not None and not rows.any():
        rows = None  # the completions are of other steps
    share = float(rows.mean()) if rows is not None else float(steps.mean())
    if not share:
        if rows is not None:
            return absent("Every completion has a reward.")
        advice = "Give completions (log_completions=True): the mean of a step leaves out completions without a reward."
        return unknown(advice, "Every step has a reward.")
    units = "steps" if rows is None else "completions"
    return found(
        PROBLEM if share >= 0.05 else WARNING,
        f"{share:.1%} of the {units} have no reward.",
        "Repair the function that returns none, or drop the prompts that it cannot score. Do not return 0 instead: that moves "
        "the mean of the group.",
        steps=log.at(steps) if table is None or rows is None else table["step"][rows].unique(),
        evidence={"share": share, "steps": int(steps.sum())},
        cost={f"share of {units}": share},
    )
