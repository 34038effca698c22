"""A user's Python file with rules, features or readers of their own: it is executed, because the user has named it."""

import os
import runpy
import traceback
from collections.abc import Collection
from typing import TypeVar

from ..errors import ParameterError

_Kind = TypeVar("_Kind")


def load_own(
    path: str | os.PathLike, option: str, kind: type[_Kind], built_in: Collection[_Kind], room: str
) -> list[_Kind]:
    """Run the file that an option such as `rules` names, and take what the decorator of that kind has made in it.

    Args:
        kind: what the decorator makes; it has the name of the class, as `@rule` makes a `Rule`.
        built_in: those of the workbench, which a file may import.
        room: where the decorator is imported from, such as `workbench.audit`.

    Raises:
        ParameterError: no such file, an error in it, or nothing of that kind in it.
    """
    name = kind.__name__.lower()
    expected = f"expected a Python file with functions that `@{name}` of {room} decorates"
    if not os.path.isfile(path):
        raise ParameterError(f"{option}={path}: no such file; {expected}")
    try:
        values = list(runpy.run_path(os.fspath(path)).values())
    except (Exception, SystemExit) as error:
        where = line_of(error, os.fspath(path))
        raise ParameterError(f"{option}={where}: {type(error).__name__}: {error}; {expected}") from error
    own = [value for value in values if isinstance(value, kind) and value not in built_in]
    if not own:
        raise ParameterError(f"{option}={path}: the file defines no {name}; {expected}")
    return own


def line_of(error: BaseException, file: str) -> str:
    """A file with the last of its lines that led to an error, such as `my_rules.py:7`."""
    lines = [f":{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return file + "".join(lines[-1:])
