"""What is to be run: one run, or a grid of runs of a notebook, planned and checked as a whole before the first starts.

    seed=0..4 learning_rate=1e-4,3e-4        ten runs; a..b counts in ints, commas separate values

A run that is done is not repeated, one that was interrupted goes on: the run folders say what is done. The file next to them
(`reports/sweep.py`) is for the comparison alone.
"""

import ast
import contextlib
import dataclasses
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import ParameterError, RunError, warn_user
from ...runs import lock
from ...runs.findings import problem_of
from ...runs.parameters import (
    COMPUTED,
    SET_BY_RUNNER,
    Parameter,
    assigned_in_cells,
    check_parameters,
    notebook_parameters,
)
from ...runs.run import (
    EMBEDDED_MODELS,
    GOING,
    Run,
    age_order,
    create_run,
    describe_owner,
    list_runs,
    load_run,
    runs_root,
    set_status,
    take_run,
    what_is_unknown,
)
from ...runs.text import one_line
from .code import check_unchanged, code_files, digest_of
from .data import describe_data
from .gpus import describe_gpus
from .notebooks import check_kernel, find_notebook

_MOST = 10_000
_ACTIONS = {"done": "skip", "running": "leave", "queued": "leave", "interrupted": "resume", "failed": "resume"}
_INSTEAD = {  # what to do where a parameter of SET_BY_RUNNER is given
    "out_dir": "choose the folder with --runs-dir",
    "interactive": "a run of the command line is not interactive: open the notebook in JupyterLab for its widgets",
}


@dataclasses.dataclass
class Entry:
    """One run of a batch: `action` is run, resume, skip (done) or leave (another process runs it).

    `how`: `kernel`, `cwd`, `execution_timeout` and `code` of `execute_run`. `problem` says why it could not be started. With
    `force` a run is resumed although another host may execute it; see `run.take_run`. `there`: the runs that the points of a
    sweep are looked for in; None where there is no sweep. `done_before`: a run of the same parameters that is done, with other
    code, where a new one is to be made.
    """

    varied: dict
    params: dict
    action: str
    run: Run | None = None
    notebook: Path | None = None
    root: Path | None = None
    force: bool = False
    there: "RunsByParameters | None" = None
    how: Mapping = dataclasses.field(default_factory=dict)
    problem: str = ""
    done_before: Run | None = None

    @property
    def to_run(self) -> bool:
        return self.action in ("run", "resume")

    @property
    def name(self) -> str:
        varied = ", ".join(f"{k}={v}" for k, v in self.varied.items())
        return varied or (self.notebook.stem if self.notebook else "defaults")

    @property
    def state(self) -> str:
        return self.run.status["state"] if self.run else "not started"

    @property
    def code(self) -> str:
        """The digest of the code that was planned."""
        return digest_of(self.how.get("code", {}))

    @property
    def other_code(self) -> bool:
        """Whether the run that is to go on was last executed with other code than the notebook has now."""
        return self.action == "resume" and code_of_run(self.run) not in ("", self.code)

    def look_again(self) -> None:
        """Decide again what to do, as the plan may be hours old; the caller keeps other sweeps away."""
        if self.run is None and self.there is not None:
            self.action, self.run = _action(self.there.with_parameters(self.params), self.notebook, self.how)
        elif self.run is not None and not self.force:
            self.action = _ACTIONS[self.run.status["state"]]

    def prepare(self, state: str = "queued") -> Run:
        """The run's folder, made where there is none; starts nothing."""
        if self.other_code:
            print(f"{self.name}: {self.run.id} goes on with other code than it began with", file=sys.stderr)
        if self.action == "resume" and (moved := _elsewhere(self.run, self.notebook, self.how)):
            print(f"{self.name}: {self.run.id} {moved}", file=sys.stderr)
        if self.run is None:
            self.run = create_run(self.notebook.stem, self.params, self.root, state)
        elif state in GOING:
            take_run(self.run.path, state, force=self.force, not_if_done=True)
        else:
            set_status(self.run.path, state, "not submitted yet", owner={})
        return self.run

    def __str__(self) -> str:
        """Its line in the plan: action, name, and the run that is there already, with what its audit found wrong."""
        if self.run is None:
            before = ""
            if done := self.done_before:
                other = "code" if code_of_run(done) != self.code else "kernel or in another folder"
                before = f"  ({done.id} is done, with other {other})"
            return f"{self.action:6} {self.name}{before}"
        about = [self.run.id, self.state]
        if self.other_code:
            about.append("with other code than it began with")
        if problem := problem_of(self.run):
            about.append(problem)
        return f"{self.action:6} {self.name}  ({one_line(', '.join(about))})"


