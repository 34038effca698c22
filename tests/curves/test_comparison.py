import re

import numpy as np
import pytest

from workbench.curves.baselines import list_baselines, load_baseline
from workbench.curves.curve import Curve
from workbench.curves.figures import show_comparison
from workbench.errors import ParameterError

STEPS = np.arange(1, 41)


def seeds(n: int, unit="characters from the target of 200", **parts) -> list[Curve]:
    parts = {"high": 0.0} | parts
    values = [-100 + STEPS + np.random.default_rng(s).normal(size=40) for s in range(n)]
    return [Curve(f"seed {s}", STEPS, v, unit, **parts) for s, v in enumerate(values)]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def legend(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


W3NG = load_baseline("w3ng-qwen2.5-1.5b-tldr-grpo")


def test_seeds_are_a_band_and_thin_traces_and_the_documented_run_is_points(rng):
    shown = show_comparison({"starter": seeds(5)}, [W3NG], rng, title="T")
    (ax,) = shown.figure.axes
    thin = [line for line in ax.lines if line.get_linewidth() < 0.7]
    assert len(thin) == 5
    assert len(ax.collections) == 1
    assert [line.get_marker() for line in ax.lines][-1] not in ("None", "")
    assert legend(ax)[0] == "A  starter, n = 5 seeds"
    assert legend(ax)[1].startswith("B  Qwen2.5-1.5B on TL;DR")
    assert "95% bootstrap interval, step by step, of the interquartile mean over n seeds" in shown.caption


def test_each_series_is_labelled_where_it_ends_and_differs_by_more_than_colour(rng):
    shown = show_comparison({"a": seeds(3), "b": seeds(4)}, [W3NG], rng, title="T")
    (ax,) = shown.figure.axes
    assert sorted(t.get_text() for t in ax.texts) == ["A", "B", "C"]
    heights = sorted(t.xy[1] for t in ax.texts)
    low, high = ax.get_ylim()
    assert min(np.diff(heights)) > 0.05 * (high - low)
    thick = [line for line in ax.lines if line.get_linewidth() == 2]
    assert len({line.get_linestyle() for line in thick}) == 2


def test_one_seed_has_no_band_and_the_caption_says_why(rng):
    shown = show_comparison({"starter": seeds(1)}, [], rng, title="T")
    (ax,) = shown.figure.axes
    assert not ax.collections
    assert "n = 1 seed, no band" in legend(ax)[0]
    assert "how far another seed would be is unknown" in shown.caption


def test_what_cannot_be_compared_gets_a_panel_of_its_own_and_the_caption_says_so(rng):
    shown = show_comparison({"length": seeds(2), "share": seeds(2, unit="share", high=1.0)}, [W3NG], rng, title="T")
    assert [ax.get_ylabel() for ax in shown.figure.axes] == [
        "reward [characters from the target of 200]",
        "reward [share]",
    ]
    assert "Each panel has its own unit or range" in shown.caption
    assert "share in (-inf, 1] over step" in shown.caption


def test_another_range_of_the_same_unit_is_not_drawn_on_one_axis_either(rng):
    shown = show_comparison({"a": seeds(2), "b": seeds(2, high=None)}, [], rng, title="T")
    assert len(shown.figure.axes) == 2


def test_all_bundled_baselines_fit_in_one_figure(rng):
    baselines = [load_baseline(name) for name in list_baselines()]
    shown = show_comparison({"starter": seeds(5)}, baselines, rng, title="All")
    with_curve = [b for b in baselines if "reward" in b.curves]
    assert set(shown.table["series"]) == {"starter"} | {b.title for b in with_curve}
    assert len(shown.figure.axes) == 5
    assert "No numeric reward curve was published for" in shown.caption
    assert shown.png().startswith(b"\x89PNG")


def test_alt_text_and_table_tell_what_is_drawn(rng):
    shown = show_comparison({"starter": seeds(5)}, [W3NG], rng, title="T")
    assert re.search(r"A, starter \(5 seeds\) rises from -97.* to -61", shown.alt)
    assert "B, Qwen2.5-1.5B on TL;DR: GRPO, target 200 characters (documented) rises from -368" in shown.alt
    assert list(shown.table) == ["series", "kind", "unit", "x", "value", "low", "high"]
    measured = shown.table[shown.table["kind"] == "measured"]
    assert (measured["low"] < measured["high"]).all()
    assert shown._repr_html_().count("<tr") == len(shown.table) + 1


def test_other_x_axes_are_named(rng):
    shown = show_comparison({"a": seeds(2, axis="prompts")}, [], rng, title="T")
    assert shown.figure.axes[0].get_xlabel() == "prompts"


def test_nothing_to_draw_an_empty_group_and_mixed_seeds_are_refused(rng):
    with pytest.raises(ParameterError, match="nothing to draw"):
        show_comparison({}, [load_baseline("trl-3406-qwen2-0.5b-tldr-grpo")], rng, title="T")
    with pytest.raises(ParameterError, match="group 'a' has no runs"):
        show_comparison({"a": []}, [], rng, title="T")
    with pytest.raises(ParameterError, match=r"group 'a': seed 0 is in characters.*, seed 0 in tokens"):
        show_comparison({"a": seeds(1) + seeds(1, unit="tokens")}, [], rng, title="T")
