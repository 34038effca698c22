"""Each feature on a completion that has it, and answers that are the same in other clothes."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import ParameterError
from workbench.reward.answers import boxed, contains_answer, final_answer, is_right, marked_answer, wanted
from workbench.reward.features import FEATURES, checked, feature, load_features, measured, named, right

PLAIN = {"completion": "so it is a sum", "prompt": "What is the sum of 2 and 3?", "answer": "5"}
SHOWN = {
    "length": {"tokens": 500},
    "stopping": {"finish_reason": "stop"},
    "closed tags": {"completion": "<think>a</think>"},
    "code fences": {"completion": "```python\n1\n```"},
    "answer box": {"completion": r"\boxed{5}"},
    "answer anywhere": {"completion": "4 or 5 or 6"},
    "numbers": {"completion": "1, 2.5 and 1,000"},
    "repetition": {"completion": "a b c a b c a b c"},
    "copied prompt": {"completion": "what is the sum of all"},
    "capitals": {"completion": "SUM"},
    "other alphabets": {"completion": "ответ 答案"},
    "symbols": {"completion": "!!! a"},
    "lines": {"completion": "a\nb\nc"},
    "hedging words": {"completion": "Wait, maybe I think so"},
    "tool calls": {"completion": '<tool_call>{"name": "add"}</tool_call>'},
    "failed tool calls": {"completion": "<tool_response>Traceback: timed out</tool_response>"},
}


@pytest.mark.parametrize("each", FEATURES, ids=lambda each: each.name)
def test_a_feature_is_larger_where_a_completion_has_it(each):
    without = each(**PLAIN | ({"finish_reason": "length"} if each.name == "stopping" else {}))
    assert each(**PLAIN | SHOWN[each.name]) > without


def test_what_is_not_recorded_is_not_known():
    assert math.isnan(named("stopping")("text")) and math.isnan(named("answer anywhere")("text"))
    assert named("tool-calls") is named("tool calls")


@pytest.mark.parametrize(
    "text, answer, right, anywhere",
    [
        ("42", 42, True, True),
        ("<answer> 42 </answer>", "42", True, True),
        (r"so \boxed{\text{42}}.", 42.0, True, True),
        ("41 <answer>43</answer> no, 42", "42", False, True),
        ("It is $1,234.", "1234", True, True),
        ("142", "42", False, False),
        ("42.5", "42", False, False),
        ("Reasoning.\n#### 42", "6*7=42\n#### 42", True, True),
        ("", "42", False, False),
        ("paris.", "Paris", True, True),
        ("4", ["four", "4"], True, True),
        ("42", None, False, False),
        ("42", float("nan"), False, False),
        ("B", {"ground_truth": "B"}, True, True),
        (r"\boxed{42", "42", False, True),
        ("107+172=279", "279", True, True),
        ("107+279=386", "279", False, True),
        ("x=5", "x=5", True, True),
        ("It holds in 12 cases. The answer is (B).", "B", True, True),
        ("The answer is B, because A has 3 sides", "B", True, True),
        ("The answer is Berlin", "B", False, False),
        ("A. The answer is B", "A", False, True),
        ("I choose Paris.", "Paris", False, True),
        ("It is not Paris.", "Paris", False, True),
        ("B or A", "A", False, True),
        ("<answer>C</answer> The answer is B", "B", False, True),
        ("The answer is B or C", "B", False, True),
        ("Find facts on quartz?", "quartz", False, True),
        ("First 10 of 24. The discount is 42%.", "42%", True, True),
        ("She walks 12 km.", "12 km", True, True),
        ("She walks 12 km in 3 hours.", "12 km", False, True),
        ("It is 12 kmh", "12 km", False, False),
        ("The speed is 12 km/h.", "12 km", False, True),
        ("Answer: A and C", "A", False, True),
        ("Answer: A, B and C", "A", False, True),
        ("The answer is A, a prime", "A", True, True),
        ("It is .5", "5", False, False),
        ("It is .5", ".5", True, True),
        ("It holds for 3..5", "5", True, False),
        ("The answer is \u221242.", "42", False, False),
        ("The answer is \u221242.", "-42", True, True),
        ("The answer is -42.", "\u221242", True, True),
        ("so x = 1e-5", "-5", False, False),
        ("so x = 1e-5", "1E\u22125", True, True),
        ("It is 1e5", "5", False, False),
        ("It is 1.5e3", "3", False, False),
        ("The match ended 3-2.", "2", True, True),
        ("It lasted from 1999-2004.", "2004", True, True),
        ("f(x)-2", "-2", False, True),
        ("so x=-5", "-5", True, True),
    ],
)
def test_an_answer_is_right_in_any_clothes_and_nowhere_else(text, answer, right, anywhere):
    assert (is_right(text, answer), contains_answer(text, answer)) == (right, anywhere)


@pytest.mark.parametrize("tokens", [[7, 8, 9], (7, 8, 9), np.array([7, 8, 9]), np.zeros((), int) + 3, "3"], ids=repr)
def test_tokens_may_be_their_ids(tokens):
    assert named("length")("text", tokens=tokens) == math.log1p(3)


def test_an_empty_text_has_an_empty_answer():
    assert final_answer(" \n") == "" and wanted("") == []


@pytest.mark.parametrize(
    "text, answer",
    [
        (r"<answer>\boxed{42}</answer>", "42"),
        (r"<answer> $\boxed{42}$ </answer>", 42),
        ("<answer>(B)</answer>", "B"),
        ("<answer>B</answer>", "(B)"),
        (r"\boxed{\text{(B)}}", "B"),
        (r"\boxed{42\%}", "42"),
        (r"\boxed{1{,}234}", "1234"),
    ],
)
def test_an_answer_in_common_dress_is_right(text, answer):
    assert is_right(text, answer) and not is_right(text, "C") and not is_right(text, "7")


@pytest.mark.parametrize(
    "answer", [None, "", [], {"tests": "assert f(2) == 4"}, pd.NA, float("nan"), np.float32("nan")]
)
def test_an_answer_that_is_not_known_makes_nothing_wrong(answer):
    assert np.isnan(right([{"completion": "4", "answer": answer}])).all()
    assert np.isnan(named("answer anywhere")("4", answer=answer))


def _boxed_by_its_braces(text):
    for start in reversed([match.end() for match in re.finditer(r"\\(?:boxed|fbox)\s*\{", text)]):
        depth = 1
        for place in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if not depth:
                return text[start:place]
    return None


PARTS = [
    "{",
    "}",
    "\\boxed{",
    "\\fbox {",
    "<answer>",
    "</answer>",
    "<ANSWER>",
    "</Answer>",
    "<b>",
    "</b>",
    "<b1>",
    "</b1>",
]
PARTS += ["<tool_response>", "</tool_response>", " error ", "a", "\n", "<", ">", "/"]


@given(st.lists(st.sampled_from(PARTS)).map("".join))
def test_what_is_closed_is_found_as_by_looking_for_each_pair(text):
    assert boxed(text) == _boxed_by_its_braces(text)
    if tags := re.findall("<answer>(.*?)</answer>", text, re.DOTALL | re.IGNORECASE):
        box = _boxed_by_its_braces(tags[-1])
        assert marked_answer(text) == (tags[-1] if box is None else box)
    else:
        assert marked_answer(text) == _boxed_by_its_braces(text)
    assert named("closed tags")(text) == len(re.findall(r"<(\w+)>(?=.*?</\1>)", text, re.DOTALL))
    answers = re.findall("<tool_response>(.*?)</tool_response>", text, re.DOTALL)
    assert named("failed tool calls")(text) == sum("error" in answer for answer in answers)


@pytest.mark.parametrize("part", ["\\boxed{", "<answer>", "<think>", "<tool_response>"])
def test_a_part_that_is_repeated_without_end_is_read(part):
    text = part * 30_000  # to look for the end of each of them would take half an hour
    assert marked_answer(text) is None and not named("closed tags")(text) and not named("failed tool calls")(text)


def test_own_features_have_names_of_their_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from workbench.reward import feature\n@feature\ndef shouts(completion, **row):\n    return 1\n")
    (shouts,) = load_features(file)
    assert checked([shouts])[-1].name == "shouts"

    @feature
    def length(completion, **row):
        return 0

    for wrong, says in (
        ([length], "two features have the name 'length'"),
        ([len], "expected a function that `@feature`"),
        (shouts, r"features: 'shouts' alone; expected a list of features, such as \[shouts\]"),
    ):
        with pytest.raises(ParameterError, match=says):
            checked(wrong)
    with pytest.raises(ParameterError, match=r"add `\*\*row`"):
        feature(lambda completion: 1)
    with pytest.raises(ParameterError, match="defines no feature"):
        file.write_text("x = 1\n")
        load_features(file)


def test_a_feature_that_raises_names_the_completion():
    @feature
    def first_word(completion, **row):
        return len(completion.split()[0])

    with pytest.raises(ParameterError, match=r"first word, completion 1 \(''\): IndexError"):
        measured([{"completion": "a"}, {"completion": ""}], [first_word])


def test_an_infinite_value_of_a_feature_is_an_error():
    with pytest.raises(ParameterError, match="it returned -inf; expected a finite number, or None"):
        measured([{"completion": "", "prompt": "p"}], [feature(lambda completion, **_: float("-inf"))])


def test_a_sign_or_a_fourth_digit_makes_another_number():
    assert not is_right("<answer>1,2345</answer>", "12345") and is_right("<answer>1,234,567</answer>", "1234567")
    assert [contains_answer(text, "42") for text in ("-42", "it is -42", "5-42", "(x)-42", "42")] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert contains_answer("it is -42", "-42")
