"""The figure that ends a notebook: what was measured beside what was documented."""

import itertools
import math
import string
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..errors import ParameterError
from ..runs.run import Run
from .baselines import Baseline
from .curve import Curve, why_incomparable
from .figures import COLORS, DescribedFigure, caption_of, describe_curve, draw_panel, panels_of, series_of, to_draw
from .shape import outlines, running_means, start_and_rise, window_of

COLUMNS = 3  # of the small panels


def show_beside(
    measured: Mapping[str, Sequence[Curve] | Sequence[Run]],
    documented: Sequence[Baseline],
    *,
    title: str,
    metric: str = "reward",
    said: str = "",
    seed: int = 0,
) -> DescribedFigure:
    """Measured groups beside documented runs: on one axis where unit and range are the same, else as shapes without units.

    A shape is drawn in a small panel of its own: y from 0, the mean of the first steps, to 1, the best running mean; x
    is the share of the steps. Shapes say how a curve rises, never how high.

    Args:
        measured: name -> runs or curves, one a seed.
        documented: baselines; those without numbers for the metric are named in the caption.
        title: of the figure.
        metric: of the runs' logs and of the baselines.
        said: the source's own words, where it gives no curve; they stand in the caption, as words.
        seed: of the resamples.

    Raises:
        ParameterError: nothing measured, or neither a documented curve nor words to stand beside it; a group without
            runs, or seeds of one group that cannot be compared.
        RunError: a run whose log does not give a curve.
    """
    found = to_draw(measured, documented, metric)
    ours, theirs = [one for one in found if not one[2]], [one for one in found if one[2]]
    if not ours:
        raise ParameterError("nothing measured to draw: no runs")
    if not theirs and not said:
        raise ParameterError(f"no baseline has a curve {metric!r}: give the source's words as said='...'")
    panels_of(found)  # refuses seeds that cannot be compared
    shared = [one for one in found if any(_fit(one, other) for other in _others(one, ours, theirs))] if theirs else ours
    apart = [one for one in found if not all(_fit(one, other) for other in _others(one, ours, theirs))]
    letters, rng = itertools.cycle(string.ascii_uppercase), np.random.default_rng(seed)
    panels = [[series_of(next(letters), *one, rng=rng) for one in panel] for panel in panels_of(shared)]
    figure = _drawn(panels, apart, metric)
    figure.suptitle(title)
    sentences = [one.sentence for panel in panels for one in panel] + [_sentence(one) for one in apart]
    tables = [one.table for panel in panels for one in panel] + [_table(one) for one in apart]
    without = [b.title for b in documented if metric not in b.curves]
    return DescribedFigure(
        figure,
        alt=f"{title}. {len(figure.axes)} panel{'s' * (len(figure.axes) > 1)}. {' '.join(sentences)}",
        table=pd.concat(tables, ignore_index=True),
        caption=_caption(panels, apart, without, metric, said),
    )


def _fit(one: tuple, other: tuple) -> bool:
    return not why_incomparable(one[1][0], other[1][0])


def _others(one: tuple, ours: list[tuple], theirs: list[tuple]) -> list[tuple]:
    return ours if one[2] else theirs


def _drawn(panels: list[list], apart: list[tuple], metric: str) -> Figure:
    """Panels with units above, two in a row, then the shapes."""
    above, below = math.ceil(len(panels) / 2), math.ceil(len(apart) / COLUMNS)
    heights = [4.4 * above, 2.5 * below]
    figure = Figure(figsize=(10, sum(heights) + 0.5), layout="constrained")
    parts = iter(
        figure.subfigures(sum(h > 0 for h in heights), 1, height_ratios=[h for h in heights if h], squeeze=False)
    )
    if panels:
        part = next(parts)[0]
        for n, panel in enumerate(panels, 1):
            draw_panel(part.add_subplot(above, min(2, len(panels)), n), panel, metric)
    if apart:
        part = next(parts)[0]
        for n, one in enumerate(apart):
            ax = part.add_subplot(below, COLUMNS, n + 1)
            _draw_shape(ax, *one)
            ax.set(xlabel="share of the steps" if n >= len(apart) - COLUMNS else "")
            ax.set(ylabel="share of the rise" if n % COLUMNS == 0 else "")
    return figure


def _shapes(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Share of the steps (points,), and y of each seed (seeds, points), normalised as the mean over seeds is."""
    share, y = outlines(curves)
    start, rise = start_and_rise(y.mean(axis=0))
    return share, (y - start) / (rise or 1.0)


def _draw_shape(ax, name: str, curves: Sequence[Curve], documented: bool) -> None:
    share, y = _shapes(curves)
    color, window = COLORS[1 if documented else 0], window_of(len(share))
    for one in y:
        ax.plot(share, one, color=color, linewidth=0.6, alpha=0.5)
    ax.plot(running_means(share, window), running_means(y.mean(axis=0), window), color=color, linewidth=2)
    ax.set(xlim=(0, 1), ylim=(-0.6, 1.6), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    ax.grid(alpha=0.25)
    kind = "documented" if documented else f"{len(curves)} seed{'s' * (len(curves) > 1)}"
    ax.set_title("\n".join(textwrap.wrap(f"{name} ({kind})", 44)), fontsize=8.5)


def _table(one: tuple) -> pd.DataFrame:
    name, curves, documented = one
    share, y = _shapes(curves)
    kind = "documented" if documented else "measured"
    columns = {"series": name, "kind": kind, "unit": "share of the rise", "x": share, "value": y.mean(axis=0)}
    return pd.DataFrame(columns | {"low": np.nan, "high": np.nan})


def _sentence(one: tuple) -> str:
    share, y = _shapes(one[1])
    return describe_curve(f"The shape of {one[0]}", (100 * share).tolist(), y.mean(axis=0)).replace(
        " steps;", "% of it;"
    )


def _caption(panels: list[list], apart: list[tuple], without: list[str], metric: str, said: str) -> str:
    text = [caption_of(panels, without if not said else [], metric, 1)] if panels else []
    if apart:
        text.append(
            "Small panels: shapes without units, measured (blue) and documented (red). Their y runs from 0, the mean of the "
            "first steps, to 1, the best running mean; x is the share of the steps that the curve covers. How high one "
            "curve is cannot be compared with another there. Thin lines: single seeds; thick: the running mean over a "
            "tenth of the steps."
        )
    if said:
        text.append(f"Documented in words, without numbers: {said}")
    return " ".join(text)
