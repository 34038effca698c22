"""What a reward function does, as a hash: its bytecode, and the values that it reads. Equal in every process of one Python."""

import collections
import dis
import functools
import hashlib
import inspect
import logging
import numbers
import operator
import re
import sys
import threading
import types
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

import numpy as np

_CONSTANTS = (str, bytes, numbers.Number, np.generic, range, PurePath, types.NoneType, types.EllipsisType)
_IDLE = (logging.Logger, type(threading.Lock()), type(threading.RLock()), types.BuiltinFunctionType)
# Methods that dataclasses and attrs write; what they do follows from the attributes.
_WRITTEN = {"__init__", "__repr__", "__eq__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__", "__replace__"}
_WRITTEN |= {"__setattr__", "__delattr__"}
_MANY = 10_000_000  # elements of an array that are still read


def fingerprint(reward: Any, name: str) -> dict:
    """`code`, a hash of a user's callable, and `unseen`, the names of the values that are no part of it; {} of a library's.

    The hash covers the callable's bytecode, the user's functions and classes below it, by whatever name it reaches them
    (`module.helper`, `self.helper`, a decorator's `__wrapped__`), and constants, lists, dicts, patterns, arrays and attributes
    as they are now. Values of a library's types (clients, models, data sets) are `unseen`.
    """
    if isinstance(reward, types.FunctionType) and not _is_the_users(reward.__globals__.get("__name__")):
        return {}
    walk = _Walk()
    code = hashlib.sha256(walk.text(reward, name).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return {"code": code} | ({"unseen": sorted(walk.unseen)} if walk.unseen else {})


class _Walk:
    """Writes values as text; `unseen` has the names of those of which only the type is written."""

    def __init__(self) -> None:
        self.unseen: set[str] = set()
        self._met: dict[int, tuple[int, Any]] = {}  # id -> number and value, which is kept so that no other gets its id

    def text(self, value: Any, name: str) -> str:
        try:
            return self._text(value, name)
        except Exception:  # of a proxy that stands for nothing yet, or too deep
            return self._only_type(value, name)

    def _alone(self, value: Any, name: str) -> str:
        """A value's text that does not depend on which other elements of its set came first."""
        met = len(self._met)
        text = self.text(value, name)
        while len(self._met) > met:
            self._met.popitem()
        return text

    def _text(self, value: Any, name: str) -> str:
        if isinstance(value, _CONSTANTS):
            return repr(value)
        if isinstance(value, tuple):
            return f"({', '.join(self.text(part, name) for part in value)})"
        if isinstance(value, set | frozenset):  # its order is another in each process
            return f"{{{', '.join(sorted(self._alone(part, name) for part in value))}}}"
        if id(value) in self._met:
            return f"#{self._met[id(value)][0]}"
        self._met[id(value)] = len(self._met), value
        return f"{type(value).__qualname__}({', '.join(self._parts(value, name))})"

    def _parts(self, value: Any, name: str) -> Iterable[str]:
        if isinstance(value, re.Pattern):
            return [repr((value.pattern, value.flags))]
        if isinstance(value, dict):
            keys = {key: f"{name}[{key!r}]" if isinstance(key, _CONSTANTS) else name for key in value}
            return [f"{self.text(key, name)}: {self.text(value[key], keys[key])}" for key in value]
        if isinstance(value, list | collections.deque):
            return [self.text(each, name) for each in value]
        if isinstance(value, functools.partial):
            return [self.text(part, name) for part in (value.func, value.args, value.keywords)]
        if isinstance(value, functools.cached_property):
            return [self.text(value.func, name)]
        if isinstance(value, types.MethodType):
            return [self.text(part, name) for part in (value.__func__, value.__self__)]
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, property):
            return [self.text(part, name) for part in (value.fget, value.fset)]
        if _is_of_torch(value, "Tensor") and value.numel() <= _MANY:
            return [str(value.dtype), self.text(value.detach().float().numpy(force=True), name)]
        if isinstance(value, np.ndarray) and value.size <= _MANY and not value.dtype.hasobject:
            return [str(value.dtype), str(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
        if (below := inspect.getattr_static(value, "__wrapped__", None)) is not None:  # lru_cache, static method
            return [self.text(below, name)]
        if isinstance(value, _IDLE) or (isinstance(value, types.ModuleType) and not _is_the_users(value.__name__)):
            return [getattr(value, "__name__", "")]
        if _is_the_users(type(value).__module__) and not _is_of_torch(value, "nn.Module"):
            slots = {slot: getattr(value, slot, None) for slot in getattr(type(value), "__slots__", ())}
            return [self.text(type(value), name), *self._named({**slots, **getattr(value, "__dict__", {})}, f"{name}.")]
        if type(value).__module__.partition(".")[0] == "workbench":  # a run or a view, which judge nothing
            return [type(value).__qualname__]
        return [self._only_type(value, name)]

    def _only_type(self, value: Any, name: str) -> str:
        self.unseen.add(f"{name} ({type(value).__qualname__})")
        return type(value).__qualname__

    def _named(self, values: Mapping[str, Any], before: str = "") -> list[str]:
        return [f"{name}={self.text(values[name], before + name)}" for name in sorted(values)]

    def _function(self, function: types.FunctionType) -> list[str]:
        """Bytecode, defaults, what is closed over, read from modules and set as attributes; of a library's its name."""
        if not _is_the_users(function.__globals__.get("__name__")):
            below = getattr(function, "__wrapped__", None)  # of a library's decorator
            return [f"{function.__module__}.{function.__qualname__}", *([self.text(below, "")] if below else [])]
        code, operations = function.__code__, set(_operations(function.__code__))
        closed = zip(code.co_freevars, function.__closure__ or (), strict=True)
        values = {name: cell.cell_contents for name, cell in closed if cell != types.CellType()}  # else not set yet
        loaded = {name for operation, name in operations if operation in ("LOAD_GLOBAL", "LOAD_NAME")}
        values |= {name: function.__globals__[name] for name in loaded & function.__globals__.keys()}
        names = {name for _, name in operations}
        parts = [self._code(code, function.__doc__), self.text(function.__defaults__, "defaults")]
        parts += [f"{name}={self._read(values[name], name, names)}" for name in sorted(values)]
        parts += self._named(function.__kwdefaults__ or {})
        parts += self._named({n: v for n, v in vars(function).items() if n not in ("about", "__wrapped__")}, "its ")
        inside, of_it = ({n for operation, n in operations if operation == o} for o in ("IMPORT_NAME", "IMPORT_FROM"))
        inside |= {f"{module}.{name}" for module in inside for name in of_it}
        return parts + [f"import {name} {_file_hash(name)}" for name in sorted(inside) if _is_the_users(name)]

    def _read(self, value: Any, name: str, names: set[str]) -> str:
        """A value that a function reads; of a user's module what has one of the `names` that occur in the function."""
        if not isinstance(value, types.ModuleType):
            return self.text(value, name)
        if not _is_the_users(value.__name__):
            return value.__name__
        read = sorted(names & vars(value).keys())
        return ", ".join(f"{n}={self._read(vars(value)[n], f'{name}.{n}', names - {n})}" for n in read)

    def _code(self, code: types.CodeType, doc: str | None = None) -> str:
        constants = [c for c in code.co_consts if c is None or c != doc]
        inner = [self._code(c) if isinstance(c, types.CodeType) else self.text(c, "") for c in constants]
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return f"{code.co_code!r} {code.co_exceptiontable!r} {code.co_names} {arguments} [{', '.join(inner)}]"

    def _class(self, made: type) -> list[str]:
        """Bases and members; of a library's its name."""
        if not _is_the_users(made.__module__):
            return [f"{made.__module__}.{made.__qualname__}"]
        members = {}
        for name, member in vars(made).items():
            function = getattr(member, "__func__", member)
            code = getattr(function, "__code__", None)
            written = name in _WRITTEN and code is not None and code.co_filename.startswith("<")
            own = isinstance(member, property) or _is_the_users(type(member).__module__)
            descriptor = inspect.isdatadescriptor(member) and not own
            if not written and not descriptor and name != "_abc_impl" and (code or not name.startswith("__")):
                members[name] = function
        bases = [self.text(base, base.__qualname__) for base in made.__bases__]
        return bases + self._named(members, f"{made.__qualname__}.")


def _operations(code: types.CodeType) -> Iterable[tuple[str, str]]:
    """Operation and name of whatever a function looks up, its inner functions' and comprehensions' included."""
    yield from ((op.opname, op.argval) for op in dis.get_instructions(code) if op.argval in code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _operations(constant)


def _is_of_torch(value: Any, name: str) -> bool:
    """Say whether a value is a tensor or a module, without loading torch."""
    return "torch" in sys.modules and isinstance(value, operator.attrgetter(name)(sys.modules["torch"]))


def _is_the_users(module: str | None) -> bool:
    """Say whether a module is the user's own: neither Python's nor of an installed library."""
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    top = (module or "").partition(".")[0]
    library = top == "workbench" or top in sys.stdlib_module_names or "site-packages" in file or "dist-packages" in file
    return module == "__main__" or not library


def _file_hash(module: str) -> str:
    """A hash of the file of a module that a function imports itself, and which may not be loaded yet; else empty."""
    try:
        return hashlib.sha256(Path(find_spec(module).origin).read_bytes()).hexdigest()  # type: ignore[union-attr, arg-type]
    except (ImportError, AttributeError, ValueError, TypeError, OSError):
        return ""
