"""A reward function asked before a training: what is paid by mistake, and what breaks."""

import asyncio
import itertools
import json
import random
import re
import signal
import sys
import time

import numpy as np
import pandas as pd
import pytest
from conftest import call

from workbench.errors import ParameterError
from workbench.reward import try_reward
from workbench.reward.call import load_function, time_limit
from workbench.reward.trial import NOTE, PROBLEM, WARNING

ROWS = [
    {"prompt": f"What is {a} times {b}?", "answer": str(a * b)}
    for a, b in [(6, 7), (12, 12), (40, 55), (3, 5), (19, 91), (8, 9)]
]


def tag(text: str) -> str | None:
    match = re.fullmatch(r".*<answer>(.*)</answer>\s*", text, re.DOTALL)
    return match and match[1].strip().rstrip(".").replace(",", "").strip("$*").removesuffix(".0")


def careful(completions, answer, **columns):
    return [float(a is not None and tag(text) == a) for text, a in zip(completions, answer, strict=True)]


def says(report, severity: str) -> str:
    return "\n".join(finding.says for finding in report.findings if finding.severity == severity)


def test_a_careful_function_has_no_problem():
    report = try_reward(careful, ROWS)
    assert says(report, PROBLEM) == ""
    assert report.form == "an answer tag" and (report.right, report.wrong) == (1, 0)
    assert says(report, WARNING) == (
        "it does not pay for a right answer with more text after it (6 of 6); LaTeX: \\text{...} (6 of 6)"
    )


@pytest.mark.parametrize("grows", [False, True], ids=["short", "long"])
def test_a_reward_for_lengths_alone_is_no_judge(grows):
    def reward(completions, **columns):
        return [len(text) / 100 * (1 if grows else -1) for text in completions]

    rows = [{"prompt": f"{n} times 7?", "answer": str(n * 7)} for n in range(9, 30)]
    assert "as `answer` has it, earns no more than a wrong one in any of" in says(try_reward(reward, rows), PROBLEM)


def paid(rule):
    """Make a reward function from a rule for one text, its right answer, its prompt and whether it is right."""

    def reward(completions, answer, prompts, **columns):
        rows = zip(completions, answer, prompts, careful(completions, answer), strict=True)
        return [float(rule(*row)) for row in rows]

    return reward


def less_the_mean(completions, answer, **columns):
    values = careful(completions, answer)
    return [value - sum(values) / len(values) for value in values]


def by_place(completions, answer, **columns):
    return [value + place for place, value in enumerate(careful(completions, answer))]


def changes_the_first(completions, answer, **columns):
    values = careful(completions, answer)
    completions[0] = "changed"
    return values


def takes_a_test_away(completions, answer, tests, **columns):
    for each in tests:
        each[:-1] = []
        each[0] += 1
    return careful(completions, answer)


def of_few(completions, answer, **columns):
    if len(completions) > 6:
        raise ValueError("too many")
    return careful(completions, answer)


def without_columns(completions, answer):
    return careful(completions, answer)


def of_messages(completions, answer, **columns):
    return careful([message[0]["content"] for message in completions], answer)


def near(text, answer):
    number = tag(text)
    return bool(number and number.isdigit() and answer) and abs(int(number) - int(answer)) < 3


def last_number(text, answer, prompt, right):
    return int(re.findall(r"\d+", text)[-1]) == int(answer)


