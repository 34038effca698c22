"""A curve with its unit and range, the steps its points stand for, and curves over the same steps."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ..errors import ParameterError

PLACES = ("end", "centre")
FIFTHS = ("first", "second", "third", "fourth", "last")  # the five equal parts of a run's steps
# A run counts as whole if it reaches this share of the last step that half of its group reach.
WHOLE = 0.9


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """One metric of one run over its steps.

    Args:
        label: names it in figures and messages.
        x: N increasing steps.
        y: N values; NaN where none is known.
        unit: of `y`: tokens, characters, share of right answers, ...
        low, high: bounds the metric cannot leave; None where there is none.
        at: where a point stands in the stretch of `x` that it is the mean of: end, as trainers log, or centre.
        span: length of that stretch; None where a point reaches to the one next to it.

    Raises:
        ParameterError: an unknown `at`, a `span` that is not above 0, lengths differ, there is no point, `x`
            does not increase, or a value lies outside the bounds.

    Example:
        >>> curve = Curve("seed 0", [1, 2, 3], [-30, -12, -4], "characters from the target of 20", high=0)
        >>> curve.y.max(), curve.range
        (np.float64(-4.0), '(-inf, 0]')
    """

    label: str
    x: np.ndarray
    y: np.ndarray
    unit: str
    low: float | None = None
    high: float | None = None
    at: str = "end"
    span: float | None = None

    def __post_init__(self):
        x, y = np.asarray(self.x, float), np.asarray(self.y, float)
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", y)
        if self.at not in PLACES:
            wrong = f"at={self.at!r}: expected one of {', '.join(PLACES)}"
        elif self.span is not None and not self.span > 0:
            wrong = f"span={self.span}: expected more than 0, or None"
        elif x.shape != y.shape or x.ndim != 1 or not len(x):
            wrong = f"expected equally many x and y, at least 1; got {x.shape} and {y.shape}"
        elif not (np.diff(x) > 0).all():
            n = int(np.argmin(np.diff(x) > 0))
            wrong = f"step {x[n + 1]:g} follows {x[n]:g}; expected increasing step"
        elif (self.low is not None and (y < self.low).any()) or (self.high is not None and (y > self.high).any()):
            lowest, highest = np.nanmin(y), np.nanmax(y)
            wrong = f"values from {lowest:.9g} to {highest:.9g} lie outside {self.range}; correct low and high"
        else:
            return
        raise ParameterError(f"{self.label}: {wrong}")

    @property
    def range(self) -> str:
        """The bounds in words, `(-inf, 0]`."""
        low = "(-inf" if self.low is None else f"[{self.low:g}"
        return f"{low}, " + ("inf)" if self.high is None else f"{self.high:g}]")

    @cached_property
    def stretches(self) -> tuple[np.ndarray, np.ndarray]:
        """The x from which and up to which each point is a mean, (N,) each; they do not overlap."""
        x, gaps = self.x, np.diff(self.x)
        if self.span is not None or len(x) == 1:
            before = after = np.full(len(x), self.span or 1.0)
        else:
            before, after = np.concatenate([gaps[:1], gaps]), np.concatenate([gaps, gaps[-1:]])
        share = 1 if self.at == "end" else 0.5  # of the stretch that lies before its point
        low, high = x - share * before, x + (1 - share) * after
        low[1:] = np.maximum(low[1:], high[:-1])
        if self.span is None and self.at == "end" and x[0] > 0:  # logged at steps 1, 10, 20: no step lies before 0
            low[0] = max(low[0], 0.0)
        whole = np.floor(low), np.floor(high)  # step n reaches from n - 1 to n
        return whole if (whole[1] > whole[0]).all() else (low, high)


def at_bounds(values: np.ndarray, low: float | None, high: float | None) -> np.ndarray:
    """The values, with those at a bound up to float32's rounding set to it: there a mean of 1.1 is 1.100000024.

    Example:
        >>> at_bounds(np.array([0.5, 1.0000001]), 0.0, 1.0)
        array([0.5, 1. ])
    """
    for bound in (bound for bound in (low, high) if bound is not None):
        values = np.where(np.abs(values - bound) <= 1e-6 * max(1.0, abs(bound)), bound, values)
    return values


def why_incomparable(first: Curve, *others: Curve) -> str:
    """Why curves do not belong on one axis: unit or range; empty when they do."""
    for other in others:
        if first.unit != other.unit:
            return f"{first.label} is in {first.unit}, {other.label} in {other.unit}"
        if (first.low, first.high) != (other.low, other.high):
            return f"{first.label} ranges over {first.range}, {other.label} over {other.range}"
    return ""


def on_common_stretches(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The stretches of x that all curves cover, cut so that each is of one point of every curve: compared are the same steps.

    Where each begins and how long it is, (T,) each, and the values there, (curves, T); T is 0 where they share nothing.

    Example:
        >>> fine = Curve("every step", [1, 2, 3, 4], [1, 2, 3, 4], "tokens")
        >>> on_common_stretches([fine, Curve("every 2", [2, 4], [1.5, 3.5], "tokens")])[2]
        array([[1. , 2. , 3. , 4. ],
               [1.5, 1.5, 3.5, 3.5]])
    """
    bounds = [curve.stretches for curve in curves]
    edges = np.unique(np.concatenate([edge for pair in bounds for edge in pair]))
    middle, index = (edges[1:] + edges[:-1]) / 2, []
    shared = np.full(len(middle), True)
    for low, high in bounds:
        index.append(np.searchsorted(low, middle) - 1)
        shared &= (index[-1] >= 0) & (middle < high[index[-1]])
    values = np.stack([curve.y[n[shared]] for curve, n in zip(curves, index, strict=True)])
    return edges[:-1][shared], np.diff(edges)[shared], values


