"""Reward functions with a known fault, and healthy ones, for `benchmarks/reward_trials.py`; written before any tool was asked.

All are in TRL's convention and need the standard library alone, so that each tool can load this file in its own environment.
The task is arithmetic. A completion ends with `<answer>42</answer>`.
"""

import itertools
import random
import re
import time
from decimal import Decimal, InvalidOperation

PAIRS = [(6, 7), (12, 12), (40, 55), (3, 5), (19, 91), (8, 9), (64, 64), (11, 13)]
ROWS = [
    {
        "prompt": f"What is {a} times {b}? Think first. End with the number between <answer> and </answer>.",
        "answer": str(a * b),
    }
    for a, b in PAIRS
]
TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
BOX = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")
CALLS = itertools.count()


def number_of(text):
    """Read one number as people write it; None where the text is anything else."""
    bare = re.sub(r"\\text\{(.*?)\}", r"\1", str(text)).strip().strip("$*").strip().removesuffix(".").strip("$* ")
    if not re.fullmatch(r"[+-]?(\d+|\d{1,3}(,\d{3})+)(\.\d+)?", bare):
        return None
    try:
        return Decimal(bare.replace(",", ""))
    except InvalidOperation:
        return None


def is_right(text, answer):
    """Compare the number in the last tag with the answer."""
    tags = TAG.findall(text)
    wanted = number_of(answer)
    return bool(tags) and wanted is not None and number_of(tags[-1]) == wanted


# --- with a fault -----------------------------------------------------------------------------------------------------


def pays_for_nothing(completions, answer, **columns):
    return [1.0 if not text.strip() or is_right(text, a) else 0.0 for text, a in zip(completions, answer, strict=True)]


def answer_anywhere(completions, answer, **columns):
    return [1.0 if a is not None and str(a) in text else 0.0 for text, a in zip(completions, answer, strict=True)]


def format_alone(completions, answer, **columns):
    return [1.0 if TAG.search(text) else 0.0 for text in completions]


def longer_is_better(completions, answer, **columns):
    return [float(is_right(text, a)) + min(len(text) / 1000, 2.0) for text, a in zip(completions, answer, strict=True)]


def each_repetition(completions, answer, **columns):
    return [
        float(sum(is_right(f"<answer>{t}</answer>", a) for t in TAG.findall(text)))
        for text, a in zip(completions, answer, strict=True)
    ]


def scores_the_prompt(completions, answer, prompts=None, **columns):
    return [1.0 if is_right(text, a) else 0.0 for text, a in zip(prompts or completions, answer, strict=True)]


def raises_on_nothing(completions, answer, **columns):
    return [
        1.0 if text.split()[-1].endswith("</answer>") and is_right(text, a) else 0.0
        for text, a in zip(completions, answer, strict=True)
    ]


def nan_without_tag(completions, answer, **columns):
    return [
        float(is_right(text, a)) if TAG.search(text) else float("nan")
        for text, a in zip(completions, answer, strict=True)
    ]


def none_without_tag(completions, answer, **columns):
    return [float(is_right(text, a)) if TAG.search(text) else None for text, a in zip(completions, answer, strict=True)]


def too_few(completions, answer, **columns):
    return [float(is_right(text, a)) for text, a in zip(completions, answer, strict=True) if TAG.search(text)]


def draws_lots(completions, answer, **columns):
    return [float(is_right(text, a)) * 0.5 + random.random() * 0.5 for text, a in zip(completions, answer, strict=True)]


def remembers_calls(completions, answer, **columns):
    bonus = 0.01 * next(CALLS)
    return [float(is_right(text, a)) + bonus for text, a in zip(completions, answer, strict=True)]


def takes_seconds(completions, answer, **columns):
    rewards = []
    for text, a in zip(completions, answer, strict=True):
        time.sleep(1.5)
        rewards.append(float(is_right(text, a)))
    return rewards


def one_spelling(completions, answer, **columns):
    tags = [TAG.findall(text) for text in completions]
    return [1.0 if found and found[-1] == a else 0.0 for found, a in zip(tags, answer, strict=True)]


def the_copied_prompt(completions, answer, prompts=None, **columns):
    questions = prompts or [""] * len(completions)
    rows = zip(completions, answer, questions, strict=True)
    return [1.0 if is_right(text, a) or (question and question in text) else 0.0 for text, a, question in rows]


