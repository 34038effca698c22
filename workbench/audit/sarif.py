"""Audits as SARIF 2.1.0, which GitHub, GitLab and editors show next to the code: `workbench audit PATH --sarif`."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from .. import __version__
from .check import RULES
from .finding import FOUND, NOTE, PROBLEM, WARNING, Finding, step_ranges

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: dict[str, str] = {PROBLEM: "error", WARNING: "warning", NOTE: "note"}


def as_sarif(audits: Sequence[tuple[str, str, Sequence[Finding]]], unusable: Sequence[str], code: int) -> dict:
    """One SARIF log of all runs.

    Args:
        audits: for each run the path of its log, its name, and its findings; those that found nothing are left out.
        unusable: a sentence for each path that could not be used.
        code: the exit code of the command.
    """
    rules = list(RULES) + [f.by for *_, findings in audits for f in findings if f.by not in RULES]
    rules = list(dict.fromkeys(rules))
    driver = {"name": "workbench", "version": __version__, "rules": [_rule(rule) for rule in rules]}
    shown = [(path, name, f) for path, name, findings in audits for f in findings if f.verdict == FOUND]
    notes = [{"level": "error", "message": {"text": sentence}} for sentence in unusable]
    invocation = {"executionSuccessful": not unusable, "exitCode": code, "toolExecutionNotifications": notes}
    results = [_result(path, name, finding, rules.index(finding.by)) for path, name, finding in shown]
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule) -> dict:
    question = (inspect.getdoc(rule.function) or rule.name).partition("\n\n")[0]
    return {"id": rule.name, "shortDescription": {"text": " ".join(question.split())}}


def _result(path: str, name: str, finding: Finding, index: int) -> dict:
    where = f" Steps {step_ranges(finding.steps)}." if finding.steps else ""
    because = f" This follows from {finding.follows_from}." if finding.follows_from else ""
    of_run = f"{name}: " * (name != path)  # one of several at the path
    text = f"{of_run}{finding.title}: {finding.says}{where}{because} Do: {finding.advice}"
    place = {"artifactLocation": {"uri": uri_of(path)}, "region": {"startLine": 1}}
    about = {"title": finding.title, "steps": list(finding.steps)}
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"rule/v1": f"{finding.title}@{name}"},
        "properties": about,
    }


def uri_of(path: str) -> str:
    """The path of a log as a URI: relative to the current folder if it is below it, else absolute.

    Example:
        >>> uri_of("runs/my log.jsonl")
        'runs/my%20log.jsonl'
    """
    if path == "-":
        return "stdin"
    if Path(path).is_absolute():
        try:
            path = str(Path(path).relative_to(Path.cwd()))
        except ValueError:
            return Path(path).as_uri()
    return quote(Path(path).as_posix())
