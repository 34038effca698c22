"""A plan of runs executed to their last report, on this machine or as Slurm jobs, and what to say of it afterwards."""

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.reduction import DupFd
from pathlib import Path

from ...errors import MissingDependencyError, ParameterError, RunError
from ...runs import lock
from ...runs.run import GOING, Run, load_run, runs_root, set_status
from ...runs.stop_request import interruptible
from ...runs.summary import RunSummary, latest_progress
from ...runs.summary import tally as tally_of
from ...runs.text import one_line
from .. import need_lab
from ..reports import build_report
from . import slurm, slurm_state
from .display import SweepProgress
from .gpus import LeftOut, check_gpus
from .plan import Entry, claim

_POLL_S = 3.0
# What Python's fork server loads once for the processes of all runs: that takes longer than a short notebook.
_LOADED_ONCE = ["pandas", "workbench.lab.batch.execute", "workbench.lab.batch.run"]


# --- on this machine ------------------------------------------------------------------------------------------------


def check_here(jobs: int | None, gpus: int | None) -> None:
    """Refuse what this machine cannot do."""
    need_lab("running a notebook", "papermill", "ipykernel")
    if jobs is not None and jobs < 1:
        raise ParameterError(f"jobs={jobs}: expected at least 1")
    check_gpus(gpus)


def execute_here(entries: Sequence[Entry], *, jobs: int | None = None, gpus: int | None = None) -> None:
    """Execute what a plan has to run and build the report of each run. A failed run stops no other."""
    check_here(jobs, gpus)
    context, left_out = _fork_server(), LeftOut(gpus)
    waiting = [e for e in entries if e.to_run]
    active: list[tuple[Entry, multiprocessing.Process]] = []
    with interruptible(), SweepProgress(entries) as progress:
        try:
            while waiting or active:
                while waiting and len(active) < (jobs or 1):
                    entry = waiting.pop(0)
                    if not _start(context, entry, left_out, active):
                        progress.finished(entry)
                time.sleep(0.1)
                for entry, process in [pair for pair in active if not pair[1].is_alive()]:
                    active.remove((entry, process))
                    if says := _retries(entry, left_out):
                        progress.say(f"{entry.name}: {says}")
                        waiting.insert(0, entry)
                    else:
                        progress.finished(entry)
                progress.show([entry for entry, _ in active])
        finally:
            for _, process in active:
                process.terminate()
            for _, process in active:
                process.join()


