import dataclasses
import json
import sys

import numpy as np
import pytest
from conftest import ROOT
from scipy.signal import lfilter

from workbench.curves.curve import Curve
from workbench.curves.shape import LEAST, NUMBERS, RISE_NUMBERS, outlines, rise_numbers, shape_of, start_and_rise
from workbench.errors import ParameterError

sys.path.append(str(ROOT / "benchmarks"))
from shapes import page

STEPS = np.arange(1, 101)
SHARE = (STEPS - 0.5) / 100
RISES = {
    "saturating": 1 - np.exp(-SHARE / 0.15),
    "even": SHARE,
    "late": 1 / (1 + np.exp(-(SHARE - 0.6) / 0.05)),
}
COLLAPSE = np.minimum(1, 4 * SHARE) - np.clip((SHARE - 0.6) * 4, 0, 1)


def noise(seed: int, deviation: float, n: int = 100, rho: float = 0.0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=n + 60)
    return deviation * np.sqrt(1 - rho**2) * lfilter([1], [1, -rho], drawn)[60:]


def curve(y, x=STEPS, unit="characters", **parts) -> Curve:
    return Curve("made up", x, y, unit, **parts)


def shape(*ys, x=STEPS, **options):
    return shape_of([curve(y, x) for y in ys], np.random.default_rng(0), **options)


@pytest.mark.parametrize(
    ("y", "learns"),
    [
        (RISES["saturating"], "yes"),
        (RISES["even"], "yes"),
        (RISES["late"], "yes"),
        (COLLAPSE, "yes, then loses it"),
        (-RISES["even"], "no, falls"),
        (0 * SHARE, "not shown"),
    ],
)
def test_what_rises_collapses_falls_or_only_scatters_is_told_apart(y, learns):
    found = shape(y + noise(0, 0.1))
    assert found.learns == learns
    defined = [name for name in RISE_NUMBERS if np.isfinite(found.numbers[name].estimate)]
    assert defined == (list(RISE_NUMBERS) if found.rises else [])
    assert shape(*(y + noise(seed, 0.1) for seed in range(5))).learns == learns


def test_a_plateau_from_the_first_step_on_is_no_rise_and_a_constant_has_no_number_at_all():
    found = shape(np.full(100, 3.0))
    assert found.learns == "not shown"
    assert all(np.isnan(found.numbers[name].estimate) for name in NUMBERS)


def test_a_metric_that_is_to_fall_has_the_shape_of_its_mirror_image():
    y = RISES["late"] + noise(0, 0.05)
    assert str(shape(-y, rising=False)) == str(shape(y))  # NaN is not equal to itself


def test_numbers_are_those_of_the_curve():
    early, even, late = (shape(y + noise(0, 0.02)).numbers for y in RISES.values())
    assert early["at half time"].estimate == pytest.approx(0.96, abs=0.05)
    assert even["half reached"].estimate == pytest.approx(0.5, abs=0.05)
    assert late["half reached"].estimate == pytest.approx(0.6, abs=0.02)
    assert even["late drift"].estimate == pytest.approx(0.3, abs=0.05)
    assert shape(COLLAPSE + noise(0, 0.02)).numbers["late drift"].estimate < -0.5
    rough = [shape(RISES["even"] + noise(0, d)).numbers["roughness"].estimate for d in (0.05, 0.2)]
    assert rough[1] / rough[0] == pytest.approx(4, rel=0.2)


@pytest.mark.parametrize("name", RISES)
def test_a_shape_is_the_same_in_other_units_and_over_other_steps(name):
    y = RISES[name] + noise(1, 0.05)
    found, other = shape(y), shape(300 * y - 368, x=10 * STEPS)
    assert other.learns == found.learns
    for number, interval in found.numbers.items():
        for part in ("estimate", "low", "high"):
            expected = pytest.approx(getattr(interval, part), abs=1e-6, nan_ok=True)
            assert getattr(other.numbers[number], part) == expected, (number, part)


def test_a_longer_log_is_averaged_to_as_many_points_so_that_it_does_not_look_rougher():
    fine = np.repeat(RISES["even"], 10) + noise(2, 0.2, 1000)
    coarse = fine.reshape(50, 20).mean(axis=1)
    found = [shape(y, x=np.arange(1, len(y) + 1)) for y in (fine, coarse)]
    assert [one.points for one in found] == [50, 50]
    rough = [one.numbers["roughness"].estimate for one in found]
    assert rough[0] == pytest.approx(rough[1], rel=0.05)
    assert shape(fine, x=np.arange(1, 1001), points=11).points == 11


def test_no_point_counts_in_two_means():
    share, y = outlines([curve(np.arange(60.0), np.arange(1, 61)), curve(np.ones(70), np.arange(1, 71))], 50)
    assert share.shape == (50,) and y.shape == (2, 50)
    assert set(np.diff(y[0])) == {1.0, 1.5}
    assert y[1].tolist() == [1.0] * 50


