import json
import math
import random

import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import ParameterError
from workbench.training.groups import (
    GroupError,
    check_groups,
    duplicate_frequency,
    duplicate_report,
    group_advantages,
    identical_groups,
)


@pytest.mark.parametrize(
    ("prompts", "completions", "g", "message"),
    [
        (["a", "b"], None, 2, "group 0.*row 0 is 'a', row 1 is 'b'"),
        (["a", "a", "b", "c"], None, 2, "group 1.*row 3 is 'c'"),
        (["a", "a", "a"], None, 2, "no multiple"),
        (["a", "a"], ["x"], 2, "2 prompts but 1 completions"),
        (["a"], None, 0, "at least 1"),
    ],
)
def test_a_batch_that_is_not_made_of_groups_is_refused_by_group_and_row(prompts, completions, g, message):
    with pytest.raises(ParameterError, match=message):
        check_groups(prompts, completions, g)


def test_identical_groups_are_named():
    assert identical_groups(["x", "x", "x", "y", "z", "z"], 2) == [0, 2]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@settings(max_examples=50, deadline=None)
@given(
    rewards=st.lists(st.one_of(st.floats(-100, 100, width=32), st.just(math.nan)), min_size=12, max_size=12),
)
def test_advantages_equal_the_formula_of_trls_source(scale, rewards):
    from trl.trainer.utils import nanstd

    r, g = torch.tensor(rewards), 4
    mean = torch.nanmean(r.view(-1, g), dim=1).repeat_interleave(g)
    std = nanstd(r.view(-1, g), dim=1).repeat_interleave(g) if scale == "group" else nanstd(r).expand_as(r)
    expected = r - mean
    if scale != "none":
        expected = expected / (std + 1e-4)
    expected = torch.nan_to_num(expected, nan=0.0)
    torch.testing.assert_close(group_advantages(r, g, scale), expected, rtol=1e-4, atol=1e-4)


def test_a_group_of_equal_rewards_has_no_advantage():
    assert group_advantages(torch.tensor([1.0, 1.0, 0.0, 1.0]), 2).tolist()[:2] == [0.0, 0.0]


def test_the_report_counts_exact_normalised_and_reordered_repeats(tmp_path):
    prompts = ["What is 2+2?", "What is 2+2?", "what IS 2 + 2 ?", "is what 2 2", "Other", "Another", "More", "Last"]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
    for data in (prompts, path, Dataset.from_dict({"prompt": prompts})):
        report = duplicate_report(data, prompts_per_batch=4, progress=False)
        assert (report.rows, report.exact, report.normalised, report.same_words) == (8, 1, 2, 3)
        assert report.most_repeated == ((2, 0, "'What is 2+2?'"),)
        assert "1 of 8 rows" in report.verdict


def test_expected_duplicates_per_batch_agree_with_drawing_batches():
    prompts = ["a"] * 5 + ["b"] * 3 + [str(n) for n in range(42)]
    report = duplicate_report(prompts, prompts_per_batch=10, progress=False)
    rng = random.Random(0)
    draws = [rng.sample(prompts, 10) for _ in range(20_000)]
    extra = [10 - len(set(batch)) for batch in draws]
    assert report.per_batch == pytest.approx(sum(extra) / len(extra), rel=0.05)
    assert report.batches_with_duplicates == pytest.approx(sum(map(bool, extra)) / len(extra), abs=0.05)


def test_larger_batches_meet_more_duplicates():
    prompts = ["a"] * 4 + [str(n) for n in range(200)]
    shares = duplicate_frequency(prompts, [2, 8, 32])["share of batches"]
    assert shares.is_monotonic_increasing and shares.iloc[-1] > shares.iloc[0]


def test_conversational_prompts_count_by_their_messages():
    chat = [[{"role": "user", "content": text}] for text in ("hi", "hi", "ho")]
    assert duplicate_report(chat, prompts_per_batch=2, progress=False).exact == 1


@pytest.mark.parametrize(
    ("data", "fields", "message"),
    [
        ([], {}, "0 rows"),
        (["a"], {"prompts_per_batch": 8}, "1 rows"),
        ("nowhere.jsonl", {}, "no such JSONL"),
        (Dataset.from_dict({"text": ["a"]}), {}, "the data set has"),
    ],
)
def test_data_without_prompts_are_refused(data, fields, message):
    with pytest.raises((GroupError, ParameterError), match=message):
        duplicate_report(data, progress=False, **fields)
