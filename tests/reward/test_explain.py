"""Shares of the differences within groups, and what chance explains."""

import numpy as np
import pytest

from workbench.reward.explain import centred, change_of_share, explain, live_rows, numbered

ROWS = 240
GROUPS = np.arange(ROWS) // 8


def random_features(seed: int, number: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, number))


def test_a_feature_that_is_the_reward_explains_all_of_it():
    values = random_features(0)
    result = explain(3 * values[:, 2] + 7, values, GROUPS, np.random.default_rng(0))
    assert result.alone[2] == pytest.approx(1) and result.p[2] == 0.001
    assert result.all == pytest.approx(1) and result.added[2] > 0.8


def test_differences_between_groups_explain_nothing():
    level = np.repeat(np.random.default_rng(1).normal(size=30), 8)
    noise = random_features(1, 1)[:, 0]
    result = explain(noise + 100 * level, level[:, None], GROUPS, np.random.default_rng(0))
    assert result.alone.tolist() == [0] and result.p.tolist() == [1]


def test_two_equal_features_add_nothing_to_each_other():
    values = random_features(2, 1)[:, [0, 0]]
    result = explain(values[:, 0] + random_features(3, 1)[:, 0], values, GROUPS, np.random.default_rng(0))
    assert result.alone[0] == pytest.approx(result.alone[1]) and result.alone[0] > 0.3
    assert result.added == pytest.approx([0, 0], abs=1e-9)


def test_equal_rewards_and_unknown_features_do_no_harm():
    values = random_features(4)
    values[::3, 0] = np.nan
    result = explain(np.ones(ROWS), values, GROUPS, np.random.default_rng(0))
    assert result.groups == 0 and result.p.tolist() == [1, 1, 1, 1]
    some = np.where(GROUPS < 5, values[:, 1], 0.5)
    assert (
        explain(some, values, GROUPS, np.random.default_rng(0)).groups == 5 == len(set(GROUPS[live_rows(some, GROUPS)]))
    )


def test_the_spread_under_chance_is_that_of_permutations():
    from workbench.reward.explain import _best_of_chance, _spread_under_chance

    x = centred(random_features(5), GROUPS)
    y = centred((np.random.default_rng(6).random(ROWS) < 0.2).astype(float), GROUPS)
    spread = _spread_under_chance(x, y, GROUPS)
    dealt = [_best_of_chance(x[:, [k]], y, GROUPS, 20_000, np.random.default_rng(k)) for k in range(4)]
    assert [np.sqrt(np.mean(each**2)) for each in dealt] == pytest.approx(spread, rel=0.03)


def test_chance_names_one_of_many_features_as_rarely_as_it_says():
    random = np.random.default_rng(7)
    smallest = []
    for _ in range(300):
        rewards = (random.random(ROWS) < 0.3).astype(float)
        values = random.normal(size=(ROWS, 12)) ** 3
        smallest.append(explain(rewards, values, GROUPS, random, draws=99).p.min())
    assert 2 <= sum(p <= 0.05 for p in smallest) <= 30  # 15 are expected; P(more than 30) is below 0.001


def test_groups_of_several_sizes_are_dealt_within_themselves():
    groups = np.repeat(np.arange(60), [2, 4, 6] * 20)
    rewards = np.arange(len(groups)).astype(float)
    feature = rewards - groups
    assert explain(rewards, feature[:, None], groups, np.random.default_rng(0)).alone[0] == pytest.approx(1)


def test_a_share_that_grows_is_seen_and_a_steady_one_is_not():
    random = np.random.default_rng(8)
    steps = np.repeat(np.arange(100), 8)
    feature = random.normal(size=800)
    growing = feature * steps / 50 + random.normal(size=800)
    steady = feature + random.normal(size=800)
    change, p = change_of_share(growing, feature, steps, steps, random)
    assert change > 0.2 and p < 0.01
    assert change_of_share(steady, feature, steps, steps, random)[1] > 0.05


def test_groups_are_numbered_by_all_of_their_keys():
    keys = [np.array([1, 1, 2, 2, 1]), np.array(["a", "b", "a", "a", "a"])]
    assert numbered(*keys).tolist() == [0, 1, 2, 2, 0]
