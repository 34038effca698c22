"""What Slurm says about jobs, with or without accounting, what it means for their runs, and cancelling."""

import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

from ...errors import RunError, warn_user
from ...runs.files import read_tail
from ...runs.run import GOING, Run, set_status

_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_STARTED = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
_SAYS_ALL = ("CANCELLED", "TIMEOUT", "PREEMPTED", "OUT_OF_MEMORY", "NODE_FAIL")
ENDED_BY_SLURM = "Slurm ended its job"  # what a run says until Slurm has said why
_NEVER_STARTS = ("launch failed", "DependencyNeverSatisfied")
_OF_A_JOB = re.compile(r"SLURM_(ARRAY|JOB|STEP|TASK|PROC|LOCAL|NODE|N(TASKS|PROCS|NODES|PRIO)|CPU|MEM|GPU|RESTART)")


@dataclasses.dataclass(frozen=True)
class JobState:
    """What Slurm says about a job, in its own words."""

    state: str
    reason: str = ""
    nodes: str = ""


# --- Slurm's commands -----------------------------------------------------------------------------------------------


def slurm_command(*command: str, stdin: str | None = None, timeout: float = 60) -> subprocess.CompletedProcess:
    """Run one of Slurm's commands; what cannot be run, or hangs for `timeout` seconds, reads as one that failed."""
    # What is submitted from within a job does not inherit that job's own description.
    env = {name: value for name, value in os.environ.items() if not _OF_A_JOB.match(name)}
    if command[0] != "sbatch":  # it hands its environment on to the jobs
        env |= {
            "SLURM_BITSTR_LEN": "0",  # every task of an array, not the first few and dots
            "SLURM_TIME_FORMAT": "%s",  # seconds since the epoch
        }
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, input=stdin, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def slurm_config() -> dict[str, str]:
    """The cluster's settings, such as `ClusterName` and `MaxArraySize`; empty when Slurm does not answer."""
    return dict(re.findall(r"^(\w+)\s*= (\S+)", slurm_command("scontrol", "show", "config").stdout, re.M))


def error_summary(text: str) -> str:
    """The errors that one of Slurm's commands printed, in one line, each once.

    Example:
        >>> error_summary("sbatch: error: invalid partition: x\\nsbatch: error: Batch job submission failed\\n")
        'invalid partition: x; Batch job submission failed'
    """
    lines = [re.sub(r"^(s\w+: )?(error: |fatal: )?", "", line.strip()) for line in text.splitlines()]
    return "; ".join(dict.fromkeys(filter(None, lines))) or "no reason given"


def ask_slurm(jobs: Collection[str]) -> dict[str, JobState]:
    """The state of each job that Slurm knows: minutes after a job's end from its accounting, if there is any."""
    ids = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    columns = "--format=%i|%T|%r|%N"
    answer = slurm_command("squeue", "--noheader", "--array", "--states=all", f"--jobs={ids}", columns)
    if answer.returncode and "Invalid job id" not in answer.stderr:
        raise RunError(f"Slurm does not answer: {error_summary(answer.stderr)}")
    states = read_states(answer.stdout)
    if any(job not in states for job in jobs) and shutil.which("sacct"):
        columns = "--format=JobID,State,Reason,NodeList"
        answer = slurm_command("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={ids}", columns)
        states = read_states(answer.stdout) | states
    return states


def read_states(text: str) -> dict[str, JobState]:
    """Return what squeue and sacct say of jobs: number, state, reason and nodes between bars.

    Example:
        >>> read_states("9_1|FAILED|NonZeroExitCode|n1")
        {'9_1': JobState(state='FAILED', reason='NonZeroExitCode', nodes='n1')}
    """
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
    return {job: JobState(state.partition(" ")[0], reason, nodes) for job, state, reason, nodes in rows}


# --- what it means for the runs -------------------------------------------------------------------------------------


