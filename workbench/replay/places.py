"""Places of sampled tokens in their distributions: uniform if each token was drawn from its own. No torch.

The place of a token is the probability of all likelier ones plus a random share of its own: the randomized probability
integral transform. If the tokens are draws, their places are independent and uniform on [0, 1], whatever the distributions
are and wherever a completion ends, and as many stop tokens are drawn as their probabilities add up to. Completions that were
selected, by likelihood or by length, and tokens of another sampler have other places or another number of stops.

Sources: Rosenblatt 1952 (https://doi.org/10.1214/aoms/1177729394); Massart 1990 for the tail of the largest distance
(https://doi.org/10.1214/aop/1176990746); Freedman 1975 for that of a count (https://doi.org/10.1214/aop/1176996452).
"""

import math
from dataclasses import dataclass

import numpy as np

DIFFERENT = 1e-5  # chance in a healthy step, below which tokens were not drawn so
UNLIKELY = 1e-3  # below which more tokens have to decide
# Best of three by mean log-prob shows in 8 of 10 steps of so many completions, on the embedded model at 16 tokens.
BEST_OF_THREE = 64


@dataclass(frozen=True)
class Drawn:
    """Sampled tokens in their distributions, each array (N,)."""

    likelier: np.ndarray  # probability of all likelier tokens
    equal: np.ndarray  # of the tokens that are equally likely, the sampled one among them
    stopping: np.ndarray  # of all stop tokens
    stops: np.ndarray  # 1 where a stop token was sampled


def token_places(likelier: np.ndarray, equal: np.ndarray, seed: int = 0) -> np.ndarray:
    """Place each token in its cumulative distribution, likeliest first.

    Args:
        likelier: (N,), probability of all tokens that are likelier.
        equal: (N,), probability of the tokens that are equally likely, the sampled one among them.
        seed: of the random shares, so that a step has the same places each time.

    Returns:
        (N,), from 0 to 1.

    Example:
        >>> token_places(np.array([0.0, 0.6]), np.array([0.6, 0.4])).round(2)
        array([0.38, 0.71])
    """
    return likelier + np.random.default_rng(seed).random(len(equal)) * equal


def largest_distance(places: np.ndarray) -> tuple[float, float, float]:
    """Compare places with a uniform distribution (Kolmogorov-Smirnov).

    Args:
        places: (N,), from 0 to 1, at least one.

    Returns:
        The largest distance between the share of places up to a point and that point; the point; the share.

    Example:
        >>> largest_distance(np.array([0.1, 0.2, 0.3, 0.9]))
        (0.45, 0.3, 0.75)
    """
    ordered = np.sort(places)
    points = np.repeat(ordered, 2)
    shares = np.repeat(np.arange(len(ordered) + 1) / len(ordered), 2)[1:-1]  # just before each place, and at it
    at = int(np.argmax(np.abs(shares - points)))
    return float(abs(shares[at] - points[at])), float(points[at]), float(shares[at])


def chance_of_distance(distance: float, count: int) -> float:
    """Bound the chance that `count` uniform places have a distance as large; it holds for any number of them.

    Example:
        >>> round(chance_of_distance(0.05, 324), 3), chance_of_distance(0.2, 324) < 1e-10
        (0.396, True)
    """
    return min(1.0, 2 * math.exp(-2 * count * distance**2))


def chance_of_mean(shift: float, count: int) -> float:
    """Return the chance that the mean of `count` uniform places is as far from 1/2, by the normal distribution.

    Example:
        >>> round(chance_of_mean(0.05, 324), 4)
        0.0018
    """
    return math.erfc(abs(shift) * math.sqrt(6 * count))


def chance_of_count(count: float, expected: float) -> float:
    """Bound the chance that a number of events is as far from the sum of their probabilities.

    Args:
        count: of the events.
        expected: sum of the probabilities of all that could have happened, 0 or more.

    Example:
        >>> chance_of_count(6, 5.9), round(chance_of_count(31, 60.0), 6)
        (1.0, 0.000395)
    """
    if not expected:
        return 1.0 if not count else 0.0
    exponent = count - expected + (count * math.log(expected / count) if count else 0.0)
    return min(1.0, 2 * math.exp(exponent))


@dataclass(frozen=True)
class Uniformity:
    """The chance of what was seen if each token was drawn from its distribution, and the unlikeliest of it in words."""

    chance: float
    said: str
    distance: float


def uniformity(drawn: Drawn, blur: float = 0.0) -> Uniformity:
    """Judge whether tokens were drawn from their distributions, by the distance and mean of places and the number of stops.

    Args:
        drawn: of N tokens, at least one.
        blur: half of the mean difference between the sampler's and the scored log-probs, which moves a place by no more.

    Returns:
        The chance is three times that of the unlikeliest, since three numbers are looked at.

    Example:
        >>> half = np.full(400, 0.5)
        >>> of_likely = Drawn(np.zeros(400), half, np.zeros(400), np.zeros(400))
        >>> uniformity(of_likely).chance < DIFFERENT, uniformity(of_likely).said
        (True, 'the likeliest 50% of the probability got 100% of the tokens')
    """
    places, count = token_places(drawn.likelier, drawn.equal), len(drawn.equal)
    distance, point, share = largest_distance(places)
    shift = max(0.0, abs(float(places.mean()) - 0.5) - blur)
    of_places = min(chance_of_distance(max(0.0, distance - blur), count), chance_of_mean(shift, count))
    stops, expected = float(drawn.stops.sum()), float(drawn.stopping.sum())
    nearest = min(max(stops, expected * (1 - 2 * blur)), expected * (1 + 2 * blur))
    of_stops = chance_of_count(stops, nearest)
    said = f"the likeliest {point:.0%} of the probability got {share:.0%} of the tokens"
    if of_stops < of_places:
        said = f"{stops:.0f} stop tokens were sampled where their probabilities add up to {expected:.3g}"
    return Uniformity(min(1.0, 3 * min(of_places, of_stops)), said, distance)
