"""How a metric changes over a run, on `curves.stats.change_interval`, as the rules ask it."""

import numpy as np
import pandas as pd

from ..curves.stats import Interval, change_interval

LEAST = 8  # steps
_ROUNDING = 1e-5  # of the spread of the rewards
_MOST = 400  # points that the interval is computed from: its matrix has their square


def change(values: np.ndarray | None, level: float = 0.99) -> Interval | None:
    """Return how much a metric changed over its finite steps; None with fewer than 8 of them, or with no noise to judge by."""
    if values is None:
        return None
    finite = values[~np.isnan(values)]
    if len(finite) < LEAST or np.ptp(finite) == 0:
        return None
    return change_interval(thinned(finite), level=level)


def thinned(values: np.ndarray, most: int = _MOST) -> np.ndarray:
    """At most `most` means of neighbouring values."""
    if len(values) <= most:
        return values
    return np.array([block.mean() for block in np.array_split(values, most)])


def rises(values: np.ndarray | None) -> bool:
    """Say whether a metric surely grew; False also where too few steps tell."""
    found = change(values)
    return found is not None and bool(found.low > 0)


def quarters(values: np.ndarray) -> tuple[float, float]:
    """Means of the first and the last quarter of the finite values, NaN where there are none."""
    finite = values[~np.isnan(values)]
    if not len(finite):
        return np.nan, np.nan
    n = max(1, len(finite) // 4)
    return float(finite[:n].mean()), float(finite[-n:].mean())


def ends_at_the_top(log) -> bool:
    """Say whether the reward of the last quarter is the largest there is, within 5%."""
    reward, top = log.metric("reward"), highest_reward(log)
    return reward is not None and top is not None and top > 0 and quarters(reward)[1] >= 0.95 * top


def nears_its_ceiling(log) -> bool:
    """Say whether little is left to learn as far as a log shows: mean rewards from 0 to 1 that end at 0.9 or more.

    The largest reward is then 1 if the best completion of nearly every step got 1 (verl), or if a step has a mean of 0.95 or
    more. It is a guess where the settings do not say it, so only the warning that nothing is learned gives way to it.
    """
    reward, best = log.metric("reward"), log.metric("score_max")
    if reward is None or np.nanmin(reward) < 0 or np.nanmax(reward) > 1 + 1e-6 or quarters(reward)[1] < 0.9:
        return False
    return bool(np.nanmax(reward) >= 0.95 if best is None else np.nanmean(best == 1) >= 0.9)


def ends_at_its_best(reward: np.ndarray) -> bool:
    """Say whether the last quarter is at the highest of the run, within 5% of its range: it may be solved."""
    low, high = np.nanmin(reward), np.nanmax(reward)
    return bool(high > low and high - quarters(reward)[1] <= 0.05 * (high - low))


def reward_of(log) -> np.ndarray | None:
    """The mean reward of each step, (N,); None where none is logged, or it is 0 but for rounding, as centred rewards are."""
    reward, spread = log.metric("reward"), log.metric("reward_std")
    scale = 1.0 if spread is None else float(np.nanmax(spread)) or 1.0
    return None if reward is None or 0 < np.nanmax(np.abs(reward)) < _ROUNDING * scale else reward


def carried(values: np.ndarray) -> np.ndarray:
    """Fill a step without a value with that of the step before: it used the same completions once more."""
    return pd.Series(values).ffill().to_numpy()


def zero_rate(log) -> np.ndarray | None:
    """Steps with a learning rate of exactly 0, (N,) of bool; None where no rate is logged, or 0 may be a small one, rounded.

    verl prints three decimals, `%f` six, tables are rounded by hand: a rate of 1e-6 is 0.000 there. A log whose numbers all are
    rounded so says nothing, unless the reward stays what it is while there are gradients. Nor does a rate of 0 in all steps
    while the reward surely rises: the logged number is rounded, or not the optimizer's.
    """
    rate, norm, reward = log.metric("learning_rate"), log.metric("grad_norm"), log.metric("reward")
    if rate is None:
        return None
    moves = norm is not None and bool(np.nanmax(norm) > 0)
    constant = reward is not None and np.nanmax(reward) == np.nanmin(reward)
    if not np.nanmax(np.abs(rate)) and rises(reward):
        return None
    if zeros_are_small(log, rate, most=100) and not (moves and constant and not np.nanmax(np.abs(rate))):
        return None
    return np.asarray(rate == 0)


def zeros_are_small(log, values: np.ndarray, most: float) -> bool:
    """Say whether zeros of a metric may be small numbers, rounded: none of it, in the median of the others, is above `most`
    units of the last decimal to which all numbers of the log are rounded."""
    decimals, size = _decimals(log), np.abs(values[np.nan_to_num(values) != 0])
    return decimals is not None and (not len(size) or bool(np.median(size) <= most * 10.0**-decimals))


def _decimals(log) -> int | None:
    """The decimals to which all numbers of a log are rounded: at most five, or the six of `%f`; None where they are not.

    Numbers of five digits at most have five or six decimals too, as `.4g` keeps them, which a Trainer prints: there 0 is 0.
    """
    values = log.steps.drop(columns=["step", "epoch", "episodes"], errors="ignore").to_numpy(float)
    values = values[np.isfinite(values) & (values != 0)]
    if _are_whole(values * 1e4):
        return 4
    few_digits = _are_whole(values / 10.0 ** (np.floor(np.log10(np.abs(values))) - 4))
    if few_digits:
        return None
    return 5 if _are_whole(values * 1e5) else 6 if _are_whole(values * 1e6) else None


def _are_whole(values: np.ndarray) -> bool:
    return bool(np.allclose(values, np.round(values), rtol=0, atol=1e-4))


def highest_reward(log) -> float | None:
    """The largest reward that the run can give, where the settings tell it, or one function's rewards of only 0 and 1."""
    known = log.facts.get("reward_highest")
    if known is not None:
        return float(known)
    table = log.completions
    if table is not None and "reward" in table and log.facts.get("reward_functions", 1) <= 1:
        values, logged = set(table["reward"].dropna().unique()), log.logged("reward")
        weighted = logged is not None and np.nanmax(logged) > 1  # by a weight, which is in no file of TRL's
        if values <= {0.0, 1.0} and len(values) and not weighted:
            return 1.0
    return None
