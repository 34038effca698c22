"""How far advantages that a trainer computes in fp32 can be from the exact ones.

A group of equal rewards has no advantage. But fp32 can round the mean of eight times 0.7 to another number than 0.7, and what
is left is divided by a standard deviation of nearly 0, plus 1e-4. The larger rewards are next to their differences, the fewer
digits of these are left.

The bounds are of first order and hold for any order of summation: a sum of n numbers is off by at most (n - 1) * u times the
sum of their sizes, u = 2 ** -24 (Higham, Accuracy and Stability of Numerical Algorithms, 4.2). Numbers that are multiples of
one power of two, and whose sizes sum up to less than 2 ** 24 of it, are summed without an error. NaN is a row without a reward.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .grpo_math import SMALL, nan_mean, nan_std, row_rewards

Array = np.ndarray
_UNIT = 2.0**-24  # the largest relative error of one rounding
_DIGITS = 2.0**24  # up to which fp32 has every whole number


def sum_rounding(values: Array) -> Array:
    """Bound the error of a sum in fp32 over the last axis.

    Example:
        >>> sum_rounding(np.float32([[0.5, 0.5, 0.25], [0.7, 0.7, 0.7]]).astype(float)).tolist()[0]
        0.0
    """
    sizes = np.abs(np.nan_to_num(values, posinf=0.0, neginf=0.0))
    total, bound = sizes.sum(axis=-1), (sizes.shape[-1] - 1) * _UNIT
    return np.where(total <= _DIGITS * _steps(sizes).min(axis=-1, initial=np.inf), 0.0, bound * total)


def _steps(sizes: Array) -> Array:
    """The largest power of two of which each number is a multiple; infinite for 0."""
    fractions, exponents = np.frexp(sizes)
    whole = np.ldexp(fractions, 53).astype(np.int64)
    return np.where(sizes == 0, np.inf, np.ldexp((whole & -whole).astype(float), exponents - 53))


def _rounded(values: Array) -> Array:
    """The error of rounding numbers once: 0 where fp32 has them."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(values.astype(np.float32) == values, 0.0, _UNIT * np.abs(values))


def mean_rounding(values: Array) -> Array:
    """Bound the error of a mean in fp32 over the last axis, which stays with length 1."""
    count = np.maximum((~np.isnan(values)).sum(axis=-1, keepdims=True), 1)
    return sum_rounding(values)[..., None] / count + _rounded(nan_mean(values, -1))


def row_rounding(rewards: Any, weights: Sequence[float] | None) -> Array:
    """Bound the error of the weighted sum of each row: (N,) from (N, F)."""
    table = np.asarray(rewards, dtype=float)
    factors = np.ones(table.shape[1]) if weights is None else np.asarray(weights, dtype=float)
    with np.errstate(over="ignore"):
        products = (table.astype(np.float32) * factors.astype(np.float32)).astype(float)
    return np.abs(np.nansum(products, axis=1) - np.nansum(table * factors, axis=1)) + sum_rounding(products)


def spread_rounding(values: Array, off: Array) -> Array:
    """Bound the error of a standard deviation over the last axis, which stays with length 1.

    Args:
        values: (..., n).
        off: (..., n), by how much each of them is off already.
    """
    n = values.shape[-1]
    centred = _centred(values, off)
    stretch = math.sqrt(n / (n - 1)) if n > 1 else 1.0
    return stretch * np.nanmax(centred, axis=-1, keepdims=True) + (n + 4) * _UNIT * np.nan_to_num(nan_std(values, -1))


def _centred(values: Array, off: Array) -> Array:
    """Bound the error of numbers from which their mean over the last axis is taken."""
    mean = nan_mean(values, -1)
    of_mean = off.mean(axis=-1, keepdims=True) + mean_rounding(values)
    return np.nan_to_num(off + of_mean + _rounded(values - mean))


def _scaled(centred: Array, error: Array, std: Array, of_std: Array) -> Array:
    """Bound the error of `centred / (std + SMALL)`."""
    std = np.nan_to_num(std)
    least = np.maximum(std - of_std, 0.0) + SMALL
    return error / least + np.abs(centred) * (of_std / (least * (std + SMALL)) + 3 * _UNIT / (std + SMALL))


def group_rounding(rewards: Any, weights: Sequence[float] | None, size: int, scale: str) -> Array:
    """Bound the error of `grpo_math.group_advantages` of the sums of the rewards: (N,).

    Example:
        >>> float(group_rounding([[1.0]] * 8, None, 8, "group").max())
        0.0
        >>> float(group_rounding([[0.7]] * 8, None, 8, "group").max()) > 1e-3
        True
    """
    rows, off = row_rewards(rewards, weights), row_rounding(rewards, weights)
    groups, off_groups = rows.reshape(-1, size), off.reshape(-1, size)
    error, centred = _centred(groups, off_groups), groups - nan_mean(groups, 1)
    if scale == "group":
        error = _scaled(centred, error, nan_std(groups, 1), spread_rounding(groups, off_groups))
    elif scale == "batch":
        error = _scaled(centred, error, nan_std(rows[None], 1), spread_rounding(rows[None], off[None]))
    return np.nan_to_num(error).ravel()


def normalized_rounding(rewards: Any, weights: Sequence[float] | None, size: int) -> Array:
    """Bound the error of `grpo_math.normalized_advantages`: (N,)."""
    table = np.asarray(rewards, dtype=float)
    groups = np.moveaxis(table.reshape(-1, size, table.shape[1]), 1, -1)  # (P, F, G)
    none = np.zeros_like(groups)
    centred, std = groups - nan_mean(groups, -1), nan_std(groups, -1)
    error = _scaled(centred, _centred(groups, none), std, spread_rounding(groups, none))
    scaled = np.moveaxis(centred / (std + SMALL), -1, 1).reshape(table.shape)
    off = np.nan_to_num(np.moveaxis(error, -1, 1).reshape(table.shape))
    factors = np.ones(table.shape[1]) if weights is None else np.asarray(weights, dtype=float)
    scaled = np.where(np.isnan(scaled), 0.0, scaled)  # as `normalized_advantages`
    rows = np.where(np.isnan(table).all(axis=1), np.nan, row_rewards(scaled, weights))
    return _over_batch(rows, off @ np.abs(factors) + row_rounding(scaled, weights))


def leave_one_out_rounding(rewards: Any, off: Array, size: int, normalize: bool) -> Array:
    """Bound the error of `grpo_math.leave_one_out_advantages`: (N,).

    Args:
        rewards, off: (N,), and by how much each is off already.
        size: of a group.
        normalize: over the whole batch afterwards.
    """
    groups, off_groups = np.asarray(rewards, dtype=float).reshape(-1, size), off.reshape(-1, size)
    others = np.maximum((~np.isnan(groups)).sum(axis=1, keepdims=True) - 1, 1)
    total = np.nansum(groups, axis=1, keepdims=True)
    baseline = (total - groups) / others
    of_total = sum_rounding(groups)[:, None] + off_groups.sum(axis=1, keepdims=True) + _rounded(total - groups)
    error = off_groups + of_total / others + _rounded(baseline) + _rounded(groups - baseline)
    error = np.nan_to_num(error).ravel()
    return _over_batch((groups - baseline).ravel(), error) if normalize else error


def _over_batch(rows: Array, off: Array) -> Array:
    """Bound the error of rows (N,) that are centred and scaled over the whole batch."""
    whole, error = rows[None], off[None]
    bounds = _scaled(
        whole - nan_mean(whole, 1), _centred(whole, error), nan_std(whole, 1), spread_rounding(whole, error)
    )
    return np.nan_to_num(bounds[0])
