"""One process executes a run at a time: it holds the lock of the run's folder, `run.lock`, for the run's life.

The system frees a lock when the last process that has it open is gone, however that ended. So on one host a run is alive when,
and only when, its lock is held. The open lock is handed on: by a sweep to the process of each run, and by that process to its
notebook's kernel, so that a kernel that outlives its runner for a moment still keeps others away.
"""

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import RunError

VARIABLE = "WORKBENCH_RUN_LOCK"  # in a kernel that a runner started: the number of the open lock
# A kernel runs this at its start, also one of a Python without the workbench: whatever its notebook starts or forks, and
# leaves behind, does not keep the lock. In a process forked from a forked one the number may be another file's.
KEEP_LOCK = f"""\
import os
def close():
    try:
        os.path.samestat(lock, os.fstat(number)) and os.close(number)
    except OSError:
        pass
try:
    number = int(os.environ[{VARIABLE!r}])
    lock = os.fstat(number)
    os.set_inheritable(number, False)
    os.register_at_fork(after_in_child=close)
except (KeyError, ValueError, OSError):
    pass
"""
LOCK = "run.lock"
_MADE = "run.lock.made"  # stands for the lock of a folder where there are no locks
_WAIT_S = 2.0  # a reader holds the lock for an instant while it looks
_held: dict[str, int] = {}  # folder -> number of the open lock
_trains: dict[str, int] = {}  # folder -> thread of this process that trains in it


def hold(folder: Path, wait: float = _WAIT_S) -> bool | None:
    """Hold the lock of a run until this process ends or lets go."""
    if holds(folder):
        return True
    number, end = _open(folder), time.monotonic() + wait
    while (taken := try_lock(number)) is False and time.monotonic() < end:
        time.sleep(0.05)
    if taken is not False:
        _held[os.path.realpath(folder)] = number
    else:
        os.close(number)
    return taken


def holds(folder: Path) -> bool:
    """Say whether this process holds the lock of a run."""
    return os.path.realpath(folder) in _held


def let_go(folder: Path) -> None:
    """Close the lock, which frees it unless it was handed on."""
    if (number := _held.pop(os.path.realpath(folder), None)) is not None:
        os.close(number)


def open_lock(folder: Path) -> int:
    """The number of the open lock, to hand on; this process holds it."""
    return _held[os.path.realpath(folder)]


def adopt(folder: Path, number: int) -> None:
    """Hold the lock that another process has handed on as the open file `number`."""
    os.set_inheritable(number, False)
    _held[os.path.realpath(folder)] = number


def works_for_runner(folder: Path) -> bool:
    """Say whether this process is the kernel of a runner that holds the lock of this run."""
    try:
        number = int(os.environ[VARIABLE])
        return os.path.samestat(os.fstat(number), os.stat(folder / LOCK))
    except (KeyError, ValueError, OSError):
        return False


@contextlib.contextmanager
def alone_in(folder: Path, wait: float = 30.0) -> Iterator[None]:
    """Hold the lock of a folder, made where it is absent, for as long as the block lasts; `wait` is in seconds.

    Raises:
        RunError: another process has held it all that time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if holds(folder):
        yield
        return
    taken = hold(folder, wait)
    if taken is False:
        raise RunError(
            f"{folder}: another process has held its {LOCK} for {wait:.0f} s, perhaps a sweep of this notebook that submits "
            "jobs or was stopped; try again when that has ended"
        )
    try:
        with contextlib.nullcontext() if taken else _alone_by(folder / _MADE, wait):
            yield
    finally:
        let_go(folder)


@contextlib.contextmanager
def _alone_by(path: Path, wait: float) -> Iterator[None]:
    """Be the process that has made a file, which one at a time can, and remove it at the end."""
    end = time.monotonic() + wait
    while True:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            break
        except FileExistsError:
            if time.monotonic() > end:
                raise RunError(
                    f"{path}: this file has been there for {wait:.0f} s. A sweep of this notebook makes it, and removes it at "
                    "its end; if no sweep runs, one was killed: remove that file"
                ) from None
        time.sleep(0.05)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def only_training(folder: Path) -> Iterator[None]:
    """Be the only thread of this process that trains in a folder, for as long as the block lasts.

    The lock of a run keeps other processes away, and not a second training of the process that holds it.
    """
    place, me = os.path.realpath(folder), threading.get_ident()
    outer = _trains.get(place) == me
    if _trains.setdefault(place, me) != me:
        raise RunError(f"{folder}: another training of this process writes there; stop it, or name another folder")
    try:
        yield
    finally:
        if not outer:
            del _trains[place]


def trains(folder: Path) -> bool:
    """Say whether a thread of this process trains in a folder."""
    return os.path.realpath(folder) in _trains


def trains_below(folder: Path) -> bool:
    """Say whether a thread of this process trains in a folder or in one below it."""
    return any(Path(place).is_relative_to(os.path.realpath(folder)) for place in _trains)


@contextlib.contextmanager
def looked_at(folder: Path) -> Iterator[bool | None]:
    """Say whether a run's lock is free, in which case it is held for as long as the block lasts; None where that is unknown."""
    number = None
    try:
        try:
            number = _open(folder)
            free = try_lock(number)
        except FileNotFoundError:
            free = True
        except OSError:  # where the folder can be looked into and has no lock, nobody held it
            free = None if os.path.lexists(folder / LOCK) or not os.access(folder, os.X_OK) else True
        yield free
    finally:
        if number is not None:
            os.close(number)


def _open(folder: Path) -> int:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT):
            raise
        if not os.path.lexists(folder / LOCK):
            raise
        return os.open(folder / LOCK, os.O_RDONLY | flags)


def try_lock(number: int) -> bool | None:
    """Lock an open file: True, False where another process has it, None where this file system has no locks."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # ENOTSUP, ENOSYS, ENOLCK: no locks here
        return None
    return True


def _close_in_child() -> None:
    """A forked process, such as one that loads data, would keep the lock after the run's own is gone."""
    _trains.clear()
    while _held:
        os.close(_held.popitem()[1])


os.register_at_fork(after_in_child=_close_in_child)
