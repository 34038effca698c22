import json
import sys

import numpy as np
import pytest
from conftest import ROOT

from workbench.curves.agreement import agreement
from workbench.curves.baselines import load_baseline
from workbench.curves.curve import Curve
from workbench.errors import ParameterError

sys.path.append(str(ROOT / "benchmarks"))
from error_rates import CASES, NOISES, page, verdicts

STEPS = np.arange(1, 81)


def rise(steps, tau: float = 20.0):
    return 21 * (1 - np.exp(-steps / tau)) - 25


def curve(y=None, *, seed=None, unit="characters", steps=STEPS, **parts) -> Curve:
    y = rise(steps) if y is None else np.asarray(y, float)
    scatter = 0 if seed is None else np.random.default_rng(seed).normal(size=len(steps))
    return Curve(parts.pop("label", "measured"), steps, y + scatter, unit, **parts)


def seeds(y=None, n=5, first=0, **parts) -> list[Curve]:
    return [curve(y, seed=first + s, **parts) for s in range(n)]


DOCUMENTED = curve(seed=99, label="documented")

# --- the same process ------------------------------------------------------------------------------------------------


def test_equal_curves_agree():
    found = agreement(seeds(), DOCUMENTED, tolerance=5)
    assert found.verdict == "agrees", found
    assert found.points == 80
    assert abs(found.offset) < found.offset_reach and abs(found.shape) < found.shape_reach
    assert agreement([DOCUMENTED], DOCUMENTED, tolerance=1e-9).verdict == "agrees"
    assert agreement([DOCUMENTED] * 3, DOCUMENTED, tolerance=1e-9).verdict == "agrees"


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("n", [1, 3, 5, 10])
def test_another_seed_of_the_same_process_is_said_to_differ_in_7_per_cent_at_most(n, kind):
    """Seeds 1 apart, tolerance 5; judged by the mean residual alone it was 39% for 5 seeds and 91% for one."""
    found = verdicts(np.random.default_rng(7), n, NOISES[kind], 300, CASES["the same process"])
    assert found["differs"] <= 0.07, found
    assert found["agrees"] >= 0.85, found


def test_seeds_that_lie_further_apart_than_the_tolerance_leave_a_documented_one_undecided():
    far = CASES["the same, seeds 5 apart"]
    found = verdicts(np.random.default_rng(8), 5, 0.0, 100, far)
    assert found["differs"] <= 0.07 and found["undecided"] > 0.2, found


def test_a_documented_run_of_smaller_batches_scatters_more_and_is_no_other_process():
    found = verdicts(np.random.default_rng(9), 10, 0.0, 100, CASES["the same, documented run with twice the noise"])
    assert found["differs"] <= 0.07, found


def test_the_page_of_error_rates_shows_what_the_simulation_recorded_and_all_of_it_is_within_bounds():
    recorded = json.loads((ROOT / "data" / "benchmarks" / "error_rates.json").read_text())
    control = json.loads((ROOT / "data" / "benchmarks" / "control.json").read_text())
    assert (ROOT / "docs" / "error_rates.md").read_text() == page(recorded, control)
    same = [row["seeds"] for row in recorded["agreement"].values() if row["truth"] == "same"]
    assert len(same) == 10 and max(cell["differs"] for row in same for cell in row.values()) <= 0.07
    assert recorded["change_interval"]["80; 0.8"]["changed"] <= 0.08


# --- another process -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n, about in CASES.items() if about["truth"] == "other" and n != "6 higher"])
def test_what_exceeds_the_tolerance_by_far_is_never_said_to_agree_and_five_seeds_tell_most_of_it(name):
    one, five = (verdicts(np.random.default_rng(3), n, 0.8, 40, CASES[name]) for n in (1, 5))
    assert one["agrees"] <= 0.05, one
    assert five["agrees"] == 0 and five["differs"] >= 0.7, five


def test_an_offset_of_several_seed_spreads_is_a_difference_even_within_the_tolerance():
    apart = [curve(rise(STEPS) + 4 + n / 10, seed=n) for n in range(5)]
    found = agreement(apart, DOCUMENTED, tolerance=8)
    assert found.verdict == "differs"
    assert found.reason.startswith(f"an offset of {found.offset:.4g} characters, another seed would lie within 0.45")
    assert found.offset == pytest.approx(4.2, abs=0.3) and found.offset_reach < 1.5
    assert abs(found.shape) < found.shape_reach


def test_one_seed_with_an_offset_agrees_within_the_tolerance_and_is_undecided_beyond_it():
    near, far = (agreement([curve(rise(STEPS) + by, seed=0)], DOCUMENTED, tolerance=5) for by in (2, 9))
    assert near.verdict == "agrees"
    assert near.reason.startswith("within the tolerance of 5 characters; with 1 seed an offset of 1.991 ")
    assert "cannot be told from another seed" in near.reason
    assert far.verdict == "undecided" and "1 seed cannot tell how far another would be" in far.reason
    assert np.isnan([near.offset_reach, far.offset_reach]).all()


