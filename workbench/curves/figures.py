"""Figures that say what they show: each has an alt text, a caption, and its data as a table.

Thin lines are single seeds, the thick one is their mean. From five seeds on it has its 95% bootstrap interval as a band.
"""

import base64
import dataclasses
import html
import io
import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from ..errors import ParameterError
from ..runs.run import Run
from .curve import Curve, centred_mean, on_common_x, whole_seeds, why_incomparable
from .documented import Baseline, as_baselines
from .measured import run_curve, without_evaluations
from .stats import seed_interval

# Okabe and Ito's colours, told apart with every common colour blindness, then further ones for figures of many runs; line
# styles tell series apart without colour.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#8C510A", "#6A51A3", "#66800A")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = 5  # in a panel; more get panels of their own
_HEIGHT = 48  # letters of a label that stand along a panel's height
BAND = 5  # seeds for a band
TENTH = 0.1  # of a run, which a line is the mean over at most
STOPS = ", which stops half of that before both ends"


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
        self.figure.savefig(buffer, format="png", dpi=100, bbox_inches="tight", facecolor="white")
        return buffer.getvalue()

    def svg(self) -> str:
        """The figure as an SVG file, with text as text and equal for equal data."""
        buffer = io.StringIO()
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "", "font.family": "sans-serif"}):
            self.figure.savefig(buffer, format="svg", bbox_inches="tight", facecolor="white", metadata={"Date": None})
        return buffer.getvalue()

    def _repr_html_(self) -> str:
        """The figure with its caption and its data folded up."""
        data = base64.b64encode(self.png()).decode()
        return (
            f'<figure><img alt="{html.escape(self.alt, quote=True)}" src="data:image/png;base64,{data}" '
            f'style="max-width:100%;height:auto"><figcaption>{html.escape(self.caption)}</figcaption></figure>'
            f"<details><summary>Data of this figure</summary>{self.table.to_html(index=False, float_format='%.4g')}"
            "</details>"
        )

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"


def describe_curve(name: str, steps: Sequence[float], values: ArrayLike, ranging: str = "single steps range") -> str:
    """A curve in a sentence: means of the first and last tenth of its points, extremes; for alt texts."""
    values = np.asarray(values, float)
    known = values[np.isfinite(values)]
    if not len(known):
        return f"{name}: no finite value in {len(values)} steps."
    first, last, tenth = _from_to(known)
    return (
        f"{name} goes from {first:.3g} (mean of the first {tenth} points) to {last:.3g} (mean of the last {tenth}) "
        f"over {int(steps[-1])} steps; {ranging} from {known.min():.3g} to {known.max():.3g}."
    )


