"""The audit as a value: `audit_run` reads what is at a path, asks every rule, and gives a report that shows itself.

`audit_paths` is the command `workbench audit`.
"""

import dataclasses
import html
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ..curves.documented import load_baseline
from ..errors import ParameterError, WorkbenchError
from ..logs.log import Log
from ..logs.read import read_logs
from ..logs.settings import facts_of
from ..runs.secrets import hide_tokens, map_text
from ..runs.text import one_line, printable
from .check import check, verdict_of
from .finding import FOUND, NOT_FOUND, UNDECIDABLE, Finding, step_ranges
from .model import measured, model_folder

NO_PROBLEM, PROBLEMS, UNUSABLE = 0, 1, 2  # exit codes
_WIDTH = 110


@dataclasses.dataclass(frozen=True)
class RunAudit:
    """What the audit says of one run.

    Attributes:
        run: its name.
        kind: what was read, such as `trainer_state.json`.
        steps: logged ones.
        findings: of every rule, problems first.
        lacks: what the log does not contain, in words.
    """

    run: str
    kind: str
    steps: int
    findings: tuple[Finding, ...]
    lacks: tuple[str, ...]

    @property
    def problems(self) -> list[str]:
        """The rules that found a problem; the main one first, those that follow from others last."""
        return [finding.rule for finding in self.findings if finding.is_problem]

    def as_json(self) -> dict:
        """Strict JSON: `run`, `verdict`, `findings` and what the log lacks."""
        about = {"run": self.run, "kind": self.kind, "steps": self.steps, "lacks": list(self.lacks)}
        findings = [finding.as_json() for finding in self.findings]
        return about | {"verdict": verdict_of(list(self.findings)), "findings": findings}

    def text(self) -> str:
        """The report as a terminal shows it: the verdict, what was found, what is open."""
        found = [f for f in self.findings if f.verdict == FOUND]
        lines = [f"{self.run}: {_count(found)} ({self.kind}, {self.steps} steps)"]
        for finding in found:
            lines += _paragraph(finding)
        open_ = [f for f in self.findings if f.verdict == UNDECIDABLE]
        if open_:
            lines.append("  undecidable:")
            lines += _wrapped([f"{f.rule}: {f.advice}" for f in open_], "    ")
        lines.append(f"  not found: {len(self.findings) - len(found) - len(open_)} other faults")
        if self.lacks:
            lines += _wrapped([f"the log does not contain {', '.join(self.lacks)}"], "  ")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class AuditReport:
    """The audits of all runs at a path; shows itself as a table of what was found and what is open."""

    runs: tuple[RunAudit, ...]

    @property
    def problems(self) -> list[str]:
        """The rules that found a problem in any run, each once."""
        return list(dict.fromkeys(rule for run in self.runs for rule in run.problems))

    def table(self) -> pd.DataFrame:
        """A row a finding, without those that were not found."""
        rows = [
            {"run": run.run, "rule": f.rule, "cause": f.cause, "verdict": f.verdict, "severity": f.severity}
            | {"what was seen": f.says, "what to do": f.advice, "follows from": f.follows_from or ""}
            for run in self.runs
            for f in run.findings
            if f.verdict in (FOUND, UNDECIDABLE)
        ]
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        heads = "".join(f"<p><b>{html.escape(run.run)}</b>: {_count(run.findings)}</p>" for run in self.runs)
        return heads + self.table().to_html(index=False)

    def html(self) -> str:
        """One self-contained page: nothing in it runs or loads, whatever the log says, and secrets are hidden."""
        from ..reports.page import render  # loads templates, which a report in the terminal does without

        return render("audit.html.j2", title="Audit", runs=[map_text(_shown(run), hide_tokens) for run in self.runs])

    def __str__(self) -> str:
        return "\n\n".join(run.text() for run in self.runs)


def audit_run(
    path: str | os.PathLike,
    *,
    limit: int | None = None,
    stops: Sequence[str] = (),
    model: str | os.PathLike | None = None,
    baseline: str | None = None,
) -> AuditReport:
    """Read the log of anybody's run and say what is wrong with it, why, and what the log cannot tell.

    Args:
        path: a TRL output or checkpoint folder, a run folder, or a log: trainer_state.json, console output of TRL, verl's
            JSONL, a CSV such as W&B's history, TensorBoard events.
        limit: `max_completion_length` of the run, in tokens, where the path does not tell it.
        stops: its stop strings, where the path does not tell them.
        model: folder or hub id of the model, where the path has no config.json. Where its weights lie there, and its config
            does not tell what padding does to it, that is measured by `padding_report`: seconds for a small model.
        baseline: documented run whose reward this run's is compared with, see `load_baseline`.

    Raises:
        ParameterError: a limit below 1 or below a logged length, an empty stop string, a model that neither a folder nor a hub
            has, an unknown baseline.
        RunError: nothing that can be read.
        MissingDependencyError: a TensorBoard file, without TensorBoard.
    """
    given = _given(limit, stops)
    folder = None if model is None else model_folder(model)
    damage: list[str] = []
    if folder is not None:
        known, damage = facts_of(folder, links=True)
        given |= known
    if baseline is not None:
        curve = load_baseline(baseline).curve()
        given["documented"] = {"name": baseline, "low": curve.low, "high": curve.high, "unit": curve.unit}
    logs = [
        dataclasses.replace(log, facts={**log.facts, **given}, damage=(*log.damage, *damage)) for log in read_logs(path)
    ]
    for log in logs:
        longest = log.logged("max_length")
        if limit is not None and longest is not None and limit < np.nanmax(longest):
            raise ParameterError(
                f"limit={limit}: {log.name} logs completions of {np.nanmax(longest):.0f} tokens; expected at least that"
            )
    return AuditReport(tuple(_audit(log, folder) for log in logs))


