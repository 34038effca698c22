"""Numbers about reward curves, and how far they can be trusted: pure functions of arrays; the random generator is passed in.

Between runs: `seed_interval`, over seeds. Within one run: `change_interval`; it cannot tell how another seed would have
ended, and says so in `Interval.about`. `docs/evidence/error_rates.md` has the measured error rates of all of them.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from ..errors import ParameterError

AUTOCORRELATIONS = np.arange(20) / 20  # of neighbouring steps, that noise in a run may have
UNKNOWN_BETWEEN_RUNS = "within this one run; how far another seed would end from it is unknown"


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate with its bounds: numbers, or arrays of one value a step.

    `n` counts the seeds, or the steps of the one run; `method` is "t" or "bootstrap", empty where there is no
    interval; `about` says what the interval covers and what it does not.
    """

    estimate: float | np.ndarray
    low: float | np.ndarray
    high: float | np.ndarray
    level: float
    n: int
    method: str
    about: str

    @property
    def name(self) -> str:
        """`95% t interval`, `95% bootstrap interval` or `no interval`."""
        return f"{self.level:.0%} {self.method} interval" if self.method else "no interval"

    def above(self, bound: float) -> tuple[bool | None, str]:
        """Whether the number lies above a bound, and why that is open: None where the interval holds it, or there is none."""
        if not self.method:
            return None, "one seed: its scatter is unknown"
        if self.low <= bound <= self.high:
            return None, f"its {self.name} holds {bound:g}"
        return bool(self.low > bound), ""

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
    """Interval over seeds: t below 5 seeds, bootstrap from 5 seeds on; for curves one interval a step. Of 1 seed there is none.

    The bootstrap takes percentiles further out than `level` asks (Hesterberg 2015), because few seeds resampled spread
    too little. Below 5 seeds no resampling reaches 95% (the widest it gives is lowest to highest seed, right in 75% of
    cases at 3 seeds); there it is a t interval. What a nominal 95% covers for the IQM, by simulation on normal,
    uniform, lognormal, exponential, t(3) and binomial values (`tests/curves/test_stats.py` repeats it from 5 seeds on):

        seeds                 2        3        4        5        10       30
        covers, per cent      89..96   91..97   95..99   93..94   97       95..96
        plain percentiles              71..76            88..90   93..94   94..95

    Args:
        values: (seeds,) or (seeds, T).
        rng: decides the resamples; the same generator state gives the same interval.
        statistic: of the values, called with `axis`.
        level: of confidence.
        resamples: drawn.

    Raises:
        ParameterError: no seeds, or a value that is not finite.

    Example:
        >>> found = seed_interval([1.0, 2.0, 3.0], np.random.default_rng(0))
        >>> found.estimate, round(found.low), round(found.high), found.name
        (2.0, 0, 4, '95% t interval')
    """
    values = np.asarray(values, float)
    n = len(values)
    if not n or not np.isfinite(values).all():
        raise ParameterError("no value, or one that is not finite; leave that seed out and say so, or repeat it")
    if n == 1:
        return one_seed(statistic(values, axis=0))
    index = rng.integers(n, size=(resamples, n))
    pieces = np.array_split(index, min(resamples, 1 + resamples * values.size // 2_000_000))  # to spare the memory
    drawn = np.concatenate([statistic(values[piece], axis=1) for piece in pieces])
    return _interval(statistic(values, axis=0), drawn, n, level, f"between runs, {n} seeds")


def one_seed(estimate) -> Interval:
    """Of one seed there is no interval: the estimate without bounds (NaN), and `about` says why."""
    unknown = np.full_like(estimate, np.nan, dtype=float)[()]
    return Interval(estimate, unknown, unknown, 0.95, 1, "", "1 seed; how far another seed would be from it is unknown")


def _interval(estimate, drawn: np.ndarray, n: int, level: float, about: str) -> Interval:
    """Bounds from the statistic's value on each resample, which stand along the first axis of `drawn`."""
    from scipy import stats

    t = stats.t.ppf(0.5 + level / 2, n - 1)
    if n < 5:
        method, half = "t", t * drawn.std(axis=0, ddof=1) * np.sqrt(n / (n - 1))
        low, high = estimate - half, estimate + half
    else:
        method, tail = "bootstrap", stats.norm.cdf(-np.sqrt(n / (n - 1)) * t)
        low, high = np.quantile(drawn, [tail, 1 - tail], axis=0, method="inverted_cdf")
    if np.ndim(estimate) == 0:
        estimate, low, high = float(estimate), float(low), float(high)
    return Interval(estimate, low, high, level, n, method, about)


def change_interval(values: ArrayLike, *, level: float = 0.95, degree: int = 3) -> Interval:
    """How much a run changed: mean of its last fifth of steps less that of its first, with a t interval.

    An interval above 0 shows a rise. One that holds 0 does not show that nothing was learned; it shows no learning. Of
    runs that do not change, up to 6% are said to have changed, at 40 steps or more with lag-1 autocorrelation up to 0.8;
    at 20 steps with 0.8 it is 11%, because so short a run cannot tell noise from trend: see `docs/evidence/error_rates.md`.

    `values` are 8 or more steps of one run, finite; of each end at least 4 are taken. `degree`: see `noise_covariance`.

    Example:
        >>> change = change_interval([0, 1, 0, 1, 0, 5, 9, 8, 9, 8, 9, 8])
        >>> print(round(change.estimate, 2), change.low > 0, change.name)
        8.0 True 95% t interval
    """
    from scipy import stats

    values = _finite(values, "change_interval", least=8)
    n = max(4, round(0.2 * len(values)))
    weights = np.zeros(len(values))
    weights[:n], weights[-n:] = -1 / n, 1 / n
    covariance, freedom = noise_covariance(values, degree)
    middle = float(weights @ values)
    half = float(np.sqrt(weights @ covariance @ weights) * stats.t.ppf(0.5 + level / 2, freedom))
    return Interval(middle, middle - half, middle + half, level, len(values), "t", UNKNOWN_BETWEEN_RUNS)


def noise_covariance(values: ArrayLike, degree: int = 3) -> tuple[np.ndarray, int]:
    """How the steps of one run scatter around their trend: covariance, (N, N), and its degrees of freedom.

    The trend is a polynomial, the noise autoregressive of order 1. Every autocorrelation from 0 to 0.95 counts by its
    restricted likelihood: the likeliest alone would be too sure of itself in a short run, and ordinary likelihood finds
    too little autocorrelation (Cheang and Reinsel, JASA 2000). N is more than `degree` + 1, and the values are finite.
    """
    from scipy.linalg import toeplitz

    values = np.asarray(values, float)
    n, freedom = len(values), len(values) - degree - 1
    both = np.column_stack([np.polynomial.legendre.legvander(np.linspace(-1, 1, n), degree), values])
    likelihoods, variances = [], []
    for rho in AUTOCORRELATIONS:
        white = np.vstack([np.sqrt(1 - rho**2) * both[:1], both[1:] - rho * both[:-1]])
        diagonal = np.abs(np.diag(np.linalg.qr(white, mode="r")))
        left = max(diagonal[-1], np.finfo(float).tiny)  # length of what the trend leaves of the values
        likelihoods.append(np.log(1 - rho**2) / 2 - np.log(diagonal[:-1]).sum() - freedom * np.log(left))
        variances.append(diagonal[-1] ** 2 / freedom / (1 - rho**2))
    weights = np.exp(np.array(likelihoods) - max(likelihoods))
    shared = (weights / weights.sum() * variances) @ AUTOCORRELATIONS[:, None] ** np.arange(n)
    return toeplitz(shared), freedom


def _finite(values, name: str, least: int = 1) -> np.ndarray:
    values = np.asarray(values, float)
    if len(values) < least:
        raise ParameterError(f"{name}: {len(values)} steps; expected at least {least}")
    if not (finite := np.isfinite(values)).all():
        raise ParameterError(f"{name}: value {finite.argmin()} is not finite; leave it out or repeat")
    return values
