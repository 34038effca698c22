import re

import pytest

from workbench import exact_match_reward
from workbench.errors import ParameterError
from workbench.experiments.recipes import load_prompts
from workbench.experiments.tasks import EXAMPLES, TASKS, in_words, task_rows


@pytest.mark.parametrize("task", TASKS)
def test_held_out_questions_are_not_trained_or_shown(task):
    questions = {split: {row["prompt"][-1]["content"] for row in task_rows(task, split)} for split in ("train", "test")}
    shown = {message["content"] for message in task_rows(task, examples=EXAMPLES)[0]["prompt"][:-1]}
    assert len(questions["train"]) > 100 and len(questions["test"]) > 40
    assert not questions["train"] & questions["test"]
    assert not shown & (questions["train"] | questions["test"])


def test_no_sum_is_held_out_in_the_other_order():
    pairs = [re.findall(r"\d+", row["prompt"][-1]["content"]) for row in task_rows("sums") + task_rows("sums", "test")]
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)


@pytest.mark.parametrize("task", TASKS)
def test_no_answer_stands_in_its_question(task):
    for row in task_rows(task):
        number = re.search(r"\d+", row["answer"])[0]
        assert number not in re.findall(r"\d+", row["prompt"][-1]["content"])


def test_answers_are_right():
    for row in task_rows("sums"):
        a, b = map(int, re.findall(r"\d+", row["prompt"][-1]["content"]))
        assert row["answer"] == f"<answer>{a + b}</answer>"
    assert [in_words(n) for n in (0, 19, 20, 21, 100, 110, 999)] == [
        "zero", "nineteen", "twenty", "twenty-one", "one hundred", "one hundred ten", "nine hundred ninety-nine"
    ]  # fmt: skip


def test_worked_examples_end_without_a_tag_where_asked():
    prompt = task_rows("sums", examples=3, untagged=1)[0]["prompt"]
    replies = [message["content"] for message in prompt if message["role"] == "assistant"]
    assert ["<answer>" in reply for reply in replies] == [False, True, True]


def test_plain_form_has_no_tag_anywhere():
    row = task_rows("number-words", tag=False)[0]
    assert row["answer"].isdigit()
    assert not any("<answer>" in message["content"] for message in row["prompt"])


def test_reward_is_1_for_the_right_answer_alone():
    reward = exact_match_reward("answer")
    replies = [[{"role": "assistant", "content": text}] for text in ("<answer>7</answer>", "<answer>8</answer>", "7")]
    assert reward(replies, answer=["<answer>7</answer>"] * 3) == [1.0, 0.0, 0.0]


def test_tasks_are_data_sets_with_held_out_splits():
    assert load_prompts("sums").to_list() == task_rows("sums")
    assert load_prompts("number-words", "test").to_list() == task_rows("number-words", "test")


@pytest.mark.parametrize("bad", [{"task": "sum"}, {"split": "dev"}, {"examples": 9}, {"examples": 1, "untagged": 2}])
def test_what_a_task_does_not_have_is_refused(bad):
    with pytest.raises(ParameterError, match="expected"):
        task_rows(**{"task": "sums"} | bad)
