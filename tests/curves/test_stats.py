import functools

import numpy as np
import pytest
from conftest import daily
from scipy import stats

from benchmarks.documented_verdicts import NOISES
from benchmarks.error_rates import changes, noise, shown_again
from workbench.curves.documented import load_baseline
from workbench.curves.stats import (
    UNKNOWN_BETWEEN_RUNS,
    Interval,
    change_interval,
    crossed_interval,
    ends,
    iqm,
    noise_covariance,
    one_seed,
    seed_interval,
    seeds_needed,
    share_interval,
)
from workbench.errors import ParameterError

DISTRIBUTIONS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "uniform": lambda rng, size: rng.uniform(size=size),
    "lognormal": lambda rng, size: rng.lognormal(size=size),
    "t(3)": lambda rng, size: rng.standard_t(3, size=size),
    "exponential": lambda rng, size: rng.exponential(size=size),
    "share of 40": lambda rng, size: rng.binomial(40, 0.3, size=size) / 40,
}


@functools.cache
def true_iqm(name: str) -> float:
    """The IQM of a million draws."""
    return iqm(DISTRIBUTIONS[name](np.random.default_rng(0), 1_000_000))


def test_iqm_cuts_a_quarter_rounded_down_from_each_end():
    rng = np.random.default_rng(0)
    for n in range(1, 12):
        values = rng.normal(size=(n, 3))
        cut = n // 4
        assert iqm(values) == pytest.approx(np.sort(values, axis=0)[cut : n - cut].mean(axis=0), abs=1e-12)
        assert iqm(values.T, axis=1) == pytest.approx(iqm(values), abs=1e-12)


@pytest.mark.parametrize("seeds", [5, 10, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.rare])])
def test_a_95_interval_over_seeds_covers_92_to_98_per_cent(seeds):
    """Every step is an experiment of its own."""
    rng = np.random.default_rng(seeds)
    for name, draw in DISTRIBUTIONS.items():
        interval = seed_interval(draw(rng, (seeds, 1500)), rng, resamples=800)
        covered = ((interval.low <= true_iqm(name)) & (true_iqm(name) <= interval.high)).mean()
        assert 0.92 <= covered <= 0.98, f"{name}: {covered:.3f}"


def test_below_five_seeds_intervals_are_wide_and_as_documented():
    rng = np.random.default_rng(3)
    interval = seed_interval(rng.normal(size=(3, 2000)), rng, resamples=500)
    assert 0.92 <= ((interval.low <= 0) & (interval.high >= 0)).mean() <= 0.98
    lowest, highest = 0.0, 1.0
    wide = seed_interval([lowest, 0.5, highest], rng)
    assert wide.low < lowest < highest < wide.high


def test_long_curves_are_resampled_piece_by_piece():
    values = np.outer(np.arange(6.0), np.ones(700_000))
    interval = seed_interval(values, np.random.default_rng(0), resamples=3)
    assert interval.low.shape == (700_000,) and np.ptp(interval.low) == 0


@pytest.mark.parametrize("n, name", [(2, "95% t interval"), (4, "95% t interval"), (5, "95% bootstrap interval")])
def test_an_interval_says_whether_it_is_t_or_bootstrap(n, name):
    interval = seed_interval(np.arange(float(n)), np.random.default_rng(0))
    assert interval.name == name
    assert f"({name}: " in str(interval) and str(interval).endswith(f"between runs, {n} seeds")


def test_one_seed_has_an_estimate_and_no_interval():
    one = one_seed(np.array([1.0, 2.0]))
    assert one.name == "no interval" and np.isnan([one.low, one.high]).all() and one.low.shape == (2,)
    assert str(one_seed(7.0)) == "7 (no interval), 1 seed; how far another seed would be from it is unknown"
    assert str(seed_interval([7.0], np.random.default_rng(0))) == str(one_seed(7.0))


