"""The audit of a run by the runner: every training in its folder, when the run ends, into `audit.json`."""

import contextlib
import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...audit.check import RULES
from ...audit.finding import CANNOT_TELL, FOUND, NOTE, Finding
from ...audit.report import RunAudit, audit_recorded
from ...errors import ParameterError, RunError, did_you_mean
from ...runs.files import jsonable, move_aside, write_json
from ...runs.findings import RunFindings
from ...runs.run import Run
from ...runs.secrets import hide_tokens, map_text
from ...runs.stop_request import interruptible
from .notebooks import find_notebook, metadata_of

AUDIT = "audit.json"
_WITHOUT_EFFECT = "without-effect"  # half of a run or more, of which no finding is above a note


def write_audit(run: Run, expects: Mapping[str, Sequence[str]]) -> None:
    """Audit the trainings of a run that ends, into its folder. An audit that fails says why there; the run does not fail.

    `expects`: see `expected_findings`.
    """
    found = _audit_of(run, expects)
    with contextlib.suppress(OSError):  # a full disk; the run reads as not audited
        try:
            _ = run.audit
        except RunError as problem:
            move_aside(run.path, [AUDIT], str(problem))
        write_json(run.path / AUDIT, map_text(jsonable(found), hide_tokens))


def problem_so_far(run: Run) -> str:
    """The problem in what the trainings of a run recorded until now, such as `audit: problem masked-stops`; empty for none.

    Nothing is written: the notebook goes on, and its run is audited when it ends.
    """
    findings = RunFindings.of(_audit_of(run, _expected_in(run)))
    return findings.names if findings.problems else ""


def audit_done(runs: Sequence[Run]) -> None:
    """Audit the runs that are done and were not audited: those of a kernel in JupyterLab, which no runner ended."""
    for run in runs:
        with contextlib.suppress(RunError, OSError):  # the run's own row says what is damaged
            if run.status["state"] == "done" and not (run.path / AUDIT).exists():
                write_audit(run, _expected_in(run))


def _audit_of(run: Run, expects: Mapping[str, Sequence[str]]) -> dict:
    """Audit the trainings of a run, and return what `audit.json` holds. The error of a failed audit is in it."""
    try:
        with interruptible():
            report, damaged = audit_recorded(run.path)
            trainings = [_training(audit, expects) for audit in report.runs]
        return {"trainings": trainings, "error": "; ".join(damaged)}
    except (Exception, KeyboardInterrupt) as error:
        says = "stopped by Ctrl-C or SIGTERM" if isinstance(error, KeyboardInterrupt) else str(error)
        return {"trainings": [], "error": f"{type(error).__name__}: {says}"}


def _expected_in(run: Run) -> dict[str, list[str]]:
    """The findings that the notebook of a run expects; none where the notebook is gone."""
    try:
        return expected_findings(find_notebook(run.notebook))
    except (ParameterError, RunError):
        return {}


def _training(audit: RunAudit, expects: Mapping[str, Sequence[str]]) -> dict:
    """Return what is kept of the audit of a training: its problems and warnings, and how many rules had what they need."""
    name = "" if audit.run == "." else audit.run
    above_notes = [f for f in audit.findings if f.verdict == FOUND and f.severity != NOTE]
    meant = {rule for rule, patterns in expects.items() if any(fnmatch.fnmatch(name, each) for each in patterns)}
    findings = [_kept(finding, meant) for finding in above_notes]
    if not findings and audit.what_is_lost:
        words = {"title": _WITHOUT_EFFECT, "severity": "warning", "says": f"{audit.what_is_lost}."}
        findings = [words | {"advice": "", "because": "", "expected": _WITHOUT_EFFECT in meant}]
    checked = sum(f.verdict != CANNOT_TELL for f in audit.findings)
    about = {"name": name, "steps": audit.steps, "checked": checked, "rules": len(audit.findings)}
    return about | {"findings": findings}


def _kept(finding: Finding, meant: set[str]) -> dict:
    """A finding; one that follows from an expected one is expected too."""
    fields = {"title": finding.title, "severity": finding.severity, "says": finding.says, "advice": finding.advice}
    expected = finding.rule in meant or finding.follows_from in meant
    return fields | {"because": finding.follows_from or "", "expected": expected}


def expected_findings(notebook: Path) -> dict[str, list[str]]:
    """The findings that a notebook makes on purpose: rule -> patterns of the trainings that show it.

    They are in the notebook's metadata, `{"workbench": {"expects": {"masked-stops": ["stock-TRL/*"]}}}`; a training is named by
    its folder within the run.

    Raises:
        ParameterError: another form, or a name that no rule has.
    """
    expects = metadata_of(notebook).get("workbench", {}).get("expects", {})
    if not isinstance(expects, dict):
        raise ParameterError(f'{notebook}: expects={expects!r}; expected {{"RULE": ["TRAINING"]}} in its metadata')
    names = [*(rule.name for rule in RULES), _WITHOUT_EFFECT]
    for name, patterns in expects.items():
        if name not in names:
            raise ParameterError(
                f"{notebook}: expects {name!r}; {did_you_mean(name, names)}the rules are {', '.join(names)}"
            )
        if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
            raise ParameterError(
                f'{notebook}: expects {name}={patterns!r}; expected patterns of trainings, such as ["*"]'
            )
    return expects
