import numpy as np
import pytest
from conftest import write_run
from transformers import AutoTokenizer

from workbench import StopRule, StopSpec, length_reward, make_recipe
from workbench.runs.run import Run
from workbench.studies.arms import train_arms
from workbench.studies.ppo_learning import (
    AT_EOS,
    UP_TO_EOS,
    WHOLE,
    curves_up_to_eos,
    learned_curves,
    learning_arms,
    learning_table,
    noise_over_spread,
    preference_reward,
    ratio_of,
    reached_by_all,
    text_after_eos,
    time_ratio,
    up_to_eos,
)
from workbench.training.rewards import describe_reward

pytestmark = pytest.mark.slow

NAME = "reward_len"


@pytest.fixture(scope="module")
def tokenizer(starter_folder):
    return AutoTokenizer.from_pretrained(starter_folder)


@pytest.fixture(scope="module")
def rule(tokenizer):
    return StopRule(StopSpec(), tokenizer)


def test_the_reward_up_to_eos_reads_the_text_before_it_and_says_what_it_is(rule, tokenizer):
    reward = up_to_eos(length_reward(5), rule)
    first, second = tokenizer.encode("twelve chars"), tokenizer.encode("five!")
    ids = [[*second, tokenizer.eos_token_id, *first], first, [tokenizer.eos_token_id, *first]]
    texts = [tokenizer.decode(row, skip_special_tokens=True) for row in ids]
    assert length_reward(5)(texts) == [-12.0, -7.0, -7.0]
    assert reward(completions=texts, completion_ids=ids, prompts=["p"] * 3) == [0.0, -7.0, -5.0]
    about = describe_reward(reward)
    assert (about["name"], about["unit"], about["highest"]) == (
        f"{NAME}_up_to_eos",
        "characters from the target of 5",
        0.0,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory, rule):
    sizes = {"max_steps": 12, "max_completion_length": 24, "per_device_train_batch_size": 16, "learning_rate": 1e-3}
    arms = learning_arms(make_recipe("starter", **sizes), length_reward(20), rule, " the", weight=0.1, num_ppo_epochs=2)
    return train_arms(arms, out_dir=tmp_path_factory.mktemp("arms"), seeds=[0])


def test_each_arm_learns_from_its_own_reward_and_records_both(runs):
    for name, members in runs.items():
        rows = members[0].completions
        own = rows[f"{NAME}_up_to_eos"] if name == UP_TO_EOS else rows[NAME]
        assert rows["reward"].tolist() == pytest.approx((0.1 * own).tolist())
        legacy = name in (WHOLE, UP_TO_EOS)
        assert (rows["completion_tokens"] == 24).all() == legacy
        assert (rows[NAME] != rows[f"{NAME}_up_to_eos"]).any() == legacy
    curves = learned_curves(runs, NAME)
    assert {curve.unit for members in curves.values() for curve in members} == {"characters from the target of 20"}
    assert all(len(curve.y) == 12 for members in curves.values() for curve in members)
    equal = {name: (curves[name][0].y == one[0].y).all() for name, one in curves_up_to_eos(runs, NAME).items()}
    assert [name for name, same in equal.items() if not same] == [WHOLE]


def test_the_table_says_what_an_update_costs_and_when_a_reward_is_reached(runs):
    rng, goal = np.random.default_rng(0), reached_by_all(curves_up_to_eos(runs, NAME))
    table = learning_table(runs, NAME, goal, rng)
    longest = runs[AT_EOS][0].completions.groupby("step")["completion_tokens"].max()
    assert table.loc[WHOLE, "forward passes per update"] == 24
    assert table.loc[AT_EOS, "forward passes per update"] == longest.mean()
    assert np.isfinite(table["seconds to it"]).all() and table["low"].isna().all()
    assert time_ratio(runs, NAME, goal, rng).n == 1


def test_text_after_eos_is_noise_beside_the_reward_up_to_eos_and_there_is_none_with_a_stop(runs):
    table = text_after_eos(runs[WHOLE], NAME)
    assert len(table) == 12 and (table["share"] > 0).all() and (table["noise"] > 0).all()
    expected = table["noise"].mean() / table["spread"].mean()
    assert noise_over_spread(runs[WHOLE], NAME, np.random.default_rng(0)).estimate == pytest.approx(expected)
    assert (text_after_eos(runs[AT_EOS], NAME)[["share", "shift", "noise"]] == 0).all().all()


def test_a_ratio_over_seeds_has_an_interval_and_over_one_seed_none():
    found = ratio_of([2.0, 8.0], [1.0, 1.0], np.random.default_rng(0))
    assert found.estimate == pytest.approx(4.0) and found.low < 1 < found.high
    assert ratio_of([3.0], [2.0], np.random.default_rng(0)).estimate == pytest.approx(1.5)


def test_noise_is_measured_within_updates_so_that_learning_is_none(tmp_path):
    names = {"whole": "r", "cut": "r_up_to_eos"}
    rows = [{"step": s, names["whole"]: 10.0 * s + n, names["cut"]: 10.0 * s} for s in (1, 2) for n in (0, 2)]
    rows = [row | {"tokens_to_eos": 3, "completion_tokens": 8} for row in rows]
    table = text_after_eos([Run(write_run(tmp_path, completions=rows).path)], "r")
    assert table["noise"].tolist() == pytest.approx([2**0.5] * 2) and table["spread"].tolist() == [0.0, 0.0]
    assert table["shift"].tolist() == [1.0, 1.0]


def test_the_preference_model_tells_whole_sentences_it_never_saw_from_broken_ones():
    from workbench.toys.preferences import held_out_pairs
    from workbench.toys.starter import starter_corpus

    held_out = held_out_pairs(starter_corpus())
    reward, prompts = preference_reward(), [pair["prompt"] for pair in held_out]
    better, worse = (reward(prompts, [pair[kind] for pair in held_out]) for kind in ("chosen", "rejected"))
    assert np.mean(np.array(better) > np.array(worse)) > 0.8
