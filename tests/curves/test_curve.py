import numpy as np
import pytest

from workbench.curves.curve import (
    Curve,
    centred_mean,
    mean_between,
    on_common_x,
    peak,
    reached_at,
    settles_at,
    steps_to_threshold,
    whole_seeds,
)
from workbench.errors import ParameterError

STEPS = np.arange(1, 81)


def rise(steps, tau: float = 20.0):
    return 21 * (1 - np.exp(-steps / tau)) - 25


def curve(y=None, *, seed=None, unit="characters", steps=STEPS, **parts) -> Curve:
    y = rise(steps) if y is None else np.asarray(y, float)
    noise = 0 if seed is None else np.random.default_rng(seed).normal(size=len(steps))
    return Curve(parts.pop("label", "measured"), steps, y + noise, unit, **parts)


def seeds(y=None, n=5, first=0, **parts) -> list[Curve]:
    return [curve(y, seed=first + s, **parts) for s in range(n)]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# --- one curve -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "x, y, message",
    [([1, 3, 2], [0, 0, 0], "step 2 follows 3"), ([1, 1], [0, 0], "step 1 follows 1"), ([], [], "at least 1"),
     ([1, 2], [0], "equally many")]
)  # fmt: skip
def test_steps_out_of_order_and_uneven_lengths_are_refused(x, y, message):
    with pytest.raises(ParameterError, match=message):
        Curve("c", x, y, "tokens")


def test_values_outside_the_bounds_and_odd_axes_are_refused():
    with pytest.raises(ParameterError, match=r"values from -5 to 1 lie outside \(-inf, 0\]; correct low and high"):
        Curve("c", [1, 2], [-5, 1], "characters", high=0)
    with pytest.raises(ParameterError, match="axis='hours': expected one of step, elapsed_s, prompts"):
        Curve("c", [1], [1], "characters", axis="hours")
    with pytest.raises(ParameterError, match="at='middle': expected one of end, start, centre"):
        Curve("c", [1], [1], "characters", at="middle")
    with pytest.raises(ParameterError, match="span=0: expected more than 0"):
        Curve("c", [1], [1], "characters", span=0)


def test_a_centred_mean_does_not_lag_and_a_gap_stays_out_of_it():
    assert centred_mean(STEPS, 3 * STEPS, 9).tolist() == (3 * STEPS).tolist()
    assert centred_mean([1, 2, 3, 4, 5], [1, np.nan, 3, 5, 9], 3).tolist() == [1, 2, 4, 17 / 3, 9]
    noise = np.random.default_rng(0).normal(size=80)
    assert centred_mean(STEPS, noise, 9)[10:-10].std() < 0.6 * noise.std()


def test_windows_count_steps_however_often_a_run_was_logged():
    """Of one run logged every 10 steps the last 20 steps were its last 20 points: 0.801 in the place of 0.981."""
    steps = np.arange(1, 501)
    y = 1 - np.exp(-steps / 125)
    fine, coarse = Curve("1", steps, y, "share"), Curve("10", steps[9::10], y.reshape(-1, 10).mean(1), "share")
    for start, end in ((480, 500), (0, 10), (100, 300)):
        assert mean_between(coarse, start, end) == pytest.approx(mean_between(fine, start, end), abs=1e-9)
    assert mean_between(coarse, 495, 500) == coarse.y[-1]  # at least one point
    assert peak(coarse, 20)[1] == pytest.approx(peak(fine, 20)[1], abs=1e-9)
    assert reached_at(coarse, 0.5, window=20) == pytest.approx(reached_at(fine, 0.5, window=20), abs=10)
    assert settles_at(coarse, 50) == pytest.approx(settles_at(fine, 50), abs=10)


def test_a_seed_that_ended_early_is_left_out_and_named_but_over_seconds_machines_differ():
    long, near, short = (
        Curve(f"seed {n}", steps, steps, "tokens") for n, steps in enumerate((STEPS, STEPS[:75], STEPS[:20]))
    )
    kept, lines = whole_seeds([long, near, short])
    assert kept == [long, near] and lines == ["seed 2 ended at step 20 of 80 and is left out"]
    seconds = [
        Curve("slow", STEPS, STEPS, "tokens", axis="elapsed_s"),
        Curve("fast", STEPS[:20], STEPS[:20], "tokens", axis="elapsed_s"),
    ]
    assert whole_seeds(seconds) == (seconds, [])


