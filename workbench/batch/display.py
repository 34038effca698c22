"""What a person sees of a run as it goes on: a bar for cells, one for training steps, the notebook's own output."""

import contextlib
import sys
import threading
import time
from functools import partial

from ..runs import Run, read_json


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
        from tqdm import tqdm

        self._log = (self._run.path / "log.txt").open("a", encoding="utf-8", errors="backslashreplace")
        bars = sys.stderr.isatty() and not self._quiet
        options = {"file": sys.stderr, "disable": not bars, "dynamic_ncols": True}
        self._cells = tqdm(desc="cells", unit="cell", position=0, **options)
        self._steps = tqdm(desc="steps", unit="step", position=1, **options)
        self._write = partial(tqdm.write, file=sys.stderr, end="")
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
        self._log.write(text)
        if not self._quiet:
            self._write(text)

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
    """`progress.json` of the training that wrote last: a notebook may train several, each in a folder of its own."""
    times = {}
    for path in run.path.glob("**/progress.json"):
        with contextlib.suppress(FileNotFoundError):  # a training that starts anew removes it
            times[path] = path.stat().st_mtime
    recent = {path: when for path, when in times.items() if when > time.time() - 3600}
    return read_json(max(recent, key=recent.get), None) if recent else None
