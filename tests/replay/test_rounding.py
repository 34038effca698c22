"""What fp32 leaves of advantages whose rewards are large next to their differences: bounds, and the verdicts on them."""

import itertools

import numpy as np
import pytest

from workbench.replay.grpo_math import (
    LossRow,
    group_advantages,
    leave_one_out_advantages,
    normalized_advantages,
)
from workbench.replay.rounding import group_rounding, leave_one_out_rounding, normalized_rounding, row_rounding
from workbench.replay.stages import check_advantages, check_loss, check_metrics, losses_of
from workbench.replay.step import MicroRows, SampledRow, Step

SMALL = np.float32(1e-4)
LEVELS = (0.1, 0.7, 3.3, 100.1, 1e4, 1e6)
KINDS = {
    "equal": lambda rng, level, count: np.full(count, level),
    "near each other": lambda rng, level, count: level + 1e-3 * rng.normal(size=count),
    "a unit apart": lambda rng, level, count: level + rng.integers(0, 2, count),
    "of both signs": lambda rng, level, count: level * rng.normal(size=count),
    "tiny": lambda rng, level, count: 1e-7 * rng.normal(size=count),
}


def added(values):
    """The sum over the last axis in fp32, one number after another."""
    return list(itertools.accumulate(np.moveaxis(values, -1, 0), lambda a, b: np.float32(a + b)))[-1][..., None]


def normalized(values):
    """Values minus their mean over the last axis, by their deviation, in fp32 throughout."""
    n = np.float32(values.shape[-1])
    centred = values - added(values) / n
    return centred / (np.sqrt(added(centred**2) / n * (n / (n - 1))) + SMALL)


def in_fp32(kind, table, size):
    """Advantages of a table of rewards (N, F), each operation rounded to fp32."""
    rows = added(table).ravel()
    groups = rows.reshape(-1, size)
    if kind == "group":
        return normalized(groups).ravel()
    if kind == "none":
        return (groups - added(groups) / np.float32(size)).ravel()
    if kind == "normalize_then_sum":
        scaled = normalized(np.moveaxis(table.reshape(-1, size, table.shape[1]), 1, -1))
        return normalized(added(np.moveaxis(scaled, -1, 1).reshape(table.shape)).ravel()[None])[0]
    advantages = (groups - (added(groups) - groups) / np.float32(size - 1)).ravel()
    return normalized(advantages[None])[0] if kind == "RLOO, normalized" else advantages


def exact(kind, table, size):
    rows, off = table.sum(axis=1), row_rounding(table, None)
    if kind in ("group", "none"):
        return group_advantages(rows, size, kind), group_rounding(table, None, size, kind)
    if kind == "normalize_then_sum":
        return normalized_advantages(table, size), normalized_rounding(table, None, size)
    normalize = kind == "RLOO, normalized"
    return leave_one_out_advantages(rows, size, normalize), leave_one_out_rounding(rows, off, size, normalize)


@pytest.mark.parametrize("kind", ["group", "none", "normalize_then_sum", "RLOO", "RLOO, normalized"])
def test_no_advantage_is_off_by_more_than_its_bound(kind):
    rng = np.random.default_rng(0)
    for make, level, size, functions in itertools.product(KINDS.values(), LEVELS, (2, 3, 7, 8, 16), (1, 3)):
        table = np.stack([make(rng, level, 3 * size) for _ in range(functions)], axis=1).astype(np.float32)
        used = in_fp32(kind, table, size)
        expected, bound = exact(kind, table.astype(float), size)
        allowed = bound + 4e-6 * np.maximum(1, np.abs(expected).max())
        assert (np.abs(used - expected) <= allowed).all(), (level, size, functions, np.abs(used - expected).max())


def step_of(rewards, advantages, metrics=(), size=8, **settings):
    settings = {"num_generations": size, "scale_rewards": "group", "reward_weights": [1.0]} | settings
    settings |= {"reward_func_names": ["mine"], "beta": 0.0, "reward_clip_range": None}
    table = np.float32(rewards).astype(float)[:, None]
    row = SampledRow([5], [6], np.ones(1), None, 1, False, np.ones(1))
    parts = [row], [], [table], None, [np.asarray(advantages)], []
    return Step("GRPO", "float32", 1, 0, settings, *parts, metrics=dict(metrics))


def test_equal_rewards_that_fp32_rounds_are_no_difference():
    rewards = np.float32([0.7] * 8)
    used = in_fp32("group", rewards[:, None], 8)
    assert np.abs(used).max() > 5e-4  # 0 but for rounding
    stage = check_advantages(step_of(rewards, used))
    assert stage.verdict == "rounding" and stage.cause.startswith("fp32 rounds the means"), stage


