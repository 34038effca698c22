"""Runs as Slurm jobs: checked options, one array through submitit, Slurm's word on how each job ended, cancelling.

submitit submits; its polling is not used, since without accounting it never learns of a cancelled or killed job.
"""

import dataclasses
import itertools
import math
import os
import re
import shutil
import sys
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import MissingDependencyError, ParameterError, RunError
from ..runs.files import read_json
from ..runs.run import Run, create_run, runs_root
from ..runs.status import set_status
from .display import SweepProgress, interruptible
from .node import run_on_node
from .slurm_state import ask_slurm, slurm_command, verdict, words
from .sweep import Entry

# What a job is not to be told by `--sbatch`, and what says it instead: a run is one process, and its script is ours.
_TAKEN = {
    "partition": "--partition",
    "time": "--time",
    "gpus-per-node": "--gpus",
    "cpus-per-task": "--cpus",
    "mem": "--mem",
    "requeue": "--requeues",
} | dict.fromkeys(
    ["array", "nodes", "ntasks", "ntasks-per-node", "output", "error", "open-mode", "wrap", "test-only", "parsable"]
)


@dataclasses.dataclass(frozen=True)
class SlurmOptions:
    """What each run asks of Slurm.

    Args:
        partition: one or several, by commas; None for the cluster's default.
        time: minutes until Slurm ends a job; training stops ahead of it and is queued again.
        gpus: for each run.
        cpus: cores for each run.
        mem: GB of memory for each run.
        parallel: runs at a time; None leaves it to Slurm.
        requeues: how often a run that met its time limit or was preempted is queued again.
        extra: any further option of sbatch, name -> value; an empty value for an option that takes none.

    Raises:
        ParameterError: a value out of range, or an extra option that something else decides.
    """

    partition: str | None = None
    time: int = 60
    gpus: int = 0
    cpus: int = 1
    mem: float = 4
    parallel: int | None = None
    requeues: int = 10
    extra: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for name, least in (("time", 1), ("gpus", 0), ("cpus", 1), ("requeues", 0), ("parallel", 1)):
            value = getattr(self, name)
            if (type(value) is not int or value < least) and (name, value) != ("parallel", None):
                raise ParameterError(f"slurm {name}={value!r}: expected a whole number of at least {least}")
        if isinstance(self.mem, bool) or not isinstance(self.mem, int | float) or not 0 < self.mem < math.inf:
            raise ParameterError(f"slurm mem={self.mem!r}: expected GB of memory above 0")
        if self.partition is not None and not re.fullmatch(r"[\w.,-]+", self.partition):
            raise ParameterError(f"slurm partition={self.partition!r}: expected a name, or names and commas")
        for name, value in self.extra.items():
            _check_extra(name, value)


def _check_extra(name: str, value: str) -> None:
    if not re.fullmatch(r"[a-z][a-z-]+", name) or "\n" in value:
        raise ParameterError(
            f"--sbatch {name}={value}: expected a long option of sbatch without its dashes, NAME=VALUE"
        )
    if name in _TAKEN:
        instead = (
            f"use {_TAKEN[name]}" if _TAKEN[name] else "the workbench sets it, each run being one process of its own"
        )
        raise ParameterError(f"--sbatch {name}={value}: {instead}")
    if name == "signal" and not re.fullmatch(r"USR2@\d+", value):
        raise ParameterError(f"--sbatch signal={value}: expected USR2@SECONDS before the time limit")


# --- before anything is made ---------------------------------------------------------------------------------------


def check_slurm(options: SlurmOptions, count: int = 1) -> None:
    """Ask Slurm whether it would take such jobs; makes nothing.

    Args:
        options: of each run.
        count: runs in the array.

    Raises:
        MissingDependencyError: no Slurm client or no submitit here.
        ParameterError: no such partition, or Slurm refuses the options, in its words.
        RunError: Slurm does not answer.
    """
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise MissingDependencyError("--executor slurm: no sbatch and srun on PATH; start it on a Slurm login node")
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise MissingDependencyError("--executor slurm needs submitit: pip install submitit") from None
    there = _client("sinfo", "--noheader", "--format=%P").split()
    names = sorted({name.rstrip("*") for name in there})
    asked = options.partition.split(",") if options.partition else []
    if unknown := [name for name in asked if name not in names]:
        raise ParameterError(f"slurm partition={unknown[0]!r}: not on this cluster; there are {', '.join(names)}")
    if not asked and not any(name.endswith("*") for name in there):
        raise ParameterError(
            f"slurm partition: the cluster has no default; give --partition, one of {', '.join(names)}"
        )
    text = script(Path("notebook.ipynb"), count, options, Path())
    with _outside_jobs():
        answer = slurm_command("sbatch", "--test-only", stdin=text)
    if answer.returncode:
        raise ParameterError(f"Slurm refuses such a job: {words(answer.stderr)}")


def script(notebook: Path, count: int, options: SlurmOptions, root: Path) -> str:
    """The sbatch script that `submit` would hand to Slurm; makes nothing.

    Args:
        notebook: of the runs.
        count: how many.
        options: of each run.
        root: folder of all runs.
    """
    executor = _executor(_folder(root, "TIME"), notebook.stem, options)
    if count > 1:
        executor.parameters["map_count"] = count
    return executor._make_submission_file_text(executor._submitit_command_str, "")


