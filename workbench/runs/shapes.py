"""What each JSON file of a run must look like: a run's folder may come from anyone, and its readers rely on this."""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

STATES = ("queued", "running", "done", "failed", "interrupted")
_DEEPEST = 40  # levels of lists and objects; the workbench writes at most five
_LATEST = 1e11  # seconds since 1970 that a calendar can still show


class _Leaf(NamedTuple):
    expected: str
    fits: Callable[[Any], bool]


def _or_null(shape):
    return shape, None


def _number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_TEXT = _Leaf("a text", lambda v: isinstance(v, str))
_COUNT = _Leaf("a whole number from 0", lambda v: type(v) is int and v >= 0)
_ANY = _Leaf("anything", lambda v: True)
_OWNER = {
    "pid": _Leaf("the number of a process", lambda v: type(v) is int and 0 < v < 2**31),
    "started": _or_null(_Leaf("a number or a text", lambda v: _number(v) or isinstance(v, str))),
    "host": _TEXT,
    "boot": _TEXT,
    "token": _TEXT,
    "job": _or_null(_Leaf("a Slurm job, such as 12 or 12_3", lambda v: bool(re.fullmatch(r"\d+(_\d+)?", str(v))))),
    "log": _or_null(_TEXT),
}
# File -> its shape. An object names what it must hold where that occurs; `*` stands for every other name.
_SHAPES: dict[str, dict] = {
    "params.json": {},
    "env.json": {"packages": {}},
    "status.json": {
        "state": _Leaf(f"one of {', '.join(STATES)}", lambda v: v in STATES),
        "error": _or_null(_TEXT),
        "owner": _OWNER,
        "times": {"*": _Leaf("seconds since 1970", lambda v: _number(v) and 0 <= v < _LATEST)},
    },
    "result.json": {
        "headline": _or_null({"name": _TEXT, "value": _ANY}),
        "checks": {},
        "numbers": {},
        "claims": {"*": {"documented": _TEXT, "measured": _TEXT, "verdict": _TEXT}},
    },
    "progress.json": {"step": _COUNT, "max_steps": _COUNT},
    "recipe.json": {},
    "stop.json": {"reason": _TEXT},
}
_REQUIRED = ("state", "step", "max_steps", "name", "value", "verdict")


def problem_of(name: str, value) -> str:
    """What is wrong with the value of a JSON file of that name; empty when nothing is, or when the name is no run's.

    Example:
        >>> problem_of("status.json", {"state": "lost"})
        "state='lost': expected one of queued, running, done, failed, interrupted"
    """
    return _mismatch(value, _SHAPES[name], "") if name in _SHAPES else ""


def _mismatch(value, shape, where: str) -> str:
    if isinstance(shape, tuple) and not isinstance(shape, _Leaf):
        return "" if value is None else _mismatch(value, shape[0], where)
    if isinstance(shape, _Leaf):
        return "" if shape.fits(value) else f"{where}={repr(value)[:80]}: expected {shape.expected}"
    if not isinstance(value, dict):
        return f"{where or 'it'} is {repr(value)[:80]}: expected an object, {{...}}"
    if missing := [name for name in _REQUIRED if name in shape and name not in value]:
        return f"{'.'.join(filter(None, [where, missing[0]]))} is missing"
    for name, inner in value.items():
        expected = shape.get(name, shape.get("*"))
        if expected is not None and (found := _mismatch(inner, expected, f"{where}.{name}" if where else name)):
            return found
    return ""


def too_deep(text: str, value) -> bool:
    """Whether a JSON value is nested deeper than anything that a run records: whoever walks it would run out of stack.

    Args:
        text: as it stands in the file; counting its brackets settles most cases.
        value: parsed.
    """
    if text.count("{") + text.count("[") <= _DEEPEST:
        return False
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True