FAULTS = {
    "answer anywhere": (
        paid(lambda text, answer, prompt, right: answer is not None and answer in text),
        PROBLEM,
        [
            "the right answer first, a wrong one at the end in 6 of 6",
            "many guesses in the form",
            "answer within another",
        ],
    ),
    "tags": (
        paid(lambda text, answer, prompt, right: "</answer>" in text),
        PROBLEM,
        [
            "a right answer, as `answer` has it, earns no more than a wrong one in any of 7 forms",
            "it pays 1 for an answer tag, right or wrong",
        ],
    ),
    "each tag": (
        paid(lambda text, answer, prompt, right: len(re.findall(rf"<answer>{answer}</answer>", text))),
        PROBLEM,
        ["it pays more for the right answer 3 times: 3 instead of 1"],
    ),
    "a little for length": (
        paid(lambda text, answer, prompt, right: right * (1 + min(0.2, len(text) / 1e4))),
        WARNING,
        ["it pays more for long nonsense before the right answer: 1.2 instead of 1"],
    ),
    "of the prompt": (
        paid(lambda text, answer, prompt, right: tag(prompt) == answer),
        PROBLEM,
        ["it scores the prompt, not the completion"],
    ),
    "sign": (
        paid(lambda text, answer, prompt, right: -right),
        PROBLEM,
        ["a right answer earns less than a wrong one in an answer tag: -1, and 0"],
    ),
    "near": (
        paid(lambda text, answer, prompt, right: near(text, answer)),
        WARNING,
        ["it pays for a number nearby in 6 of 6"],
    ),
    "digits": (
        paid(lambda text, answer, prompt, right: re.findall(r"\d+", tag(text) or "")[:1] == [answer]),
        PROBLEM,
        ["it pays for the number with the other sign in 6 of 6"],
    ),
    "None": (
        lambda completions, answer, **columns: [
            None if tag(t) is None else float(tag(t) == a) for t, a in zip(completions, answer, strict=True)
        ],
        WARNING,
        ["it gives None for a box; four hashes"],
    ),
    "half for the form": (
        paid(lambda text, answer, prompt, right: 0.5 * ("</answer>" in text) + right),
        NOTE,
        ["a wrong answer in an answer tag earns 0.5, nothing 0: the form alone is paid"],
    ),
    "nothing": (
        paid(lambda text, answer, prompt, right: right or not text.strip()),
        PROBLEM,
        ["it pays for nothing in 6 of 6", "it pays for white space"],
    ),
    "prompt": (
        paid(lambda text, answer, prompt, right: right or prompt in text),
        PROBLEM,
        ["it pays for the prompt copied in 6 of 6"],
    ),
    "length": (
        paid(lambda text, answer, prompt, right: right + min(1.0, len(text) / 500)),
        PROBLEM,
        ["it pays for long nonsense in 6 of 6"],
    ),
    "raises": (
        paid(last_number),
        PROBLEM,
        ["it raises IndexError: list index out of range, for nothing; white space"],
    ),
    "raises without an answer": (
        paid(lambda text, answer, prompt, right: last_number(text + " 0", answer, prompt, right)),
        WARNING,
        ["it raises TypeError for a row whose `answer` is None"],
    ),
    "one value": (lambda completions, **columns: [1.0], PROBLEM, ["returned 1 values; expected a list of"]),
    "no list": (lambda completions, **columns: 1.0, PROBLEM, ["returned 1.0; expected a list of"]),
    "words": (
        lambda completions, **columns: ["good"] * len(completions),
        PROBLEM,
        ["returned 'good'; expected a number"],
    ),
    "nan": (paid(lambda *row: float("nan")), PROBLEM, ["returned nan; expected a finite number"]),
    "place": (by_place, PROBLEM, ["the same completions in another order earn other rewards"]),
    "batch": (less_the_mean, WARNING, ["a completion asked alone earns another reward"]),
    "signature": (without_columns, PROBLEM, ["TRL also passes prompts, completion_ids"]),
    "no answer is free": (
        paid(lambda text, answer, prompt, right: 0 if tag(text) is None else 2 * right - 1),
        WARNING,
        [
            "a wrong answer costs 1, and nothing is lost for nothing; white space",
            "no answer is better than a wrong one",
        ],
    ),
    "a part for the answer anywhere": (
        paid(lambda text, answer, prompt, right: 1 if right else 0.4 * (str(answer) in text)),
        NOTE,
        ["it pays a part for the right answer first, a wrong one at the end (0.4)", "a wrong answer earns 0"],
    ),
    "nested changes": (takes_a_test_away, PROBLEM, ["it changes the completions or the rows"]),
    "large batch": (of_few, PROBLEM, ["it raises ValueError: too many, for several completions at once; a call after"]),
    "exit": (lambda completions, **columns: sys.exit(3), PROBLEM, ["it ends the process (SystemExit)"]),
    "texts for numbers": (
        lambda completions, answer, **columns: [str(value) for value in careful(completions, answer)],
        PROBLEM,
        ["returned '0.0'; expected a number"],
    ),
    "a function that makes one": (lambda a=1, b=2: careful, PROBLEM, ["returned a function, careful, so that"]),
    "first digits": (
        paid(lambda text, answer, prompt, right: answer is not None and bool(tag(text)) and tag(text) in answer),
        PROBLEM,
        ["it pays for the first digits of the right answer in 6 of 6"],
    ),
    "begins with it": (
        paid(lambda text, answer, prompt, right: answer is not None and (tag(text) or "").startswith(answer)),
        PROBLEM,
        ["it pays for more digits behind the right answer in 6 of 6"],
    ),
    "length up to a limit": (
        paid(lambda text, answer, prompt, right: right * (0 if len(text) > 4000 else 1 + len(text) / 4000)),
        WARNING,
        ["it pays more for a paragraph of nonsense before it: 1.22 instead of 1.01"],
    ),
    "changes": (changes_the_first, PROBLEM, ["it changes the completions or the rows"]),
    "messages": (of_messages, PROBLEM, ["it needs completions that are messages"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault):
    reward, severity, findings = FAULTS[fault]
    rows = [{**row, "tests": [1, 2]} for row in ROWS]
    found = says(try_reward(reward, rows), severity)
    assert rows[0]["tests"] == [1, 2]
    assert [finding for finding in findings if finding not in found] == [], found


def test_a_random_function_is_named_and_nothing_that_follows():
    numbers = itertools.count()
    report = try_reward(lambda completions, **c: [float(next(numbers) % 7) for _ in completions], ROWS)
    assert "the same completions asked twice earn other rewards" in says(report, WARNING)
    assert "another order" not in str(report.findings)


def half_at_random(completions, answer, numbers=random.Random(0), **columns):  # noqa: B008  # a state between calls
    return [value / 2 + numbers.random() / 2 for value in careful(completions, answer)]


def more_each_call(completions, answer, calls=itertools.count(), **columns):  # noqa: B008  # a state between calls
    return [value + next(calls) / 50 for value in careful(completions, answer)]


@pytest.mark.parametrize("reward", [half_at_random, more_each_call, less_the_mean])
def test_what_the_call_decides_is_no_pay_for_a_wrong_answer(reward):
    report = try_reward(reward, ROWS)
    assert says(report, PROBLEM) == ""
    assert "earn other rewards" in says(report, WARNING) or "earns another reward" in says(report, WARNING)


def test_a_tenth_for_the_form_is_a_note_alone():
    report = try_reward(paid(lambda text, answer, prompt, right: 1 if right else 0.1 * ("</answer>" in text)), ROWS)
    assert says(report, PROBLEM) == "" and "whose `answer` is None" not in says(report, WARNING)
    assert "earns 0.1, nothing 0: the form alone is paid" in says(report, NOTE)


def test_a_constant_on_top_of_a_reward_changes_no_problem():
    def found(constant):
        reward = paid(lambda text, answer, prompt, right: constant + (answer is not None and answer in text))
        return says(try_reward(reward, ROWS), PROBLEM)

    assert found(-1) == found(0) and "the right answer first, a wrong one at the end in 6 of 6" in found(-1)


def test_the_text_of_an_unknown_answer_is_asked_too():
    def by_text(completions, answer, **columns):
        return careful(completions, map(str, answer))

    warned = [finding for finding in try_reward(by_text, ROWS).findings if "whose `answer` is" in finding.says]
    assert [finding.says for finding in warned] == [
        f"it pays 1 for a row whose `answer` is {a}" for a in ("None", "nan")
    ]
    assert warned[0].example == "'<answer>None</answer>'"


def test_a_row_without_any_score_is_a_note():
    def of_sums(completions, answer, **columns):
        return [None if a == "42" else value for a, value in zip(answer, careful(completions, answer), strict=True)]

    report = try_reward(of_sums, ROWS)
    assert says(report, NOTE) == "it gives None for all completions of 1 of 6 rows" and says(report, PROBLEM) == ""


@pytest.mark.parametrize("rows", [ROWS, [{"prompt": row["prompt"]} for row in ROWS]], ids=["answers", "none"])
def test_a_reward_that_scores_no_row_is_a_problem(rows):
    report = try_reward(lambda completions, **columns: [None] * len(completions), rows)
    assert "it gives None for every completion: it scores none of your rows" in says(report, PROBLEM)


def test_of_a_slow_function_two_prompts_are_asked(monkeypatch):
    monkeypatch.setattr("workbench.reward.trial._SLOW", -1.0)
    report = try_reward(careful, ROWS)
    assert says(report, NOTE).endswith("Only 2 of your prompts were asked") and says(report, PROBLEM) == ""


async def asked_later(completions, answer, **columns):
    return careful(completions, answer)


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(tag(solution_str) == ground_truth), "acc": 1}


def pair(ground_truth, response):
    return tag(response) == ground_truth


def pair_with_more(response, answer, **_):
    return tag(response) == answer, "a tuple, as some of verl's"


def scores(data_sources, solution_strs, ground_truths, extra_infos):
    return [{"score": float(tag(text) == truth)} for text, truth in zip(solution_strs, ground_truths, strict=True)]


def of_a_list(solution_str, ground_truth):
    return float(tag(solution_str) in list(ground_truth["target"]))


@pytest.mark.parametrize(
    "function, column, convention",
    [
        (asked_later, "answer", "TRL's convention"),
        (compute_score, "reward_model", "verl's convention"),
        (scores, "reward_model", "verl's convention of batches"),
        (pair, "solution", "a completion and an answer"),
        (pair_with_more, "answer", "a completion and an answer"),
    ],
)
def test_the_conventions_are_called(function, column, convention):
    rows = [
        {"prompt": row["prompt"], column: {"ground_truth": row["answer"]} if "model" in column else row["answer"]}
        for row in ROWS
    ]
    chats = [row | {"prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
    for data in (rows, chats) if "verl" in convention else (rows,):
        report = try_reward(function, data)
        assert (report.convention, report.right, report.wrong) == (convention, 1, 0)
        assert says(report, PROBLEM) == ""


def with_prompt(prompt, response, answer):
    return float(tag(response) == answer and prompt.startswith("What"))


def with_a_column(response, answer, level):
    return float(tag(response) == answer) * level


def with_all(completion, **row):
    return float(tag(completion) == row["answer"] and row["prompt"].startswith("What")) * row["level"]


def with_the_others(response, answer, **row):
    return float(tag(response) == answer) * row["level"]


@pytest.mark.parametrize("function", [with_prompt, with_a_column, with_all, with_the_others])
def test_what_a_function_asks_for_is_given_by_its_name(function):
    report = try_reward(function, [row | {"level": 1} for row in ROWS])
    assert (report.right, report.wrong, says(report, PROBLEM)) == (1, 0, "")


def test_a_prompt_is_not_given_as_the_answer():
    def tagged(prompt, response):
        return float(response.strip().endswith("</answer>") and prompt.startswith("What"))

    assert "right or wrong" in says(try_reward(tagged, ROWS), PROBLEM)


def test_right_answers_in_an_array_are_read():
    rows = [{"prompt": "p", "reward_model": {"ground_truth": {"target": np.array([a, f"{a} city"])}}} for a in "BC"]
    report = try_reward(of_a_list, rows)
    assert (report.right, report.wrong) == (1, 0) and says(report, PROBLEM) == ""


def test_in_a_notebook_an_async_function_is_asked_on_one_loop():
    lock = asyncio.Semaphore(1)

    async def later(text, answer):
        async with lock:
            await asyncio.sleep(0)
        return careful([text], [answer])[0]

    async def each(completions, answer, **columns):
        return await asyncio.gather(*map(later, completions, answer))

    async def cell():
        return try_reward(each, ROWS)

    report = asyncio.run(cell())
    assert report.right == 1 and says(report, PROBLEM) == ""


def equal(gold):
    """Make a reward for the last `<answer>` that compares it with what a function takes from the answer."""

    def reward(completions, answer, **columns):
        found = [re.findall("<answer>(.*?)</answer>", text, re.DOTALL) for text in completions]
        return [float(a == a and tags[-1:] == [gold(str(a))]) for tags, a in zip(found, answer, strict=True)]

    return reward


def last_word(completions, answer, **columns):
    words = [re.findall(r"\b(yes|no|maybe)\b", text.lower())[-1:] for text in completions]
    return [float(word == [a]) for word, a in zip(words, answer, strict=True)]


def last_in_tag(completions, answer, **columns):
    found = [re.findall(r"-?\d+(?:\.\d+)?", (tag(text) or ""))[-1:] for text in completions]
    return [float(number == [a]) for number, a in zip(found, answer, strict=True)]


def after_the_tag(completions, answer, **columns):  # as many notebooks have it: all of a text without a tag
    parts = [text.split("<answer>")[-1].split("</answer>")[0].strip() for text in completions]
    return [float(part == a) for part, a in zip(parts, answer, strict=True)]


def by_the_step(completions, answer, trainer_state, **columns):
    return [value * min(1, trainer_state.global_step / 100) for value in careful(completions, answer)]


HEALTHY = {
    "letters in a box": (equal(lambda a: a[-2]), [f"Hence \\boxed{{{letter}}}" for letter in "ABCDAB"]),
    "names after hashes": (equal(lambda a: a.rpartition(" ")[2]), ["It is #### Paris", "It is #### Rome"]),
    "a line at the end": (
        lambda completions, answer, **c: [
            float(re.findall(r"(?i)Answer\s*:\s*([^\n]+)", text)[-1:] == [a])
            for text, a in zip(completions, answer, strict=True)
        ],
        [row["answer"] for row in ROWS],
    ),
    "decimals": (last_in_tag, ["3.5", "12.25", "0.75"]),
    "None as a label": (equal(str), ["None", "search", "None", "add"]),
    "maybe as a label": (last_word, ["yes", "no", "maybe", "yes"]),
    "thousands of digits": (equal(str), ["9" * 5000, "8" * 5000]),
    "no decimal": (equal(str), ["²", "³"]),
    "the state of the trainer": (by_the_step, [row["answer"] for row in ROWS]),
    "rewards one by one": (lambda answer, **c: iter(careful(answer=answer, **c)), [row["answer"] for row in ROWS]),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_sound_reward_has_no_problem(name):
    reward, answers = HEALTHY[name]
    report = try_reward(reward, [{"prompt": f"Question {k}", "answer": answer} for k, answer in enumerate(answers)])
    assert report.right > report.wrong and says(report, PROBLEM) == "", report


def test_a_column_keeps_its_own_name():
    def reward(completions, question, answer, **columns):
        return careful(completions, answer) if question else None

    report = try_reward(reward, [{"question": row["prompt"], "answer": row["answer"]} for row in ROWS])
    assert report.right == 1 and says(report, PROBLEM) == ""


def test_of_forms_that_are_paid_alike_the_tag_is_asked():
    report = try_reward(after_the_tag, ROWS)
    assert report.form == "an answer tag" and "more text" not in says(report, WARNING)


def test_prompts_are_messages_for_a_function_of_messages():
    def reward(prompts, completions, answer, **columns):
        assert prompts[0][-1]["content"]
        return of_messages(completions, answer)

    found = says(try_reward(reward, ROWS), PROBLEM)
    assert found == "it needs completions that are messages, and prompts that are texts give it texts"


def test_a_rank_in_a_batch_is_named_and_nothing_that_follows():
    def rank(completions, answer, **columns):
        order = np.argsort(np.argsort(careful(completions, answer), kind="stable"), kind="stable")
        return list(order / max(1, len(order) - 1))

    assert says(try_reward(rank, ROWS), PROBLEM) == (
        "the same completions in another order earn other rewards: it mixes up rows, or compares them"
    )


def test_an_interrupt_says_what_was_being_asked(capsys):
    def hangs(completions, **columns):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        try_reward(hangs, ROWS)
    assert capsys.readouterr().err == "hangs was being asked about 'The answer is 1.'\n"


def test_programs_are_not_asked_for_in_capitals():
    def runs(completions, answer, **columns):
        return [float(text == f"```\n{a}\n```") for text, a in zip(completions, answer, strict=True)]

    rows = [{"prompt": "Add.", "answer": f"def f(x):\n    return x + {k}"} for k in range(3)]
    assert not re.search("capital|LaTeX|bold|stop", says(try_reward(runs, rows, form="```\n{}\n```"), WARNING))


@pytest.mark.slow  # imports TRL
def test_a_function_gets_what_trl_passes():
    import inspect

    import trl

    from workbench.reward.call import _OF_TRL

    source = inspect.getsource(trl.GRPOTrainer._calculate_rewards)
    passed = set(re.findall(r'(?<!row_)reward_kwargs\["(\w+)"\]', source)) | set(
        re.findall(r"\b(\w+)=(?:prompts|completion)", source)
    )
    assert passed - {"environments"} == set(_OF_TRL)


def test_conversations_are_asked_as_conversations():
    rows = [row | {"prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]
    report = try_reward(lambda completions, answer, **c: careful([t[-1]["content"] for t in completions], answer), rows)
    assert report.right == 1 and says(report, PROBLEM) == ""


def test_without_right_answers_only_the_behaviour_is_judged():
    report = try_reward(lambda completions, **c: [len(t) / 100 for t in completions], [{"prompt": "Write a poem."}] * 3)
    assert report.right is None and report.findings == ()
    assert "no column of right answers is known, so that only its behaviour was judged" in report.headline


def test_the_form_of_ones_own_is_asked():
    form = "Final: {}."
    reward = paid(lambda text, answer, prompt, right: text == f"Final: {answer}.")
    assert "in any of 7 forms; give yours" in says(try_reward(reward, ROWS), PROBLEM)
    report = try_reward(reward, ROWS, form=form)
    assert says(report, PROBLEM) == "" and report.right == 1
    boxes = paid(lambda text, answer, prompt, right: text == f"So \\boxed{{{answer}}}")
    assert try_reward(boxes, ROWS, form="So \\boxed{}").right == 1


@pytest.mark.parametrize(
    "data, options, message",
    [
        ([], {}, "no rows"),
        ([{"text": "a"}], {}, "a row has text; expected `prompt`"),
        (ROWS, {"answer": "gold"}, "answer='gold': the rows have prompt, answer"),
        (ROWS, {"form": "none"}, "expected a text with {} where the answer stands"),
        ([{"prompt": "p", "answer": None}], {}, "no row has a value in `answer`; name"),
        ([{"prompt": "p", "answer": {"a": 1}}], {}, "read as an answer, but such as {'a': 1}; name the column"),
        (ROWS, {"rows": 0}, "rows=0: expected 1 or more"),
        ("gone.jsonl", {}, "data=gone.jsonl: no such file"),
        (None, {}, "data=None: expected rows: a list, a data set, a DataFrame, or a file of them"),
        ([{"prompt": None, "answer": "4"}], {}, "data: a row has the prompt None; expected a text, or messages"),
        ([{"prompt": 5, "answer": "4"}], {}, "data: a row has the prompt 5; expected a text"),
        ([{"prompt": ["a"], "answer": "4"}], {}, "data: a row has the prompt ['a']; expected a text"),
        ({"train": ROWS, "test": ROWS}, {}, "data: a dict of train, test; expected rows: one part"),
    ],
)
def test_unusable_input_is_refused_with_what_is_expected(data, options, message):
    with pytest.raises(ParameterError, match=re.escape(message)):
        try_reward(careful, data, **options)


def test_a_file_that_is_no_parquet_is_refused(tmp_path):
    (tmp_path / "train.parquet").write_text("x")
    with pytest.raises(ParameterError, match=r"train\.parquet: no parquet file .*repair it"):
        try_reward(careful, tmp_path / "train.parquet")


def test_the_command_says_by_its_code_if_there_is_a_problem(capsys, tmp_path):
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    pd.DataFrame(ROWS).to_parquet(tmp_path / "train.parquet")
    rewards = tmp_path / "my_rewards.py"
    rewards.write_text(
        "def in_text(completions, answer, **columns):\n"
        "    return [float(a in t) for t, a in zip(completions, answer)]\n"
        "def zero(completions, answer, **columns):\n"
        "    return [float(t == a) for t, a in zip(completions, answer)]\n"
    )
    code, out, _ = call(capsys, "reward", f"{rewards}:in_text", "--data", tmp_path / "train.jsonl")
    assert code == 1 and out.splitlines()[1].startswith("problem: it pays for the right answer first")
    code, out, _ = call(
        capsys, "reward", f"{rewards}:zero", "--data", tmp_path / "train.parquet", "--json", "--rows", "2"
    )
    assert code == 0 and json.loads(out)["right"] == 1
    code, _, err = call(capsys, "reward", f"{rewards}:gone", "--data", tmp_path / "train.jsonl")
    assert code == 2 and "has no function 'gone'; it has in_text, zero" in err


def test_a_function_that_always_fails_is_named_alone():
    def broken(completions, answer, **columns):
        raise KeyError("gone")

    report = try_reward(broken, ROWS)
    assert (
        says(report, PROBLEM).startswith("it raises KeyError: 'gone', for an answer tag")
        and "nan" not in report.headline
    )
    assert len(report.problems) == 1 and report.right is None


def test_answers_in_the_plural_are_right_answers():
    rows = [{"prompt": row["prompt"], "answers": row["answer"]} for row in ROWS]
    assert try_reward(lambda completions, answers, **c: careful(completions, answers), rows).right == 1


def test_the_column_of_answers_is_found_behind_an_empty_row():
    assert try_reward(careful, [{"prompt": "p"}, *ROWS]).right == 1


def test_a_class_is_refused_with_what_to_name():
    class Reward:
        def __call__(self, completions, **columns):
            return [0.0] * len(completions)

    with pytest.raises(ParameterError, match=re.escape("Reward is a class; expected a function, or an object")):
        try_reward(Reward, ROWS)


def test_what_the_function_prints_is_no_part_of_the_report(capsys, tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps(ROWS))  # a list, on one line
    rewards = tmp_path / "rewards_that_print.py"
    rewards.write_text("def zero(completions, **columns):\n    print('asked')\n    return [0.0] * len(completions)\n")
    _, out, err = call(capsys, "reward", f"{rewards}:zero", "--data", tmp_path / "train.jsonl", "--json")
    assert json.loads(out)["name"] == "zero" and "asked" in err


def test_a_form_from_a_shell_has_line_breaks_and_latex(capsys, tmp_path):
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    form = "<answer>\\nan {} \\nabla\\n</answer>"
    rewards = tmp_path / "rewards_in_lines.py"
    rewards.write_text(
        "def lines(completions, answer, **columns):\n"
        "    form = '<answer>\\nan {} \\\\nabla\\n</answer>'\n"
        "    return [float(text == form.format(a)) for text, a in zip(completions, answer)]\n"
    )
    code, out, _ = call(
        capsys, "reward", f"{rewards}:lines", "--data", tmp_path / "train.jsonl", "--form", form, "--json"
    )
    assert code == 0 and json.loads(out)["right"] == 1


def test_a_users_file_replaces_no_library(tmp_path):
    (tmp_path / "json.py").write_text("def reward(completions, **columns):\n    return [0.0]\n")
    reward = load_function(f"{tmp_path / 'json.py'}:reward")
    sys.path.remove(str(tmp_path))
    assert reward(["a"]) == [0.0] and sys.modules["json"] is json


@pytest.mark.parametrize(
    "place, message",
    [
        ("rewards", "expected MODULE:FUNCTION"),
        ("no_such_module_here:f", "ModuleNotFoundError"),
        ("gone.py:f", "no such file"),
        ("json:loads_not", "json has no function 'loads_not'"),
    ],
)
def test_a_place_without_a_function_is_refused(place, message):
    with pytest.raises(ParameterError, match=message):
        load_function(place)


def _ends_never(completion, answer):
    if completion.startswith("lorem"):  # of shorter texts the pattern takes as long as the processor lets it
        return float(bool(re.match(r"(\s*\w+\s*)+:$", completion)))
    return float(completion.endswith(f" {answer}."))


def _swallows(completion, answer):
    try:
        return _ends_never(completion, answer)
    except BaseException:
        return 0.0


@pytest.mark.parametrize("function", [_ends_never, _swallows])
def test_a_regex_that_never_ends_is_named(function, monkeypatch):
    monkeypatch.setattr("workbench.reward.trial._PATIENCE", 0.5)
    before = signal.getsignal(signal.SIGALRM)
    report = try_reward(function, ROWS)
    (finding,) = [found for found in report.findings if "had not returned" in found.says]
    assert finding.severity == "problem"
    assert finding.example.startswith("'lorem ipsum")
    assert signal.getsignal(signal.SIGALRM) is before and not any(signal.getitimer(signal.ITIMER_REAL))


def test_a_limit_of_time_leaves_others_alarms_alone():
    signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        with time_limit(0.01):
            time.sleep(0.05)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 900
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
