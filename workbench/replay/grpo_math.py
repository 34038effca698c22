"""What a step of GRPO or RLOO computes, row by row in float64: no padding, no TRL, no torch.

Rows are completions. N of them are sampled for P prompts, G for each, in the order of the prompts: row i belongs to group
i // G. Row i has T_i tokens, and what is said of its tokens is an array of shape (T_i,). Log-probs are in nats. The mask of a
row is 1 where a token counts in the loss.

The names are those of TRL's `GRPOConfig`, and so are the defaults. Sources: GRPO, https://arxiv.org/abs/2402.03300; Dr. GRPO,
2503.20783; DAPO, 2503.14476; GSPO, 2507.18071; CISPO (MiniMax-M1), 2506.13585; SAPO, 2511.20347; VESPO, 2602.10693; RLOO,
2402.14740; GMPO, 2507.20673; truncated importance sampling, https://fengyao.notion.site/off-policy-rl; the rest TRL's
documentation of each field.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Row = np.ndarray  # (T,)
SMALL = 1e-4  # what TRL adds to a standard deviation
CORRECTIONS = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
LOSS_TYPES = ("grpo", "dapo", "bnpo", "dr_grpo", "luspo", "sapo", "cispo", "vespo", "gmpo")


def row_rewards(
    rewards: Sequence[Sequence[float | None]] | np.ndarray, weights: Sequence[float] | None = None
) -> np.ndarray:
    """Weigh and sum the rewards of each row.

    Args:
        rewards: (N, F), of F reward functions. None or NaN: that function does not judge the row.
        weights: (F,), 1 each by default.

    Returns:
        (N,). NaN where no function judged.

    Example:
        >>> row_rewards([[1.0, 0.5], [None, 0.5], [None, None]], [1.0, 2.0])
        array([ 2.,  1., nan])
    """
    table = np.asarray(rewards, dtype=float)
    total = np.nansum(
        table * (np.ones(table.shape[1]) if weights is None else np.asarray(weights, dtype=float)), axis=1
    )
    return np.where(np.isnan(table).all(axis=1), np.nan, total)


def group_advantages(rewards: Sequence[float] | Row, num_generations: int, scale_rewards: str = "group") -> np.ndarray:
    """Compare each row with the mean of its group, as GRPO does.

    Args:
        rewards: (N,), NaN for rows without a reward, which count nowhere and get 0.
        num_generations: G; N is a multiple of it.
        scale_rewards: divide by the standard deviation of the `group`, of the whole `batch`, or by nothing (`none`).

    Returns:
        (N,). 0 in groups of equal rewards.

    Raises:
        ValueError: another `scale_rewards`.

    Example:
        >>> group_advantages([1.0, 0.0, 2.0, 2.0], 2, "none")
        array([ 0.5, -0.5,  0. ,  0. ])
    """
    given = np.asarray(rewards, dtype=float)
    groups = given.reshape(-1, num_generations)
    centred = groups - nan_mean(groups, 1)
    if scale_rewards == "group":
        centred = centred / (nan_std(groups, 1) + SMALL)
    elif scale_rewards == "batch":
        centred = centred / (nan_std(given[None], 1) + SMALL)
    elif scale_rewards != "none":
        raise ValueError(f"scale_rewards={scale_rewards!r}: expected group, batch or none")
    return np.nan_to_num(centred.ravel(), nan=0.0)


def normalized_advantages(
    rewards: Sequence[Sequence[float | None]] | np.ndarray, num_generations: int, weights: Sequence[float] | None = None
) -> np.ndarray:
    """Normalize each reward function within groups, then weigh, sum, and normalize over the batch (GDPO, 2601.05242;
    `multi_objective_aggregation="normalize_then_sum"`).

    Args:
        rewards: (N, F), as in `row_rewards`.
        num_generations: G.
        weights: (F,).

    Returns:
        (N,).

    Example:
        >>> normalized_advantages([[1.0, 8.0], [0.0, 8.0]], 2).round(2)
        array([ 0.71, -0.71])
    """
    table = np.asarray(rewards, dtype=float)
    groups = table.reshape(-1, num_generations, table.shape[1])
    scaled = (groups - nan_mean(groups, 1)) / (nan_std(groups, 1) + SMALL)
    # As in TRL, the only completion that a function judges in its group gets 0 from it, and counts in the batch.
    total = row_rewards(np.where(np.isnan(scaled), 0.0, scaled).reshape(table.shape), weights)
    total[np.isnan(table).all(axis=1)] = np.nan
    return np.nan_to_num((total - nan_mean(total[None], 1)[0]) / (nan_std(total[None], 1)[0] + SMALL), nan=0.0)


def leave_one_out_advantages(
    rewards: Sequence[float] | Row, num_generations: int, normalize: bool = False
) -> np.ndarray:
    """Compare each row with the mean of the others of its group, as RLOO does.

    Args:
        rewards: (N,), after clipping and after the KL penalty; NaN for rows without a reward.
        num_generations: G.
        normalize: over the whole batch afterwards (`normalize_advantages`).

    Returns:
        (N,).

    Example:
        >>> leave_one_out_advantages([3.0, 0.0, 0.0], 3)
        array([ 3. , -1.5, -1.5])
    """
    groups = np.asarray(rewards, dtype=float).reshape(-1, num_generations)
    others = (~np.isnan(groups)).sum(axis=1, keepdims=True) - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        advantages = (groups - (np.nansum(groups, axis=1, keepdims=True) - groups) / others).ravel()
    advantages[~np.isfinite(advantages)] = np.nan  # the only judged row of its group
    if normalize:
        advantages = (advantages - nan_mean(advantages[None], 1)[0]) / (nan_std(advantages[None], 1)[0] + SMALL)
    return np.nan_to_num(advantages, nan=0.0)


def loss_mask(tokens: int, ended: bool, mask_truncated: bool = False, tool_mask: Row | None = None) -> Row:
    """The tokens of one row that count in the loss: all that the policy sampled, or none of a row that was cut.

    Args:
        tokens: T.
        ended: whether the row ended by itself, with EOS or at a stop, and was not cut by the limit.
        mask_truncated: `mask_truncated_completions`.
        tool_mask: (T,), 0 for tokens of tools and environments.

    Returns:
        (T,) of 0 and 1.

    Example:
        >>> loss_mask(3, ended=False, mask_truncated=True), loss_mask(3, True, tool_mask=np.array([1, 0, 1]))
        (array([0., 0., 0.]), array([1., 0., 1.]))
    """
    mask = np.zeros(tokens) if mask_truncated and not ended else np.ones(tokens)
    return mask if tool_mask is None else mask * np.asarray(tool_mask, dtype=float)


def sampler_correction(
    old: Row, sampled: Row, mask: Row, mode: str, clip_min: float | None = None, clip_max: float | None = 3.0
) -> Row:
    """The weight by which a sampler that is not quite the policy is corrected (`vllm_importance_sampling_*`).

    Args:
        old: (T,), log-probs of the policy that sampled, in the trainer.
        sampled: (T,), the sampler's own log-probs; NaN where it gave none, which changes nothing.
        mask: (T,).
        mode: `token_truncate`, `token_mask`, `sequence_truncate` or `sequence_mask`. A sequence's ratio is the product of its
            tokens'. Truncating clips to the limits; masking sets what lies beyond them to 0.
        clip_min, clip_max: the limits; None is no limit.

    Returns:
        (T,), one weight a token, or (1,) for a sequence.

    Raises:
        ValueError: another mode.

    Example:
        >>> old, sampled = np.log([0.9, 0.5]), np.log([0.3, 0.5])
        >>> sampler_correction(old, sampled, np.ones(2), "token_truncate", clip_max=2.0)
        array([2., 1.])
        >>> sampler_correction(old, sampled, np.ones(2), "sequence_mask", clip_max=2.0)
        array([0.])
    """
    if mode not in CORRECTIONS:
        raise ValueError(f"mode={mode!r}: expected one of {', '.join(CORRECTIONS)}")
    difference = np.nan_to_num((old - sampled) * mask, nan=0.0)
    ratio = np.exp(difference.sum(keepdims=True) if mode.startswith("sequence") else difference)
    low, high = -np.inf if clip_min is None else clip_min, np.inf if clip_max is None else clip_max
    if mode.endswith("truncate"):
        return np.clip(ratio, low, high)
    return np.where((ratio < low) | (ratio > high), 0.0, ratio)


def k3(logps: Row, ref_logps: Row) -> Row:
    """The estimate of the KL divergence from a reference that GRPO's loss takes, at least 0 at each token (Schulman's k3).

    Args:
        logps, ref_logps: (T,), of the policy and of the reference.

    Returns:
        (T,), in nats.

    Example:
        >>> k3(np.log([0.5]), np.log([0.25])).round(4)
        array([0.1931])
    """
    log_ratio = ref_logps - logps
    return np.exp(log_ratio) - log_ratio - 1


@dataclass(frozen=True)
class LossSettings:
    """The fields of a `GRPOConfig` that its loss depends on, by its names.

    The defaults are TRL's (1.12 to 1.16) but for two: TRL's `use_bias_correction_kl` is True and its
    `max_completion_length` 512.
    """

    loss_type: str = "dapo"
    importance_sampling_level: str = "token"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    beta: float = 0.0
    use_bias_correction_kl: bool = False
    max_completion_length: int = 256
    top_entropy_quantile: float = 1.0
    off_policy_mask_threshold: float | None = None
    sapo_temperature_neg: float = 1.05
    sapo_temperature_pos: float = 1.0
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0
    entropy_coef: float = 0.0


@dataclass(frozen=True)
class LossRow:
    """One completion as the loss takes it: arrays of shape (T,), `correction` (T,) or (1,)."""

    logps: Row
    advantage: Any  # a number, or (T,) where each token has its own
    mask: Row
    old_logps: Any = None  # by default the log-probs themselves: no update since the sampling
    ref_logps: Any = None  # for beta
    sampled_logps: Any = None
    correction: Any = None
    entropies: Any = None  # for top_entropy_quantile and entropy_coef
    old_sum: float | None = None  # for RLOO, which keeps the sum over the mask alone


@dataclass(frozen=True)
class Loss:
    """What a micro-batch gives: its part of the step's loss, and the slopes by which gradients flow.

    The gradient is the sum over rows i and tokens t of `slopes[i][t]` times the gradient of that token's log-prob, plus
    `entropy_slopes[i][t]` times the gradient of the entropy there.
    """

    value: float
    slopes: list[Row]
    ratios: list[Row]
    entropy_slopes: list[Row] = field(default_factory=list)
    # By how much the terms of a row are at most larger than its slopes: masked or beyond a clip it has none.
    flat: float = 0.0


def grpo_loss(
    rows: Sequence[LossRow],
    settings: LossSettings,
    accumulation: int = 1,
    items: float | None = None,
    share: float = 1.0,
    entropy_threshold: float | None = None,
) -> Loss:
    """GRPO's loss of one micro-batch, and its slope at each token.

    Args:
        rows: of one micro-batch of one process.
        settings: which loss.
        accumulation: micro-batches of an update (`gradient_accumulation_steps`).
        items: tokens that count in the whole generation batch, over all processes; the divisor of `dapo`, `cispo` and
            `vespo`. By default those of this micro-batch.
        share: of these tokens, what falls to one micro-batch of one process: 1 / (processes * steps_per_generation).
        entropy_threshold: the entropy from which on `top_entropy_quantile` keeps tokens, over all processes. By default that
            of this micro-batch.

    Returns:
        The loss, as it goes into the gradient.

    Raises:
        ValueError: for a `loss_type` that is not one of TRL's, or `gmpo`.

    Example:
        >>> row = LossRow(logps=np.log([0.5, 0.25]), advantage=2.0, mask=np.ones(2))
        >>> got = grpo_loss([row], LossSettings(loss_type="grpo"))
        >>> got.value, got.slopes[0]
        (-2.0, array([-1., -1.]))
    """
    s = settings
    if s.loss_type == "gmpo":  # TRL has a trainer for it
        return gmpo_loss(rows, s, accumulation, entropy_threshold)
    high = s.epsilon if s.epsilon_high is None else s.epsilon_high
    weights = token_weights(rows, s, accumulation, items, share)
    chosen = _high_entropy(rows, s.top_entropy_quantile, entropy_threshold)
    value, flat, slopes, ratios = 0.0, 0.0, [], []
    for row, weight, kept in zip(rows, weights, chosen, strict=True):
        old = row.logps if row.old_logps is None else row.old_logps
        log_ratio, spread = _log_ratio(row.logps - old, row.mask, s.importance_sampling_level)
        ratio = np.exp(log_ratio)
        loss, by_ratio, by_logp = _surrogate(row, ratio, row.logps - old, s, high)
        factor = kept * _on_policy(row, old, s.off_policy_mask_threshold)
        if row.correction is not None and s.loss_type != "vespo":
            factor = factor * row.correction
        loss, by_ratio, by_logp = (np.broadcast_to(part * factor, row.mask.shape) for part in (loss, by_ratio, by_logp))
        if s.beta:
            kl, of_logp = k3(row.logps, row.ref_logps), 1 - np.exp(row.ref_logps - row.logps)
            scale = ratio if s.use_bias_correction_kl else 1.0
            loss, by_logp = loss + s.beta * kl * scale, by_logp + s.beta * of_logp * scale
            by_ratio = by_ratio + (s.beta * kl * ratio if s.use_bias_correction_kl else 0.0)
        value += float((weight * loss).sum())
        slopes.append(weight * by_logp + spread(weight * by_ratio))
        flat = max(flat, float(np.maximum(np.abs(weight * loss) - np.abs(slopes[-1]), 0.0).sum()))
        ratios.append(ratio)
    if not s.entropy_coef:
        return Loss(value, slopes, ratios, flat=flat)
    acting = [row.mask * kept for row, kept in zip(rows, chosen, strict=True)]
    scale = s.entropy_coef / max(sum(float(mask.sum()) for mask in acting), 1.0) / accumulation
    value -= scale * sum(float((row.entropies * mask).sum()) for row, mask in zip(rows, acting, strict=True))
    return Loss(value, slopes, ratios, [-scale * mask for mask in acting], flat)


def logged_kl(rows: Sequence[LossRow], settings: LossSettings) -> float:
    """The sum over the tokens of a micro-batch of the divergence from the reference that its loss takes, without `beta`.

    Example:
        >>> row = LossRow(np.log([0.5]), 0.0, np.ones(1), old_logps=np.log([0.25]), ref_logps=np.log([0.25]))
        >>> round(logged_kl([row], LossSettings()), 4), round(logged_kl([row], LossSettings(use_bias_correction_kl=True)), 4)
        (0.1931, 0.3863)
    """
    total = 0.0
    for row in rows:
        old = row.logps if row.old_logps is None else row.old_logps
        ratio = np.exp(_log_ratio(row.logps - old, row.mask, settings.importance_sampling_level)[0])
        scale = ratio if settings.use_bias_correction_kl else 1.0
        total += float((k3(row.logps, row.ref_logps) * scale * row.mask).sum())
    return total


def logged_clip_ratios(
    rows: Sequence[LossRow], ratios: Sequence[Row], low: float, high: float, off: Row | float = 0.0
) -> dict[str, float]:
    """Return what TRL logs of a micro-batch as `clip_ratio/*`: the share of tokens whose ratio is beyond a limit of the clip.

    Where each row has one ratio, it is the share of the rows.

    Args:
        ratios: of each row, (T,) or (1,).
        low, high: the limits of the ratio, as 0.8 and 1.2.
        off: of each row, the share of its ratio by which it counts as beyond a limit already; below 0 the other way round.

    Returns:
        `low_mean`, `high_mean`, `region_mean`, and over the rows `low_min` and `high_max`; NaN where no token counts.

    Example:
        >>> row = LossRow(np.zeros(2), -1.0, np.ones(2))
        >>> logged_clip_ratios([row], [np.array([0.5, 1.5])], 0.8, 1.2)["low_mean"]
        0.5
    """
    sums, counts = [], []
    is_by_row = all(len(ratio) == 1 and np.ndim(row.advantage) == 0 for row, ratio in zip(rows, ratios, strict=True))
    for row, ratio, by in zip(rows, ratios, np.broadcast_to(off, len(rows)), strict=True):
        a = np.asarray(row.advantage)
        below, above = (ratio * (1 - by) < low) & (a < 0), (ratio * (1 + by) > high) & (a > 0)
        counted = np.ones(1) if is_by_row else row.mask
        sums.append([float((part * counted).sum()) for part in (below, above)])
        counts.append(float(counted.sum()))
    of_rows = np.array(sums)[np.array(counts) > 0] / np.array(counts)[np.array(counts) > 0, None]
    if not len(of_rows):
        return dict.fromkeys(("low_mean", "high_mean", "region_mean", "low_min", "high_max"), float("nan"))
    lows, highs = np.sum(sums, axis=0) / sum(counts)
    means = {"low_mean": float(lows), "high_mean": float(highs), "region_mean": float(lows + highs)}
    return means | {"low_min": float(of_rows[:, 0].min()), "high_max": float(of_rows[:, 1].max())}


def rloo_loss(
    rows: Sequence[LossRow], epsilon: float = 0.2, accumulation: int = 1, epsilon_high: float | None = None
) -> Loss:
    """RLOO's loss of one micro-batch: PPO's clipped objective with one ratio for each completion, which is the product of its
    tokens'. The KL penalty is in the reward.

    Args, Returns: as in `grpo_loss`; `epsilon_high` is the width of the clip above 1, `epsilon` by default.

    Example:
        >>> rloo_loss([LossRow(np.log([0.5, 0.25]), 2.0, np.ones(2))]).slopes[0]
        array([-2., -2.])
    """
    value, flat, slopes, ratios = 0.0, 0.0, [], []
    high = epsilon if epsilon_high is None else epsilon_high
    for row in rows:
        if row.old_sum is None:
            old = row.logps if row.old_logps is None else row.old_logps
            ratio = np.exp(((row.logps - old) * row.mask).sum(keepdims=True))
        else:
            ratio = np.exp((row.logps * row.mask).sum(keepdims=True) - row.old_sum)
        loss, slope = clipped(ratio, row.advantage, epsilon, high)
        value += float(loss[0]) / len(rows) / accumulation
        slopes.append(slope * row.mask / len(rows) / accumulation)
        flat = max(flat, abs(float(loss[0])) / len(rows) / accumulation - float(np.abs(slopes[-1]).sum()))
        ratios.append(ratio)
    return Loss(value, slopes, ratios, flat=flat)


def gmpo_loss(
    rows: Sequence[LossRow], settings: LossSettings, accumulation: int = 1, entropy_threshold: float | None = None
) -> Loss:
    """GMPO's loss of one micro-batch: each row has the geometric mean of its tokens' ratios, clipped one by one.

    Source: 2507.20673, and TRL's `GMPOTrainer`.

    Args:
        rows, accumulation, entropy_threshold: as in `grpo_loss`.
        settings: `epsilon` and `epsilon_high` limit the log of a ratio. `beta` and `top_entropy_quantile` are read too.

    Returns:
        As `grpo_loss`.

    Example:
        >>> row = LossRow(np.log([0.4, 0.1]), 2.0, np.ones(2), old_logps=np.log([0.2, 0.1]))  # ratios of 2 and 1
        >>> got = gmpo_loss([row], LossSettings(epsilon=0.4))
        >>> round(got.value, 4), got.slopes[0].round(4)
        (-2.4428, array([-0.    , -1.2214]))
    """
    s = settings
    high = s.epsilon if s.epsilon_high is None else s.epsilon_high
    value, flat, slopes, ratios = 0.0, 0.0, [], []
    for row, kept in zip(rows, _high_entropy(rows, s.top_entropy_quantile, entropy_threshold), strict=True):
        log_ratio = row.logps - (row.logps if row.old_logps is None else row.old_logps)
        limited = np.where(
            np.asarray(row.advantage) > 0, np.minimum(log_ratio, high), np.maximum(log_ratio, -s.epsilon)
        )
        share = row.mask * kept / max(float((row.mask * kept).sum()), 1.0)
        loss = -np.exp((limited * share).sum()) * row.advantage
        slope = loss * share * (limited == log_ratio)
        if s.beta:
            of_kl = row.mask / max(float(row.mask.sum()), 1.0)
            loss = loss + s.beta * (k3(row.logps, row.ref_logps) * of_kl).sum()
            slope = slope + s.beta * (1 - np.exp(row.ref_logps - row.logps)) * of_kl
        size = 1 / len(rows) / accumulation
        value += float(loss) * size
        slopes.append(slope * size)
        flat = max(flat, abs(float(loss)) * size - float(np.abs(slopes[-1]).sum()))
        ratios.append(np.exp(log_ratio))
    return Loss(value, slopes, ratios, flat=flat)


def token_weights(
    rows: Sequence[LossRow], s: LossSettings, accumulation: int = 1, items: float | None = None, share: float = 1.0
) -> list[Row]:
    """Return what each token's loss is multiplied by: its mask over the divisor of the loss type.

    Args, Raises: as in `grpo_loss`.

    Returns:
        N arrays (T,).

    Example:
        >>> token_weights([LossRow(np.zeros(2), 1.0, np.ones(2))], LossSettings(loss_type="dr_grpo", max_completion_length=8))
        [array([0.125, 0.125])]
    """
    counts = [float(row.mask.sum()) for row in rows]
    if s.loss_type in ("grpo", "sapo"):
        divisors = [max(count, 1.0) * len(rows) * accumulation for count in counts]
    elif s.loss_type == "bnpo":
        divisors = [max(sum(counts), 1.0) * accumulation] * len(rows)
    elif s.loss_type == "dr_grpo":
        divisors = [float(len(rows) * s.max_completion_length * accumulation)] * len(rows)
    elif s.loss_type == "luspo":
        divisors = [float(len(rows) * accumulation)] * len(rows)
    elif s.loss_type in ("dapo", "cispo", "vespo"):
        divisors = [max(sum(counts) if items is None else items, 1.0) * share * accumulation] * len(rows)
    else:
        raise ValueError(f"loss_type {s.loss_type!r}: expected one that TRL has, such as 'dapo'")
    return [row.mask / divisor for row, divisor in zip(rows, divisors, strict=True)]


def nan_mean(values: np.ndarray, axis: int) -> np.ndarray:
    count = (~np.isnan(values)).sum(axis=axis, keepdims=True)
    return np.where(count > 0, np.nansum(values, axis=axis, keepdims=True) / np.maximum(count, 1), np.nan)


def nan_std(values: np.ndarray, axis: int) -> np.ndarray:
    """Of a sample (n - 1); NaN below two values."""
    count = (~np.isnan(values)).sum(axis=axis, keepdims=True)
    squares = np.nansum((values - nan_mean(values, axis)) ** 2, axis=axis, keepdims=True)
    return np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1)), np.nan)


def _log_ratio(difference: Row, mask: Row, level: str):
    """The log-ratio of each token, or their mean; and how slopes by it reach the tokens' log-probs."""
    if level == "token":
        return difference, lambda slopes: slopes
    if level != "sequence":
        raise ValueError(f"importance_sampling_level={level!r}: expected token or sequence")
    share = mask / max(float(mask.sum()), 1.0)
    return (difference * share).sum(keepdims=True), lambda slopes: slopes.sum() * share


