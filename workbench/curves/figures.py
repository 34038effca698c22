"""Figures that say what they show: axes in, axes out, and with every figure its alt text and its data as a table."""

import base64
import html
import io
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..errors import ParameterError
from .baselines import Baseline
from .curve import Curve, on_common_x, running_mean, steps_to_threshold, why_incomparable
from .stats import seed_interval

# Okabe and Ito's colours, told apart with every common colour blindness; line styles tell series apart without colour.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
WINDOW = 10


class Shown:
    """A finished figure with alt text, caption and data; shows itself in notebooks and reports.

    Args:
        figure: a matplotlib figure made without pyplot (pyplot would show it a second time).
        alt: what the figure says, for who cannot see it.
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
        data = base64.b64encode(self.png()).decode()
        return (
            f'<figure><img alt="{html.escape(self.alt, quote=True)}" src="data:image/png;base64,{data}" '
            f'style="max-width:100%;height:auto"><figcaption>{html.escape(self.caption)}</figcaption>'
            f"<details><summary>Data of this figure</summary>{self.table.to_html(index=False, float_format='%.4g')}"
            "</details></figure>"
        )

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"


def plot_curve(
    ax, steps: Sequence[float], values: Sequence[float], *, label: str, series: int = 0, window: int = WINDOW
):
    """A curve as thin raw trace, running mean over `window` steps and band (10% to 90% of the steps in the window).

    Args:
        ax: matplotlib axes; returned.
        steps: N step numbers, increasing.
        values: N values; NaN leaves a gap.
        label: names the running mean in the legend.
        series: index of colour and line style.
        window: steps averaged, trailing.

    Raises:
        ParameterError: lengths differ, or steps do not increase.
    """
    steps, values = np.asarray(steps, float), np.asarray(values, float)
    if steps.shape != values.shape:
        raise ParameterError(f"steps and values differ in length: {len(steps)} and {len(values)}")
    if len(steps) > 1 and not (np.diff(steps) > 0).all():
        raise ParameterError("steps must increase; the log repeats or reorders steps")
    rolling = pd.Series(values).rolling(window, min_periods=1)
    color, style = COLORS[series % len(COLORS)], STYLES[series % len(STYLES)]
    ax.plot(steps, values, color=color, linewidth=0.6, alpha=0.5)
    ax.fill_between(steps, rolling.quantile(0.1), rolling.quantile(0.9), color=color, alpha=0.18, linewidth=0)
    marker = "o" if len(steps) == 1 else None  # no line is seen of one point
    ax.plot(steps, rolling.mean(), color=color, linestyle=style, linewidth=2, label=label, marker=marker)
    ax.grid(alpha=0.25)
    return ax


def describe_curve(name: str, steps: Sequence[float], values: Sequence[float]) -> str:
    """A curve in a sentence: mean of the first and last tenth, extremes; for alt texts."""
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
    ("completions/clipped_ratio", "clipped ratio (share cut at the limit)"),
)


def show_training(metrics: pd.DataFrame, *, title: str, label: str = "run") -> Shown:
    """Reward, length and clipped ratio of one training run over its steps.

    Args:
        metrics: `Run.metrics`.
        title: of the figure.
        label: of the run in the legend.

    Raises:
        ParameterError: a column is missing.
    """
    missing = [column for column, _ in _PANELS if column not in metrics]
    if missing:
        raise ParameterError(f"metrics lack {', '.join(missing)}; they have {', '.join(metrics.columns)}")
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    for n, (ax, (column, name)) in enumerate(zip(figure.subplots(1, 3), _PANELS, strict=True)):
        plot_curve(ax, metrics["step"], metrics[column], label=f"{label}, mean of {WINDOW} steps", series=n)
        ax.set(xlabel="step", ylabel=name)
        ax.legend(loc="best", fontsize=9)
    figure.axes[2].set_ylim(-0.03, 1.03)
    figure.suptitle(title)
    alt = " ".join(describe_curve(name, metrics["step"].tolist(), metrics[column]) for column, name in _PANELS)
    caption = (
        f"Thin line: each step. Thick line: running mean of {WINDOW} steps. Band: 10% to 90% of the steps in that "
        "window; it shows spread within one run, not uncertainty between runs."
    )
    return Shown(figure, alt=alt, table=metrics[["step", *(c for c, _ in _PANELS)]], caption=caption)


def show_groups(groups: dict[str, list], *, column: str, title: str, ylabel: str) -> Shown:
    """One metric over steps for several groups of runs, e.g. trainers with some seeds each.

    Args:
        groups: name -> runs (`runs.Run`), each with `metrics`.
        column: of the metrics.
        title, ylabel: of the figure.

    Raises:
        ParameterError: a group without runs, or a run without the column.
    """
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    ax = figure.subplots()
    table, sentences = {}, []
    for n, (name, runs) in enumerate(groups.items()):
        mean, low, high = _over_seeds(name, runs, column)
        color, style = COLORS[n % len(COLORS)], STYLES[n % len(STYLES)]
        ax.fill_between(mean.index, low, high, color=color, alpha=0.15, linewidth=0)
        ax.plot(mean.index, mean, color=color, linestyle=style, linewidth=2, label=f"{name}, {len(runs)} seeds")
        table[name] = mean
        sentences.append(describe_curve(f"{name}: {ylabel}", mean.index.tolist(), mean))
    ax.set(xlabel="step", ylabel=ylabel, title=title)
    ax.margins(x=0.2)
    _label_ends(ax, table)
    ax.grid(alpha=0.25)
    ax.legend(loc="best", fontsize=9)
    caption = (
        f"Lines: mean over seeds of the running mean of {WINDOW} steps. Bands: from the lowest to the highest seed."
    )
    return Shown(figure, alt=" ".join(sentences), table=pd.DataFrame(table).reset_index(names="step"), caption=caption)


def _label_ends(ax, curves: dict[str, pd.Series]) -> None:
    """Names at the curves' ends, moved apart where the curves meet."""
    gap = 0.06 * (ax.get_ylim()[1] - ax.get_ylim()[0])
    height = -np.inf
    for n, (name, curve) in sorted(enumerate(curves.items()), key=lambda item: item[1][1].iloc[-1]):
        height = max(curve.iloc[-1], height + gap)
        place = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        ax.annotate(name, (curve.index[-1], height), color=COLORS[n % len(COLORS)], **place)


