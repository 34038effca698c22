"""A run's files: written whole or not at all, read with errors that name the file."""

import json
import math
import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from ..errors import RunError


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: temporary name in the same folder, then rename."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value) -> None:
    """`value` as strict JSON; numbers that are not finite become null."""
    write_text(path, json.dumps(jsonable(value), indent=1, allow_nan=False) + "\n")


def read_json(path: Path, default):
    """The file's value, or `default` when there is no such file.

    Raises:
        RunError: the file is no JSON; the workbench's own writes are whole, so something else changed it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return default
    except ValueError as error:
        raise RunError(f"{path}: not JSON ({error}); mend or remove the file") from error


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


def load_metrics(path: Path):
    """A `metrics.jsonl` as a DataFrame. A last line cut short by a kill is left out.

    Raises:
        RunError: no such file, or a damaged line before the last.
    """
    import pandas as pd

    if not path.is_file():
        raise RunError(f"{path}: no metrics; the run logged no step")
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):  # only a line without its newline may be half written
                raise RunError(f"{path}, line {number}: not JSON ({error}); remove or mend that line") from error
    return pd.DataFrame(rows)
