import json

import numpy as np
import pandas as pd
import pytest
from conftest import write_run

from workbench.curves.baselines import list_baselines, load_baseline
from workbench.curves.curve import Curve
from workbench.curves.likeness import (
    distance,
    documented_shares,
    likeness_table,
    shape_table,
    shapes_of,
    training_shares,
)
from workbench.curves.shape import shape_of

BASELINES = [load_baseline(name) for name in list_baselines()]
WITH_CURVE = [b for b in BASELINES if "reward" in b.curves]
W3NG = load_baseline("w3ng-qwen2.5-1.5b-tldr-grpo")
STEPS = np.arange(1, 81)


def group(rise: np.ndarray, seeds: int = 3, deviation: float = 0.02) -> list[Curve]:
    rng = np.random.default_rng(0)
    return [Curve(f"seed {n}", STEPS, rise + rng.normal(0, deviation, 80), "share") for n in range(seeds)]


EARLY, LATE, NOISE = 1 - np.exp(-STEPS / 8), 1 / (1 + np.exp(-(STEPS - 40) / 4)), 0 * STEPS


def test_the_table_has_every_documented_curve_and_every_group():
    table = shape_table(shapes_of({"early": group(EARLY), "noise": group(NOISE, deviation=1)}, BASELINES))
    assert table["curve"].tolist() == ["early", "noise", *(b.title for b in WITH_CURVE)]
    assert set(table["kind"]) == {"measured", "documented"}
    noise = table.set_index("curve").loc["noise"]
    assert noise["learns"] == "not shown" and noise["roughness"] == "no rise"
    assert table.set_index("curve").loc["early", "half reached"].count(" to ") == 1


def test_documented_runs_are_what_their_logs_say():
    learns = {one.name: one.shape.learns for one in shapes_of({}, BASELINES)}
    stated = {
        b.title: (b.figure("change_low"), b.figure("change_high")) for b in WITH_CURVE if "change_low" in b.figures
    }
    for title, (low, high) in stated.items():
        assert learns[title] == ("yes" if low > 0 else "no, falls" if high < 0 else "not shown"), title


def test_a_group_is_most_like_the_curve_of_its_own_shape_at_the_points_of_that_curve():
    w3ng = W3NG.curve()
    y = np.interp(np.linspace(5, 105, 80), w3ng.x - 5, w3ng.y)
    shaped = shapes_of(
        {"like w3ng": [Curve("mine", STEPS, y + np.random.default_rng(0).normal(0, 4, 80), "x")]}, BASELINES
    )
    (row,) = likeness_table(shaped).to_dict("records")
    assert row["most like"] == W3NG.title
    assert row["distance"] < 1 < row["its distance"]
    assert [one.at(11, 0).points for one in shaped[:1]] == [11]


def test_the_distance_names_the_number_that_adds_most():
    early, late = (shape_of(group(rise), np.random.default_rng(0)) for rise in (EARLY, LATE))
    assert distance(early, early).value == 0
    found = distance(early, late)
    assert found.value > 1 and found.number == "half reached"
    assert found.why == "half reached 0.09 and 0.49"


def test_wider_error_bars_bring_curves_nearer():
    plain, loud = (
        distance(*(shape_of([group(rise, 1, d)[0]], np.random.default_rng(0)) for rise in (EARLY, LATE))).value
        for d in (0.02, 0.2)
    )
    assert plain > loud


def test_without_a_documented_curve_or_a_group_there_is_nothing_to_be_like():
    assert likeness_table(shapes_of({"early": group(EARLY)}, [])).empty
    assert likeness_table(shapes_of({}, BASELINES)).empty
    assert shape_table([]).empty


def test_documented_shares_are_stated_or_counted_in_steps():
    assert documented_shares(load_baseline("trl-5697-deepmath-grpo")) == {"at the cap": [1.0]}
    assert documented_shares(W3NG) == {}
    control = documented_shares(load_baseline("workbench-starter-docs-example"))
    assert len(control["no gradient"]) == 10 and max(control["no gradient"]) < 0.5


@pytest.mark.parametrize("lengths, share", [([64, 64, 30, 20], 0.5), ([10, 10, 10, 10], 0.0)])
def test_a_training_s_shares_are_counted_in_its_log_against_its_recipe(tmp_path, lengths, share):
    rows = [{"step": n, "completions/mean_length": v, "frac_reward_zero_std": 0.25} for n, v in enumerate(lengths, 1)]
    run = write_run(tmp_path, metrics=rows)
    assert pd.isna(training_shares(run)["at the cap"])  # no cap is known
    (run.path / "recipe.json").write_text(json.dumps({"recipe": {"max_completion_length": 64}}))
    assert training_shares(run) == {"at the cap": share, "no gradient": 0.25}
    empty = write_run(tmp_path, "b", metrics=[{"step": 1, "reward": 1}])
    assert all(np.isnan(list(training_shares(empty).values())))
