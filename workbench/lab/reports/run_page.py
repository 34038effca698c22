"""The page of one run: what it found, its verdicts, its notebook, how to repeat it, and what it cannot support."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from ...errors import RunError
from ...extras import packaged
from ...runs.findings import RunFindings
from ...runs.parameters import repeat_command
from ...runs.results import count_verdicts, results_of
from ...runs.run import Run
from ...runs.summary import RunSummary
from . import facts
from .notebook import Notebook, read_notebook
from .page import hider, render, write_page


def build_report(
    run: Run, *, redact: bool = False, path: Path | None = None, hide: Callable[[str], str] | None = None
) -> Path:
    """Write the report of a run, from whatever the run has left there, and return its path.

    `hide`: see `page.hider`; of several runs where the page is one of many, which may name each other's hosts.
    """
    stem = path.stem if path else "report-redacted" if redact else run.id
    path = path or run.path / ("report-redacted.html" if redact else "report.html")
    hide = hide or hider([run], redact)
    damaged: list[str] = []
    microscope = _write_microscope(run, path.with_name(f"{stem}-microscope.html"), hide, redact, damaged)
    content = _content(run, hide, redact, damaged)
    return write_page(path, render("run.html.j2", microscope=quote(os.fsencode(microscope)), **content))


def _notebook(run: Run) -> str:
    """Return what a command calls the run's notebook: the library's own by name, a user's by its path."""
    path = Path(str(run.executions[-1]["notebook"].get("path", run.notebook))) if run.executions else Path(run.notebook)
    return path.stem if path.parent == packaged("notebooks").resolve() else str(path)


def _write_microscope(run: Run, path: Path, hide: Callable[[str], str], redact: bool, damaged: list[str]) -> str:
    """Write the page of all completions; its file's name, empty where none can be read, and why goes into `damaged`."""
    from .microscope import write_microscope  # loads pandas, which a command that builds no report does without

    try:
        title = f"Completions of {run.notebook}, run {run.id}"
        if write_microscope(run.path, path, title, hide, redacted=redact):
            return path.name
    except Exception as error:  # files of the notebook's own form; the report is written all the same
        reason = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
        damaged.append(f"The page of all completions was left out: {reason}.")
        with contextlib.suppress(OSError):  # one of an earlier report
            path.unlink(missing_ok=True)
    return ""


def _content(run: Run, hide: Callable[[str], str], redact: bool, left_out: Sequence[str] = ()) -> dict:
    """Everything the page shows, with `hide` applied to each text."""
    parts = Notebook(hide, "" if redact else "executed.ipynb")
    unread: list[str] = []
    if executed := read_notebook(run, unread):
        parts.read(executed)
    summary = RunSummary.of(run)
    status, result, env, params = (facts.shown(v, hide) for v in (summary.status, summary.result, run.env, run.params))
    audit = facts.shown(run.audit, hide)
    rows, total, damaged = facts.sample_completions(run)
    limits = [*facts.limits(run, status, result, env, parts if executed else None), *unread, *left_out, *damaged]
    if redact:
        limits.append("Host names, user names, absolute paths and secrets were replaced by labels in this copy.")
    unfinished = status["state"] != "done"
    return {
        "notebook": hide(run.notebook),
        "id": hide(run.id),
        "parts": parts,
        "unread": facts.shown(unread, hide),
        "status": status,
        "mark": summary.mark,
        "findings": RunFindings.of(audit),
        "audit": facts.audit_rows(audit),
        "result": result,
        "results": [
            dataclasses.asdict(r) | {"verdict": r.verdict, "reason": r.reason, "about": facts.about_claim(r.claim)}
            for r in results_of(result)
        ],
        "counts": count_verdicts(results_of(result), claims=False),
        "claim_counts": count_verdicts(results_of(result), claims=True),
        "toy": run.toy,
        "times": facts.times(status),
        "progress": facts.shown(facts.progress(run), hide) if unfinished else {},
        "log": facts.log_tail(run, hide) if unfinished else "",
        "completions": [{k: facts.number(v) for k, v in facts.shown(row, hide).items()} for row in rows],
        "total": total,
        "parameters": params,
        "command": repeat_command(hide(_notebook(run)), params, parts.parameters),
        "environment": facts.environment(env),
        "limits": facts.shown(limits, hide),
    }