def claim(entries: Sequence[Entry], state: str = "queued") -> list[Run]:
    """Prepare, of these entries of one notebook, those that no other process has taken since they were planned.

    Raises:
        RunError: the notebook's code is no longer the planned one, another process keeps this one from looking, or a folder
            is another user's.
    """
    first = entries[0]
    try:
        with lock.alone_in(Path(first.root or runs_root()) / first.notebook.stem):  # two sweeps may want the same point
            check_unchanged(first.how.get("code", {}))
            if first.there is not None:
                first.there.look()
            for entry in entries:
                entry.look_again()
            return [entry.prepare(state) for entry in entries if entry.to_run]
    except PermissionError as error:
        raise RunError(
            f"{error.filename}: you may not write there; name a folder of your own with --runs-dir"
        ) from None


def code_of_run(run: Run) -> str:
    """`code_of` the notebook that was executed last; empty where no runner executed one."""
    return str(run.executions[-1]["notebook"].get("code")) if run.executions else ""


def parse_grid(known: Mapping[str, Parameter], given: Mapping[str, str]) -> dict[str, list]:
    """The values of each swept parameter, every one checked.

    Example:
        >>> known = {"seed": Parameter("seed", "int", 0), "stop": Parameter("stop", "str", "")}
        >>> parse_grid(known, {"seed": "0..2,7", "stop": '", and",.'})
        {'seed': [0, 1, 2, 7], 'stop': [', and', '.']}
    """
    grid = {}
    for name, text in given.items():
        counts = not known or (name in known and known[name].type in ("int", "number", "any"))
        parts = [p for part in _split(text) for p in (_range(name, part) if counts else [part])]
        values = [check_parameters(known, {name: part})[name] for part in parts]
        if len({json.dumps(value) for value in values}) < len(values):
            raise ParameterError(f"parameter {name}={text}: the list has a value twice")
        grid[name] = values
    return grid


def _split(text: str) -> list[str]:
    """The values between commas; those of a list, a tuple, a mapping or a text in quotes separate none."""
    found, pieces = [], text.split(",")
    while pieces:
        whole = next((n for n in range(1, len(pieces) + 1) if _is_one(",".join(pieces[:n]))), 1)
        found.append(",".join(pieces[:whole]).strip(" ") if whole > 1 else pieces[0])
        pieces = pieces[whole:]
    return [part[1:-1].replace('""', '"') if len(part) > 1 and part[0] == part[-1] == '"' else part for part in found]


def _is_one(text: str) -> bool:
    """Say whether a text that begins with a quote or a bracket ends with it: `"a, b"`, `[[0, 1], [2]]`, `(0.9, 0.95)`."""
    text = text.strip(" ")
    if text.startswith('"'):
        return re.fullmatch('"(?:[^"]|"")*"', text) is not None
    if not text.startswith(tuple("[({")) or re.fullmatch(r"\[[^\[\]]*\]", text):
        return True
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        ast.literal_eval(text)
        return True
    return False


def _range(name: str, text: str) -> list[str]:
    match = re.fullmatch(r"\s*(-?\d+)\.\.(-?\d+)\s*", text)
    if not match:
        return [text]
    first, last = map(int, match.groups())
    if last < first:
        raise ParameterError(f"parameter {name}={text}: the range is empty; write the smaller end first")
    if last - first >= _MOST:
        raise ParameterError(f"parameter {name}={text}: {last - first + 1} values; at most {_MOST} runs in a sweep")
    return [str(n) for n in range(first, last + 1)]


