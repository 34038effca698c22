import io
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from workbench.curves.figures import COLORS, STYLES, Shown, describe_curve, plot_curve, show_training
from workbench.errors import ParameterError

METRICS = pd.DataFrame(
    {
        "step": range(1, 31),
        "reward": np.linspace(-30, -4, 30),
        "completions/mean_length": np.linspace(40, 20, 30),
        "completions/clipped_ratio": 0.0,
    }
)


def axes():
    return Figure().subplots()


def test_the_axes_go_in_and_come_out():
    ax = axes()
    assert plot_curve(ax, [1, 2], [1.0, 2.0], label="run") is ax


def test_a_curve_is_a_thin_raw_trace_a_band_and_a_thick_running_mean():
    ax = plot_curve(axes(), range(4), [0.0, 4.0, 0.0, 4.0], label="run", window=2)
    raw, mean = ax.lines
    assert list(raw.get_ydata()) == [0, 4, 0, 4]
    assert list(mean.get_ydata()) == [0, 2, 2, 2]
    assert raw.get_linewidth() < mean.get_linewidth()
    assert len(ax.collections) == 1
    assert [text.get_text() for text in ax.legend().get_texts()] == ["run"]


def test_series_differ_by_line_style_as_well_as_by_colour():
    ax = axes()
    for n in range(len(COLORS)):
        plot_curve(ax, [1, 2], [n, n], label=str(n), series=n)
    means = ax.lines[1::2]
    assert len({line.get_color() for line in means}) == len({str(s) for s in STYLES}) == len(COLORS)
    assert len({str(line._dash_pattern) for line in means}) == len(STYLES)


def test_a_gap_in_the_values_stays_a_gap():
    raw = plot_curve(axes(), [1, 2, 3], [1.0, np.nan, 3.0], label="run").lines[0]
    assert np.isnan(raw.get_ydata()[1])


@pytest.mark.parametrize(
    "steps, message", [([1, 2, 2], "must increase"), ([3, 2, 1], "must increase"), ([1], "length")]
)
def test_steps_that_repeat_or_do_not_fit_are_refused(steps, message):
    with pytest.raises(ParameterError, match=message):
        plot_curve(axes(), steps, [1.0, 2.0, 3.0], label="run")


def test_a_training_is_shown_with_three_panels_alt_text_and_its_data():
    shown = show_training(METRICS, title="A run", label="seed 1")
    assert [ax.get_ylabel().split(" ")[0] for ax in shown.figure.axes] == ["reward", "completion", "clipped"]
    assert "reward rises from -29.1" in shown.alt
    assert "completion length [tokens] falls" in shown.alt
    assert "clipped ratio (share cut at the limit) stays level" in shown.alt
    assert list(shown.table) == list(METRICS)
    assert "not uncertainty between runs" in shown.caption


def test_a_shown_figure_carries_png_alt_text_and_table_in_its_html():
    shown = show_training(METRICS, title="A run")
    html = shown._repr_html_()
    assert html.count("<img") == 1
    assert f'alt="{shown.alt}"' in html
    assert html.count("<tr") == len(METRICS) + 1
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert shown.png().startswith(b"\x89PNG")
    assert repr(shown) == f"Figure: {shown.alt}"


def test_alt_text_and_caption_are_escaped():
    hostile = '"><script>alert(1)</script>'
    html = Shown(Figure(), alt=hostile, table=pd.DataFrame({hostile: [hostile]}), caption=hostile)._repr_html_()
    assert "<script" not in html
    assert 'alt="&quot;&gt;' in html


def test_missing_columns_are_named():
    with pytest.raises(ParameterError, match=r"lack completions/clipped_ratio; they have step, reward"):
        show_training(METRICS.drop(columns="completions/clipped_ratio"), title="A run")


def test_a_curve_without_finite_values_is_described_as_such():
    assert describe_curve("loss", [1, 2], [None, np.nan]) == "loss: no finite value in 2 steps."


def test_a_run_of_one_step_can_be_shown():
    assert "over 1 steps" in show_training(METRICS.head(1), title="A run").alt


def test_a_figure_does_not_touch_pyplot():
    import matplotlib.pyplot as plt

    show_training(METRICS, title="A run").figure.savefig(io.BytesIO())
    assert plt.get_fignums() == []
