"""Entries of a batch as Slurm jobs: one array for each notebook, followed by their folders and Slurm's word."""

import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..runs import create_run, runs_root, set_status
from . import slurm
from .display import SweepProgress, interruptible
from .sweep import Entry

_POLL_S = 3.0


def scripts(entries: Sequence[Entry], options: slurm.SlurmOptions, root: Path | None) -> str:
    """The sbatch script of each array that `submit` would submit."""
    parts = []
    for notebook, group in _by_notebook(entries):
        parts.append(slurm.script(notebook, len(group), options, Path(root or runs_root())))
    return "\n".join(parts)


def submit(entries: Sequence[Entry], options: slurm.SlurmOptions, root: Path | None) -> None:
    """Make the folders of what is to be run and submit them, one array for each notebook.

    Raises:
        RunError: Slurm refused; the folders read as `failed`, with its words.
    """
    for notebook, group in _by_notebook(entries):
        for entry in group:
            entry.run = entry.run or create_run(notebook.stem, entry.params, root)
        try:
            slurm.submit([e.run for e in group], notebook, options)
        except Exception as error:
            for entry in group:
                set_status(entry.run.path, "failed", f"not submitted: {error}")
            raise
        jobs = [e.run.status["owner"].get("job", "?") for e in group]
        print(f"submitted {notebook.stem}: {len(jobs)} jobs, {jobs[0]} to {jobs[-1]}", file=sys.stderr)


def follow(entries: Sequence[Entry]) -> None:
    """Show how the submitted runs go on until all have ended.

    Raises:
        KeyboardInterrupt: Ctrl-C; the jobs go on by themselves.
    """
    active = [e for e in entries if e.action in ("run", "resume")]
    try:
        with interruptible(), SweepProgress(entries) as progress:
            while active:
                slurm.refresh([e.run for e in active])
                for entry in [e for e in active if e.state not in ("queued", "running")]:
                    active.remove(entry)
                    progress.finished(entry)
                progress.show([e for e in active if e.state == "running"])
                if active:
                    time.sleep(_POLL_S)
    except KeyboardInterrupt:
        print("the jobs go on: `workbench status` shows them, `workbench cancel RUN` ends them", file=sys.stderr)
        raise


def _by_notebook(entries: Sequence[Entry]) -> Iterator[tuple[Path, list[Entry]]]:
    to_run = [e for e in entries if e.action in ("run", "resume")]
    for notebook, group in itertools.groupby(to_run, key=lambda e: e.notebook):
        yield notebook, list(group)
