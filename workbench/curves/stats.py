"""Numbers about reward curves, and how far they can be trusted: pure functions of arrays; the random generator is passed in.

Between runs: `seed_interval`, over seeds, and `crossed_interval`, over seeds and questions. Within one run:
`change_interval`; it cannot tell how another seed would have ended, and says so in `Interval.about`.
`docs/evidence/error_rates.md` has the measured error rates of all of them.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from ..errors import ParameterError

# What noise in a run may be: a slow part, with this autocorrelation of neighbouring steps, and this share of white noise,
# as a mean over few completions has.
_SLOW, _WHITE = (part.ravel() for part in np.meshgrid(np.append(np.arange(20) / 20, 0.98), np.arange(5) / 5))
# A log may hold, at each step, the mean of the last 2 to 20 steps. Few points hardly tell such noise from other slow noise.
# So each of these kinds counts less than the mean of the others, by this log factor: with equal weights white noise lost power.
_WINDOWS, _LESS = range(2, 21), 1.5
SHORT = 25  # steps; fewer cannot tell noise that lasts from a trend, and are taken to be such noise alone
POWER = 0.8  # chance to see a difference that is there
UNKNOWN_BETWEEN_RUNS = "within this one run; how far another seed would end from it is unknown"


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate with its bounds: numbers, or arrays of one value a step.

    `n` counts the seeds, or the steps of the one run; `method` is "t", "bootstrap" or "exact", empty where there is no
    interval; `about` says what the interval covers and what it does not; `freedom` is that of the t distribution, 0 for n - 1.
    """

    estimate: float | np.ndarray
    low: float | np.ndarray
    high: float | np.ndarray
    level: float
    n: int
    method: str
    about: str
    freedom: float = 0.0

    @property
    def name(self) -> str:
        """`95% t interval`, `95% bootstrap interval` or `no interval`."""
        return f"{100 * self.level:g}% {self.method} interval" if self.method else "no interval"

    def above(self, bound: float) -> tuple[bool | None, str]:
        """Whether the number lies above a bound, and why that is open: None where the interval holds it, or there is none."""
        if np.isnan(bound):
            return None, "the bound is not a number"
        if not self.method:
            return None, self._unknown
        low, high = float(self.low), float(self.high)
        if np.isnan(low) or np.isnan(high):
            return None, f"its {self.name} has no bounds"
        # Seeds that are all equal end within rounding of their own value, and two arms that are differ by rounding.
        if low <= bound <= high or np.isclose([low, high], bound, rtol=1e-9, atol=1e-12).any():
            return None, f"its {self.name} holds {bound:g}{self._could_show}"
        return low > bound, ""

    def within(self, margin: float) -> tuple[bool | None, str]:
        """Say whether the number is equivalent to 0: as far as its interval reaches it lies within `margin` on both sides.

        The margin is fixed before the training, at most a tenth of the run's own rise. None where the interval shows neither.
        """
        if not margin > 0:
            return None, f"a margin of {margin:.3g}: nothing lies within it"
        if not self.method:
            return None, self._unknown
        if max(-self.low, self.high) <= margin:
            return True, f"its {self.name} lies within {margin:.3g}"
        if self.low > margin or self.high < -margin:
            return False, f"its {self.name} lies beyond {margin:.3g}"
        return None, f"its {self.name} reaches beyond {margin:.3g}{self._could_show}"

    @property
    def detectable(self) -> float:
        """The smallest difference from 0 that another experiment with as many values shows in 80% of cases.

        How far values scatter is known from these alone. So it is larger than for a known scatter: 1.6 times for 3 seeds, 1.2
        times for 5. NaN without an interval, and of a share. That of a bootstrap is what a t interval as wide would show.

        Example:
            >>> round(seed_interval([0.1, -0.4, 0.6], np.random.default_rng(0)).detectable, 2)
            2.53
        """
        if self.method in ("", "exact"):  # how a share scatters depends on how large it is
            return float("nan")
        half, freedom = float(np.max(np.asarray(self.high) - self.low)) / 2, self.freedom or self.n - 1
        return half / _t_bound(freedom, self.level) * _errors_to_see(freedom, self.level)

    @property
    def _unknown(self) -> str:
        return f"{'one seed' if self.n == 1 else f'{self.n} seeds without any difference'}: its scatter is unknown"

    @property
    def _could_show(self) -> str:
        return (
            "" if self.method == "exact" else f"; {self.detectable:.2g} would show in {POWER:.0%} of such experiments"
        )

    def in_brief(self, digits: str = ".3g") -> str:
        """`0.91 (0.83 to 1.02)`, of a number; without the bounds where there are none."""
        return f"{self.estimate:{digits}}" + (f" ({self.low:{digits}} to {self.high:{digits}})" if self.method else "")

    def __str__(self) -> str:
        if isinstance(self.estimate, np.ndarray):
            return f"{len(self.estimate)} intervals ({self.name}), {self.about}"
        bounds = f": {self.low:.4g} to {self.high:.4g}" if self.method else ""
        return f"{self.estimate:.4g} ({self.name}{bounds}), {self.about}"


