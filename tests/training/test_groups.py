import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import ParameterError
from workbench.studies.duplicate_prompts import group_advantages
from workbench.training.groups import check_groups, identical_groups


@pytest.mark.parametrize(
    ("prompts", "g", "message"),
    [
        (["a", "b"], 2, "group 0.*row 0 is 'a', row 1 is 'b'"),
        (["a", "a", "b", "c"], 2, "group 1.*row 3 is 'c'"),
        (["a", "a", "a"], 2, "no multiple"),
        (["a"], 0, "at least 1"),
    ],
)
def test_a_batch_that_is_not_made_of_groups_is_refused_by_group_and_row(prompts, g, message):
    with pytest.raises(ParameterError, match=message):
        check_groups(prompts, g)


def test_identical_groups_are_named():
    assert identical_groups(["x", "x", "x", "y", "z", "z"], 2) == [0, 2]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@settings(max_examples=50)
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