def test_the_same_generator_state_gives_the_same_interval():
    values = np.random.default_rng(0).normal(size=(12, 3))
    one, same, other = (seed_interval(values, np.random.default_rng(n)) for n in (1, 1, 2))
    assert one.low.tolist() == same.low.tolist()
    assert one.low.tolist() != other.low.tolist()


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_up_to_five_seeds_no_chance_is_in_an_interval(n):
    values = np.random.default_rng(n).normal(size=n)
    one, other = (seed_interval(of, np.random.default_rng(at)) for at, of in enumerate((values, values[::-1])))
    assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=1e-12)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_of_a_mean_of_few_seeds_it_is_students_interval(n):
    values = np.random.default_rng(n).normal(size=n)
    found = seed_interval(values, np.random.default_rng(0), statistic=np.mean)
    students = stats.t.interval(0.95, n - 1, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx(students, rel=1e-12)


def test_no_seed_or_a_value_that_is_not_finite_is_refused():
    rng = np.random.default_rng(0)
    for values in ([], [np.nan], [1.0, np.nan, 2.0]):
        with pytest.raises(ParameterError, match="expected a finite value for each seed"):
            seed_interval(values, rng)
    with pytest.raises(ParameterError, match="change_interval: 3 steps; expected at least 8"):
        change_interval([1, 2, 3])
    with pytest.raises(ParameterError, match="value 4 is not finite"):
        change_interval([1, 2, 3, 4, np.nan, 6, 7, 8, 9])


def test_change_tells_a_rise_from_noise():
    noise = np.random.default_rng(0).normal(size=100)
    rise = change_interval(noise + np.linspace(0, 5, 100))
    assert 0 < rise.low < rise.estimate < rise.high
    still = change_interval(noise)
    assert still.low < 0 < still.high
    assert change_interval(np.arange(40.0)).estimate == 32


WANDERS = [(80, 0.0, 0.07), (80, 0.8, 0.08), (250, 0.8, 0.08)]


@pytest.mark.parametrize("n, rho, most", daily(WANDERS, 80))
def test_a_run_that_wanders_has_changed_in_8_per_cent_at_most(n, rho, most):
    """From blocks of the 16 steps at each end it had in 20%, at 80 steps of AR(0.8)."""
    found = changes(np.random.default_rng(4), n, rho, 150)
    assert found["changed"] <= most, found
    assert found["covers"] >= 0.92, found
    assert rho or found["seen"] > 0.9, found


def test_an_interval_within_a_run_says_it_knows_no_other_runs():
    interval = change_interval(np.random.default_rng(0).normal(size=40))
    assert interval.about == UNKNOWN_BETWEEN_RUNS
    assert (interval.n, interval.name) == (40, "95% t interval")
    assert str(interval).endswith("how far another seed would end from it is unknown")


@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_the_noise_of_a_run_is_found_beneath_its_trend(rho):
    rng = np.random.default_rng(6)
    runs = [np.linspace(0, 30, 250) + noise(rng, 250, rho) for _ in range(40)]
    covariances = [noise_covariance(run)[0] for run in runs]
    assert np.mean([c[0, 0] for c in covariances]) == pytest.approx(1 / (1 - rho**2), rel=0.15)
    assert np.mean([c[0, 1] / c[0, 0] for c in covariances]) == pytest.approx(rho, abs=0.06)


@pytest.mark.parametrize("values", [[1.0, 4.0], [1.0, 2.0, 6.0], [0.0, 3.0, 4.0, 9.0]])
def test_of_few_seeds_the_interval_of_the_mean_is_students(values):
    found = seed_interval(values, np.random.default_rng(0), statistic=np.mean, resamples=20_000)
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high), rel=0.03)


def held_out(arm: str) -> np.ndarray:
    """Held-out scores of the 8 seeds of an arm, in points."""
    figures = load_baseline(f"arvindcr4-qwen3-8b-gsm8k-{arm}").figures
    return 100 * np.array([part["value"] for name, part in figures.items() if name.startswith("heldout_seed_")])


def test_seeds_needed_of_40_real_runs():
    assert held_out("grpo").std(ddof=1) == pytest.approx(0.92, abs=0.005)
    spreads = [(held_out(arm) - held_out("grpo")).std(ddof=1) for arm in ("drgrpo", "dapo", "gspo", "aero")]
    needed = [[seeds_needed(spread, points, paired=True) for spread in spreads] for points in (1, 2)]
    assert (min(needed[0]), max(needed[0]), min(needed[1]), max(needed[1])) == (9, 15, 4, 6)


def test_seeds_needed_see_the_difference_in_80_per_cent():
    rng, n = np.random.default_rng(0), seeds_needed(1.0, 1.5)
    one, other = rng.normal(size=(2, n, 4000))
    assert (stats.ttest_ind(one + 1.5, other).pvalue < 0.05).mean() == pytest.approx(0.82, abs=0.03)
    for wrong in ((0, 1), (1, 0)):
        with pytest.raises(ParameterError, match="expected above 0"):
            seeds_needed(*wrong)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_named_difference_shows_in_80_of_100_experiments(seeds):
    assert shown_again(np.random.default_rng(seeds), seeds, 800) == pytest.approx(0.8, abs=0.05)


