"""A reader of logs: a function that makes rows of a file or folder, and one that says which files it can read."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import ParameterError, WorkbenchError
from ..runs.files import open_plain
from ..runs.own_code import line_of
from ..runs.text import one_line
from .rows import Found, flat_row, steps_of

_START = 4096  # bytes
_RETURNS = "expected rows (a dict a step), a table, or a dict with these of each run"


@dataclasses.dataclass(frozen=True)
class Source:
    """A file or folder that a reader is asked about.

    Attributes:
        path: where it is. A packed file, or standard input, is an unpacked copy with another name.
        name: what errors call it, with the name that the file has for the user.
        start: its first 4,096 bytes; of a folder none.
    """

    path: Path
    name: str
    start: bytes = b""

    @classmethod
    def of(cls, path: Path, name: str) -> "Source":
        """Return what is at a path."""
        if path.is_dir():
            return cls(path, name)
        with open_plain(path) as file:
            return cls(path, name, file.read(_START))

    @property
    def suffix(self) -> str:
        """Such as `.csv`, in small letters; of a folder an empty string."""
        return "" if self.path.is_dir() else Path(self.name).suffix.lower()


@dataclasses.dataclass(frozen=True, eq=False)
class Reader:
    """What `reader` makes of a function; called with a source, it gives the runs in it."""

    function: Callable[[Source], Any]
    sniff: Callable[[Source], bool]
    files: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`our_logger` -> `our logger`."""
        return self.function.__name__.replace("_", " ")

    @property
    def is_built_in(self) -> bool:
        """True for one of the workbench's own."""
        return self.function.__module__.startswith("workbench.")

    def takes(self, source: Source) -> bool:
        """True if it can read a source."""
        return bool(self._asked(self.sniff, source))

    def __call__(self, source: Source) -> list[Found]:
        """The runs in a source."""
        return self._asked(lambda given: _runs(self.function(given), self.name), source)

    def _asked(self, function: Callable[[Source], Any], source: Source) -> Any:
        """The answer to a source; an error of a user's function names its line."""
        try:
            return function(source)
        except WorkbenchError:
            raise
        except Exception as error:
            if self.is_built_in:
                raise
            where = line_of(error, self.function.__code__.co_filename)
            says = one_line(f"{type(error).__name__}: {error}")[:300]
            raise ParameterError(f"{source.name}: the reader {self.name} raised {says}; repair {where}") from error


def _runs(value: Any, kind: str) -> list[Found]:
    """The runs in what a reader returns."""
    if isinstance(value, list) and value and all(isinstance(run, Found) for run in value):
        return value
    if isinstance(value, Mapping):
        several = len(value) > 1
        return [Found(kind, _table(rows), f"run {run}" if several else "") for run, rows in value.items()]
    return [Found(kind, _table(value))]


def _table(rows: Any) -> pd.DataFrame:
    if isinstance(rows, pd.DataFrame):
        return rows
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise TypeError(f"it returned {rows!r:.80}; {_RETURNS}")
    return steps_of(_checked(rows))


def _checked(rows: Iterable[Any]) -> Iterable[dict]:
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"a row is {row!r:.80}; {_RETURNS}")
        yield flat_row(dict(row))


def reader(*, sniff: Callable[[Source], bool] | None = None, files: str | Sequence[str] = ()) -> Callable[..., Reader]:
    """Make a reader of logs from a function that takes a source and returns or yields its rows, a dict a step.

    `workbench audit PATH --readers FILE`, `workbench watch`, `audit_run` and `read_logs` ask your readers before the built-in
    ones. A row has the step and metrics under the names of `workbench/logs/names.py`, such as `step`, `reward`, `grad_norm`;
    further names are for rules of your own. In place of rows the function may return a pandas table, or a dict with the rows
    of each run. To refuse a file, raise `workbench.errors.RunError` with what to do.

    Args:
        sniff: True for what the function can read: `source.start` are the first bytes of a file, `source.suffix` is the end of
            its name, `source.path` opens it. Folders are asked too. None: by `files`.
        files: names of files, such as `"*.roll"`, for which a folder is searched in addition to the known endings.

    Raises:
        ParameterError: neither of the two is given.

    Example:
        >>> from workbench.logs import reader
        >>> @reader(files="*.roll")
        ... def roll(source):
        ...     for line in source.path.read_text().splitlines():
        ...         step, reward = line.split()
        ...         yield {"step": int(step), "reward": float(reward)}
        >>> roll.name, roll.files
        ('roll', ('*.roll',))
    """
    patterns = (files,) if isinstance(files, str) else tuple(files)
    if sniff is None and not patterns:
        raise ParameterError("reader: neither sniff nor files is given; expected files='*.ENDING', or sniff=FUNCTION")

    def by_name(source: Source) -> bool:
        name = Path(source.name).name
        return source.path.is_file() and any(fnmatch(name, pattern) for pattern in patterns)

    return lambda function: Reader(function, sniff or by_name, patterns)
