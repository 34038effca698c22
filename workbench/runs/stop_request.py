"""Asking a training to stop after its current step, from anywhere that sees its run folder.

A widget's button, `workbench cancel`, and a cluster that wants its node back all write `stop.json` into the run folder; the
training looks for it after every step, saves a complete checkpoint and ends with `TrainingStopped`.
"""

import contextlib
import os
import time
from pathlib import Path

from ..errors import RunError
from .files import read_json, write_json
from .ownership import keep, take_run, taken_away
from .run import Run
from .status import owns, set_status

_FILE = "stop.json"
_DEEPEST = 4


def request_stop(run: Run, reason: str) -> None:
    """Ask whatever trains in this run's folder, or below it, to stop after its current step.

    Args:
        run: the run; asking one that does not train has no effect.
        reason: what the run's status will say, such as `stopped by its button`.
    """
    write_json(run.path / _FILE, {"reason": reason, "time": time.time()})


def stop_request(folder: Path) -> str | None:
    """The reason of a request that no training has answered yet, or None.

    Args:
        folder: where a training records, the run's folder or one below it.
    """
    try:
        request = read_json(_run_folder(folder) / _FILE, None)
    except (OSError, RunError):  # a file system that is away for a moment ends no training; the next step looks again
        return None
    return str(request.get("reason") or "asked to stop") if isinstance(request, dict) else None


def run_is_lost(folder: Path) -> bool:
    """Whether the training in this folder works for a run that another process has taken: it then writes no more.

    Args:
        folder: as for `stop_request`.
    """
    try:
        return taken_away(_run_folder(folder))
    except (OSError, RunError):
        return False


def clear_stop(run: Run) -> None:
    """Remove a request that no training has answered yet; called before a run starts or continues."""
    with contextlib.suppress(FileNotFoundError):
        (run.path / _FILE).unlink()


def honour_stop(folder: Path, error: str) -> None:
    """Called when the training has stopped: removes the request, and a run that this process owns becomes `interrupted`."""
    run = Run(_run_folder(folder))
    if taken_away(run.path):
        return
    clear_stop(run)
    if owns(run.path):
        set_status(run.path, "interrupted", error)


def go_on(folder: Path) -> None:
    """Called when the training goes on: an `interrupted` run that this process owns becomes `running` again."""
    run = Run(_run_folder(folder))
    if owns(run.path) and run.status["state"] == "interrupted":
        keep(run.path, take_run(run.path, "running"))


def _run_folder(folder: Path) -> Path:
    """A notebook may train several times, each in a folder below the run's: at most `_DEEPEST` levels, all of one user."""
    folder = Path(folder).resolve()
    return next(filter(_is_my_run, (folder, *folder.parents[:_DEEPEST])), folder)


def _is_my_run(folder: Path) -> bool:
    files = folder / "status.json", folder / "params.json"
    return all(f.is_file() and f.stat().st_uid == os.getuid() for f in files)