def verdict(status: dict, job: JobState | None) -> tuple[str, str | None] | None:
    """The state and error that Slurm's answer gives to a run which calls itself queued or running; None for no change."""
    number = status["owner"]["job"]
    if job is None:
        why = f"Slurm no longer knows job {number}; it ended and left no reason (cancelled, killed or node lost)"
        return "interrupted", why
    if job.state in _STARTED or job.state in _WAITING:
        if any(text in job.reason for text in _NEVER_STARTS):
            return "interrupted", f"Slurm: failed to start ({job.reason}); its job {number} is held: scancel it"
        if job.state in _WAITING and status["state"] == "running":
            return "queued", f"requeued by Slurm ({job.reason})"
        if job.state in _WAITING and (status.get("error") or "").startswith(ENDED_BY_SLURM):
            return (
                "queued",
                f"requeued by Slurm ({job.reason}), which had ended its job: the node is down, or was taken away",
            )
        return None
    return "interrupted", _why_ended(status, job)


def _why_ended(status: dict, job: JobState) -> str:
    """Slurm's words for it, and the last line of the job's own log."""
    reason = f" ({job.reason})" if job.reason not in ("", "None", "(null)") else ""
    node = f" of {job.nodes}" if job.state == "NODE_FAIL" and job.nodes else ""
    advice = "; give more with --mem" if job.state == "OUT_OF_MEMORY" else ""
    last = "" if job.state in _SAYS_ALL else _last_line(status["owner"].get("log"))
    return f"Slurm: {job.state}{node}{reason}{advice}" + (f": {last[:200]}" if last else "")


def _last_line(path: str | None) -> str:
    """The last line of a job's own log, if it wrote any; of one that used too much memory Slurm's line about that."""
    try:
        lines = read_tail(Path(path or ""), 50_000).strip().split("\n")
        return ([line for line in lines if "exceeded" in line and "memory limit" in line] or lines)[-1].strip()
    except (OSError, RunError):
        return ""


def refresh(runs: Sequence[Run]) -> None:
    """Ask Slurm once about all runs that are its jobs and read as queued or running; write what only Slurm knows.

    A run whose job Slurm ended becomes `interrupted` with the cause, one whose job it queued again becomes `queued`. When
    Slurm does not answer, nothing is changed and a warning says so.

    Raises:
        OSError: of a run whose folder cannot be written, when the others are done.
    """
    statuses = [(run, run.status) for run in runs]
    going = [(r, s) for r, s in statuses if s["state"] in GOING and s["owner"].get("job")]
    here = slurm_config().get("ClusterName") if going else None
    for run, status in list(going):
        there = status["owner"].get("cluster")  # None where Slurm did not say as the run was submitted
        if not here or not there or there == here:
            continue
        going.remove((run, status))
        warn_user(f"{run.path}: is a job of cluster {there}, this is {here}; shown as last known")
    if not going:
        return
    try:
        states = ask_slurm({status["owner"]["job"] for _, status in going})
    except RunError as error:
        warn_user(f"{error}; runs are shown as last known")
        return
    unwritten = None
    for run, status in going:
        change = verdict(status, states.get(status["owner"]["job"]))
        if change and run.status == status:  # else the job wrote meanwhile, and knows best
            try:
                set_status(run.path, *change, owner=status["owner"])
            except OSError as error:
                unwritten = unwritten or error
    if unwritten:
        raise unwritten


def cancel_job(run: Run) -> None:
    """End the run's job, and no other task of its array."""
    job = run.status.get("owner", {}).get("job")
    if not job:
        raise RunError(f"{run.path}: is no Slurm job")
    log = run.status["owner"].get("log")
    told = slurm_command("scontrol", "show", "job", "--oneliner", job).stdout
    if (
        not log or f"StdErr={Path(log).parent}/" not in told
    ):  # of that number on another cluster, or of another's folder
        raise RunError(f"{run.path}: Slurm's job {job} here does not write into {log}; it is left alone")
    answer = slurm_command("scancel", job)
    if answer.returncode:
        raise RunError(f"{run.path}: job {job} was not cancelled: {error_summary(answer.stderr)}")
