"""A plan of runs executed to their last report, on this machine or as Slurm jobs, and what to say of it afterwards."""

import functools
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import MissingDependencyError, ParameterError, RunError, need_lab
from ..reports import build_report
from ..runs.run import EMBEDDED_MODELS, Run, load_run, runs_root
from ..runs.status import GOING, set_status
from ..runs.text import one_line
from . import local, slurm, slurm_state
from .display import SweepProgress, failed_checks, outcome
from .execute import execute_run, interruptible
from .gpus import check_gpus, describe_gpus
from .sweep import Entry

_POLL_S = 3.0


# --- what would be done ----------------------------------------------------------------------------------------------


def plan_text(entries: Sequence[Entry], gpus: int | None, *, on_slurm: bool = False) -> str:
    """A plan as `--dry-run` shows it: a line for each run, then for each notebook what its runs share.

    Args:
        entries: of the plan, those of a notebook behind each other.
        gpus: asked for each run; None takes one where there are any.
        on_slurm: whether Slurm hands them out.

    Returns:
        The lines, and for each notebook with a run to start: run folder, parameters that do not vary, GPUs, and a hint where
        a toy's data set is left beside another model.
    """
    devices = f"{gpus or 'none'} for each run, from Slurm" if on_slurm else describe_gpus(gpus)
    text = ""
    for _, group in itertools.groupby(entries, key=lambda entry: entry.notebook):
        group = list(group)
        text += "".join(f"{entry}\n" for entry in group)
        if to_run := [entry for entry in group if entry.to_run]:
            fixed = {k: v for k, v in to_run[0].params.items() if k not in to_run[0].varied}
            shared = {
                "folder": _folder_of(to_run),
                "parameters": ", ".join(f"{k}={v!r}" for k, v in fixed.items()),
                "GPUs": devices,
                "hint": _toy_data_left(to_run),
            }
            text += "".join(f"       {name:10}  {one_line(value)}\n" for name, value in shared.items() if value)
    return text


def _folder_of(entries: Sequence[Entry]) -> str:
    """Where these runs go on; `TIME` stands for the name of a folder to be made."""
    there = [entry.run.path for entry in entries if entry.run]
    if len(there) == len(entries):
        return os.path.commonpath(there)
    return str(Path(entries[0].root or runs_root()).resolve() / entries[0].notebook.stem / "TIME")


def _toy_data_left(entries: Sequence[Entry]) -> str:
    for params in (entry.params for entry in entries):
        model, data = params.get("model"), params.get("dataset")
        if model not in (None, *EMBEDDED_MODELS) and data in EMBEDDED_MODELS:
            return f"dataset={data!r} is still the toy's, beside model={model!r}: give yours with -p dataset=..."
    return ""


# --- on this machine ------------------------------------------------------------------------------------------------


def check_here(jobs: int, gpus: int | None) -> None:
    """Refuse what this machine cannot do.

    Raises:
        MissingDependencyError: there is no papermill, or no kernel for it.
        ParameterError: `jobs` below 1, or more GPUs for a run than there are.
    """
    need_lab("running a notebook", "papermill", "ipykernel")
    if jobs < 1:
        raise ParameterError(f"jobs={jobs}: expected at least 1")
    check_gpus(gpus)


def execute_here(entries: Sequence[Entry], *, jobs: int = 1, gpus: int | None = None) -> None:
    """Execute what a plan has to run and build the report of each run. A failed run stops no other.

    Args:
        entries: of the plan.
        jobs: runs at a time, each in a process of its own.
        gpus: for each run; None takes one where there are any.

    Raises:
        MissingDependencyError, ParameterError: as `check_here`.
        KeyboardInterrupt: as `local.run_entries`.
    """
    check_here(jobs, gpus)
    local.run_entries(entries, functools.partial(execute_prepared, gpus=gpus), jobs)


def execute_prepared(folder: str, notebook: str, token: str, gpus: int | None) -> None:
    """What each process of a batch does: execute the run in `folder`, then print its outcome, which goes into its log."""
    run = load_run(folder)
    execute_run(run, notebook=notebook, quiet=True, gpus=gpus, token=token)
    print(finish(run))


# --- on Slurm -------------------------------------------------------------------------------------------------------


def preview_on_slurm(entries: Sequence[Entry], options: slurm.SlurmOptions) -> tuple[str, str]:
    """What `execute_on_slurm` would submit; makes nothing.

    Returns:
        The sbatch script of each array, and why Slurm could not be asked or no script be made: empty where both worked.

    Raises:
        ParameterError: Slurm refuses the options.
    """
    scripts = ""
    try:
        for notebook, group in _by_notebook(entries):
            scripts += slurm.script(notebook, len(group), options, group[0].root or runs_root()) + "\n"
        slurm.check_slurm(options, _count(entries))
    except (MissingDependencyError, RunError) as error:
        return scripts, str(error)
    return scripts, ""


def execute_on_slurm(entries: Sequence[Entry], options: slurm.SlurmOptions, *, wait: bool = True) -> None:
    """Submit what a plan has to run, one array for each notebook; then follow the jobs and build the reports.

    Args:
        entries: of the plan; their runs lie on a file system that the nodes share.
        options: of each run.
        wait: until all jobs have ended; else return once they are submitted.

    Raises:
        MissingDependencyError, ParameterError: as `slurm.check_slurm`, before any folder is made.
        RunError: Slurm does not answer, or refused; then the folders read as `failed`, with its reason.
        KeyboardInterrupt: Ctrl-C; the jobs go on by themselves.
    """
    slurm.check_slurm(options, _count(entries))
    for notebook, group in _by_notebook(entries):
        group = [entry for entry in group if entry.look_again()]
        if not group:
            continue
        runs = [entry.prepare() for entry in group]
        try:
            slurm.submit(runs, notebook, options)
        except Exception as error:
            for run in runs:
                set_status(run.path, "failed", f"not submitted: {error}")
            raise
        first, last = (run.status["owner"]["job"] for run in (runs[0], runs[-1]))
        print(f"submitted {notebook.stem}: {len(runs)} jobs, {first} to {last}", file=sys.stderr)
    if wait:
        _follow(entries)
        for entry in entries:
            build_report(entry.run)


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
    """Build the report of a run that has ended; returns a line with its outcome and one with the report's path."""
    return f"{run.notebook} {run.id}: {outcome(run)}\nreport {build_report(run)}"


def succeeded(run: Run | None) -> bool:
    """Whether a run is done and all of its checks hold; None stands for a run that never started."""
    return run is not None and run.status["state"] == "done" and not failed_checks(run)


def tally(entries: Sequence[Entry]) -> str:
    """How many runs of a plan succeeded, in a line."""
    good = sum(succeeded(e.run) for e in entries)
    return f"{good} of {len(entries)} runs are done and their checks hold"
