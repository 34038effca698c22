"""Runs as Slurm jobs: options that are checked, the sbatch script from a template, and one array of jobs."""

import dataclasses
import itertools
import math
import re
import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import MissingDependencyError, ParameterError, RunError
from ...runs import lock
from ...runs.files import write_json, write_text
from ...runs.run import Run, set_status
from .slurm_state import error_summary, slurm_command, slurm_config

TEMPLATE = Path(__file__).parent / "templates" / "job.sbatch"
_PLACEHOLDER = re.compile(r"{{\s*(.*?)\s*}}")
_ALWAYS = {"array", "command", "log"}  # what every template must have; of the options, those that the user gives
_OPTIONS = {"partition", "time", "cpus", "mem", "gpus", "sbatch", "setup"}
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
    template: Path = TEMPLATE

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
        return f"use {option}" if option else "the workbench sets it, because each run is a single process"
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
    text = script(Path("notebook.ipynb"), max(array_sizes(count)), options, job_folder(Path()))
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
    answer = slurm_command("sbatch", "--test-only", stdin=text)
    if answer.returncode:
        raise ParameterError(f"Slurm refuses such a job: {error_summary(answer.stderr)}")


def script(notebook: Path, count: int, options: SlurmOptions, folder: Path) -> str:
    """Return the sbatch script of `count` runs whose files lie in `folder`; makes nothing and asks nobody."""
    try:
        template = options.template.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ParameterError(f"--sbatch-template {options.template}: {error}") from None
    values, defaults = (_values(notebook, count, o, folder) for o in (options, SlurmOptions()))
    given = {name for name in _OPTIONS if values[name] not in ("", defaults[name])}
    used, lines = set(), []
    for line in template.splitlines():
        is_comment = line.startswith("#") and not line.startswith("#SBATCH")
        names = [] if is_comment else _PLACEHOLDER.findall(line)
        used.update(names)
        if all(values.get(name) for name in names):
            lines += (line if is_comment else _PLACEHOLDER.sub(lambda m: values[m[1]], line)).split("\n")
    commands = itertools.dropwhile(lambda line: not line.strip() or line.startswith("#"), lines)
    problems = [f"unknown {{{{ {name} }}}}; there are {', '.join(values)}" for name in sorted(used - values.keys())]
    problems += [f"has no {{{{ {name} }}}}, which every job needs" for name in sorted(_ALWAYS - used)]
    problems += [f"has no {{{{ {name} }}}}, so that --{name} would be ignored" for name in sorted(given - used)]
    problems += [f"Slurm ignores {line!r} after a command" for line in commands if line.startswith("#SBATCH")]
    if problems:
        raise ParameterError(f"--sbatch-template {options.template}: {problems[0]}")
    return "\n".join(lines) + "\n"


def _values(notebook: Path, count: int, options: SlurmOptions, folder: Path) -> dict[str, str]:
    """Return what stands for each placeholder, "" where its line is left out."""
    extra = [f"#SBATCH --{name}" + (f"={shlex.quote(value)}" if value else "") for name, value in options.extra.items()]
    own_mem = {"mem-per-cpu", "mem-per-gpu"} & options.extra.keys()  # Slurm takes one of the three
    escaped = str(folder).replace("%", "%%")  # sbatch puts numbers of the job for `%j` and the like
    node = f"-u -m workbench.lab.batch.node {shlex.quote(str(folder))} ${{SLURM_ARRAY_TASK_ID:-0}}"
    return {
        "job_name": shlex.quote(notebook.stem),
        "partition": options.partition or "",
        "time": str(options.time),
        "cpus": str(options.cpus),
        "mem": "" if own_mem else options.mem + "G" * options.mem.isdigit(),
        "gpus": "" if str(options.gpus) == "0" else str(options.gpus),
        "array": f"0-{count - 1}%{min(count, options.parallel or count)}" if count > 1 else "",
        "log": shlex.quote(f"{escaped}/{'%A_%a' if count > 1 else '%j'}.log"),
        "notice": str(min(300, options.time * 15 or 300)),  # seconds; Slurm gives it up to 60 s earlier still
        "sbatch": "\n".join(extra),
        "setup": "\n".join(options.setup),
        "command": f"{options.python or shlex.quote(sys.executable)} {node}",
    }


def array_sizes(count: int) -> list[int]:
    """Return how many runs go into each array: the cluster says how large one may be."""
    most = int(slurm_config().get("MaxArraySize") or count) or 1
    return [min(most, count - done) for done in range(0, count, most)]


def submit(runs: Sequence[Run], notebook: Path, options: SlurmOptions, how: Mapping | None = None) -> None:
    """Submit prepared runs of one notebook as one array; each then reads as `queued`, owned by its job."""
    folder = job_folder(runs[0].path.parents[1], f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}")
    text = script(notebook, len(runs), options, folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)  # the jobs execute what it names
    write_text(folder / "job.sbatch", text)
    tasks = {"notebook": Path(notebook).resolve(), "requeues": options.requeues, "how": how or {}}
    write_json(folder / "tasks.json", {"runs": [run.path for run in runs], **tasks})
    cluster = slurm_config().get("ClusterName")
    for run in runs:  # a resumed run named its former job; the new job waits to be named
        set_status(run.path, "interrupted", "not submitted yet", owner={})
        lock.let_go(run.path)
    answer = slurm_command("sbatch", "--parsable", str(folder / "job.sbatch"), timeout=600)
    if answer.returncode or not (number := re.search(r"^\d+", answer.stdout, re.M)):
        shutil.rmtree(folder, ignore_errors=True)
        raise RunError(f"Slurm refused {len(runs)} jobs: {error_summary(answer.stderr)}")
    for n, run in enumerate(runs):
        job = f"{number[0]}_{n}" if len(runs) > 1 else number[0]
        set_status(run.path, "queued", owner={"job": job, "log": str(folder / f"{job}.log"), "cluster": cluster})


def job_folder(root: Path, name: str = "TIME") -> Path:
    """Return the folder of the files of one array, below that of all runs."""
    return root.resolve() / ".slurm" / name
