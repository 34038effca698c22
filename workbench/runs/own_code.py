"""A user's module, or file with rules, features or readers of their own: it is executed, because the user has named it."""

import importlib
import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
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


def load_module(source: str, expected: str) -> ModuleType:
    """Import a module by its name, also from the current folder, or a file that ends with `.py`.

    Raises:
        ParameterError: no such file; it says what was `expected`. An error of the module stays what it is.
    """
    if source.endswith(".py"):
        return _of_file(Path(source), expected)
    if "" not in sys.path:
        sys.path.insert(0, "")
    return importlib.import_module(source)


def _of_file(path: Path, expected: str) -> ModuleType:
    if not path.is_file():
        raise ParameterError(f"{path}: no such file; {expected}")
    taken = sys.modules.get(path.stem)  # a file `json.py` is not to replace the library for everybody
    ours = taken is None or getattr(taken, "__file__", None) == str(path.resolve())
    name = path.stem if ours else f"{path.stem}_of_the_user"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ParameterError(f"{path}: no Python file; {expected}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def line_of(error: BaseException, file: str) -> str:
    """A file with the last of its lines that led to an error, such as `my_rules.py:7`."""
    lines = [f":{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return file + "".join(lines[-1:])
