import dataclasses
import io
import re

import numpy as np
import pandas as pd
import pytest
from conftest import write_run
from matplotlib.figure import Figure

from workbench.curves.baselines import list_baselines, load_baseline
from workbench.curves.curve import Curve
from workbench.curves.figures import DescribedFigure, describe_curve, show_curves, show_training
from workbench.errors import ParameterError

METRICS = pd.DataFrame(
    {
        "step": range(1, 31),
        "reward": np.linspace(-30, -4, 30),
        "completions/mean_length": np.linspace(40, 20, 30),
        "completions/clipped_ratio": 0.0,
    }
)


def test_a_training_is_shown_with_three_panels_alt_text_and_its_data():
    shown = show_training(METRICS, title="A run", label="seed 1")
    assert [ax.get_ylabel().split(" ")[0] for ax in shown.figure.axes] == ["reward", "completion", "clipped"]
    assert "reward rises from -29.1" in shown.alt
    assert "completion length [tokens] falls" in shown.alt
    assert "clipped ratio [share of completions] stays level" in shown.alt
    assert list(shown.table) == list(METRICS)
    assert "how far another seed would be from it is unknown" in shown.caption


def test_a_training_s_panel_is_a_thin_raw_trace_and_a_thick_running_mean_without_a_band():
    zigzag = METRICS.assign(reward=[0.0, 4.0] * 15)
    ax = show_training(zigzag, title="A run", label="seed 1").figure.axes[0]
    raw, mean = ax.lines
    assert list(raw.get_ydata()) == [0.0, 4.0] * 15
    assert list(mean.get_ydata())[8:] == pytest.approx([16 / 9, *[2] * 21])
    assert raw.get_linewidth() < mean.get_linewidth()
    assert not ax.collections  # a band is an interval over seeds
    assert ax.get_legend() is None  # it would lie on a line; the caption says what is thin and thick


def test_a_gap_in_the_values_stays_a_gap():
    raw, mean = show_training(METRICS.assign(reward=[1.0, np.nan, *[3.0] * 28]), title="A run").figure.axes[0].lines
    assert np.isnan(raw.get_ydata()[1])
    assert np.isfinite(mean.get_ydata()).all()


def test_steps_that_repeat_are_refused():
    with pytest.raises(ParameterError, match="step 1 follows 1; expected increasing step"):
        show_training(pd.concat([METRICS.head(1)] * 2), title="A run")


def test_a_figure_carries_png_alt_text_and_table_in_its_html():
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
    html = DescribedFigure(
        Figure(), alt=hostile, table=pd.DataFrame({hostile: [hostile]}), caption=hostile
    )._repr_html_()
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


# --- groups of runs, and documented runs --------------------------------------------------------------------------------

STEPS = np.arange(1, 41)


def seeds(n: int, unit="characters from the target of 200", **parts) -> list[Curve]:
    parts = {"high": 0.0} | parts
    values = [-100 + STEPS + np.random.default_rng(s).normal(size=40) for s in range(n)]
    return [Curve(f"seed {s}", STEPS, v, unit, **parts) for s, v in enumerate(values)]