def plan_run(
    notebook: str,
    params: Mapping,
    *,
    root: Path | None = None,
    resume: str | None = None,
    force: bool = False,
    how: Mapping | None = None,
) -> Entry:
    """One run, checked; makes no folder. `force` and `how`: see `Entry`.

    `resume`: None for a new run; "" for the latest unfinished one with these parameters; else the id or folder of one.
    """
    path, known, how = _checked_notebook(notebook, params, how)
    full = full_parameters(known, params)
    if resume is None:
        return Entry({}, full, "run", None, path, root, how=how)
    run = _find_resumable(path, how, full, {name: full[name] for name in params}, root, resume, force)
    if as_before := {name: value for name, value in _last_how(run).items() if value and not how.get(name)}:
        path, known, how = _checked_notebook(notebook, params, {**how, **as_before})
    try:
        recorded = check_parameters(known, run.params)
    except ParameterError as error:
        raise ParameterError(f"{run.path / 'params.json'}: {error}; such a run cannot be resumed") from None
    return Entry({}, recorded, "resume", run, path, root, force, how=how)


def plan_sweep(
    notebook: str,
    given: Mapping[str, str],
    root: Path | None = None,
    fixed: Mapping | None = None,
    how: Mapping | None = None,
) -> list[Entry]:
    """All points of the grid, the last parameter changing fastest, and what is to be done for each; starts nothing."""
    path, known, how = _checked_notebook(notebook, {**(fixed or {}), **given}, how)
    grid = parse_grid(known, given)
    if (count := math.prod(map(len, grid.values()))) > _MOST:
        raise ParameterError(f"the grid has {count} points; at most {_MOST} runs in a sweep")
    there, entries = RunsByParameters(path.stem, root), []
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        full = full_parameters(known, {**(fixed or {}), **point})
        varied = {name: value for name, value in point.items() if len(grid[name]) > 1}
        same = there.with_parameters(full)
        action, run = _action(same, path, how)
        before = _last_done(same) if action == "run" else None
        entries.append(Entry(varied, full, action, run, path, root, there=there, how=how, done_before=before))
    return entries


def _checked_notebook(notebook: str, given: Mapping, how: Mapping | None) -> tuple[Path, dict[str, Parameter], Mapping]:
    path, how = find_notebook(notebook), how or {}
    known = notebook_parameters(path)
    if not known and (cells := assigned_in_cells(path, given)):
        name, cell = next(iter(cells.items()))
        raise ParameterError(
            f"parameter {name!r}: code cell {cell} of {path} assigns it, so a given value would be lost; tag the cell with the "
            "defaults `parameters` (in JupyterLab: the property inspector, Cell Tags)"
        )
    check_kernel(path, how.get("kernel"))
    if (cwd := how.get("cwd")) and not os.path.isdir(cwd):
        raise ParameterError(f"--cwd {cwd}: no such folder")
    return path, known, {**how, "code": code_files(path, cwd)}


def _key(params: Mapping) -> str:
    """Parameters as one text, equal for equal parameters."""
    return json.dumps(params, sort_keys=True)


