"""Runs as Slurm jobs: options that are checked, the sbatch script, and one array of jobs through submitit.

submitit submits; its polling is not used, since without accounting it never learns of a cancelled or killed job.
"""

import dataclasses
import math
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...errors import MissingDependencyError, ParameterError, RunError
from ...runs import lock
from ...runs.run import Run, set_status
from .node import run_on_node
from .slurm_state import error_summary, slurm_command, slurm_config

# Options of sbatch that `--sbatch` may not set -> the option that does, None where the workbench itself does.
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
_OF_A_JOB = re.compile(
    r"SLURM_(ARRAY|JOB|STEP|TASK|PROC|LOCAL|NODE|N(TASKS|PROCS|NODES|PRIO)|CPU|MEM|GPU|RESTART)|SUBMITIT_"
)


@dataclasses.dataclass(frozen=True)
class SlurmOptions:
    """What each run asks of Slurm, checked when it is made."""

    partition: str | None = None  # one or several, by commas; None for the cluster's default
    time: int = 60  # minutes until Slurm ends a job, 0 for no limit; training stops ahead of it and is queued again
    gpus: int | str = 0  # a number, or as `a100:1`
    cpus: int = 1
    mem: str = "4G"  # as sbatch takes it; a plain number is of GB, 0 for all of a node
    parallel: int | None = None  # runs at a time; None leaves it to Slurm
    requeues: int = 10  # how often a run that met its time limit or was preempted is queued again
    extra: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )  # of sbatch; "" for an option that takes no value
    setup: Sequence[str] = ()  # lines of shell before the run, such as `module load cuda`
    python: str | None = None  # command that starts Python on the node; None for this one

    def __post_init__(self):
        for name, least in (("time", 0), ("cpus", 1), ("requeues", 0), ("parallel", 1)):
            value = getattr(self, name)
            if (type(value) is not int or value < least) and (name, value) != ("parallel", None):
                raise ParameterError(f"slurm {name}={value!r}: expected a whole number of at least {least}")
        if not re.fullmatch(r"(\w+:)*\d+", str(self.gpus)):
            raise ParameterError(f"slurm gpus={self.gpus!r}: expected a number, or a kind and a number as in a100:1")
        if not re.fullmatch(r"(?i)\d+[KMGT]?", self.mem):
            raise ParameterError(
                f"--mem {self.mem}: expected GB, or a whole number with K, M, G or T, e.g. 64G or 1536M"
            )
        if self.partition is not None and not re.fullmatch(r"[\w.,-]+", self.partition):
            raise ParameterError(f"slurm partition={self.partition!r}: expected a name, or names and commas")
        for name, value in self.extra.items():
            if problem := _problem_of_extra(name, value):
                raise ParameterError(f"--sbatch {name}={value}: {problem}")


def _problem_of_extra(name: str, value: str) -> str:
    if not re.fullmatch(r"[a-z][a-z-]+", name) or "\n" in value:
        return "expected a long option of sbatch without its dashes, NAME=VALUE"
    if name in _TAKEN:
        option = _TAKEN[name]
        return f"use {option}" if option else "the workbench sets it, each run being one process of its own"
    if name == "signal" and not re.fullmatch(r"USR2@\d+", value):
        return "expected USR2@SECONDS before the time limit"
    return ""


def parse_time(text: str) -> int:
    """A time limit as sbatch takes it, in minutes, rounded up.

    Example:
        >>> parse_time("240"), parse_time("4:00:00"), parse_time("0:30"), parse_time("1-12")
        (240, 240, 1, 2160)
    """
    text = "0" if text.upper() in ("UNLIMITED", "INFINITE") else text
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        raise ParameterError(
            f"--time {text}: expected minutes, or hours:minutes:seconds, or days-hours, as sbatch takes it"
        )
    days, *given = match.groups()
    numbers = [int(number) for number in given if number is not None]
    if days is None and len(numbers) < 3:
        numbers = [0, *numbers]  # the first number is of minutes
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    return (int(days or 0) * 24 + hours) * 60 + minutes + math.ceil(seconds / 60)