def _from_to(values: ArrayLike) -> tuple[float, float, int]:
    """Means of the first and of the last tenth of the finite values, and how many that is; NaN where there are none."""
    known = np.asarray(values, float)
    known = known[np.isfinite(known)]
    tenth = max(1, len(known) // 10)
    return (known[:tenth].mean(), known[-tenth:].mean(), tenth) if len(known) else (np.nan, np.nan, 0)


def _in_brief(values: ArrayLike) -> str:
    first, last, tenth = _from_to(values)
    return f"from {first:.3g} to {last:.3g}" if tenth else "without a value"


_PANELS = (
    ("reward", "reward [as logged]"),
    ("completions/mean_length", "completion length [tokens]"),
    ("completions/clipped_ratio", "clipped ratio [share of completions]"),
)


def show_training(metrics: pd.DataFrame, *, title: str = "") -> DescribedFigure:
    """Reward, length and clipped ratio of one training run over its steps; `metrics` as of `Run.metrics`.

    Lines of evaluations, which repeat a step's number, are left out. Without a title the figure's says where each begins and
    ends: means of the first and the last tenth of the steps.
    """
    if missing := [column for column, _ in _PANELS if column not in metrics]:
        raise ParameterError(f"metrics lack {', '.join(missing)}; they have {', '.join(metrics.columns)}")
    metrics = without_evaluations(metrics)
    figure = Figure(figsize=(10.5, 3.5), layout="constrained")
    smoothed = False
    for ax, (column, name) in zip(figure.subplots(1, 3), _PANELS, strict=True):
        one = _series("the run", [Curve("the run", metrics["step"], metrics[column], name)])
        smoothed |= one.smoothed
        _draw(ax, one, 0)
        ax.set(xlabel="steps", ylabel=name)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        ax.grid(alpha=0.25)
    figure.axes[2].set_ylim(-0.03, 1.03)
    ends = (f"{name.partition(' [')[0]} {_in_brief(metrics[column])}" for column, name in _PANELS)
    figure.suptitle(title or ", ".join(ends))
    alt = " ".join(describe_curve(name, metrics["step"].tolist(), metrics[column]) for column, name in _PANELS)
    thick = f" Thick line: centred mean over a tenth of the run{STOPS}." if smoothed else ""
    caption = (
        f"{'Thin' if smoothed else 'The'} line: each step of the run.{thick} How far another seed would be is unknown."
    )
    return DescribedFigure(figure, alt=alt, table=metrics[["step", *(c for c, _ in _PANELS)]], caption=caption)


def show_curves(
    measured: Mapping[str, Sequence[Curve] | Sequence[Run]],
    documented: Sequence[Baseline | str] | Mapping[str, Baseline | str] = (),
    *,
    title: str,
    ends: bool = False,
    metric: str = "reward",
    window: float = 1,
    seed: int = 0,
    columns: int = 2,
    order: Sequence[str] = (),
) -> DescribedFigure:
    """One metric of groups of runs and of documented runs, each unit and range on an axis of its own.

    Args:
        measured: name -> runs or curves, one a seed.
        documented: baselines or their names, also as label -> either; drawn as points, on the axis of the runs where unit and
            range are the same, else in a panel of their own; the caption says what can be compared, and names those without
            numbers for the metric.
        title: title of the figure, which should say what is seen.
        ends: whether it goes on with where each line begins and ends, means of the first and the last tenth of its points.
        metric: name of the metric in the runs' logs and in the baselines.
        window: steps of the centred mean that smooths each seed first, at most a tenth of the run; 1 for none.
        seed: seed of the bootstrap resamples.
        columns: panels side by side, at most; 1 where the figure is shown in a narrow place.
        order: names of groups, also of some that are not drawn here: a group has its place's colour in each figure.

    Raises:
        ParameterError: an unknown name, nothing to draw, a group without runs, seeds of one group that cannot be compared, or
            a window or number of columns out of range.
        RunError: a run whose log does not give a curve.

    Example:
        >>> runs = {"mine": [Curve(f"seed {n}", range(1, 41), [(s + n) / 40 for s in range(40)], "share") for n in range(3)]}
        >>> show_curves(runs, title="Share of right answers").caption
        'Thin lines: single seeds. Thick line: their mean. No band below 5 seeds.'
    """
    if not window >= 0 or columns < 1:
        raise ParameterError(f"window={window:g}, columns={columns}: expected 0 steps or more, and at least 1 column")
    rng, found = np.random.default_rng(seed), []
    baselines = as_baselines(documented.values() if isinstance(documented, Mapping) else documented)
    if isinstance(documented, Mapping):
        baselines = [dataclasses.replace(one, title=label) for label, one in zip(documented, baselines, strict=True)]
    for name, members in measured.items():
        curves = [one if isinstance(one, Curve) else run_curve(one, metric) for one in members]
        if not curves:
            raise ParameterError(f"group {name!r} has no runs")
        if reason := why_incomparable(*curves):
            raise ParameterError(f"group {name!r}: {reason}")
        found.append(_series(name, curves, rng, window))
    for b in baselines:
        if metric in b.curves:
            who = "recorded here" if b.recorded else "documented"
            found.append(_series(b.title, [b.curve(metric)], documented=who))
    if not found:
        raise ParameterError(f"nothing to draw: no runs, and no baseline has a curve {metric!r}")
    panels = _panels(found)
    drawn = [series for panel in panels for series in panel]
    if ends:
        goes = "; ".join(f"{one.name} {_in_brief(one.points)}".replace(" ", "\N{NO-BREAK SPACE}") for one in drawn)
        title = ": ".join(filter(None, [title, goes]))
    with matplotlib.rc_context({"text.parse_math": False}):  # `$` in a stop string begins no formula
        figure = _figure(panels, metric, columns, order)
        figure.suptitle(textwrap.fill(title, int(10.5 * figure.get_figwidth())) if ends else title)
    title = title.replace("\N{NO-BREAK SPACE}", " ")
    without = [b.title for b in baselines if metric not in b.curves]
    return DescribedFigure(
        figure,
        alt=f"{title}. {len(panels)} panel{'s' * (len(panels) > 1)}. {' '.join(one.sentence for one in drawn)}",
        table=pd.concat([one.table for one in drawn], ignore_index=True),
        caption=_caption(panels, without, metric, window),
    )


@dataclasses.dataclass(frozen=True)
class Series:
    """A group of seeds, or one documented run, with what is drawn of it: `line` over `x`, and a band or NaN."""

    name: str
    curves: list[Curve]
    documented: str  # who documented it; empty for runs of one's own
    x: np.ndarray
    line: np.ndarray
    low: np.ndarray
    high: np.ndarray
    left_out: list[str]

    @property
    def count(self) -> int:
        """Seeds in the line."""
        return len(self.curves) - len(self.left_out)

    @property
    def seeds(self) -> str:
        return self.documented or f"{self.count} seed{'s' * (self.count > 1)}"

    @property
    def smoothed(self) -> bool:
        """Whether the line of one seed differs from its steps: of a short run the mean over a tenth is each step itself."""
        (kept,), _ = whole_seeds(self.curves)
        return not np.allclose(self.line, kept.y, equal_nan=True)

    @property
    def end(self) -> float:
        """The line's mean over the last fifth of x; NaN where nothing is known there."""
        late = self.line[self.x >= self.x[-1] - (self.x[-1] - self.x[0]) / 5]
        return float(np.nanmean(late)) if np.isfinite(late).any() else float("nan")

    @property
    def points(self) -> np.ndarray:
        """The line of several seeds; of one its own steps."""
        return self.line if self.count > 1 else whole_seeds(self.curves)[0][0].y

    @property
    def sentence(self) -> str:
        name = f"{self.name} ({self.seeds})"
        if self.count > 1:
            return describe_curve(name, self.x.tolist(), self.line, "their mean ranges")
        (kept,), _ = whole_seeds(self.curves)
        return describe_curve(name, kept.x.tolist(), kept.y)

    @property
    def table(self) -> pd.DataFrame:
        kind = "documented" if self.documented else "measured"
        about = {"series": self.name, "kind": kind, "unit": self.curves[0].unit}
        return pd.DataFrame(about | {"x": self.x, "value": self.line, "low": self.low, "high": self.high})


def _series(name: str, curves: list[Curve], rng=None, window: float = 1, *, documented: str = "") -> Series:
    kept, left_out = whole_seeds(curves)
    if len(kept) == 1:
        x, values = kept[0].x, kept[0].y[None]
        window = window if documented else np.inf
    else:
        x, values = on_common_x(kept)
    window = min(window, TENTH * (x[-1] - x[0]))
    smooth = np.stack([centred_mean(x, y, window) for y in values])
    line = smooth.mean(axis=0)
    low = high = np.full(len(x), np.nan)
    if len(kept) >= BAND:
        known = np.isfinite(smooth).all(axis=0)  # not half a window before the ends
        found = seed_interval(smooth[:, known], rng, statistic=np.mean)
        low, high = low.copy(), high.copy()
        line[known], low[known], high[known] = found.estimate, found.low, found.high
    return Series(name, curves, documented, x, line, low, high, left_out)


def _panels(found: list[Series]) -> list[list[Series]]:
    """Series that belong on one axis, together; more than `LINES` of them in panels of about as many each."""
    panels: dict[tuple, list[Series]] = {}
    for one in found:
        first = one.curves[0]
        panels.setdefault((first.unit, first.low, first.high), []).append(one)
    sizes = [math.ceil(len(panel) / math.ceil(len(panel) / LINES)) for panel in panels.values()]
    pairs = zip(panels.values(), sizes, strict=True)
    return [panel[n : n + size] for panel, size in pairs for n in range(0, len(panel), size)]


def _figure(panels: list[list[Series]], metric: str, columns: int, order: Sequence[str]) -> Figure:
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(9 if columns == 1 else 13, 4.2 * rows), layout="constrained")
    known = {name: n for n, name in enumerate(order)}
    others = itertools.count(len(known))
    for n, panel in enumerate(panels, 1):
        places = [known[one.name] if one.name in known and not one.documented else next(others) for one in panel]
        _draw_panel(figure.add_subplot(rows, columns, n), panel, metric, places)
    return figure