def test_a_difference_is_named_with_the_interval_that_holds_0():
    assert np.isnan(one_seed(1.0).detectable)
    assert "would show in 80% of such experiments" in seed_interval([-1.0, 0, 1], np.random.default_rng(0)).above(0)[1]


def test_equivalence_needs_the_whole_interval_within_the_margin():
    found = seed_interval([-0.1, 0.0, 0.1], np.random.default_rng(0))
    assert [found.within(margin)[0] for margin in (1.0, 0.1)] == [True, None]
    assert seed_interval([3.9, 4.0, 4.1], np.random.default_rng(0)).within(1.0)[0] is False


@pytest.mark.parametrize("questions", [10, 44])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_95_per_cent_are_covered_over_seeds_and_questions(seeds, questions):
    rng, covered = np.random.default_rng(0), 0
    for _ in range(500):
        # Right answers less those of another arm: some questions gain much, others nothing, and seeds differ.
        base, gain = rng.normal(0, 1, questions), rng.normal(1, 1.5, questions)
        of_seed = rng.normal(0, 0.5, (2, seeds, 1))
        right = [rng.random((seeds, questions)) < 1 / (1 + np.exp(-(base + n * gain + of_seed[n]))) for n in (1, 0)]
        values = right[0] * 1.0 - right[1]
        found = crossed_interval(values)
        covered += found.low <= 0.1533 <= found.high  # the mean of 40 million such differences
    assert covered >= 465


def test_one_seed_over_questions_has_no_interval():
    assert crossed_interval([[1, 0, 1]]).method == ""
    assert crossed_interval([[1, 0, 1]]).estimate == pytest.approx(2 / 3)


@pytest.mark.parametrize("values", [[1, 0], [[1], [0]], [[1, np.nan], [0, 1]], np.zeros((0, 3))])
def test_scores_that_are_no_table_of_answers_are_refused(values):
    with pytest.raises(ParameterError, match=r"expected \(seeds, questions\), 2 questions or more, all finite"):
        crossed_interval(values)


def test_equal_answers_have_no_interval():
    """As one of width 0 they covered a share of 0.95 in 38% of cases: 5 questions to 2 seeds are often all right."""
    found = crossed_interval(np.ones((3, 4)))
    assert (found.method, found.in_brief(".0%")) == ("", "100%") and np.isnan([found.low, found.high]).all()
    assert found.above(0.9) == found.within(2) == (None, "3 seeds without any difference: its scatter is unknown")


@pytest.mark.parametrize("seeds, questions", [(2, 5), (3, 10), (5, 5), (10, 10)])
def test_easy_questions_are_covered_where_answers_differ(seeds, questions):
    rng, inside, some = np.random.default_rng(0), 0, 0
    for _ in range(500):
        chance = rng.beta(13, 1, questions)
        found = crossed_interval((rng.random((seeds, questions)) < chance) * 1.0)
        some += found.method == "t"
        inside += bool(found.low <= 13 / 14 <= found.high)
    assert some > 200 and inside >= 0.9 * some


@pytest.mark.parametrize("n", [5, 6, 7])
def test_a_level_that_resamples_cannot_reach_has_a_t_interval(n):
    rng = np.random.default_rng(0)
    found = seed_interval(rng.normal(size=(n, 2000)), rng, level=0.99)
    assert found.method == "t" and ((found.low <= 0) & (found.high >= 0)).mean() > 0.98
    assert seed_interval([1.0] * n, rng).method == "bootstrap"
    assert found.name == "99% t interval" and seed_interval([1, 2.0], rng, level=0.999).name == "99.9% t interval"
    assert seed_interval([1, 2.0], rng, level=0.999).detectable > 100


@pytest.mark.parametrize(("values", "means"), [([0.1, 0.3, 0.5, 0.9], (0.2, 0.7)), ([1, 5], (1, 5)), ([3], (3, 3))])
def test_the_ends_of_few_points_share_none(values, means):
    assert ends(values) == pytest.approx(means)


def test_a_difference_of_rounding_is_none():
    arms = np.subtract([0.8] * 3, [0.1 + 0.7] * 3)
    assert seed_interval(arms, np.random.default_rng(0)).above(0)[0] is None
    interval = seed_interval([1.0, 2.0, 3.0], np.random.default_rng(0))
    assert interval.above(float("nan")) == (None, "the bound is not a number")
    assert interval.within(-0.1) == (None, "a margin of -0.1: nothing lies within it")


@pytest.mark.parametrize("count, n, low, high", [(0, 3, 0, 0.708), (2, 3, 0.094, 0.992), (8, 8, 0.631, 1)])
def test_a_share_of_seeds_has_its_exact_interval(count, n, low, high):
    found = share_interval(count, n)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.001)


