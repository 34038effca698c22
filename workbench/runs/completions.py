"""`completions.parquet/` as a training writes it: a part for each step, joined as it goes on so that parts stay few.

    part-000007.parquet           the completions of step 7
    part-000001-000064.parquet    those of steps 1 to 64, joined
    part-000000.parquet           those of all steps so far, as older versions joined them

No part is ever changed. A joined one is written beside those that it joins, and they go once it is safely on the disk. What a
kill in between leaves over lies within the steps of a joined part and is left out.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import RunError
from .files import metric_lines, whole_file
from .parts import FOLDER, Part, each, named, opened, parts_in

_LOOSE = 64  # parts of fewer steps than this, until they are joined
_ROWS = 10_000  # in memory at a time while joining


def save_part(out_dir: Path, step: int, completions, *, first: int | None = None) -> None:
    """Write the completions of a step, whole or not at all, and join those of earlier steps when they have become many.

    Args:
        out_dir: where the training records.
        step: later than all steps saved so far, or the last of them again, which is replaced.
        completions: DataFrame of the whole step.
        first: where it holds several steps, the first of them; `step` is the last.
    """
    folder = out_dir / FOLDER
    folder.mkdir(exist_ok=True)
    first = step if first is None else first
    earlier = [p for p in parts_in(folder) if p.last < first]
    name = f"part-{step:06d}.parquet" if first == step else f"part-{first:06d}-{step:06d}.parquet"
    with whole_file(folder / name) as temporary:
        completions.to_parquet(temporary)
    loose = list(itertools.takewhile(lambda p: p.last - p.first < _LOOSE - 1, reversed(earlier)))[::-1]
    if loose and len(loose) % _LOOSE == 0:
        joined, first = earlier[: -len(loose)], loose[0].first
        # Joined parts before them come in while they are no longer: so each row is written anew only a few times.
        while joined and joined[-1].last - joined[-1].first <= loose[-1].last - first:
            first = joined.pop().first
        _join(earlier[len(joined) :])


def join_completions(out_dir: Path) -> None:
    """Turn all parts into one, at the end of a training."""
    folder = out_dir / FOLDER
    _join(parts_in(folder))
    _remove_others(folder, parts_in(folder))


def forget_after(out_dir: Path, step: int) -> float:
    """Drop what was recorded after `step`, which a resumed run repeats, so that each step is recorded once.

    Returns:
        Seconds trained up to `step`.

    Raises:
        RunError: a damaged line of the metrics.
        OSError: a full disk; then everything recorded is still there.
    """
    folder = out_dir / FOLDER
    for part in parts_in(folder):
        if part.first <= step < part.last:
            _cut(part, step)
    _remove_others(folder, [p for p in parts_in(folder) if p.last <= step])
    return _forget_metrics(out_dir / "metrics.jsonl", step)


def _forget_metrics(path: Path, step: int) -> float:
    seconds = 0.0
    if not os.path.lexists(path):
        return seconds
    with whole_file(path) as temporary, temporary.open("wb") as kept:
        for line, row in metric_lines(path):
            if not isinstance(row.get("step"), int):
                raise RunError(f"{path}: a line without a step: {line[:80]!r}; remove or mend it")
            if row["step"] <= step and line.endswith(b"\n"):
                kept.write(line)
                seconds = row.get("elapsed_s", seconds)
    return seconds


def _join(parts: Sequence[Part]) -> None:
    """Join neighbouring parts that can be read; where that fails they stay as they are, which costs time only."""
    import pyarrow as pa

    readable: list[list[Part]] = [[]]
    for part in parts:
        if each([part], lambda file: file.metadata)[0]:
            readable[-1].append(part)
        else:  # it keeps its name, under which readers report it
            readable.append([])
    for group in readable:
        if len(group) > 1:
            with contextlib.suppress(OSError, RunError, pa.ArrowException):
                _write_joined(group, group[0].first, group[-1].last)


def _write_joined(parts: Sequence[Part], first: int, last: int) -> None:
    """Write the rows of steps `first` to `last` into a part of its own, then remove the `parts` that they come from."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schemas, damaged = each(parts, lambda file: file.schema_arrow.remove_metadata())
    if damaged:
        raise RunError(damaged[0])
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    target = parts[0].path.with_name(f"part-{first:06d}-{last:06d}.parquet")
    with whole_file(target, on_disk=True) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        pending = [schema.empty_table()]
        for table in itertools.chain.from_iterable(_tables(part.path, last) for part in parts):
            pending.append(table)
            if sum(map(len, pending)) >= _ROWS:
                writer.write_table(_as_one(pending, schema))
                pending = [schema.empty_table()]
        writer.write_table(_as_one(pending, schema))
    for part in parts:
        if part.path != target:
            part.path.unlink()


def _tables(path: Path, last: int) -> Iterator[Any]:
    """The rows of a part up to step `last`, some at a time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    with opened(path) as file:
        batches = file.iter_batches(batch_size=_ROWS)
        while True:
            with named(path):
                batch = next(batches, None)
            if batch is None:
                return
            table = pa.Table.from_batches([batch]).replace_schema_metadata(None)
            yield table.filter(pc.less_equal(table["step"], last))


def _as_one(tables: list, schema):
    import pyarrow as pa

    return pa.concat_tables(tables, promote_options="permissive").select(schema.names).cast(schema)


def _cut(part: Part, step: int) -> None:
    """Keep the rows up to `step`; a part that cannot be read is kept as it is, under the name of those steps."""
    try:
        _write_joined([part], part.first, step)
    except RunError:
        part.path.rename(part.path.with_name(f"part-{part.first:06d}-{step:06d}.parquet"))


def _remove_others(folder: Path, kept: Sequence[Part]) -> None:
    """Remove left-over parts, and temporary files of a process that was killed."""
    there = [p for pattern in ("part-*", ".part-*", "*.tmp") for p in folder.glob(pattern)]
    for path in set(there) - {part.path for part in kept}:
        path.unlink()
