"""What state a run is in, and who answers for it."""

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from ..errors import ParameterError
from .files import read_json, write_json
from .owner import is_this_process, this_process
from .shapes import STATES
from .tokens import hide_tokens

GOING = ("queued", "running")
_ended_here: set[str] = (
    set()
)  # tokens of runs whose end this process wrote: whoever takes such a run takes nothing away


def set_status(path: Path, state: str, error: str | None = None, owner: Mapping | None = None) -> dict:
    """Write `status.json` with the time of each state so far.

    Args:
        path: the run folder.
        state: one of `STATES`.
        error: why, in a line.
        owner: who answers for the run; default this process, and the Slurm job it is when that was submitted for the run.
            One without a `token` keeps that of the owner before.
    """
    if state not in STATES:
        raise ParameterError(f"state={state!r}: expected one of {', '.join(STATES)}")
    before = read_json(path / "status.json", {})
    submitted = before.get("owner", {})
    owner = dict(owner or this_process())
    owner.setdefault("token", submitted.get("token") or uuid.uuid4().hex)
    if "job" not in owner and submitted.get("job") and submitted["job"] == slurm_job():
        owner |= {"job": submitted["job"], "log": submitted.get("log")}
    times = before.get("times", {}) | {state: time.time()}
    status = {"state": state, "error": error and hide_tokens(error), "owner": owner, "times": times}
    write_json(path / "status.json", status)
    if state not in GOING:
        _ended_here.add(owner["token"])
    return status


def ended_here(token: str) -> bool:
    """Whether this process has written the end of the run with this token."""
    return token in _ended_here


def slurm_job() -> str | None:
    """Id of the Slurm job that this process belongs to, `123` or for a task of an array `123_4`."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def owns(path: Path) -> bool:
    """Whether this process is the owner of the run in a folder."""
    return is_this_process(read_json(path / "status.json", {}).get("owner", {}))