def test_where_points_stand_decides_their_share_of_the_steps():
    logged = Curve("logged", [10, 20, 30], [1, 2, 3], "characters")
    centred = dataclasses.replace(logged, x=[5, 15, 25], at="centre", span=10)
    for one in (logged, centred):
        assert outlines([one])[0].tolist() == pytest.approx([1 / 6, 0.5, 5 / 6])


def test_error_bars_of_one_curve_are_within_the_run_and_of_several_between_seeds():
    ys = [RISES["saturating"] + noise(seed, 0.1) for seed in range(5)]
    alone, group = shape(ys[0]).numbers["half reached"], shape(*ys).numbers["half reached"]
    assert "how far another seed would end from it is unknown" in alone.about
    assert (group.n, group.method) == (5, "bootstrap")
    assert "between runs, 5 seeds" in group.about


def truth(y: np.ndarray) -> dict[str, float]:
    share, outlined = outlines([curve(y)])
    return {name: float(value[0]) for name, value in rise_numbers(share, outlined).items()}


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_error_bars_of_one_curve_hold_the_truth_in_85_per_cent_at_least(rho):
    """`benchmarks/shapes.py` has more cases and repetitions."""
    for name in ("saturating", "late"):
        true = truth(RISES[name])
        found = [shape(RISES[name] + noise(seed, 0.2, rho=rho)) for seed in range(40)]
        for number in ("at half time", "half reached", "late drift"):
            intervals = [one.numbers[number] for one in found if one.rises]
            held = [i.low <= true[number] <= i.high for i in intervals]
            assert np.mean(held) >= 0.85, (name, number)


def test_the_best_running_mean_of_noise_is_too_high_and_is_corrected():
    true = truth(RISES["saturating"])["at half time"]
    ys = [RISES["saturating"] + noise(seed, 0.3) for seed in range(40)]
    plain = np.mean([truth(y)["at half time"] for y in ys])
    corrected = np.nanmean([shape(y).numbers["at half time"].estimate for y in ys])  # where a rise was shown
    assert plain < true - 0.08
    assert abs(corrected - true) < (true - plain) / 2


@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_noise_alone_rises_in_5_per_cent_at_most(rho):
    found = [shape(noise(seed, 1, rho=rho)).learns for seed in range(100)]
    assert sum(one.startswith("yes") for one in found) <= 5


def test_shares_are_as_wide_as_so_many_steps_allow_and_unknown_where_they_are_not_given():
    y = RISES["even"] + noise(0, 0.1)
    assert np.isnan(shape(y).numbers["at the cap"].estimate)
    alone = shape(y, shares={"at the cap": [0.0]}).numbers["at the cap"]
    assert (alone.estimate, alone.low) == (0, 0) and 0.03 < alone.high < 0.05
    seeds = shape(y, y, y, shares={"no gradient": [0.1, 0.2, 0.9]}).numbers["no gradient"]
    assert seeds.estimate == pytest.approx(0.4) and (seeds.low, seeds.high) == (0, 1)
    assert np.isnan(shape(y, shares={"no gradient": [np.nan]}).numbers["no gradient"].estimate)


def test_too_few_points_nothing_and_gaps():
    assert shape(np.arange(LEAST - 1.0), x=np.arange(LEAST - 1)).learns == "too short"
    with pytest.raises(ParameterError, match="no curve"):
        shape()
    with pytest.raises(ParameterError, match="made up: not finite at step 2"):
        shape(np.array([0, np.nan, *range(10)]), x=np.arange(1, 13))


def test_the_start_is_the_first_steps_and_the_rise_ends_at_the_best_running_mean():
    y = np.array([0.0] * 10 + [9] * 5 + [4] * 35)
    assert [float(v) for v in start_and_rise(y)] == [0, 9]


def test_the_page_of_rates_shows_what_the_simulation_recorded_and_says_what_the_docstring_says():
    recorded = json.loads((ROOT / "data" / "benchmarks" / "shapes.json").read_text())
    assert (ROOT / "docs" / "shapes.md").read_text() == page(recorded)
    seen = [rates for rates in recorded["rises"].values() if rates["shown"] >= 0.97]
    assert len(seen) >= 10 and min(rates[number] for rates in seen for number in RISE_NUMBERS) >= 0.88
    for rates in recorded["flat"].values():
        assert rates["yes"] <= 0.05 and rates["yes, then loses it"] <= 0.05 and rates["no, falls"] <= 0.05


def test_a_group_rises_where_each_of_its_seeds_does_though_they_start_too_far_apart_for_an_interval_between_them():
    rng, steps = np.random.default_rng(0), np.arange(1, 51)
    starts = (-15, -30, -60)
    seeds = [
        Curve(f"seed {n}", steps, -4 + (start + 4) * np.exp(-steps / 8) + rng.normal(0, 0.5, 50), "characters")
        for n, start in enumerate(starts)
    ]
    found = shape_of(seeds, rng)
    assert found.numbers["change"].low < 0 and found.learns == "yes"
    noise = Curve("seed 3", steps, rng.normal(0, 5, 50), "characters")
    assert shape_of([*seeds[:2], noise], rng).learns == "not shown"
