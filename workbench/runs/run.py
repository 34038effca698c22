"""A run is a folder: what was asked, where it ran, what it did, what came out.

    params.json  env.json  status.json  progress.json  metrics.jsonl  completions.jsonl  checkpoints/  result.json
    audit.json

Files are written under a temporary name and renamed, or appended to line by line, so a reader never sees half of one. The
process that executes a run holds its lock (`lock.py`). A run that calls itself running while its lock is free reads as
`interrupted`.
"""

import contextlib
import dataclasses
import errno
import functools
import os
import re
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from ..errors import ParameterError, RunError, warn_user
from ..extras import packaged
from . import lock
from .completions import read_completions
from .environment import environment, package_versions
from .files import (
    STATES,
    append_plain,
    append_rows,
    check_links,
    files_named,
    is_temporary,
    json_lines,
    jsonable,
    load_metrics,
    read_json,
    read_tail,
    remove_unfinished,
    write_json,
    write_over,
)
from .parameters import check_notebook_name, check_parameters, notebook_parameters
from .secrets import hide_tokens, map_text
from .tables import show_text_left

GOING = ("queued", "running")
EMBEDDED_MODELS = ("starter", "starter-gpt2", "search")  # built on this machine, no download
_ID = r"\d{8}-\d{6}(-\d+)?"


@dataclasses.dataclass(frozen=True)
class Run:
    """One run folder. Properties read the disk on each access, so they follow a run that is still going."""

    path: Path

    @property
    def notebook(self) -> str:
        return self.path.parent.name

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def toy(self) -> bool:
        """Whether the run used an embedded model: it supports a mechanism, never a number about a real model."""
        return self.params.get("model") in EMBEDDED_MODELS

    @property
    def params(self) -> dict:
        return read_json(self.path / "params.json", {})

    @property
    def env(self) -> dict:
        return read_json(self.path / "env.json", {})

    @property
    def result(self) -> dict:
        """`headline`, `results`, `numbers` as saved by the notebook's last cell; empty before. `results_of` reads it."""
        return read_json(self.path / "result.json", {})

    @property
    def audit(self) -> dict:
        """`trainings` and `error`, as the runner wrote them when the run ended; empty if it did not. `RunFindings` reads it."""
        return read_json(self.path / "audit.json", {})

    @property
    def status(self) -> dict:
        """`status.json`; a `queued` or `running` one that nobody executes any more reads as `interrupted`, and is rewritten so.

        Of a Slurm job Slurm is asked (`batch.slurm_state`). What another host executes, or what lies on a file system without
        locks, cannot be checked from here: it stays as it is, and `error` says so.
        """
        status = recorded_status(self.path)
        if status["state"] not in GOING or status["owner"].get("job") or lock.holds(self.path):
            return status
        with lock.looked_at(self.path) as free:
            if free is False:
                return status
            if unknown := what_is_unknown(status, locks=free is not None):
                return status | {"error": unknown, "unknown": unknown}
            status = recorded_status(self.path)  # again: whoever held the lock may have written its end
            if status["state"] in GOING and not status["owner"].get("job"):
                gone = "the process that ran it is gone (killed, or its kernel or machine restarted)"
                status |= {"state": "interrupted", "error": gone}
                with contextlib.suppress(OSError):  # a full or read-only disk is no reason not to tell
                    wrote = [
                        path for path in self.path.iterdir() if path.name != lock.LOCK
                    ]  # which may be made just now
                    last = max(path.lstat().st_mtime for path in wrote)
                    return set_status(self.path, "interrupted", gone, owner=status["owner"], when=last)
        return status

    @property
    def executions(self) -> list[dict]:
        """Each execution by a runner, oldest first: `time`, `notebook` (its path, code, kernel and cwd), `environment`."""
        try:
            rows = [row for _, row in json_lines(self.path / "executions.jsonl", [])]
        except FileNotFoundError:
            return []
        return [row for row in rows if all(isinstance(row.get(key), dict) for key in ("notebook", "environment"))]

    @property
    def shipped(self) -> bool:
        """Whether the notebook that was executed last is one of the library's own."""
        path = Path(str(self.executions[-1]["notebook"].get("path", ""))) if self.executions else Path()
        return path.parent == packaged("notebooks").resolve()

    @property
    def metrics(self):
        """`metrics.jsonl` as a DataFrame, one row per logged step."""
        return load_metrics(self.path / "metrics.jsonl")

    @property
    def completions(self):
        """DataFrame `step, prompt, completion, finish_reason, reward, ...`; empty when none were recorded.

        A line that cannot be read is left out, and a warning names it.
        """
        table, damaged = read_completions(self.path)
        for sentence in damaged:
            warn_user(sentence)
        return table


