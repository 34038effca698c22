"""What a person sees as runs go on: a bar for cells, one for training steps, the notebook's own output; a bar over many."""

import contextlib
import sys
import threading
from collections.abc import Sequence

from tqdm import tqdm

from ...runs.files import append_plain
from ...runs.run import Run
from ...runs.secrets import stream_hider
from ...runs.summary import RunSummary, latest_progress, steps_of, unreadable
from ...runs.text import one_line, printable


class Display:
    """Shows a run on stderr and writes the notebook's output to `log.txt` as it comes.

    On a terminal there are live bars; elsewhere (a log file, Slurm) only the notebook's own lines.
    """

    def __init__(self, run: Run, quiet: bool = False):
        self._run, self._quiet = run, quiet
        self._stop, self._hide = threading.Event(), stream_hider()

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

    def starting(self) -> None:
        """Say why nothing is seen for a while."""
        if not self._quiet:
            with contextlib.suppress(OSError):  # the reader left, as `| head` does; the run goes on
                tqdm.write("starting the kernel; the imports of the first cell take a while", file=sys.stderr)

    def cell_start(self, index: int, total: int) -> None:
        self._cells.total = total
        self._cells.refresh()

    def cell_done(self, index: int) -> None:
        self._cells.update(index + 1 - self._cells.n)

    def write(self, text: str) -> None:
        """A piece of the notebook's output; the file half of papermill's `stdout_file`."""
        text = self._hide(text)
        self._log.write(text)
        if not self._quiet:
            try:
                tqdm.write(printable(text), file=sys.stderr, end="")
            except OSError:  # whoever read it is gone, as with `| head`; the run goes on
                self._quiet = True

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
            line = f"{entry.name}: {entry.problem or RunSummary.of(entry.run).outcome_and_audit}"
        except Exception as error:  # whatever is odd in one run, the others go on
            line = unreadable(entry.run, error)
        self.say(f"[{self._ended}/{len(self._entries)}] {line}")

    def say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the reader left, as `| head` does; the other runs go on
            tqdm.write(one_line(line), file=sys.stderr)
