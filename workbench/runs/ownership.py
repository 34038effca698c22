"""A run has one owner at a time: taking a run, keeping it, and noticing that another process has taken it.

Whoever executes a run writes a fresh `token` into `status.json`, under a lock. While it works it shows its life by touching
`heartbeat`. An owner that was taken for dead and only slept finds another token there and ends itself.
"""

import contextlib
import os
import signal
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from ..errors import RunError
from .files import read_json, remove_unfinished
from .owner import HEARTBEAT_S, beat, is_this_process, owner_lives, this_process
from .status import GOING, ended_here, set_status

TOKEN_VARIABLE = "WORKBENCH_RUN_TOKEN"  # a kernel that a runner starts works for the runner


def take_run(folder: Path, state: str, *, token: str = "", force: bool = False, not_if_done: bool = False) -> str:
    """Become the owner of a run, all at once: of two processes that try, one gets it.

    Args:
        folder: of the run.
        state: that it is in then, `queued` or `running`.
        token: of a process that hands the run on, as a sweep does to the process of each run.
        force: take it from an owner that lives, too. That one ends itself when it notices, within `HEARTBEAT_S`.
        not_if_done: refuse a run that is done: whoever wants to go on with it was too late.

    Returns:
        The token to keep it by.

    Raises:
        RunError: another process owns it, or it is done; it says who has it and what to do.
    """
    with locked(folder):
        status = read_json(folder / "status.json", {})
        owner = status.get("owner", {})
        handed_on = bool(token) and owner.get("token") == token
        if token and not handed_on:
            raise RunError(f"{folder}: another process has taken this run: {describe_owner(status)}")
        if not_if_done and status.get("state") == "done":
            raise RunError(f"{folder}: is done; {describe_owner(status)} has run it meanwhile")
        goes_on = status.get("state") in GOING
        mine = goes_on and not force and is_this_process(owner)
        if goes_on and not (handed_on or mine or force) and owner_lives(owner, folder):
            raise RunError(
                f"{folder}: is {status['state']}, owned by {describe_owner(status)}; cancel it, or use --force"
            )
        token = owner.get("token", "") if handed_on or mine else ""
        token = token or uuid.uuid4().hex
        set_status(folder, state, owner=this_process() | {"token": token})
        beat(folder)
    remove_unfinished(folder)
    return token


def describe_owner(status: dict) -> str:
    """Who owns a run, in words: `process 12 on host a`, or `job 7`."""
    owner = status.get("owner", {})
    return f"job {owner['job']}" if owner.get("job") else f"process {owner.get('pid')} on host {owner.get('host')}"


def still_owned(folder: Path, token: str) -> bool:
    """Whether the run still belongs to whoever has this token."""
    return read_json(folder / "status.json", {}).get("owner", {}).get("token") == token


def update_run(folder: Path, token: str, state: str, error: str | None = None) -> None:
    """Write the state of a run that this process, or the one that it works for, owns.

    Raises:
        RunError: it does not any more; nothing is written.
    """
    with locked(folder):
        if not still_owned(folder, token):
            status = read_json(folder / "status.json", {})
            raise RunError(
                f"{folder}: another process has taken this run ({describe_owner(status)}); nothing was recorded"
            )
        set_status(folder, state, error)


def taken_away(folder: Path) -> bool:
    """Whether this process works for a runner that has lost the run: told by the token the runner gave it."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    return bool(token) and (folder / "status.json").is_file() and not still_owned(folder, token)


@contextlib.contextmanager
def kept(folder: Path, token: str) -> Iterator[None]:
    """While open, show life; when another process has taken the run, raise KeyboardInterrupt in the main thread."""
    over = threading.Event()
    _start_heart(folder, token, over)
    try:
        yield
    finally:
        over.set()


def keep(folder: Path, token: str) -> None:
    """As `kept`, until the run ends: for a notebook's kernel, which no runner started."""
    _start_heart(folder, token, threading.Event())


def _start_heart(folder: Path, token: str, over: threading.Event) -> None:
    name = f"heartbeat of {folder}"
    threading.Thread(target=_beat_until, args=(folder, token, over), daemon=True, name=name).start()


def _beat_until(folder: Path, token: str, over: threading.Event) -> None:
    while not over.wait(HEARTBEAT_S):
        with contextlib.suppress(OSError):  # a disk that is full or away for a while
            status = read_json(folder / "status.json", {})
            owner = status.get("owner", {})
            lost = owner.get("token") not in (None, token)  # None: the folder was removed
            if lost and not is_this_process(owner) and not ended_here(token):
                print(f"{folder}: another process has taken this run ({describe_owner(status)})", flush=True)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if owner.get("token") != token or status["state"] not in GOING:
                return
            beat(folder)


def locked(folder: Path):
    """A lock of the file system, free again when its process dies; held only while an owner is written."""
    from filelock import FileLock

    return FileLock(folder / "owner.lock", timeout=30)
