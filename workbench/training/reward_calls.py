"""Reward functions called with care: what they return is looked at, and an error names the function and the row."""

import functools
import inspect
import math
from collections.abc import Sequence

import torch
from trl.trainer.utils import get_callable_name

from ..errors import ParameterError
from .groups import short
from .rewards import RewardFn, completion_text


def checked(reward):
    """The same reward function, whose odd answers are errors that name the row; anything else TRL takes is left as it is.

    Args:
        reward: in TRL's convention: it returns a number for each completion, None for one that it does not score. Models,
            names of models and asynchronous functions are not looked into.

    Raises:
        ParameterError: from the function that is returned: it raised, returned another number of values than there are
            completions, or a value that is no finite number.

    Example:
        >>> def half(completions, **_):
        ...     return [len(text) / 2 if text else float("nan") for text in completions]
        >>> checked(half)(completions=["four"])
        [2.0]
        >>> checked(half)(completions=["four", ""])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        workbench.errors.ParameterError: reward function half, row 1 (''): returned nan; expected a finite number, or None...
    """
    if isinstance(reward, str | torch.nn.Module) or inspect.iscoroutinefunction(reward):
        return reward
    name = get_callable_name(reward)

    @functools.wraps(reward)
    def careful(*args, **kwargs):
        completions = kwargs["completions"] if "completions" in kwargs else args[0]
        try:
            values = reward(*args, **kwargs)
        except ParameterError:
            raise
        except Exception as error:
            where = _raising_row(reward, kwargs) if not args and not isinstance(error, OSError) else None
            row = "" if where is None else f", {_row(where, completions)}"
            raise ParameterError(f"reward function {name}{row}: raised {type(error).__name__}: {error}") from error
        return _looked_at(name, values, completions)

    careful.__name__ = name  # a partial has none, and TRL names its metrics so
    return careful


def checked_all(reward_funcs):
    """One reward function or several, each `checked`.

    Raises:
        ParameterError: two functions of one name, which TRL would log as one.
    """
    if isinstance(reward_funcs, list | tuple):
        _check_names([get_callable_name(f) for f in reward_funcs if not isinstance(f, str | torch.nn.Module)])
        return [checked(reward) for reward in reward_funcs]
    return reward_funcs if reward_funcs is None else checked(reward_funcs)


def score(reward_funcs: Sequence[RewardFn], weights: Sequence[float], *, completions: Sequence, **columns):
    """The weighted sum of several reward functions, and what each of them gave; a function's None adds nothing.

    Args:
        reward_funcs: F functions in TRL's convention.
        weights: F factors, TRL's `reward_weights`.
        completions: B texts or conversations.
        **columns: of B values each, and what else TRL hands to reward functions.

    Returns:
        B sums, and function name -> B values or None.

    Raises:
        ParameterError: see `checked`; a row that no function scored; two functions of one name, an asynchronous one.

    Example:
        >>> def words(completions, **_):
        ...     return [len(text.split()) for text in completions]
        >>> score([words], [0.5], completions=["two words", "one"])
        ([1.0, 0.5], {'words': [2, 1]})
    """
    names = [get_callable_name(reward) for reward in reward_funcs]
    _check_names(names)
    if late := [name for name, f in zip(names, reward_funcs, strict=True) if inspect.iscoroutinefunction(f)]:
        raise ParameterError(
            f"reward function {late[0]}: is asynchronous, and here functions are called one by one; use `def`"
        )
    each = {name: checked(f)(completions=completions, **columns) for name, f in zip(names, reward_funcs, strict=True)}
    sums = []
    for row, values in enumerate(zip(*each.values(), strict=True)):
        if all(value is None for value in values):
            raise ParameterError(
                f"{_row(row, completions)}: {', '.join(names)} returned None; at least one reward function has to score it"
            )
        sums.append(sum(w * float(v) for w, v in zip(weights, values, strict=True) if v is not None))
    return sums, each


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise ParameterError(
            f"reward functions {', '.join(names)}: each needs a name of its own, for its column and metrics; define them with "
            "`def`, or set `__name__`"
        )


def _looked_at(name: str, values, completions: Sequence) -> list:
    if not hasattr(values, "__len__") or isinstance(values, str) or len(values) != len(completions):
        found = f"{len(values)} values" if hasattr(values, "__len__") else repr(values)
        raise ParameterError(
            f"reward function {name}: returned {found}; expected a list of {len(completions)}, one for each completion"
        )
    for row, value in enumerate(values):
        if value is None:
            continue
        try:
            finite = math.isfinite(value)
        except TypeError:
            finite = False
        if not finite:
            raise ParameterError(
                f"reward function {name}, {_row(row, completions)}: returned {value!r}; expected a finite number, or None "
                "for a row that it does not score"
            )
    return [value.item() if hasattr(value, "item") else value for value in values]  # of tensors and arrays


def _row(row: int, completions: Sequence) -> str:
    return f"row {row} ({short(completion_text(completions[row]))})"


def _raising_row(reward: RewardFn, kwargs: dict) -> int | None:
    """The first row that the function raises for when it is alone; None when it raises for no row alone."""
    rows = len(kwargs["completions"])
    for row in range(rows):
        alone = {k: v[row : row + 1] if isinstance(v, list) and len(v) == rows else v for k, v in kwargs.items()}
        try:
            reward(**alone)
        except Exception:  # whatever it raised for all rows
            return row
    return None
