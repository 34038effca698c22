"""A training with a Stop and a Continue button, its state, and what its run folder says: `train_live` and `watch`."""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable

import ipywidgets
from IPython.display import display
from ipywidgets import Button

from ...errors import RunError, TrainingStopped
from ...runs import lock
from ...runs.findings import problem_of
from ...runs.run import Run
from ...runs.stop_request import clear_stop, request_stop, stop_request
from ..batch.audit import problem_so_far
from .controls import as_jupyter_output, status_line
from .progress import TrainingProgress

_STATES = {
    "ready": "nothing trains yet",
    "queued": "waits for its turn",
    "running": "trains in another process",
    "training": "Stop ends it after its current step, with a complete checkpoint",
    "stopping": "ends after its current step",
    "trained": "the training is over; run the cells below",
    "done": "the run is complete",
    "failed": "see the error",
    "interrupted": "can go on from its last checkpoint",
}
_ENDED = ("trained", "done", "failed", "interrupted")


async def train_live(run: Run, train: Callable, *, interactive: bool = True):
    """Train and watch: `trainer = await train_live(run, partial(train, recipe, ..., record_dir=run.path))`.

    The view has a Stop button, which ends the training after its current step with a complete checkpoint, and then a Continue
    button; running the cell again goes on as well. The kernel's own interrupt does here what the Stop button does.

    Args:
        run: the run folder that `train` records in.
        train: trains and returns the trainer; called again it goes on from the last checkpoint.
        interactive: False trains in the calling thread and makes no widget; the kernel's interrupt ends it at once. Either way
            the end result is shown below.

    Returns:
        What `train` returns.

    Raises:
        TrainingStopped: it was stopped; the run is `interrupted` and can go on.
    """
    if interactive:
        view = TrainingView(run, train=train)
        display(view)
        trainer = await view.trained()
    else:
        with _interrupted_at_once():
            trainer = train()
    display(TrainingProgress(run))  # an ordinary output, which is saved with the notebook as a widget is not
    return trainer


