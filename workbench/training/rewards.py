"""Reward functions in TRL's calling convention, `reward(completions, **columns) -> list[float]`.

A completion is a string, or a list of chat messages whose last `content` counts. `validated` wraps a function so that an odd
answer is an error that names the row. `describe_reward` is what a run records of a reward: its name, unit, range and code.
"""

import ast
import functools
import hashlib
import inspect
import math
import sys
import textwrap
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from trl.trainer.utils import get_callable_name

from ..errors import ParameterError
from .groups import shorten

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
    """What a run records of its reward: `name`, `arguments`, `unit`, `lowest`, `highest`; None where it is not known.

    A function without `described` also gets a `code`: a hash of its source without comments and docstrings, of the user's own
    functions that it calls, and of the constants that it closes over or reads from its module. Of values that may change
    while it is called (lists, dicts, objects) the type counts alone.

    Args:
        reward: a function, a reward model, or the name of one.

    Example:
        >>> describe_reward(length_reward(20))["highest"]
        0.0
    """
    unknown: dict = {"arguments": {}, "unit": None, "lowest": None, "highest": None}
    name = getattr(reward, "__name__", None) or getattr(reward, "name_or_path", None) or type(reward).__name__
    if about := getattr(reward, "about", None):
        return {"name": name, **about}
    if isinstance(reward, str | torch.nn.Module):
        return {"name": reward if isinstance(reward, str) else name, **unknown}
    return {"name": name, **unknown, "code": hashlib.sha256(_as_text(reward, ()).encode()).hexdigest()[:12]}


def _as_text(value: Any, within: tuple[int, ...]) -> str:
    """A value as text that is the same in every process and Python; `within` are the ids of the values around it."""
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
    if isinstance(value, types.MethodType):
        return below((value.__func__, value.__self__))
    if isinstance(value, types.FunctionType):
        return _function_as_text(value, below)
    return type(value).__qualname__  # of what may change while it is called (a list that counts calls) the type alone


def _function_as_text(function: types.FunctionType, below: Callable[[Any], str]) -> str:
    """A function's source and the values it reads; of an installed library's its name alone."""
    if not _is_the_users(function):
        return f"{function.__module__}.{function.__qualname__}"
    cells = tuple(cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType())  # not set yet
    known = {name: function.__globals__.get(name) for name in _names(function.__code__)}
    read = [(name, known[name]) for name in sorted(known) if not isinstance(known[name], types.ModuleType | None)]
    named = tuple((function.__kwdefaults__ or {}).items())
    return below((_bare_source(function), function.__defaults__, named, cells, tuple(read)))


def _names(code: types.CodeType) -> set[str]:
    """All names that a function looks up, its inner functions' and comprehensions' included."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return {*code.co_names}.union(*inner)


def _is_the_users(thing: Any) -> bool:
    """Whether a function or class is the user's own: neither Python's nor of an installed library."""
    module = getattr(thing, "__module__", None) or ""
    if module.partition(".")[0] in (*sys.stdlib_module_names, "workbench"):
        return module == "__main__"
    return module == "__main__" or "site-packages" not in (getattr(sys.modules.get(module), "__file__", None) or "")


def _bare_source(function: types.FunctionType) -> str:
    """A function's source without comments, docstring and layout; its bytecode where there is no source."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except Exception:  # made by `exec`, or lines that `inspect` cannot take apart
        return repr((function.__code__.co_code, function.__code__.co_names))
    try:
        body = ast.parse(source)
    except SyntaxError:  # a lambda inside a larger expression
        return source
    for node in ast.walk(body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(body)


def completion_text(completion: str | Sequence[dict]) -> str:
    """The text of one completion, or of the last message of a conversation."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def validated(reward: Any) -> Any:
    """Wrap a reward function so that an invalid answer raises an error that names the row.

    Models, names of models and asynchronous functions pass through unchanged.

    Example:
        >>> def half(completions, **_):
        ...     return [len(text) / 2 if text else float("nan") for text in completions]
        >>> validated(half)(completions=["four"])
        [2.0]
        >>> validated(half)(completions=["four", ""])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        workbench.errors.ParameterError: reward function half, row 1 (''): returned nan; expected a finite number, or None...
    """
    if isinstance(reward, str | torch.nn.Module) or is_async(reward):
        return reward
    name = name_of(reward)

    @functools.wraps(reward)
    def wrapper(*args: Any, **kwargs: Any):
        completions = kwargs["completions"] if "completions" in kwargs else args[0]
        try:
            values = reward(*args, **kwargs)
        except ParameterError:
            raise
        except Exception as error:
            raise ParameterError(f"reward function {name}: raised {type(error).__name__}: {error}") from error
        return _validate(name, values, completions)

    wrapper.__name__ = name  # a partial has none, and TRL names its metrics so
    return wrapper


def validate_all(reward_funcs: Any) -> Any:
    """One reward function or several, each `validated`; two of one name are an error, since TRL would log them as one."""
    if isinstance(reward_funcs, list | tuple):
        check_names([name_of(f) for f in reward_funcs if not isinstance(f, str | torch.nn.Module)])
        return [validated(reward) for reward in reward_funcs]
    return reward_funcs if reward_funcs is None else validated(reward_funcs)


def name_of(reward: Any) -> str:
    """A reward function's own `__name__`, which a partial has where its user has set it; else TRL's name for it."""
    return getattr(reward, "__name__", None) or get_callable_name(reward)


def check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise ParameterError(
            f"reward functions {', '.join(names)}: each needs a name of its own, for its column and metrics; define them with "
            "`def`, or set `__name__`"
        )


def _validate(name: str, values: Any, completions: Sequence) -> list:
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
    return f"row {row} ({shorten(completion_text(completions[row]))})"


def is_async(reward: Any) -> bool:
    return inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(vars(type(reward)).get("__call__"))


def length_reward(target: int = 20, sign: int = -1) -> RewardFn:
    """The documented example's reward: `-abs(target - len(completion))`, in characters.

    Its range is `(-inf, 0]`: a curve inside 0..1 cannot come from it.

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
    def reward_len(completions: Sequence, **_: Any):
        return [float(sign * abs(target - len(completion_text(c)))) for c in completions]

    return reward_len


def exact_match_reward(column: str = "answer") -> RewardFn:
    """1.0 where the completion equals the data set's `column` after stripping white space, else 0.0.

    Raises:
        ParameterError: when it is called: the data set has no such column.

    Example:
        >>> exact_match_reward("answer")(["4 ", "5"], answer=["4", "4"])
        [1.0, 0.0]
    """

    @described(unit="share of exact answers", lowest=0.0, highest=1.0, column=column)
    def reward_exact_match(completions: Sequence, **columns: Any):
        if column not in columns:
            raise ParameterError(f"column={column!r}: the data set has {sorted(columns)}; name one of its columns")
        pairs = zip(completions, columns[column], strict=True)
        return [float(completion_text(c).strip() == str(want).strip()) for c, want in pairs]

    return reward_exact_match