def _surrogate(row: LossRow, ratio: Row, difference: Row, s: LossSettings, high: float):
    """A row's loss at each token, and its slopes by the log of the ratio and by the log-prob where the ratio is a weight."""
    a, none = row.advantage, np.zeros_like(ratio)
    if s.loss_type == "cispo":
        weight = np.minimum(ratio, high) * a
        return -weight * row.logps, none, -weight
    if s.loss_type == "vespo":
        weight = _vespo_weight(row, difference, s) * a
        return -weight * row.logps, none, -weight * np.ones_like(row.logps)
    if s.loss_type == "sapo":
        temperature = np.where(np.asarray(a) > 0, s.sapo_temperature_pos, s.sapo_temperature_neg)
        soft = 1 / (1 + np.exp(-temperature * (ratio - 1)))
        return -soft * 4 / temperature * a, -4 * soft * (1 - soft) * ratio * a, none
    return *clipped(ratio, a, s.epsilon, high, s.delta), none


def clipped(ratio: Row, advantage: Any, low: float, high: float, delta: float | None = None) -> tuple[Row, Row]:
    """PPO's clipped loss, and its slope by the log of the ratio: 0 where the smaller branch is at its limit.

    `advantage` is a number, or (T,) as the ratio.
    """
    limited, bounded = ratio if delta is None else np.minimum(ratio, delta), np.clip(ratio, 1 - low, 1 + high)
    plain, clipped = limited * advantage, bounded * advantage
    moves = np.where(plain <= clipped, limited, bounded) == ratio
    return -np.minimum(plain, clipped), np.where(moves, -ratio * advantage, 0.0)


