"""What a rule says: `Finding`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..runs.files import jsonable

FOUND, NOT_FOUND, UNDECIDABLE = "found", "not found", "undecidable"
PROBLEM, WARNING, INFORMATION = "problem", "warning", "information"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One rule's answer for one run.

    Attributes:
        rule: its name, such as `false-clipping`.
        verdict: `found`, `not found`, or `undecidable`: then `advice` says what would decide it.
        says: what was seen, in a sentence or two.
        severity: `problem`, `warning` or `information`.
        cause: where one rule has several, such as `masked`.
        steps: where it shows.
        evidence: the numbers.
        cost: what it took, such as `{"share of steps": 0.74}`.
        advice: what to change.
        notebook: that shows it.
        follows_from: the rule whose finding explains this one.
        contradicts: logged metrics that are shown to be wrong; no other rule uses them.
    """

    rule: str
    verdict: str
    says: str = ""
    severity: str = INFORMATION
    cause: str = ""
    steps: tuple[int, ...] = ()
    evidence: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cost: Mapping[str, float] = dataclasses.field(default_factory=dict)
    advice: str = ""
    notebook: str | None = None
    follows_from: str | None = None
    contradicts: tuple[str, ...] = ()

    @property
    def is_problem(self) -> bool:
        return self.verdict == FOUND and self.severity == PROBLEM

    def as_json(self) -> dict:
        """The fields as strict JSON; numbers that are not finite become null."""
        return jsonable(dataclasses.asdict(self))


def absent(rule: str, says: str = "", **evidence) -> Finding:
    """A rule that looked and found nothing."""
    return Finding(rule, NOT_FOUND, says, evidence=evidence)


def unknown(rule: str, advice: str, says: str = "", **evidence) -> Finding:
    """A rule that the log cannot answer; `advice` is what would."""
    return Finding(rule, UNDECIDABLE, says, advice=advice, evidence=evidence)


def step_ranges(steps: tuple[int, ...], most: int = 4) -> str:
    """Steps as a reader writes them.

    Example:
        >>> step_ranges((3, 4, 5, 9))
        '3 to 5, 9'
        >>> step_ranges((1, 3, 5, 7, 9, 11), most=2)
        '1, 3 and 4 more up to 11'
    """
    runs: list[list[int]] = []
    for step in sorted(steps):
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    words = [str(a) if a == b else f"{a} to {b}" for a, b in runs]
    if len(words) <= most:
        return ", ".join(words)
    left = sum(b - a + 1 for a, b in runs[most:])
    return f"{', '.join(words[:most])} and {left} more up to {runs[-1][1]}"
