import dataclasses
import io
import re

import numpy as np
import pandas as pd
import pytest
from conftest import write_run
from matplotlib.figure import Figure

from workbench.curves.curve import Curve
from workbench.curves.documented import list_baselines, load_baseline
from workbench.curves.figures import DescribedFigure, describe_curve, show_curves, show_training
from workbench.errors import ParameterError

METRICS = pd.DataFrame({"step": range(1, 31), "reward": np.linspace(-30, -4, 30),
                        "completions/mean_length": np.linspace(40, 20, 30), "completions/clipped_ratio": 0.0})  # fmt: skip


def test_a_training_is_shown_with_three_panels_alt_text_and_data():
    shown = show_training(METRICS, title="A run")
    assert [ax.get_ylabel().split(" ")[0] for ax in shown.figure.axes] == ["reward", "completion", "clipped"]
    assert "reward [as logged] goes from -29.1" in shown.alt
    assert "completion length [tokens] goes from 39.3" in shown.alt
    assert "clipped ratio [share of completions] goes from 0 (mean of the first 3 points) to 0 (" in shown.alt
    assert list(shown.table) == list(METRICS)
    assert "How far another seed would be is unknown" in shown.caption


def test_a_panel_has_a_thin_raw_trace_a_thick_mean_and_no_band():
    zigzag = METRICS.assign(reward=[0.0, 4.0] * 15)
    ax = show_training(zigzag, title="A run").figure.axes[0]
    raw, mean = ax.lines
    assert list(raw.get_ydata()) == [0.0, 4.0] * 15
    assert list(mean.get_ydata())[1:-1] == pytest.approx([4 / 3, 8 / 3] * 14)  # centred over a tenth: 3 steps
    assert raw.get_linewidth() < mean.get_linewidth()
    assert not ax.collections  # a band is an interval over seeds
    assert ax.get_legend() is None  # it would lie on a line; the caption says what is thin and thick


def test_caption_names_two_lines_only_where_two_are_seen():
    zigzag = METRICS.assign(reward=[0.0, 4.0] * 15)
    assert show_training(zigzag, title="A run").caption.startswith("Thin line: each step of the run. Thick")
    caption = show_training(zigzag.head(11), title="A run").caption
    assert caption == "The line: each step of the run. How far another seed would be is unknown."


def test_a_gap_in_the_values_stays_a_gap():
    raw, mean = show_training(METRICS.assign(reward=[1.0, np.nan, *[3.0] * 28]), title="A run").figure.axes[0].lines
    assert np.isnan(raw.get_ydata()[1])
    assert np.isfinite(mean.get_ydata()[1:-1]).all()


def test_repeated_steps_and_missing_columns_are_refused():
    with pytest.raises(ParameterError, match="step 1 follows 1; expected increasing step"):
        show_training(pd.concat([METRICS.head(1)] * 2), title="A run")
    with pytest.raises(ParameterError, match=r"lack completions/clipped_ratio; they have step, reward"):
        show_training(METRICS.drop(columns="completions/clipped_ratio"), title="A run")
    assert "over 1 steps" in show_training(METRICS.head(1), title="A run").alt


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
    table = pd.DataFrame({hostile: [hostile]})
    html = DescribedFigure(Figure(), alt=hostile, table=table, caption=hostile)._repr_html_()
    assert "<script" not in html
    assert 'alt="&quot;&gt;' in html


def test_a_curve_without_finite_values_is_described_as_such():
    assert describe_curve("loss", [1, 2], [None, np.nan]) == "loss: no finite value in 2 steps."


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


def names(ax) -> list[str]:
    return [text.get_text().replace("\n", " ") for text in ax.texts]


def thick(ax) -> list:
    return [line for line in ax.lines if line.get_linewidth() == 2]


W3NG = load_baseline("w3ng-qwen2.5-1.5b-tldr-grpo")


def test_seeds_are_thin_their_mean_thick_documented_runs_points():
    (ax,) = show_curves({"starter": seeds(5)}, [W3NG], title="T").figure.axes
    assert len([line for line in ax.lines if line.get_linewidth() < 0.7]) == 5 and len(thick(ax)) == 1
    assert ax.lines[-1].get_marker() not in ("None", "")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("steps", "reward [characters from the target of 200]")


@pytest.mark.parametrize("n", [1, 2, 4, 5])
def test_there_is_a_band_from_five_seeds_on_and_none_below(n):
    shown = show_curves({"starter": seeds(n)}, title="T")
    assert len(shown.figure.axes[0].collections) == (n >= 5)
    assert shown.table["low"].notna().all() == (n >= 5)
    if n > 1:
        assert shown.table["value"].to_numpy() == pytest.approx(np.mean(np.stack([c.y for c in seeds(n)]), axis=0))
        assert ("their mean, with its 95% bootstrap interval" in shown.caption) == (n >= 5)
    else:
        assert "How far another seed would be is unknown" in shown.caption


