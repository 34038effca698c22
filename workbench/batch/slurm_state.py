"""What Slurm says of jobs, with or without accounting, and what that means for their runs."""

import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from ..errors import RunError

_STARTED = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
_NEVER_STARTS = ("launch failed", "DependencyNeverSatisfied")
_ENDS = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "time limit",
    "PREEMPTED": "preempted",
    "OUT_OF_MEMORY": "out of memory; give more with --mem",
    "NODE_FAIL": "node lost",
    "BOOT_FAIL": "the node did not boot",
    "DEADLINE": "deadline passed",
    "REVOKED": "revoked",
}
_LAST_SIGNAL = 128 + 31  # above it, the exit code of a job that a signal ended is an error number of Slurm's
_MEMORY = re.compile(r"oom.kill|exceeded memory limit|out of memory", re.IGNORECASE)
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")


@dataclasses.dataclass(frozen=True)
class Word:
    """What Slurm says of a job: state, reason, exit code (above 128: killed by a signal), nodes."""

    state: str
    reason: str = ""
    exit_code: int = 0
    nodes: str = ""


def verdict(status: dict, word: Word | None) -> tuple[str, str | None] | None:
    """The state and error that a run going by its own word has by Slurm's, or None where they agree.

    Args:
        status: the run's `status.json`.
        word: None when neither Slurm nor its accounting knows the job.
    """
    if word is None:
        job = status["owner"]["job"]
        return (
            "interrupted",
            f"Slurm no longer knows job {job}; it ended without a word (cancelled, killed or node lost)",
        )
    if word.state in _STARTED or word.state in _WAITING:
        return _living(status, word)
    if word.state in _ENDS:
        where = f" ({word.nodes})" if word.state == "NODE_FAIL" and word.nodes else ""
        return "interrupted", f"Slurm: {_ENDS[word.state]}{where}"
    log = _log_tail(status["owner"].get("log"))
    last = f": {log[-1][:200]}" if log else ""
    if "LaunchFailure" in word.reason and word.exit_code > _LAST_SIGNAL:
        return "interrupted", f"Slurm: failed to start ({word.reason}){last}"
    if word.exit_code == 130:  # the job's own, after an interruption
        return "interrupted", f"Slurm ended its job{last}"
    if word.exit_code > 128:
        memory = any(_MEMORY.search(line) for line in log)
        return (
            "interrupted",
            f"Slurm: {_ENDS['OUT_OF_MEMORY'] if memory else f'killed by signal {word.exit_code - 128}'}",
        )
    if "running" not in status.get("times", {}):
        return "interrupted", f"Slurm: failed to start ({word.reason}, exit code {word.exit_code}){last}"
    return "interrupted", f"Slurm: the job ended as {word.state} (exit code {word.exit_code}){last}"


def _living(status: dict, word: Word) -> tuple[str, str | None] | None:
    if any(text in word.reason for text in _NEVER_STARTS):
        return (
            "interrupted",
            f"Slurm: failed to start ({word.reason}); its job {status['owner']['job']} is held: scancel it",
        )
    if word.state in _STARTED:
        return None
    if status["state"] == "running":
        return "queued", f"requeued by Slurm ({word.reason})"
    return None


def ask_slurm(jobs: Collection[str]) -> dict[str, Word]:
    """What Slurm says of each job it knows, from its memory (minutes after the end), else from accounting if there is any.

    Raises:
        RunError: Slurm does not answer.
    """
    ids = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    fields = "JobArrayID:40,State:40,Reason:80,exit_code:20,NodeList:200"
    answer = slurm_command("squeue", "--noheader", "--array", "--states=all", f"--jobs={ids}", f"--Format={fields}")
    if answer.returncode and "Invalid job id" not in answer.stderr:
        raise RunError(f"Slurm does not answer: {words(answer.stderr)}")
    told = read_squeue(answer.stdout)
    if any(job not in told for job in jobs) and shutil.which("sacct"):
        columns = "--format=JobID,State,ExitCode,Reason,NodeList"
        answer = slurm_command("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={ids}", columns)
        told = read_sacct(answer.stdout) | told
    return told


def read_squeue(text: str) -> dict[str, Word]:
    """squeue's fixed columns; its exit code is a wait status, or an error number of Slurm's for what never started."""
    told = {}
    for line in text.splitlines():
        job, state, reason, code, nodes = (
            line[a:b].strip() for a, b in ((0, 40), (40, 80), (80, 160), (160, 180), (180, 380))
        )
        status = int(code) if code.isdigit() else 0
        exit_code = 128 + (status & 127) if status & 127 else status >> 8
        told[job] = Word(state, reason, exit_code, nodes)
    return told


def read_sacct(text: str) -> dict[str, Word]:
    """sacct's columns between bars: `CANCELLED by 1000`, exit codes as `code:signal`, tasks that never ran in one line."""
    told = {}
    for line in text.splitlines():
        if line.count("|") == 4:
            jobs, state, code, reason, nodes = line.split("|")
            number, _, killed = code.partition(":")
            exit_code = 128 + int(killed) if killed not in ("", "0") else int(number or 0)
            if 2 <= exit_code < 32:  # sacct takes 128 off: our jobs exit with 0, 1 or 128 + a signal
                exit_code += 128
            if exit_code > _LAST_SIGNAL:
                reason = "JobLaunchFailure"  # as squeue has it
            told |= dict.fromkeys(_tasks(jobs), Word(state.partition(" ")[0], reason, exit_code, nodes))
    return told


def _tasks(jobs: str) -> list[str]:
    """Each job of `9`, `9_1` or `9_[0,2-8:2%3]`."""
    array, _, tasks = jobs.rstrip("]").partition("_[")
    if not tasks:
        return [jobs]
    spans = [re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?", span) for span in tasks.partition("%")[0].split(",")]
    numbers = [range(int(s[1]), int(s[2] or s[1]) + 1, int(s[3] or 1)) for s in spans if s]
    return [f"{array}_{number}" for span in numbers for number in span]


def _log_tail(path: str | None) -> list[str]:
    """The last lines of a job's own log, if it wrote any."""
    try:
        lines = Path(path or "").read_text(errors="backslashreplace").splitlines()[-50:]
    except OSError:
        return []
    return [line.strip() for line in lines if line.strip()]


# --- Slurm's commands -------------------------------------------------------------------------------------------


def slurm_command(*command: str, stdin: str | None = None) -> subprocess.CompletedProcess:
    """One of Slurm's commands; what cannot be run, or hangs for a minute, reads as one that failed."""
    env = os.environ | {"SLURM_BITSTR_LEN": "0"}  # every task of an array, not the first few and dots
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, input=stdin, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def words(text: str) -> str:
    """What a command of Slurm's complained of, in a line."""
    lines = [re.sub(r"^(s\w+: )?(error: |fatal: )?", "", line.strip()) for line in text.splitlines()]
    return "; ".join(dict.fromkeys(filter(None, lines))) or "no reason given"
