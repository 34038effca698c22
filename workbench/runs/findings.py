"""What the audit found in the trainings of a run (`audit.json`), and the one line of it that every page and command shows."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import RunError
from .run import Run

_MOST_NAMES = 3


@dataclasses.dataclass(frozen=True)
class RunFindings:
    """The findings in all trainings of a run: name -> in how many trainings, in the order of the audit.

    A finding that follows from another one is left out, unless no cause is as severe.

    Attributes:
        trainings: how many were audited; None if the run was not audited.
        problems: such as `masked-stops`, none of which the notebook expects.
        warnings: likewise.
        expected: problems and warnings that the notebook says it makes on purpose.
        rules: in words, how many rules had what they need, such as `17 of 28 rules`.
        worst: what was seen of the first problem, else of the first warning, in a sentence.
        error: why the audit failed, or which record it could not read.
    """

    trainings: int | None = None
    problems: Mapping[str, int] = dataclasses.field(default_factory=dict)
    warnings: Mapping[str, int] = dataclasses.field(default_factory=dict)
    expected: Mapping[str, int] = dataclasses.field(default_factory=dict)
    rules: str = ""
    worst: str = ""
    error: str = ""

    @classmethod
    def of(cls, audit: Mapping) -> "RunFindings":
        """Sum up an `audit.json`; `Run.audit`.

        Example:
            >>> finding = {"title": "masked-stops", "severity": "problem", "says": "80% left out. See 02.", "because": ""}
            >>> training = {"name": "", "checked": 17, "rules": 28, "findings": [finding | {"expected": False}]}
            >>> RunFindings.of({"trainings": [training], "error": ""}).line
            'audit: problem masked-stops. 80% left out.'
        """
        if not audit:
            return cls()
        trainings = audit["trainings"]
        every = [finding for training in trainings for finding in training["findings"]]
        unexpected = [finding for finding in every if not finding["expected"]]
        problems = _causes(finding for finding in unexpected if finding["severity"] == "problem")
        warnings = [finding for finding in unexpected if finding["severity"] == "warning"]
        warnings = _causes(warnings) if not problems else [finding for finding in warnings if not finding["because"]]
        worst = next(iter([*problems, *warnings]), None)
        return cls(
            trainings=len(trainings),
            problems=_counts(problems),
            warnings=_counts(warnings),
            expected=_counts(_causes(f for f in every if f["expected"])),
            rules=_rules(trainings),
            worst=worst["says"].partition(". ")[0].removesuffix(".") + "." if worst else "",
            error=audit["error"],
        )

    @property
    def passed(self) -> bool:
        """Whether the run was audited, to the end, and no problem was found that its notebook does not expect."""
        return self.trainings is not None and not self.problems and not self.error

    @property
    def mark(self) -> str:
        """`bad`, `odd` or `good`: the colour. Only what was audited, with no finding that is not expected, is good."""
        if self.problems:
            return "bad"
        return "odd" if self.warnings or self.error or not self.trainings else "good"

    @property
    def rank(self) -> int:
        """A number to sort runs by, the worst first: unexpected problems, a failed audit, no audit, warnings, none of these."""
        if self.problems:
            return -100 - sum(self.problems.values())
        if self.error:
            return -3
        if not self.trainings:
            return -2
        return -1 if self.warnings else 0

    @property
    def in_a_tally(self) -> str:
        """What is said of runs with such findings, after their number."""
        if self.problems:
            return "with a problem"
        if self.error:
            return "whose audit failed"
        if self.trainings is None:
            return "not audited"
        if not self.trainings:
            return "without a training"
        return "with warnings" if self.warnings else "without a problem"

    @property
    def line(self) -> str:
        """The findings in a line, which says what was audited too, and what was seen of the worst one."""
        return f"{self.names}. {self.worst}" if self.worst else self.names

    @property
    def names(self) -> str:
        """The same without what was seen."""
        if self.trainings is None:
            return "not audited"
        failed = f"the audit failed: {self.error}" if self.error else ""
        if not self.trainings:
            return failed or "nothing to audit: the run recorded no training"
        head = "audit" if self.trainings == 1 else f"audit of {self.trainings} trainings"
        unexpected = [self._named("problem", self.problems), self._named("warning", self.warnings)]
        text = ", ".join(filter(None, unexpected)) or f"no problem ({self.rules} could tell)"
        expected = f"expected: {self._list(self.expected)}" if self.expected else ""
        return "; ".join(filter(None, [f"{head}: {text}", expected, failed]))

    @property
    def row(self) -> dict[str, Any]:
        """The same as a JSON object, for scripts."""
        return dataclasses.asdict(self) | {"line": self.line}

    def _named(self, word: str, names: Mapping[str, int]) -> str:
        """Such as `2 problems masked-stops in 3, zero-gradient in 1`, or nothing."""
        if not names:
            return ""
        return f"{word if len(names) == 1 else f'{len(names)} {word}s'} {self._list(names)}"

    def _list(self, names: Mapping[str, int]) -> str:
        each = [name if self.trainings == 1 else f"{name} in {n}" for name, n in names.items()]
        more = f" and {len(each) - _MOST_NAMES} more" if len(each) > _MOST_NAMES else ""
        return ", ".join(each[:_MOST_NAMES]) + more


def _causes(findings: Iterable[Mapping]) -> list[Mapping]:
    findings = list(findings)
    return [finding for finding in findings if not finding["because"]] or findings


def _counts(findings: Iterable[Mapping]) -> dict[str, int]:
    return dict(Counter(finding["title"] for finding in findings))


def _rules(trainings: Iterable[Mapping]) -> str:
    """Such as `15 to 17 of 28 rules`."""
    checked = sorted({training["checked"] for training in trainings})
    rules = max((training["rules"] for training in trainings), default=0)
    few = f"{checked[0]} to {checked[-1]}" if len(checked) > 1 else "".join(map(str, checked))
    return f"{few} of {rules} rules"


def problem_of(run: Run) -> str:
    """The problem that the audit found in a run, such as `audit: problem masked-stops`; empty for none, or none to be read."""
    try:
        findings = RunFindings.of(run.audit)
    except (RunError, OSError):
        return ""
    return findings.names if findings.problems else ""