@contextlib.contextmanager
def _interrupted_at_once():
    """Ctrl-C raises KeyboardInterrupt. While a cell awaits something, a kernel would cancel it, once it awaits again."""
    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class TrainingView(ipywidgets.VBox):
    """Stop and Continue above the state and the progress of a run, followed until the run ends, wherever it trains.

    Args:
        run: the run folder.
        train: trains in it, or goes on from its last checkpoint: what Continue does; None for a run that trains elsewhere.
        every: seconds between looks at the folder; fewer looks where drawing takes long.

    Attributes:
        stop, go_on: the buttons.
        state, result: HTML widgets, the state's line and the progress.
        trainer: what `train` returned.
        error: what it raised.
        folded: show no progress, because the cell shows it below.
    """

    def __init__(self, run: Run, *, train: Callable | None = None, every: float = 1.0):
        self.run, self.train, self.every = run, train, every
        self.trainer = self.error = self._training = self._following = None
        self.folded = False
        self._problem = ""  # that the audit finds when the training of this view is over
        self._lock, self._closed = threading.Lock(), threading.Event()
        stop_help = "ends the training after its current step; it can go on later"
        wide = ipywidgets.Layout(width="14em")
        self.stop = Button(description="Stop after this step", icon="stop", tooltip=stop_help, layout=wide)
        go_on_help = "goes on from the last complete checkpoint"
        self.go_on = Button(description="Continue", icon="play", tooltip=go_on_help, layout=wide)
        self.stop.on_click(self._ask_to_stop)
        self.go_on.on_click(lambda _: self.start())
        self.state, self.result = ipywidgets.HTML(), ipywidgets.HTML()
        super().__init__([ipywidgets.HBox([self.stop, self.go_on]), self.state, self.result])
        self.refresh()
        if train is None:
            self._follow()

    @property
    def training(self) -> bool:
        """Whether the training goes on in a thread of this view."""
        return self._training is not None and self._training.is_alive()

    @property
    def now(self) -> tuple[str, str]:
        """The state, one word, and the error that belongs to it."""
        if self.training or (self.train is not None and lock.trains(self.run.path)):
            return ("stopping" if stop_request(self.run.path) else "training"), ""
        if isinstance(self.error, TrainingStopped):
            return "interrupted", str(self.error)
        if self.error is not None:
            return "failed", f"{type(self.error).__name__}: {self.error}"
        if self.trainer is not None:
            return "trained", ""
        status = self.run.status
        if self.train is not None and status["state"] == "running":  # this kernel's own, between trainings
            return "ready", ""
        asked = status["state"] == "running" and stop_request(self.run.path)
        return ("stopping" if asked else status["state"]), status.get("error") or ""

    def start(self) -> None:
        """Train in a thread, from the last checkpoint if there is one; only follows what this kernel trains there already."""
        if self.training:
            return
        if not lock.trains(self.run.path):
            clear_stop(self.run)
            self.trainer, self.error, self.folded, self._problem = None, None, False, ""
            self._training = threading.Thread(target=self._train, name="training", daemon=True)
            self._training.start()
        self.refresh()
        self._follow()

    async def trained(self):
        """Start, and wait for the end; the kernel's interrupt asks for a stop, as the button does."""
        if lock.trains(self.run.path) and not self.training:
            raise RunError(
                f"{self.run.path}: trains already, in another view of this kernel; stop that, or wait for it"
            )
        self.start()
        while self.training:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                request_stop(self.run, "stopped by the kernel's interrupt")
        self.folded = self.error is None
        self.refresh()
        if isinstance(self.error, TrainingStopped):
            brief = [f"TrainingStopped: {self.error}", "Continue, or running this cell again, goes on from there."]
            self.error._render_traceback_ = lambda: brief  # IPython's hook: the frames of the trainer say nothing here
        if self.error is not None:
            raise self.error
        return self.trainer

    def refresh(self) -> None:
        """Look at the folder and show what it says."""
        with self._lock:
            state, error = self.now  # read before the progress, which is then at least as new
            self.result.value = "" if self.folded else self._progress()
            problem = problem_of(self.run) if state == "done" else self._problem
            text = ". ".join(filter(None, [_STATES[state], error, problem]))
            self.state.value = status_line(state, text, problem=bool(problem))
            self.stop.disabled = state not in ("training", "running", "queued")
            self.go_on.disabled = self.train is None or state not in ("ready", "interrupted", "failed")

    def close(self) -> None:
        """Stop following; the training, if there is one, goes on."""
        self._closed.set()
        super().close()

    def _progress(self) -> str:
        try:
            return as_jupyter_output(TrainingProgress(self.run)._repr_html_())
        except Exception as error:  # in a thread nobody would see it
            return status_line("failed", f"{type(error).__name__}: {error}")

    def _ask_to_stop(self, _) -> None:
        request_stop(self.run, "stopped by its button")
        self.stop.disabled = True
        self.state.value = status_line("stopping", _STATES["stopping"])

    def _train(self) -> None:
        try:
            with lock.only_training(self.run.path):
                trainer = self.train()
            self._problem = problem_so_far(self.run)
            self.trainer = trainer
        except BaseException as error:  # shown by the view, and raised by `trained`
            self.error = error

    def _follow(self) -> None:
        """Refresh in a thread until the run ends or the view is closed; a thread that followed before ends."""
        self._closed.set()
        self._closed = threading.Event()
        self._following = threading.Thread(target=self._look, args=(self._closed,), name="training view", daemon=True)
        self._following.start()

    def _look(self, closed: threading.Event) -> None:
        cost = 0.0
        while not closed.wait(max(self.every, 5 * cost)):
            ended = self.now[0] in _ENDED  # asked first: what was written until then is shown once more
            began = time.monotonic()
            self.refresh()
            cost = time.monotonic() - began
            if ended:
                return


watch = TrainingView  # what a notebook calls, as it calls the explorers