def test_half_the_speed_is_a_difference_of_shape():
    found = agreement(seeds(rise(STEPS, 40)), DOCUMENTED, tolerance=5)
    assert found.verdict == "differs" and "the shape: a fifth lies" in found.reason
    assert abs(found.shape) > found.shape_reach


def test_a_drift_within_the_tolerance_is_a_difference_of_shape_and_not_of_offset():
    found = agreement(seeds(rise(STEPS) + np.linspace(-2, 2, 80)), DOCUMENTED, tolerance=5)
    assert found.verdict == "differs" and "offset" not in found.reason
    assert abs(found.worst) < 5


@pytest.mark.parametrize("n", [1, 5])
def test_a_flipped_sign_is_a_difference_by_far_for_one_seed_too(n):
    found = agreement(seeds(-rise(STEPS), n), DOCUMENTED, tolerance=5)
    assert found.verdict == "differs"
    assert found.worst > 30


# --- where points stand ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at, x", [("end", 4), ("start", 1), ("centre", 2.5)])
def test_a_documented_point_is_compared_with_the_steps_that_it_is_the_mean_of(at, x):
    means = rise(STEPS).reshape(-1, 4).mean(1)
    for span in (None, 4):
        binned = Curve("documented", np.arange(20) * 4 + x, means, "characters", at=at, span=span)
        found = agreement([curve()], binned, tolerance=1e-6)
        assert found.verdict == "agrees", found
        assert found.points == 20


def test_the_same_curve_logged_every_ten_steps_taken_for_centres_would_lie_above():
    means = rise(STEPS).reshape(-1, 10).mean(1)
    wrong = Curve("documented", np.arange(10, 81, 10), means, "characters", at="centre")
    assert agreement([curve()], wrong, tolerance=5).offset > 1


def test_the_documented_log_of_every_ten_steps_agrees_with_the_run_that_would_have_written_it():
    documented = load_baseline("w3ng-qwen2.5-1.5b-tldr-grpo").curve()
    steps = np.arange(1, 111)
    run = Curve("measured", steps, np.repeat(documented.y, 10), documented.unit, high=0.0)
    found = agreement([run], documented, tolerance=1e-6)
    assert (found.verdict, found.points) == ("agrees", 11)


def test_a_last_bin_of_fewer_steps_takes_none_of_the_one_before():
    thinned = Curve("documented", [*np.arange(5, 78, 9), 81], [*[0.0] * 9, 9.0], "characters", at="centre", span=9)
    steps = np.arange(1, 82)  # nine bins of 9 would end at 81; the tenth point stands for what follows
    run = Curve("measured", steps, np.zeros(81), "characters")
    assert agreement([run], thinned, tolerance=5).points == 9


def test_an_evaluation_is_compared_with_that_of_its_own_step():
    every_50 = Curve("documented", np.arange(50, 501, 50), np.arange(50, 501, 50), "share", span=1)
    every_10 = Curve("measured", np.arange(10, 501, 10), np.arange(10, 501, 10), "share")
    assert agreement([every_10], every_50, tolerance=1e-6).worst == 0


# --- what cannot be compared -----------------------------------------------------------------------------------------


def test_one_nan_cannot_be_compared_and_its_step_is_named():
    broken = curve(np.where(STEPS == 40, np.nan, rise(STEPS)), label="seed 3")
    found = agreement([*seeds(n=2), broken], DOCUMENTED, tolerance=5)
    assert str(found) == "cannot compare: seed 3: not finite at step 40"


def test_a_run_cut_off_early_cannot_be_compared_and_one_cut_late_says_how_much_was():
    def cut(n):
        return [Curve("m", STEPS[:n], rise(STEPS[:n]) + s.y[:n] - rise(STEPS)[:n], "characters") for s in seeds()]

    early, late = (agreement(cut(n), DOCUMENTED, tolerance=5) for n in (30, 70))
    assert str(early) == "cannot compare: only 30 of 80 documented points are covered by every run"
    assert late.verdict == "agrees"
    assert "70 points, 88% of the documented ones" in late.reason


@pytest.mark.parametrize(
    "other, reason",
    [({"unit": "tokens"}, "measured is in tokens, documented in characters"),
     ({"high": 0.0}, r"measured ranges over (-inf, 0], documented over (-inf, inf)"),
     ({"axis": "prompts"}, "measured is over prompts, documented over step")]
)  # fmt: skip
def test_units_ranges_and_axes_that_differ_are_not_compared(other, reason):
    found = agreement([curve(**other)], DOCUMENTED, tolerance=5)
    assert (found.verdict, found.reason) == ("cannot compare", reason)


def test_a_tolerance_of_nothing_and_no_runs_are_refused():
    with pytest.raises(ParameterError, match="tolerance=0: expected more than 0 characters"):
        agreement(seeds(), DOCUMENTED, tolerance=0)
    with pytest.raises(ParameterError, match="no measured curve to compare with documented"):
        agreement([], DOCUMENTED, tolerance=1)
