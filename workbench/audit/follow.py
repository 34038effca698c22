"""A log of any framework, audited again and again while it grows: the command `workbench watch`."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import ParameterError, RunError
from ..runs.secrets import hide_tokens
from ..runs.text import one_line, printable
from .finding import FOUND, NOTE, Finding, severe_as
from .report import NO_PROBLEM, PROBLEMS, UNUSABLE, AuditReport, RunAudit, audit_run

INTERRUPTED = 130
_SOON = 20  # steps before a trend is judged, as in `attach_watch`
_STILL = 10  # looks at a log that does not grow
_SHARE = 10  # an audit takes at most a tenth of the time
_Known = dict[tuple[str, str], int]  # run and title of a finding -> the steps of the run when it was found


def follow(
    path: Path,
    *,
    until: str | None = None,
    every: float = 10.0,
    pid: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
    **given,
) -> int:
    """Print a line for each new problem or warning in a log that grows; the exit code is that of `workbench audit`.

    A log that does not exist yet, or holds no step yet, is waited for. A rule that needs one step alone is believed at once.
    The others are believed from step 20 on, when two audits of different lengths find the same.

    Args:
        path: a file or folder, as of `audit_run`.
        until: `problem` or `warning`: return 1 as soon as there is one. None: go on.
        every: seconds between two looks at the file, above 0; longer where an audit takes long.
        pid: number of a process: audit a last time when it has ended, print the whole report, and return its code.
        sleep: waits; a test gives its own.
        given: the other arguments of `audit_run`.

    Raises:
        ParameterError: `every` is not above 0, or there is no such process.
    """
    if str(path) == "-":
        raise ParameterError(
            "LOGFILE -: standard input cannot be read twice; write it to a file: `... | tee train.log`"
        )
    if not every > 0:
        raise ParameterError(f"--every {every:g}: expected seconds above 0")
    if pid is not None and not is_alive(pid):
        raise ParameterError(f"--pid {pid}: no such process; expected the number of the process that writes {path}")
    before, size, waits = _Known(), None, ""
    reported = set[tuple[str, str]]()  # what is believed
    printed = set[tuple[str, str]]()  # of that, what does not follow from another finding
    still = 0  # looks since the log last grew
    seen = "no step yet"
    try:
        while True:
            ended = pid is not None and not is_alive(
                pid
            )  # asked before the file is read, so that its last lines are there
            began, now = time.monotonic(), _size(path)
            still = 0 if now != size else still + 1
            if still == _STILL and pid is None and (open_ := sorted({title for _, title in before.keys() - reported})):
                _say(f"{path}: has not grown since {seen}. Seen once, and reported if it grows: {', '.join(open_)}. "
                     "--pid N ends with the process that writes it; `workbench audit` judges what is there")  # fmt: skip
            if now != size or ended:
                size = now
                try:
                    report = audit_run(path, **given)
                except RunError as error:
                    if ended:
                        _say(str(error))
                        return UNUSABLE
                    if not waits:
                        _say(f"waiting for steps: {error}")
                    waits = str(error)
                else:
                    seen = ", ".join(f"{run.steps} steps" for run in report.runs)
                    if ended:
                        print(printable(hide_tokens(str(report))), flush=True)
                        return PROBLEMS if _any(report, until or "problem") else NO_PROBLEM
                    before = _report_new(report, before, reported, printed)
                    if until and reported & set(_keys(report, until)):
                        _report_new(report, before, reported, printed, until)
                        return PROBLEMS
            sleep(max(every, _SHARE * (time.monotonic() - began)))
    except KeyboardInterrupt:
        _say(f"{path}: watched until {seen}; {len(printed)} findings were printed")
        return INTERRUPTED


def is_alive(pid: int) -> bool:
    """True while a process runs; one that has ended and was not waited for is none."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _size(path: Path) -> tuple:
    """Size and time of the files of a log, which change when it is written to."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else []
    sizes = []
    for file in files:
        with contextlib.suppress(OSError):
            stat = file.stat()
            sizes.append((str(file), stat.st_size, stat.st_mtime_ns))
    return tuple(sizes)


def _keys(report: AuditReport, severity: str) -> list[tuple[str, str]]:
    """Run and title of what was found at a severity or a worse one."""
    return [(run.run, f.title) for run in report.runs for f in run.findings if severe_as(f, severity)]


def _any(report: AuditReport, severity: str) -> bool:
    return bool(_keys(report, severity))


def _report_new(
    report: AuditReport,
    before: _Known,
    reported: set[tuple[str, str]],
    printed: set[tuple[str, str]],
    also: str | None = None,
) -> _Known:
    """Print what is believed for the first time; returns what was found, with the steps of the run.

    What follows from another finding is believed and not printed, but at the severity `also`.
    """
    now: _Known = {}
    for run in report.runs:
        for f in run.findings:
            key = (run.run, f.title)
            if f.verdict != FOUND or f.severity == NOTE:
                continue
            now[key] = min(run.steps, before.get(key, run.steps))
            if key not in reported and _is_believed(f, run, before.get(key)):
                reported.add(key)
            is_asked = f.follows_from is None or (also is not None and severe_as(f, also))
            if key in reported and key not in printed and is_asked:
                printed.add(key)
                line = f"{run.run}: step {run.steps}: {f.severity} {f.title}: {f.says} Do: {f.advice}"
                print(printable(hide_tokens(one_line(line))), flush=True)
    return now


def _is_believed(finding: Finding, run: RunAudit, since: int | None) -> bool:
    if finding.by.at_once:
        return True
    return run.steps >= _SOON and since is not None and since < run.steps


def _say(text: str) -> None:
    print(f"workbench: {one_line(hide_tokens(text))}", file=sys.stderr, flush=True)
