"""A run is a folder: what was asked, where it ran, what it did, what came out.

    params.json  env.json  status.json  progress.json  metrics.jsonl  completions.parquet/  checkpoints/  result.json

Files are written under a temporary name and renamed, so a reader never sees half of one. `status.json` names the
process that owns the run; a run whose owner is gone reads as `interrupted`, whoever looks first.
"""

import contextlib
import dataclasses
import itertools
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

from ..errors import ParameterError, RunError
from .environment import environment
from .files import jsonable, load_metrics, read_json, write_json
from .owner import boot, owner_lives
from .ownership import TOKEN_VARIABLE, keep, locked, still_owned, take_run
from .parts import read_completions
from .status import GOING, owns, set_status
from .tokens import hide_tokens, map_text

EMBEDDED_MODELS = ("starter", "starter-gpt2", "search")  # built on this machine, no download
SET_BY_RUNNER = ("out_dir", "interactive")  # parameters that say where a notebook runs, not what it does


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
        """`status.json`; a `queued` or `running` one whose owner is gone reads as `interrupted`, and is rewritten so."""
        status = self._recorded_status
        owner = status["owner"]
        if status["state"] not in GOING or owner_lives(owner, self.path):
            return status
        if self._recorded_status != status:  # the owner wrote once more before it ended
            return self.status
        if owner.get("boot", boot()) != boot():  # it may only be slow: told, not written
            return status | {"state": "interrupted", "error": f"no sign of life of its process on host {owner['host']}"}
        gone = "the process that ran it is gone (killed, or the machine restarted)"
        taken = False
        with contextlib.suppress(OSError), locked(self.path):  # a full or read-only disk is no reason not to tell
            taken = self._recorded_status != status  # by another process, since it was read
            if not taken:
                return set_status(self.path, "interrupted", gone)
        return self.status if taken else status | {"state": "interrupted", "error": gone}

    @property
    def _recorded_status(self) -> dict:
        """`status.json` with what it may leave out; a log of its Slurm job only where the workbench puts those."""
        missing = {"state": "interrupted", "error": "status.json is missing"}
        status = {"error": None, "owner": {}, "times": {}} | read_json(self.path / "status.json", missing)
        if log := status["owner"].get("log"):
            jobs = self.path.parents[1] / ".slurm"
            status["owner"] |= {"log": log if Path(os.path.realpath(log)).is_relative_to(jobs) else None}
        return status

    @property
    def metrics(self):
        """`metrics.jsonl` as a DataFrame, one row per logged step."""
        return load_metrics(self.path / "metrics.jsonl")

    @property
    def completions(self):
        """DataFrame `step, prompt, completion, finish_reason, reward, ...`; empty when none were recorded.

        A part that cannot be read is left out, and a warning names it.
        """
        table, damaged = read_completions(self.path)
        for sentence in damaged:
            warnings.warn(sentence, stacklevel=2)
        return table


def check_readable(run: Run) -> None:
    """Refuse a run whose parameters, environment, status or result is damaged, or is no run's.

    Raises:
        RunError, OSError: names the file.
    """
    _ = run.params, run.env, run.status, run.result


# --- making and finding runs ---------------------------------------------------------------------------------------


def runs_root() -> Path:
    """`$WORKBENCH_RUNS`, else `runs/` beside `notebooks/` (JupyterLab's working folder), else `runs/` here."""
    if given := os.environ.get("WORKBENCH_RUNS"):
        return Path(given)
    here = Path.cwd()
    return (here.parent if here.name == "notebooks" else here) / "runs"


def check_notebook_name(name: str) -> None:
    """Refuse the name of a notebook, without `.ipynb`, that would put its runs elsewhere or write on a terminal.

    Raises:
        ParameterError: empty, starting with a dot, or with a slash or a character that cannot be printed.
    """
    if not name or name.startswith(".") or "/" in name or not name.isprintable():
        raise ParameterError(
            f"notebook {name!r}: it names the folder of its runs, so it must not start with a dot or hold a slash or a "
            "character that cannot be printed; rename it"
        )


def create_run(notebook: str, params: Mapping, root: Path | None = None, state: str = "queued") -> Run:
    """A fresh folder `<root>/<notebook>/<time>-<n>` with `params.json`, `env.json` and `status.json`.

    No other notebook below `root` has a run of the same id, so that an id names one run, as in `workbench logs ID`.

    Raises:
        ParameterError: a notebook's name that cannot name a folder below `root`.
    """
    check_notebook_name(notebook)
    top = Path(root or runs_root())
    parent = top / notebook
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())  # ids of all hosts in the order of their making
    for n in itertools.count():
        path = parent / (f"{stamp}-{n}" if n else stamp)
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            if len(list(top.glob(f"*/{path.name}"))) == 1:
                break
            path.rmdir()  # two that are made at the same moment may both step back; each then tries the next number
    set_status(path, state)
    write_json(path / "env.json", environment(params.get("seed")))
    write_json(path / "params.json", map_text(dict(params), hide_tokens))  # last: with it the folder counts as a run
    if state == "running":
        keep(path.resolve(), Run(path).status["owner"]["token"])
    return Run(path.resolve())


