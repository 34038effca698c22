"""Figures that say what they show: each has an alt text, a caption, and its data as a table.

A band means one thing in all of them: the 95% interval over seeds of the interquartile mean.
"""

import base64
import dataclasses
import html
import io
import itertools
import math
import string
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from ..errors import ParameterError
from ..runs.run import Run
from .baselines import Baseline
from .curve import AXES, Curve, on_common_x, running_mean, why_incomparable
from .measured import run_curve
from .stats import Interval, one_seed, seed_interval

# Okabe and Ito's colours, told apart with every common colour blindness; line styles tell series apart without colour.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
WINDOW = 10  # steps in the running mean of a single run


class DescribedFigure:
    """A finished figure with alt text, caption and data; shows itself in notebooks and reports.

    Args:
        figure: a matplotlib figure made without pyplot (pyplot would show it a second time).
        alt: what the figure says, for readers who cannot see it.
        table: the plotted data.
        caption: how to read it: meaning of bands, number of seeds.
    """

    def __init__(self, figure: Figure, *, alt: str, table: pd.DataFrame, caption: str = ""):
        self.figure, self.alt, self.table, self.caption = figure, alt, table, caption

    def png(self) -> bytes:
        """The figure as a PNG file."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=120, bbox_inches="tight", facecolor="white")
        return buffer.getvalue()

    def _repr_html_(self) -> str:
        return self.html()

    def html(self, between: str = "") -> str:
        """The figure with its caption, and its data folded up; `between` is HTML that stands between them.

        A report cuts long output: what is to be read goes before the data.
        """
        data = base64.b64encode(self.png()).decode()
        return (
            f'<figure><img alt="{html.escape(self.alt, quote=True)}" src="data:image/png;base64,{data}" '
            f'style="max-width:100%;height:auto"><figcaption>{html.escape(self.caption)}</figcaption></figure>{between}'
            f"<details><summary>Data of this figure</summary>{self.table.to_html(index=False, float_format='%.4g')}"
            "</details>"
        )

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"


def describe_curve(name: str, steps: Sequence[float], values: ArrayLike) -> str:
    """A curve in a sentence: mean of the first and last tenth, extremes; for alt texts.

    Example:
        >>> describe_curve("loss", [1, 2, 3], [4.0, 1.0, 2.0])
        'loss falls from 4 (mean of the first 1 steps) to 2 (mean of the last 1) over 3 steps; single steps range from 1 to 4.'
    """
    values = np.asarray(values, float)
    if not np.isfinite(values).any():
        return f"{name}: no finite value in {len(values)} steps."
    tenth = max(1, len(values) // 10)
    first, last = np.nanmean(values[:tenth]), np.nanmean(values[-tenth:])
    low, high = np.nanmin(values), np.nanmax(values)
    trend = "rises" if last > first else "falls" if last < first else "stays level"
    return (
        f"{name} {trend} from {first:.3g} (mean of the first {tenth} steps) to {last:.3g} (mean of the last {tenth}) "
        f"over {int(steps[-1])} steps; single steps range from {low:.3g} to {high:.3g}."
    )


_PANELS = (
    ("reward", "reward"),
    ("completions/mean_length", "completion length [tokens]"),
    ("completions/clipped_ratio", "clipped ratio [share of completions]"),
)


def show_training(metrics: pd.DataFrame, *, title: str, label: str = "the run") -> DescribedFigure:
    """Reward, length and clipped ratio of one training run over its steps.

    Args:
        metrics: `Run.metrics`.
        title: of the figure.
        label: of the run in the caption.

    Raises:
        ParameterError: a column is missing, or the steps do not increase.
    """
    if missing := [column for column, _ in _PANELS if column not in metrics]:
        raise ParameterError(f"metrics lack {', '.join(missing)}; they have {', '.join(metrics.columns)}")
    figure = Figure(figsize=(10.5, 3.5), layout="constrained")
    for n, (ax, (column, name)) in enumerate(zip(figure.subplots(1, 3), _PANELS, strict=True)):
        run = series_of("", label, [Curve(label, metrics["step"], metrics[column], name)])
        _draw(ax, run, label, n)
        ax.set(xlabel="step", ylabel=name)
        ax.grid(alpha=0.25)
    figure.axes[2].set_ylim(-0.03, 1.03)
    figure.suptitle(title)
    alt = " ".join(describe_curve(name, metrics["step"].tolist(), metrics[column]) for column, name in _PANELS)
    caption = (
        f"Thin line: each step of {label}. Thick line: running mean of {WINDOW} steps, of fewer at the start. One run has no "
        "band: how far another seed would be from it is unknown."
    )
    return DescribedFigure(figure, alt=alt, table=metrics[["step", *(c for c, _ in _PANELS)]], caption=caption)


def show_curves(
    measured: Mapping[str, Sequence[Curve] | Sequence[Run]],
    documented: Sequence[Baseline] = (),
    *,
    title: str,
    metric: str = "reward",
    window: int = 1,
    seed: int = 0,
) -> DescribedFigure:
    """One metric of groups of runs: of each group the seeds as thin lines, their interquartile mean, its 95% interval.

    Documented runs are drawn as points. Curves of another unit, range or x-axis get a panel of their own, and the
    caption says so.

    Args:
        measured: name -> runs or curves, one a seed.
        documented: baselines; those without numbers for the metric are named in the caption.
        title: of the figure.
        metric: of the runs' logs and of the baselines.
        window: steps of the running mean that is taken of each seed first; 1 takes each step by itself.
        seed: of the resamples.

    Raises:
        ParameterError: nothing to draw, a group without runs, or seeds of one group that cannot be compared.
        RunError: a run whose log does not give a curve.
    """
    found = to_draw(measured, documented, metric)
    if not found:
        raise ParameterError(f"nothing to draw: no runs, and no baseline has a curve {metric!r}")
    letters, rng = itertools.cycle(string.ascii_uppercase), np.random.default_rng(seed)
    panels = [[series_of(next(letters), *one, window=window, rng=rng) for one in panel] for panel in panels_of(found)]
    columns = 1 if len(panels) == 1 else 2
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(9 if columns == 1 else 11.5, 4.6 * rows), layout="constrained")
    for n, panel in enumerate(panels, 1):
        draw_panel(figure.add_subplot(rows, columns, n), panel, metric)
    figure.suptitle(title)
    drawn = [series for panel in panels for series in panel]
    return DescribedFigure(
        figure,
        alt=f"{title}. {len(panels)} panel{'s' * (len(panels) > 1)}. {' '.join(s.sentence for s in drawn)}",
        table=pd.concat([s.table for s in drawn], ignore_index=True),
        caption=caption_of(panels, [b.title for b in documented if metric not in b.curves], metric, window),
    )


@dataclasses.dataclass(frozen=True)
class Series:
    """A group of seeds, or one documented run, with what is drawn of it."""

    letter: str
    name: str
    curves: list[Curve]
    documented: bool
    x: np.ndarray
    interval: Interval

    @property
    def seeds(self) -> str:
        return "documented" if self.documented else f"{len(self.curves)} seed{'s' * (len(self.curves) > 1)}"

    @property
    def sentence(self) -> str:
        return describe_curve(f"{self.letter}, {self.name} ({self.seeds})", self.x.tolist(), self.interval.estimate)

    @property
    def table(self) -> pd.DataFrame:
        kind = "documented" if self.documented else "measured"
        return pd.DataFrame(
            {"series": self.name, "kind": kind, "unit": self.curves[0].unit, "x": self.x}
            | {"value": self.interval.estimate, "low": self.interval.low, "high": self.interval.high}
        )


def to_draw(
    measured: Mapping[str, Sequence[Curve] | Sequence[Run]], documented: Sequence[Baseline], metric: str
) -> list[tuple[str, list[Curve], bool]]:
    """Name, curves and whether documented: of each group, and of each documented run with numbers for the metric.

    Raises:
        RunError: a run whose log does not give a curve.
    """
    found = []
    for name, members in measured.items():
        found.append((name, [one if isinstance(one, Curve) else run_curve(one, metric) for one in members], False))
    return found + [(b.title, [b.curve(metric)], True) for b in documented if metric in b.curves]


def panels_of(found: list[tuple]) -> list[list]:
    """Series that belong on one axis, together; the seeds of each have to."""
    panels: dict[tuple, list] = {}
    for name, curves, documented in found:
        if not curves:
            raise ParameterError(f"group {name!r} has no runs")
        if reason := why_incomparable(*curves):
            raise ParameterError(f"group {name!r}: {reason}")
        first = curves[0]
        panels.setdefault((first.unit, first.low, first.high, first.axis), []).append((name, curves, documented))
    return list(panels.values())


def series_of(letter: str, name: str, curves: list[Curve], documented: bool = False, *, window=1, rng=None) -> Series:
    if documented:
        x, interval = curves[0].x, one_seed(curves[0].y)
    elif len(curves) == 1:
        x, interval = curves[0].x, one_seed(running_mean(curves[0].y, max(window, WINDOW)))
    else:
        x, values = on_common_x([dataclasses.replace(c, y=running_mean(c.y, window)) for c in curves])
        interval = seed_interval(values, rng)
    return Series(letter, name, curves, documented, x, interval)


def _draw(ax, series: Series, label: str, n: int) -> None:
    color, middle = COLORS[n % len(COLORS)], series.interval.estimate
    if series.documented:
        marks = {"marker": MARKERS[n % len(MARKERS)], "markersize": 4, "markerfacecolor": "white"}
        ax.plot(series.x, middle, color=color, linewidth=0.8, linestyle=":", label=label, **marks)
        return
    for curve in series.curves:
        ax.plot(curve.x, curve.y, color=color, linewidth=0.6, alpha=0.5)
    marker = "o" if len(series.x) == 1 else None  # no line is seen of one point
    ax.plot(series.x, middle, color=color, linestyle=STYLES[n % len(STYLES)], linewidth=2, label=label, marker=marker)


def draw_panel(ax, panel: list[Series], metric: str) -> None:
    """Every series, with its letter at its end; letters that would overlap are moved apart."""
    wide = round(13 * ax.get_window_extent().width / ax.figure.dpi)  # characters of the legend below
    for n, one in enumerate(panel):
        seeds = "" if one.documented else f", n = {one.seeds}" + ", no band" * (len(one.curves) == 1)
        label = f"{one.letter}  {one.name}" + seeds.replace(" ", "\xa0").replace(
            ",\xa0", ", "
        )  # "n = 3 seeds" on one line
        _draw(ax, one, textwrap.fill(label, wide).replace("\xa0", " "), n)
    low, high = ax.get_ylim()  # of the lines: with the t interval of 2 seeds they would be flat
    for n, one in enumerate(panel):
        if len(one.curves) > 1:
            faint = 0.2 if len(one.curves) > 2 else 0.06  # of 2 seeds it fills the panel
            ax.fill_between(
                one.x, one.interval.low, one.interval.high, color=COLORS[n % len(COLORS)], alpha=faint, lw=0
            )
    ax.set_ylim(low, high)
    first = panel[0].curves[0]
    ax.set(xlabel=AXES[first.axis], ylabel=f"{metric} [{first.unit}]")
    ax.grid(alpha=0.25)
    ax.margins(x=0.06)
    ends = [float(np.asarray(one.interval.estimate)[-1]) for one in panel]
    for n, (one, height) in enumerate(zip(panel, _apart(ends, low, high), strict=True)):
        place = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "weight": "bold"}
        ax.annotate(one.letter, (one.x[-1], height), color=COLORS[n % len(COLORS)], **place)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize=10, frameon=False)


def _apart(heights: Sequence[float], low: float, high: float) -> np.ndarray:
    """The heights, moved as little as it takes to be apart and between `low` and `high`: letters stand there.

    Example:
        >>> _apart([0.99, 1.0, 0.5], 0.0, 1.0).round(3).tolist()
        [0.91, 0.97, 0.5]
    """
    gap = min(0.06 * (high - low), (high - low) / len(heights))
    order = np.argsort(heights, kind="stable")
    at = np.clip(np.asarray(heights, float)[order], low + gap / 2, high - gap / 2)
    for n in range(1, len(at)):
        at[n] = max(at[n], at[n - 1] + gap)
    for n in range(len(at) - 1, -1, -1):
        at[n] = min(at[n], high - gap / 2 if n == len(at) - 1 else at[n + 1] - gap)
    found = np.empty(len(at))
    found[order] = at
    return found


def caption_of(panels: list[list[Series]], without: list[str], metric: str, window: int) -> str:
    drawn = [one for panel in panels for one in panel]
    banded, text = [one for one in drawn if len(one.curves) > 1], []
    if banded:
        letters: dict[str, list[str]] = {}
        for one in banded:
            letters.setdefault(one.interval.name, []).append(one.letter)
        kinds = " or ".join(f"{name} ({', '.join(those)})" for name, those in letters.items())
        mean = f", each first as its running mean of {window} steps" if window > 1 else ""
        text.append(
            f"Thick line: interquartile mean over n seeds{mean}. Band: its {kinds}, step by step; it may leave the panel. "
            "Thin lines: single seeds."
        )
    if len(banded) < sum(not one.documented for one in drawn):
        text.append(
            "A group of 1 seed has no band, how far another seed would be is unknown; thick line: mean of "
            f"{max(window, WINDOW)} steps, of fewer at the start."
        )
    if any(one.documented for one in drawn):
        means = "points of a long log are means over several steps"
        text.append(f"Markers: documented, one run each or the mean of a control's seeds; {means}.")
    if len(panels) > 1:
        heads = [panel[0].curves[0] for panel in panels]
        kinds = "; ".join(f"{c.unit} in {c.range} over {AXES[c.axis]}" for c in heads)
        text.append(
            f"Each panel has its own unit or range, no curve of one can be compared with one of another: {kinds}."
        )
    if without:
        text.append(f"No numeric {metric} curve was published for {', '.join(without)}.")
    return " ".join(text)
