import numpy as np
import pytest

from workbench.curves.curve import Curve, on_common_x, peak, plateau, running_mean, steps_to_threshold
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
    with pytest.raises(ParameterError, match=r"values from -5 to 1 lie outside \(-inf, 0\]; mend low and high"):
        Curve("c", [1, 2], [-5, 1], "characters", high=0)
    with pytest.raises(ParameterError, match="axis='hours': expected one of step, elapsed_s, prompts"):
        Curve("c", [1], [1], "characters", axis="hours")
    with pytest.raises(ParameterError, match="at='middle': expected one of end, start, centre"):
        Curve("c", [1], [1], "characters", at="middle")
    with pytest.raises(ParameterError, match="span=0: expected more than 0"):
        Curve("c", [1], [1], "characters", span=0)


def test_a_running_mean_takes_what_is_there_at_the_start():
    assert running_mean([2, 4, 6, 8], 2).tolist() == [2, 3, 5, 7]


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
    assert plateau(curve(spike), window=10).start == plateau(curve(np.where(STEPS < 20, 0.0, 10.0)), window=10).start


@pytest.mark.parametrize("window", [0, 81])
def test_a_window_that_the_curve_cannot_fill_is_refused(rng, window):
    for call in (peak, plateau, lambda c, w: steps_to_threshold([c], 0, rng, window=w)):
        with pytest.raises(
            ParameterError, match=f"measured: window={window}: expected 1 to 80, the points of the curve"
        ):
            call(curve(), window)


def test_a_plateau_has_a_start_a_level_and_its_scatter():
    found = plateau(curve(np.where(STEPS < 30, STEPS, 30), seed=1))
    assert 26 <= found.start <= 42
    assert found.level == pytest.approx(30, abs=0.6)
    assert found.volatility == pytest.approx(1, abs=0.5)


def test_a_curve_that_still_climbs_has_no_plateau():
    found = plateau(curve(STEPS))
    assert (found.start, found.volatility) == (None, None)


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
    with pytest.raises(ParameterError, match="slow is over elapsed_s, c over step"):
        on_common_x([slow, Curve("c", [2], [1], "tokens")])
