import numpy as np
import pytest
from conftest import write_run

from workbench.curves.baselines import list_baselines, load_baseline
from workbench.curves.beside import show_beside
from workbench.curves.curve import Curve
from workbench.errors import ParameterError

BASELINES = [load_baseline(name) for name in list_baselines()]
W3NG, DOCS = load_baseline("w3ng-qwen2.5-1.5b-tldr-grpo"), load_baseline("trl-docs-qwen2-0.5b-tldr-grpo")
VERL = load_baseline("verl-qwen2.5-0.5b-gsm8k-ppo-0.567")
STEPS = np.arange(1, 81)


def seeds(n: int, unit: str = W3NG.reward["unit"], scale: float = 10) -> list[Curve]:
    values = [-300 * np.exp(-STEPS / scale) - 40 + np.random.default_rng(s).normal(0, 5, 80) for s in range(n)]
    return [Curve(f"seed {s}", STEPS, np.minimum(v, 0), unit, high=0.0) for s, v in enumerate(values)]


def titles(shown) -> list[str]:
    return [ax.get_title() for ax in shown.figure.axes]


def test_one_unit_shares_an_axis_and_shows_it():
    shown = show_beside({"mine": seeds(3)}, [W3NG], title="T")
    (ax,) = shown.figure.axes
    assert ax.get_ylabel() == "reward [characters from the target of 200]"
    assert set(shown.table["unit"]) == {"characters from the target of 200"}
    assert "shapes without units" not in shown.caption


def test_other_units_are_small_panels_without_units_measured_and_documented_alike():
    shown = show_beside({"mine": seeds(3, "tokens")}, [W3NG, VERL], title="T")
    assert [ax.get_xlim() for ax in shown.figure.axes] == [(0, 1)] * 3
    assert titles(shown)[0].splitlines() == ["mine (3 seeds)", "rises"]
    assert all("(documented)" in title.replace("\n", " ") for title in titles(shown)[1:])
    assert set(shown.table["unit"]) == {"share of the rise"}
    highest = shown.table.groupby("series")["value"].max()
    assert highest.between(0.95, 1.2).all()
    assert "They say how a curve rises, not how high" in shown.caption
    assert "The shape of mine: rises, half of it at " in shown.alt


def test_both_kinds_of_panel_stand_in_one_figure():
    shown = show_beside({"mine": seeds(2), "other": seeds(2, "tokens")}, [W3NG, VERL], title="T")
    units = [ax.get_ylabel() for ax in shown.figure.axes]
    assert units[0].startswith("reward [characters") and len(units) == 5  # each has a partner in another unit


def test_what_does_not_rise_is_grey_and_has_no_scale():
    flat = [Curve("flat", STEPS, np.random.default_rng(0).normal(size=80), "tokens")]
    shown = show_beside({"flat": flat}, [W3NG], title="T")
    ax = shown.figure.axes[0]
    assert titles(shown)[0].endswith("no rise shown")
    assert {line.get_color() for line in ax.lines} == {"0.45"}
    assert ax.get_yticks().tolist() == [0]


def test_words_stand_in_the_caption_as_words():
    shown = show_beside({"mine": seeds(2)}, [DOCS], title="T", said='"smooth, about 2,500 steps"')
    assert shown.caption.endswith('Documented in words, without numbers: "smooth, about 2,500 steps"')
    assert len(shown.figure.axes) == 1
    assert set(shown.table["kind"]) == {"measured"}


def test_runs_are_read_as_curves_of_the_metric(tmp_path):
    metrics = [{"step": n, "share": n / 40} for n in range(1, 21)]
    runs = [write_run(tmp_path, str(seed), metrics=metrics, params={"seed": seed}) for seed in range(2)]
    shown = show_beside({"starter": runs}, [], title="T", metric="share", said="it rises")
    assert shown.figure.axes[0].get_ylabel() == "share [as logged]"


def test_all_baselines_fit_in_one_readable_figure_with_alt_text_and_table():
    shown = show_beside({"mine": seeds(5), "other": seeds(3, "tokens")}, BASELINES, title="All")
    assert set(shown.table["series"]) == {"mine", "other"} | {b.title for b in BASELINES if "reward" in b.curves}
    assert shown.figure.get_size_inches()[0] <= 10
    assert shown.png().startswith(b"\x89PNG")
    assert "No numeric reward curve was published for" in shown.caption
    assert shown._repr_html_().count("<img") == 1


def test_curves_of_few_points_are_drawn_too():
    shown = show_beside({"short": [Curve("short", [1, 2], [0, 1], "tokens")]}, [W3NG], title="T")
    assert titles(shown)[0].endswith("too short for a shape")


def test_nothing_measured_nothing_documented_and_mixed_seeds_are_refused():
    with pytest.raises(ParameterError, match="nothing measured"):
        show_beside({}, [W3NG], title="T")
    with pytest.raises(ParameterError, match="give the source's words"):
        show_beside({"mine": seeds(1)}, [DOCS], title="T")
    with pytest.raises(ParameterError, match="group 'a': seed 0 is in characters"):
        show_beside({"a": seeds(1) + seeds(1, "tokens")}, [W3NG], title="T")
    with pytest.raises(ParameterError, match="group 'a' has no runs"):
        show_beside({"a": []}, [W3NG], title="T")
