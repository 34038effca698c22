"""Measured runs with documented ones: a figure, and the verdicts where unit and range are the same."""

import dataclasses
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd
from ipywidgets import BoundedFloatText

from ...curves.compare import documented_verdicts
from ...curves.curve import Curve, why_incomparable
from ...curves.documented import Baseline, as_baselines
from ...curves.figures import DescribedFigure, show_curves
from ...curves.measured import measured_groups
from ...errors import ParameterError, did_you_mean
from ...runs.findings import problem_of
from ...runs.run import Run
from ...runs.text import html_table, visible
from .controls import Choices, Explorer, control

NEAREST = 3  # documented runs that are chosen at first


@dataclasses.dataclass(frozen=True)
class RunComparison:
    """Groups of runs, one curve a seed, with documented ones; a line for each training that could not be used."""

    groups: dict[str, list[Curve]]
    left_out: list[str]
    figure: DescribedFigure
    verdicts: pd.DataFrame

    def _repr_html_(self) -> str:
        none = "" if self.groups else "<p>No finished run to compare with the documented ones.</p>"
        left_out = "".join(f"<li>{visible(line)}</li>" for line in self.left_out)
        left_out = f"<p>Left out:</p><ul>{left_out}</ul>" if left_out else ""
        rows = [[visible(str(value), 2000) for value in row] for row in self.verdicts.to_numpy()]
        caption = "Is the documented run one more seed? Pairs of the same unit and range"
        verdicts = html_table(rows, list(self.verdicts), caption) if rows else ""
        return self.figure._repr_html_() + verdicts + none + left_out


def compare_runs(
    runs: Sequence[Run],
    baselines: Iterable[Baseline | str],
    *,
    tolerance: float = 0.0,
    seed: int = 0,
    metric: str = "reward",
    title: str = "Measured and documented reward curves",
) -> RunComparison:
    """Group runs by what differs except the seed, draw them with documented ones, and judge pairs of one unit.

    Raises:
        ParameterError: nothing to draw, or a tolerance below 0.
    """
    baselines = as_baselines(baselines)
    groups, left_out = measured_groups(runs, metric)
    figure = show_curves(groups, baselines, title=title, metric=metric, seed=seed, columns=1)
    verdicts = documented_verdicts(groups, baselines, tolerance=tolerance, metric=metric)
    return RunComparison(groups, left_out, figure, verdicts)


def run_comparer(runs: Sequence[Run], baselines: Iterable[Baseline | str], *, interactive: bool = True, **options):
    """Pick runs and documented ones; see them in one figure, with the verdicts.

    Args:
        runs: to choose from; all are chosen at first.
        baselines: likewise, or their names; at first the three nearest to the runs are chosen (`nearest`).
        interactive: False returns the comparison of all and makes no widget.
        options: `tolerance`, the largest difference that still agrees, as the mean over a fifth of the points, in the unit of
            the metric (0: a tenth of the documented curve's range); `metric`, `seed` of the resamples, `title`.

    Returns:
        A widget, or a `RunComparison`.

    Raises:
        ParameterError: an option that there is not.
    """
    known = [name for name, one in inspect.signature(compare_runs).parameters.items() if one.kind is one.KEYWORD_ONLY]
    for name in options.keys() - known:
        raise ParameterError(
            f"run_comparer: no option {name!r}: {did_you_mean(name, known)}there are {', '.join(known)}"
        )
    runs, by_name = list(runs), {b.name: b for b in as_baselines(baselines)}
    if not interactive:
        return compare_runs(runs, by_name.values(), **options)

    def show(runs, documented, tolerance):
        chosen = [one for name, one in by_name.items() if name in documented]  # in their own order, as without a widget
        return compare_runs(runs, chosen, **options | {"tolerance": tolerance})

    ticked = "in the figure and the tables when ticked"
    largest = "largest difference that agrees; 0: a tenth of the range"
    metric = options.get("metric", "reward")
    first = [one.name for one in nearest(measured_groups(runs, metric)[0], by_name.values(), metric)]
    others = [name for name in by_name if name not in first]
    titles = [(by_name[name].title, name) for name in [*first, *others]]
    none = "none are there; `workbench run NOTEBOOK` makes one"
    controls = {
        "runs": Choices("runs", ticked, _labels(runs), empty=none),
        "documented": Choices("documented", ticked, titles, chosen=first),
        "tolerance": control(BoundedFloatText, "tolerance", largest, value=options.get("tolerance", 0), min=0, max=1e9),
    }
    return Explorer(show, controls)


def nearest(
    groups: Mapping[str, Sequence[Curve]], baselines: Iterable[Baseline], metric: str = "reward"
) -> list[Baseline]:
    """The three documented runs most like these: of one unit and range, then of one range, then of about as many steps.

    Example:
        >>> mine = {"mine": [Curve("mine", range(1, 101), range(-100, 0), "characters from the target of 200", high=0.0)]}
        >>> [one.name for one in nearest(mine, as_baselines(["rasbt-qwen3-0.6b-math-grpo-kl", "w3ng-qwen2.5-1.5b-tldr-grpo"]))]
        ['w3ng-qwen2.5-1.5b-tldr-grpo', 'rasbt-qwen3-0.6b-math-grpo-kl']
    """
    mine = [curve for group in groups.values() for curve in group]

    def distance(baseline: Baseline) -> tuple[bool, bool, float]:
        other = baseline.curve(metric)
        return min(
            (
                bool(why_incomparable(one, other)),
                (one.low, one.high) != (other.low, other.high),
                abs(math.log(max(other.x[-1], 1) / max(one.x[-1], 1))),
            )
            for one in mine
        )

    with_curve = [one for one in baselines if metric in one.curves]
    return sorted(with_curve, key=distance)[:NEAREST] if mine else with_curve[:NEAREST]


def _labels(runs: Sequence[Run]) -> Iterator[tuple[str, Run]]:
    """Each run under its notebook, id, state, what its audit found wrong, and the parameters in which the runs differ."""
    params = [run.params for run in runs]
    differing = [k for k in dict.fromkeys(k for p in params for k in p) if len({str(p.get(k)) for p in params}) > 1]
    for run, own in zip(runs, params, strict=True):
        varied = ", ".join(f"{k}={own[k]}" for k in differing if k in own)
        about = ", ".join(filter(None, [run.status["state"], problem_of(run)]))
        yield f"{run.notebook} {run.id} ({about}) {varied}".strip(), run
