"""What trackers store: the databases of Trackio and MLflow, MLflow's folder, parquet, and tables with a row a value."""

import contextlib
import json
import sqlite3
from collections import Counter
from typing import Any

import pandas as pd

from ..errors import RunError
from ..runs.text import one_line
from .names import RUN_NAMES, canonical, of_reinforcement_learning, plain
from .reader import Source, reader
from .rows import Found, flat_row, lines_of, steps_of, what_is_lost

_MOST_ROWS = 2_000_000  # of a database or a parquet file
_METRIC = {"metricname", "metric_name", "metric", "name", "key", "tag", "attribute_path"}
_VALUE = {"value", "metricvalue", "metric_value", "float_value"}


@reader(sniff=lambda source: source.start.startswith(b"SQLite format 3\0"))
def database(source: Source) -> list[Found]:
    """The runs in a database of Trackio (a row a step, whose metrics are JSON) or of MLflow (a row a value).

    Raises:
        RunError: another database, or a damaged one.
    """
    path = source.path
    # `immutable` leaves no journal next to a file that is only read; what a running training has not merged yet is in `-wal`.
    written = path.with_name(f"{path.name}-wal").exists()
    mode = "mode=ro" if written else "mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as base:
            columns = [row[1] for row in base.execute("pragma table_info(metrics)")]
            if "run_uuid" in columns:
                in_order = f"order by timestamp, step limit {_MOST_ROWS}"
                values = base.execute(f"select run_uuid, key, step, value, is_nan from metrics {in_order}")
                return _of_mlflow(
                    [(run, key, step, float("nan") if lost else value) for run, key, step, value, lost in values]
                )
            rows = base.execute(
                f"select run_name, step, metrics from metrics order by id limit {_MOST_ROWS}"
            ).fetchall()
    except sqlite3.Error as error:
        raise RunError(
            f"{source.name}: a database, and none of Trackio or MLflow ({error}); export the run's metrics as CSV or JSON lines"
        ) from error
    runs: dict[str, list[dict]] = {}
    for name, step, metrics in rows:
        with contextlib.suppress(ValueError, TypeError):
            row = flat_row(json.loads(metrics))
            # transformers gives Trackio no step, which then counts the lines from 0.
            runs.setdefault(str(name), []).append({**row, "step": row.get("train/global_step", step)})
    return [Found("Trackio", steps_of(steps), f"run {name}" * (len(runs) > 1)) for name, steps in runs.items()]


def _is_mlflow_run(source: Source) -> bool:
    return (source.path / "meta.yaml").is_file() and (source.path / "metrics").is_dir()


@reader(sniff=_is_mlflow_run)
def mlflow_run(source: Source) -> list[Found]:
    """The folder of a run in `mlruns/`: a file for each metric, with a line `time value step` for each step."""
    values, metrics = [], source.path / "metrics"
    for path in sorted(p for p in metrics.rglob("*") if p.is_file() and not p.is_symlink()):
        name = path.relative_to(metrics).as_posix()
        for line in lines_of(path):
            words = line.split()
            if len(words) == 3:
                values.append(("", name, int(words[2]), float(words[1])))
    if not values:
        raise RunError(f"{source.name}: MLflow has no metric of this run")
    return _of_mlflow(values)


def _of_mlflow(values: list[tuple[str, str, int, float]]) -> list[Found]:
    """The runs in rows of run, metric, step and value."""
    runs: dict[str, dict[int, dict]] = {}
    places: dict[str, dict[int, dict]] = {}
    counts = Counter[tuple[str, str]]()
    for run, name, step, value in values:
        runs.setdefault(run, {}).setdefault(step, {"step": step})[name] = value
        counts[run, name] += 1
        places.setdefault(run, {}).setdefault(counts[run, name], {})[name] = value
    # `log_metric` without a step gives 0 to each value: then their places count.
    runs = {run: places[run] if len(steps) == 1 < len(places[run]) else steps for run, steps in runs.items()}
    tables = {run: steps_of(steps[n] for n in sorted(steps)) for run, steps in runs.items()}
    return [Found("MLflow", table, f"run {run[:8]}" * (len(runs) > 1)) for run, table in tables.items()]


@reader(sniff=lambda source: source.start.startswith(b"PAR1"))
def parquet(source: Source) -> list[Found]:
    """The steps in a parquet file with one row a step.

    Raises:
        RunError: no log of steps, such as TRL's completions.
    """
    import pyarrow  # takes a third of a second, and few logs need it
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(source.path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        expected = "expected a row a step. A file of completions only is read with its folder"
        raise RunError(f"{source.name}: a damaged parquet file ({one_line(str(error))[:80]}); {expected}") from error
    names = list(file.schema_arrow.names)
    if {"prompt", "completion"} <= set(names) or not of_reinforcement_learning(names):
        holds = "completions only" if "completion" in names else f"columns {', '.join(names[:8])}"
        raise RunError(f"{source.name}: it holds {holds}; give the folder with them and trainer_state.json")
    if file.metadata.num_rows > _MOST_ROWS:
        raise RunError(f"{source.name}: {file.metadata.num_rows:,} rows; expected a row a step, at most {_MOST_ROWS:,}")
    table = file.read().to_pandas()
    return [Found("parquet", table[[c for c in table if table[c].dtype != object or plain(c) in RUN_NAMES]])]


def is_long(columns) -> bool:
    """True for a table with a row a value, as Comet and Neptune export it: a step, the name of a metric and its value.

    Example:
        >>> is_long(["experiment", "metricName", "step", "value"]), is_long(["step", "reward", "value"])
        (True, False)
    """
    names = {plain(column) for column in columns}
    return bool(names & _METRIC and names & _VALUE) and "step" in canonical(map(str, columns)).values()


def wide(table: pd.DataFrame) -> list[Found]:
    """The runs in such a table, a row a step each."""
    by_name = {plain(column): column for column in table}
    metric = next(by_name[name] for name in by_name if name in _METRIC)
    value = next(by_name[name] for name in by_name if name in _VALUE)
    step = next(column for column, name in canonical(map(str, table.columns)).items() if name == "step")
    runs = next((by_name[name] for name in by_name if name in RUN_NAMES and by_name[name] != metric), None)
    found = []
    for label, part in [("", table)] if runs is None else table.groupby(runs, sort=False):
        numbers = part.assign(**{value: pd.to_numeric(part[value], errors="coerce")})
        steps = numbers.pivot_table(
            index=step, columns=metric, values=value, aggfunc="last", dropna=False
        ).reset_index()
        steps = steps.rename_axis(columns=None)
        rows: dict[Any, dict] = {}
        for at, name, logged in zip(part[step], part[metric], part[value], strict=True):
            rows.setdefault(at, {})[name] = logged
        steps.attrs |= what_is_lost([rows[at] for at in sorted(at for at in rows if at == at)])
        several = runs is not None and table[runs].nunique() > 1
        found.append(Found("long table", steps, f"{runs} {label}" if several else ""))
    return found
