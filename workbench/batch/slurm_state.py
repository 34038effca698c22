"""What Slurm says about jobs, with or without accounting, what it means for their runs, and cancelling."""

import dataclasses
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path

from ..errors import RunError
from ..runs.files import read_tail
from ..runs.run import Run
from ..runs.status import GOING, set_status

_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_STARTED = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
_NEVER_STARTS = ("launch failed", "DependencyNeverSatisfied")
_OUT_OF_MEMORY = "out of memory; give more with --mem"
_ENDS = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "time limit",
    "PREEMPTED": "preempted",
    "OUT_OF_MEMORY": _OUT_OF_MEMORY,
    "NODE_FAIL": "node lost",
    "BOOT_FAIL": "the node did not boot",
    "DEADLINE": "deadline passed",
    "REVOKED": "revoked",
}
_MEMORY = re.compile(r"oom.kill|exceeded memory limit|out of memory", re.IGNORECASE)
_LAST_SIGNAL = 128 + 31  # above it, the exit code of a job that a signal ended is an error number of Slurm's
_SQUEUE = {"JobArrayID": 40, "State": 40, "Reason": 80, "exit_code": 20, "NodeList": 200}  # column -> its width


@dataclasses.dataclass(frozen=True)
class JobState:
    """What Slurm says about a job: state, reason, exit code (above 128: killed by a signal), nodes."""

    state: str
    reason: str = ""
    exit_code: int = 0
    nodes: str = ""


# --- Slurm's commands -----------------------------------------------------------------------------------------------


def slurm_command(*command: str, stdin: str | None = None, timeout: float = 60) -> subprocess.CompletedProcess:
    """One of Slurm's commands; what cannot be run, or hangs for `timeout` seconds, reads as one that failed."""
    env = os.environ | {
        "SLURM_BITSTR_LEN": "0",  # every task of an array, not the first few and dots
        "SLURM_TIME_FORMAT": "%s",  # seconds since the epoch
    }
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, input=stdin, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def error_summary(text: str) -> str:
    """The errors that one of Slurm's commands printed, in one line, each once.

    Example:
        >>> error_summary("sbatch: error: invalid partition: x\\nsbatch: error: Batch job submission failed\\n")
        'invalid partition: x; Batch job submission failed'
    """
    lines = [re.sub(r"^(s\w+: )?(error: |fatal: )?", "", line.strip()) for line in text.splitlines()]
    return "; ".join(dict.fromkeys(filter(None, lines))) or "no reason given"


def ask_slurm(jobs: Collection[str]) -> dict[str, JobState]:
    """The state of each job that Slurm knows: minutes after a job's end from its accounting, if there is any.

    Raises:
        RunError: Slurm does not answer.
    """
    ids = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    fields = ",".join(f"{name}:{width}" for name, width in _SQUEUE.items())
    answer = slurm_command("squeue", "--noheader", "--array", "--states=all", f"--jobs={ids}", f"--Format={fields}")
    if answer.returncode and "Invalid job id" not in answer.stderr:
        raise RunError(f"Slurm does not answer: {error_summary(answer.stderr)}")
    states = read_squeue(answer.stdout)
    if any(job not in states for job in jobs) and shutil.which("sacct"):
        columns = "--format=JobID,State,ExitCode,Reason,NodeList"
        answer = slurm_command("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={ids}", columns)
        states = read_sacct(answer.stdout) | states
    return states


def read_squeue(text: str) -> dict[str, JobState]:
    """squeue's columns of fixed width, as `ask_slurm` asks for them.

    Its exit code is a wait status, or an error number of Slurm's for a job that never started.
    """
    states = {}
    for line in text.splitlines():
        fields = []
        for width in _SQUEUE.values():
            fields.append(line[:width].strip())
            line = line[width:]
        job, state, reason, code, nodes = fields
        status = int(code) if code.isdigit() else 0
        states[job] = JobState(state, reason, 128 + (status & 127) if status & 127 else status >> 8, nodes)
    return states


def read_sacct(text: str) -> dict[str, JobState]:
    """sacct's columns between bars: `CANCELLED by 1000`, exit codes as `code:signal`, tasks that never ran in one line.

    Example:
        >>> read_sacct("9_1|FAILED|0:9|None|n1")
        {'9_1': JobState(state='FAILED', reason='None', exit_code=137, nodes='n1')}
    """
    states = {}
    for line in text.splitlines():
        if line.count("|") == 4:
            jobs, state, code, reason, nodes = line.split("|")
            number, _, killed = code.partition(":")
            exit_code = 128 + int(killed) if killed not in ("", "0") else int(number or 0)
            if 2 <= exit_code < 32:  # sacct takes 128 off: our jobs exit with 0, 1 or 128 + a signal
                exit_code += 128
            if exit_code > _LAST_SIGNAL:
                reason = "JobLaunchFailure"  # as squeue has it
            states |= dict.fromkeys(_tasks(jobs), JobState(state.partition(" ")[0], reason, exit_code, nodes))
    return states