def test_a_moving_average_is_undone_where_points_show_it():
    """Its steps are alike for ten steps and then not at all, which no autoregressive noise is."""
    rng, window, n = np.random.default_rng(2), 10, 120
    kernel = np.full(window, 1 / window)
    found = np.mean(
        [noise_covariance(np.convolve(rng.normal(size=n + 9), kernel, "valid"), 6, True)[0][0] for _ in range(20)], 0
    )
    assert found[[5, 15]] / found[0] == pytest.approx([0.5, 0.0], abs=0.15)


def test_slow_noise_of_forty_points_is_seldom_taken_for_a_trend():
    """Without the prior on slow noise and without moving averages it was in a fifth of these runs."""
    wrong = []
    for kind in ("16 right or wrong, AR(0.9)", "mean of ten steps", "AR(0.8), half white"):
        rng = np.random.default_rng(3)
        found = [change_interval(NOISES[kind](rng, 40), degree=5, mixed=True) for _ in range(100)]
        wrong += [one.low > 0 or one.high < 0 for one in found]
    assert np.mean(wrong) <= 0.14


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 0.99])
def test_a_run_that_stays_as_it_is_has_not_changed(value):
    """By the rounding of its mean it had: +8.3e-17 (+8.3e-17 to +8.3e-17)."""
    for n in (8, 33, 60):
        found = change_interval(np.full(n, value))
        assert (found.estimate, found.low, found.high) == (0, 0, 0)


def test_what_a_short_run_could_show_follows_its_own_interval():
    """With the degrees of freedom of as many seeds as steps it was 7% too small for 8 steps."""
    found = change_interval([0.0, 1, 0, 2, 1, 0, 1, 1])
    assert found.freedom == 4  # which a cubic leaves of 8 steps, and the mean of 5 seeds
    as_wide = Interval(found.estimate, found.low, found.high, 0.95, 5, "t", "of 5 seeds")
    assert found.detectable == pytest.approx(as_wide.detectable)


@pytest.mark.parametrize("count, n", [(1, 1), (0, 1), (2, 3), (5, 10)])
def test_a_share_names_no_difference_of_a_t_test(count, n):
    """Of 1 seed it was an error of the solver, of 2 of 3 seeds a share of 0.91 away from 0.5."""
    found = share_interval(count, n)
    assert np.isnan(found.detectable)
    assert found.above(0.5) == (None, "its 95% exact interval holds 0.5")


@pytest.mark.parametrize("value", [0.1, 0.7])
@pytest.mark.parametrize("seeds", [3, 5, 6, 7, 10])
def test_equal_seeds_are_neither_above_nor_below_their_own_value(value, seeds):
    for statistic in (np.mean, iqm):
        found = seed_interval([value] * seeds, np.random.default_rng(0), statistic=statistic)
        assert found.above(value)[0] is None
        assert [found.above(value + by)[0] for by in (-1e-6, 1e-6)] == [True, False]


def test_an_interval_without_bounds_decides_nothing():
    broken = seed_interval(
        [1.0, 2, 3], np.random.default_rng(0), statistic=lambda values, axis: values.mean(axis) * np.nan
    )
    assert broken.above(0) == (None, "its 95% t interval has no bounds")
    assert broken.within(1)[0] is None


def test_a_level_in_per_cent_is_refused():
    rng = np.random.default_rng(0)
    for ask in (
        lambda level: seed_interval([1.0, 2, 3], rng, level=level),
        lambda level: crossed_interval([[1, 0], [1, 1]], level=level),
        lambda level: share_interval(1, 3, level=level),
        lambda level: change_interval(np.arange(20.0), level=level),
    ):
        for level in (95, 1, 0):
            with pytest.raises(ParameterError, match=f"level={level}: expected a share above 0 and below 1"):
                ask(level)


def test_answers_that_differ_have_an_interval_with_a_width():
    """Each seed and each question has the same mean: it was 0.5 (0.5 to 0.5)."""
    found = crossed_interval([[1, 0], [0, 1]])
    assert found.low < 0 < 1 < found.high and found.above(0.4)[0] is None
    wider = crossed_interval([[1, 0, 1, 0], [0, 1, 0, 1]])
    assert wider.low < 0.5 < wider.high


def test_one_seed_keeps_the_level_and_no_resample_is_refused():
    rng = np.random.default_rng(0)
    assert seed_interval([1.0], rng, level=0.9).level == crossed_interval([[1, 0, 1]], level=0.9).level == 0.9
    with pytest.raises(ParameterError, match="resamples=0: expected at least 1"):
        seed_interval(range(6), rng, resamples=0)
