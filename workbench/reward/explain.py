"""Which feature explains a reward within groups: shares of its differences, and how often chance explains as much.

N completions in groups that share a prompt and a step, K features. GRPO learns from differences within groups alone, so
values are taken from their group's mean, and chance is a reward that is dealt again within each group.
"""

import dataclasses

import numpy as np

_SMALL = 1e-12
_ROUNDING = 1e-14  # share of a sum of squares that rounding in fp32 makes
_TINY = 1e-24  # a sum of squares of differences that is nothing in any unit
_AT_ONCE = 4_000_000  # permuted numbers held in memory


@dataclasses.dataclass(frozen=True)
class Explained:
    """Shares of the differences of a reward within groups.

    Attributes:
        alone: what each feature explains if it is the only one, (K,), 0..1.
        sign: 1 where more of the feature earns more, -1 where less does, (K,).
        added: what each feature adds to all others, (K,), 0..1.
        p: how often chance makes the best of all K features explain as much as this one, (K,): adjusted for K features.
        all: what all features explain together, 0..1, adjusted for their number.
        groups: those whose rewards differ.
    """

    alone: np.ndarray
    sign: np.ndarray
    added: np.ndarray
    p: np.ndarray
    all: float
    groups: int


def centred(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Values, (N,) or (N, K), less the mean of their group; what is not known, NaN, is taken to be that mean.

    Example:
        >>> centred(np.array([1.0, 3.0, np.nan, 5.0]), np.array([0, 0, 1, 1])).tolist()
        [-1.0, 1.0, 0.0, 0.0]
    """
    flat = (values if values.ndim == 2 else values[:, None]).astype(float)
    known = ~np.isnan(flat)
    filled = np.where(known, flat, 0.0)
    size = int(groups.max()) + 1 if len(groups) else 0
    means = np.empty((size, flat.shape[1]))
    for column in range(flat.shape[1]):
        sums = np.bincount(groups, filled[:, column], size)
        counts = np.bincount(groups, known[:, column], size)
        means[:, column] = sums / np.maximum(counts, 1)
    return np.where(known, flat - means[groups], 0.0).reshape(values.shape)


def numbered(*keys: np.ndarray) -> np.ndarray:
    """Number rows by the group that their keys, (N,) each, make; groups are 0, 1, 2 and so on.

    Example:
        >>> numbered(np.array([1, 1, 2]), np.array(["a", "b", "a"])).tolist()
        [0, 1, 2]
    """
    number = np.zeros(len(keys[0]), int)
    for key in keys:
        codes = np.unique(key, return_inverse=True)[1]
        number = np.unique(number * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True)[1]
    return number


def live_rows(rewards: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The rows of groups whose rewards differ, (N,) of bool."""
    return _live(rewards, groups)[groups]


def _live(rewards: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The groups whose rewards differ, (groups,) of bool: beyond rounding, and not by far less than in the other groups."""
    squares = np.bincount(groups, centred(rewards, groups) ** 2)
    differ = squares > np.maximum(_TINY, _ROUNDING * np.bincount(groups, rewards**2))
    return differ & (squares > _SMALL * np.median(squares[differ])) if differ.any() else differ


def explain(
    rewards: np.ndarray,
    features: np.ndarray,
    groups: np.ndarray,
    rng: np.random.Generator,
    *,
    draws: int = 999,
    differences: float | None = None,
) -> Explained:
    """Compute what each feature explains of the differences of a reward within groups.

    Chance deals the rewards of each group to its completions again, `draws` times. That is exact for any number of groups, for
    equal rewards, and for features that go together. The statistic is the largest of K standardised sums (Westfall and Young
    1993), so p is adjusted for the K features.

    Args:
        rewards: (N,), finite.
        features: (N, K); NaN where one is not known.
        groups: (N,), numbers from 0 on.
        rng: deals the rewards.
        draws: how often; the smallest p is 1 / (draws + 1).
        differences: the sum of squares that shares are shares of; None for that of these rewards within these groups.

    Example:
        >>> rewards, other = np.array([0.0, 1.0] * 20), np.array([0.0, 0.0, 1.0, 1.0] * 10)
        >>> result = explain(rewards, np.stack([2 * rewards, other], 1), np.arange(40) // 4, np.random.default_rng(0))
        >>> result.alone.round(2).tolist(), result.p.round(3).tolist(), result.groups
        ([1.0, 0.0], [0.001, 1.0], 10)
    """
    live = live_rows(rewards, groups)
    if not live.any() or not features.shape[1]:
        zero = np.zeros(features.shape[1])
        return Explained(zero, np.ones(len(zero)), zero, np.ones(len(zero)), 0.0, len(np.unique(groups[live])))
    groups = np.unique(groups[live], return_inverse=True)[1]
    order = np.argsort(groups, kind="stable")
    groups = groups[order]
    y = centred(rewards[live][order], groups)
    x = centred(features[live][order], groups)
    own = float(y @ y)
    whole = own if differences is None else differences
    squares = (x**2).sum(axis=0)
    varies = squares > _SMALL * np.nanmax(np.abs(features), axis=0, initial=0.0) ** 2
    x = np.where(varies, x / np.sqrt(np.where(varies, squares, 1.0)), 0.0)
    product = x.T @ y
    alone = product**2 / whole
    together = x.T @ x
    every = np.arange(len(product))
    explained = _share(together, product, every)
    others = [np.delete(every, k) for k in every]
    added = np.array([explained - _share(together, product, rest) for rest in others]) / whole
    freedom = len(y) - int(groups[-1]) - 1
    left = freedom - int(varies.sum())
    adjusted = 1 - (1 - explained / own) * freedom / left if left > 0 else 0.0

    spread = _spread_under_chance(x, y, groups)
    scores = np.where(varies, np.abs(product) / np.where(varies, spread, 1.0), 0.0)
    best = _best_of_chance(x / np.where(varies, spread, 1.0), y, groups, draws, rng)
    p = (1 + (best[:, None] >= scores * (1 - 1e-9)).sum(axis=0)) / (draws + 1)
    sign = np.where(product < 0, -1.0, 1.0)
    total = max(0.0, adjusted) * own / whole
    return Explained(alone, sign, np.clip(added, 0, 1), np.where(varies, p, 1.0), total, int(groups[-1]) + 1)


def _share(together: np.ndarray, product: np.ndarray, chosen: np.ndarray) -> float:
    """Sum of squares that some features explain together, by least squares."""
    if not len(chosen):
        return 0.0
    weights = np.linalg.lstsq(together[np.ix_(chosen, chosen)], product[chosen], rcond=1e-8)[0]
    return float(product[chosen] @ weights)


def _spread_under_chance(x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Standard deviation of each feature's product with rewards that are dealt again within groups, (K,)."""
    sizes = np.bincount(groups)
    reward_squares = np.bincount(groups, y**2) / np.maximum(sizes - 1, 1)
    squares = [np.bincount(groups, column**2) for column in x.T]
    return np.sqrt(np.maximum([column @ reward_squares for column in squares], np.finfo(float).tiny))


def _best_of_chance(x: np.ndarray, y: np.ndarray, groups: np.ndarray, draws: int, rng: np.random.Generator):
    """The largest absolute product over the features, of each of the draws, (draws,). Rows stand in the order of groups."""
    products = np.zeros((draws, x.shape[1]))
    sizes = np.bincount(groups)
    for size in np.unique(sizes):
        rows = (sizes == size)[groups]
        hands = y[rows].reshape(-1, size)
        columns = x[rows]
        step = max(1, _AT_ONCE // hands.size)
        for start in range(0, draws, step):
            count = min(step, draws - start)
            dealt = rng.permuted(np.broadcast_to(hands, (count, *hands.shape)), axis=2)
            products[start : start + count] += dealt.reshape(count, -1) @ columns
    return np.abs(products).max(axis=1)


def correlation(rewards: np.ndarray, feature: np.ndarray, groups: np.ndarray, chosen: np.ndarray) -> float:
    """Correlation of a feature, (N,), with the reward within the groups of the chosen rows; 0 where one does not vary."""
    y = centred(rewards[chosen], groups[chosen])
    x = centred(feature[chosen], groups[chosen])
    varies = x @ x > _least(feature[chosen]) and y @ y > _least(rewards[chosen])
    return float(x @ y / np.sqrt((x @ x) * (y @ y))) if varies else 0.0


def _least(values: np.ndarray) -> float:
    """Sum of squares within groups that rounding may make of values."""
    return max(_TINY**2, _ROUNDING * float(np.nansum(values**2)))


def change_of_share(
    rewards: np.ndarray,
    feature: np.ndarray,
    groups: np.ndarray,
    steps: np.ndarray,
    rng: np.random.Generator,
    draws: int = 999,
) -> tuple[float, float]:
    """Correlation in the last half of the run less that in its first, and how often chance gives as large a change.

    Chance deals the groups to the halves of the run again.
    """
    y = centred(rewards, groups)
    x = centred(feature, groups)
    sums = np.stack([np.bincount(groups, v) for v in (x * y, x * x, y * y)])
    when = np.bincount(groups, steps) / np.maximum(np.bincount(groups), 1)
    live = _live(rewards, groups)
    sums, when = sums[:, live], when[live]
    late = when > np.median(when)
    if not late.any() or late.all():
        return 0.0, 1.0

    least = np.array([_least(feature), _least(rewards)])

    def change(where: np.ndarray) -> np.ndarray:
        last = sums @ where.T.astype(float)
        first = sums.sum(axis=1)[:, None] - last
        correlations = [s[0] / np.sqrt(np.prod(np.maximum(s[1:], least[:, None]), axis=0)) for s in (first, last)]
        return correlations[1] - correlations[0]

    real = float(change(late[None])[0])
    dealt = np.concatenate([change(rng.permuted(np.tile(late, (50, 1)), axis=1)) for _ in range(-(-draws // 50))])
    return real, float((1 + (np.abs(dealt) >= abs(real) - 1e-12).sum()) / (len(dealt) + 1))
