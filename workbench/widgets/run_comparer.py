"""Measured runs beside documented ones: a figure, and what can be compared at which level."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd
from ipywidgets import BoundedFloatText

from ..curves.baselines import Baseline
from ..curves.beside import show_beside
from ..curves.curve import Curve
from ..curves.figures import DescribedFigure, show_curves
from ..curves.levels import Levels, compare_levels
from ..curves.measured import measured_trainings
from ..runs.run import Run
from .controls import Choices, Explorer, control
from .markup import table, visible

_NONE = "<p>No finished run to compare with the documented ones.</p>"


@dataclasses.dataclass(frozen=True)
class RunComparison:
    """Groups of runs beside documented ones.

    Attributes:
        groups: group name -> curves, one a seed.
        left_out: a line for each training that could not be used, with the reason.
        figure: of both.
        levels: the tables; `levels.verdicts` has a row a pair on one axis, `levels.reasons` why others have none.
    """

    groups: dict[str, list[Curve]]
    left_out: list[str]
    figure: DescribedFigure
    levels: Levels

    def _repr_html_(self) -> str:
        left_out = "".join(f"<li>{visible(line)}</li>" for line in self.left_out)
        left_out = f"<p>Left out:</p><ul>{left_out}</ul>" if left_out else ""
        tables = (
            (self.levels.verdicts, "On one axis: unit and range are the same"),
            (self.levels.likeness, "By shape: which documented run a group is most and least like"),
            (self.levels.shapes, "The shapes, without units, with 95% intervals"),
            (self.levels.figures, "Figures that sources state, and the same of the groups"),
            (self.levels.reasons, "What cannot be compared on one axis, and why"),
        )
        shown = "".join(_as_html(found, caption) for found, caption in tables if len(found))
        return self.figure.html(shown + ("" if self.groups else _NONE) + left_out)


def _as_html(found: pd.DataFrame, caption: str) -> str:
    return table([[visible(str(value), 2000) for value in row] for row in found.to_numpy()], list(found), caption)


def compare_runs(
    runs: Sequence[Run],
    baselines: Iterable[Baseline],
    *,
    tolerance: float = 0.0,
    seed: int = 0,
    metric: str = "reward",
    title: str = "Measured and documented reward curves",
    **about,
) -> RunComparison:
    """Group runs by what differs beside the seed, draw them with documented ones and compare them at three levels.

    Args:
        runs: oldest first; those that are not done are left out and named.
        baselines: documented runs.
        tolerance: largest difference that still agrees, as the mean over a fifth of the points, in the metric's unit; 0
            for a tenth of the documented curve's range.
        seed: of the resamples.
        metric: of both.
        title: of the figure.
        about: `axis`, and `unit`, `low`, `high` for runs that do not record theirs; see `measured.run_curve`.

    Raises:
        ParameterError: nothing to draw, or a tolerance below 0.
    """
    baselines = list(baselines)
    trainings, left_out = measured_trainings(runs, metric, **about)
    groups = {name: [curve for _, curve in members] for name, members in trainings.items()}
    both = groups and any(metric in b.curves for b in baselines)
    draw = show_beside if both else show_curves
    figure = draw(groups, baselines, title=title, metric=metric, seed=seed)
    levels = compare_levels(trainings, baselines, tolerance=tolerance, metric=metric, seed=seed)
    return RunComparison(groups, left_out, figure, levels)


def run_comparer(
    runs: Sequence[Run],
    baselines: Iterable[Baseline],
    *,
    first: RunComparison | None = None,
    interactive: bool = True,
    **options,
):
    """Pick runs and documented ones; see them in one figure, and what can be compared at which level.

    Args:
        runs: to choose from; all are chosen at first.
        baselines: likewise.
        first: the comparison of all, where it is known.
        interactive: False returns the comparison of all and makes no widget.
        options: `tolerance` and others of `compare_runs`.

    Returns:
        A widget, or a `RunComparison`.
    """
    runs, by_name = list(runs), {b.name: b for b in baselines}
    if not interactive:
        return first or compare_runs(runs, by_name.values(), **options)

    def show(runs, documented, tolerance):
        chosen = [by_name[name] for name in documented]
        return compare_runs(runs, chosen, **options | {"tolerance": tolerance})

    titles = [(b.title, name) for name, b in by_name.items()]
    ticked, largest = (
        "in the figure and the tables when ticked",
        "largest difference that agrees; 0: a tenth of the range",
    )
    controls = {
        "runs": Choices("runs", ticked, _labels(runs)),
        "documented": Choices("documented", ticked, titles),
        "tolerance": control(BoundedFloatText, "tolerance", largest, value=options.get("tolerance", 0), min=0, max=1e9),
    }
    return Explorer(show, controls, first)


def _labels(runs: Sequence[Run]) -> Iterator[tuple[str, Run]]:
    """Each run under its notebook, id, state, and the parameters in which the runs differ."""
    params = [run.params for run in runs]
    differing = [k for k in dict.fromkeys(k for p in params for k in p) if len({str(p.get(k)) for p in params}) > 1]
    for run, own in zip(runs, params, strict=True):
        varied = ", ".join(f"{k}={own[k]}" for k in differing if k in own)
        yield f"{run.notebook} {run.id} ({run.status['state']}) {varied}".strip(), run