def check_slurm(options: SlurmOptions, count: int = 1) -> None:
    """Ask Slurm whether it would take such jobs; makes nothing."""
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise MissingDependencyError("--executor slurm: no sbatch and srun on PATH; start it on a Slurm login node")
    text = script(Path("notebook.ipynb"), max(array_sizes(count)), options, Path())
    answer = slurm_command("sinfo", "--noheader", "--format=%P")
    if answer.returncode:
        raise RunError(f"Slurm does not answer: {error_summary(answer.stderr)}")
    there = answer.stdout.split()
    names = sorted({name.rstrip("*") for name in there})
    asked = options.partition.split(",") if options.partition else []
    if unknown := [name for name in asked if name not in names]:
        raise ParameterError(f"slurm partition={unknown[0]!r}: not on this cluster; there are {', '.join(names)}")
    if not asked and not any(name.endswith("*") for name in there):
        have = ", ".join(names)
        raise ParameterError(f"slurm partition: the cluster has no default; give --partition, one of {have}")
    with _outside_jobs():
        answer = slurm_command("sbatch", "--test-only", stdin=text)
    if answer.returncode:
        raise ParameterError(f"Slurm refuses such a job: {error_summary(answer.stderr)}")


def script(notebook: Path, count: int, options: SlurmOptions, root: Path) -> str:
    """The sbatch script that `submit` would hand to Slurm; makes nothing and asks nobody."""
    executor = _executor(_folder(root, "TIME"), notebook.stem, options)
    if count > 1:
        executor.parameters["map_count"] = count
    return executor._make_submission_file_text(executor._submitit_command_str, "")


def array_sizes(count: int) -> list[int]:
    """How many runs go into each array: the cluster says how large one may be."""
    most = int(slurm_config().get("MaxArraySize") or count) or 1
    return [min(most, count - done) for done in range(0, count, most)]


def submit(runs: Sequence[Run], notebook: Path, options: SlurmOptions, how: Mapping | None = None) -> None:
    """Submit prepared runs of one notebook as one array; each then reads as `queued`, owned by its job."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    folder = _folder(runs[0].path.parents[1], f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)  # what a job executes lies there as pickles
    executor = _executor(folder, notebook.stem, options)
    arguments = [(str(run.path), str(Path(notebook).resolve()), options.requeues, dict(how or {})) for run in runs]
    cluster = slurm_config().get("ClusterName")
    for run in runs:  # a resumed run named its former job; the new job waits to be named
        set_status(run.path, "interrupted", "not submitted yet", owner={})
        lock.let_go(run.path)
    try:
        with _outside_jobs(), executor.batch():
            jobs = [executor.submit(run_on_node, *a) for a in arguments]
    except (FailedJobError, FailedSubmissionError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise RunError(f"Slurm refused {len(runs)} jobs: {error_summary(str(error))}") from None
    for run, job in zip(runs, jobs, strict=True):
        owner = {"job": job.job_id, "log": str(job.paths.stderr), "cluster": cluster}
        set_status(run.path, "queued", owner=owner)


def _executor(folder: Path, name: str, options: SlurmOptions):
    """submitit's executor with these options; its files go into `folder`."""
    try:
        import submitit
    except ImportError:
        raise MissingDependencyError("--executor slurm needs submitit: pip install submitit") from None

    class Executor(submitit.SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:
            return 1  # submitit's own is -1 without srun, and then it cannot even write the script

    executor = Executor(folder, max_num_timeout=options.requeues, python=options.python)
    ahead = min(300, options.time * 15 or 300)  # seconds; Slurm gives notice up to 60 s earlier still
    extra = {name.replace("-", "_"): value or True for name, value in options.extra.items()}
    extra |= {} if "no_requeue" in extra else {"requeue": True}
    parameters = {
        "job_name": name,
        "partition": options.partition,
        "time": options.time,
        "gpus_per_node": None if str(options.gpus) == "0" else options.gpus,
        "cpus_per_task": options.cpus,
        "mem": None if {"mem_per_cpu", "mem_per_gpu"} & set(extra) else options.mem + "G" * options.mem.isdigit(),
        "signal_delay_s": ahead,
        "array_parallelism": options.parallel or 100_000,
        "srun_args": ["--open-mode=append", f"--cpus-per-task={options.cpus}"],  # srun inherits neither
        "additional_parameters": extra,
        "setup": list(options.setup) or None,
    }
    # submitit's own wckey is refused where the cluster knows its keys
    executor.update_parameters(wckey=None, **{k: v for k, v in parameters.items() if v is not None})
    return executor


def _folder(root: Path, name: str) -> Path:
    return root.resolve() / ".slurm" / name


@contextmanager
def _outside_jobs() -> Iterator[None]:
    """Submitting from within a job: its own variables must not describe the new jobs."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if _OF_A_JOB.match(name)}
    try:
        yield
    finally:
        os.environ.update(hidden)
