"""What state a run is in, and whether the process that answers for it still lives."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from ..errors import ParameterError
from .files import read_json, write_json
from .tokens import hide_tokens

STATES = ("queued", "running", "done", "failed", "interrupted")
_CLOCK_SLACK = 2.0  # seconds that the system's boot time, and so each start time, may shift between two readings


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


def owns(path: Path) -> bool:
    """Whether this process is the owner of the run in a folder."""
    return read_json(path / "status.json", {}).get("owner", {}).get("pid") == os.getpid()


def owner_lives(owner: Mapping) -> bool:
    """Whether the process that owns a run still lives; what cannot be seen from this machine counts as alive.

    Args:
        owner: of `status.json`: `pid`, `started` and `host`, and `job` for a Slurm job. `started` is the start time of the
            process in seconds since 1970, which tells it from a later process with the same id; older files hold it as
            text, in clock ticks since the boot.
    """
    if owner.get("job"):
        return True  # Slurm knows: batch.slurm_state.refresh asks it
    if owner.get("host") != socket.gethostname():
        return True
    recorded, started = owner.get("started"), _start_time(owner.get("pid", 0))
    if recorded is None or started is None:
        return False
    if isinstance(recorded, str):
        recorded = psutil.boot_time() + int(recorded) / os.sysconf("SC_CLK_TCK")
    return abs(started - recorded) <= _CLOCK_SLACK


def _start_time(pid: int) -> float | None:
    """Seconds since 1970; None for a process that is gone, or a zombie."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None
