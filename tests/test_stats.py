import numpy as np
import pytest

from workbench.errors import ParameterError
from workbench.stats import curve_summary


def test_a_rising_line_is_summed_up_by_its_ends():
    summary = curve_summary(range(1, 101), np.linspace(-30, -4, 100))
    assert summary["first"] == pytest.approx(-29.74, abs=0.01)
    assert summary["last"] == pytest.approx(-6.49, abs=0.01)
    assert (summary["lowest"], summary["highest"], summary["best_step"]) == (-30, -4, 100)
    assert summary["flips"] == 0


def test_flips_is_one_for_a_zigzag_and_two_thirds_for_noise():
    assert curve_summary(range(20), [0, 1] * 10)["flips"] == 1
    noise = np.random.default_rng(0).normal(size=20_000)
    assert curve_summary(range(20_000), noise, tail=20_000)["flips"] == pytest.approx(2 / 3, abs=0.02)


def test_a_run_shorter_than_the_tail_is_taken_whole():
    summary = curve_summary([1], [-3.0])
    assert (summary["first"], summary["last"], summary["flips"]) == (-3, -3, 0)


def test_only_the_tail_counts_for_the_result():
    assert curve_summary(range(30), [-100.0] * 10 + [-1.0] * 20)["last"] == -1


def test_values_are_plain_numbers_that_json_takes():
    assert {type(v) for v in curve_summary([1, 2], np.float32([1, 2])).values()} == {float}


@pytest.mark.parametrize("steps, rewards", [([], []), ([1, 2], [1.0])])
def test_empty_or_uneven_curves_are_refused(steps, rewards):
    with pytest.raises(ParameterError, match="equally many steps and rewards"):
        curve_summary(steps, rewards)


def test_a_tail_below_one_is_refused():
    with pytest.raises(ParameterError, match="tail=0"):
        curve_summary([1], [1.0], tail=0)
