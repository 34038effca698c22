"""Measured runs beside documented ones: a figure, and pair by pair whether they agree."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd
from ipywidgets import BoundedFloatText

from ..curves.agreement import Agreement, agreement
from ..curves.baselines import Baseline
from ..curves.curve import Curve
from ..curves.figures import DescribedFigure, show_curves
from ..curves.measured import measured_groups
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
        verdicts: DataFrame `measured, seeds, documented, verdict, why`, a row a pair; empty without runs.
    """

    groups: dict[str, list[Curve]]
    left_out: list[str]
    figure: DescribedFigure
    verdicts: pd.DataFrame

    def _repr_html_(self) -> str:
        left_out = "".join(f"<li>{visible(line)}</li>" for line in self.left_out)
        left_out = f"<p>Left out:</p><ul>{left_out}</ul>" if left_out else ""
        cells = [[visible(str(value)) for value in row] for row in self.verdicts.to_numpy()]
        verdicts = table(cells, list(self.verdicts), "Each group beside each documented run") if cells else _NONE
        return self.figure._repr_html_() + left_out + verdicts


def compare_runs(
    runs: Sequence[Run],
    baselines: Iterable[Baseline],
    *,
    tolerance: float,
    seed: int = 0,
    metric: str = "reward",
    title: str = "Measured and documented reward curves",
    **about,
) -> RunComparison:
    """Group runs by what differs beside the seed, draw them with documented ones and judge each pair.

    Args:
        runs: oldest first; those that are not done are left out and named.
        baselines: documented runs.
        tolerance: largest difference that still agrees, as the mean over a fifth of the points, in the metric's unit.
        seed: of the resamples.
        metric: of both.
        title: of the figure.
        about: `axis`, and `unit`, `low`, `high` for runs that do not record theirs; see `measured.run_curve`.

    Raises:
        ParameterError: nothing to draw, or a tolerance that is not above 0.
    """
    baselines = list(baselines)
    groups, left_out = measured_groups(runs, metric, **about)
    figure = show_curves(groups, baselines, title=title, metric=metric, seed=seed)
    rows = []
    for name, curves in groups.items():
        for baseline in baselines:
            found = Agreement("cannot compare", "no numeric curve was published")
            if metric in baseline.curves:
                found = agreement(curves, baseline.curve(metric), tolerance=tolerance)
            row = {"measured": name, "seeds": len(curves), "documented": baseline.title}
            rows.append(row | {"verdict": found.verdict, "why": found.reason})
    return RunComparison(groups, left_out, figure, pd.DataFrame(rows))


def run_comparer(
    runs: Sequence[Run],
    baselines: Iterable[Baseline],
    *,
    first: RunComparison | None = None,
    interactive: bool = True,
    **options,
):
    """Pick runs and documented ones; see them in one figure, and whether they agree.

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
    ticked, largest = "in the figure and the table when ticked", "largest difference that agrees"
    controls = {
        "runs": Choices("runs", ticked, _labels(runs)),
        "documented": Choices("documented", ticked, titles),
        "tolerance": control(BoundedFloatText, "tolerance", largest, value=options["tolerance"], min=1e-9, max=1e9),
    }
    return Explorer(show, controls, first)


def _labels(runs: Sequence[Run]) -> Iterator[tuple[str, Run]]:
    """Each run under its notebook, id, state, and the parameters in which the runs differ."""
    params = [run.params for run in runs]
    differing = [k for k in dict.fromkeys(k for p in params for k in p) if len({str(p.get(k)) for p in params}) > 1]
    for run, own in zip(runs, params, strict=True):
        varied = ", ".join(f"{k}={own[k]}" for k in differing if k in own)
        yield f"{run.notebook} {run.id} ({run.status['state']}) {varied}".strip(), run
