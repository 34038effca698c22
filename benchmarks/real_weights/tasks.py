"""Small tasks with a right answer: questions, the worked examples before them, held-out questions, and the reward.

A completion is right when its first `<answer>...</answer>` holds the right answer. This file needs nothing but Python.
"""

import random
import re
from collections.abc import Callable

STOP = "</answer>"
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_PEOPLE, _THINGS = ("Tom", "Anna", "Ben", "Mia"), ("apples", "books", "coins", "pens")

# A fact is (key, question, answer); two questions with one key (3 + 5 and 5 + 3) are never on both sides of the split.
Fact = tuple[tuple, str, str]


def _pairs(highest: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(highest + 1) for b in range(highest + 1)]


def _sums(highest: int) -> list[Fact]:
    return [((min(a, b), max(a, b)), f"What is {a} + {b}?", str(a + b)) for a, b in _pairs(highest)]


def _next(highest: int) -> list[Fact]:
    return [((a,), f"Which number comes after {a}?", str(a + 1)) for a in range(highest + 1)]


def _short_sums(highest: int) -> list[Fact]:
    return [((min(a, b), max(a, b)), f"{a} + {b} = ?", str(a + b)) for a, b in _pairs(highest)]


def _differences(highest: int) -> list[Fact]:
    return [((a, b), f"What is {a} - {b}?", str(a - b)) for a, b in _pairs(highest) if a >= b]


def _products(highest: int) -> list[Fact]:
    return [((min(a, b), max(a, b)), f"What is {a} * {b}?", str(a * b)) for a, b in _pairs(highest)]


def _larger(highest: int) -> list[Fact]:
    pairs = [(a, b) for a, b in _pairs(highest) if a != b and a + b > highest]
    return [((min(a, b), max(a, b)), f"Which is larger, {a} or {b}?", str(max(a, b))) for a, b in pairs]


def _stories(highest: int) -> list[Fact]:
    facts = []
    for a, b in _pairs(highest):
        if a and b:
            who, what = _PEOPLE[(a + b) % 4], _THINGS[(a + 2 * b) % 4]
            question = f"{who} has {a} {what} and gets {b} more. How many {what} does {who} have?"
            facts.append(((min(a, b), max(a, b)), question, str(a + b)))
    return facts


TASKS: dict[str, Callable[[], list[Fact]]] = {
    "sums of one digit": lambda: _sums(9),
    "sums up to 20 + 20": lambda: _sums(20),
    "sums of one digit, as 3 + 5 = ?": lambda: _short_sums(9),
    "number after one up to 199": lambda: _next(199),
    "differences up to 20": lambda: _differences(20),
    "products of one digit": lambda: _products(9),
    "larger of two up to 99": lambda: _larger(99),
    "stories with a sum up to 20": lambda: _stories(10),
}


def rows(task: str, examples: int = 2, held_out: int = 100) -> tuple[list[dict], list[dict]]:
    """Questions to train on and held-out questions, each `{"prompt", "answer"}`; the same at every call.

    Args:
        task: a key of `TASKS`.
        examples: worked examples in front of each question; they are in neither list.
        held_out: at most, and at most half of all questions.
    """
    facts = TASKS[task]()
    random.Random(0).shuffle(facts)
    shown = facts[:examples]
    before = "".join(f"Question: {question}\n<answer>{answer}</answer>\n\n" for _, question, answer in shown)
    rest = [fact for fact in facts if fact[0] not in {key for key, _, _ in shown}]
    keys = list(dict.fromkeys(key for key, _, _ in rest))
    held = set(keys[: min(held_out, len(keys) // 2)])
    train, kept = [], []
    for key, question, answer in rest:
        (kept if key in held else train).append({"prompt": f"{before}Question: {question}\n", "answer": answer})
    return train, kept[:held_out]


def answer_of(completion: str) -> str | None:
    """What the first `<answer>...</answer>` of a completion holds; None where there is none.

    Example:
        >>> answer_of("<answer> 8 </answer>"), answer_of("<answer>8"), answer_of("8")
        ('8', None, None)
    """
    match = _ANSWER.search(completion)
    return match.group(1).strip() if match else None


def reward_of(completion: str, answer: str) -> float:
    """1.0 where the completion's answer is the right one, else 0.0."""
    return float(answer_of(completion) == answer)
