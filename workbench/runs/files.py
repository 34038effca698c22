"""A run's files: written whole or not at all, read in this one place, with errors that name the file.

A run's folder may come from anyone. Its files are opened only if they are plain files, never through a link, and what is in
them is checked, so that an odd one is an error that names it and nothing worse.
"""

import contextlib
import errno
import io
import json
import math
import os
import re
import stat
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TextIO

from ..errors import RunError
from .shapes import problem_of, too_deep

_LARGEST = 64_000_000  # bytes of a JSON file, of one line of metrics
_BLOCK = 16_000_000  # bytes of metrics parsed at a time


# --- writing --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def whole_file(path: Path, *, on_disk: bool = False) -> Iterator[Path]:
    """A temporary name in the same folder, to write the file under; it becomes `path` when the block ends, or is removed.

    Args:
        path: of the file; what stands there is replaced at once, and stays when the block fails.
        on_disk: wait until the disk has it, for a file in whose place others are removed.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        if on_disk:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process left under temporary names (see `whole_file`) in a run's folder and below it."""
    for inner, _, names in os.walk(folder):
        for name in names:
            if re.fullmatch(r"\..+\.[0-9a-f]{32}", name):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(inner, name))


def files_named(folder: Path, name: str) -> list[Path]:
    """Every file of a name in a folder and below it; a folder that vanishes meanwhile, as an old checkpoint does, has none."""
    return sorted(Path(inner) / name for inner, _, names in os.walk(folder) if name in names)


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value) -> None:
    """`value` as strict JSON; numbers that are not finite become null."""
    write_text(path, json.dumps(jsonable(value), indent=1, allow_nan=False) + "\n")


def append_plain(path: Path) -> TextIO:
    """A text file of a run, opened to be written on; made where there is none.

    Raises:
        OSError: as of `open`; a link is not followed, it could lead out of the run.
    """
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    return os.fdopen(number, "a", encoding="utf-8", errors="backslashreplace")


