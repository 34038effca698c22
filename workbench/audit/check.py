"""All rules on one log, in an order in which what a finding contradicts is used by no later rule."""

import dataclasses
import json
import os
import runpy
import traceback
from collections.abc import Sequence

from ..errors import ParameterError
from ..logs.log import Log
from . import rules_clipping, rules_data, rules_ends, rules_gradient, rules_learning, rules_sampler
from .finding import CANNOT_TELL, FOUND, NOT_FOUND, NOTE, SEVERITIES, Finding
from .rule import Rule

# Causes before what may come of them: of two problems the earlier is named first.
RULES: tuple[Rule, ...] = (
    rules_data.log_damage,
    rules_data.reward_scale,
    rules_clipping.false_clipping,  # these two before those that ask the metrics: they may take some away
    rules_gradient.false_zero_std,
    rules_ends.masked_stops,
    rules_gradient.copies,
    rules_data.mixed_groups,
    rules_data.missing_rewards,
    rules_ends.added_token,
    rules_sampler.stale_sampler,
    rules_sampler.padding_positions,
    rules_sampler.mismatch,
    rules_ends.never_stops,
    rules_ends.true_clipping,
    rules_gradient.zero_gradient,
    rules_learning.collapse,
    rules_learning.length_runaway,
    rules_learning.kl_runaway,
    rules_learning.no_learning,
    rules_learning.solved,
    rules_learning.spikes,
    rules_data.documented_run,
    rules_data.dead_rewards,
    rules_data.duplicate_prompts,
)


def check(log: Log, own: Sequence[Rule] = ()) -> list[Finding]:
    """What every rule says of a run, the user's own ones last: problems first, those that another explains after them."""
    log = dataclasses.replace(log)  # without findings that were asked for before anything was contradicted
    findings = []
    for rule in (*RULES, *own):
        findings.append(rule(log) if rule in RULES else _attempt(rule, log))
        log = log.without(findings[-1].contradicts)
    causes = [finding for finding in findings if finding.verdict == FOUND and finding.severity != NOTE]
    return sorted((_explained(finding, causes) for finding in findings), key=_rank)


def _attempt(rule: Rule, log: Log) -> Finding:
    """A user's rule; one that raises is no reason to end the audit."""
    try:
        finding = rule(log)
        json.dumps(finding.as_json())  # raises for what no report can show
        return finding
    except Exception as error:
        where, says = _line_of(error, rule.function.__code__.co_filename), f"it raised {type(error).__name__}: {error}"
        return rule.signed(Finding(CANNOT_TELL, says, cause="error", advice=f"Repair {where}: {says}"), log)


def _line_of(error: BaseException, file: str) -> str:
    """The file and its last line that led to an error."""
    lines = [f":{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return file + "".join(lines[-1:])


def _explained(finding: Finding, causes: Sequence[Finding]) -> Finding:
    names = [cause.rule for cause in causes if {finding.rule, finding.title} & set(cause.by.explains)]
    return dataclasses.replace(finding, follows_from=names[0]) if names and finding.verdict == FOUND else finding


def _rank(finding: Finding) -> tuple:
    if finding.verdict == FOUND:
        return (SEVERITIES.index(finding.severity), finding.follows_from is not None)
    return (len(SEVERITIES) + (finding.verdict == NOT_FOUND), False)


def load_rules(path: str | os.PathLike) -> list[Rule]:
    """Run a user's Python file and take the rules that it defines.

    Raises:
        ParameterError: no such file, an error in it, no rule in it, a rule with the name of another.
    """
    expected = "expected a Python file with functions under `@rule` of workbench.audit"
    if not os.path.isfile(path):
        raise ParameterError(f"rules={path}: no such file; {expected}")
    try:
        values = runpy.run_path(os.fspath(path)).values()
    except (Exception, SystemExit) as error:
        raise ParameterError(
            f"rules={_line_of(error, str(path))}: {type(error).__name__}: {error}; {expected}"
        ) from error
    own = [value for value in values if isinstance(value, Rule) and value not in RULES]
    if not own:
        raise ParameterError(f"rules={path}: it defines no rule; {expected}")
    return checked(own)


def checked(own: Sequence[Rule]) -> list[Rule]:
    """Rules of a user, none of which has the name of another rule."""
    if plain := [each for each in own if not isinstance(each, Rule)]:
        raise ParameterError(f"rules: {plain[0]!r} is no rule; expected a function under `@rule` of workbench.audit")
    names = [rule.name for rule in (*RULES, *own)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ParameterError(f"rules: two have the name {twice[0]!r}; expected a function of another name")
    return list(own)


def verdict_of(findings: list[Finding]) -> str:
    """`problem` or `no problem`, which is what the exit code says."""
    return "problem" if any(finding.is_problem for finding in findings) else "no problem"
