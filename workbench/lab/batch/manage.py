"""Looking after runs from outside, by their folders: what each does now, its log, and ending it."""

import codecs
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from ...errors import RunError, warn_user
from ...runs import lock
from ...runs.files import open_plain
from ...runs.run import GOING, Run, list_runs, load_run, set_status, take_run, what_is_unknown
from ...runs.stop_request import clear_stop, request_stop
from ...runs.summary import steps_of
from ...runs.text import printable
from .slurm_state import cancel_job, refresh

_PIECE = 1_000_000  # bytes of a log at a time


def find_run(name: str, root: Path | None = None) -> Run:
    """The run that `name` means: a folder, `<notebook>/<run id>`, a run id, or `last` for the newest."""
    if os.path.isdir(name):
        return load_run(name)
    runs = list_runs(root)
    found = runs[-1:] if name == "last" else [r for r in runs if name in (r.id, f"{r.notebook}/{r.id}")]
    if len(found) == 1:
        return found[0]
    if found:
        those = ", ".join(f"{r.notebook}/{r.id}" for r in found)
        raise RunError(f"run {name!r}: there are several: {those}; write NOTEBOOK/RUN")
    if not runs:
        raise RunError(f"run {name!r}: there are no runs yet; `workbench run NOTEBOOK` makes one")
    newest = ", ".join(f"{r.notebook}/{r.id}" for r in runs[:-6:-1])
    raise RunError(f"run {name!r}: not found; the newest are {newest}")


def find_runs(name: str, root: Path | None = None) -> list[Run]:
    """All runs of the notebook that `name` means, oldest first; else the one run of `find_run`."""
    of_notebook = [r for r in list_runs(root) if r.notebook == name.removesuffix(".ipynb")]
    return of_notebook or [find_run(name, root)]


def look(runs: Sequence[Run]) -> list[tuple[Run, dict | None]]:
    """Each run with its status, which is read once for those that have ended; None where it cannot be read."""
    found = [(run, _readable_status(run)) for run in runs]
    jobs = {run for run, status in found if status and status["state"] in GOING and status["owner"].get("job")}
    try:
        refresh(list(jobs))
    except OSError as error:  # another user's folder, or a full or read-only disk: the others are shown
        warn_user(f"{error}; runs are shown as last known")
    return [(run, _readable_status(run) if run in jobs else status) for run, status in found]


def _readable_status(run: Run) -> dict | None:
    try:
        return run.status
    except Exception:  # whoever shows it says why
        return None


def read_log(run: Run, follow: bool = False) -> Iterator[str]:
    """The run's `log.txt`, piece by piece and harmless to a terminal; with `follow` until the run ends.

    A Slurm job that never came to its notebook has only the log of its job, which is shown instead.
    """
    path, position = run.path / "log.txt", 0
    job_log = Path(run.status["owner"].get("log") or path)
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    while True:
        ended = run.status["state"] not in GOING  # looked up first: what is written before the end is still read
        if ended and not os.path.lexists(path):
            path = job_log
        if os.path.lexists(path):
            with open_plain(path) as file:
                file.seek(position)
                while data := file.read(_PIECE):
                    position += len(data)
                    yield printable(decoder.decode(data))
        elif ended or not follow:
            below = [str(log) for log in sorted(run.path.rglob("log.txt"))[:1]]
            trainings = f"; its trainings have logs, such as {below[0]}" if below else ""
            raise RunError(f"{path}: no log, which `workbench run` writes; the run is {run.status['state']}{trainings}")
        if ended or not follow:
            return
        time.sleep(0.5)
        refresh([run])


def cancel(run: Run, grace: float = 60.0, *, force: bool = False) -> None:
    """End a run: a training stops after its current step, with a checkpoint; else, or after `grace`, its process is ended."""
    refresh([run])
    status = run.status
    if status["state"] not in GOING:
        raise RunError(f"{run.notebook}/{run.id}: is {status['state']}; only a queued or running run can be cancelled")
    if status["state"] == "running" and grace > 0 and steps_of(run):
        request_stop(run, "cancelled")
        if _ends_within(run, grace):
            return
    status = run.status
    owner, unknown = status["owner"], what_is_unknown(status)
    if owner.get("job"):
        cancel_job(run)
    elif unknown and not force:
        raise RunError(f"{run.path}: is {unknown}; cancel it there, or, if that has ended, use --force")
    elif unknown:
        take_run(run.path, "running", force=True)
        set_status(run.path, "interrupted", f"cancelled with --force while {unknown}")
        lock.let_go(run.path)
    elif status["state"] in GOING:
        try:
            _terminate(run, owner.get("pid"))
        except RunError:
            clear_stop(run)  # else the run's next training would end at once
            raise
    if not _ends_within(run, 30):
        raise RunError(
            f"{run.path}: was asked to end, but is still {run.status['state']}; see `workbench logs {run.id}`"
        )


def _terminate(run: Run, pid: int | None) -> None:
    """End the process that holds the run's lock, and no other: a folder that came from elsewhere can name any."""
    try:
        process = psutil.Process(pid or -1)
        if any("ipykernel" in part for part in process.cmdline()):
            raise RunError(f"{run.path}: runs in a notebook's kernel, process {pid}; interrupt it in JupyterLab")
        if not any(Path(file.path) == run.path / lock.LOCK for file in process.open_files()):
            raise RunError(f"{run.path}: process {pid} does not hold its lock and was not ended; end it yourself")
        process.terminate()
    except (psutil.NoSuchProcess, ValueError):
        pass  # it ended meanwhile
    except psutil.AccessDenied:
        raise RunError(f"{run.path}: process {pid} belongs to another user, who can cancel it") from None


def _ends_within(run: Run, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while run.status["state"] in GOING:
        if time.monotonic() > end:
            return False
        time.sleep(0.3)
        refresh([run])
    return True