def open_run(notebook: str, out_dir: str, params: Mapping) -> Run:
    """For a notebook's set-up cell: the runner's folder when `out_dir` names one, else a fresh folder.

    Without a runner (JupyterLab, plain papermill) the kernel owns the run until `save_result` ends it; a folder whose run has
    ended goes on with the kernel as its new owner.

    Raises:
        RunError: another process owns the run in that folder.
    """
    if not out_dir:
        return create_run(notebook, params, state="running")
    path = Path(out_dir).resolve()
    fresh = not (path / "status.json").is_file()
    path.mkdir(parents=True, exist_ok=True)
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not (token and still_owned(path, token)):  # else it belongs to the runner, for which this kernel works
        keep(path, take_run(path, "running"))
    if fresh:
        write_json(path / "params.json", map_text(dict(params), hide_tokens))
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


def list_runs(root: Path | None = None, notebook: str | None = None) -> list[Run]:
    """Every run below `root`, of one notebook or all, oldest first; one that may not be looked into counts as a run."""
    top = os.path.realpath(root or runs_root())
    folders = [entry.path for entry in _entries(top)] if notebook is None else [os.path.join(top, notebook)]
    found = [entry for folder in folders for entry in _entries(folder) if _holds_run(entry.path)]
    found.sort(key=lambda entry: (entry.name, os.path.dirname(entry.path)))
    return [Run(Path(os.path.realpath(e.path) if e.is_symlink() else e.path)) for e in found]


def _entries(folder: str) -> list[os.DirEntry]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        warnings.warn(f"{folder}: its runs are not listed: {error.strerror}", stacklevel=3)
        return []


def _holds_run(folder: str) -> bool:
    try:
        os.lstat(f"{folder}/params.json")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # its readers say why
        return True
    return True


def save_result(
    run: Run,
    *,
    headline: Mapping,
    checks: Mapping,
    numbers: Mapping,
    claims: Mapping | None = None,
    finding: str = "",
) -> Path:
    """Write `result.json`, the run's outcome; ends a run that this process owns itself.

    Args:
        run: the run folder.
        headline: `{"name": "reward, last 20 steps", "value": -3.9}`, the one number an index shows.
        checks: name -> True, False, or "not run: <reason>"; never a pass for what was not exercised.
        numbers: name -> number.
        claims: claim id of the articles -> `{"documented": ..., "measured": ..., "verdict": ...}`.
        finding: what came out, in a sentence or two with their numbers; a report opens with it.

    Raises:
        ParameterError: a check that is neither a bool nor a "not run: ..." reason.
    """
    for name, value in checks.items():
        if not isinstance(jsonable(value), bool) and not str(value).startswith("not run: "):
            raise ParameterError(f"check {name!r} = {value!r}: expected True, False or 'not run: <reason>'")
    path = run.path / "result.json"
    result = {"headline": headline, "finding": finding, "checks": checks, "numbers": numbers, "claims": claims or {}}
    write_json(path, result)
    if owns(run.path):
        set_status(run.path, "done")
    return path


def claim_row(documented: str, measured: str, holds: bool | str | Mapping[str, bool | str]) -> dict[str, str]:
    """One row of the claims sheet.

    Args:
        documented: what the article says, in a few words.
        measured: what was found, with its numbers.
        holds: whether the claim holds here; of a claim in parts, each part with its name. A text says why it cannot be
            told: `not run: <reason>` where this machine cannot test it, `undecided: <reason>` where the data do not tell.

    Returns:
        `documented`, `measured`, and the `verdict`: agrees, differs, the text; or of parts `in part: ...`.

    Example:
        >>> claim_row("reward at most 0", "-27 to -1", True)
        {'documented': 'reward at most 0', 'measured': '-27 to -1', 'verdict': 'agrees'}
        >>> claim_row("wastes compute, adds noise", "2.8 x forwards", {"compute": True, "noise": False})["verdict"]
        'in part: compute agrees; noise differs'
    """
    parts = dict(holds) if isinstance(holds, Mapping) else {"": holds}
    words = {name: part if isinstance(part, str) else "agrees" if part else "differs" for name, part in parts.items()}
    verdict, *others = dict.fromkeys(words.values())
    if others:
        verdict = "in part: " + "; ".join(f"{name} {word}" for name, word in words.items())
    return {"documented": documented, "measured": measured, "verdict": verdict}
