"""Reward functions in TRL's calling convention, `reward(completions, **columns) -> list[float]`.

A completion is a string, or a list of chat messages whose last `content` counts. `validated` wraps a function so that an odd
answer is an error that names the row. `describe_reward` is what a run records of a reward: its name, unit, range and code.
"""

import contextlib
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from trl.trainer.utils import get_callable_name

from ..errors import ParameterError
from .fingerprint import fingerprint
from .groups import shorten
from .rows import text_of

RewardFn = Callable[..., list[float]]


def described(*, unit: str, lowest: float | None = None, highest: float | None = None, **arguments: Any):
    """Decorator: lets a reward function say what its numbers are, for the run's folder and for axes of plots.

    Args:
        unit: of one reward, in words, such as `characters from the target of 20`.
        lowest, highest: values that no reward passes; None where there is no bound.
        **arguments: that the function was made with. Two functions of one name and equal arguments count as the same.

    Example:
        >>> @described(unit="share of capital letters", lowest=0, highest=1)
        ... def reward_capitals(completions, **_):
        ...     return [sum(c.isupper() for c in text) / max(1, len(text)) for text in completions]
        >>> reward_capitals(["GRPO", "Ab"])
        [1.0, 0.5]
        >>> describe_reward(reward_capitals)["unit"]
        'share of capital letters'
    """
    about = {"arguments": arguments, "unit": unit, "lowest": lowest, "highest": highest}

    def decorate(reward: Any) -> RewardFn:
        reward.about = about
        return reward

    return decorate


def describe_reward(reward: Any) -> dict:
    """Return what a run records of its reward: `name`, `arguments`, `unit`, `lowest`, `highest`; None where it is not known.

    A user's own callable also gets a `code`, a hash of what it does (see `fingerprint.py`), and `unseen`, the names of the
    values that are no part of the hash: clients, models and other objects of libraries.

    Args:
        reward: a function, a reward model, or the name of one.

    Example:
        >>> describe_reward(length_reward(20))["highest"]
        0.0
    """
    unknown: dict = {"arguments": {}, "unit": None, "lowest": None, "highest": None}
    name = getattr(reward, "__name__", None) or getattr(reward, "name_or_path", None) or type(reward).__name__
    if isinstance(reward, str | torch.nn.Module):
        return {"name": reward if isinstance(reward, str) else name, **unknown}
    return {"name": name, **getattr(reward, "about", unknown), **fingerprint(reward, name)}


def unseen_values(described: Sequence[Mapping]) -> str:
    """Names and types of the values that no hash of these described rewards covers; empty where there is none."""
    return ", ".join(value for reward in described for value in reward.get("unseen", ()))


def completion_text(completion: str | Sequence[dict]) -> str:
    """The text of one completion, or of the last message of a conversation; none where that is a tool's.

    TRL leaves it the last one where the limit cuts all of the policy's next turn.
    """
    if isinstance(completion, str):
        return completion
    return "" if completion[-1].get("role") == "tool" else text_of(completion[-1].get("content") or "")


def validated(reward: Any, name: str | None = None) -> Any:
    """Wrap a reward function so that an invalid answer raises an error that names the row.

    An error of the function itself keeps its type and gets a note with the function's name. Models and names of models pass
    through unchanged; of an asynchronous function the wrapper is asynchronous too.

    Example:
        >>> def half(completions, **_):
        ...     return [len(text) / 2 if text else float("nan") for text in completions]
        >>> validated(half)(completions=["four"])
        [2.0]
        >>> validated(half)(completions=["four", ""])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        workbench.errors.ParameterError: reward function half, row 1 (''): returned nan; expected a finite number, or None...
    """
    if isinstance(reward, str | torch.nn.Module):
        return reward
    name = name or name_of(reward)

    @contextlib.contextmanager
    def named():
        try:
            yield
        except Exception as error:
            error.add_note(f"raised by the reward function {name}")
            raise

    def scored(values: Any, args: tuple, kwargs: dict):
        return _validate(name, values, kwargs["completions"] if "completions" in kwargs else args[0])

    def checked(*args: Any, **kwargs: Any):
        with named():
            values = reward(*args, **kwargs)
        return scored(values, args, kwargs)

    async def checked_later(*args: Any, **kwargs: Any):
        with named():
            values = await reward(*args, **kwargs)
        return scored(values, args, kwargs)

    return checked_later if is_async(reward) else checked


