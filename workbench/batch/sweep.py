"""A grid of runs of one notebook, planned and checked as a whole before the first starts.

    seed=0..4 learning_rate=1e-4,3e-4        ten runs; a..b counts in ints, commas separate values

A run that is done is not repeated, one that was interrupted goes on. What is left of a sweep is in the run folders alone.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import ParameterError
from ..runs.parameters import Parameter, check_parameters, notebook_parameters
from ..runs.run import Run, list_runs
from .execute import check_run, find_notebook, full_parameters

_MOST = 10_000


@dataclasses.dataclass
class Entry:
    """One run of a batch: `action` is run, resume, skip (done) or leave (another process runs it)."""

    varied: dict
    params: dict
    action: str
    run: Run | None = None
    notebook: Path | None = None

    @property
    def name(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self.varied.items()) or (
            self.notebook.stem if self.notebook else "defaults"
        )

    @property
    def state(self) -> str:
        return self.run.status["state"] if self.run else "not started"


def parse_grid(known: Mapping[str, Parameter], given: Mapping[str, str]) -> dict[str, list]:
    """The values of each swept parameter, every one checked.

    Args:
        known: parameters of the notebook.
        given: name -> text, such as `0..4`, `1e-4,3e-4` or `starter`; ranges only for ints, both ends included.

    Raises:
        ParameterError: an unknown name or wrong value (of any point, before any starts), an empty range, a value twice.
    """
    grid = {}
    for name, text in given.items():
        ints = name in known and known[name].type == "int"
        parts = [p for part in text.split(",") for p in (_range(name, part) if ints else [part])]
        values = [check_parameters(known, {name: part})[name] for part in parts]
        if len(set(values)) < len(values):
            raise ParameterError(f"parameter {name}={text}: a value stands there twice")
        grid[name] = values
    return grid


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


def plan_run(notebook: str, params: Mapping[str, str], *, root: Path | None = None, resume: str | None = None) -> Entry:
    """One run as an entry, checked as `execute.prepare_run` checks it; makes no folder."""
    path, full, run = check_run(notebook, params, root=root, resume=resume)
    return Entry({}, full, "resume" if run else "run", run, path)


def plan_sweep(notebook: str, given: Mapping[str, str], root: Path | None = None) -> list[Entry]:
    """All points of the grid, the last parameter changing fastest, and what is to be done for each; starts nothing.

    Raises:
        ParameterError: notebook, a name or any value is wrong.
    """
    path = find_notebook(notebook)
    known = notebook_parameters(path)
    grid = parse_grid(known, given)
    if (count := _product(map(len, grid.values()))) > _MOST:
        raise ParameterError(f"the grid has {count} points; at most {_MOST} runs in a sweep")
    runs = [r for r in list_runs(root) if r.notebook == path.stem]
    entries = []
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        full = full_parameters(known, point)
        varied = {name: value for name, value in point.items() if len(grid[name]) > 1}
        entries.append(_entry(path, varied, full, [r for r in runs if r.params == full]))
    return entries


def _product(counts) -> int:
    total = 1
    for count in counts:
        total *= count
    return total


def _entry(notebook: Path, varied: dict, full: dict, runs: list[Run]) -> Entry:
    """What to do where these runs have the same parameters: the best of them decides."""
    for states, action in (
        (("done",), "skip"),
        (("running", "queued"), "leave"),
        (("interrupted", "failed"), "resume"),
    ):
        for run in reversed(runs):
            if run.status["state"] in states:
                return Entry(varied, full, action, run, notebook)
    return Entry(varied, full, "run", None, notebook)
