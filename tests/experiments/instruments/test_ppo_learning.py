import numpy as np
import pytest
from transformers import AutoTokenizer

from workbench import StopSpec, length_reward
from workbench.curves import seed_interval
from workbench.errors import ParameterError
from workbench.experiments.instruments.ppo_learning import preference_reward, ratio_of, up_to_eos
from workbench.generation import StopRule
from workbench.training.rewards import describe_reward

pytestmark = pytest.mark.slow


def test_the_reward_up_to_eos_reads_text_before_it_and_says_so(starter_folder):
    tokenizer = AutoTokenizer.from_pretrained(starter_folder)
    reward = up_to_eos(length_reward(5), StopRule(StopSpec(), tokenizer))
    first, second = tokenizer.encode("twelve chars"), tokenizer.encode("five!")
    ids = [[*second, tokenizer.eos_token_id, *first], first, [tokenizer.eos_token_id, *first]]
    texts = [tokenizer.decode(row, skip_special_tokens=True) for row in ids]
    assert length_reward(5)(texts) == [-12.0, -7.0, -7.0]
    assert reward(completions=texts, completion_ids=ids, prompts=["p"] * 3) == [0.0, -7.0, -5.0]
    about = describe_reward(reward)
    assert about["name"] == "reward_len_up_to_eos"
    assert (about["unit"], about["highest"]) == ("characters from the target of 5", 0.0)


def test_a_ratio_has_an_interval_over_seeds_and_none_for_one():
    found = ratio_of([2.0, 8.0], [1.0, 1.0], np.random.default_rng(0))
    assert found.estimate == pytest.approx(4.0) and found.low < 1 < found.high
    assert ratio_of([3.0], [2.0], np.random.default_rng(0)).above(1)[0] is None


def test_what_a_ratio_could_show_is_a_factor_of_the_bound():
    first, second = [2.0, 8.0, 4.0], [1.0, 1.0, 1.0]
    found = ratio_of(first, second, np.random.default_rng(0))
    doubled = ratio_of([2 * one for one in first], second, np.random.default_rng(0))
    logs = seed_interval(np.log(first), np.random.default_rng(0), statistic=np.mean)
    assert found.detectable == pytest.approx(np.exp(logs.detectable)) == pytest.approx(doubled.detectable)
    assert found.above(4)[1].endswith(
        f"holds 4; {found.detectable:.2g} times that would show in 80% of such experiments"
    )


def test_the_preference_model_prefers_unseen_whole_sentences():
    from workbench.experiments.toys.preferences import HELD_OUT, preference_pairs
    from workbench.experiments.toys.starter import starter_corpus

    pairs = preference_pairs(starter_corpus())
    held_out = pairs[:: len(pairs) // HELD_OUT]
    reward, prompts = preference_reward(), [pair["prompt"] for pair in held_out]
    better, worse = (reward(prompts, [pair[kind] for pair in held_out]) for kind in ("chosen", "rejected"))
    assert np.mean(np.array(better) > np.array(worse)) > 0.8


@pytest.mark.parametrize(
    "first, second", [([1.0, 0], [1, 1]), ([-4.0], [-2]), ([1.0], [0]), ([1, np.nan], [1, 1]), ([1, 2, 3], [2])]
)
def test_a_ratio_of_what_is_not_positive_or_paired_is_refused(first, second):
    """Of -4 and -2 it was 2, of 1 and 0 infinite, and one number stood for all seeds."""
    with pytest.raises(ParameterError, match="expected a pair of positive numbers a seed"):
        ratio_of(first, second, np.random.default_rng(0))