def _draw(ax, one: Series, n: int) -> None:
    color, style = COLORS[n % len(COLORS)], STYLES[n % len(STYLES)]
    if one.documented:
        marks = {"marker": MARKERS[n % len(MARKERS)], "markersize": 4, "markerfacecolor": "white"}
        ax.plot(one.x, one.line, color=color, linewidth=0.8, linestyle=":", **marks)
        return
    for curve in one.curves:
        ax.plot(curve.x, curve.y, color=color, linewidth=0.6, alpha=0.5)
    marker = "o" if len(one.x) == 1 else None  # no line is seen of one point
    ax.plot(one.x, one.line, color=color, linestyle=style, linewidth=2, marker=marker)
    if np.isfinite(one.low).any():
        ax.fill_between(one.x, one.low, one.high, color=color, alpha=0.2, lw=0)


def _draw_panel(ax, panel: list[Series], metric: str, places: list[int]) -> None:
    """Every series, with its name to the right at its mean over the last fifth; names that would overlap are moved apart.

    The place of a series says its colour.
    """
    for n, one in zip(places, panel, strict=True):
        _draw(ax, one, n)
    first = panel[0].curves[0]
    ax.set(xlabel="steps", ylabel=textwrap.fill(f"{metric} [{first.unit}]", _HEIGHT))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.grid(alpha=0.25)
    low, high = ax.get_ylim()
    ax.set_ylim(low, high)
    names = [textwrap.fill(f"{one.name}, {one.seeds}", 26) for one in panel]
    line = (high - low) * 0.16 / (ax.figure.get_figheight() / ax.get_gridspec().nrows - 1)  # 9 points of text, in y
    ends = [one.end if np.isfinite(one.end) else low for one in panel]
    heights = apart(ends, [line * (name.count("\n") + 1.4) for name in names], low, high)
    for n, name, height in zip(places, names, heights, strict=True):
        place = {"xycoords": ax.get_yaxis_transform(), "va": "center", "fontsize": 9, "annotation_clip": False}
        ax.annotate(name, (1.02, height), color=COLORS[n % len(COLORS)], **place)


