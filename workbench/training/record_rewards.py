"""Notes of reward functions: what they are given and return, what they write into, whether they set a seed."""

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..replay.stages import places
from .rewards import is_async, name_of
from .step_record import StepRecord, row_tokens


def apart(value: Any, made: dict[int, Any] | None = None) -> Any:
    """A value with lists, tables and arrays of its own, since a reward function may sort, strip or empty those it is given.

    What is one object in two places is one in the copy too. Anything else, such as an image, stays what it is.
    """
    made = {} if made is None else made
    if not isinstance(value, list | dict | set | bytearray | np.ndarray | torch.Tensor):
        return value
    if id(value) not in made:
        try:
            own: Any = value.detach().clone() if isinstance(value, torch.Tensor) else copy.copy(value)
        except Exception:  # a class of anybody's may have no copies
            return value
        made[id(value)] = own
        if isinstance(value, list):
            own[:] = [apart(each, made) for each in value]
        elif isinstance(value, dict):
            own.update((name, apart(each, made)) for name, each in value.items())
    return made[id(value)]


_TEXTS = ("prompts", "completions", "completion_ids")  # reward functions get these lists, and the columns


_PICTURES = ("image", "images")  # columns that are part of a prompt


_UNDECIDED = ("same", "rounding", "cannot tell")  # verdicts


@dataclass
class Hearing:
    """Notes what the reward functions of one generation are given, and what they do with it."""

    policy: Any
    record: StepRecord
    own: Mapping[str, Any]  # rows, prompts, completions and ids as they were before the first function was called
    written: dict[str, str] = field(default_factory=dict)  # column -> the function that has written into it

    def begin(self, function: Any, given: Mapping[str, Any], is_alone: bool = True) -> Callable[[], None]:
        """Note what a function is given; returns what notes afterwards what it has done.

        Args:
            is_alone: no other function runs meanwhile, whose doings would be taken for its own.
        """
        _note_rows(self.record, self.own, given, self.written)
        self._note_written(function, given)
        columns = {name: values for name, values in given.items() if isinstance(values, list) and is_alone}
        before, cells = apart(columns), {name: [*map(id, values)] for name, values in columns.items()}
        seed, was_fresh, trained = torch.initial_seed(), _is_freshly_seeded(), self.policy.training

        def end() -> None:
            if is_alone and (torch.initial_seed() != seed or (_is_freshly_seeded() and not was_fresh)):
                self.record.seeding.add(name_of(function))
            if trained and not self.policy.training:
                self.record.left_in_evaluation.add(name_of(function))
            for name, values in columns.items():
                if not is_same(values, before[name]):
                    self.written[name] = name_of(function)
                    self._note_shared(name, values, before[name], cells[name])

        return end

    def _note_shared(self, name: str, values: list, before: list, cells: list[int]) -> None:
        """Note rows that have one object as their value, into which a function has written: the later ones get it so."""
        pairs = enumerate(zip(values, before, strict=False))
        changed = [i for i, (now, was) in pairs if id(now) == cells[i] and not is_same(now, was)]
        if shared := [i for i in changed if cells.count(cells[i]) > 1]:
            cause = f"{self.written[name]} writes into {name!r}, of which {places(shared)} have one object"
            cause += ": it may read in a later row what it wrote in an earlier one"
            self.record.notice("rewards", "cannot tell", cause, over=_UNDECIDED)

    def _note_written(self, function: Any, given: Mapping[str, Any]) -> None:
        """Note what a function gets after another one has written into it."""
        first, rows = sum(len(call) for call in self.record.rewards), self.own.get("inputs") or []
        for name in sorted(self.written.keys() & given.keys()):
            own = self.own[name] if name in _TEXTS else [row.get(name) for row in rows]
            now = [row_tokens(ids) for ids in given[name]] if name == "completion_ids" else given[name]
            unlike = [i for i, it in enumerate(own) if len(now) != len(own) or not is_same(now[i], it)]
            does_read = reads(function, name)
            if not unlike or does_read is False:
                continue
            cause = f"{self.written[name]} writes into {name!r}, which {name_of(function)}"
            if does_read is None:
                self.record.notice("rewards", "cannot tell", f"{cause} gets after it and may read", over=_UNDECIDED)
            else:
                self.record.notice("rewards", "different", f"{cause} reads after it")
                what = name if name in _TEXTS else f"values of {name!r}"
                self.record.judged_otherwise.setdefault(what, set()).update(first + i for i in unlike)