def mean_between(curve: Curve, start: float, end: float) -> float:
    """The mean of a curve over a window of x, of the points whose stretches reach into it; NaN if none does, or one is NaN."""
    low, high = curve.stretches
    weights = np.clip(np.minimum(high, end) - np.maximum(low, start), 0, None)
    values = np.where(weights > 0, curve.y, 0.0)  # a point outside of the window says nothing, though it be NaN
    return float(weights @ values / weights.sum()) if weights.any() else float("nan")


def whole_seeds(curves: Sequence[Curve]) -> tuple[list[Curve], list[str]]:
    """The curves but for those that ended before nine tenths of what half of them reach, and a line for each that did.

    The last steps of a run that ended early say what it was then, not what it would have become. One that went on for longer
    than the others is compared up to where they end.
    """
    end = sorted(curve.x[-1] for curve in curves)[len(curves) // 2]
    early = [curve for curve in curves if curve.x[-1] < WHOLE * end]
    lines = [f"{curve.label} ended at step {curve.x[-1]:g} of {end:g} and is left out" for curve in early]
    return [curve for curve in curves if curve.x[-1] >= WHOLE * end], lines


def centred_mean(x: ArrayLike, y: ArrayLike, window: float) -> np.ndarray:
    """The mean over a window of x around each point, (N,): NaN within half a window of both ends; a NaN in `y` is left out.

    A line that went on to the ends would stop at single points. A window that reaches no neighbour leaves `y` as it is.

    Example:
        >>> centred_mean([1, 2, 3, 4, 5], [0, 3, 0, 3, 9], 3)
        array([nan,  1.,  2.,  4., nan])
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    reach = window / 2 + 1e-9
    first, last = np.searchsorted(x, x - reach), np.searchsorted(x, x + reach, side="right")
    gap = np.median(np.diff(x)) if len(x) > 1 else window + 1
    whole = np.minimum(x - x[0], x[-1] - x) >= np.floor(reach / gap) * gap - 1e-9
    known = np.isfinite(y)
    total, count = (np.concatenate([[0], np.cumsum(part)]) for part in (np.where(known, y, 0.0), known))
    n = count[last] - count[first]
    return np.divide(total[last] - total[first], n, out=np.full(len(y), np.nan), where=(n > 0) & whole)


def on_common_x(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the stretches that all curves cover, (T,), and the values there, (curves, T); an error for none."""
    if reason := why_incomparable(*curves):
        raise ParameterError(reason)
    start, width, values = on_common_stretches(curves)
    if not len(start):
        raise ParameterError(f"{', '.join(c.label for c in curves)}: no step in common")
    return start + width, values
