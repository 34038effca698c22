import numpy as np
import pytest

from workbench.curves.curve import Curve, centred_mean, mean_between, on_common_x, whole_seeds
from workbench.errors import ParameterError

STEPS = np.arange(1, 81)


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
    with pytest.raises(ParameterError, match="at='middle': expected one of end, centre"):
        Curve("c", [1], [1], "characters", at="middle")
    with pytest.raises(ParameterError, match="span=0: expected more than 0"):
        Curve("c", [1], [1], "characters", span=0)


def test_a_centred_mean_does_not_lag_and_a_gap_stays_out_of_it():
    found = centred_mean(STEPS, 3 * STEPS, 9)
    assert found[4:-4].tolist() == (3 * STEPS[4:-4]).tolist()
    assert np.isnan(np.r_[found[:4], found[-4:]]).all()  # the line stops half a window before the ends
    assert centred_mean([1, 2, 3, 4, 5], [1, np.nan, 3, 5, 9], 3)[1:-1].tolist() == [2, 4, 17 / 3]
    assert centred_mean([1, 2, 3], [1, 5, 2], 1).tolist() == [1, 5, 2]
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


def test_a_seed_that_ended_early_is_left_out_and_named():
    whole = enumerate((STEPS, STEPS[:75], STEPS[:20]))
    long, near, short = (Curve(f"seed {n}", steps, steps, "tokens") for n, steps in whole)
    kept, lines = whole_seeds([long, near, short])
    assert kept == [long, near] and lines == ["seed 2 ended at step 20 of 75 and is left out"]
    beyond = Curve("seed 3", np.arange(1, 201), np.arange(1, 201), "tokens")
    assert whole_seeds([long, near, beyond])[0] == [long, near, beyond]
    assert whole_seeds([short, long])[0] == [long]


def test_curves_are_drawn_over_the_steps_that_all_have():
    with pytest.raises(ParameterError, match="no step in common"):
        on_common_x([Curve("a", [1], [1], "t"), Curve("b", [2], [1], "t")])
    every, second = Curve("a", [1, 2, 3, 4], [1, 2, 3, 4], "t"), Curve("b", [2, 4], [5, 7], "t")
    x, values = on_common_x([every, second])
    assert (x.tolist(), values.tolist()) == ([1, 2, 3, 4], [[1, 2, 3, 4], [5, 5, 7, 7]])
    with pytest.raises(ParameterError, match="a is in t, c in tokens"):
        on_common_x([every, Curve("c", [2], [1], "tokens")])


def test_a_point_outside_a_window_has_no_part_in_its_mean():
    gap = Curve("c", [1, 2, 3, 4], [np.nan, 1, 3, np.inf], "tokens")
    assert mean_between(gap, 1, 3) == 2 and np.isnan(mean_between(gap, 0, 3))


def test_the_first_point_of_a_log_reaches_to_step_0_at_most():
    """Of steps 1, 10, 20 the first point stood for steps -8 to 1, nine times as much as it is."""
    low, high = Curve("c", [1, 10, 20], [0, 0, 0], "tokens").stretches
    assert (low.tolist(), high.tolist()) == ([0, 1, 10], [1, 10, 20])
    evaluated = Curve("c", [0, 10, 20], [0, 0, 0], "tokens", span=1)
    assert evaluated.stretches[0][0] == -1