def iqm(values, axis: int = 0) -> float | np.ndarray:
    """Interquartile mean, of what is left after a quarter is cut from each end (Agarwal et al., NeurIPS 2021)."""
    from scipy.stats import trim_mean

    kept = trim_mean(np.asarray(values, float), 0.25, axis=axis)
    return float(kept) if np.ndim(kept) == 0 else kept


def seed_interval(
    values,
    rng: np.random.Generator,
    *,
    statistic: Callable = iqm,
    level: float = 0.95,
    resamples: int = 2000,
) -> Interval:
    """Compute an interval over seeds: t below 5, bootstrap from 5 on (8 for 99%), none for 1; for curves one interval a step.

    Up to 5 seeds all resamples are listed, 3,125 of 5, so no chance is in the interval; of a mean below 5 it is Student's.
    From 6 on `resamples` are drawn.

    The bootstrap takes percentiles further out than `level` asks (Hesterberg 2015), because resamples of few seeds spread
    too little. Below 5 seeds no resampling reaches 95% (the widest it gives is lowest to highest seed, right in 75% of
    cases at 3 seeds); there it is a t interval. What a nominal 95% covers for the IQM, by simulation on normal,
    uniform, lognormal, exponential, t(3) and binomial values (`tests/curves/test_stats.py` repeats it from 5 seeds on):

        seeds                 2        3        4        5        10       30
        covers, per cent      89..96   91..97   95..99   93..94   97       95..96
        plain percentiles              71..76            88..90   93..94   94..95

    Args:
        values: (seeds,) or (seeds, T).
        rng: draws the resamples, from 6 seeds on; the same generator state gives the same interval.
        statistic: function of the values, called with `axis`.
        level: confidence level.
        resamples: number of bootstrap resamples, from 6 seeds on.

    Raises:
        ParameterError: no seeds, a value that is not finite, or a level that is not between 0 and 1.

    Example:
        >>> found = seed_interval([1.0, 2.0, 3.0], np.random.default_rng(0))
        >>> found.in_brief(".2f"), found.name  # 2 ± 4.303 / √3, Student's
        ('2.00 (-0.48 to 4.48)', '95% t interval')
    """
    values = np.asarray(values, float)
    n = len(values)
    check_level(level)
    if resamples < 1:
        raise ParameterError(f"resamples={resamples}: expected at least 1")
    if not n or not np.isfinite(values).all():
        raise ParameterError("values: expected a finite value for each seed; leave out or repeat a seed without one")
    if n == 1:
        return one_seed(statistic(values, axis=0), level)
    index = np.indices((n,) * n).reshape(n, -1).T if n <= 5 else rng.integers(n, size=(resamples, n))
    pieces = np.array_split(index, min(len(index), 1 + len(index) * values.size // 2_000_000))  # to spare the memory
    drawn = np.concatenate([statistic(values[piece], axis=1) for piece in pieces])
    return _interval(statistic(values, axis=0), drawn, n, level, f"between runs, {n} seeds")


def crossed_interval(values: ArrayLike, *, level: float = 0.95) -> Interval:
    """Compute an interval of a mean over seeds and questions, where each seed answers the same questions.

    Other seeds would score differently, and so would other questions: an interval over seeds alone covers 81 to 95% where
    questions differ in what they gain. The mean's variance is taken apart as in a random effects model of two crossed
    factors (Searle, Casella and McCulloch 1992, chapter 4), with Satterthwaite's degrees of freedom for the t interval. By
    simulation on right and wrong answers a nominal 95% covers 91 to 99% with 2 seeds, 91 to 99% with 3 to 10, few and easy
    questions too (`tests/curves/test_stats.py` repeats it). Where all values are equal there is no interval.

    Args:
        values: (seeds, questions), such as 1 and 0 for right and wrong answers, or differences of two arms.
        level: confidence level.

    Raises:
        ParameterError: not of two axes, fewer than 2 questions, or a value that is not finite.

    Example:
        >>> found = crossed_interval([[1, 0, 1, 1], [1, 0, 0, 1], [1, 0, 1, 1]])
        >>> found.in_brief(".2f"), found.about
        ('0.67 (-0.09 to 1.43)', 'between runs and questions, 3 seeds and 4 questions')
    """
    values = np.asarray(values, float)
    check_level(level)
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2 or not np.isfinite(values).all():
        raise ParameterError(
            f"values of shape {values.shape}: expected (seeds, questions), 2 questions or more, all finite"
        )
    seeds, questions = values.shape
    mean, by_seed, by_question = float(values.mean()), values.mean(1), values.mean(0)
    about = f"between runs and questions, {seeds} seeds and {questions} questions"
    if seeds == 1:
        return one_seed(mean, level)
    if np.ptp(values) == 0:
        return Interval(mean, np.nan, np.nan, level, seeds, "", f"{about}, all of them equal")
    rest = values - by_seed[:, None] - by_question + mean
    of_seeds, of_questions = by_seed.var(ddof=1) / seeds, by_question.var(ddof=1) / questions
    twice = (rest**2).sum() / ((seeds - 1) * (questions - 1)) / values.size  # both parts above hold the rest
    variance = max(of_seeds + of_questions - twice, of_seeds, of_questions)
    parts = of_seeds**2 / (seeds - 1) + of_questions**2 / (questions - 1)
    freedom = max(float(variance**2 / parts) if parts else 0.0, min(seeds, questions) - 1.0)
    if variance <= 1e-9 * twice:  # each seed and each question has the same mean, though answers differ
        variance, freedom = twice, (seeds - 1.0) * (questions - 1.0)
    half = _t_bound(freedom, level) * float(np.sqrt(variance))
    return Interval(mean, mean - half, mean + half, level, seeds, "t", about, freedom)


def one_seed(estimate, level: float = 0.95) -> Interval:
    """Of one seed there is no interval: the estimate without bounds (NaN), and `about` says why."""
    unknown = np.full_like(estimate, np.nan, dtype=float)[()]
    return Interval(
        estimate, unknown, unknown, level, 1, "", "1 seed; how far another seed would be from it is unknown"
    )


def _interval(estimate, drawn: np.ndarray, n: int, level: float, about: str) -> Interval:
    """Bounds from the statistic's value on each resample, which stand along the first axis of `drawn`."""
    from scipy import stats

    t = stats.t.ppf(0.5 + level / 2, n - 1)
    if n < 5 or 1 - level < 1.5 * 0.5**n:  # resamples of so few never leave lowest to highest seed
        method, half = "t", t * drawn.std(axis=0) * np.sqrt(n / (n - 1))
        low, high = estimate - half, estimate + half
    else:
        method, tail = "bootstrap", stats.norm.cdf(-np.sqrt(n / (n - 1)) * t)
        low, high = np.quantile(drawn, [tail, 1 - tail], axis=0, method="inverted_cdf")
    if np.ndim(estimate) == 0:
        estimate, low, high = float(estimate), float(low), float(high)
    return Interval(estimate, low, high, level, n, method, about)


def share_interval(count: int, n: int, *, level: float = 0.95) -> Interval:
    """Compute the exact interval of a share `count` of `n`, such as that of seeds that collapse (Clopper and Pearson 1934).

    Example:
        >>> print(share_interval(2, 3).in_brief(".0%"))
        67% (9% to 99%)
    """
    from scipy.special import betaincinv

    check_level(level)
    if not 0 <= count <= n or not n:
        raise ParameterError(f"count={count}, n={n}: expected a count from 0 to n, and n of 1 or more")
    tail = (1 - level) / 2
    low = float(betaincinv(count, n - count + 1, tail)) if count else 0.0
    high = float(betaincinv(count + 1, n - count, 1 - tail)) if count < n else 1.0
    return Interval(count / n, low, high, level, n, "exact", f"between runs, {n} seeds")


def seeds_needed(spread: float, difference: float, *, paired: bool = False, power: float = POWER) -> int:
    """Return how many seeds each of two arms needs: a t test at 5% then finds their difference in `power` of experiments.

    Args:
        spread: standard deviation between the seeds of one arm; with `paired`, that of the arms' difference at the same seed.
        difference: the difference to find, in the same unit, above 0.
        paired: each seed is trained in both arms.
        power: 0..1.

    Example:
        >>> seeds_needed(0.92, 1.0), seeds_needed(0.88, 1.0, paired=True), seeds_needed(1.28, 1.0, paired=True)
        (15, 9, 15)
    """
    if not (spread > 0 and difference > 0 and 0 < power < 1):
        raise ParameterError(
            f"spread={spread:g}, difference={difference:g}, power={power:g}: expected above 0, power below 1"
        )
    for n in range(2, 10_000):
        freedom, error = (n - 1, spread / np.sqrt(n)) if paired else (2 * n - 2, spread * np.sqrt(2 / n))
        if _noncentrality(freedom, 0.95, power) <= difference / error:
            return n
    raise ParameterError(f"a difference of {difference:g} at a spread of {spread:g} needs 10,000 seeds or more")


def check_level(level: float) -> None:
    """Refuse a level such as 95, of which bounds would be NaN."""
    if not 0 < level < 1:
        raise ParameterError(f"level={level:g}: expected a share above 0 and below 1, such as 0.95")


def _t_bound(freedom: float, level: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + level / 2))


def _noncentrality(freedom: float, level: float, power: float = POWER) -> float:
    """Return how many standard errors a difference has to be, for a t test to see it with this power."""
    from scipy.special import nctdtrinc

    return float(nctdtrinc(freedom, 1 - power, _t_bound(freedom, level)))


@functools.cache
def _errors_to_see(freedom: float, level: float, power: float = POWER) -> float:
    """Return how many of its standard errors an experiment has to name, for another one to see such a difference.

    An experiment's own standard error is too small by luck in about half of cases, so this averages over what it may be.
    """
    from scipy.optimize import brentq
    from scipy.special import chdtri, ndtr

    shares = (np.arange(200) + 0.5) / 200
    # Quantiles of an estimated standard error, in units of the true one.
    errors = np.sqrt(chdtri(freedom, shares) / freedom)
    # What another experiment has to exceed, in the same units.
    bounds = _t_bound(freedom, level) * errors[:, None]
    return float(brentq(lambda size: ndtr(size * errors - bounds).mean() - power, 0.1, 1e9))


def change_interval(values: ArrayLike, *, level: float = 0.95, degree: int = 3, mixed: bool = False) -> Interval:
    """Return how much a run changed: mean of its last fifth of steps less that of its first, with a t interval.

    An interval above 0 shows a rise. One that holds 0 does not show that nothing was learned; it shows no learning. Of
    runs that do not change, up to 6% are said to have changed, at 40 steps or more with lag-1 autocorrelation up to 0.8; at
    20 steps with 0.8 it is 11% (`docs/evidence/error_rates.md`). Where white noise covers a slow path, as in most logged
    rewards, it is up to 60%, and with `mixed` what `docs/evidence/documented_verdicts.md` shows.

    `values` are 8 or more steps of one run, finite; of each end at least 4 are taken. `degree`, `mixed`: see
    `noise_covariance`.

    Example:
        >>> change = change_interval([0, 1, 0, 1, 0, 5, 9, 8, 9, 8, 9, 8])
        >>> print(round(change.estimate, 2), change.low > 0, change.name)
        8.0 True 95% t interval
    """
    from scipy import stats

    check_level(level)
    values = _finite(values, "change_interval", least=8)
    if not np.ptp(values):
        values = np.zeros(len(values))  # else a run that stays as it is would change by its rounding
    n = max(4, round(0.2 * len(values)))
    weights = np.zeros(len(values))
    weights[:n], weights[-n:] = -1 / n, 1 / n
    covariance, freedom = noise_covariance(values, degree, mixed)
    middle = float(weights @ values)
    half = float(np.sqrt(weights @ covariance @ weights) * stats.t.ppf(0.5 + level / 2, freedom))
    return Interval(middle, middle - half, middle + half, level, len(values), "t", UNKNOWN_BETWEEN_RUNS, freedom)


def ends(values: ArrayLike) -> tuple[float, float]:
    """Means of the first and the last fifth of the points, as `change_interval` takes them: 4 or more of each, or half.

    Example:
        >>> ends(range(40))
        (3.5, 35.5)
    """
    values = np.asarray(values, float)
    n = min(max(4, round(0.2 * len(values))), max(1, len(values) // 2))
    return float(values[:n].mean()), float(values[-n:].mean())


def noise_covariance(values: ArrayLike, degree: int = 3, mixed: bool = False) -> tuple[np.ndarray, int]:
    """Return how the steps of one run scatter around their trend: covariance, (N, N), and its degrees of freedom.

    The trend is a polynomial, the noise autoregressive of order 1. Every autocorrelation from 0 to 0.95 counts by its
    restricted likelihood: the likeliest alone would be too sure of itself in a short run, and ordinary likelihood finds
    too little autocorrelation (Cheang and Reinsel, JASA 2000). `mixed`, of 25 steps or more: the trend may also jump early and
    level off within a tenth of the run. The noise may have autocorrelations up to 0.98, which count by Jeffreys' prior, so that
    slow noise counts more; a share of white noise on top, from 0 to 0.8, as the mean over few completions has; or be a
    moving average over 2 to 20 steps. N is more than `degree` + 2, and the values are finite.
    """
    from scipy.linalg import toeplitz

    values = np.asarray(values, float)
    n = len(values)
    trend = [np.polynomial.legendre.legvander(np.linspace(-1, 1, n), degree)]
    mixed = mixed and n >= SHORT
    kinds = mixed | (_WHITE == 0) & (_SLOW < 0.96)
    slow, white = _SLOW[kinds], _WHITE[kinds]
    if mixed:
        trend.append(np.exp(-np.arange(n) * 30 / n)[:, None])
    columns = np.hstack([*trend, values[:, None]])
    freedom = n - columns.shape[1] + 1
    whitened, logdet = _whitened(columns, slow, white)
    shapes = (1 - white)[:, None] * slow[:, None] ** np.arange(n)
    shapes[:, 0] = 1
    prior = np.zeros(len(slow))
    if mixed:
        prior = -np.log(1 - slow**2) / 2
        averages = _moving_averages(n)
        of_averages = [_whitened_by(shape, columns) for shape in averages]
        whitened = np.concatenate([whitened, *(one[None] for one, _ in of_averages)])
        logdet = np.append(logdet, [one for _, one in of_averages])
        shapes = np.concatenate([shapes, averages])
        prior = np.append(prior, np.full(len(averages), np.log(np.exp(prior).mean()) - _LESS))
    diagonal = np.abs(np.diagonal(np.linalg.qr(whitened, mode="r"), axis1=1, axis2=2))
    left = np.maximum(diagonal[:, -1], np.finfo(float).tiny)  # length of what the trend leaves of the values
    likelihoods = prior - logdet / 2 - np.log(diagonal[:, :-1]).sum(axis=1) - freedom * np.log(left)
    weights = np.exp(likelihoods - likelihoods.max())
    weights *= left**2 / freedom / weights.sum()
    return toeplitz(weights @ shapes), freedom


def _moving_averages(n: int) -> np.ndarray:
    """Autocorrelations of the noise that means over the last 2 to 20 steps have, (kinds, N), up to half of the run."""
    windows = np.array([window for window in _WINDOWS if window <= n // 2])
    shapes = np.maximum(0, 1 - np.arange(n) / windows[:, None])
    shapes[:, 1:] /= 1.001  # a thousandth of it is rounding, as of printed numbers
    return shapes


def _whitened_by(shape: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, float]:
    """Columns, (N, K), whitened by autocorrelations that end, (N,), and the log determinant."""
    from scipy.linalg import cholesky_banded, solve_banded

    bands = np.repeat(shape[shape > 0][:, None], len(columns), axis=1)
    lower = cholesky_banded(bands, lower=True)
    return solve_banded((len(bands) - 1, 0), lower, columns), float(2 * np.log(lower[0]).sum())


def _whitened(columns: np.ndarray, slow: np.ndarray, white: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns, (N, K), whitened by a Kalman filter for each kind of noise, (kinds, N, K), and log determinants, (kinds,)."""
    expected, variance, logdet, rows = np.zeros(1), 1 - white, np.zeros(len(white)), []
    for row in columns:
        whole, away = variance + white, row - expected
        gain = variance / whole
        rows.append(away / np.sqrt(whole)[:, None])
        logdet = logdet + np.log(whole)
        expected = slow[:, None] * (expected + gain[:, None] * away)
        variance = slow**2 * variance * (1 - gain) + (1 - slow**2) * (1 - white)
    return np.stack(rows, axis=1), logdet


def _finite(values, name: str, least: int = 1) -> np.ndarray:
    values = np.asarray(values, float)
    if len(values) < least:
        raise ParameterError(f"{name}: {len(values)} steps; expected at least {least}")
    if not (finite := np.isfinite(values)).all():
        raise ParameterError(f"{name}: value {finite.argmin()} is not finite; leave it out or repeat")
    return values