def name_of(reward: Any) -> str:
    """A reward function's own `__name__`, which a partial has where its user has set it; else TRL's name for it."""
    return getattr(reward, "__name__", None) or get_callable_name(reward)


def distinct(names: Sequence[str]) -> list[str]:
    """Names of reward functions, numbered where one comes again: each has a column and metrics of its own.

    Example:
        >>> distinct(["<lambda>", "words", "<lambda>"])
        ['<lambda>', 'words', '<lambda>_2']
    """
    taken: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        taken.append(next(new for new in itertools.chain([name], numbered) if new not in taken))
    return taken


def _validate(name: str, values: Any, completions: Sequence) -> list:
    values = list(values) if isinstance(values, Iterator) else values
    if not hasattr(values, "__len__") or isinstance(values, str) or len(values) != len(completions):
        found = f"{len(values)} values" if hasattr(values, "__len__") else repr(values)
        raise ParameterError(
            f"reward function {name}: returned {found}; expected a list of {len(completions)}, one for each completion"
        )
    for row, value in enumerate(values):
        try:
            finite = value is None or math.isfinite(value)
        except TypeError:
            finite = False
        if not finite:
            raise ParameterError(
                f"reward function {name}, {row_name(row, completions)}: returned {value!r}; expected a finite number, or None "
                "for a row that it does not score"
            )
    return [value.item() if hasattr(value, "item") else value for value in values]  # of tensors and arrays


def row_name(row: int, completions: Sequence) -> str:
    """`row 3 ('text...')`, for messages."""
    return f"row {row} ({shorten(completion_text(completions[row]))})"


def is_async(reward: Any) -> bool:
    """Say whether a call returns a coroutine."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    return any(map(inspect.iscoroutinefunction, (reward, getattr(reward, "__call__", None))))  # noqa: B004  # inherited too


def length_reward(target: int = 20, sign: int = -1) -> RewardFn:
    """Make the reward function of TRL's documented example: `-abs(target - len(completion))`, in characters.

    With the default sign no reward is above 0, so a curve between 0 and 1 cannot come from it.

    Args:
        target: wanted length in characters, at least 0.
        sign: -1, or +1 for the wrong sign in the docs of TRL v0.14 (trl #2714), which rewards long completions.

    Raises:
        ParameterError: a target that is negative or no number, or another sign.

    Example:
        >>> length_reward(20)(["exactly twenty chars", "short"])
        [0.0, -15.0]
    """
    if not isinstance(target, int | float) or not 0 <= target < math.inf:
        raise ParameterError(f"target={target!r}: expected a length of at least 0 characters")
    if sign not in (-1, 1):
        raise ParameterError(f"sign={sign}: expected -1 (as documented since v0.15) or 1 (as printed in v0.14)")
    bounds = {"highest": 0.0} if sign < 0 else {"lowest": 0.0}

    @described(unit=f"characters from the target of {target}", target=target, sign=sign, **bounds)
    def reward_len(completions: Sequence, **_: Any):
        return [float(sign * abs(target - len(completion_text(c)))) for c in completions]

    return reward_len


def exact_match_reward(column: str = "answer") -> RewardFn:
    """Make a reward function: 1.0 if the completion equals the data set's `column`, apart from outer white space, else 0.0.

    A row whose answer is None, NaN or empty gets None, no reward: else a completion of nothing would be right there. An answer
    that is a float without a fraction, as tables with gaps have them, is a whole number.

    Raises:
        ParameterError: the data set has no such column; raised when the function is called.

    Example:
        >>> exact_match_reward("answer")(["4 ", "5", ""], answer=["4", 4.0, None])
        [1.0, 0.0, None]
    """

    @described(unit="share of exact answers", lowest=0.0, highest=1.0, column=column)
    def reward_exact_match(completions: Sequence, **columns: Any):
        if column not in columns:
            raise ParameterError(f"column={column!r}: the data set has {sorted(columns)}; name one of its columns")
        pairs = zip(completions, map(_answer_text, columns[column]), strict=True)
        return [float(completion_text(c).strip() == want) if want else None for c, want in pairs]

    return reward_exact_match


def _answer_text(answer: Any) -> str:
    """An answer as a completion states it; empty where it is not known."""
    if answer is None or answer != answer:
        return ""
    whole = isinstance(answer, float) and answer.is_integer()
    return str(int(answer) if whole else answer).strip()
