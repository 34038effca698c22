"""Measured runs against documented curves, in one figure: what can be compared on one axis, what cannot stands beside it."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from .baselines import Baseline
from .curves import Curve, on_common_x, running_mean, why_incomparable
from .errors import ParameterError
from .plots import COLORS, STYLES, WINDOW, Shown, describe_curve
from .stats import seed_interval

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_AXIS = {"step": "step", "elapsed_s": "seconds of training", "prompts": "prompts"}


def show_comparison(
    measured: Mapping[str, Sequence[Curve]],
    documented: Sequence[Baseline],
    rng: np.random.Generator,
    *,
    title: str,
    metric: str = "reward",
) -> Shown:
    """Seeds of each measured group as IQM, band and thin traces; documented points as markers.

    Curves of another unit, range or x-axis get a panel of their own, and the caption says so.

    Args:
        measured: name -> curves, one a seed.
        documented: baselines; those without a numeric curve of the metric are named in the caption.
        rng: decides the bootstrap of the bands.
        title: of the figure.
        metric: curve of the baselines, and the label of the axes.

    Raises:
        ParameterError: nothing to draw, a group without runs, or seeds of one group that cannot be compared.
    """
    series = [(name, list(curves), None) for name, curves in measured.items()]
    series += [(b.title, [b.curve(metric)], b) for b in documented if metric in b.curves]
    if not series:
        raise ParameterError(f"nothing to draw: no runs, and no baseline has a curve {metric!r}")
    panels = _panels(series)
    columns = 1 if len(panels) == 1 else 2
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(9 if columns == 1 else 14, 4.6 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    tables, sentences = [], []
    letters = iter("ABCDEFGHIJKLMNOPQRSTUVWXYZ" * 4)
    for ax, panel in zip(axes, panels, strict=False):
        ends = []
        for n, (name, curves, baseline) in enumerate(panel):
            letter = next(letters)
            draw = _draw_documented if baseline else _draw_measured
            table = draw(ax, f"{letter}  {name}", curves, rng, n)
            ends.append((letter, table["x"].iloc[-1], table["value"].iloc[-1], COLORS[n % len(COLORS)]))
            tables.append(table.assign(series=name, kind="documented" if baseline else "measured", unit=curves[0].unit))
            who = f"{letter}, {name} ({'documented' if baseline else f'{len(curves)} seeds'})"
            sentences.append(describe_curve(who, table["x"].tolist(), table["value"]))
        _finish(ax, panel[0][1][0], metric, ends)
    for ax in axes[len(panels) :]:
        ax.remove()
    figure.suptitle(title)
    return Shown(
        figure,
        alt=f"{title}. {len(panels)} panel{'s' * (len(panels) > 1)}. {' '.join(sentences)}",
        table=pd.concat(tables, ignore_index=True)[["series", "kind", "unit", "x", "value", "low", "high"]],
        caption=_caption(panels, [b for b in documented if metric not in b.curves], metric),
    )


def _panels(series: list) -> list[list]:
    """Series that belong on one axis, together; each group's own seeds have to."""
    panels: list[list] = []
    for name, curves, baseline in series:
        if not curves:
            raise ParameterError(f"group {name!r} has no runs")
        for other in curves[1:]:
            if reason := why_incomparable(curves[0], other):
                raise ParameterError(f"group {name!r}: {reason}")
        home = next((p for p in panels if not why_incomparable(p[0][1][0], curves[0])), None)
        if home is None:
            panels.append(home := [])
        home.append((name, curves, baseline))
    return panels


def _draw_measured(ax, label: str, curves: list[Curve], rng, n: int) -> pd.DataFrame:
    color, style = COLORS[n % len(COLORS)], STYLES[n % len(STYLES)]
    for curve in curves:
        ax.plot(curve.x, curve.y, color=color, linewidth=0.6, alpha=0.5)
    if len(curves) == 1:
        x, middle = curves[0].x, running_mean(curves[0].y, WINDOW)
        low = high = np.full(len(x), np.nan)
        label += ", n = 1 seed, no band"
    else:
        x, values = on_common_x(curves)
        band = seed_interval(values, rng)
        middle, low, high = band.estimate, band.low, band.high
        label += f", n = {len(curves)} seeds"
        ax.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    ax.plot(x, middle, color=color, linestyle=style, linewidth=2, label=label)
    return pd.DataFrame({"x": x, "value": middle, "low": low, "high": high})


def _draw_documented(ax, label: str, curves: list[Curve], rng, n: int) -> pd.DataFrame:
    (curve,) = curves
    style = {"marker": MARKERS[n % len(MARKERS)], "markersize": 4, "markerfacecolor": "white"}
    ax.plot(curve.x, curve.y, color=COLORS[n % len(COLORS)], linewidth=0.8, linestyle=":", label=label, **style)
    return pd.DataFrame({"x": curve.x, "value": curve.y, "low": np.nan, "high": np.nan})


def _finish(ax, curve: Curve, metric: str, ends: list) -> None:
    """Axis labels, legend below, and each series' letter at its end, moved apart where they would overlap."""
    ax.set(xlabel=_AXIS[curve.axis], ylabel=f"{metric} [{curve.unit}]")
    ax.grid(alpha=0.25)
    ax.margins(x=0.06)
    low, high = ax.get_ylim()
    gap, at = 0.055 * (high - low), -np.inf
    for letter, x, y, color in sorted(ends, key=lambda e: e[2]):
        at = max(y, at + gap)
        ax.annotate(letter, (x, at), xytext=(7, 0), textcoords="offset points", color=color, weight="bold", va="center")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize=9, frameon=False)


def _caption(panels: list, without: list[Baseline], metric: str) -> str:
    groups = [curves for panel in panels for _, curves, baseline in panel if not baseline]
    text = []
    if any(len(curves) > 1 for curves in groups):
        text.append(
            "Solid band: 95% bootstrap interval, step by step, of the interquartile mean over n seeds (thick line); thin "
            "lines: single seeds."
        )
    if any(len(curves) == 1 for curves in groups):
        text.append(
            f"A group of 1 seed has no band, how far another seed would be is unknown; thick line: mean of {WINDOW} steps."
        )
    if any(baseline for panel in panels for *_, baseline in panel):
        text.append("Markers: documented, one run each, points of a long log are means over several steps.")
    if len(panels) > 1:
        heads = [panel[0][1][0] for panel in panels]
        kinds = "; ".join(f"{c.unit} in {c.range} over {_AXIS[c.axis]}" for c in heads)
        text.append(
            f"Each panel has its own unit or range, no curve of one can be compared with one of another: {kinds}."
        )
    if without:
        text.append(f"No numeric {metric} curve was published for {', '.join(b.title for b in without)}.")
    return " ".join(text)
