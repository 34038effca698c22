"""The audit as a value: `audit_run` reads what is at a path, asks every rule, and gives a report that shows itself."""

import dataclasses
import html
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ..curves.baselines import load_baseline
from ..errors import ParameterError
from .check import check, verdict_of
from .config import facts_of
from .finding import FOUND, UNDECIDABLE, Finding, step_ranges
from .log import Log
from .readers import read_logs

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
        model: folder with the config.json of the model, where the path has none.
        baseline: documented run whose reward this run's is compared with, see `load_baseline`.

    Raises:
        ParameterError: a limit below 1, an empty stop string, a model folder without config.json, an unknown baseline.
        RunError: nothing that can be read.
        MissingDependencyError: a TensorBoard file, without TensorBoard.
    """
    given = _given(limit, stops, model)
    if baseline is not None:
        curve = load_baseline(baseline).curve()
        given["documented"] = {"name": baseline, "low": curve.low, "high": curve.high, "unit": curve.unit}
    return AuditReport(tuple(_audit(dataclasses.replace(log, facts={**log.facts, **given})) for log in read_logs(path)))


def _given(limit: int | None, stops: Sequence[str], model: str | os.PathLike | None) -> dict:
    if limit is not None and limit < 1:
        raise ParameterError(f"limit={limit}: expected the run's max_completion_length, at least 1")
    if isinstance(stops, str) or not all(stops):
        raise ParameterError(f"stops={stops!r}: expected strings that are not empty, such as ['</search>']")
    given: dict = {"max_completion_length": limit} if limit else {}
    if stops:
        given["stop_strings"] = list(stops)
    if model is not None:
        folder = Path(model).expanduser()
        if not (folder / "config.json").is_file():
            raise ParameterError(f"model={str(model)!r}: no config.json there; expected the folder of a model")
        given |= facts_of(folder)[0]
    return given


def _audit(log: Log) -> RunAudit:
    return RunAudit(log.name, log.kind, len(log.steps), tuple(check(log)), tuple(log.lacks))


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
