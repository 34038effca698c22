import numpy as np
import pytest

from workbench.curves.curve import Curve, agreement, on_common_x, peak, plateau, running_mean, steps_to_threshold
from workbench.curves.stats import seed_interval
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


DOCUMENTED = curve(seed=99, label="documented")


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


def test_a_running_mean_takes_what_is_there_at_the_start():
    assert running_mean([2, 4, 6, 8], 2).tolist() == [2, 3, 5, 7]


def test_the_peak_is_that_of_the_running_mean_not_of_one_lucky_step():
    y = np.concatenate([np.zeros(20), np.ones(20), np.zeros(40)])
    y[60] = 5
    assert peak(curve(y), window=10) == (30, 1)


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


# --- two curves ------------------------------------------------------------------------------------------------------


def test_equal_curves_agree(rng):
    found = agreement(seeds(), DOCUMENTED, rng, tolerance=5)
    assert found.verdict == "agrees", found
    assert found.points == 80
    assert found.low < 0 < found.high
    assert agreement([DOCUMENTED], DOCUMENTED, rng, tolerance=1e-9).verdict == "agrees"


def test_equal_curves_are_called_different_about_as_often_as_the_level_says(rng):
    agreed = [
        agreement(seeds(first=1000 * n), curve(seed=1000 * n + 99), rng, tolerance=6).verdict == "agrees"
        for n in range(100)
    ]
    assert np.mean(agreed) >= 0.9


def test_a_shift_by_one_interval_width_is_a_difference_even_within_the_tolerance(rng):
    band = seed_interval(np.stack([c.y for c in seeds()]), rng)
    width = float(np.mean(band.high - band.low))
    found = agreement(seeds(rise(STEPS) + width), DOCUMENTED, rng, tolerance=8)
    assert found.verdict == "differs"
    assert "within 8, but always above" in found.reason
    assert found.mean_residual == pytest.approx(width, abs=0.5)
    assert agreement(seeds(rise(STEPS) - width), DOCUMENTED, rng, tolerance=8).high < 0


def test_half_the_speed_is_a_difference(rng):
    assert agreement(seeds(rise(STEPS, 40)), DOCUMENTED, rng, tolerance=5).verdict == "differs"


def test_a_flipped_sign_is_a_difference_by_far(rng):
    found = agreement(seeds(-rise(STEPS)), DOCUMENTED, rng, tolerance=5)
    assert found.verdict == "differs"
    assert found.worst > 40


def test_one_nan_cannot_be_compared_and_its_step_is_named(rng):
    broken = curve(np.where(STEPS == 40, np.nan, rise(STEPS)), label="seed 3")
    found = agreement([*seeds(n=2), broken], DOCUMENTED, rng, tolerance=5)
    assert str(found) == "cannot compare: seed 3: not finite at step 40"


def test_a_run_cut_off_early_cannot_be_compared_and_one_cut_late_says_how_much_was(rng):
    def cut(n):
        return [Curve("m", STEPS[:n], rise(STEPS[:n]) + s.y[:n] - rise(STEPS)[:n], "characters") for s in seeds()]

    early, late = (agreement(cut(n), DOCUMENTED, rng, tolerance=5) for n in (30, 70))
    assert str(early) == "cannot compare: only 30 of 80 documented points are covered by every run"
    assert late.verdict == "agrees"
    assert "70 points, 88% of the documented ones" in late.reason


@pytest.mark.parametrize(
    "other, reason",
    [({"unit": "tokens"}, "measured is in tokens, documented in characters"),
     ({"high": 0.0}, r"measured ranges over (-inf, 0], documented over (-inf, inf)"),
     ({"axis": "prompts"}, "measured is over prompts, documented over step")]
)  # fmt: skip
def test_units_ranges_and_axes_that_differ_are_not_compared(rng, other, reason):
    found = agreement([curve(**other)], DOCUMENTED, rng, tolerance=5)
    assert (found.verdict, found.reason) == ("cannot compare", reason)


def test_a_documented_point_is_compared_with_the_mean_of_its_steps(rng):
    """Bins of 4 steps at their mean step, as the bundled baselines have them."""
    binned = Curve("documented", STEPS.reshape(-1, 4).mean(1), rise(STEPS).reshape(-1, 4).mean(1), "characters")
    found = agreement([curve()], binned, rng, tolerance=1e-6)
    assert found.verdict == "agrees", found
    assert found.points == 20


def test_a_tolerance_of_nothing_and_no_runs_are_refused(rng):
    with pytest.raises(ParameterError, match="tolerance=0: expected more than 0 characters"):
        agreement(seeds(), DOCUMENTED, rng, tolerance=0)
    with pytest.raises(ParameterError, match="no measured curve to compare with documented"):
        agreement([], DOCUMENTED, rng, tolerance=1)
