"""Figures that say what they show: axes in, axes out, and with every figure its alt text and its data as a table."""

import base64
import html
import io
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .errors import ParameterError

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


def show_layout(batches: list[list[int]], num_generations: int) -> Shown:
    """TRL's batches as rows of cells, one colour and number per prompt: the repetition within a group is intended.

    Args:
        batches: prompt numbers in order, as from `trainers.duplicates.sampler_layout`.
        num_generations: G; a thick line is drawn after each group.
    """
    width = max(map(len, batches))
    figure = Figure(figsize=(0.62 * width + 1.5, 0.6 * len(batches) + 1), layout="constrained")
    ax = figure.subplots()
    for row, batch in enumerate(batches):
        for column, prompt in enumerate(batch):
            color = COLORS[prompt % len(COLORS)]
            ax.add_patch(Rectangle((column, row), 1, 1, facecolor=color, alpha=0.35, edgecolor="#666"))
            ax.text(column + 0.5, row + 0.5, str(prompt), ha="center", va="center")
    for edge in range(0, width + 1, num_generations):
        ax.axvline(edge, color="black", linewidth=2)
    ax.set(xlim=(0, width), ylim=(len(batches), 0), xlabel="row of the batch", ylabel="batch")
    ax.set_yticks([n + 0.5 for n in range(len(batches))], [str(n) for n in range(len(batches))])
    groups = [f"batch {n}: prompts {', '.join(map(str, b[::num_generations]))}" for n, b in enumerate(batches)]
    alt = f"Each prompt stands {num_generations} times in a row. {'; '.join(groups)}."
    table = pd.DataFrame(batches).rename_axis("batch").reset_index()
    caption = (
        f"Numbers are prompts of the data set. One group of {num_generations} completions between two thick lines."
    )
    return Shown(figure, alt=alt, table=table, caption=caption)
