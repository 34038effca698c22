"""A small task with a right answer: questions, the worked examples before them, held-out questions, and the reward.

A completion is right when its first `<answer>...</answer>` holds the right answer. This file needs nothing but Python.
The task was chosen of eight for the base model's rate of right answers (data/measured/real_weights/task.json).
"""

import random
import re

TASK, STOP = "number after one up to 199", "</answer>"
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def rows(examples: int = 2, held_out: int = 100) -> tuple[list[dict], list[dict]]:
    """Make the questions to train on and those held out, each `{"prompt", "answer"}`; the same at every call.

    Args:
        examples: worked examples in front of each question; they are in neither list.
        held_out: at most, and at most half of all questions.
    """
    facts = [(f"Which number comes after {a}?", str(a + 1)) for a in range(200)]
    random.Random(0).shuffle(facts)
    shown, rest = facts[:examples], facts[examples:]
    before = "".join(f"Question: {question}\n<answer>{answer}</answer>\n\n" for question, answer in shown)
    made = [{"prompt": f"{before}Question: {question}\n", "answer": answer} for question, answer in rest]
    held_out = min(held_out, len(made) // 2)
    return made[held_out:], made[:held_out]


def answer_of(completion: str) -> str | None:
    """Return what the first `<answer>...</answer>` of a completion holds; None where there is none.

    Example:
        >>> answer_of("<answer> 8 </answer>"), answer_of("<answer>8"), answer_of("8")
        ('8', None, None)
    """
    match = _ANSWER.search(completion)
    return match.group(1).strip() if match else None


def reward_of(completion: str, answer: str) -> float:
    """Return 1.0 where the completion's answer is the right one, else 0.0."""
    return float(answer_of(completion) == answer)
