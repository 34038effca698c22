import asyncio
import functools
import inspect

import numpy as np
import pytest
import torch

from workbench.errors import ParameterError
from workbench.training.ppo_rewards import RewardFunctions, score
from workbench.training.rewards import distinct, name_of, validated

TEXTS = ["first", "second", "third"]


def answering(values):
    def odd(completions, **_):
        return values

    return odd


def test_what_a_function_returns_rightly_passes_as_it_is():
    for values in ([1, 2.5, None], [np.float32(1), np.int64(2), 3.0], list(torch.tensor([1.0, 2.0, 3.0]))):
        assert validated(answering(values))(completions=TEXTS) == values
    assert validated(answering(np.array([1.0, 2.0, 3.0])))(completions=TEXTS) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "reward function odd: returned None; expected a list of 3"),
        ([1.0, 2.0], "reward function odd: returned 2 values; expected a list of 3, one for each completion"),
        (1.0, "reward function odd: returned 1.0; expected a list of 3"),
        ("abc", "reward function odd: returned 3 values"),
        ([1.0, float("nan"), 2.0], r"reward function odd, row 1 \('second'\): returned nan; expected a finite number"),
        ([1.0, 2.0, float("-inf")], r"row 2 \('third'\): returned -inf"),
        ([1.0, "2", 3.0], r"row 1 \('second'\): returned '2'"),
    ],
)
def test_an_odd_answer_is_an_error_that_names_function_and_row(values, message):
    with pytest.raises(ParameterError, match=message):
        validated(answering(values))(completions=TEXTS)


def test_a_functions_error_keeps_its_type_and_names_the_function():
    calls = []

    def picky(completions, **_):
        calls.append(completions)
        return [1 / (text != "second") for text in completions]

    with pytest.raises(ZeroDivisionError) as caught:
        validated(picky)(completions=TEXTS, trainer_state=None)
    assert caught.value.__notes__ == ["raised by the reward function picky"] and len(calls) == 1


def test_models_and_their_names_are_left_to_trl():
    model = torch.nn.Linear(1, 1)
    assert [validated(each) for each in ("a/model", model)] == ["a/model", model]


def test_an_async_function_is_asked_for_finite_rewards_too():
    """TRL trained on its NaN without a word, and on its infinity with a gradient of 0."""

    class Later:
        async def __call__(self, completions, **_):
            return [1.0, float("inf"), 2.0]

    async def breaks(completions, **_):
        raise ConnectionError("no server")

    for reward in (Later(), functools.partial(Later())):
        checked = validated(reward, "later")
        assert inspect.iscoroutinefunction(checked)
        with pytest.raises(ParameterError, match=r"reward function later, row 1 \('second'\): returned inf"):
            asyncio.run(checked(completions=TEXTS))
    with pytest.raises(ConnectionError) as caught:
        asyncio.run(validated(breaks)(completions=TEXTS))
    assert caught.value.__notes__ == ["raised by the reward function breaks"]


def test_the_sum_is_weighted_and_a_none_adds_nothing():
    def some(completions, **_):
        return [1.0, None, 3.0]

    def every(completions, answer, **_):
        return answer

    sums, each = score([some, every], [2.0, 0.5], completions=TEXTS, answer=[10, 20, 30])
    assert sums == [7.0, 10.0, 21.0]
    assert each == {"some": [1.0, None, 3.0], "every": [10, 20, 30]}


def test_a_row_that_nobody_scores_is_named():
    with pytest.raises(ParameterError, match=r"row 1 \('second'\): every reward function .odd. returned None"):
        score([answering([1.0, None, 2.0])], [1.0], completions=TEXTS)


def test_functions_of_one_name_are_numbered():
    sums, each = score([answering([1] * 3), answering([2] * 3)], [1, 1], completions=TEXTS)
    assert sums == [3.0] * 3 and each == {"odd": [1] * 3, "odd_2": [2] * 3}
    assert distinct(["odd", "odd_2", "odd"]) == ["odd", "odd_2", "odd_3"]
    assert name_of(functools.partial(answering([1]))) == "odd"


def test_ids_of_the_data_set_do_not_pass_for_those_sampled():
    """As in TRL's GRPO; a data set of prompts and completions that is tokenized for SFT has such a column."""
    seen = []

    def reward(prompts, completions, completion_ids, **columns):
        seen.append((prompts, completion_ids, set(columns)))
        return [0.0] * len(completions)

    functions = RewardFunctions(reward)
    functions.begin({"prompt": ["a"], "completion": ["b"], "completion_ids": [[9]], "answer": ["c"]})
    functions.score_next(["decoded"], ["d"], [[5, 6]], None)
    assert seen == [(["a"], [[5, 6]], {"answer", "trainer_state"})]
