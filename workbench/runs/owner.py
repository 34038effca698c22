"""Who a process is, on any host, and whether the one that owns a run still lives."""

import functools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

HEARTBEAT_S = 15.0
PATIENCE_S = 600.0  # without a sign of life an owner that cannot be looked at counts as gone
_SLACK_S = 2.0  # that a start time may differ between two readings
_FILE = "heartbeat"


def this_process() -> dict:
    """This process as `status.json` names an owner: `pid`, `started` (seconds after the boot), `host`, `boot`."""
    pid = os.getpid()
    return {"pid": pid, "started": _started(pid), "host": socket.gethostname(), "boot": boot()}


@functools.cache
def boot() -> str:
    """What all processes that can see each other share: the machine's boot, and in a container its own process numbers."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{booted} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no Linux
        return f"{socket.gethostname()} {psutil.boot_time():.0f}"


def is_this_process(owner: Mapping) -> bool:
    """Whether an owner of `status.json` is the process that asks."""
    return (owner.get("pid"), owner.get("boot")) == (os.getpid(), boot())


def owner_lives(owner: Mapping, folder: Path | None = None) -> bool:
    """Whether the process that owns a run still lives.

    A process of this boot is looked at. Any other shows its life by touching `heartbeat` in the run's folder: it is gone when
    that, and `status.json`, are older than `PATIENCE_S`. Slurm's jobs count as alive: `batch.slurm_state.refresh` asks Slurm.

    Args:
        owner: of `status.json`; without `boot` in files of older versions.
        folder: of the run; None leaves the heartbeat out, and what cannot be seen from here counts as alive.
    """
    if owner.get("job"):
        return True
    if owner.get("boot") == boot():
        return _is_running(owner.get("pid"), owner.get("started"))
    if owner.get("boot"):
        return folder is None or _silence(folder) < PATIENCE_S
    return owner.get("host") != socket.gethostname() or _ran_here(owner)


def works_in(process: psutil.Process, folder: Path) -> bool:
    """Whether a process is this user's and has a file of the run open, as whoever executes a run has its log.

    Only such a process may be ended for the run: a folder that came from elsewhere can name any.

    Raises:
        psutil.Error: the process is gone, or another user's.
    """
    inside = (Path(f.path).is_relative_to(folder) for f in process.open_files())
    return process.uids().real == os.getuid() and any(inside)


def beat(folder: Path) -> None:
    """One sign of life."""
    path = folder / _FILE
    path.touch()
    os.utime(path)


def _silence(folder: Path) -> float:
    """Seconds since the owner last showed its life; infinite where it never did."""
    seen = [p.stat().st_mtime for p in (folder / _FILE, folder / "status.json") if p.is_file()]
    return time.time() - max(seen, default=-float("inf"))


def _is_running(pid: object, started: object) -> bool:
    if not isinstance(pid, int) or not isinstance(started, int | float):
        return False
    now = _started(pid)
    return now is not None and abs(now - started) <= _SLACK_S


def _ran_here(owner: Mapping) -> bool:
    """The same for files of older versions: `started` is seconds since 1970, or as text clock ticks since the boot."""
    pid, recorded = owner.get("pid"), owner.get("started")
    if isinstance(recorded, str) and recorded.isdigit():
        return _is_running(pid, int(recorded) / os.sysconf("SC_CLK_TCK"))
    return isinstance(recorded, float) and _is_running(pid, recorded - psutil.boot_time())


def _started(pid: int) -> float | None:
    """Seconds after the boot, which no setting of the clock moves; None for a process that is gone, or a zombie."""
    try:
        booted = psutil.boot_time()  # first: the start time below is computed from the same reading
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time() - booted
    except (psutil.Error, ValueError, OverflowError):
        return None
