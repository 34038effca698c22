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
from .figures import COLORS, DescribedFigure, Series, caption_of, draw_panel, panels_of, series_of, to_draw
from .likeness import Shaped, shapes_of
from .shape import outlines, running_means, start_and_rise, window_of

COLUMNS = 3  # of the small panels
_MARK = {"color": "black", "marker": "o", "markersize": 3.5, "capsize": 2.5, "linewidth": 1}
_IN_WORDS = {
    "yes": "rises",
    "yes, then loses it": "rises, then loses it",
    "no, falls": "falls",
    "not shown": "no rise shown",
    "too short": "too short for a shape",
}


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
    shared = (
        [one for one in found if any(_fit(one, other) for other in (ours if one[2] else theirs))] if theirs else ours
    )
    apart = {one[0] for one in found if not all(_fit(one, other) for other in (ours if one[2] else theirs))}
    letters, rng = itertools.cycle(string.ascii_uppercase), np.random.default_rng(seed)
    panels = [[series_of(next(letters), *one, rng=rng) for one in panel] for panel in panels_of(shared)]
    shaped = (
        shapes_of({name: curves for name, curves, _ in ours}, documented, metric=metric, seed=seed) if apart else []
    )
    shaped = [one for one in shaped if one.name in apart]
    figure = _drawn(panels, shaped, metric)
    figure.suptitle(title)
    drawn = [one for panel in panels for one in panel]
    sentences = [one.sentence for one in drawn] + [_sentence(one) for one in shaped]
    without = [b.title for b in documented if metric not in b.curves]
    return DescribedFigure(
        figure,
        alt=f"{title}. {len(figure.axes)} panel{'s' * (len(figure.axes) > 1)}. {' '.join(sentences)}",
        table=pd.concat([*(one.table for one in drawn), *(_table(one) for one in shaped)], ignore_index=True),
        caption=_caption(panels, shaped, without, metric, said),
    )


def _fit(one: tuple, other: tuple) -> bool:
    return not why_incomparable(one[1][0], other[1][0])


def _drawn(panels: list[list[Series]], shaped: Sequence[Shaped], metric: str) -> Figure:
    """Panels with units above, one a row since their legends are wide, then the shapes."""
    tall, below = [4.0 + 0.2 * len(panel) for panel in panels], math.ceil(len(shaped) / COLUMNS)
    heights = [height for height in (sum(tall), 2.6 * below) if height]
    figure = Figure(figsize=(10, sum(heights) + 0.5), layout="constrained")
    parts = list(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    if panels:
        for row, panel in zip(parts[0].add_gridspec(len(panels), 1, height_ratios=tall), panels, strict=True):
            draw_panel(parts[0].add_subplot(row), panel, metric)
    for n, one in enumerate(shaped):
        ax = parts[-1].add_subplot(below, COLUMNS, n + 1)
        _draw_shape(ax, one)
        ax.set(xlabel="share of the steps" if n >= len(shaped) - COLUMNS else "")
        ax.set(ylabel="share of the rise" if n % COLUMNS == 0 else "")
    return figure


def _normalised(one: Shaped) -> tuple[np.ndarray, np.ndarray]:
    """Share of the steps (points,), and y of each seed (seeds, points) on the scale of their mean.

    Without a rise there is no such scale: then 1 is the largest distance of the mean from its start.
    """
    share, y = outlines(one.curves)
    start, rise = start_and_rise(y.mean(axis=0))
    away = y - start
    return share, away / ((rise if one.shape.rises else np.abs(away.mean(axis=0)).max()) or 1.0)


def _draw_shape(ax, one: Shaped) -> None:
    share, y = _normalised(one)
    window, half = window_of(len(share)), one.shape.numbers["half reached"]
    color = COLORS[1 if one.documented else 0] if one.shape.rises else "0.45"
    for seed in y:
        ax.plot(share, seed, color=color, linewidth=0.6, alpha=0.5)
    style = "--" if one.documented else "-"
    ax.plot(running_means(share, window), running_means(y.mean(axis=0), window), style, color=color, linewidth=2)
    if np.isfinite(half.low):
        ax.errorbar(half.estimate, 0.5, xerr=[[half.estimate - half.low], [half.high - half.estimate]], **_MARK)
    ax.set(xlim=(0, 1), ylim=(-0.6, 1.6) if one.shape.rises else (-1.6, 1.6), xticks=[0, 0.5, 1])
    ax.set(yticks=[0, 0.5, 1] if one.shape.rises else [0])
    ax.grid(alpha=0.25)
    kind = "documented" if one.documented else f"{one.shape.seeds}\xa0seed{'s' * (one.shape.seeds > 1)}"
    lines = [*textwrap.wrap(f"{one.name} ({kind})", 44), _IN_WORDS[one.shape.learns]]
    ax.set_title("\n".join(lines).replace("\xa0", " "), fontsize=8.5)


def _table(one: Shaped) -> pd.DataFrame:
    share, y = _normalised(one)
    columns = {"series": one.name, "kind": "documented" if one.documented else "measured", "unit": "share of the rise"}
    return pd.DataFrame(columns | {"x": share, "value": y.mean(axis=0), "low": np.nan, "high": np.nan})


def _sentence(one: Shaped) -> str:
    half = one.shape.numbers["half reached"]
    where = f", half of it at {100 * half.estimate:.0f}% of the steps" if np.isfinite(half.estimate) else ""
    return f"The shape of {one.name}{' (documented)' * one.documented}: {_IN_WORDS[one.shape.learns]}{where}."


def _caption(panels: list[list[Series]], shaped: Sequence[Shaped], without: list[str], metric: str, said: str) -> str:
    text = [caption_of(panels, [] if said else without, metric, 1)] if panels else []
    if shaped:
        text.append(
            "Small panels: shapes without units, measured (blue) and documented (red, dashed). y runs from 0, the mean of "
            "the first steps, to 1, the best running mean; x is the share of the steps that the curve covers. They say how "
            "a curve rises, not how high. Thin: single seeds; thick: running mean over a tenth of the steps. Black: where "
            "half of the rise is reached, 95% interval, between seeds or of one curve within the run. Grey: no rise was "
            "shown or it falls, so there is no scale; 0 is the start."
        )
        if without and not (panels or said):
            text.append(f"No numeric {metric} curve was published for {', '.join(without)}.")
    if said:
        text.append(f"Documented in words, without numbers: {said}")
    return " ".join(text)
