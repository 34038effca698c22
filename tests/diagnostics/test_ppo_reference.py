"""The reference of an update of PPO against numbers by hand, sums written out, TRL's own formulas and finite differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ppo_parts import needs_ppo, ppo_trainer

from workbench.diagnostics.ppo_reference import PPORow, generalized_advantages, ppo_loss, token_rewards, whiten


def made_rows(seed: int = 0) -> list[PPORow]:
    """Rows of other lengths, with ratios and values on both sides of their limits; the second has no step behind its end."""
    random, rows = np.random.default_rng(seed), []
    for tokens, steps in ((4, 5), (3, 3), (1, 2)):
        logps, values = -random.exponential(1.0, tokens), random.normal(0, 1, steps)
        old = logps + random.normal(0, 0.4, tokens), values + random.normal(0, 0.4, steps)
        rows.append(PPORow(logps, old[0], random.normal(0, 1, tokens), values, old[1], random.normal(0, 1, steps)))
    return rows


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.8), (1.0, 1.0), (0.9, 0.0)])
def test_advantages_are_the_sum_of_gaes_definition(gamma, lam):
    """Equation 16 of the paper, a sum over the later differences, and not the recursion."""
    random = np.random.default_rng(0)
    rewards, values = random.normal(0, 1, 6), random.normal(0, 1, 6)
    deltas = rewards + gamma * np.append(values[1:], 0.0) - values
    expected = [sum((gamma * lam) ** k * deltas[t + k] for k in range(6 - t)) for t in range(6)]
    advantages, returns = generalized_advantages(rewards, values, gamma, lam)
    assert advantages == pytest.approx(expected) and returns == pytest.approx(np.array(expected) + values)


def test_with_lam_1_a_return_is_the_sum_of_later_rewards():
    _, returns = generalized_advantages(np.array([1.0, 2.0, 4.0]), np.array([9.0, -9.0, 9.0]), 1.0, 1.0)
    assert returns == pytest.approx([7.0, 6.0, 4.0])


def test_both_estimators_of_the_kl_by_hand():
    logps, ref = np.log([0.5, 0.25]), np.log([0.25, 0.5])
    assert token_rewards(logps, ref, 3.0, 2, 0.1) == pytest.approx([-0.1 * np.log(2), 3 + 0.1 * np.log(2)])
    k3 = [0.5 - 1 + np.log(2), 2 - 1 - np.log(2)]
    assert token_rewards(logps, ref, 3.0, 3, 0.1, "k3") == pytest.approx([-0.1 * k3[0], -0.1 * k3[1], 3.0])


def test_whitened_numbers_have_variance_1_over_all_rows():
    rows = [np.array([1.0, 5.0, 2.0]), np.array([7.0])]
    whole, kept = np.concatenate(whiten(rows)), np.concatenate(whiten(rows, shift_mean=False))
    assert whole.mean() == pytest.approx(0) and whole.var(ddof=1) == pytest.approx(1)
    assert kept - whole == pytest.approx(np.full(4, 3.75))


def padded(rows: list[PPORow], name: str) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [torch.tensor(getattr(row, name), dtype=torch.float64) for row in rows]
    table = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    return table, torch.arange(table.shape[1]) < torch.tensor([[len(part)] for part in parts])


@pytest.mark.parametrize("limit", [0.1, 0.3, 10.0])
def test_loss_and_slopes_are_those_of_autograd_on_a_padded_batch(limit):
    """The formulas of TRL's `train`, on padded tables with masks."""
    rows = made_rows()
    (logps, mask), (values, steps) = padded(rows, "logps"), padded(rows, "values")
    logps.requires_grad_(), values.requires_grad_()
    old, advantages, old_values, returns = (
        padded(rows, name)[0] for name in ("old_logps", "advantages", "old_values", "returns")
    )
    ratio = (logps - old).exp()
    surrogate = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - limit, 1 + limit))
    limited = values.clamp(old_values - limit, old_values + limit)
    squares = torch.max((values - returns) ** 2, (limited - returns) ** 2)
    policy, value = (surrogate * mask).sum() / mask.sum(), 0.5 * (squares * steps).sum() / steps.sum()
    (policy + 0.3 * value).backward()
    got = ppo_loss(rows, limit, limit, 0.3)
    assert (got.policy, got.value) == pytest.approx((policy.item(), value.item()))
    for i, row in enumerate(rows):
        assert got.slopes[i] == pytest.approx(logps.grad[i, : len(row.logps)].numpy())
        assert got.value_slopes[i] == pytest.approx(values.grad[i, : len(row.values)].numpy())


@pytest.mark.parametrize(("name", "slopes"), [("logps", "slopes"), ("values", "value_slopes")])
def test_slopes_of_ppo_are_finite_differences(name, slopes):
    rows, step = made_rows(1), 1e-6

    def total(changed: list[PPORow]) -> float:
        loss = ppo_loss(changed, vf_coef=0.3)
        return loss.policy + 0.3 * loss.value

    found = getattr(ppo_loss(rows, vf_coef=0.3), slopes)
    for i, row in enumerate(rows):
        numbers = getattr(row, name)
        for t in range(len(numbers)):
            sides = [replace(row, **{name: numbers + sign * step * (np.arange(len(numbers)) == t)}) for sign in (1, -1)]
            up, down = (total([*rows[:i], side, *rows[i + 1 :]]) for side in sides)
            assert found[i][t] == pytest.approx((up - down) / (2 * step), abs=1e-6)


def test_rows_of_a_batch_reach_both_limits():
    """Otherwise the tests above would not see a wrong limit."""
    rows = made_rows()
    beyond = np.concatenate([np.abs(np.exp(row.logps - row.old_logps) - 1) > 0.3 for row in rows])
    of_values = np.concatenate([np.abs(row.values - row.old_values) > 0.3 for row in rows])
    assert 0 < beyond.sum() < beyond.size and 0 < of_values.sum() < of_values.size


@needs_ppo
@pytest.mark.parametrize("shift_mean", [True, False])
def test_whitening_is_trls(shift_mean):
    rows = [row.advantages for row in made_rows()]
    table, mask = padded(made_rows(), "advantages")
    used = ppo_trainer.masked_whiten(table, mask, shift_mean=shift_mean)[mask].numpy()
    assert np.concatenate(whiten(rows, shift_mean)) == pytest.approx(used)
