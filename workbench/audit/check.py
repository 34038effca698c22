"""All rules on one log, in an order in which what a finding contradicts is used by no later rule."""

import dataclasses
from collections.abc import Callable

from ..logs.log import Log
from . import rules_clipping, rules_data, rules_ends, rules_gradient, rules_learning, rules_sampler
from .finding import FOUND, NOT_FOUND, NOTE, PROBLEM, WARNING, Finding, in_words_of

# Causes before what may come of them: of two problems the earlier is named first.
RULES: tuple[Callable[[Log], Finding], ...] = (
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

# A finding -> the findings that it explains.
_EXPLAINS = {
    "masked-stops": ("zero-gradient", "collapse", "no-learning"),
    "copies": ("zero-gradient", "collapse", "no-learning"),
    "mixed-groups": ("collapse", "no-learning"),
    "never-stops": ("true-clipping",),
    "stale-sampler": ("mismatch", "collapse", "no-learning"),
    "padding-positions": ("mismatch",),
    "true-clipping": ("zero-gradient", "no-learning"),
    "length-runaway": ("true-clipping",),
    "kl-runaway": ("no-learning",),
    "collapse": ("zero-gradient", "length-runaway", "true-clipping", "no-learning"),
    "zero-gradient": ("no-learning",),
}
_CAUSES = {
    ("masked-stops", "zero-gradient"): "masked",
    ("copies", "zero-gradient"): "copies",
    ("true-clipping", "zero-gradient"): "equal-rewards",
    ("collapse", "zero-gradient"): "equal-rewards",
}
_ORDER = [(FOUND, PROBLEM), (FOUND, WARNING), (FOUND, NOTE)]


def name_of(rule: Callable) -> str:
    """`false_clipping` -> `false-clipping`."""
    return rule.__name__.replace("_", "-")


def check(log: Log) -> list[Finding]:
    """What every rule says of a run: problems first, those that another explains after it; then what was not found."""
    findings = []
    for rule in RULES:
        finding = rule(log)
        says, advice = (in_words_of(log.trainer, text) for text in (finding.says, finding.advice))
        findings.append(dataclasses.replace(finding, rule=name_of(rule), says=says, advice=advice))
        log = log.without(finding.contradicts)
    found = {finding.rule: finding for finding in findings if finding.verdict == FOUND}
    return sorted((_explained(finding, found) for finding in findings), key=_rank)


def _explained(finding: Finding, found: dict[str, Finding]) -> Finding:
    for by, explained in _EXPLAINS.items():
        cause = _CAUSES.get((by, finding.rule), finding.cause)
        if by in found and finding.rule in explained and cause == finding.cause and found[by].severity != NOTE:
            return dataclasses.replace(finding, follows_from=by) if finding.verdict == FOUND else finding
    return dataclasses.replace(finding, follows_from=None)


def _rank(finding: Finding) -> tuple:
    if finding.verdict == FOUND:
        return (_ORDER.index((FOUND, finding.severity)), finding.follows_from is not None)
    return (len(_ORDER) + (finding.verdict == NOT_FOUND), False)


def verdict_of(findings: list[Finding]) -> str:
    """`problem` or `no problem`, which is what the exit code says."""
    return "problem" if any(finding.is_problem for finding in findings) else "no problem"
