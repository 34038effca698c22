"""Runs on this machine, each in a process of its own, at most so many at a time.

The processes are forked from one that has papermill loaded (Python's fork server): loading it takes longer than a short
notebook.
"""

import multiprocessing.util
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import RunError
from .display import SweepProgress
from .execute import interruptible
from .sweep import Entry

_LOADED_ONCE = ["pandas", "workbench.batch.papermill_engine", "workbench.batch.run_batch"]


def run_entries(entries: Sequence[Entry], work: Callable[[str, str, str], object], jobs: int = 1) -> None:
    """Run what is to be run, at most `jobs` at a time, under one progress display. A failed run stops no other.

    Args:
        entries: those whose action is `run` or `resume` are run, in this order.
        work: executes a prepared run, given its folder, its notebook and the token that hands the run on; importable, since
            another process calls it.
        jobs: processes at a time, at least 1.

    Raises:
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP; every child was stopped first, its run reads as `interrupted`.
    """
    _keep_socket_paths_short()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LOADED_ONCE)
    waiting = [e for e in entries if e.to_run]
    active: list[tuple[Entry, multiprocessing.Process]] = []
    with interruptible(), SweepProgress(entries) as progress:
        try:
            while waiting or active:
                while waiting and len(active) < jobs:
                    entry = waiting.pop(0)
                    if process := _start(context, entry, work):
                        active.append((entry, process))
                    else:
                        progress.finished(entry)
                time.sleep(0.1)
                for entry, process in [pair for pair in active if not pair[1].is_alive()]:
                    active.remove((entry, process))
                    progress.finished(entry)
                progress.show([entry for entry, _ in active])
        finally:
            for _, process in active:
                process.terminate()
            for _, process in active:
                process.join()


def _keep_socket_paths_short() -> None:
    """The fork server listens on a socket in the temporary folder; a system takes such paths up to 107 bytes only."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > 70:
        tempfile.tempdir = "/tmp"
        try:
            multiprocessing.util.get_temp_dir()  # chosen once for this process
        finally:
            tempfile.tempdir = folder


def _start(context, entry: Entry, work: Callable):
    """The process of a run; None where another process has run it, or runs it, since the batch was planned."""
    try:
        if not entry.look_again():
            return None
        run = entry.prepare()
    except RunError:  # taken in the moment between
        entry.action = "leave"
        return None
    arguments = (work, str(run.path), str(entry.notebook), run.status["owner"]["token"], dict(os.environ))
    process = context.Process(target=_in_own_session, args=arguments)
    process.start()
    return process


def _in_own_session(work: Callable, folder: str, notebook: str, token: str, environ: dict[str, str]) -> None:
    """A terminal's Ctrl-C reaches the run once, through `run_entries`; whatever it prints goes into its log."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environ)
    log = os.open(Path(folder) / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    work(folder, notebook, token)
