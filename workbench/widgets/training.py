"""A training as it goes: curves, pace and completions from its run folder, and buttons that stop it and let it go on.

The view reads the folder alone, so it follows a run that trains elsewhere just as well. A button is heard only while the
kernel listens, and a training in its main thread leaves it no time to: ipykernel 7.4 answers the comms that a cell opened in
that thread even where JupyterLab sends them to a subshell. So `train_live` trains in a thread, which the cell awaits.
"""

from collections.abc import Callable

from ..runs import Run
from .progress import TrainingProgress


def watch(run: Run, *, train: Callable | None = None, every: float = 1.0):
    """A view of a run that follows its folder until the run ends, wherever it trains.

    Args:
        run: its folder.
        train: trains in this folder and goes on from its last checkpoint; gives the view its Continue button.
        every: seconds between looks.

    Returns:
        A widget, `TrainingView`.
    """
    from .training_view import TrainingView

    return TrainingView(run, train=train, every=every)


async def train_live(run: Run, train: Callable, *, interactive: bool = True):
    """Train and watch: `trainer = await train_live(run, partial(train_grpo, recipe, ..., out_dir=run.path))`.

    The view has a Stop button, which ends the training after its current step with a complete checkpoint, and then a Continue
    button; running the cell again goes on as well. So does the kernel's own interrupt, which here stops like the button.

    Args:
        run: the run folder that `train` records in.
        train: trains and returns the trainer; called again it goes on from the last checkpoint.
        interactive: False trains in the calling thread and makes no widget. Either way the end result is shown below.

    Returns:
        What `train` returns.

    Raises:
        TrainingStopped: it was stopped; the run is `interrupted` and can go on.
    """
    from IPython.display import display

    if interactive:
        view = watch(run, train=train)
        display(view)
        trainer = await view.trained()
    else:
        trainer = train()
    display(TrainingProgress(run))  # an ordinary output, which is saved with the notebook as a widget is not
    return trainer