class RunsByParameters:
    """The runs of a notebook, found by what was asked of them; each is read once, when its folder is first seen."""

    def __init__(self, notebook: str, root: Path | None):
        self._folder = Path(root or runs_root()) / notebook
        self._seen: set[str] = set()
        self._runs: dict[str, list[Run]] = {}
        self.look()

    def look(self) -> None:
        """Read the runs that were made since the last look."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in sorted(set(os.listdir(self._folder)) - self._seen, key=age_order):
                if os.path.exists(self._folder / name / "params.json"):  # else it is no run, or is being made
                    self._seen.add(name)
                    self._read(Run((self._folder / name).resolve()))

    def _read(self, run: Run) -> None:
        try:
            self._runs.setdefault(_key(run.params), []).append(run)
        except (RunError, OSError) as error:
            warn_user(f"not compared with what is to be run: {error}")

    def with_parameters(self, params: Mapping) -> list[Run]:
        """The runs with exactly these parameters, oldest first."""
        return self._runs.get(_key(params), [])


def _last_how(run: Run) -> dict[str, str | None]:
    """Kernel and folder that a run was last executed with; None for those of the notebook."""
    last = run.executions[-1]["notebook"] if run.executions else {}
    path, cwd = last.get("path"), last.get("cwd")
    return {"kernel": last.get("kernel"), "cwd": None if path and cwd == str(Path(path).parent) else cwd}


def _elsewhere(run: Run, notebook: Path, how: Mapping) -> str:
    """Say how a run's last execution differs from the planned one: another notebook, kernel or folder; empty if it does not.

    A notebook that was moved, or a copy with the same code, is no other.
    """
    path = run.executions[-1]["notebook"].get("path") if run.executions else None
    if path and path != str(notebook) and os.path.exists(path) and code_of_run(run) != digest_of(how["code"]):
        return f"was executed from {path}, and goes on with {notebook}"
    own_folder = str(notebook.parent)
    for name, before in _last_how(run).items() if run.executions else ():
        now = how.get(name) if how.get(name) != own_folder else None
        if now != before:
            own = "the notebook's own"
            return f"was executed with --{name} {before or own}, and goes on with {now or own}"
    return ""


def _action(runs: Sequence[Run], notebook: Path, how: Mapping) -> tuple[str, Run | None]:
    """What to do where these runs, oldest first, have the same parameters: the best of them decides, of equals the newest.

    What other code has done, of another notebook of that name or of one that was changed since, or in another folder, is not
    done.
    """
    newest = {}
    for run in runs:
        try:
            action = _ACTIONS[run.status["state"]]
            if _elsewhere(run, notebook, how):
                continue
            if action != "skip" or code_of_run(run) == digest_of(how["code"]):
                newest[action] = run
        except (RunError, OSError) as error:
            warn_user(f"not taken into account: {error}")
    for action in ("skip", "leave", "resume"):
        if action in newest:
            return action, newest[action]
    return "run", None


def _last_done(runs: Sequence[Run]) -> Run | None:
    """The newest of these runs that is done."""
    done = None
    for run in runs:
        with contextlib.suppress(RunError, OSError):  # `_action` has warned of it
            if run.status["state"] == "done":
                done = run
    return done


def full_parameters(known: Mapping[str, Parameter], params: Mapping) -> dict:
    """Return what a run records: every parameter the runner does not set, as given or by default."""
    for name in SET_BY_RUNNER:
        if name in params:
            raise ParameterError(f"parameter {name!r} is set by the runner; {_INSTEAD[name]}")
    given = {name: _absolute(value, known.get(name)) for name, value in check_parameters(known, params).items()}
    return {n: p.default for n, p in known.items() if n not in SET_BY_RUNNER and p.default != COMPUTED} | given


def _absolute(value, parameter: Parameter | None):
    """A relative path of something that exists, made absolute: the kernel works in the notebook's folder, not here."""
    if not isinstance(value, str) or value in EMBEDDED_MODELS or not os.path.exists(value):
        return value
    about = f"{parameter.name} {parameter.help}" if parameter else ""
    paths = re.search(r"\b(path|folder|file|dir)|^(model|dataset) ", about)
    return os.path.abspath(value) if paths or "/" in value or Path(value).suffix else value


def _find_resumable(
    path: Path, how: Mapping, full: dict, given: dict, root: Path | None, resume: str, force: bool
) -> Run:
    notebook = path.stem
    if resume:
        named = [r for r in list_runs(root, notebook) if resume in (r.id, f"{notebook}/{r.id}")]
        if not named and not os.path.isdir(resume):
            ids = ", ".join(r.id for r in list_runs(root, notebook)[:-6:-1]) or "none"
            raise RunError(
                f"--resume {resume}: not a run folder, and no run of {notebook} has this id; the newest are {ids}. Without a "
                "value it takes the latest unfinished run of the same parameters"
            )
        found = named or [load_run(resume)]
        if (other := found[-1].notebook) != notebook:
            raise ParameterError(f"{resume}: a run of {other}, not of {notebook}; name that notebook to resume it")
        recorded = found[-1].params
        for name, value in given.items():
            if recorded.get(name) != value:
                raise ParameterError(f"parameter {name}={value!r}: the run to resume has {recorded.get(name)!r}")
    else:
        same = RunsByParameters(notebook, root).with_parameters(full)
        asked = {name: value for name, value in how.items() if name in ("kernel", "cwd") and value}
        found = [r for r in same if r.status["state"] in ("interrupted", "failed")]
        found = [r for r in found if not _elsewhere(r, path, {**_last_how(r), **asked, "code": how["code"]})]
        if not found:
            states = ", ".join(f"{r.id} ({r.status['state']})" for r in same) or "none"
            others = _unfinished_with(given, list_runs(root, notebook))
            way_out = (
                f"; with the given ones and other defaults: {others}; name one with --resume RUN" if others else ""
            )
            raise RunError(f"nothing to resume: runs of {notebook} with these parameters: {states}{way_out}")
    run = found[-1]
    state = run.status["state"]
    if state == "done" or (state in GOING and not (force and what_is_unknown(run.status))):
        held = f" ({describe_owner(run.status)}: cancel it first)" if state in GOING else ""
        if unknown := what_is_unknown(run.status):
            state, held = unknown, "; if that has ended, `--force` takes the run"
        raise RunError(f"{run.path}: is {state}; only an interrupted or failed run can be resumed{held}")
    return run


