"""What an update of PPO computes, row by row in float64: no padding, no TRL, no torch.

Rows are completions. Row i has T_i tokens and S_i steps. A row that ended before the limit has one step more than tokens: in
the state behind its last token the policy takes no action, has a value and gets its score. A row at the limit has S_i = T_i
and gets its score with its last token. Log-probs are in nats.

The names are those of TRL's `PPOConfig`, and so are the defaults. Sources: PPO, https://arxiv.org/abs/1707.06347; GAE,
1506.02438; the penalty in the reward, whitening and the clipped value loss, "The N implementation details of RLHF with PPO"
(https://huggingface.co/blog/the_n_implementation_details_of_rlhf_with_ppo); the step behind the last token, 2403.17031.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .step_reference import Row, clipped, k3

_SMALL = 1e-8  # what TRL adds to a variance


def token_rewards(
    logps: Row, ref_logps: Row, score: float, steps: int, kl_coef: float = 0.05, kl_estimator: str = "k1"
) -> Row:
    """Reward each step of one row: the penalty for leaving the reference at each token, and the score at the last step.

    Args:
        logps, ref_logps: (T,), of the policy that sampled and of the reference.
        score: of the whole row.
        steps: S, T or T + 1.
        kl_coef: the penalty's factor.
        kl_estimator: `k1`, the log-ratio; `k3`, see `step_reference.k3`.

    Returns:
        (S,).

    Example:
        >>> token_rewards(np.log([0.5, 0.5]), np.log([0.5, 0.25]), 1.0, 3, kl_coef=1.0).round(4) + 0
        array([ 0.    , -0.6931,  1.    ])
    """
    rewards = np.zeros(steps)
    rewards[: len(logps)] = -kl_coef * (logps - ref_logps if kl_estimator == "k1" else k3(logps, ref_logps))
    rewards[-1] += score
    return rewards


def generalized_advantages(rewards: Row, values: Row, gamma: float = 1.0, lam: float = 0.95) -> tuple[Row, Row]:
    """Estimate the advantage of each step of one row: `A_t = d_t + gamma lam A_(t+1)`, `d_t = r_t + gamma V_(t+1) - V_t`.

    Args:
        rewards, values: (S,). Behind the last step both are 0.
        gamma: the discount.
        lam: 1 takes the rewards as they come, 0 the next value in their place.

    Returns:
        Advantages and returns, (S,) each; returns are advantages plus values, what the value model learns.

    Example:
        >>> generalized_advantages(np.array([0.0, 1.0]), np.array([0.5, 0.5]), gamma=1.0, lam=0.5)
        (array([0.25, 0.5 ]), array([0.75, 1.  ]))
    """
    advantages, after, next_value = np.zeros(len(rewards)), 0.0, 0.0
    for t in reversed(range(len(rewards))):
        after = rewards[t] + gamma * next_value - values[t] + gamma * lam * after
        advantages[t], next_value = after, values[t]
    return advantages, advantages + values


def whiten(rows: Sequence[Row], shift_mean: bool = True) -> list[Row]:
    """Divide by the standard deviation (n - 1) over the numbers of all rows.

    Args:
        rows: (T_i,) each.
        shift_mean: subtract the mean too, as of advantages; not of rewards.

    Returns:
        The rows, (T_i,) each.

    Example:
        >>> [row.round(3) for row in whiten([np.array([1.0, 2.0]), np.array([3.0])])]
        [array([-1.,  0.]), array([1.])]
    """
    counted = np.concatenate(rows)
    mean, scale = counted.mean(), 1 / np.sqrt(counted.var(ddof=1) + _SMALL)
    return [(row - mean) * scale + (0.0 if shift_mean else mean) for row in rows]


@dataclass(frozen=True)
class PPORow:
    """One completion as the loss takes it: of its tokens (T,), of its steps (S,)."""

    logps: Row  # (T,), as the loss scores them
    old_logps: Row  # (T,), of the policy that sampled
    advantages: Row  # (T,), whitened
    values: Row  # (S,), as the loss computes them
    old_values: Row  # (S,), before the update
    returns: Row  # (S,)


@dataclass(frozen=True)
class PPOLoss:
    """What a micro-batch gives, and the slopes of `policy + vf_coef * value` by each log-prob (T,) and each value (S,)."""

    policy: float
    value: float
    slopes: list[Row]
    value_slopes: list[Row]
    ratios: list[Row]


def ppo_loss(
    rows: Sequence[PPORow], cliprange: float = 0.2, cliprange_value: float = 0.2, vf_coef: float = 0.1
) -> PPOLoss:
    """Compute PPO's clipped loss and the clipped loss of the values, each the mean over the numbers of a micro-batch.

    At a token the loss is `max(-A r, -A clip(r, 1 - cliprange, 1 + cliprange))` with `r = exp(logp - old logp)`, at a step
    `0.5 max((v - R)^2, (clip(v, old v - cliprange_value, old v + cliprange_value) - R)^2)`.

    Args:
        rows: of one micro-batch.
        cliprange, cliprange_value, vf_coef: the limits, and the value loss's factor in the gradient.

    Returns:
        Both losses, without `vf_coef`, and their slopes, with it.

    Example:
        >>> row = PPORow(np.log([0.3]), np.log([0.2]), np.array([1.0]), np.array([1.0]), np.array([0.0]), np.array([3.0]))
        >>> got = ppo_loss([row], vf_coef=1.0)  # a ratio of 1.5 is clipped to 1.2, a value of 1 to 0.2
        >>> got.policy, round(got.value, 2), got.slopes[0], got.value_slopes[0]
        (-1.2, 3.92, array([0.]), array([0.]))
    """
    tokens, steps = sum(len(row.logps) for row in rows), sum(len(row.values) for row in rows)
    policy, value, slopes, value_slopes, ratios = 0.0, 0.0, [], [], []
    for row in rows:
        ratio = np.exp(row.logps - row.old_logps)
        loss, slope = clipped(ratio, row.advantages, cliprange, cliprange)
        limited = np.clip(row.values, row.old_values - cliprange_value, row.old_values + cliprange_value)
        plain, bounded = (row.values - row.returns) ** 2, (limited - row.returns) ** 2
        policy += float(loss.sum()) / max(tokens, 1)
        value += 0.5 * float(np.maximum(plain, bounded).sum()) / steps
        slopes.append(slope / max(tokens, 1))
        value_slopes.append(vf_coef * np.where(plain >= bounded, row.values - row.returns, 0.0) / steps)
        ratios.append(ratio)
    return PPOLoss(policy, value, slopes, value_slopes, ratios)