def check_readable(run: Run) -> None:
    """Refuse a run whose parameters, environment, status, result or audit is damaged, or is no run's."""
    _ = run.params, run.env, run.status, run.result, run.audit


# --- states, and who executes a run ----------------------------------------------------------------------------------


def recorded_status(path: Path) -> dict:
    """`status.json` with what it may leave out; a log of its Slurm job only where the workbench puts those."""
    missing = {"state": "interrupted", "error": "status.json is missing"}
    status = {"error": None, "owner": {}, "times": {}} | read_json(path / "status.json", missing)
    if log := status["owner"].get("log"):
        jobs = path.parents[1] / ".slurm"
        status["owner"] |= {"log": log if Path(os.path.realpath(log)).is_relative_to(jobs) else None}
    return status


def set_status(
    path: Path,
    state: str,
    error: str | None = None,
    owner: Mapping | None = None,
    when: float | None = None,
    gpus: str | None = None,
) -> dict:
    """Write `status.json` with the time of each state so far, and for how long the run ran in all executions.

    `owner` executes the run: default this process, and the Slurm job it is when that was submitted for the run. `when` is in
    seconds since 1970, None for now. `gpus`: those of this execution, as in `CUDA_VISIBLE_DEVICES`; its end keeps them.
    """
    if state not in STATES:
        raise ParameterError(f"state={state!r}: expected one of {', '.join(STATES)}")
    before = read_json(path / "status.json", {})
    submitted = before.get("owner", {})
    if owner is None:
        owner = {"pid": os.getpid(), "host": socket.gethostname()} | ({"within": slurm_job()} if slurm_job() else {})
    owner = dict(owner)
    if "job" not in owner and submitted.get("job") and submitted["job"] == slurm_job():
        owner |= {name: submitted[name] for name in ("job", "log", "cluster") if name in submitted}
    when = time.time() if when is None else when
    times, ran = before.get("times", {}), before.get("ran_s", 0.0)
    if before.get("state") == "running" and "running" in times:
        ran += max(0.0, when - times["running"])
    status = {"state": state, "error": error and hide_tokens(error), "owner": owner, "times": times | {state: when}}
    status["ran_s"] = round(ran, 3)
    if state not in GOING:
        gpus = gpus or before.get("gpus")
    if gpus:
        status["gpus"] = gpus
    try:
        write_json(path / "status.json", status, durable=True)
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT) or not before:
            raise
        write_over(path / "status.json", status)  # else a run that ends on a full disk could not say why
    return status


