"""Losses and estimators as they were published, where `grpo_math` has none or TRL's form alone; row by row in float64.

Axes: N rows are completions, G for each of P prompts, in the order of the prompts; row i has T_i tokens. Log-probs are in nats.
The mask of a row is 1 where a token counts. A loss takes rows and constants and gives a `Loss`: its value, and its slope at the
log-prob of each token. In a `LossRow`, `old_logps` is the policy from which the ratio is taken (decoupled PPO: the proximal
one), `sampled_logps` the policy that sampled (the behaviour), `ref_logps` the reference, and `correction` a weight of each
token or of the row, through which no gradient flows. `average` is explained at `average_weights`.

`grpo_math` has the others: GRPO, DAPO, Dr. GRPO, SAPO, VESPO, LUSPO, GMPO, and GSPO (`importance_sampling_level="sequence"`),
in `grpo_loss`; RLOO in `leave_one_out_advantages` and `rloo_loss`; truncated and masked importance sampling, by token and by
sequence, in `sampler_correction`.

The source is named at each function. Where frameworks part from it is in `docs/reference/losses.csv`, as read in TRL 1.16.0,
verl 0.9.1, OpenRLHF 0.11.2, SkyRL 0.3.0, AReaL 1.0.4 and prime-rl 559b447.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from workbench.replay.grpo_math import (
    Loss,
    LossRow,
    LossSettings,
    Row,
    clipped,
    group_advantages,
    k3,
    sampler_correction,
    token_weights,
)

# How a batch is averaged -> TRL's loss type that does it.
_AVERAGES = {"rows": "grpo", "tokens": "bnpo", "sums": "luspo"}
_Terms = tuple[Row, Row, Row]  # (T,) each: a row's loss at its tokens, the slopes by their log-probs, the ratios


def average_weights(rows: Sequence[LossRow], average: str | float) -> list[Row]:
    """The weight of each token in the mean over a batch.

    Args:
        rows: all rows of an update.
        average: `rows`, the mean over rows of the means over their tokens (GRPO, 2402.03300 eq. 3; GSPO, 2507.18071 eq. 5);
            `tokens`, the mean over all tokens (DAPO, 2503.14476 eq. 12; CISPO, 2506.13585 eq. 4); `sums`, the mean over
            rows of the sums over their tokens (RLOO, 2402.14740); a number, the same over that budget of tokens (Dr. GRPO,
            2503.20783). In a micro-batch of n rows the number M / n gives its part of the mean over all M tokens of the
            update.

    Returns:
        N arrays (T,), 0 where the mask is 0.

    Raises:
        ValueError: for a word that is none of these.

    Example:
        >>> rows = [LossRow(np.zeros(length), 1.0, np.ones(length)) for length in (1, 4)]
        >>> [[float(weights[0]) for weights in average_weights(rows, mean)] for mean in ("rows", "tokens", "sums", 4)]
        [[0.5, 0.125], [0.2, 0.2], [0.5, 0.5], [0.125, 0.125]]
    """
    if not isinstance(average, str):
        return [row.mask / (len(rows) * average) for row in rows]
    if average not in _AVERAGES:
        raise ValueError(f"average {average!r}: expected {', '.join(_AVERAGES)}, or a number of tokens")
    return token_weights(rows, LossSettings(loss_type=_AVERAGES[average]))


def reinforce_loss(rows: Sequence[LossRow], average: str | float = "sums") -> Loss:
    """REINFORCE: each token's log-prob, weighed with its advantage. It has no ratio, hence no clip.

    Source: RLOO, 2402.14740, with `leave_one_out_advantages`. TRL's RLOO clips the ratio of the whole row (`rloo_loss`); under
    the policy that sampled, its slopes are these.

    Example:
        >>> got = reinforce_loss([LossRow(np.log([0.5, 0.25]), 2.0, np.ones(2))])
        >>> round(got.value, 4), got.slopes[0]
        (4.1589, array([-2., -2.]))
    """

    def terms(row: LossRow) -> _Terms:
        advantages = _advantages(row)
        return -advantages * row.logps, -advantages, np.ones_like(row.logps)

    return _loss(rows, average, map(terms, rows))


def dual_clip_loss(
    rows: Sequence[LossRow],
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    c: float = 3.0,
    average: str | float = "tokens",
) -> Loss:
    """PPO's clipped loss with a second limit: c times the advantage's size, where the advantage is negative.

    Source: 1912.09729. c = inf is PPO, 1707.06347 eq. 7. TRL calls it `delta`, which is this for delta >= 1 + epsilon_high.

    Args:
        epsilon, epsilon_high: widths of the clip; the upper is the lower by default.
        c: above 1.

    Example:
        >>> row = LossRow(np.log([0.8, 0.2]), -1.0, np.ones(2), old_logps=np.log([0.1, 0.1]))  # ratios of 8 and 2
        >>> got = dual_clip_loss([row])
        >>> round(got.value, 4), got.slopes[0].round(4)
        (2.5, array([0., 1.]))
        >>> round(dual_clip_loss([row], c=np.inf).value, 4)
        5.0
    """

    def terms(row: LossRow) -> _Terms:
        advantages, ratio = _advantages(row), np.exp(row.logps - _old(row))
        loss, slopes = clipped(ratio, advantages, epsilon, epsilon if epsilon_high is None else epsilon_high)
        limited = (advantages < 0) & (ratio > c)
        return np.where(limited, -np.minimum(ratio, c) * advantages, loss), np.where(limited, 0.0, slopes), ratio

    return _loss(rows, average, map(terms, rows))


def decoupled_ppo_loss(
    rows: Sequence[LossRow],
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    cap: float = np.inf,
    average: str | float = "tokens",
) -> Loss:
    """PPO around a proximal policy, weighed by how much likelier that policy is than the one that sampled.

    Source: 2110.00641; for language models AReaL, 2505.24298. Truncated importance sampling is the same formula with a cap,
    where the proximal policy is the trainer's own at the time of sampling (https://fengyao.notion.site/off-policy-rl).

    Args:
        rows: `old_logps` is the proximal policy, `sampled_logps` the behaviour. `correction` is not read.
        cap: the largest weight.

    Example:
        >>> old, sampled = np.log([0.5]), np.log([0.125])
        >>> row = LossRow(np.log([0.55]), 1.0, np.ones(1), old_logps=old, sampled_logps=sampled)
        >>> [round(decoupled_ppo_loss([row], cap=cap).value, 4) for cap in (np.inf, 2.0)]
        [-4.4, -2.2]
    """
    weights = [sampler_correction(_old(row), _sampled(row), row.mask, "token_truncate", clip_max=cap) for row in rows]
    weighed = [replace(row, correction=weight) for row, weight in zip(rows, weights, strict=True)]
    return dual_clip_loss(weighed, epsilon, epsilon_high, np.inf, average)


def gspo_token_loss(
    rows: Sequence[LossRow],
    epsilon: float = 3e-4,
    epsilon_high: float = 4e-4,
    average: str | float = "rows",
    frozen: Sequence[Row] | None = None,
) -> Loss:
    """GSPO with a gradient of each token alone: the ratio is the geometric mean over the row, held constant, times pi / sg[pi].

    Source: 2507.18071 eq. 13 and 14. With one advantage for a row, value and slopes are GSPO's; with one for each token
    they differ. verl and SkyRL call this form GSPO; TRL, OpenRLHF and AReaL have the other.

    Args:
        frozen: N arrays (T,), the log-probs at which the constants are taken; those of the rows by default.

    Example:
        >>> row = LossRow(np.log([0.2, 0.4]), np.array([1.0, -1.0]), np.ones(2), old_logps=np.log([0.1, 0.2]))
        >>> got = gspo_token_loss([row], 0.2, 0.2)  # a ratio of 2, clipped for the first token
        >>> round(got.value, 4), got.slopes[0].round(4)
        (0.4, array([0., 1.]))
    """

    def terms(row: LossRow, constant: Row) -> _Terms:
        mean = ((constant - _old(row)) * row.mask).sum() / max(float(row.mask.sum()), 1.0)
        ratio = np.exp(mean + row.logps - constant)
        return *clipped(ratio, _advantages(row), epsilon, epsilon_high), ratio

    return _loss(rows, average, map(terms, rows, _frozen(rows, frozen)))


def cispo_loss(
    rows: Sequence[LossRow],
    low: float = 0.0,
    high: float = 5.0,
    average: str | float = "tokens",
    frozen: Sequence[Row] | None = None,
) -> Loss:
    """REINFORCE, weighed with the limited ratio, which is held constant: a token beyond the limits keeps its gradient.

    Source: 2506.13585 eq. 4 and 5; the paper sets no lower limit and does not say its upper one. With the policy that
    sampled as `old_logps` it is REINFORCE with truncated importance weights.

    Args:
        low, high: limits of the ratio itself. The paper's high is 1 + eps. TRL's `epsilon_high` is this high (ScaleRL,
            2510.13786, has 5), and verl's and SkyRL's widths are 1 - low and high - 1.
        frozen: as in `gspo_token_loss`.

    Example:
        >>> row = LossRow(np.log([0.05, 0.8]), -1.0, np.ones(2), old_logps=np.log([0.1, 0.1]))  # ratios of 0.5 and 8
        >>> [cispo_loss([row], low, high).slopes[0].round(4).tolist() for low, high in ((0.0, 5.0), (0.8, 1.2), (1.0, 6.0))]
        [[0.25, 2.5], [0.4, 0.6], [0.5, 3.0]]
    """

    def terms(row: LossRow, constant: Row) -> _Terms:
        ratio = np.exp(constant - _old(row))
        weights = np.clip(ratio, low, high) * _advantages(row)
        return -weights * row.logps, -weights, ratio

    return _loss(rows, average, map(terms, rows, _frozen(rows, frozen)))


def binary_divergence(logps: Row, behaviour_logps: Row, kind: str = "tv") -> Row:
    """The divergence between two policies that see one token and "any other": a lower bound of that over the vocabulary.

    Source: DPPO, 2602.04879 eq. 13 and 14.

    Args:
        logps, behaviour_logps: (T,).
        kind: `tv`, half the sum of absolute differences; `kl`, from the behaviour to the policy.

    Returns:
        (T,), at least 0; `kl` in nats.

    Raises:
        ValueError: for another kind.

    Example:
        >>> policy, behaviour = np.log([0.5]), np.log([0.25])
        >>> [binary_divergence(policy, behaviour, kind).round(4).tolist() for kind in ("tv", "kl")]
        [[0.25], [0.1308]]
    """
    p, q = np.exp(logps), np.exp(behaviour_logps)
    if kind == "tv":
        return np.abs(p - q)
    if kind != "kl":
        raise ValueError(f"kind {kind!r}: expected tv or kl")
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 * log 0 is 0
        token, others = q * (behaviour_logps - logps), (1 - q) * (np.log1p(-q) - np.log1p(-p))
    return np.where(q > 0, token, 0.0) + np.where(q < 1, others, 0.0)


def dppo_loss(
    rows: Sequence[LossRow],
    low: float = 0.2,
    high: float = 0.2,
    kind: str = "tv",
    squared: float = 0.0,
    average: str | float = "tokens",
) -> Loss:
    """The ratio times the advantage, without tokens that an update has moved too far from the behaviour in its own direction.

    Source: DPPO, 2602.04879 eq. 13 and 14. prime-rl's default adds the squared log-ratio of all tokens, also of those left out.

    Args:
        rows: the ratio is to `sampled_logps`, or to `old_logps` where there is none.
        low, high: largest divergence at negative and at positive advantages. prime-rl, SkyRL, verl: 0.2 for `tv`.
        kind: as in `binary_divergence`.
        squared: prime-rl's `kl_tau`, 0.001 there.

    Example:
        >>> row = LossRow(np.log([0.8, 0.01]), 1.0, np.ones(2), sampled_logps=np.log([0.4, 0.001]))
        >>> got = dppo_loss([row])  # ratios of 2 and 10: the first moved 0.4, the second 0.009
        >>> round(got.value, 4), got.slopes[0].round(4)
        (-5.0, array([ 0., -5.]))
    """

    def terms(row: LossRow) -> _Terms:
        advantages, log_ratio = _advantages(row), row.logps - _sampled(row)
        divergence = binary_divergence(row.logps, _sampled(row), kind)
        far = divergence > np.where(advantages > 0, high, low)
        gain = np.where(far & (log_ratio * advantages > 0), 0.0, np.exp(log_ratio) * advantages)
        return -gain + squared * log_ratio**2, -gain + 2 * squared * log_ratio, np.exp(log_ratio)

    return _loss(rows, average, map(terms, rows))


def kl_terms(logps: Row, ref_logps: Row, estimator: str = "k3") -> tuple[Row, Row]:
    """Schulman's estimates of the KL divergence from a reference, and the slope of each by the log-prob when it is a loss.

    With d = log pi - log ref, on samples of the policy: k1 is d, with slope 1, whose gradient has a mean of 0. k2 is d^2 / 2,
    with slope d, which has the divergence's own gradient as its mean. k3 is exp(-d) + d - 1, with slope 1 - exp(-d), which is d
    to first order. In the reward, k1 gives each token the slope that k2 gives it in the loss (2510.01555). A + puts k2's slope
    to another's value (verl's `k3+`, OpenRLHF's `unbiased_gradient`).

    Source: http://joschu.net/blog/kl-approx.html; k3 as a loss: GRPO, 2402.03300 eq. 4.

    Args:
        logps, ref_logps: (T,).
        estimator: `k1`, `k2`, `k3`, `k1+` or `k3+`.

    Returns:
        Value and slope, (T,) each, in nats.

    Raises:
        ValueError: for another estimator.

    Example:
        >>> policy, reference = np.log([0.5]), np.log([0.25])
        >>> [[part.round(4).item() for part in kl_terms(policy, reference, k)] for k in ("k1", "k2", "k3", "k3+")]
        [[0.6931, 1.0], [0.2402, 0.6931], [0.1931, 0.5], [0.1931, 0.6931]]
    """
    d = logps - ref_logps
    estimates = {"k1": (d, np.ones_like(d)), "k2": (d**2 / 2, d), "k3": (k3(logps, ref_logps), 1 - np.exp(-d))}
    if estimator.removesuffix("+") not in estimates:
        raise ValueError(f"estimator {estimator!r}: expected {', '.join(estimates)}, k1+ or k3+")
    value, slope = estimates[estimator.removesuffix("+")]
    return value, d if estimator.endswith("+") else slope


def kl_loss(rows: Sequence[LossRow], beta: float = 0.04, estimator: str = "k3", average: str | float = "rows") -> Loss:
    """The penalty of the divergence from the reference as a part of the loss; add its value and slopes to those of another.

    Source: `kl_terms`; beta = 0.04 is GRPO's, 2402.03300. TRL, verl and prime-rl have it off by default.

    Args:
        estimator: as in `kl_terms`.

    Example:
        >>> got = kl_loss([LossRow(np.log([0.5]), 0.0, np.ones(1), ref_logps=np.log([0.25]))], beta=1.0)
        >>> round(got.value, 4), got.slopes[0]
        (0.1931, array([0.5]))
    """

    def terms(row: LossRow) -> _Terms:
        value, slopes = kl_terms(row.logps, row.ref_logps, estimator)
        return beta * value, beta * slopes, np.exp(row.logps - row.ref_logps)

    return _loss([replace(row, correction=None) for row in rows], average, map(terms, rows))


def penalized_returns(reward: float, kl: Row, mask: Row, beta: float) -> Row:
    """Return what is still to come at each token: the reward of the row, less the penalty from that token to the end.

    Source: REINFORCE++, 2501.03262 eq. 8, with `k1` between the policy that sampled and the reference (eq. 9). The first
    token's is the penalized reward that RLOO and TRL give to the row.

    Args:
        reward: of the row.
        kl: (T,), an estimate of `kl_terms` for each token.
        mask: (T,). A reward passes over tokens of tools to those before them.
        beta: the penalty's coefficient.

    Returns:
        (T,), 0 where the mask is 0.

    Example:
        >>> penalized_returns(1.0, np.array([0.5, 9.0, -0.25]), np.array([1.0, 0.0, 1.0]), 0.1)
        array([0.975, 0.   , 1.025])
    """
    return mask * (reward - beta * np.cumsum((kl * mask)[::-1])[::-1])


def reinforce_pp_advantages(
    rewards: Sequence[float] | Row,
    masks: Sequence[Row],
    kls: Sequence[Row] | None = None,
    beta: float = 0.0,
    num_generations: int | None = None,
    ddof: int = 0,
) -> list[Row]:
    """REINFORCE++: returns of tokens, normalized over all tokens of the batch; a long row weighs more in the mean.

    Source: 2501.03262 eq. 8 to 10; the variant with a baseline first compares each reward with the mean of its group. A sample
    variance (`ddof=1`) is verl's and SkyRL's, that of the population OpenRLHF's; the paper does not say.

    Args:
        rewards: (N,).
        masks: N arrays (T,).
        kls: N arrays (T,), for `penalized_returns`; 0 by default.
        num_generations: G, for the baseline; none by default.
        ddof: 0 or 1.

    Returns:
        N arrays (T,), 0 where the mask is 0. All 0 where all returns are equal.

    Example:
        >>> masks = [np.ones(1), np.ones(3)]
        >>> [advantages.round(4).tolist() for advantages in reinforce_pp_advantages([1.0, 0.0], masks)]
        [[1.7321], [-0.5774, -0.5774, -0.5774]]
    """
    scores = rewards if num_generations is None else group_advantages(rewards, num_generations, "none")
    penalties = [np.zeros_like(mask) for mask in masks] if kls is None else kls
    returns = [penalized_returns(*of_row, beta) for of_row in zip(scores, penalties, masks, strict=True)]
    counted = np.concatenate([row[mask > 0] for row, mask in zip(returns, masks, strict=True)])
    if len(counted) <= ddof:
        return [np.zeros(len(mask)) for mask in masks]
    deviation = max(float(counted.std(ddof=ddof)), 1e-4)  # OpenRLHF's floor: a variance of 1e-8
    return [(row - counted.mean()) / deviation * mask for row, mask in zip(returns, masks, strict=True)]


def icepop_weights(old: Row, sampled: Row, mask: Row, low: float = 0.5, high: float = 5.0) -> Row:
    """IcePop: the ratio of trainer to sampler at tokens where it is within limits, and 0 elsewhere. For `LossRow.correction`.

    Source: Ring-1T, 2510.18855. It is `token_mask` of `sampler_correction` with both limits. A token left out still counts
    in the divisor. verl: `rollout_is_threshold="0.5_5"`; OpenRLHF's mask has these limits; SkyRL's token mask weighs with 1.

    Args, Returns: as in `sampler_correction`, (T,).

    Example:
        >>> icepop_weights(np.log([0.9, 0.5, 0.1]), np.log([0.1, 0.25, 0.4]), np.ones(3)).round(4)
        array([0., 2., 0.])
    """
    return sampler_correction(old, sampled, mask, "token_mask", low, high)


def geometric_weight(old: Row, sampled: Row, mask: Row, low: float = 0.0, high: float = np.inf) -> Row:
    """The geometric mean of a row's ratios of trainer to sampler; 0 if it is beyond a limit. For `LossRow.correction`.

    Source: verl's `seq_mean_k1` (https://richardli.xyz/rl-collapse). The product of `sampler_correction` grows with the length
    of a row, this mean does not. AReaL weighs a row that it keeps with the mean, verl and SkyRL with 1, OpenRLHF with the ratio
    of each token: multiply their weights with `geometric_weight(...) > 0`.

    Args:
        old, sampled, mask: (T,), as in `sampler_correction`.
        low, high: limits of the mean.

    Returns:
        (1,).

    Example:
        >>> old, sampled = np.log([0.8, 0.2]), np.log([0.1, 0.1])
        >>> geometric_weight(old, sampled, np.ones(2)), geometric_weight(old, sampled, np.ones(2), high=3.0)
        (array([4.]), array([0.]))
    """
    difference = np.nan_to_num((old - sampled) * mask, nan=0.0)
    mean = np.exp(difference.sum(keepdims=True) / max(float(mask.sum()), 1.0))
    return np.where((mean < low) | (mean > high), 0.0, mean)


def _loss(rows: Sequence[LossRow], average: str | float, terms: Iterable[_Terms]) -> Loss:
    """The mean of the terms, each weighed with the row's correction."""
    value, slopes, ratios = 0.0, [], []
    for row, weights, (loss, slope, ratio) in zip(rows, average_weights(rows, average), terms, strict=True):
        factor = weights if row.correction is None else weights * row.correction
        value += float((factor * loss).sum())
        slopes.append(factor * slope)
        ratios.append(ratio)
    return Loss(value, slopes, ratios)


def _advantages(row: LossRow) -> Row:
    """(T,), also where the row has one number."""
    return np.broadcast_to(np.asarray(row.advantage, dtype=float), row.logps.shape)


def _old(row: LossRow) -> Row:
    return row.logps if row.old_logps is None else row.old_logps


def _sampled(row: LossRow) -> Row:
    return _old(row) if row.sampled_logps is None else row.sampled_logps


def _frozen(rows: Sequence[LossRow], frozen: Sequence[Row] | None) -> Sequence[Row]:
    return [row.logps for row in rows] if frozen is None else frozen
