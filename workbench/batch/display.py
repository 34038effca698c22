"""What a person sees as runs go on: a bar for cells, one for training steps, the notebook's own output; a bar over many."""

import contextlib
import sys
import threading
from collections.abc import Mapping, Sequence

from tqdm import tqdm

from ..errors import RunError
from ..runs.files import append_plain, files_named, read_json
from ..runs.run import Run
from ..runs.text import one_line, printable
from ..runs.tokens import hide_tokens


class Display:
    """Shows a run on stderr and writes the notebook's output to `log.txt` as it comes.

    On a terminal there are live bars; elsewhere (a log file, Slurm) only the notebook's own lines.

    Args:
        run: the run folder.
        quiet: write only `log.txt`.
    """

    def __init__(self, run: Run, quiet: bool = False):
        self._run, self._quiet = run, quiet
        self._stop = threading.Event()

    def __enter__(self):
        self._log = append_plain(self._run.path / "log.txt")
        bars = sys.stderr.isatty() and not self._quiet
        options = {"file": sys.stderr, "disable": not bars, "dynamic_ncols": True}
        self._cells = tqdm(desc="cells", unit="cell", position=0, **options)
        self._steps = tqdm(desc="steps", unit="step", position=1, **options)
        self._poller = threading.Thread(target=self._poll, daemon=True)
        self._poller.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._poller.join()
        self._follow_steps()
        self._steps.close()
        self._cells.close()
        self._log.close()

    def cell_start(self, index: int, total: int) -> None:
        self._cells.total = total
        self._cells.refresh()

    def cell_done(self, index: int) -> None:
        self._cells.update(index + 1 - self._cells.n)

    def write(self, text: str) -> None:
        """A piece of the notebook's output; the file half of papermill's `stdout_file`."""
        text = hide_tokens(text)
        self._log.write(text)
        if not self._quiet:
            tqdm.write(printable(text), file=sys.stderr, end="")

    def flush(self) -> None:
        self._log.flush()

    def _poll(self) -> None:
        while not self._stop.wait(0.5):
            self._follow_steps()

    def _follow_steps(self) -> None:
        """Move the bar to the training that wrote last."""
        if progress := latest_progress(self._run):
            self._steps.total = progress["max_steps"]
            self._steps.update(progress["step"] - self._steps.n)


def latest_progress(run: Run) -> dict | None:
    """`progress.json` of the training that wrote last since the run started: a notebook may train several in turn."""
    times, started = {}, run.status.get("times", {}).get("running", 0.0)
    for path in files_named(run.path, "progress.json"):
        with contextlib.suppress(FileNotFoundError):  # a training that starts anew removes it
            times[path] = path.stat().st_mtime
    recent = {path: when for path, when in times.items() if when > started}
    for path in sorted(recent, key=recent.__getitem__, reverse=True):
        with contextlib.suppress(RunError, OSError):  # a file of the notebook's own that is called so
            if found := read_json(path, None):
                return found
    return None


class SweepProgress:
    """One bar over all runs on a terminal, with the step of each that is going; elsewhere a line as each ends."""

    def __init__(self, entries: Sequence):
        self._entries = entries
        self._ended = sum(e.action == "skip" for e in entries)

    def __enter__(self):
        self._bar = tqdm(total=len(self._entries), unit="run", disable=not sys.stderr.isatty(), dynamic_ncols=True)
        self._bar.update(self._ended)
        return self

    def __exit__(self, *_):
        self._bar.close()

    def show(self, active: Sequence) -> None:
        if not self._bar.disable:
            steps = [f"{e.name}: {steps_of(e.run) or 'starting'}" for e in active]
            self._bar.set_postfix_str("; ".join(steps), refresh=True)

    def finished(self, entry) -> None:
        self._ended += 1
        self._bar.update(1)
        try:
            line = f"{entry.name}: {outcome(entry.run)}"
        except (RunError, OSError) as error:
            line = unreadable(entry.run, error)
        tqdm.write(f"[{self._ended}/{len(self._entries)}] {line}", file=sys.stderr)


def steps_of(run: Run) -> str:
    """`step 3/80` of the training that goes on in a run, or nothing."""
    progress = latest_progress(run)
    return f"step {progress['step']}/{progress['max_steps']}" if progress else ""


def failed_checks(run: Run) -> list[str]:
    """Names of the checks that do not hold."""
    return failing(run.result)


def failing(result: Mapping) -> list[str]:
    """The same, of a run's result."""
    return [name for name, ok in result.get("checks", {}).items() if ok is False]


def title(run: Run) -> str:
    """`notebook id`, which name its folder and so may be anyone's words."""
    return one_line(f"{run.notebook} {run.id}")


def unreadable(run: Run, error: Exception) -> str:
    """The line of a run whose files cannot be read."""
    return f"{title(run)}: cannot be read: {one_line(hide_tokens(str(error)))}"


def outcome(run: Run, status: Mapping | None = None) -> str:
    """A run in a line: state, error, headline, and which checks fail.

    Args:
        run: its folder.
        status: the run's, where it was read before.
    """
    status, result = status or run.status, run.result
    text = status["state"] + (f": {status['error']}" if status.get("error") else "")
    if headline := result.get("headline"):
        value = headline["value"]
        text += f", {headline['name']} {value:.4g}" if isinstance(value, float) else f", {headline['name']} {value}"
    failed = failing(result)
    return one_line(text + (f", {len(failed)} checks fail: {'; '.join(failed)}" if failed else ""))
