"""The parts of `completions.parquet/`, read one at a time; one that was cut short is named, and the others are shown."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import RunError
from .files import open_plain

FOLDER = "completions.parquet"
_NAME = re.compile(r"part-(\d+)(?:-(\d+))?\.parquet")
_OLD_JOINED = "part-000000.parquet"
_SMALL = 8_000_000  # bytes: such a part is read at once, which is faster
_TRIES = 5  # at reading parts that are joined meanwhile


class Part(NamedTuple):
    """A file and the steps that it holds, both included."""

    path: Path
    first: int
    last: int


def read_completions(out_dir: Path) -> tuple[Any, list[str]]:
    """All recorded completions; parts are opened one at a time.

    Args:
        out_dir: where the training recorded.

    Returns:
        DataFrame `step, prompt, completion, finish_reason, reward, ...`, empty when none were recorded; and a sentence for
        each part that cannot be read, which is left out.

    Raises:
        RunError: `completions.parquet` is a link.
    """
    import pandas as pd
    import pyarrow as pa

    tables, damaged = _again(lambda: each(parts_in(out_dir / FOLDER), _rows))
    if not tables:
        return pd.DataFrame(), damaged
    try:
        return pa.concat_tables(tables, promote_options="permissive").to_pandas(), damaged
    except pa.ArrowException:  # a column is of other types from one part to the next
        return pd.concat([t.to_pandas() for t in tables], ignore_index=True), damaged


def ends_of_completions(out_dir: Path, most: int) -> tuple[list[dict], int, list[str]]:
    """The first and the last recorded completions; reads little more than those.

    Args:
        out_dir: as for `read_completions`.
        most: rows from each end.

    Returns:
        The rows, all of them where they are at most `2 * most`; how many are recorded; a sentence for each damaged part.

    Raises:
        RunError: as `read_completions`.
    """
    return _again(lambda: _ends(parts_in(out_dir / FOLDER), most))


def _ends(parts: Sequence[Part], most: int) -> tuple[list[dict], int, list[str]]:
    counts, damaged = each(parts, lambda file: file.metadata.num_rows)
    first, problems = _take(parts, 2 * most, _first_rows)
    rows, damaged = [row for some in first for row in some], damaged + problems
    if sum(counts) > 2 * most:
        last, problems = _take(parts[::-1], most, _last_rows)
        ending = [row for some in last[::-1] for row in some]
        rows, damaged = rows[:most] + ending[-most:], damaged + problems
    return rows, sum(counts), list(dict.fromkeys(damaged))


def _take(parts: Sequence[Part], most: int, read: Callable) -> tuple[list[list[dict]], list[str]]:
    """Rows of one part after the other until there are `most`."""
    taken: list[list[dict]] = []
    damaged: list[str] = []
    for part in parts:
        if sum(map(len, taken)) >= most:
            break
        found, problems = each([part], lambda file: read(file, most))
        taken, damaged = taken + found, damaged + problems
    return taken, damaged


def _first_rows(file, most: int) -> list[dict]:
    rows: list[dict] = []
    for batch in file.iter_batches(batch_size=most):
        rows += batch.to_pylist()
        if len(rows) >= most:
            break
    return rows[:most]


def _last_rows(file, most: int) -> list[dict]:
    rows: list[dict] = []
    for n in reversed(range(file.num_row_groups)):
        group = file.read_row_group(n)
        rows = group.slice(max(0, len(group) - most)).to_pylist() + rows
        if len(rows) >= most:
            break
    return rows[-most:]


def _rows(file):
    table = file.read(use_threads=False).replace_schema_metadata(None)
    return table.select([name for name in table.column_names if not name.startswith("__index_level_")])


def _last_step(file) -> int:
    import pyarrow.compute as pc

    return pc.max(file.read(["step"])["step"]).as_py() or 0


def parts_in(folder: Path) -> list[Part]:
    """The parts in the order of their steps, without those that a joined one covers."""
    if folder.is_symlink():
        raise RunError(f"{folder}: a link; it is not opened")
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            last = int(match[2] or match[1])
            if path.name == _OLD_JOINED:
                last = max(each([Part(path, 0, 0)], _last_step)[0], default=0)
            found.append(Part(path, int(match[1]), last))
    parts: list[Part] = []
    for part in sorted(found, key=lambda p: (p.first, -p.last)):
        if not parts or part.last > parts[-1].last:
            parts.append(part)
    return parts


def each(parts: Sequence[Part], read: Callable[[Any], Any]) -> tuple[list, list[str]]:
    """What `read` makes of each part, and a sentence for each that is damaged."""
    found, damaged = [], []
    for part in parts:
        try:
            with named(part.path), opened(part.path) as file:
                found.append(read(file))
        except RunError as error:
            damaged.append(f"{error}; the other parts are shown.")
    return found, damaged


def _again(read: Callable[[], Any]):
    """Parts may go, because they are joined, between their listing and their reading."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return read()
    return read()


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_plain(path) as file:
        with named(path):
            small = os.fstat(file.fileno()).st_size <= _SMALL
            parquet = pq.ParquetFile(pa.BufferReader(file.read()) if small else file)
            if not any(f.name == "step" and pa.types.is_integer(f.type) for f in parquet.schema_arrow):
                raise RunError(f"{path}: not a part of completions, it has no column `step` of whole numbers")
        yield parquet


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors of a damaged file, which are of many kinds, as one that names it."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read, it was cut short or damaged ({error})") from error
