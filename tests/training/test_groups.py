import numpy as np
import pytest

from workbench.errors import ParameterError
from workbench.training.groups import check_groups, identical_groups


@pytest.mark.parametrize(
    ("prompts", "g", "message"),
    [
        (["a", "b"], 2, "group 0.*row 0 is 'a', row 1 is 'b'"),
        (["a", "a", "b", "c"], 2, "group 1.*row 3 is 'c'"),
        (["a", "a", "a"], 2, "expected a multiple"),
        (["a"], 0, "at least 1"),
    ],
)
def test_a_batch_not_made_of_groups_is_refused_by_group_and_row(prompts, g, message):
    with pytest.raises(ParameterError, match=message):
        check_groups(prompts, g)


def test_prompts_and_rows_with_arrays_are_compared():
    rows = [{"board": np.full((2, 2), n)} for n in (0, 0, 1)]
    check_groups(rows[:2], 2)
    with pytest.raises(ParameterError, match="group 0"):
        check_groups([rows[0], rows[2]], 2)


def test_rows_without_a_prompt_may_hold_nan():
    check_groups([{"environment": "a", "level": float("nan")} for _ in range(2)], 2)
    with pytest.raises(ParameterError, match="more than one prompt"):
        check_groups([{"environment": "a", "level": level} for level in (float("nan"), 1.0)], 2)


def test_identical_groups_are_named():
    assert identical_groups(["x", "x", "x", "y", "z", "z"], 2) == [0, 2]
