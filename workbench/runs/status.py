"""What state a run is in, and whether the process that answers for it still lives."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from ..errors import ParameterError
from .files import read_json, write_json
from .tokens import hide_tokens

STATES = ("queued", "running", "done", "failed", "interrupted")

# --- status --------------------------------------------------------------------------------------------------------


def set_status(path: Path, state: str, error: str | None = None, owner: Mapping | None = None) -> dict:
    """Write `status.json` with the time of each state so far.

    Args:
        path: the run folder.
        state: one of `STATES`.
        error: why, in a line.
        owner: who answers for the run; default this process, and the Slurm job it is when that was submitted for the run.
    """
    if state not in STATES:
        raise ParameterError(f"state={state!r}: expected one of {', '.join(STATES)}")
    before = read_json(path / "status.json", {})
    if owner is None:
        owner = {"pid": os.getpid(), "started": _start_time(os.getpid()), "host": socket.gethostname()}
        submitted = before.get("owner", {})
        if submitted.get("job") and submitted["job"] == slurm_job():
            owner |= {"job": submitted["job"], "log": submitted.get("log")}
    times = before.get("times", {}) | {state: time.time()}
    status = {"state": state, "error": error and hide_tokens(error), "owner": dict(owner), "times": times}
    write_json(path / "status.json", status)
    return status


def slurm_job() -> str | None:
    """Id of the Slurm job that this process belongs to, `123` or for a task of an array `123_4`."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def owner_lives(owner: Mapping) -> bool:
    if owner.get("job"):
        return True  # Slurm knows: batch.slurm.refresh asks it
    if owner.get("host") != socket.gethostname():
        return True  # another machine's process cannot be seen from here
    started = _start_time(owner.get("pid", -1))
    return started is not None and started == owner.get("started")


def _start_time(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot: tells a process from a later one with the same id."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