def audit_paths(paths: Sequence[Path], *, as_json: bool = False, page: Path | None = None, **given) -> int:
    """Audit each path and print what was found; a path that cannot be used is a line on standard error.

    Args:
        paths: as for `audit_run`.
        as_json: print an object a run, each on a line.
        page: file of a page over all of them, to write.
        **given: further arguments of `audit_run`.

    Returns:
        0 where no run has a problem, 1 where one has, 2 where a path could not be used.
    """
    code = NO_PROBLEM
    runs: list = []
    for path in paths:
        try:
            report = audit_run(path, **given)
        except (WorkbenchError, OSError) as error:  # the latter where a file may not be read
            says = str(error) if isinstance(error, WorkbenchError) else f"{path}: {error.strerror}"
            print(f"workbench: {one_line(hide_tokens(says))}", file=sys.stderr)
            code = UNUSABLE
            continue
        for run in report.runs:
            text = json.dumps(run.as_json(), allow_nan=False) if as_json else printable(hide_tokens(run.text())) + "\n"
            print(text, flush=True)
        runs += report.runs
        code = max(code, PROBLEMS if report.problems else NO_PROBLEM)
    if page and runs:
        from ..reports.page import write_page

        write_page(page, AuditReport(tuple(runs)).html())
    return code


def _given(limit: int | None, stops: Sequence[str]) -> dict:
    if limit is not None and limit < 1:
        raise ParameterError(f"limit={limit}: expected the run's max_completion_length, at least 1")
    if isinstance(stops, str) or not all(stops):
        raise ParameterError(f"stops={stops!r}: expected strings that are not empty, such as ['</search>']")
    given: dict = {"max_completion_length": limit} if limit else {}
    if stops:
        given["stop_strings"] = list(stops)
    return given


def _audit(log: Log, folder: Path | None) -> RunAudit:
    findings = tuple(check(log))
    if folder is not None:
        findings = measured(findings, log, folder)
    return RunAudit(log.name, log.kind, len(log.steps), findings, tuple(log.lacks))


# --- the page -------------------------------------------------------------------------------------------------------


def _shown(run: RunAudit) -> dict:
    """What the page shows of a run."""
    findings = [
        (said := finding.as_json())
        | {"where": step_ranges(finding.steps)}
        | {"numbers": {name: _as_text(value) for name, value in (said["evidence"] | said["cost"]).items()}}
        for finding in run.findings
    ]
    by_verdict = {v: [f for f in findings if f["verdict"] == v] for v in (FOUND, UNDECIDABLE, NOT_FOUND)}
    absent = [finding["rule"] for finding in by_verdict[NOT_FOUND]]
    return run.as_json() | {"found": by_verdict[FOUND], "open": by_verdict[UNDECIDABLE], "not_found": absent}


def _as_text(value) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_as_text(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_as_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# --- text -----------------------------------------------------------------------------------------------------------


def _count(findings: Sequence[Finding]) -> str:
    """Such as `2 problems, 1 warning`; the main problem is named."""
    found = [f for f in findings if f.verdict == FOUND]
    numbers = {s: sum(f.severity == s for f in found) for s in ("problem", "warning")}
    words = [f"{n} {severity}{'s' * (n > 1)}" for severity, n in numbers.items() if n]
    main = f"{found[0].rule}; " if numbers["problem"] else ""
    return main + (", ".join(words) if numbers["problem"] else ", ".join(["no problem", *words]))


def _paragraph(finding: Finding) -> list[str]:
    cause = f" ({finding.cause})" if finding.cause else ""
    because = f", because of {finding.follows_from}" if finding.follows_from else ""
    lines = [f"  {finding.severity.upper()} {finding.rule}{cause}{because}"]
    about = [finding.says]
    if finding.steps:
        about.append(f"steps {step_ranges(finding.steps)}")
    if finding.cost:
        about.append("cost: " + ", ".join(f"{name} {value:.3g}" for name, value in finding.cost.items()))
    if finding.advice and not finding.follows_from:
        about.append(f"do: {finding.advice}")
    if finding.notebook and not finding.follows_from:
        about.append(f"shown in notebook {finding.notebook}")
    return lines + _wrapped(about, "    ")


def _wrapped(texts: Sequence[str], indent: str) -> list[str]:
    wrapper = textwrap.TextWrapper(width=_WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
    return [line for text in texts for line in wrapper.wrap(text)]