def _over_seeds(name: str, runs: list, column: str) -> tuple[pd.Series, pd.Series, pd.Series]:
    if not runs:
        raise ParameterError(f"group {name!r} has no runs")
    curves = {}
    for n, run in enumerate(runs):
        metrics = run.metrics
        if column not in metrics:
            raise ParameterError(f"{run.path}: metrics lack {column!r}; they have {', '.join(metrics.columns)}")
        curves[n] = metrics.set_index("step")[column].rolling(WINDOW, min_periods=1).mean()
    together = pd.DataFrame(curves)
    return together.mean(axis=1), together.min(axis=1), together.max(axis=1)


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


TAIL = 20


def group_table(groups: dict[str, list[Curve]], rng: np.random.Generator) -> pd.DataFrame:
    """For each group of seeds: n, the result with its interval, and the steps to half way."""
    rows = []
    for name, curves in groups.items():
        ends = np.array([c.y[-TAIL:].mean() for c in curves])
        start = np.mean([c.y[:3].mean() for c in curves])
        half = steps_to_threshold(curves, (start + ends.mean()) / 2, rng, rising=ends.mean() > start, window=5)
        result = seed_interval(ends, rng) if len(ends) > 1 else None
        rows.append(
            {
                "group": name,
                "n seeds": len(curves),
                "result": result.estimate if result else ends[0],
                "low": result.low if result else np.nan,
                "high": result.high if result else np.nan,
                "half way": half.estimate,
                "half way, low": half.low,
                "half way, high": half.high,
            }
        )
    return pd.DataFrame(rows)
