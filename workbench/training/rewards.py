"""Reward functions in TRL's calling convention, `reward(completions, **columns) -> list[float]`, that say what they are.

A completion is a string, or a list of chat messages whose last `content` counts. Each factory returns a plain function
whose name TRL puts into its metrics (`rewards/<name>/mean`), and `describe_reward` tells a run's folder its unit and range.
"""

import functools
import hashlib
import types
from collections.abc import Callable, Sequence

from ..errors import ParameterError

RewardFn = Callable[..., list[float]]


def described(*, unit: str, lowest: float | None = None, highest: float | None = None, **arguments):
    """Decorator: lets a reward function say what its numbers are, for the run's folder and for whoever draws the curve.

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

    def decorate(reward: RewardFn) -> RewardFn:
        reward.about = about
        return reward

    return decorate


def describe_reward(reward) -> dict:
    """What a run records of its reward: `name`, `arguments`, `unit`, `lowest`, `highest`; None where it is not known.

    A function that nobody described, or a `partial` of one, also gets a `code`, a hash of its compiled body and of the values
    that it was made with: a changed function is another one. Of values that may change while it is called (lists, dicts,
    objects) the type counts alone.

    Args:
        reward: a function, a reward model, or the name of one.

    Example:
        >>> describe_reward(length_reward(20))["highest"]
        0.0
    """
    unknown: dict = {"arguments": {}, "unit": None, "lowest": None, "highest": None}
    if isinstance(reward, str):
        return {"name": reward, **unknown}
    name = getattr(reward, "__name__", None) or getattr(reward, "name_or_path", None) or type(reward).__name__
    if about := getattr(reward, "about", None):
        return {"name": name, **about}
    has_code = isinstance(reward, functools.partial) or hasattr(reward, "__code__")
    return {"name": name, **unknown} | ({"code": _digest(reward)} if has_code else {})


def _digest(function) -> str:
    """Hash of what a function does: its bytecode, constants, defaults and the values it closes over."""
    return hashlib.sha256(_as_text(function, ()).encode()).hexdigest()[:12]


def _as_text(value, within: tuple[int, ...]) -> str:
    """A value as text that is the same in every process: no address, no order of a set; `within` are the values around it."""
    if id(value) in within:
        return "..."
    below = functools.partial(_as_text, within=(*within, id(value)))
    if value is None or value is ... or isinstance(value, str | bytes | bool | int | float | complex):
        return repr(value)
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(below, value)))}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(below, value))})"
    if isinstance(value, functools.partial):
        return below((value.func, value.args, tuple(value.keywords.items())))
    if isinstance(value, types.CodeType):
        return below((value.co_code, value.co_names, value.co_consts))
    if isinstance(value, types.FunctionType):
        cells = tuple(cell.cell_contents for cell in value.__closure__ or ())
        named = tuple((value.__kwdefaults__ or {}).items())
        return below((value.__code__, value.__defaults__, named, cells))
    return type(value).__qualname__


def completion_text(completion: str | Sequence[dict]) -> str:
    """The text of one completion, plain or conversational.

    Example:
        >>> completion_text([{"role": "assistant", "content": "yes"}])
        'yes'
    """
    return completion if isinstance(completion, str) else completion[-1]["content"]


def length_reward(target: int = 20, sign: int = -1) -> RewardFn:
    """The documented example's reward: `-abs(target - len(completion))`, in characters.

    Its range is `(-inf, 0]`: a curve inside 0..1 cannot come from it (claim A4.3).

    Args:
        target: wanted length in characters, at least 0.
        sign: -1, or +1 for the sign-wrong version printed in TRL v0.14's docs (trl #2714), which rewards long text.

    Raises:
        ParameterError: a negative target, or another sign.

    Example:
        >>> length_reward(20)(["exactly twenty chars", "short"])
        [0.0, -15.0]
    """
    if target < 0:
        raise ParameterError(f"target={target}: expected a length of at least 0 characters")
    if sign not in (-1, 1):
        raise ParameterError(f"sign={sign}: expected -1 (as documented since v0.15) or 1 (as printed in v0.14)")
    bounds = {"highest": 0.0} if sign < 0 else {"lowest": 0.0}

    @described(unit=f"characters from the target of {target}", target=target, sign=sign, **bounds)
    def reward_len(completions, **_):
        return [float(sign * abs(target - len(completion_text(c)))) for c in completions]

    return reward_len


def scaled_length_reward(target: int = 20, worst: float = -80.0) -> RewardFn:
    """The length reward mapped onto 0..1 (`worst` and below -> 0, exact length -> 1), comparable with a 0..1 axis.

    Raises:
        ParameterError: `worst` is not negative.

    Example:
        >>> scaled_length_reward(20)(["exactly twenty chars", "", "x" * 200])
        [1.0, 0.75, 0.0]
    """
    if worst >= 0:
        raise ParameterError(f"worst={worst}: expected a negative reward, the one that maps to 0")
    raw = length_reward(target)

    @described(unit="share of the way to the target length", lowest=0.0, highest=1.0, target=target, worst=worst)
    def reward_len_scaled(completions, **_):
        return [max(0.0, 1.0 - r / worst) for r in raw(completions)]

    return reward_len_scaled


def exact_match_reward(column: str = "answer") -> RewardFn:
    """1.0 where the completion equals the data set's `column` after stripping white space, else 0.0.

    Raises:
        ParameterError: when it is called: the data set has no such column.

    Example:
        >>> exact_match_reward("answer")(["4 ", "5"], answer=["4", "4"])
        [1.0, 0.0]
    """

    @described(unit="share of exact answers", lowest=0.0, highest=1.0, column=column)
    def reward_exact_match(completions, **columns):
        if column not in columns:
            raise ParameterError(f"column={column!r}: the data set has {sorted(columns)}; name one of its columns")
        pairs = zip(completions, columns[column], strict=True)
        return [float(completion_text(c).strip() == str(want).strip()) for c, want in pairs]

    return reward_exact_match