def apart(heights: Sequence[float], sizes: Sequence[float], low: float, high: float) -> np.ndarray:
    """The heights, moved as little as it takes for texts of these sizes to be apart and between `low` and `high`."""
    order, half = np.argsort(heights, kind="stable"), np.asarray(sizes, float) / 2
    half *= min(1, (high - low) / (2 * half.sum()))
    at, floor = np.empty(len(half)), low
    for n in order:
        at[n] = max(heights[n], floor + half[n])
        floor = at[n] + half[n]
    ceiling = high
    for n in order[::-1]:
        at[n] = min(at[n], ceiling - half[n])
        ceiling = at[n] - half[n]
    return at


def _averaged(x: np.ndarray, window: float) -> tuple[int, float]:
    """The points of a whole `centred_mean`, and the steps that they stand for: 9 of each where a window is 8 steps."""
    gap = float(np.median(np.diff(x)))
    points = 1 + 2 * math.floor((window / 2 + 1e-9) / gap)
    return points, points * gap


def _caption(panels: list[list[Series]], without: list[str], metric: str, window: float) -> str:
    drawn, text = [one for panel in panels for one in panel], []
    counts = [one.count for one in drawn if not one.documented]
    if max(counts, default=0) > 1:
        many = f"with its 95% bootstrap interval step by step as a band (from {BAND} seeds on)."
        band = f", {many}" if max(counts) >= BAND else f". No band below {BAND} seeds."
        text.append(f"Thin lines: single seeds. Thick line: their mean{band}")
        averaged = [one for one in drawn if one.count > 1 and len(one.x) > 1]
        averages = [_averaged(one.x, min(window, TENTH * (one.x[-1] - one.x[0]))) for one in averaged]
        if any(points > 1 for points, _ in averages):  # else each mean is the point itself
            least, most = (f"{end(steps for _, steps in averages):g}" for end in (min, max))
            over = most if least == most else f"{least} to {most}"
            text.append(f"Each seed is first its centred mean over {over} steps{STOPS}.")
    if 1 in counts:
        if any(one.smoothed for one in drawn if one.count == 1 and not one.documented):
            text.append(f"Of 1 seed the thick line is its centred mean over a tenth of the run{STOPS}.")
        text.append("How far another seed would be is unknown.")
    text += [f"{line}." for one in drawn for line in one.left_out]
    if any(one.documented for one in drawn):
        means = "points of a long log are means over several steps"
        text.append(f"Markers: documented, one run each, or the mean of its seeds; {means}.")
    text += _comparable(drawn)
    if without:
        text.append(f"No numeric {metric} curve was published for {', '.join(without)}.")
    return " ".join(text)


def _comparable(drawn: list[Series]) -> list[str]:
    """Return what can be compared: of curves in one unit and range their values, of others only when and whether they move."""
    axes: dict[tuple[str, str], list[Series]] = {}
    for one in drawn:
        axes.setdefault((one.curves[0].unit, one.curves[0].range), []).append(one)
    text, mine = [], [key for key, found in axes.items() if not all(one.documented for one in found)]
    for unit, bounds in mine:
        if theirs := [one.name for one in axes[unit, bounds] if one.documented]:
            text.append(f"On one axis, in {unit}: {'; '.join(theirs)}. Their model, data and settings are their own.")
    if len(axes) > 1:
        heads = "; ".join(f"{unit} in {bounds} over steps" for unit, bounds in axes)
        when = "; only whether and when it moves can be compared, not how high it is" if mine else ""
        text.append(f"Another unit or range has a panel of its own{when}: {heads}.")
    return text