@pytest.mark.parametrize("rewards", [[100.1] * 7, [1e6 + 0.1 * n for n in range(7)]], ids=["equal", "far from 0"])
def test_rewards_without_digits_left_cannot_be_told(rewards):
    used = in_fp32("group", np.float32(rewards)[:, None], 7)
    stage = check_advantages(step_of(rewards, used, size=7))
    assert stage.verdict == "cannot tell" and "take a constant off" in stage.cause, stage


def test_rounding_explains_no_other_advantages():
    rewards = [0.7, 0.2, 0.7, 0.1, 0.7, 0.7, 0.3, 0.9]
    used = group_advantages(rewards, 8)
    assert check_advantages(step_of(rewards, used)).verdict == "same"
    assert check_advantages(step_of(rewards, 1.01 * used)).verdict == "different"
    assert check_advantages(step_of([0.7] * 8, [0.5] + [0.0] * 7)).verdict == "different"


def logged(rewards, **metrics):
    mean = {"reward": np.float32(np.mean(rewards))}
    return check_metrics(step_of(rewards, np.zeros(len(rewards)), mean | metrics), []).verdict


def test_the_share_of_equal_groups_is_one_that_fp32_can_give():
    spread = [0.1 * n for n in range(8)]
    assert [logged([0.7] * 8 + spread, frac_reward_zero_std=share) for share in (0.0, 0.5)] == ["same", "same"]
    assert [logged([1.0] * 8 + spread, frac_reward_zero_std=share) for share in (0.0, 0.5)] == ["different", "same"]
    assert logged([1e-7 * n for n in range(8)], frac_reward_zero_std=0.0) == "same"  # TRL takes 1e-8 for 0
    assert logged([1e-9 * n for n in range(8)], frac_reward_zero_std=1.0) == "same"
    assert logged([0.7] * 8 + spread, frac_reward_zero_std=1.0) == "different"


def test_a_mean_of_large_rewards_may_be_rounded():
    rewards = [(-1) ** n * 1e7 + 0.3 * n for n in range(8)]
    assert logged(rewards, reward=float(np.mean(rewards)) + 0.3) == "same"
    assert logged([0.3 * n for n in range(8)], reward=float(np.mean([0.3 * n for n in range(8)])) + 0.3) == "different"


def loss_of(kind, factor, **settings):
    """The verdict on the loss of four rows that all are beyond the clip, in fp32."""
    logps, signs = np.full((4, 3), -1.0), np.array([1.0, -1.0, 0.7, -0.3])
    rows = [
        LossRow(each, sign, np.ones(3), old_logps=each - sign, old_sum=float((each - sign).sum()))
        for each, sign in zip(logps, signs, strict=True)
    ]
    value = factor * float(np.float32(-np.mean(np.where(signs > 0, 1.2, 0.8) * signs)))
    settings |= {"gradient_accumulation_steps": 1, "epsilon": 0.2, "loss_type": "grpo", "num_generations": 4}
    micro = MicroRows(rows, [[5]] * 4, [[6, 7, 8]] * 4, None, value)
    step = Step(kind, "float32", 1, 0, settings, [], [], [], None, [np.array(signs)], [micro])
    assert not any(slopes.any() for slopes in losses_of(step)[0].slopes)
    return check_loss(step, losses_of(step)).verdict


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_the_loss_of_rows_beyond_the_clip_may_be_rounded(kind):
    assert [loss_of(kind, factor) for factor in (1.0, 1.01)] == ["same", "different"]


def test_the_loss_of_rows_that_rloo_masks_may_be_rounded():
    """Where all completions are truncated and left out, it is still the mean of the advantages: 0 but for rounding."""
    none, settings = np.zeros(3), {"gradient_accumulation_steps": 1, "epsilon": 0.2}
    rows = [LossRow(np.full(3, -1.0), advantage, none, old_sum=0.0) for advantage in (0.7, -0.3, -0.4)]
    verdicts = []
    for value in (0.0, 3e-8, 0.01):
        micro = MicroRows(rows, [[5]] * 3, [[6, 7, 8]] * 3, None, value)
        step = Step("RLOO", "float32", 1, 0, settings, [], [], [], None, [np.zeros(3)], [micro])
        verdicts.append(check_loss(step, losses_of(step)).verdict)
    assert verdicts == ["same", "same", "different"]