def jsonable(value):
    """`value` with numpy and torch values, paths and non-finite numbers made fit for strict JSON.

    Example:
        >>> jsonable({1: (Path("runs"), float("nan"))})
        {'1': ['runs', None]}
    """
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set):
        return [jsonable(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # arrays, tensors, and scalars of both
        return jsonable(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# --- reading --------------------------------------------------------------------------------------------------------


def open_plain(path: Path) -> BinaryIO:
    """A file of a run, opened for its bytes.

    A link could lead to a private file, and opening a pipe would wait for ever: neither is opened.

    Raises:
        RunError: a link, or no plain file.
        OSError: as of `open`: no such file, or one that may not be read.
    """
    return os.fdopen(_open_plain(path)[0], "rb")


def _open_plain(path: Path) -> tuple[int, int]:
    """Number and size in bytes of a plain file that is open."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise RunError(f"{path}: a link or a socket, not a plain file; it is not opened") from None
        raise
    about = os.fstat(number)
    if not stat.S_ISREG(about.st_mode):
        os.close(number)
        raise RunError(f"{path}: not a plain file; it is not opened")
    return number, about.st_size


def read_text(path: Path, most: int = _LARGEST) -> str:
    """A file of a run as text; bytes that are no UTF-8 are shown as such.

    Args:
        path: of the file.
        most: bytes that such a file can have.

    Raises:
        RunError, OSError: as `open_plain`, or a larger file.
    """
    number, size = _open_plain(path)  # no file object of Python's: it takes longer to make than a small file to read
    try:
        if size > most:
            raise RunError(f"{path}: larger than {most / 1e6:.0f} MB; no run records that much there")
        data = os.read(number, size)
        while len(data) < size and (more := os.read(number, size - len(data))):
            data += more
    finally:
        os.close(number)
    return data.decode("utf-8", "backslashreplace")


def read_json(path: Path, default):
    """The file's value, or `default` when there is no such file.

    Raises:
        RunError: the file is no JSON, or not what a file of that name holds. The workbench's own writes are whole, so
            something else made or changed it. Also as `read_text`.
    """
    try:
        text = read_text(path)
    except FileNotFoundError:
        return default
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: not JSON ({error}); mend or remove the file") from error
    problem = "nested too deep" if too_deep(text, value) else problem_of(path.name, value)
    if problem:
        raise RunError(f"{path}: {problem}; mend or remove the file")
    return value


def read_tail(path: Path, most: int) -> str:
    """The last `most` bytes of a file of a run, as text; a character cut at their start is left out.

    Raises:
        RunError, OSError: as `open_plain`.
    """
    with open_plain(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        data = file.read(most)
    return data.lstrip(bytes(range(0x80, 0xC0))).decode("utf-8", "replace")


# --- metrics --------------------------------------------------------------------------------------------------------


def metric_lines(path: Path) -> Iterator[tuple[bytes, dict]]:
    """The lines of a `metrics.jsonl`, each as it stands and parsed. A last line cut short by a kill is left out.

    Raises:
        RunError: no such file, or a damaged line before the last.
    """
    with _open_metrics(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield line, _row(line)
                except ValueError as error:
                    if line.endswith(b"\n"):  # only a line without its newline may be half written
                        raise RunError(f"{path}, line {number}: {error}; remove or mend that line") from error


def _open_metrics(path: Path) -> BinaryIO:
    try:
        return open_plain(path)
    except FileNotFoundError:
        raise RunError(f"{path}: no metrics; the run logged no step") from None


def _row(line: bytes) -> dict:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(f"{repr(row)[:80]} is no object, {{...}}")
    return row


def load_metrics(path: Path):
    """A `metrics.jsonl` as a DataFrame. A last line cut short by a kill is left out.

    Raises:
        RunError: no such file, or a damaged line before the last.
    """
    import pandas as pd

    table = _plain_table(path)
    return pd.DataFrame([row for _, row in metric_lines(path)]) if table is None else table


def _plain_table(path: Path):
    """The same by pyarrow, faster and with less memory; None where a line is damaged or a column not of one plain type."""
    import pyarrow as pa
    import pyarrow.json as pj

    tables = []
    try:
        with _open_metrics(path) as file:
            while lines := file.readlines(_BLOCK):
                if not lines[-1].endswith(b"\n") and not _is_whole(lines[-1]):
                    lines.pop()
                data, count = b"".join(lines), sum(not line.isspace() for line in lines)
                if count:
                    tables.append(pj.read_json(io.BytesIO(data), pj.ReadOptions(block_size=len(data) + 1)))
                    if len(tables[-1]) != count:
                        return None
        table = pa.concat_tables(tables, promote_options="permissive")
        plain = (pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.null())
        return table.to_pandas() if tables and set(table.schema.types) <= set(plain) else None
    except (pa.ArrowException, UnicodeDecodeError):
        return None


def _is_whole(line: bytes) -> bool:
    try:
        return bool(_row(line))
    except ValueError:
        return False


def last_metrics(path: Path) -> dict:
    """The last whole line of a `metrics.jsonl`, found from the end of the file; empty when there is none.

    Raises:
        RunError: no such file, or its last line is damaged.
    """
    with _open_metrics(path) as file:
        end = file.seek(0, os.SEEK_END)
        for size in (65_536, 1_000_000, _LARGEST):
            file.seek(max(0, end - size))
            lines = file.read(size).split(b"\n")
            if not _is_whole(lines[-1]):
                lines.pop()  # cut short, or nothing after the last newline
            whole = lines if end <= size else lines[1:]
            if line := next((line for line in reversed(whole) if line.strip()), b""):
                break
    try:
        return _row(line) if line else {}
    except ValueError as error:
        raise RunError(f"{path}, last line: {error}; remove or mend that line") from error
