"""What a training records of its completions: a line of `completions.jsonl` each, and their tokens in `tokens/`."""

import contextlib
import os
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import RunError
from .files import json_lines, move_aside, open_plain, whole_file

FILE = "completions.jsonl"
TOKENS = "tokens"  # folder of ids and log-probs, beside the completions, so that reading those stays cheap
STEPS = "steps"  # folder of single steps, each all that its loss consumed
_PART = re.compile(r"part-(\d+)-(\d+)\.parquet")  # first and last step
_LATEST = 8_000_000  # bytes from the end in which the last completions are looked for


def read_completions(record_dir: Path) -> tuple[Any, list[str]]:
    """All recorded completions, and a sentence for each line that cannot be read."""
    import pandas as pd

    rows: list[dict] = []
    damaged: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        rows = [row for _, row in json_lines(record_dir / FILE, damaged) if type(row.get("step")) is int]
    return pd.DataFrame(rows), damaged


def count_completions(record_dir: Path) -> int:
    """Return how many completions are recorded."""
    with contextlib.suppress(FileNotFoundError), open_plain(record_dir / FILE) as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    return 0


def ends_of_completions(record_dir: Path, most: int) -> tuple[list[dict], int, list[str]]:
    """The first and the last recorded completions; reads little more than those."""
    path = record_dir / FILE
    damaged: list[str] = []
    if not os.path.lexists(path):
        return [], 0, []
    total = count_completions(record_dir)
    first = [row for _, row in islice(json_lines(path, damaged), 2 * most)]
    # Damaged lines count in the total and give no rows: fewer than asked for are all there are.
    if len(first) < 2 * most or total <= 2 * most:
        return first, total, damaged
    last = [row for _, row in json_lines(path, damaged, last=_LATEST)]
    return first[:most] + last[-most:], total, list(dict.fromkeys(damaged))


def forget_after(record_dir: Path, step: int) -> float:
    """Drop what was recorded after `step`, which a resumed run repeats; at step 0 a former record is moved aside."""
    if not step and _holds_record(record_dir):
        names = ("metrics.jsonl", FILE, TOKENS, STEPS, "recipe.json", "progress.json")
        move_aside(record_dir, names, "holds the record of a training, and a new one begins")
    for path in token_parts(record_dir):
        _cut_part(path, step)
    for path in (record_dir / STEPS).glob("step-*"):
        if int(re.sub(r"\D.*", "", path.name[5:]) or 0) > step:
            path.unlink()
    _cut_lines(record_dir / FILE, step)
    return _cut_lines(record_dir / "metrics.jsonl", step)


def _holds_record(record_dir: Path) -> bool:
    """Say whether something of a step is recorded; of a training that logs each tenth step completions are, before metrics."""
    files = [record_dir / "metrics.jsonl", record_dir / FILE, *(record_dir / STEPS).glob("step-*")]
    return any(path.is_file() and path.stat().st_size for path in files)


def _cut_lines(path: Path, step: int) -> float:
    seconds = 0.0
    with contextlib.suppress(FileNotFoundError), whole_file(path) as temporary, temporary.open("wb") as kept:
        damaged: list[
            str
        ] = []  # what a power cut leaves behind the last step kept goes with the steps that are dropped
        for line, row in json_lines(path, damaged):
            if type(row.get("step")) is not int:
                raise RunError(f"{path}: a line without a step: {line[:80]!r}; remove or repair it")
            if row["step"] <= step:
                if damaged:
                    problem, _, _ = damaged[0].rpartition("; ")
                    raise RunError(f"{problem}; remove or repair that line: step {row['step']} behind it is to stay")
                kept.write(line.rstrip(b"\n") + b"\n")  # a full disk may have cut off just that
                seconds = row.get("elapsed_s", seconds)
    return seconds


# --- ids and log-probs of tokens ------------------------------------------------------------------------------------


def save_tokens(record_dir: Path, first: int, last: int, table) -> None:
    """Write the tokens of steps `first` to `last` as one part, whole or not at all."""
    folder = record_dir / TOKENS
    folder.mkdir(exist_ok=True)
    with whole_file(folder / f"part-{first:06d}-{last:06d}.parquet") as temporary:
        table.to_parquet(temporary)


def token_parts(record_dir: Path) -> list[Path]:
    """The parts of a training's tokens, in the order of their steps."""
    folder = record_dir / TOKENS
    if folder.is_symlink():
        raise RunError(f"{folder}: a link; it is not opened")
    return sorted(p for p in folder.iterdir() if _PART.fullmatch(p.name)) if folder.is_dir() else []


def read_parts(paths: Sequence[Path]) -> tuple[Any, list[str]]:
    """Tables in parquet files as one DataFrame, and a sentence for each that cannot be read."""
    import pandas as pd

    if not paths:
        return pd.DataFrame(), []
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return pd.DataFrame(), [f"{paths[0]}: reading a parquet file needs pyarrow: pip install pyarrow"]
    tables, damaged = [], []
    for path in paths:
        try:
            with open_plain(path) as file:
                table = pq.read_table(pa.BufferReader(file.read())).to_pandas(ignore_metadata=True)
            if "step" not in table or not pd.api.types.is_integer_dtype(table["step"]):
                raise RunError(f"{path}: it has no column `step` of whole numbers")
            tables.append(table.drop(columns=[c for c in table if str(c).startswith("__index_level_")]))
        except (pa.ArrowException, OSError, ValueError, RunError) as error:
            damaged.append(f"{path}: cannot be read, it was cut short or damaged ({error}); the other parts are shown.")
    return (pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()), damaged


def _cut_part(path: Path, step: int) -> None:
    """Keep the rows of a part up to `step`; one that cannot be read is kept as it is."""
    first, last = map(int, path.stem.split("-")[1:])
    if first > step:
        path.unlink()
    elif last > step:
        table, damaged = read_parts([path])
        if not damaged:
            with whole_file(path.with_name(f"part-{first:06d}-{step:06d}.parquet")) as temporary:
                table[table["step"] <= step].to_parquet(temporary)
            path.unlink()
