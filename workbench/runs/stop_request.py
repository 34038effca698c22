"""Asking a training to stop after its current step, from anywhere that sees its run folder.

A widget's button, `workbench cancel`, and a cluster that wants its node back all write `stop.json` into the run folder; the
training looks for it after every step, saves a complete checkpoint and ends with `TrainingStopped`.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import RunError
from . import lock
from .files import read_json, write_json
from .run import Run, set_status, take_run

_FILE = "stop.json"
_DEEPEST = 4  # levels below a run's folder in which its notebook may train
_stopped_here: set[Path] = set()


def request_stop(run: Run, reason: str) -> None:
    """Ask whatever trains in this run's folder, or below it, to stop after its current step."""
    write_json(run.path / _FILE, {"reason": reason, "time": time.time()})


def stop_request(folder: Path) -> str | None:
    """The reason of a request that no training has answered yet, or None."""
    try:
        request = read_json(_run_folder(folder) / _FILE, None)
    except (OSError, RunError):  # a file system that is away for a moment ends no training; the next step looks again
        return None
    return str(request.get("reason") or "asked to stop") if isinstance(request, dict) else None


def clear_stop(run: Run) -> None:
    """Remove a request that no training has answered yet; called before a run starts or continues."""
    with contextlib.suppress(FileNotFoundError):
        (run.path / _FILE).unlink()


def honour_stop(folder: Path, error: str) -> None:
    """Called when the training has stopped: removes the request; a run that no runner executes becomes `interrupted`."""
    run = Run(_run_folder(folder))
    clear_stop(run)
    if lock.holds(run.path):
        set_status(run.path, "interrupted", error)
        lock.let_go(run.path)
        _stopped_here.add(run.path)


def go_on(folder: Path) -> None:
    """Called when the training goes on: a run that became `interrupted` by `honour_stop` is `running` again."""
    path = _run_folder(folder)
    if path in _stopped_here:
        take_run(path, "running")
        _stopped_here.remove(path)


def _run_folder(folder: Path) -> Path:
    folder = Path(folder).resolve()
    above = (folder, *folder.parents[:_DEEPEST])
    return next((f for f in above if (f / "status.json").is_file() and (f / "params.json").is_file()), folder)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and a closed terminal act as Ctrl-C does, so that no child outlives its parent unseen.

    A signal that is handled or ignored already (as SIGHUP is by `nohup`) stays so. Outside the main thread, which alone may
    set handlers, nothing is changed.
    """

    def interrupt(*_):
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if main and signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
