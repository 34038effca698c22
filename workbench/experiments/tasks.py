"""Two small tasks with one right answer, for a small instruct model on a CPU: sums, and numbers in words.

A prompt is a list of messages: how to answer, worked examples, the question. A completion is right when it is
`<answer>NUMBER</answer>` and nothing else, so `</answer>` is a stop string and `exact_match_reward("answer")` the reward. No
answer stands in its question. SmolLM2-135M-Instruct starts at 10% right completions of sums and 35% of number words, at
temperature 1 with two worked examples.
"""

import random
from itertools import combinations_with_replacement

from ..errors import ParameterError

TASKS, STOP = ("sums", "number-words"), "</answer>"
EXAMPLES = 8  # at most; these questions are never asked
_ONES = """\
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"


def task_rows(task: str, split: str = "train", *, examples: int = 2, untagged: int = 0, tag: bool = True) -> list[dict]:
    """Make a task's questions, `{"prompt": messages, "answer": the one right completion}`; the same at every call.

    Args:
        task: `sums` (two numbers of 2 to 20; 135 questions to train on) or `number-words` (101 to 999; 667).
        split: `train`, or `test` for the held-out questions, a quarter of all.
        examples: worked examples in front of each question, 0 to 8.
        untagged: how many of these, from the first one on, answer with the number alone: the more, the more completions end
            with EOS and hold no tag.
        tag: False asks for the number alone everywhere.

    Raises:
        ParameterError: no such task or split, or more examples than there are.

    Example:
        >>> row = task_rows("number-words", examples=0)[0]
        >>> [message["role"] for message in row["prompt"]], row["answer"]
        (['system', 'user'], '<answer>855</answer>')
    """
    if task not in TASKS or split not in ("train", "test"):
        raise ParameterError(f"task={task!r}, split={split!r}: expected one of {', '.join(TASKS)}, and train or test")
    if not 0 <= untagged <= examples <= EXAMPLES:
        raise ParameterError(
            f"examples={examples}, untagged={untagged}: expected 0 <= untagged <= examples <= {EXAMPLES}"
        )
    facts = _sums() if task == "sums" else _number_words()
    shown, rest = facts[:examples], facts[EXAMPLES:]
    how = "Write <answer>NUMBER</answer>." if tag else "Write only the number."
    before = [{"role": "system", "content": how}]
    for n, (question, number) in enumerate(shown):
        worked = _answer(number, tag and n >= untagged)
        before += [{"role": "user", "content": question}, {"role": "assistant", "content": worked}]
    held_out = len(facts) // 4
    asked = rest[:held_out] if split == "test" else rest[held_out:]
    return [{"prompt": [*before, {"role": "user", "content": q}], "answer": _answer(n, tag)} for q, n in asked]


def _answer(number: int, tag: bool) -> str:
    return f"<answer>{number}{STOP}" if tag else str(number)


def _sums() -> list[tuple[str, int]]:
    rng = random.Random(0)
    pairs = [rng.sample(pair, 2) for pair in combinations_with_replacement(range(2, 21), 2)]  # each in one order only
    rng.shuffle(pairs)
    return [(f"What is {a} + {b}?", a + b) for a, b in pairs]


def _number_words() -> list[tuple[str, int]]:
    numbers = list(range(101, 1000))
    random.Random(0).shuffle(numbers)
    return [(f"Write {in_words(number)} in digits.", number) for number in numbers]


def in_words(number: int) -> str:
    """Spell a number of 0 to 999.

    Example:
        >>> in_words(7), in_words(40), in_words(342)
        ('seven', 'forty', 'three hundred forty-two')
    """
    hundreds, rest = divmod(number, 100)
    tens, ones = divmod(rest, 10)
    below_20, of_ten = _ONES.split(), _TENS.split()
    below = below_20[rest] if rest < 20 else of_ten[tens - 2] + (f"-{below_20[ones]}" if ones else "")
    return below if not hundreds else f"{below_20[hundreds]} hundred" + (f" {below}" if rest else "")
