"""Numbers about reward curves, and how far they can be trusted: pure functions of arrays; the random generator is passed in.

Between runs: `seed_interval`, over seeds. Within one run: `block_interval` and `change_interval`; they cannot tell how
another seed would have ended, and say so in `Interval.about`.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from ..errors import ParameterError

UNKNOWN_BETWEEN_RUNS = "within this one run; how far another seed would end from it is unknown"


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate with its bounds: numbers, or arrays of one value a step.

    `n` counts what was resampled (seeds, or blocks of steps); `method` is "t" or "bootstrap", empty where there is no
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

    def __str__(self) -> str:
        if isinstance(self.estimate, np.ndarray):
            return f"{len(self.estimate)} intervals ({self.name}), {self.about}"
        bounds = f": {self.low:.4g} to {self.high:.4g}" if self.method else ""
        return f"{self.estimate:.4g} ({self.name}{bounds}), {self.about}"


def curve_summary(steps: ArrayLike, rewards: ArrayLike, tail: int = 20) -> dict[str, float]:
    """The first and last reward of one curve, its extremes, and how jumpy its end is.

    Args:
        steps: N increasing step numbers.
        rewards: N rewards.
        tail: steps at the end taken as the result (fewer when the run is shorter).

    Returns:
        `first` (mean of the first 3 steps), `last` (mean of the last `tail`), `lowest`, `highest`, `best_step`, and
        `flips`, the share of steps in the tail after which the curve turns: 0 for a smooth rise, 2/3 for pure noise.

    Raises:
        ParameterError: no steps, lengths differ, or `tail` below 1.

    Example:
        >>> curve_summary([1, 2, 3, 4], [-9.0, -6.0, -3.0, -4.0], tail=2)  # doctest: +NORMALIZE_WHITESPACE
        {'first': -6.0, 'last': -3.5, 'lowest': -9.0, 'highest': -3.0, 'best_step': 3.0, 'flips': 0.0}
    """
    if tail < 1:
        raise ParameterError(f"tail={tail}: expected at least 1 step")
    steps, rewards = np.asarray(steps, float), np.asarray(rewards, float)
    if not len(rewards) or steps.shape != rewards.shape:
        raise ParameterError(
            f"expected equally many steps and rewards, at least 1; got {len(steps)} and {len(rewards)}"
        )
    end = rewards[-tail:]
    turns = np.diff(np.sign(np.diff(end))) != 0
    return {
        "first": float(rewards[:3].mean()),
        "last": float(end.mean()),
        "lowest": float(rewards.min()),
        "highest": float(rewards.max()),
        "best_step": float(steps[rewards.argmax()]),
        "flips": float(turns.mean()) if len(turns) else 0.0,
    }


def iqm(values, axis: int = 0) -> float | np.ndarray:
    """Interquartile mean: the mean of what is left after a quarter of the values is cut from each end.

    With fewer than 4 values nothing is cut. One lucky seed moves it less than the mean, and it wastes less than the
    median (Agarwal et al., NeurIPS 2021).

    Example:
        >>> iqm([0, 1, 2, 3, 4, 5, 6, 700])
        3.5
    """
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
    """Interval over seeds: t below 5 seeds, bootstrap from 5 seeds on; for curves one interval a step.

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
        ParameterError: fewer than 2 seeds, or a value that is not finite.

    Example:
        >>> found = seed_interval([1.0, 2.0, 3.0], np.random.default_rng(0))
        >>> found.estimate, round(found.low), round(found.high), found.name
        (2.0, 0, 4, '95% t interval')
    """
    values = np.asarray(values, float)
    n = len(values)
    if n < 2:
        raise ParameterError(f"{n} seed: an interval over seeds needs 2 or more; within one run use block_interval")
    if not np.isfinite(values).all():
        raise ParameterError("a value is not finite; leave that seed out and say so, or repeat it")
    index = rng.integers(n, size=(resamples, n))
    pieces = np.array_split(index, min(resamples, 1 + resamples * values.size // 2_000_000))  # to spare the memory
    drawn = np.concatenate([statistic(values[piece], axis=1) for piece in pieces])
    return _interval(statistic(values, axis=0), drawn, n, level, f"between runs, {n} seeds")


def one_seed(estimate) -> Interval:
    """Of one seed there is no interval: the estimate without bounds (NaN), and `about` says why.

    Example:
        >>> print(one_seed(7.0))
        7 (no interval), 1 seed; how far another seed would be from it is unknown
    """
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


def block_interval(
    values: ArrayLike,
    rng: np.random.Generator,
    *,
    statistic: Callable = np.mean,
    block: int = 0,
    level: float = 0.95,
    resamples: int = 2000,
) -> Interval:
    """Interval of a statistic within one run: steps are resampled in blocks, because neighbours resemble each other.

    A nominal 95% covers 94..96% for independent steps. With lag-1 autocorrelation 0.5 it covers 93% from 100 steps on
    (89% at 40); with 0.8 it covers 87% at 100 steps and 91% at 250. So where steps depend on each other for long, the
    interval is too narrow.

    Args:
        values: N steps of one run, without trend (a tail, or residuals).
        rng: decides the resamples.
        statistic: of the steps, called with `axis`.
        block: steps in a block; 0 for a length from the lag-1 autocorrelation (Carlstein 1986).
        level: of confidence.
        resamples: drawn.

    Returns:
        The interval; `about` says that it leaves out what differs between runs.

    Raises:
        ParameterError: fewer than 8 steps, or a value that is not finite.
    """
    values = _finite(values, "block_interval", least=8)
    drawn, blocks = _block_draws(values, rng, statistic, block, resamples)
    return _interval(statistic(values, axis=0), drawn, blocks, level, UNKNOWN_BETWEEN_RUNS)


def change_interval(
    values: ArrayLike, rng: np.random.Generator, *, share: float = 0.2, level: float = 0.95, resamples: int = 2000
) -> Interval:
    """How much a run changed: mean of its last `share` of steps less that of its first, with a block bootstrap interval.

    An interval above 0 shows a rise. One that holds 0 does not show that nothing was learned; it shows no learning.

    Raises:
        ParameterError: fewer than 8 steps, or a value that is not finite.

    Example:
        >>> change = change_interval(np.arange(40.0), np.random.default_rng(0))
        >>> change.estimate, change.low > 0
        (32.0, True)
    """
    values = _finite(values, "change_interval", least=8)
    n = max(4, round(share * len(values)))
    first, last = values[:n], values[-n:]
    before, blocks = _block_draws(first, rng, np.mean, 0, resamples)
    after, others = _block_draws(last, rng, np.mean, 0, resamples)
    return _interval(last.mean() - first.mean(), after - before, min(blocks, others), level, UNKNOWN_BETWEEN_RUNS)


def _finite(values, name: str, least: int = 1) -> np.ndarray:
    values = np.asarray(values, float)
    if len(values) < least:
        raise ParameterError(f"{name}: {len(values)} steps; expected at least {least}")
    if not (finite := np.isfinite(values)).all():
        raise ParameterError(f"{name}: value {finite.argmin()} is not finite; leave it out or repeat")
    return values


def _block_draws(values: np.ndarray, rng, statistic: Callable, block: int, resamples: int) -> tuple[np.ndarray, int]:
    """The statistic on `resamples` series put together from circular blocks, and how many blocks make a series."""
    n = len(values)
    block = block or _block_length(values)
    blocks = max(2, -(-n // block))
    starts = rng.integers(n, size=(resamples, blocks, 1))
    index = ((starts + np.arange(block)) % n).reshape(resamples, -1)[:, :n]
    return statistic(values[index], axis=1), blocks


def _block_length(values: np.ndarray) -> int:
    centred = values - values.mean()
    spread = centred @ centred
    rho = np.clip(centred[1:] @ centred[:-1] / spread, 0, 0.95) if spread > 0 else 0.0
    length = (np.sqrt(6) * rho / (1 - rho**2)) ** (2 / 3) * len(values) ** (1 / 3)
    return int(np.clip(round(length), 1, len(values) // 4))


def share_at(values: ArrayLike, value: float) -> float:
    """Share of steps at exactly `value`, e.g. of mean completion lengths at the length cap.

    Example:
        >>> share_at([200, 199.5, 200, 180], 200)
        0.5
    """
    return float((_finite(values, "share_at") == value).mean())


def zero_variance_share(frac_reward_zero_std: ArrayLike) -> float:
    """Share of groups whose completions all got one reward, over a whole run; nothing is learned from them.

    Args:
        frac_reward_zero_std: TRL's metric of that name, a share for each step.

    Raises:
        ParameterError: a value outside 0..1.

    Example:
        >>> zero_variance_share([0, 0.5, 1])
        0.5
    """
    shares = _finite(frac_reward_zero_std, "zero_variance_share")
    low, high = shares.min(), shares.max()
    if low < 0 or high > 1:
        raise ParameterError(f"frac_reward_zero_std from {low:.4g} to {high:.4g}: expected shares in 0..1")
    return float(shares.mean())