def legend(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


W3NG = load_baseline("w3ng-qwen2.5-1.5b-tldr-grpo")


def test_seeds_are_a_band_and_thin_traces_and_the_documented_run_is_points():
    shown = show_curves({"starter": seeds(5)}, [W3NG], title="T")
    (ax,) = shown.figure.axes
    thin = [line for line in ax.lines if line.get_linewidth() < 0.7]
    assert len(thin) == 5
    assert len(ax.collections) == 1
    assert [line.get_marker() for line in ax.lines][-1] not in ("None", "")
    assert legend(ax)[0] == "A  starter, n = 5 seeds"
    assert legend(ax)[1].startswith("B  Qwen2.5-1.5B on TL;DR")
    assert "interquartile mean over n seeds. Band: its 95% bootstrap interval (A), step by step" in shown.caption


def test_each_series_is_labelled_where_it_ends_and_differs_by_more_than_colour():
    shown = show_curves({"a": seeds(3), "b": seeds(4)}, [W3NG], title="T")
    (ax,) = shown.figure.axes
    assert sorted(t.get_text() for t in ax.texts) == ["A", "B", "C"]
    heights = sorted(t.xy[1] for t in ax.texts)
    low, high = ax.get_ylim()
    assert min(np.diff(heights)) > 0.05 * (high - low)
    assert low < heights[0] and heights[-1] < high
    thick = [line for line in ax.lines if line.get_linewidth() == 2]
    assert len({line.get_linestyle() for line in thick}) == len({line.get_color() for line in thick}) == 2


def test_letters_of_curves_that_end_together_at_the_top_stay_inside_the_panel():
    rising = {str(n): [dataclasses.replace(c, y=c.y - c.y[-1]) for c in seeds(1)] for n in range(8)}
    ax = show_curves(rising, title="T").figure.axes[0]
    low, high = ax.get_ylim()
    heights = sorted(t.xy[1] for t in ax.texts)
    assert len(heights) == 8
    assert low < heights[0] and heights[-1] < high
    assert min(np.diff(heights)) > 0.05 * (high - low)


def test_six_series_have_six_colours_and_six_line_styles():
    ax = show_curves({str(n): seeds(1) for n in range(6)}, title="T").figure.axes[0]
    thick = [line for line in ax.lines if line.get_linewidth() == 2]
    assert len({line.get_color() for line in thick}) == len({str(line._dash_pattern) for line in thick}) == 6


def test_one_seed_has_no_band_and_the_caption_says_why():
    shown = show_curves({"starter": seeds(1)}, title="T")
    (ax,) = shown.figure.axes
    assert not ax.collections
    assert "n = 1 seed, no band" in legend(ax)[0]
    assert "how far another seed would be is unknown" in shown.caption


def test_what_cannot_be_compared_gets_a_panel_of_its_own_and_the_caption_says_so():
    shown = show_curves({"length": seeds(2), "share": seeds(2, unit="share", high=1.0)}, [W3NG], title="T")
    assert [ax.get_ylabel() for ax in shown.figure.axes] == [
        "reward [characters from the target of 200]",
        "reward [share]",
    ]
    assert "Each panel has its own unit or range" in shown.caption
    assert "share in (-inf, 1] over step" in shown.caption


def test_another_range_of_the_same_unit_is_not_drawn_on_one_axis_either():
    shown = show_curves({"a": seeds(2), "b": seeds(2, high=None)}, title="T")
    assert len(shown.figure.axes) == 2


def test_all_bundled_baselines_fit_in_one_figure():
    baselines = [load_baseline(name) for name in list_baselines()]
    shown = show_curves({"starter": seeds(5)}, baselines, title="All")
    with_curve = [b for b in baselines if "reward" in b.curves]
    assert set(shown.table["series"]) == {"starter"} | {b.title for b in with_curve}
    assert len(shown.figure.axes) == len({(b.reward["unit"], b.reward["low"], b.reward["high"]) for b in with_curve})
    assert "No numeric reward curve was published for" in shown.caption
    assert shown.png().startswith(b"\x89PNG")


def test_alt_text_and_table_tell_what_is_drawn():
    shown = show_curves({"starter": seeds(5)}, [W3NG], title="T")
    assert re.search(r"A, starter \(5 seeds\) rises from -97.* to -61", shown.alt)
    assert "B, Qwen2.5-1.5B on TL;DR: GRPO, target 200 characters (documented) rises from -368" in shown.alt
    assert list(shown.table) == ["series", "kind", "unit", "x", "value", "low", "high"]
    measured = shown.table[shown.table["kind"] == "measured"]
    assert (measured["low"] < measured["high"]).all()
    assert shown._repr_html_().count("<tr") == len(shown.table) + 1


def test_below_5_seeds_the_caption_names_a_t_interval_by_the_letters_of_its_groups():
    shown = show_curves({"two": seeds(2), "three": seeds(3), "five": seeds(5)}, title="T")
    assert "Band: its 95% t interval (A, B) or 95% bootstrap interval (C), step by step" in shown.caption


def test_a_wide_band_leaves_the_panel_rather_than_flatten_the_lines():
    shown = show_curves({"two": seeds(2), "five": seeds(5)}, title="T")
    low, high = shown.figure.axes[0].get_ylim()
    drawn = np.concatenate([c.y for c in seeds(5)])
    assert low < drawn.min() and drawn.max() < high and high - low < 1.2 * np.ptp(drawn)
    assert shown.table["high"].max() > high


def test_runs_are_read_as_curves_of_the_metric(tmp_path):
    metrics = [{"step": n, "share": n / 40} for n in range(1, 21)]
    runs = [write_run(tmp_path, str(seed), metrics=metrics, params={"seed": seed}) for seed in range(3)]
    shown = show_curves({"starter": runs}, title="T", metric="share")
    assert shown.figure.axes[0].get_ylabel() == "share [as logged]"
    assert shown.table["value"].tolist() == pytest.approx([row["share"] for row in metrics])


def test_a_running_mean_of_each_seed_can_come_first_and_the_caption_says_so():
    raw, smooth = (show_curves({"a": seeds(3)}, title="T", window=n) for n in (1, 10))
    spread = [(s.table["high"] - s.table["low"])[10:].mean() for s in (raw, smooth)]
    assert spread[1] < spread[0]
    assert "each first as its running mean of 10 steps" in smooth.caption


def test_other_x_axes_are_named():
    shown = show_curves({"a": seeds(2, axis="prompts")}, title="T")
    assert shown.figure.axes[0].get_xlabel() == "prompts"


def test_nothing_to_draw_an_empty_group_and_mixed_seeds_are_refused():
    with pytest.raises(ParameterError, match="nothing to draw"):
        show_curves({}, [load_baseline("trl-3406-qwen2-0.5b-tldr-grpo")], title="T")
    with pytest.raises(ParameterError, match="group 'a' has no runs"):
        show_curves({"a": []}, title="T")
    with pytest.raises(ParameterError, match=r"group 'a': seed 0 is in characters.*, seed 0 in tokens"):
        show_curves({"a": seeds(1) + seeds(1, unit="tokens")}, title="T")