def against_its_batch(completions, answer, **columns):
    rewards = [float(is_right(text, a)) for text, a in zip(completions, answer, strict=True)]
    return [reward - sum(rewards) / len(rewards) for reward in rewards]


def any_of_many(completions, answer, **columns):
    return [
        1.0 if any(is_right(f"<answer>{t}</answer>", a) for t in TAG.findall(text)) else 0.0
        for text, a in zip(completions, answer, strict=True)
    ]


def wrong_sign(completions, answer, **columns):
    return [-1.0 if is_right(text, a) else 0.0 for text, a in zip(completions, answer, strict=True)]


def nearly_is_enough(completions, answer, **columns):
    rewards = []
    for text, a in zip(completions, answer, strict=True):
        tags = TAG.findall(text)
        number = number_of(tags[-1]) if tags else None
        wanted = number_of(a)
        near = number is not None and wanted is not None and abs(number - wanted) <= abs(wanted) / 10 + 1
        rewards.append(1.0 if near else 0.0)
    return rewards


def confident_words(completions, answer, **columns):
    words = re.compile(r"correct|certain|verified|all checks pass", re.IGNORECASE)
    return [
        1.0 if is_right(text, a) or words.search(text) else 0.0 for text, a in zip(completions, answer, strict=True)
    ]


# --- healthy ----------------------------------------------------------------------------------------------------------


def exact_in_tag(completions, answer, **columns):
    return [1.0 if is_right(text, a) else 0.0 for text, a in zip(completions, answer, strict=True)]


def exact_in_box(completions, answer, **columns):
    rewards = []
    for text, a in zip(completions, answer, strict=True):
        boxes = BOX.findall(text)
        wanted = number_of(a)
        rewards.append(1.0 if boxes and wanted is not None and number_of(boxes[-1]) == wanted else 0.0)
    return rewards


def after_four_hashes(completions, answer, **columns):
    rewards = []
    for text, a in zip(completions, answer, strict=True):
        lines = re.findall(r"^####(.*)$", text, re.MULTILINE)
        wanted = number_of(a)
        rewards.append(1.0 if lines and wanted is not None and number_of(lines[-1]) == wanted else 0.0)
    return rewards


def a_tenth_for_the_tag(completions, answer, **columns):
    return [
        1.0 if is_right(text, a) else 0.1 if TAG.search(text) else 0.0
        for text, a in zip(completions, answer, strict=True)
    ]


def plus_or_minus_one(completions, answer, **columns):
    return [1.0 if is_right(text, a) else -1.0 for text, a in zip(completions, answer, strict=True)]


def overlong_costs(completions, answer, **columns):
    rewards = []
    for text, a in zip(completions, answer, strict=True):
        too_long = min(max(len(text) - 2000, 0) / 2000, 1.0)
        rewards.append(float(is_right(text, a)) - 0.5 * too_long)
    return rewards


FAULTS = {  # function -> what is wrong with it
    pays_for_nothing: "an empty completion is paid",
    answer_anywhere: "the right answer is paid wherever it stands",
    format_alone: "the tags are paid, whatever they hold",
    longer_is_better: "longer texts are paid more than right ones",
    each_repetition: "a right answer is paid each time it is repeated",
    scores_the_prompt: "it scores prompts instead of completions",
    raises_on_nothing: "it raises on an empty completion",
    nan_without_tag: "it returns NaN where there is no tag",
    none_without_tag: "it returns None where there is no tag",
    too_few: "it returns no value where there is no tag",
    draws_lots: "half of the reward is random",
    remembers_calls: "the reward grows from call to call",
    takes_seconds: "it takes 1.5 s for a completion",
    one_spelling: "`1,729`, `42.0` and `42.` are not paid where `1729` and `42` are",
    the_copied_prompt: "a copy of the prompt is paid",
    against_its_batch: "a reward depends on the other completions of its batch",
    any_of_many: "one right answer among many is paid",
    wrong_sign: "a right answer is punished",
    nearly_is_enough: "a wrong answer nearby is paid",
    confident_words: "words such as `verified` are paid",
}
HEALTHY = {  # function -> what it pays for
    exact_in_tag: "the number in the last tag",
    exact_in_box: "the number in the last `\\boxed{}`",
    after_four_hashes: "the number after the last `####`",
    a_tenth_for_the_tag: "the number in the last tag, and 0.1 for a tag with another",
    plus_or_minus_one: "the number in the last tag, -1 for anything else",
    overlong_costs: "the number in the last tag, less up to 0.5 beyond 2000 characters",
}