def _vespo_weight(row: LossRow, difference: Row, s: LossSettings) -> Any:
    """The gamma weight of a sequence: `exp(lambda) * w**k * exp(-lambda * w)`, w the product of its ratios.

    A number, or (T,) where each token has an advantage of its own, whose sign chooses k and lambda.
    """
    floor = np.log(1e-8)
    log_w = (np.clip(difference, -20, 20) * row.mask).sum()
    if row.correction is not None:
        with np.errstate(divide="ignore"):
            log_w += np.clip(np.log(row.correction), floor, 20).sum()
    log_w = np.clip(log_w, floor, 20)
    positive = np.asarray(row.advantage) >= 0
    k = np.where(positive, s.vespo_k_pos, s.vespo_k_neg)
    scale = np.maximum(np.where(positive, s.vespo_lambda_pos, s.vespo_lambda_neg), 1e-4)
    return np.exp(scale + k * log_w - scale * np.exp(log_w))


def _high_entropy(rows: Sequence[LossRow], quantile: float, threshold: float | None) -> list[Row]:
    """1 for tokens among the `quantile` with the highest entropy of a micro-batch."""
    if quantile >= 1.0:
        return [np.ones_like(row.mask) for row in rows]
    counted = np.concatenate([row.entropies[row.mask > 0] for row in rows])
    if not len(counted):
        return [np.zeros_like(row.mask) for row in rows]
    threshold = _quantile(counted, 1 - quantile) if threshold is None else threshold
    return [((row.entropies * row.mask >= threshold) & (row.mask > 0)).astype(float) for row in rows]


def _quantile(values: np.ndarray, share: float) -> float:
    """The quantile as torch takes it in float32: a place that should be whole, as 0.6 * 25, can lie just behind one there."""
    ordered = np.sort(values.astype(np.float32))
    place = np.float32(share) * np.float32(len(ordered) - 1)
    low, high = ordered[int(place)], ordered[min(int(place) + 1, len(ordered) - 1)]
    weight = place - np.float32(int(place))
    return float(low + weight * (high - low) if weight < 0.5 else high - (high - low) * (np.float32(1) - weight))


def _on_policy(row: LossRow, old: Row, threshold: float | None) -> Any:
    """0 for a row of negative advantage that the policy has moved away from (DeepSeek-V3.2's sequence mask)."""
    if threshold is None:
        return 1.0
    sampled = old if row.sampled_logps is None else row.sampled_logps
    drift = (np.nan_to_num(sampled - row.logps, nan=0.0) * row.mask).sum() / max(float(row.mask.sum()), 1.0)
    return np.where(np.asarray(row.advantage) >= 0, 1.0, float(drift <= threshold))
