"""`workbench audit`: one or several paths, as text or as JSON, and the exit code."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import WorkbenchError
from ..runs.text import one_line, printable
from ..runs.tokens import hide_tokens
from .finding import step_ranges
from .report import AuditReport, audit_run

NO_PROBLEM, PROBLEMS, UNUSABLE = 0, 1, 2  # exit codes


def audit_paths(paths: Sequence[Path], *, as_json: bool, write: Callable[[list[dict]], object] | None, **given) -> int:
    """Audit each path and print what was found; a path that cannot be used is a line on standard error.

    Args:
        paths: as for `audit_run`.
        as_json: print an object a run, each on a line.
        write: called with all of these objects, each with `ranges`: rule -> its steps in words; or None.
        **given: further arguments of `audit_run`.

    Returns:
        0 where no run has a problem, 1 where one has, 2 where a path could not be used.
    """
    code, runs = NO_PROBLEM, []
    for path in paths:
        try:
            report = audit_run(path, **given)
        except (WorkbenchError, OSError) as error:  # the latter where a file may not be read
            says = str(error) if isinstance(error, WorkbenchError) else f"{path}: {error.strerror}"
            print(f"workbench: {one_line(hide_tokens(says))}", file=sys.stderr)
            code = UNUSABLE
            continue
        _print(report, as_json)
        for run in report.runs:
            runs.append(run.as_json() | {"ranges": {f.rule: step_ranges(f.steps) for f in run.findings}})
        code = max(code, PROBLEMS if report.problems else NO_PROBLEM)
    if write and runs:
        write(runs)
    return code


def _print(report: AuditReport, as_json: bool) -> None:
    for run in report.runs:
        if as_json:
            print(json.dumps(run.as_json(), allow_nan=False))
        else:
            print(printable(hide_tokens(run.text())), end="\n\n", flush=True)
