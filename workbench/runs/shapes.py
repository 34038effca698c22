"""What each JSON file of a run must look like: a run's folder may come from anyone, and its readers rely on this."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

STATES = ("queued", "running", "done", "failed", "interrupted")
_DEEPEST = 40  # levels of lists and objects; the workbench writes at most five
_LATEST = 1e11  # seconds since 1970 that a calendar can still show


class _Leaf(NamedTuple):
    expected: str
    fits: Callable[[Any], bool]


class _Object(NamedTuple):
    """What stands under each name that is known, and under every other one; which must be there; whether null may."""

    names: Mapping[str, Any] = {}
    every: Any = None
    required: tuple[str, ...] = ()
    nullable: bool = False


def _or_null(leaf: _Leaf) -> _Leaf:
    return _Leaf(f"{leaf.expected}, or null", lambda v: v is None or leaf.fits(v))


def _number(value) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_TEXT = _Leaf("a text", lambda v: isinstance(v, str))
_COUNT = _Leaf("a whole number from 0", lambda v: type(v) is int and v >= 0)
_TIME = _Leaf("seconds since 1970", lambda v: _number(v) and 0 <= v < _LATEST)
_ANY = _Object()
_OWNER = _Object(
    {
        "pid": _Leaf("the number of a process", lambda v: type(v) is int and 0 < v < 2**31),
        "started": _or_null(_Leaf("a number or a text", lambda v: _number(v) or isinstance(v, str))),
        "host": _TEXT,
        "boot": _TEXT,
        "token": _TEXT,
        "job": _or_null(_Leaf("a Slurm job, such as 12 or 12_3", lambda v: bool(re.fullmatch(r"\d+(_\d+)?", str(v))))),
        "log": _or_null(_TEXT),
    }
)
_STATUS = {
    "state": _Leaf(f"one of {', '.join(STATES)}", lambda v: v in STATES),
    "error": _or_null(_TEXT),
    "owner": _OWNER,
    "times": _Object(every=_TIME),
}
_CLAIM = _Object({"documented": _TEXT, "measured": _TEXT, "verdict": _TEXT}, required=("verdict",))
_RESULT = {
    "headline": _Object({"name": _TEXT}, required=("name", "value"), nullable=True),
    "finding": _TEXT,
    "checks": _ANY,
    "numbers": _ANY,
    "claims": _Object(every=_CLAIM),
}
_SHAPES = {
    "params.json": _ANY,
    "env.json": _Object({"packages": _ANY}),
    "status.json": _Object(_STATUS, required=("state",)),
    "result.json": _Object(_RESULT),
    "progress.json": _Object({"step": _COUNT, "max_steps": _COUNT}, required=("step", "max_steps")),
    "recipe.json": _ANY,
    "stop.json": _Object({"reason": _TEXT}),
}


def problem_of(name: str, value) -> str:
    """What is wrong with the value of a JSON file of that name; empty when nothing is, or when the name is no run's.

    Example:
        >>> problem_of("status.json", {"state": "lost"})
        "state='lost': expected one of queued, running, done, failed, interrupted"
    """
    return _mismatch(value, _SHAPES[name], ()) if name in _SHAPES else ""


def _mismatch(value, shape: _Leaf | _Object, where: tuple[str, ...]) -> str:
    if type(shape) is _Leaf:
        return "" if shape.fits(value) else f"{'.'.join(where)}={repr(value)[:80]}: expected {shape.expected}"
    assert isinstance(shape, _Object)
    if not isinstance(value, dict):
        if value is None and shape.nullable:
            return ""
        return f"{'.'.join(where) or 'it'} is {repr(value)[:80]}: expected an object, {{...}}"
    for name in shape.required:
        if name not in value:
            return f"{'.'.join((*where, name))} is missing"
    if shape is not _ANY:
        for name, inner in value.items():
            expected = shape.names.get(name, shape.every)
            if expected is not None and (problem := _mismatch(inner, expected, (*where, name))):
                return problem
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