def test_the_peak_is_that_of_the_running_mean_not_of_one_lucky_step():
    y = np.concatenate([np.zeros(20), np.ones(20), np.zeros(40)])
    y[60] = 5
    assert peak(curve(y), window=10) == (30, 1)


def test_noise_does_not_peak_at_the_start_where_a_mean_of_few_steps_would_scatter_most():
    """With means of fewer steps at the start it did in 29% of runs."""
    rng = np.random.default_rng(0)
    places = np.array([peak(curve(rng.normal(size=80)), window=10)[0] for _ in range(300)])
    assert places.min() >= 10
    assert np.mean(places < 15) < 0.2


def test_one_lucky_first_step_reaches_no_threshold_for_five_steps_and_settles_nothing(rng):
    y = np.where(STEPS < 40, 0.0, 10.0) + np.random.default_rng(1).normal(size=80)
    y[0] = 12
    assert steps_to_threshold([curve(y)], 5, rng, window=5).estimate >= 40
    spike = np.concatenate([[30.0], np.where(STEPS[1:] < 20, 0.0, 10.0)])
    assert settles_at(curve(spike)) == settles_at(curve(np.where(STEPS < 20, 0.0, 10.0)))


@pytest.mark.parametrize("window", [0, 81])
def test_a_window_that_the_curve_cannot_fill_is_refused(rng, window):
    for call in (peak, settles_at, lambda c, w: steps_to_threshold([c], 0, rng, window=w)):
        with pytest.raises(ParameterError, match=f"measured: window={window}: expected more than 0, and at most 80"):
            call(curve(), window)


def test_a_curve_settles_where_its_means_stay_and_one_that_climbs_does_not():
    assert 26 <= settles_at(curve(np.where(STEPS < 30, STEPS, 30), seed=1)) <= 42
    assert settles_at(curve(STEPS)) is None


def test_steps_to_a_threshold_come_with_an_interval_over_seeds(rng):
    found = steps_to_threshold(seeds(rise(STEPS)), -10, rng, window=5)
    exact = 1 + np.argmax(rise(STEPS) >= -10)
    assert found.low <= found.estimate <= found.high
    assert abs(found.estimate - exact) < 5
    falling = steps_to_threshold([curve(-STEPS + 5.0 * n) for n in range(3)], -40, rng, rising=False)
    assert falling.estimate == 45


def test_a_threshold_that_most_never_reach_is_infinitely_far(rng):
    never = steps_to_threshold(seeds(), 10, rng)
    assert np.isinf([never.estimate, never.low, never.high]).all()
    assert never.about == "between runs, 5 seeds; 5 of 5 never reach it"
    one_short = steps_to_threshold([*seeds(n=4), curve(np.full(80, -25.0))], -10, rng)
    assert np.isfinite(one_short.estimate)
    assert np.isinf(one_short.high)


def test_one_seed_gives_a_position_and_no_interval(rng):
    found = steps_to_threshold([curve()], -10, rng)
    assert np.isnan([found.low, found.high]).all()
    assert "another seed would be from it is unknown" in found.about
    with pytest.raises(ParameterError, match="no curves"):
        steps_to_threshold([], 0, rng)


def test_seconds_are_read_off_between_steps_and_steps_have_to_coincide():
    slow = Curve("slow", [2, 4, 6], [2, 4, 6], "tokens", axis="elapsed_s")
    fast = Curve("fast", [1, 3, 5], [1, 3, 5], "tokens", axis="elapsed_s")
    x, values = on_common_x([slow, fast])
    assert x.tolist() == [2, 4]
    assert values.tolist() == [[2, 4], [2, 4]]
    with pytest.raises(ParameterError, match="no step in common"):
        on_common_x([Curve("a", [1], [1], "t"), Curve("b", [2], [1], "t")])
    every, second = Curve("a", [1, 2, 3, 4], [1, 2, 3, 4], "t"), Curve("b", [2, 4], [5, 7], "t")
    x, values = on_common_x([every, second])
    assert (x.tolist(), values.tolist()) == ([1, 2, 3, 4], [[1, 2, 3, 4], [5, 5, 7, 7]])
    with pytest.raises(ParameterError, match="slow is over elapsed_s, c over step"):
        on_common_x([slow, Curve("c", [2], [1], "tokens")])