def _unfinished_with(given: Mapping, runs: Sequence[Run]) -> str:
    """Name the interrupted and failed runs that have the parameters given, whatever their others are."""
    names = []
    for run in runs:
        with contextlib.suppress(RunError, OSError):  # a damaged run is not offered
            if given.items() <= run.params.items() and run.status["state"] in ("interrupted", "failed"):
                names.append(f"{run.id} ({run.status['state']})")
    return ", ".join(names[-5:])


# --- the plan, shown ------------------------------------------------------------------------------------------------


def plan_text(entries: Sequence[Entry], gpus: int | None, *, on_slurm: bool = False) -> str:
    """A plan as `--dry-run` shows it: a line for each run, then for each notebook what its runs share."""
    devices = f"{gpus or 'none'} for each run, from Slurm" if on_slurm else describe_gpus(gpus)
    text = ""
    for _, group in itertools.groupby(entries, key=lambda entry: entry.notebook):
        group = list(group)
        text += "".join(f"{entry}\n" for entry in group)
        if to_run := [entry for entry in group if entry.to_run]:
            fixed = {k: v for k, v in to_run[0].params.items() if k not in to_run[0].varied}
            shared = {
                "folder": _folder_of(to_run),
                "parameters": ", ".join(f"{k}={v!r}" for k, v in fixed.items()),
                "0 means": _of_zeros(group[0].notebook, fixed),
                "data": _data_of(to_run),
                "GPUs": devices,
                "hint": _toy_data_left(to_run),
            }
            text += "".join(f"       {name:10}  {one_line(value)}\n" for name, value in shared.items() if value)
    return text


def _data_of(entries: Sequence[Entry]) -> str:
    """Return what each data set of these runs holds."""
    by_name = {str(entry.params.get("dataset")): entry for entry in entries}
    texts = [describe_data(entry.notebook, entry.params) for entry in by_name.values() if entry.notebook]
    return "; ".join(text for text in texts if text)


def _of_zeros(notebook: Path, params: Mapping) -> str:
    """Return what the notebook takes where a parameter is 0, as the help of that parameter says: `0 for the recipe's own`."""
    helps = {name: declared.help for name, declared in notebook_parameters(notebook).items()}
    found = {name: re.search(r"\b0 for (.*)", helps.get(name, "")) for name, value in params.items() if value == 0}
    return "; ".join(f"{name}: {match[1]}" for name, match in found.items() if match)


def _folder_of(entries: Sequence[Entry]) -> str:
    """Return the folder where these runs go on; `TIME` stands for the name of a folder to be made."""
    there = [entry.run.path for entry in entries if entry.run]
    if len(there) == len(entries):
        return os.path.commonpath(there)
    return str(Path(entries[0].root or runs_root()).resolve() / entries[0].notebook.stem / "TIME")


def _toy_data_left(entries: Sequence[Entry]) -> str:
    for params in (entry.params for entry in entries):
        model, data = params.get("model"), params.get("dataset")
        if model not in (None, *EMBEDDED_MODELS) and data in EMBEDDED_MODELS:
            return f"model={model!r} with the toy data, dataset={data!r}: give your own data with -p dataset=..."
    return ""