def _executor(folder: Path, name: str, options: SlurmOptions):
    """submitit's executor with these options; its files go into `folder`."""
    import submitit

    executor = submitit.SlurmExecutor(folder, max_num_timeout=options.requeues)
    ahead = min(300, options.time * 15)  # seconds; Slurm gives notice up to 60 s earlier still
    extra = {} if "no-requeue" in options.extra else {"requeue": True}
    parameters = {
        "job_name": name,
        "partition": options.partition,
        "time": options.time,
        "gpus_per_node": options.gpus or None,
        "cpus_per_task": options.cpus,
        "mem": f"{math.ceil(options.mem * 1024)}M",
        "signal_delay_s": ahead,
        "array_parallelism": options.parallel or 100_000,
        "srun_args": ["--open-mode=append", f"--cpus-per-task={options.cpus}"],  # srun inherits neither
        "additional_parameters": extra | {k: v or True for k, v in options.extra.items()},
    }
    executor.update_parameters(**{k: v for k, v in parameters.items() if v is not None})
    return executor


def _folder(root: Path, name: str) -> Path:
    return root.resolve() / ".slurm" / name


# --- submitting and cancelling -------------------------------------------------------------------------------------


def _submit_array(runs: Sequence[Run], notebook: Path, options: SlurmOptions) -> None:
    """Submit prepared runs of one notebook as one array; each then reads as `queued`, owned by its job.

    Args:
        runs: folders of one root, on a file system that the nodes share.
        notebook: path, on such a file system too.
        options: of each run.

    Raises:
        RunError: Slurm refused, in its words; no job was made.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    folder = _folder(runs[0].path.parents[1], f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}")
    folder.mkdir(parents=True)
    executor = _executor(folder, notebook.stem, options)
    arguments = [(str(run.path), str(Path(notebook).resolve()), options.requeues) for run in runs]
    for run in runs:
        set_status(run.path, "queued")  # by no job yet; of one that is resumed the former job is named
    try:
        with _outside_jobs(), executor.batch():
            jobs = [executor.submit(run_on_node, *a) for a in arguments]
    except (FailedJobError, FailedSubmissionError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise RunError(f"Slurm refused {len(runs)} jobs: {words(str(error))}") from None
    for run, job in zip(runs, jobs, strict=True):
        owner = {"job": job.job_id, "log": str(job.paths.stderr)}
        set_status(run.path, "queued", owner=owner)  # the job waits for this before it starts


@contextmanager
def _outside_jobs() -> Iterator[None]:
    """Submitting from within a job, its own description must not pass for that of the new ones."""
    own = re.compile(
        r"SLURM_(ARRAY|JOB|STEP|TASK|PROC|LOCAL|NODE|N(TASKS|PROCS|NODES|PRIO)|CPU|MEM|GPU|RESTART)|SUBMITIT_"
    )
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if own.match(name)}
    try:
        yield
    finally:
        os.environ.update(hidden)


def cancel(run: Run) -> None:
    """End the run's job, and no other task of its array.

    Raises:
        RunError: the run has no job, or Slurm does not cancel it.
    """
    job = read_json(run.path / "status.json", {}).get("owner", {}).get("job")
    if not job:
        raise RunError(f"{run.path}: is no Slurm job")
    answer = slurm_command("scancel", job)
    if answer.returncode:
        raise RunError(f"{run.path}: job {job} was not cancelled: {words(answer.stderr)}")


# --- how jobs go on ------------------------------------------------------------------------------------------------


def refresh(runs: Sequence[Run]) -> None:
    """Ask Slurm once about all runs whose job has not ended by their own word, and write what only Slurm knows.

    A job that Slurm ended makes its run `interrupted` with the cause, one that Slurm queued again makes it `queued`. When
    Slurm does not answer, nothing is changed and a warning says so.
    """
    statuses = {run: read_json(run.path / "status.json", {"state": "interrupted"}) for run in runs}
    going = {
        run: status
        for run, status in statuses.items()
        if status["state"] in ("queued", "running") and status.get("owner", {}).get("job")
    }
    if not going:
        return
    try:
        told = ask_slurm({status["owner"]["job"] for status in going.values()})
    except RunError as error:
        warnings.warn(f"{error}; runs are shown as last known", stacklevel=2)
        return
    for run, status in going.items():
        change = verdict(status, told.get(status["owner"]["job"]))
        if change and read_json(run.path / "status.json", {}) == status:  # else the job wrote meanwhile, and knows best
            set_status(run.path, *change, owner=status["owner"])


def _client(*command: str) -> str:
    answer = slurm_command(*command)
    if answer.returncode:
        raise RunError(f"Slurm does not answer: {words(answer.stderr)}")
    return answer.stdout


_POLL_S = 3.0


def scripts(entries: Sequence[Entry], options: SlurmOptions, root: Path | None) -> str:
    """The sbatch script of each array that `submit` would submit."""
    parts = []
    for notebook, group in _by_notebook(entries):
        parts.append(script(notebook, len(group), options, Path(root or runs_root())))
    return "\n".join(parts)


def submit(entries: Sequence[Entry], options: SlurmOptions, root: Path | None) -> None:
    """Make the folders of what is to be run and submit them, one array for each notebook.

    Raises:
        RunError: Slurm refused; the folders read as `failed`, with its words.
    """
    for notebook, group in _by_notebook(entries):
        for entry in group:
            entry.run = entry.run or create_run(notebook.stem, entry.params, root)
        try:
            _submit_array([e.run for e in group], notebook, options)
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
                refresh([e.run for e in active])
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
