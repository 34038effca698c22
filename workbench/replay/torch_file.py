"""A file of `torch.save`, read without torch and without executing anything that it names.

Such a file is a zip with one pickle and the bytes of its tensors. A pickle is a list of instructions, and a reader that obeys
them calls whatever functions they name. This one obeys only those that make numbers, texts, lists, tuples and dictionaries,
and knows three names: a tensor, a shape and an ordered dictionary. Nothing is imported or called by its name.

Format: https://docs.pytorch.org/docs/stable/notes/serialization.html; instructions: Python's `pickletools`.
"""

import os
import pickletools
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError
from ..runs.files import open_plain

_LARGEST = 2_000_000_000  # bytes of a file, and of what is in it
# Storage of torch -> what its bytes are; bfloat16 is the upper half of a float32.
_STORAGES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "BFloat16Storage": "<u2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "|i1",
    "ByteStorage": "|u1",
    "BoolStorage": "|b1",
}
_MARK = object()  # where a list of items begins on the stack
_ALONE: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
}
_VALUES = {
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "LONG4",
    "BINFLOAT",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINUNICODE8",
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True)
class _Name:
    """A function or class that the pickle names; it is never looked up."""

    text: str


@dataclass(frozen=True)
class _Storage:
    """The bytes of a tensor, by the name of their file in the zip."""

    kind: str
    key: str


def load_torch_file(path: str | os.PathLike) -> Any:
    """Read what `torch.save` wrote, if it is made of plain values and tensors.

    Args:
        path: of a `.pt` file.

    Returns:
        The value, with tensors as NumPy arrays (bfloat16 as float32).

    Raises:
        RunError: the file is none, is damaged, names other objects, or is larger than 2 GB.
    """
    path = Path(path)
    try:
        with open_plain(path) as opened, zipfile.ZipFile(opened) as archive:
            return _Archive(path, archive).value()
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except zipfile.BadZipFile:
        raise RunError(f"{path}: this is no zip file, as torch.save writes it since torch 1.6; save it again") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
        raise RunError(f"{path}: no file of torch.save, or damaged ({error!r})") from None


class _Archive:
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self.archive = archive
        entries = archive.infolist()
        size = sum(entry.file_size for entry in entries)
        if size > _LARGEST:
            raise RunError(f"{path}: {size / 1e9:.1f} GB unpacked; at most {_LARGEST / 1e9:.0f} GB are read")
        if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
            raise RunError(f"{path}: its parts are compressed or encrypted, which torch.save never does; save it again")
        pickles = [entry.filename for entry in entries if entry.filename.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise RunError(f"{path}: {len(pickles)} files are called data.pkl; torch.save writes one")
        self.folder = pickles[0].removesuffix("data.pkl")
        order = f"{self.folder}byteorder"
        if order in archive.namelist() and archive.read(order).strip() != b"little":
            raise RunError(f"{path}: written on a machine with big-endian numbers; save it on another one")

    def value(self) -> Any:
        """Obey the instructions of the pickle."""
        stack: list[Any] = []
        memo: dict[int, Any] = {}
        argument: Any
        for opcode, argument, _ in pickletools.genops(self.archive.read(f"{self.folder}data.pkl")):
            name = opcode.name
            if name == "STOP":
                return stack.pop()
            if name in _ALONE:
                stack.append(_ALONE[name]())
            elif name in _VALUES:
                stack.append(argument)
            elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
                memo[len(memo) if argument is None else argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name not in ("PROTO", "FRAME"):
                self._obey(name, argument, stack)
        raise ValueError("the pickle does not end")

    def _obey(self, name: str, argument: Any, stack: list[Any]) -> None:
        if name in _TUPLES:
            first = tuple(stack[-_TUPLES[name] :])
            del stack[-_TUPLES[name] :]
            stack.append(first)
        elif name == "TUPLE":
            stack.append(tuple(_items(stack)))
        elif name == "APPENDS":
            items = _items(stack)
            _only(stack[-1], list).extend(items)
        elif name == "APPEND":
            item = stack.pop()
            _only(stack[-1], list).append(item)
        elif name == "SETITEMS":
            items = _items(stack)
            _only(stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))
        elif name == "SETITEM":
            item, key = stack.pop(), stack.pop()
            _only(stack[-1], dict)[key] = item
        elif name == "GLOBAL":
            stack.append(_Name(argument.replace(" ", ".")))
        elif name == "STACK_GLOBAL":
            last, module = stack.pop(), stack.pop()
            stack.append(_Name(f"{module}.{last}"))
        elif name == "BINPERSID":
            stack.append(self._storage(stack.pop()))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(self._made(function, arguments))
        else:
            raise self._refused(f"an object (instruction {name})")

    def _refused(self, what: str) -> RunError:
        how = "It is not executed. Load it where you trust it, and save it again as numbers, texts, lists and tensors"
        return RunError(f"{self.path}: holds {what}, and only plain values and tensors are read. {how}")

    def _storage(self, identity: Any) -> _Storage:
        kind, storage, key = identity[:3]
        if kind != "storage" or not re.fullmatch(r"\d+", key):
            raise ValueError(f"no storage: {identity[:3]!r}")
        return _Storage(_only(storage, _Name).text.removeprefix("torch."), key)

    def _made(self, function: Any, arguments: Any) -> Any:
        name = _only(function, _Name).text
        if name == "collections.OrderedDict" and arguments == ():
            return {}
        if name == "torch.Size":
            return tuple(arguments[0])
        if name == "torch._utils._rebuild_tensor_v2":
            return self._tensor(*arguments[:4])
        raise self._refused(f"{name}")

    def _tensor(self, storage: Any, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> np.ndarray:
        storage = _only(storage, _Storage)
        if storage.kind not in _STORAGES:
            raise self._refused(f"a tensor of {storage.kind}")
        numbers = np.frombuffer(self.archive.read(f"{self.folder}data/{storage.key}"), dtype=_STORAGES[storage.kind])
        counts = [int(count) for count in size]
        steps = [int(step) for step in stride]
        last = offset + sum((count - 1) * step for count, step in zip(counts, steps, strict=True))
        elements = int(np.prod(counts, dtype=object))
        if min([0, offset, *counts, *steps]) < 0 or elements > len(numbers) or (elements and last >= len(numbers)):
            raise ValueError(f"a tensor of {counts} in {len(numbers)} numbers")
        if not elements:
            return np.zeros(counts, dtype=numbers.dtype)
        bytes_of = [step * numbers.itemsize for step in steps]
        array = np.lib.stride_tricks.as_strided(numbers[offset:], counts, bytes_of).copy()
        if storage.kind == "BFloat16Storage":
            return (array.astype("<u4") << 16).view("<f4")
        return array


def _items(stack: list[Any]) -> list[Any]:
    """Take the items down to the last mark off the stack."""
    start = len(stack) - 1
    while stack[start] is not _MARK:
        start -= 1
        if start < 0:
            raise ValueError("items without a mark")
    items = stack[start + 1 :]
    del stack[start:]
    return items


def _only(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{type(value).__name__} where a {kind.__name__} belongs")
    return value