def _fork_server():
    """Start Python's fork server, and the helper that it needs.

    Both would import modules of the current folder, which may be anyone's. They do so only where this process does, as
    `python -m workbench` in a checkout.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LOADED_ONCE)
    with contextlib.ExitStack() as stack:
        if not {"", os.getcwd()} & {*sys.path} and "PYTHONSAFEPATH" not in os.environ:
            os.environ["PYTHONSAFEPATH"] = "1"
            stack.callback(os.environ.pop, "PYTHONSAFEPATH")
        forkserver.ensure_running()
    return context


def _start(context, entry: Entry, left_out: LeftOut, active: list) -> bool:
    """Start the process of a run and put it into `active`; False where another process has run it since, or it cannot start."""
    try:
        if not (claimed := claim([entry])):
            return False
        (run,) = claimed
        handed_on = _OpenFile(lock.open_lock(run.path))
        where = (left_out.count, handed_on, left_out.environ())
        arguments = (str(run.path), str(entry.notebook), *where, dict(entry.how))
        process = context.Process(target=_in_own_session, args=arguments)
        with _signals_wait():  # one in between would leave a process that nobody ends
            process.start()
            active.append((entry, process))
        lock.let_go(run.path)
        return True
    except Exception as error:  # whatever keeps one run from its start, the others go on
        entry.problem = f"not started: {error}"
        if entry.run:
            lock.let_go(entry.run.path)
    return False


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP of this thread wait for the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _retries(entry: Entry, left_out: LeftOut) -> str:
    """Why a run that has ended is tried again on another GPU; empty where it is not."""
    try:
        trained = (latest_progress(entry.run) or {"step": 0})["step"] > 0
        return left_out.retries(str(entry.run.path), entry.run.status, trained)
    except (RunError, OSError):  # its last line says what is wrong with its files
        return ""


def _received(handed_on) -> int:
    return handed_on.detach()


class _OpenFile(int):
    """The number of an open file, which is open in the process, too, that gets it as an argument."""

    def __reduce__(self):
        return _received, (DupFd(int(self)),)


def _in_own_session(
    folder: str, notebook: str, gpus: int | None, handed_on: int, environ: dict[str, str], how: dict
) -> None:
    """A terminal's Ctrl-C reaches the run once, through `execute_here`; whatever it prints goes into its log."""
    lock.adopt(Path(folder), handed_on)
    os.setsid()
    os.environ.clear()
    os.environ.update(environ)
    log = os.open(Path(folder) / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    from .execute import execute_run

    run = load_run(folder)
    execute_run(run, notebook=notebook, quiet=True, gpus=gpus, **how)
    print(finish(run))


def execute_one(entry: Entry, *, quiet: bool = False, gpus: int | None = None) -> tuple[Run, str]:
    """Execute the run of a plan in this process; returns it and its state."""
    from .execute import execute_run

    run = entry.prepare()
    with contextlib.suppress(OSError):  # the reader left, as `| head` does; the run goes on
        print(f"run folder {run.path}", file=sys.stderr)
    return run, execute_run(run, notebook=entry.notebook, quiet=quiet, gpus=gpus, **entry.how)


# --- on Slurm -------------------------------------------------------------------------------------------------------


def preview_on_slurm(entries: Sequence[Entry], options: slurm.SlurmOptions) -> tuple[str, str]:
    """Say what `execute_on_slurm` would submit; make nothing."""
    scripts = ""
    try:
        for notebook, group in _by_notebook(entries):
            for size in slurm.array_sizes(len(group)):
                folder = slurm.job_folder(Path(group[0].root or runs_root()))
                scripts += slurm.script(notebook, size, options, folder) + "\n"
        slurm.check_slurm(options, _count(entries))
    except (MissingDependencyError, RunError) as error:
        return scripts, str(error)
    return scripts, ""


def execute_on_slurm(entries: Sequence[Entry], options: slurm.SlurmOptions, *, wait: bool = True) -> None:
    """Submit what a plan has to run as arrays of one notebook each; then follow the jobs and build the reports."""
    slurm.check_slurm(options, _count(entries))
    for notebook, group in _by_notebook(entries):
        with lock.alone_in(Path(group[0].root or runs_root()) / notebook.stem):
            runs = claim(group, "interrupted")
            sizes = slurm.array_sizes(len(runs))
            each = max(1, options.parallel // len(sizes)) if options.parallel and sizes else None
            for n, size in enumerate(sizes):
                _submit(
                    runs[n * sizes[0] :][:size], notebook, dataclasses.replace(options, parallel=each), group[0].how
                )
    if wait:
        _follow(entries)
        for entry in entries:
            build_report(entry.run)


def _submit(runs: Sequence[Run], notebook: Path, options: slurm.SlurmOptions, how: Mapping) -> None:
    try:
        slurm.submit(runs, notebook, options, how)
    except Exception as error:
        for run in runs:
            set_status(run.path, "failed", f"not submitted: {error}")
        raise
    first, last = (run.status["owner"]["job"] for run in (runs[0], runs[-1]))
    print(f"submitted {notebook.stem}: {len(runs)} jobs, {first} to {last}", file=sys.stderr)


def _count(entries: Sequence[Entry]) -> int:
    return max(1, sum(e.to_run for e in entries))


def _by_notebook(entries: Sequence[Entry]) -> Iterator[tuple[Path, list[Entry]]]:
    for notebook, group in itertools.groupby([e for e in entries if e.to_run], key=lambda e: e.notebook):
        yield notebook, list(group)


def _follow(entries: Sequence[Entry]) -> None:
    """Show how the submitted runs go on until all have ended."""
    active = [e for e in entries if e.to_run]
    try:
        with interruptible(), SweepProgress(entries) as progress:
            while active:
                slurm_state.refresh([e.run for e in active])
                for entry in [e for e in active if e.state not in GOING]:
                    active.remove(entry)
                    progress.finished(entry)
                progress.show([e for e in active if e.state == "running"])
                if active:
                    time.sleep(_POLL_S)
    except KeyboardInterrupt:
        print("the jobs go on: `workbench status` shows them, `workbench cancel RUN` ends them", file=sys.stderr)
        raise


# --- what came out --------------------------------------------------------------------------------------------------


def finish(run: Run) -> str:
    """Build the report of a run that has ended; returns three lines: its outcome, the report's path, what the audit found."""
    summary = RunSummary.of(run)
    return f"{run.notebook} {run.id}: {summary.outcome}\nreport {build_report(run)}\n{one_line(summary.findings.line)}"


def succeeded(run: Run | None, fail_on: str | None = None) -> bool:
    """Whether a run is done, no check failed, and no problem of the audit counts; None stands for a run that never started."""
    if run is None:
        return False
    summary = RunSummary.of(run)
    return summary.succeeded and not summary.problem_counts(fail_on)


def tally(entries: Sequence[Entry]) -> str:
    """Return how the runs of a plan ended, in a line."""
    return tally_of([None if entry.run is None else RunSummary.of(entry.run) for entry in entries])