def reads(function: Any, column: str) -> bool | None:
    """Say whether a reward function reads a column: one that it names; None where it may.

    Example:
        >>> def cited(completions, tests, **_): ...
        >>> reads(cited, "tests"), reads(cited, "answer")
        (True, False)
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    rest = next((p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD), "_")
    called = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    code = getattr(called if hasattr(called, "__code__") else type(called).__call__, "__code__", None)
    if column in parameters or column in getattr(code, "co_consts", ()):
        return True
    return False if rest.startswith("_") else None


class _Heard:
    """A reward function that notes what it is given and what it returns; in everything else it is the function.

    TRL and the methods of a subclass may ask for its class and name, and get and set its attributes.
    """

    __slots__ = ("_parts",)

    def __init__(self, function: Any, calls: list[list], hearing: Hearing):
        object.__setattr__(self, "_parts", (function, calls, hearing))

    def __call__(self, *args: Any, **kwargs: Any):
        function, calls, hearing = self._parts
        end = hearing.begin(function, kwargs)
        result = _noted(calls, function(*args, **kwargs))
        end()
        return result

    @property  # type: ignore[misc]  # only read
    def __class__(self) -> type:
        return type(self._parts[0])

    def __getattr__(self, name: str) -> Any:
        function = self._parts[0]
        own = {"__wrapped__": function, "__name__": name_of(function)}  # what `inspect` and a log ask for
        return own[name] if name in own else getattr(function, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._parts[0], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._parts[0], name)

    def __eq__(self, other: object) -> bool:  # a table by reward function finds it
        return other is self or bool(self._parts[0] == other)

    def __hash__(self) -> int:
        return hash(self._parts[0])


class _HeardLater(_Heard):
    """The same of a function that is awaited."""

    __slots__ = ()

    async def __call__(self, *args: Any, **kwargs: Any):
        function, calls, hearing = self._parts
        end = hearing.begin(function, kwargs, is_alone=False)
        result = _noted(calls, await function(*args, **kwargs))
        end()
        return result


def heard(function: Any, calls: list[list], hearing: Hearing, stack: contextlib.ExitStack) -> Any:
    """A reward function that notes what it returns, and which rows it gets otherwise than they were at first.

    A reward model stays itself, since TRL asks for its class; its logits are noted until `stack` closes.
    """
    if isinstance(function, torch.nn.Module):
        note = functools.partial(_note_logits, calls, hearing.record.judged)
        stack.callback(function.register_forward_hook(note, with_kwargs=True).remove)
        return function
    if not callable(function):
        return function
    return (_HeardLater if is_async(function) else _Heard)(function, calls, hearing)


def _noted(calls: list[list], result: Any) -> Any:
    """Add what a reward function returned to its calls, and return it: an iterator can be read once, so as a list."""
    if isinstance(result, Iterator):
        result = list(result)
    calls.append(list(result) if isinstance(result, Iterable) else [])
    return result


def _note_logits(calls: list[list], judged: list[tuple], model: Any, _args: Any, taken: dict, output: Any) -> None:
    logits: Any = getattr(output, "logits", None)
    calls.append(logits[:, 0].tolist() if torch.is_tensor(logits) and logits.dim() == 2 else [])
    shapes = {x.shape if torch.is_tensor(x) else None for x in taken.values()}
    if calls[-1] and "attention_mask" in taken and shapes == {taken["attention_mask"].shape}:
        judged.append((model, {name: x.clone() for name, x in taken.items()}, calls[-1]))


def _note_rows(
    record: StepRecord, own: Mapping[str, Any], given: Mapping[str, Any], written: Collection[str] = ()
) -> None:
    """Note the rows of which a reward function is given other prompts, completions or columns than `own` has.

    Args:
        written: what an earlier function has written into.
    """
    first = sum(len(call) for call in record.rewards)  # number of rows in earlier generations
    for name in _TEXTS:
        if name in given and name in own and name not in written and len(given[name]) == len(own[name]):
            of_functions = [row_tokens(ids) for ids in given[name]] if name == "completion_ids" else given[name]
            pairs = enumerate(zip(of_functions, own[name], strict=True))
            unlike = {first + row for row, (its, ours) in pairs if its != ours}
            if unlike:
                record.judged_otherwise.setdefault(name, set()).update(unlike)
    columns = {name: values for name, values in given.items() if name not in written}
    for name, rows in _mixed_columns(columns, own.get("inputs") or []).items():
        record.judged_otherwise.setdefault(f"values of {name!r}", set()).update(first + row for row in rows)


def note_groups(record: StepRecord, functions: Iterable[Any], rows: list[dict], size: int) -> None:
    """Note groups of one prompt whose rows have several values of a column that a reward function reads: several tasks."""
    groups = [rows[start : start + size] for start in range(0, len(rows), size)] if len(rows) % size == 0 else []
    called = [function for function in functions if callable(function) and not isinstance(function, torch.nn.Module)]
    for name in sorted({name for row in rows for name in row} - {"prompt"}):
        mixed = [g for g, group in enumerate(groups) if any(_is_other_task(row, group[0], name) for row in group)]
        found = {reads(function, name) for function in called}
        cause = f"groups {mixed[:5]} hold several values of {name!r}"
        if mixed and (True in found or name in _PICTURES):
            record.notice("rewards", "different", f"{cause}: rewards are compared across tasks")
        elif mixed and None in found:
            record.notice("rewards", "cannot tell", f"{cause}, which a reward function may read", over=_UNDECIDED)


def note_prompts(record: StepRecord, rows: Sequence[Mapping], ids: Sequence, size: int, environments: Any) -> None:
    """Note groups of one prompt of the data whose rows ask the policy different things, and an environment of several rows.

    Args:
        rows, ids: of one generation: what the data have, and the prompts' tokens as the policy gets them.
        environments: of the rows, or None. Their `reset` writes into the prompts.
    """
    if len({*map(id, environments or ())}) < len(environments or ()):
        cause = "rows share one environment object: each is judged by what the last of them left in it"
        record.notice(
            "rewards", "cannot tell", f"{cause}; environment_factory should make one for each", over=_UNDECIDED
        )
    if len(ids) != len(rows) or len(rows) % size:
        return
    groups = [range(first, first + size) for first in range(0, len(rows), size)]
    of_one = [g for g in groups if all(is_same(rows[i].get("prompt"), rows[g[0]].get("prompt")) for i in g)]
    mixed = [g[0] // size for g in of_one if any(row_tokens(ids[i]) != row_tokens(ids[g[0]]) for i in g)]
    if not mixed:
        return
    cause = f"groups {mixed[:5]} have one prompt in the data and several as the policy gets them"
    if environments:
        cause += ": reset() gives the rows of a group different tasks, and rewards are compared across tasks"
        record.notice("rewards", "different", cause)
    else:
        record.notice("rewards", "cannot tell", f"{cause}: are they one task?", over=_UNDECIDED)


def note_nan(record: StepRecord, functions: Sequence[Any], calls: Sequence[list[list]]) -> None:
    """Note functions that return NaN, which TRL takes for None: a row that they do not judge."""
    for function, own in zip(functions, calls, strict=True):
        values = own[0] if len(own) == 1 else []
        wrong = [i for i, value in enumerate(values) if isinstance(value, float | np.floating) and value != value]
        if wrong:
            cause = f"{name_of(function)} returns NaN for {len(wrong)} of {len(values)} rows, which TRL takes for None, a row "
            cause += "that it does not judge: a mean of nothing? Return None where that is meant"
            record.notice("rewards", "cannot tell", cause, over=_UNDECIDED)


def _is_other_task(row: Mapping[str, Any], first: Mapping[str, Any], name: str) -> bool:
    """Say whether a row has the prompt of the first one of its group, and another value of a column."""
    return is_same(row.get("prompt"), first.get("prompt")) and not is_same(row.get(name), first.get(name))


def _is_freshly_seeded() -> bool:
    """Say whether torch has drawn no number since its seed was set."""
    fresh = torch.Generator().manual_seed(torch.initial_seed())
    return torch.equal(fresh.get_state(), torch.random.get_rng_state())


def _mixed_columns(columns: Mapping[str, Any], rows: list[dict]) -> dict[str, list[int]]:
    """The rows that get the value of another row, by column. A value that no row has was made on purpose.

    A text that was stripped or lowered is the row's own.

    Example:
        >>> _mixed_columns({"answer": [4, 3, 9]}, [{"answer": 3}, {"answer": 4}, {"answer": 5}])
        {'answer': [0, 1]}
    """
    mixed = {}
    for name in set(columns) & set(rows[0] if rows else ()) - {"prompt", "completion", "completion_ids"}:
        values, own = columns[name], [_bare(row.get(name)) for row in rows]
        if not isinstance(values, list) or len(values) != len(own):
            continue
        values = [_bare(value) for value in values]
        unlike = [i for i, (its, ours) in enumerate(zip(values, own, strict=True)) if not is_same(its, ours)]
        mixed[name] = [i for i in unlike if any(is_same(values[i], other) for other in own)]
    return {name: found for name, found in sorted(mixed.items()) if found}


def _bare(value: Any) -> Any:
    """A text without what is around it and its capitals; any other value as it is."""
    return value.strip().casefold() if isinstance(value, str) else value


def is_same(a: Any, b: Any) -> bool:
    """Say whether two values of a column are equal: lists and tables by what they hold, arrays by their numbers."""
    with contextlib.suppress(ValueError, RuntimeError, TypeError):  # arrays raise when they are compared as a whole
        if a is b or bool(a == b) or (isinstance(a, float) and isinstance(b, float) and a != a and b != b):
            return True
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_same(each, b[name]) for name, each in a.items())
    if isinstance(a, np.ndarray | torch.Tensor) and type(a) is type(b) and a.shape == b.shape:
        with contextlib.suppress(ValueError, RuntimeError, TypeError):
            return bool(((a == b) | (a != a)).all())  # NaN too
    return False