@pytest.mark.parametrize(("steps", "told"), [(8, False), (100, True)])
def test_a_caption_tells_of_a_mean_only_where_one_was_taken(steps, told):
    zigzag = [Curve("seed 0", np.arange(1, steps + 1), [0.0, 4] * (steps // 2), "points")]
    shown = show_curves({"a": zigzag}, title="T")
    assert ("centred mean" in shown.caption) == told and "How far another seed would be is unknown" in shown.caption


def test_the_line_is_centred_over_a_tenth_of_the_run_at_most():
    steps = np.arange(1, 101)
    jump = [Curve(f"seed {n}", steps, np.where(steps < 50, 0, 10) + n / 10, "points") for n in range(3)]
    (line,) = thick(show_curves({"a": jump}, title="T", window=50).figure.axes[0])
    drawn = np.isfinite(line.get_ydata())
    assert drawn.tolist() == [False] * 4 + [True] * 92 + [False] * 4  # of 9.9 steps; not a last raw point
    assert (np.diff(line.get_ydata()[drawn]) > -1e-9).all()  # as said in the caption, and no more: it rises as they do
    rise = [Curve("seed 0", steps, steps, "points")]
    (line,) = thick(show_curves({"a": rise}, title="T").figure.axes[0])
    assert line.get_ydata()[5:-5].tolist() == steps[5:-5].tolist()  # a mean of the steps before would lie below
    zigzag = [Curve(f"seed {n}", steps, [0.0, 4] * 50, "points") for n in range(1)]
    (line,) = thick(show_curves({"a": zigzag}, title="T", window=50).figure.axes[0])
    assert 0.4 < np.ptp(line.get_ydata()[10:-10]) < 0.6  # of 9 steps, not of 50


def test_names_stand_at_their_lines_apart_and_inside_the_panel():
    shown = show_curves({"a": seeds(3), "b": seeds(4)}, [W3NG], title="T")
    (ax,) = shown.figure.axes
    assert names(ax)[:2] == ["a, 3 seeds", "b, 4 seeds"] and names(ax)[2].endswith(", documented")
    heights, (low, high) = sorted(t.xy[1] for t in ax.texts), ax.get_ylim()
    assert low < heights[0] and heights[-1] < high and min(np.diff(heights)) > 0.04 * (high - low)
    assert len({line.get_linestyle() for line in thick(ax)}) == len({line.get_color() for line in thick(ax)}) == 2


def test_a_panel_has_at_most_five_lines():
    shown = show_curves({f"arm {n}": seeds(1) for n in range(7)}, title="T")
    assert [len(thick(ax)) for ax in shown.figure.axes] == [4, 3]


def test_another_unit_or_range_gets_its_own_panel_and_caption():
    shown = show_curves({"length": seeds(2), "share": seeds(2, unit="share", high=1.0)}, [W3NG], title="T")
    labels = [ax.get_ylabel() for ax in shown.figure.axes]
    assert labels == ["reward [characters from the target of 200]", "reward [share]"]
    assert "has a panel of its own; only whether and when it moves can be compared" in shown.caption
    assert "share in (-inf, 1] over steps" in shown.caption
    assert len(show_curves({"a": seeds(2), "b": seeds(2, high=None)}, title="T").figure.axes) == 2


def test_a_colour_stands_for_one_run_in_all_panels():
    documented = {"of their own": W3NG, "of a third unit": "verl-qwen2-7b-gsm8k-math-grpo"}
    runs = {"length": seeds(2), "score": seeds(2, unit="score")}
    axes = show_curves(runs, documented, title="Three panels").figure.axes
    labels = [text for ax in axes for text in ax.texts]
    assert len(axes) == 3 and len({text.get_color() for text in labels}) == len(labels) == 4
    assert "of a third unit, documented" in names(axes[-1])


def test_a_group_keeps_its_colour_in_figures_of_others():
    three = {name: seeds(2) for name in ("a", "b", "c")}
    colors = {text.get_text()[0]: text.get_color() for text in show_curves(three, title="T").figure.axes[0].texts}
    some = {name: three[name] for name in ("c", "b")} | {"d": seeds(1)}
    shown = show_curves(some, ["w3ng-qwen2.5-1.5b-tldr-grpo"], title="T", order=list(three)).figure.axes[0].texts
    again = {text.get_text()[0]: text.get_color() for text in shown}
    assert [again[name] for name in "bc"] == [colors[name] for name in "bc"]
    assert len(set(again.values()) | set(colors.values())) == 5


def shown_title(measured, title) -> str:
    return " ".join(show_curves(measured, title=title, ends=True).figure.get_suptitle().split())


def test_a_title_says_where_each_line_begins_and_ends():
    rise = [Curve("one", range(1, 21), [*[1.0] * 10, *[3.0] * 10], "share")]
    shown = show_curves({"mine": rise, "a name of many words": seeds(2)}, title="toy", ends=True)
    title = " ".join(shown.figure.get_suptitle().split())
    assert title.startswith("toy: mine from 1 to 3; a name of many words from ") and shown.alt.startswith(title)
    assert shown_title({"mine": rise}, "") == "mine from 1 to 3"
    slope = {"mine": [Curve("one", range(1, 101), np.linspace(0, 1, 100), "share")]}
    first, last = re.findall(r"mine from (\S+) to (\S+)", shown_title(slope, ""))[0]
    assert f"goes from {first} (mean" in (alt := show_curves(slope, title="").alt) and f" to {last} (mean" in alt
    many = show_curves(
        {f"{n} long name of a group": rise for n in range(4)}, title="T", ends=True
    ).figure.get_suptitle()
    assert [line[-1] for line in many.splitlines()] == [";", "3"] and max(map(len, many.splitlines())) <= 95
    lost = [Curve("one", [1, 2], [np.nan, np.nan], "share")]
    assert shown_title({"lost": lost}, "T") == "T: lost without a value"
    assert re.fullmatch(
        r"reward from \S+ to \S+, completion length from \S+ to \S+, clipped ratio from \S+ to \S+",
        show_training(METRICS).figure.get_suptitle(),
    )


def test_the_panels_of_one_training_have_one_colour():
    axes = show_training(METRICS, title="one run").figure.axes
    assert len({line.get_color() for ax in axes for line in ax.lines}) == 1


def test_a_seed_that_ended_early_is_drawn_and_not_in_the_mean():
    """The mean of seeds of 40, 40 and 10 steps ended at step 10, without a word."""
    short = Curve("seed 9", STEPS[:10], np.full(10, -500.0), "characters from the target of 200", high=0.0)
    shown = show_curves({"a": [*seeds(2), short]}, title="T")
    (line,) = thick(shown.figure.axes[0])
    assert line.get_xdata()[-1] == 40 and line.get_ydata().min() > -110
    assert "seed 9 ended at step 10 of 40 and is left out." in shown.caption
    assert names(shown.figure.axes[0]) == ["a, 2 seeds"]


def test_seeds_logged_every_step_and_every_10_have_one_mean():
    fine = seeds(1)[0]
    coarse = Curve("seed 1", STEPS[9::10], fine.y.reshape(-1, 10).mean(1), fine.unit, high=0.0)
    (line,) = thick(show_curves({"a": [fine, coarse]}, title="T").figure.axes[0])
    assert len(line.get_xdata()) == 40


@pytest.mark.slow
@pytest.mark.rare
def test_all_baselines_fit_in_one_figure_with_alt_text_and_table():
    baselines = [load_baseline(name) for name in list_baselines()]
    shown = show_curves({"starter": seeds(5)}, baselines, title="All")
    with_curve = [b for b in baselines if "reward" in b.curves]
    assert set(shown.table["series"]) == {"starter"} | {b.title for b in with_curve}
    assert "No numeric reward curve was published for" in shown.caption
    assert re.search(r"starter \(5 seeds\) goes from -97.* to -61", shown.alt)
    assert list(shown.table) == ["series", "kind", "unit", "x", "value", "low", "high"]
    html = shown._repr_html_()
    assert "data:image/png;base64,iVBOR" in html and html.count("<tr") == len(shown.table) + 1


def test_runs_are_read_as_curves_of_the_metric(tmp_path):
    metrics = [{"step": n, "share": n / 40} for n in range(1, 21)]
    runs = [write_run(tmp_path, str(seed), metrics=metrics, params={"seed": seed}) for seed in range(3)]
    shown = show_curves({"starter": runs}, title="T", metric="share")
    assert shown.figure.axes[0].get_ylabel() == "share [as logged]"
    assert shown.table["value"].tolist() == pytest.approx([row["share"] for row in metrics])


def test_no_curve_an_empty_group_and_mixed_seeds_are_refused():
    with pytest.raises(ParameterError, match="nothing to draw"):
        show_curves({}, [load_baseline("trl-3406-qwen2-0.5b-tldr-grpo")], title="T")
    with pytest.raises(ParameterError, match="group 'a' has no runs"):
        show_curves({"a": []}, title="T")
    with pytest.raises(ParameterError, match=r"group 'a': seed 0 is in characters.*, seed 0 in tokens"):
        show_curves({"a": seeds(1) + seeds(1, unit="tokens")}, title="T")


def test_the_axis_of_a_short_training_has_whole_steps():
    curves = [Curve("one", [1.0, 2.0], [0.0, 1.0], "share")]
    (ax,) = show_curves({"one": curves}, title="short").figure.axes
    assert all(tick == round(tick) for tick in ax.get_xticks())


def test_a_label_stands_at_its_lines_last_fifth_not_last_point():
    late_drop = [Curve("seed 0", STEPS, np.where(STEPS == 40, -90.0, -10.0), "points")]
    (ax,) = show_curves({"late drop": late_drop}, title="T").figure.axes
    assert ax.texts[0].xy[1] == pytest.approx(-14, abs=1)


def test_documented_runs_are_drawn_by_name_with_what_compares():
    name, other = W3NG.name, "arvindcr4-qwen3-8b-gsm8k-grpo"
    shown = show_curves({"mine": seeds(3)}, [name, other], title="T")
    assert len(shown.figure.axes) == 2
    assert f"On one axis, in characters from the target of 200: {W3NG.title}" in shown.caption
    assert "only whether and when it moves can be compared" in shown.caption
    with pytest.raises(ParameterError, match="unknown baseline 'w3ng'"):
        show_curves({"mine": seeds(3)}, ["w3ng"], title="T")


def test_lines_of_evaluations_are_no_steps_of_a_training():
    """Each repeats a step's number, which was refused, and a report had no figure."""
    evaluated = pd.concat([METRICS, pd.DataFrame({"step": [10, 20], "eval_reward": [-9.0, -8.0]})])
    shown = show_training(evaluated.sort_values("step", kind="stable"), title="A run")
    assert shown.alt == show_training(METRICS, title="A run").alt and list(shown.table) == list(METRICS)


def test_a_caption_tells_how_the_one_seed_left_was_smoothed():
    zigzag = [
        Curve(f"seed {n}", np.arange(1, steps + 1), [0.0, 4] * (steps // 2), "p") for n, steps in enumerate((20, 100))
    ]
    for group in (zigzag, zigzag[::-1]):
        caption = show_curves({"a": group}, title="T").caption
        assert caption.startswith("Of 1 seed the thick line is its centred mean over a tenth of the run")


def test_a_caption_names_the_windows_of_runs_of_other_lengths():
    """A tenth of the shortest was said of all."""
    runs = {
        steps: [Curve(f"seed {n}", np.arange(1, steps + 1), [0.0, n] * (steps // 2), "p") for n in (1, 2)]
        for steps in (10, 40, 400)
    }
    one, two, short = (
        show_curves({str(steps): runs[steps] for steps in shown}, title="T", window=20).caption
        for shown in ((400,), (40, 400), (10, 400))
    )
    assert "its centred mean over 21 steps," in one
    assert "its centred mean over 3 to 21 steps," in two
    assert "its centred mean over 1 to 21 steps," in short


def test_steps_further_apart_than_the_window_are_no_mean():
    every_ten = [Curve(f"seed {n}", np.arange(10, 401, 10), [0.0, n] * 20, "p") for n in (1, 2)]
    assert "centred mean" not in show_curves({"a": every_ten}, title="T", window=15).caption


def test_an_alt_text_ranges_over_what_it_names():
    noisy = Curve("seed 0", np.arange(1, 81), np.random.default_rng(0).normal(size=80), "p")
    for group in ([noisy], [noisy, dataclasses.replace(noisy, y=-noisy.y)]):
        shown = show_curves({"a": group}, title="T")
        low, high = (noisy.y.min(), noisy.y.max()) if len(group) == 1 else (0, 0)
        who = "single steps range" if len(group) == 1 else "their mean ranges"
        assert f"{who} from {low:.3g} to {high:.3g}." in shown.alt
    late = dataclasses.replace(noisy, y=np.where(noisy.x < 20, np.nan, 0.5))
    assert "goes from 0.5 (mean of the first 6 points) to 0.5" in show_curves({"a": [late]}, title="T").alt


@pytest.mark.parametrize("option", [{"columns": 0}, {"window": -5}, {"window": np.nan}])
def test_a_window_or_columns_out_of_range_are_refused(option):
    with pytest.raises(ParameterError, match="expected 0 steps or more, and at least 1 column"):
        show_curves({"a": seeds(2)}, title="T", **option)