def slurm_job() -> str | None:
    """Id of the Slurm job that this process belongs to, `123` or for a task of an array `123_4`."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def take_run(folder: Path, state: str, *, force: bool = False, not_if_done: bool = False) -> None:
    """Become the one process that executes a run, until it ends or `lock.let_go`."""
    check_links(folder)
    mine = lock.holds(folder)
    taken = lock.hold(folder)
    if taken is False:
        raise RunError(
            f"{folder}: {describe_owner(recorded_status(folder))} executes this run and holds its lock; cancel that first"
        )
    try:
        status = recorded_status(folder)
        if not_if_done and status["state"] == "done":
            raise RunError(f"{folder}: this run is done; {describe_owner(status)} has executed it")
        if not mine and not force and (unknown := what_is_unknown(status, locks=taken is not None)):
            raise RunError(f"{folder}: this run is {unknown}; if that has ended, take it with --force")
        set_status(folder, state)
    except BaseException:
        if not mine:
            lock.let_go(folder)
        raise
    remove_unfinished(folder)
    for path in files_named(folder, "progress.json"):
        with contextlib.suppress(OSError):
            os.utime(path, (0, 0), follow_symlinks=False)  # of an earlier execution, whatever the clocks say


def what_is_unknown(status: Mapping, *, locks: bool = True) -> str:
    """Who may execute a run without holding a lock that can be seen from here; empty where nobody does.

    Example:
        >>> what_is_unknown({"state": "running", "owner": {"host": "far"}})
        'running on far, as its status says; cannot be checked from here'
    """
    owner = status["owner"]
    if status["state"] not in GOING or slurm_job() in filter(None, (owner.get("job"), owner.get("within"))):
        return ""  # this very job, which Slurm has started again
    if owner.get("job"):
        return f"{status['state']} as job {owner['job']}"
    if locks and owner.get("host") in (None, socket.gethostname()):
        return status.get("unknown", "")  # of one that `Run.status` has looked at
    return f"{status['state']} on {owner.get('host')}, as its status says; cannot be checked from here"


def describe_owner(status: Mapping) -> str:
    """Who executes a run, in words: `process 12 on host a`, or `job 7`."""
    owner = status.get("owner", {})
    return f"job {owner['job']}" if owner.get("job") else f"process {owner.get('pid')} on host {owner.get('host')}"


# --- making and finding runs ---------------------------------------------------------------------------------------


def runs_root() -> Path:
    """`$WORKBENCH_RUNS`, else `runs/` next to `notebooks/` (JupyterLab's working folder), else `runs/` here."""
    if given := os.environ.get("WORKBENCH_RUNS"):
        return Path(given)
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise RunError("the current folder is gone: it was deleted or moved; change into one that is there") from None
    return (here.parent if here.name == "notebooks" else here) / "runs"


def create_run(notebook: str, params: Mapping, root: Path | None = None, state: str = "queued") -> Run:
    """A fresh folder `<root>/<notebook>/<time>` with `params.json` and `status.json`; of no id that there is.

    This process executes it, unless its state says that nobody does. `env.json` is written by whoever executes it.
    """
    check_notebook_name(notebook)
    path = _new_folder(Path(root or runs_root()), notebook)
    try:
        if state in GOING:
            lock.hold(path)
        set_status(path, state)
        if state == "running":  # else `record_execution` does, which may be on another machine
            write_json(path / "env.json", environment(params.get("seed")))
        # With it the folder counts as a run, and only it says what was asked.
        write_json(path / "params.json", map_text(dict(params), hide_tokens), durable=True)
    except BaseException:  # a full disk, Ctrl-C
        lock.let_go(path)
        shutil.rmtree(path, ignore_errors=True)
        raise
    return Run(path.resolve())


def _new_folder(top: Path, notebook: str) -> Path:
    """Make a folder whose id is the time, with milliseconds where the second has one: ids sort as their runs were made."""
    _remove_unmade(top / notebook)
    try:
        (top / notebook).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise RunError(
            f"{error.filename}: a file, or a link that leads nowhere, and runs need a folder there; remove it, or name another "
            "folder with --runs-dir or WORKBENCH_RUNS"
        ) from None
    while True:
        now = time.time_ns() // 1_000_000
        second = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now // 1000))
        for name in (second, f"{second}-{now % 1000:03}"):
            if not list(top.glob(f"*/{name}")):
                with contextlib.suppress(FileExistsError):
                    (top / notebook / name).mkdir()
                    return top / notebook / name


@functools.cache
def _remove_unmade(folder: Path) -> None:
    """Remove what `create_run` left where it was killed, an hour ago or more; once a process."""
    for path in folder.glob("*"):
        with contextlib.suppress(OSError):
            old = re.fullmatch(_ID, path.name) and path.lstat().st_mtime < time.time() - 3600
            names = {name for name in os.listdir(path) if not is_temporary(name)}
            if old and names <= {"status.json", "env.json", lock.LOCK}:
                with lock.looked_at(path) as free:
                    if free:
                        shutil.rmtree(path)


def open_run(notebook: str, out_dir: str, params: Mapping) -> Run:
    """Open the run of a notebook: in the runner's folder if `out_dir` names one, else in a new folder.

    Without a runner (in JupyterLab or with plain papermill) this kernel executes the run, and `save_result` ends it. If the
    run in `out_dir` has ended already, this kernel executes it again, and `params.json` gets the parameters of now. From here
    on the notebook's tables have their text aligned left.

    Raises:
        RunError: another process executes the run in that folder, or the folder cannot be made.
        ParameterError: a value that the parameters cell of the shipped notebook excludes. A runner has checked it before.
    """
    show_text_left()
    if not out_dir:
        _check_values(notebook, params)
        _leave_open_run(notebook)
        run = create_run(notebook, params, state="running")
        _OPEN[notebook] = run.path
        return run
    path = Path(out_dir).resolve()
    fresh = not (path / "status.json").is_file()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"out_dir={out_dir!r}: cannot be made ({error}); name a folder that can be written") from error
    runner = lock.works_for_runner(path)
    # A runner wrote the parameters before it started this kernel. Without one they may be those of another execution.
    before = {} if fresh or runner else read_json(path / "params.json", {})
    if not runner:
        _check_values(notebook, params)
        take_run(path, "running")
    asked = jsonable(map_text(dict(params), hide_tokens))
    if fresh or (not runner and any(name not in before or before[name] != value for name, value in asked.items())):
        write_json(path / "params.json", asked)
    env = read_json(path / "env.json", {}) if runner else environment(params.get("seed"))
    # The runner has looked at the machine, once; this kernel may import other versions.
    write_json(path / "env.json", env | {"packages": package_versions()})
    return Run(path)


