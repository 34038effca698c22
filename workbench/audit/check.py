"""All rules on one log, in an order in which what a finding contradicts is used by no later rule."""

import dataclasses
import json
import os
from collections.abc import Sequence

from ..errors import ParameterError
from ..logs.log import Log
from ..runs.own_code import line_of, load_own
from . import rules_clipping as clipping
from . import rules_data as data
from . import rules_ends as ends
from . import rules_gradient as gradient
from . import rules_learning as learning
from . import rules_reward as reward
from . import rules_sampler as sampler
from .finding import CANNOT_TELL, FOUND, NOT_FOUND, NOTE, SEVERITIES, WARNING, Finding
from .rule import Rule
from .trends import LEAST

# Causes before what may come of them: of two problems, or two warnings, the earlier is named first. A run that learns the form
# and not the task has lost more than one with false metrics, so the parts of the reward come early.
RULES: tuple[Rule, ...] = (
    data.log_damage, data.reward_scale, reward.reward_parts, reward.tool_failures,
    clipping.false_clipping, gradient.false_zero_std,  # before those that ask the metrics: they may take some away
    ends.masked_stops, gradient.copies, data.mixed_groups, data.missing_rewards, ends.added_token,
    sampler.stale_sampler, sampler.padding_positions, sampler.mismatch, sampler.lost_to_correction,
    learning.spikes,
    ends.never_stops, ends.true_clipping, gradient.zero_gradient, gradient.lost_updates,
    ends.reward_is_ending,
    learning.collapse, learning.length_runaway, learning.kl_runaway, learning.no_learning, learning.solved,
    gradient.wasted_groups,
    reward.dead_rewards, data.documented_run, data.duplicate_prompts,
)  # fmt: skip


_ENOUGH, _UNITS = 0.25, ("steps", "groups", "prompts")  # a share of one of these


def check(log: Log, own: Sequence[Rule] = ()) -> list[Finding]:
    """What every rule says of a run, the user's own ones last: problems first, those that another explains after them."""
    log = dataclasses.replace(log)  # without findings that were asked for before anything was contradicted
    findings = []
    for rule in (*RULES, *own):
        findings.append(rule(log) if rule in RULES else _attempt(rule, log))
        log = log.without(findings[-1].contradicts)
    causes = [finding for finding in findings if finding.verdict == FOUND and finding.severity != NOTE]
    ranked = sorted((_explained(finding, causes) for finding in findings), key=_rank)
    return [_in_proportion(finding, log) for finding in ranked]


def _in_proportion(finding: Finding, log: Log) -> Finding:
    """A finding of the built-in rules, of which none is a problem in a log of fewer than 8 lines."""
    if not finding.is_problem or finding.by not in RULES or max(len(log.steps), len(log.order)) >= LEAST:
        return finding
    lines = "one line" if len(log.steps) == 1 else f"{len(log.steps)} lines"
    says = f"{finding.says} This log has {lines}, too few to call it a problem."
    return dataclasses.replace(finding, severity=WARNING, says=says)


def _attempt(rule: Rule, log: Log) -> Finding:
    """A user's rule; one that raises is no reason to end the audit."""
    try:
        finding = rule(log)
        json.dumps(finding.as_json())  # raises for what no report can show
        return finding
    except Exception as error:
        where, says = line_of(error, rule.function.__code__.co_filename), f"it raised {type(error).__name__}: {error}"
        return rule.signed(Finding(CANNOT_TELL, says, cause="error", advice=f"Repair {where}: {says}"), log)


def _explained(finding: Finding, causes: Sequence[Finding]) -> Finding:
    """A finding with the first of the causes that explain it; one that concerns a small part of the run explains nothing."""
    names = [
        cause.rule for cause in causes if {finding.rule, finding.title} & set(cause.by.explains) and _is_large(cause)
    ]
    return dataclasses.replace(finding, follows_from=names[0]) if names and finding.verdict == FOUND else finding


def _is_large(cause: Finding) -> bool:
    shares = [cause.cost[f"share of {unit}"] for unit in _UNITS if f"share of {unit}" in cause.cost]
    return not shares or max(shares) >= _ENOUGH


def _rank(finding: Finding) -> tuple:
    if finding.verdict == FOUND:
        return (SEVERITIES.index(finding.severity), finding.follows_from is not None)
    return (len(SEVERITIES) + (finding.verdict == NOT_FOUND), False)


def load_rules(path: str | os.PathLike) -> list[Rule]:
    """Run a user's Python file and take the rules that it defines.

    Raises:
        ParameterError: no such file, an error in it, no rule in it, a rule with the name of another.
    """
    return checked(load_own(path, "rules", Rule, RULES, "workbench.audit"))


def checked(own: Sequence[Rule]) -> list[Rule]:
    """Rules of a user, none of which has the name of another rule."""
    if plain := [each for each in own if not isinstance(each, Rule)]:
        raise ParameterError(f"rules: {plain[0]!r} is no rule; expected a function that `@rule` decorates")
    names = [rule.name for rule in (*RULES, *own)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ParameterError(f"rules: two rules have the name {twice[0]!r}; rename your function")
    return list(own)
