"""A grid of runs of one notebook on this machine: planned and checked as a whole, each run in a process of its own.

    seed=0..4 learning_rate=1e-4,3e-4        ten runs; a..b counts in ints, commas separate values

A run that is done is not repeated, one that was interrupted goes on. What is left of a sweep is in the run folders alone.
"""

import contextlib
import dataclasses
import itertools
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..errors import ParameterError
from ..runs import Run, list_runs, load_run
from .display import latest_progress
from .execute import find_notebook, full_parameters
from .parameters import Parameter, check_parameters, notebook_parameters

_MOST = 10_000


@dataclasses.dataclass
class Entry:
    """One point of the grid: `action` is run, resume, skip (done) or leave (another process runs it)."""

    varied: dict
    params: dict
    action: str
    run: Run | None = None

    @property
    def name(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self.varied.items()) or "defaults"

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
        entries.append(_entry(varied, full, [r for r in runs if r.params == full]))
    return entries


def _product(counts) -> int:
    total = 1
    for count in counts:
        total *= count
    return total


def _entry(varied: dict, full: dict, runs: list[Run]) -> Entry:
    """What to do where these runs have the same parameters: the best of them decides."""
    for states, action in (
        (("done",), "skip"),
        (("running", "queued"), "leave"),
        (("interrupted", "failed"), "resume"),
    ):
        for run in reversed(runs):
            if run.status["state"] in states:
                return Entry(varied, full, action, run)
    return Entry(varied, full, "run")


def run_sweep(notebook: str, entries: Sequence[Entry], *, jobs: int = 1, root: Path | None = None) -> None:
    """Run what is to be run, at most `jobs` at a time, under one progress display. A failed run stops no other.

    Raises:
        ParameterError: `jobs` below 1.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP; every child was stopped first, its run reads as `interrupted`.
    """
    if jobs < 1:
        raise ParameterError(f"jobs={jobs}: expected at least 1")
    waiting = [e for e in entries if e.action in ("run", "resume")]
    active: list[_Child] = []
    with _signals_interrupt(), _Progress(entries) as progress:
        try:
            while waiting or active:
                while waiting and len(active) < jobs:
                    active.append(_Child(notebook, waiting.pop(0), root))
                time.sleep(0.2)
                for child in [c for c in active if c.ended()]:
                    active.remove(child)
                    progress.finished(child.entry, child.last_words())
                progress.show([c.entry for c in active])
        finally:
            for child in active:
                child.process.terminate()
            for child in active:
                child.process.wait()
                child.ended()


class _Child:
    """A `workbench run` process of one entry, in a session of its own: a terminal's Ctrl-C reaches it once, through us."""

    def __init__(self, notebook: str, entry: Entry, root: Path | None):
        self.entry = entry
        command = [sys.executable, "-m", "workbench", "run", notebook, "-q"]
        if entry.action == "resume":
            command += ["--resume", str(entry.run.path)]
        command += [part for name, value in entry.params.items() for part in ("-p", f"{name}={value}")]
        command += ["--runs-dir", str(root)] if root else []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the child
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self._errors, start_new_session=True)

    def ended(self) -> bool:
        """Whether the process is over; learns the run's folder from its first line meanwhile."""
        over = self.process.poll() is not None
        if self.entry.run is None and (found := re.search(r"^run folder (.+)$", self._text(), re.M)):
            self.entry.run = load_run(found.group(1))
        return over

    def last_words(self) -> str:
        """Why it ended without a run, if so."""
        return "" if self.entry.run else self._text().strip().rpartition("\n")[2]

    def _text(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


class _Progress:
    """One bar over all runs on a terminal, with the step of each that is going; elsewhere a line as each ends."""

    def __init__(self, entries: Sequence[Entry]):
        self._entries = entries
        self._ended = sum(e.action == "skip" for e in entries)

    def __enter__(self):
        from tqdm import tqdm

        self._write = tqdm.write
        self._bar = tqdm(total=len(self._entries), unit="run", disable=not sys.stderr.isatty(), dynamic_ncols=True)
        self._bar.update(self._ended)
        return self

    def __exit__(self, *_):
        self._bar.close()

    def show(self, active: Sequence[Entry]) -> None:
        steps = [f"{e.name}: {_steps(e.run)}" for e in active]
        self._bar.set_postfix_str("; ".join(steps), refresh=True)

    def finished(self, entry: Entry, error: str) -> None:
        self._ended += 1
        self._bar.update(1)
        status = entry.run.status if entry.run else {"state": "failed", "error": error}
        headline = entry.run.result.get("headline") if entry.run else None
        text = status["state"] + (f": {status['error']}" if status.get("error") else "")
        text += f", {headline['name']} {headline['value']:.4g}" if headline and text == "done" else ""
        self._write(f"[{self._ended}/{len(self._entries)}] {entry.name}: {text}", file=sys.stderr)


def _steps(run: Run | None) -> str:
    progress = latest_progress(run) if run else None
    return f"step {progress['step']}/{progress['max_steps']}" if progress else "starting"


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM and a closed terminal act as Ctrl-C does, so that no child outlives the sweep."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = {s: signal.signal(s, interrupt) for s in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