_OPEN: dict[str, Path] = {}  # notebook -> the run that this kernel opened last


def _check_values(notebook: str, params: Mapping) -> None:
    """Hold the values against the parameters cell of the notebook next to the kernel, else of the shipped one."""
    files = Path(f"{notebook}.ipynb"), packaged("notebooks") / f"{notebook}.ipynb"
    if file := next((path for path in files if path.is_file()), None):
        known = notebook_parameters(file)
        check_parameters(known, {name: value for name, value in params.items() if name in known})


def _leave_open_run(notebook: str) -> None:
    """End a run that this kernel opened and left, so that none stays `running` that nobody executes."""
    path = _OPEN.pop(notebook, None)
    if path and lock.holds(path) and not lock.trains_below(path) and recorded_status(path)["state"] == "running":
        set_status(path, "interrupted", "left: its kernel has opened another run of the notebook")
        lock.let_go(path)


def record_execution(run: Run, notebook: Mapping, gpus: str | None = None) -> None:
    """Write down that a runner executes a run now: with which notebook, where, and on which GPUs."""
    env = environment(run.params.get("seed")) | {"cuda_visible_devices": gpus}
    write_json(run.path / "env.json", env)
    path = run.path / "executions.jsonl"
    with append_plain(path) as file:
        if (before := read_tail(path, 4)) and not before.endswith("\n"):  # a full disk has cut it short
            file.write("\n")
        append_rows(file, [{"time": time.time(), "notebook": notebook, "environment": env}])


def load_run(path: str | os.PathLike) -> Run:
    """Load the run in a folder: the run folder of a notebook, or the `record_dir` of a training.

    Raises:
        RunError: no such folder, or a folder that holds no run.
    """
    path = Path(path)
    if not any((path / name).is_file() for name in ("params.json", "recipe.json")):
        raise RunError(f"{path}: not a run folder (it has neither params.json nor recipe.json)")
    return Run(path.resolve())


def list_runs(root: Path | None = None, notebook: str | None = None) -> list[Run]:
    """List the runs below `root`, of one notebook or of all, the oldest first."""
    top = Path(root or runs_root())
    found = top.glob("*/*/params.json") if notebook is None else (top / notebook).glob("*/params.json")
    folders = sorted((path.parent for path in found), key=lambda folder: (age_order(folder.name), folder.parent.name))
    return [Run(folder.resolve()) for folder in folders]


def age_order(run_id: str) -> list[str | int]:
    """Return what run ids are sorted by, from the oldest: numbers as numbers.

    Example:
        >>> sorted(["20261121-120000-10", "20261121-120000-2", "20261121-120000"], key=age_order)
        ['20261121-120000', '20261121-120000-2', '20261121-120000-10']
    """
    return [int(part) if n % 2 else part for n, part in enumerate(re.split(r"(\d+)", run_id))]
