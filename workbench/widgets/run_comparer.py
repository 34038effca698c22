"""Measured runs with documented ones: a figure, and the verdicts where unit and range are the same."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd
from ipywidgets import BoundedFloatText

from ..curves.compare import documented_verdicts
from ..curves.curve import Curve
from ..curves.documented import Baseline
from ..curves.figures import DescribedFigure, show_curves
from ..curves.measured import measured_groups
from ..runs.run import Run
from ..runs.text import visible
from .controls import Choices, Explorer, control
from .markup import table

_NONE = "<p>No finished run to compare with the documented ones.</p>"


@dataclasses.dataclass(frozen=True)
class RunComparison:
    """Groups of runs with documented ones.

    Attributes:
        groups: group name -> curves, one a seed.
        left_out: a line for each training that could not be used, with the reason.
        figure: of both.
        verdicts: of pairs that share unit, range and axis, see `documented_verdicts`.
    """

    groups: dict[str, list[Curve]]
    left_out: list[str]
    figure: DescribedFigure
    verdicts: pd.DataFrame

    def _repr_html_(self) -> str:
        left_out = "".join(f"<li>{visible(line)}</li>" for line in self.left_out)
        left_out = f"<p>Left out:</p><ul>{left_out}</ul>" if left_out else ""
        caption = "Is the documented run one more seed? Pairs of the same unit and range"
        shown = _as_html(self.verdicts, caption) if len(self.verdicts) else ""
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
    """Group runs by what differs except the seed, draw them with documented ones, and judge pairs of one unit.

    Args:
        runs: oldest first; those that are not done are left out and named.
        baselines: documented runs.
        tolerance: largest difference that still agrees, as the mean over a fifth of the points, in the metric's unit; 0
            for a tenth of the documented curve's range.
        seed: of the resamples.
        metric: of both.
        title: of the figure.
        about: `axis`, and `unit`, `low`, `high` for runs that do not record them; see `measured.run_curve`.

    Raises:
        ParameterError: nothing to draw, or a tolerance below 0.
    """
    baselines = list(baselines)
    groups, left_out = measured_groups(runs, metric, **about)
    figure = show_curves(groups, baselines, title=title, metric=metric, seed=seed)
    verdicts = documented_verdicts(groups, baselines, tolerance=tolerance, metric=metric)
    return RunComparison(groups, left_out, figure, verdicts)


def run_comparer(
    runs: Sequence[Run],
    baselines: Iterable[Baseline],
    *,
    first: RunComparison | None = None,
    interactive: bool = True,
    **options,
):
    """Pick runs and documented ones; see them in one figure, with the verdicts.

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
