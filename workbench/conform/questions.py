"""The questions and the expected answers, as data: `cases.json`, which `python -m tools.conform_cases` writes."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from .definitions import Answer, Question

FILE = Path(__file__).with_name("cases.json")


@functools.cache
def load_questions() -> tuple[Question, ...]:
    """All questions of this package, the smallest first."""
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    return tuple(sorted(map(question_from, stored["cases"]), key=lambda question: question.size))


def question_from(stored: dict[str, Any]) -> Question:
    """A question from its JSON, in which null is NaN.

    Example:
        >>> stored = {"name": "two", "rewards": [1, None], "num_generations": 2, "expected": {"weighted_rewards": [1, None]}}
        >>> question_from(stored).arrays["rewards"]
        array([ 1., nan])
    """
    own = ("name", "settings", "parts", "expected")
    arrays = {name: np.array(values, dtype=float) for name, values in stored.items() if name not in own}
    if "mask" in arrays:
        arrays.setdefault("old_logps", arrays["logps"])
        for name in ("ref_logps", "sampled_logps"):
            arrays.setdefault(name, arrays["old_logps"])
        rows = list(range(len(arrays["mask"])))
        expected = {
            name: Answer(np.array(answer["slopes"], dtype=float), answer["value"])
            for name, answer in stored["expected"].items()
        }
    else:
        rows = list(range(len(arrays["rewards"])))
        expected = {name: Answer(np.array(numbers, dtype=float)) for name, numbers in stored["expected"].items()}
    return Question(stored["name"], stored.get("settings", {}), arrays, stored.get("parts", [[rows]]), expected)