def _tasks(jobs: str) -> list[str]:
    """Each job of `9`, `9_1` or `9_[0,2-8:2%3]`."""
    array, _, tasks = jobs.rstrip("]").partition("_[")
    if not tasks:
        return [jobs]
    spans = [re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?", span) for span in tasks.partition("%")[0].split(",")]
    numbers = [range(int(s[1]), int(s[2] or s[1]) + 1, int(s[3] or 1)) for s in spans if s]
    return [f"{array}_{number}" for span in numbers for number in span]


# --- what it means for the runs -------------------------------------------------------------------------------------


def verdict(status: dict, job: JobState | None) -> tuple[str, str | None] | None:
    """The state and error that Slurm's answer gives to a run which calls itself queued or running; None for no change.

    Args:
        status: the run's `status.json`.
        job: None when neither Slurm nor its accounting knows the job.
    """
    number = status["owner"]["job"]
    if job is None:
        why = f"Slurm no longer knows job {number}; it ended and left no reason (cancelled, killed or node lost)"
        return "interrupted", why
    if job.state in _STARTED or job.state in _WAITING:
        if any(text in job.reason for text in _NEVER_STARTS):
            return "interrupted", f"Slurm: failed to start ({job.reason}); its job {number} is held: scancel it"
        if job.state in _WAITING and status["state"] == "running":
            return "queued", f"requeued by Slurm ({job.reason})"
        return None
    return "interrupted", _why_ended(status, job)


def _why_ended(status: dict, job: JobState) -> str:
    if job.state in _ENDS:
        where = f" ({job.nodes})" if job.state == "NODE_FAIL" and job.nodes else ""
        return f"Slurm: {_ENDS[job.state]}{where}"
    log = _log_tail(status["owner"].get("log"))
    last = f": {log[-1][:200]}" if log else ""
    if "LaunchFailure" in job.reason and job.exit_code > _LAST_SIGNAL:
        return f"Slurm: failed to start ({job.reason}){last}"
    if job.exit_code == 130:  # the job's own, after an interruption
        return f"Slurm ended its job{last}"
    if job.exit_code > 128:
        memory = any(_MEMORY.search(line) for line in log)
        return f"Slurm: {_OUT_OF_MEMORY if memory else f'killed by signal {job.exit_code - 128}'}"
    if "running" not in status.get("times", {}):
        return f"Slurm: failed to start ({job.reason}, exit code {job.exit_code}){last}"
    return f"Slurm: the job ended as {job.state} (exit code {job.exit_code}){last}"


def _log_tail(path: str | None) -> list[str]:
    """The last lines of a job's own log, if it wrote any."""
    try:
        lines = read_tail(Path(path or ""), 50_000).splitlines()[-50:]
    except (OSError, RunError):
        return []
    return [line.strip() for line in lines if line.strip()]


def refresh(runs: Sequence[Run]) -> None:
    """Ask Slurm once about all runs that are its jobs and read as queued or running; write what only Slurm knows.

    A run whose job Slurm ended becomes `interrupted` with the cause, one whose job it queued again becomes `queued`. When
    Slurm does not answer, nothing is changed and a warning says so.
    """
    statuses = [(run, run.status) for run in runs]
    going = [(r, s) for r, s in statuses if s["state"] in GOING and s["owner"].get("job")]
    if not going:
        return
    try:
        states = ask_slurm({status["owner"]["job"] for _, status in going})
    except RunError as error:
        warnings.warn(f"{error}; runs are shown as last known", stacklevel=2)
        return
    for run, status in going:
        change = verdict(status, states.get(status["owner"]["job"]))
        if change and run.status == status:  # else the job wrote meanwhile, and knows best
            set_status(run.path, *change, owner=status["owner"])


def cancel_job(run: Run) -> None:
    """End the run's job, and no other task of its array.

    Raises:
        RunError: the run has no job, or Slurm does not cancel it.
    """
    job = run.status.get("owner", {}).get("job")
    if not job:
        raise RunError(f"{run.path}: is no Slurm job")
    answer = slurm_command("scancel", job)
    if answer.returncode:
        raise RunError(f"{run.path}: job {job} was not cancelled: {error_summary(answer.stderr)}")
