"""Which GPUs a run gets: named in `CUDA_VISIBLE_DEVICES`, held by locks of this machine, so that no two runs share one."""

import contextlib
import dataclasses
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ...errors import ParameterError, RunError
from ...runs.lock import try_lock

HANDED_OUT = "WORKBENCH_GPUS_HANDED_OUT"
_NO_DRIVER = 9  # nvidia-smi's exit code on a machine without one, as a login node, where torch sees no GPU either
_TRIES, _PAUSE_S, _PATIENCE_S = 3, 2.0, 30.0  # of nvidia-smi, which takes long on a busy node


def visible_gpus() -> list[str]:
    """Names of the GPUs to hand out: those of `CUDA_VISIBLE_DEVICES`, else all that nvidia-smi lists."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name for part in given.split(",") if (name := part.strip()) and name != "-1"]
    return [index for index, _ in _listed("index")]


def _listed(*columns: str) -> list[tuple[str, str]]:
    """The first and last of these columns of nvidia-smi for each GPU; none where there is no nvidia-smi.

    One that fails says nothing about GPUs: a run that took that for "none" would use all of them, also those of other runs.
    """
    command = ["nvidia-smi", f"--query-gpu={','.join(columns)}", "--format=csv,noheader"]
    problem = ""
    for _ in range(_TRIES):
        if problem:
            time.sleep(_PAUSE_S)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
        except FileNotFoundError:
            return []
        except (OSError, subprocess.TimeoutExpired) as error:
            # A folder in PATH that this user may not read gives "permission denied" where there is no such program.
            if not any(os.path.isfile(os.path.join(folder, "nvidia-smi")) for folder in os.get_exec_path()):
                return []
            problem = str(error)
            continue
        if "No devices were found" in done.stdout:
            return []
        if done.returncode == 0:
            return [
                (row[0].strip(), row[-1].strip()) for row in (line.split(", ") for line in done.stdout.splitlines())
            ]
        problem = f"exit code {done.returncode}: {' '.join((done.stdout + done.stderr).split())[:300]}"
    if problem.startswith(f"exit code {_NO_DRIVER}:"):
        return []
    raise RunError(
        f"nvidia-smi failed {_TRIES} times ({problem}), so it is unknown which GPUs there are; name them in "
        "CUDA_VISIBLE_DEVICES, or leave it empty for none"
    )


def _lock_names(names: list[str]) -> dict[str, str]:
    """GPU -> name of its lock: its index, by which other shells may name a GPU that is given as `GPU-<uuid>` here."""
    known = _listed("index", "uuid") if any(name.startswith("GPU-") for name in names) else []
    found = {name: next((index for index, uuid in known if uuid.startswith(name)), name) for name in names}
    return {name: lock.replace("/", "_") for name, lock in found.items()}  # a part of a GPU may be MIG-GPU-<uuid>/1/0


def check_gpus(count: int | None) -> None:
    """Refuse more GPUs for a run than there are."""
    if count is None:
        return
    if count < 0:
        raise ParameterError(f"gpus={count}: expected 0 or more for each run")
    there = visible_gpus()
    if count > len(there):
        shown = f"visible here: {len(there)} ({', '.join(there)})" if there else "none visible here"
        raise ParameterError(
            f"gpus={count}: each run asks for {count}, {shown}; see nvidia-smi and CUDA_VISIBLE_DEVICES, or leave --gpus out"
        )


def describe_gpus(count: int | None) -> str:
    """Return what `hold` would give each run here, in words: `1 for each run, of 0, 1`."""
    there = visible_gpus()
    if not there:
        return "none visible here"
    count = 1 if count is None else count
    return f"{count} for each run, of {', '.join(there)}" if count else f"none, of {', '.join(there)}"


def _lock_folder() -> Path:
    """In the user's cache, which is one for all runs, as TMPDIR is not, and where nobody else can make it beforehand.

    Runs of other users, or in containers with homes of their own, are not seen: give these different `CUDA_VISIBLE_DEVICES`.
    """
    cache = Path(os.environ.get("WORKBENCH_CACHE") or os.path.expanduser("~/.cache/workbench"))
    return cache / "gpus" / socket.gethostname()


@contextlib.contextmanager
def hold(count: int | None, waiting: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """Hold GPUs for one run, for as long as the block lasts; those of a killed process are free again.

    Where the job that a run was submitted as, or the run that starts this one, has them already, nothing is changed.
    """
    if HANDED_OUT in os.environ or not (names := visible_gpus()):
        yield {}
        return
    count = 1 if count is None else count
    locks, folder = _lock_names(names), _lock_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # a home that is read-only
        raise ParameterError(f"{folder}: {error.strerror}; set WORKBENCH_CACHE to a folder for GPU locks") from error
    waits = False
    while True:
        with contextlib.ExitStack() as held:
            taken = []
            for name in names:
                if len(taken) < count:
                    number = os.open(folder / f"{locks[name]}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                    held.callback(os.close, number)  # which frees it, unless another process has it
                    if (free := try_lock(number)) is None:
                        raise ParameterError(
                            f"{folder}: its file system has no locks; set WORKBENCH_CACHE to one that has"
                        )
                    if free:
                        taken.append(name)
            if len(taken) == count:
                yield {"CUDA_VISIBLE_DEVICES": ",".join(taken), HANDED_OUT: "1"}
                return
        if not waits:
            waiting(f"waits for {count} of the GPUs {', '.join(names)}: too many are taken by other runs")
            waits = True
        time.sleep(1)


@dataclasses.dataclass
class LeftOut:
    """The GPUs that a sweep leaves out, `count` for each run: a broken one would fail run after run within seconds.

    A run that fails before its first training step is tried once more, on other GPUs, and the ones where it failed get no
    further run. If it fails before its first step there too, the fault is the run's, and the first ones get runs again.
    """

    count: int | None
    names: set[str] = dataclasses.field(default_factory=set)
    _suspected_by: dict[str, str] = dataclasses.field(default_factory=dict)  # run -> GPUs where it failed

    def environ(self) -> dict[str, str]:
        """This process's environment, in which a run that starts now sees no GPU that is left out."""
        if not self.names:
            return dict(os.environ)
        return os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(self._others())}

    def retries(self, run: str, status: Mapping, trained: bool) -> str:
        """Return what to say of a run that has ended and is to be tried on other GPUs; empty where it is not.

        `trained`: whether a step of a training ended in this execution.
        """
        gpus = status.get("gpus", "")
        early = status["state"] == "failed" and bool(gpus) and not trained
        if before := self._suspected_by.pop(run, ""):
            if early:
                self.names -= set(before.split(","))
            return ""
        if not early or HANDED_OUT in os.environ:
            return ""
        if len(set(self._others()) - set(gpus.split(","))) < (self.count or 1):
            return ""
        self.names |= set(gpus.split(","))
        self._suspected_by[run] = gpus
        return (
            f"failed on GPU {gpus} before its first training step ({status['error']}); tried again on another one. Unless it "
            f"fails there too, GPU {gpus} gets no further run of this sweep"
        )

    def _others(self) -> list[str]:
        return [name for name in visible_gpus() if name not in self.names]
