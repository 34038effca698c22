"""Readers of logs that anybody may have written: plain files only, never executed, with errors that name the file."""

import codecs
import dataclasses
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from ..errors import RunError
from ..runs.files import files_named, open_plain, read_json
from ..runs.parts import read_completions
from ..runs.recorded import completions_table, last_trainer_state, read_trl_completions
from ..runs.text import one_line
from .config import facts_of
from .log import Log
from .tables import steps_table

_LARGEST_TABLE = 512_000_000  # bytes of a CSV
_LONGEST_LINE = 1_000_000  # bytes of a line that is parsed; longer ones are skipped
_CONSOLE_LINE = re.compile(rb"\{'[^{}]{1,20000}\}")
_REWARD = re.compile(r"(?:train/)?rewards/(.+)/mean")
_ENTRY = re.compile(r"'([^']{1,80})': '?(-?(?:\d[\d.e+-]*|nan|inf))'?[,}]")


def read_logs(path: str | os.PathLike) -> list[Log]:
    """All runs below a path: a folder of TRL or of the workbench, or a file of any known kind.

    Args:
        path: of the user's own choice, so a link to it is followed; links in it are not.

    Raises:
        RunError: nothing in it that can be read, with what was expected.
        MissingDependencyError: a TensorBoard file, without TensorBoard.
    """
    given = Path(path)
    try:
        found = given.expanduser().resolve()
    except RuntimeError as error:  # no such user, or a link to itself
        raise RunError(f"{given}: {error}") from error
    if found.is_dir():
        logs = _folder(found)
        if not logs:
            raise RunError(
                f"{given}: no log in this folder; expected trainer_state.json, checkpoint-*/, metrics.jsonl, a .jsonl or "
                ".csv file or TensorBoard events"
            )
        return [dataclasses.replace(log, name=str(given / log.name)) for log in logs]
    if not found.exists():
        raise RunError(f"{given}: no such file or folder")
    return [dataclasses.replace(_file(found), name=str(given))]


# --- folders --------------------------------------------------------------------------------------------------------


def _folder(folder: Path) -> list[Log]:
    recorded = [p.parent for p in _below(folder, "metrics.jsonl")]
    if recorded:
        return [_own_run(inner, folder) for inner in recorded]
    state = last_trainer_state(folder)
    if state is not None:
        return [_trl_folder(folder, state)]
    kinds = ("*.jsonl", "*.csv", "*tfevents*")
    files = [p for kind in kinds for p in sorted(folder.glob(kind)) if p.is_file() and not p.is_symlink()]
    logs, refused = [], []
    for path in files:
        try:
            logs.append(_file(path))
        except RunError as error:  # events of an evaluation alone, or data beside the log
            refused.append(error)
    if refused and not logs:
        raise refused[0]
    return logs


def _below(folder: Path, name: str) -> list[Path]:
    """Files of a name in a folder and below it; links are not followed, and one that is still empty is left out."""
    return [p for p in files_named(folder, name) if not p.is_symlink() and p.stat().st_size]


def _own_run(folder: Path, top: Path) -> Log:
    table, damage = _json_lines(folder / "metrics.jsonl")
    facts, more = facts_of(folder)
    recorded, broken = read_completions(folder)
    return _log(
        str(folder.relative_to(top)), "metrics.jsonl", table, folder, facts, recorded, [*damage, *more, *broken]
    )


def _trl_folder(folder: Path, state: Path) -> Log:
    facts, damage = facts_of(folder)
    home = folder if (folder / "completions").is_dir() or not folder.name.startswith("checkpoint-") else folder.parent
    recorded, broken = read_trl_completions(home / "completions")
    return _log("", "trainer_state.json", _trainer_state(state), state, facts, recorded, [*damage, *broken])


def _log(name: str, kind: str, raw, source: Path, facts: dict, recorded=None, damage: Sequence[str] = ()) -> Log:
    steps, order, wrong = steps_table(raw, str(source))
    functions = {m[1] for column in raw if (m := _REWARD.fullmatch(str(column)))}
    completions = None if recorded is None else completions_table(recorded)
    facts = {"reward_functions": len(functions), **facts}
    return Log(name, kind, steps, order, completions, facts, (*damage, *wrong))


# --- files ----------------------------------------------------------------------------------------------------------


def _file(path: Path) -> Log:
    """A log in one file, whose kind its name tells, or else its first bytes."""
    if path.name == "trainer_state.json":
        folder = path.parent
        return _trl_folder(folder, path)
    kind, read = _kind(path)
    table, damage = read(path)
    facts = {"trainer": "verl"} if kind == "verl JSONL" else {}
    return _log(path.name, kind, table, path, facts, None, damage)


def _kind(path: Path) -> tuple[str, Callable[[Path], tuple[pd.DataFrame, list[str]]]]:
    if "tfevents" in path.name:
        return "TensorBoard", _tensorboard
    if path.suffix.lower() in (".csv", ".tsv"):
        return "CSV", _csv
    if path.suffix.lower() == ".json":
        return "trainer_state.json", lambda p: (_trainer_state(p), [])
    with open_plain(path) as file:
        start = file.read(4096).lstrip(b"\xef\xbb\xbf \r\n\t")
    if start.startswith(b"PAR1"):
        raise RunError(f"{path}: completions alone; give the folder that holds them and trainer_state.json")
    if start[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK"):
        raise RunError(f"{path}: a pickle or an archive, which is never opened; give trainer_state.json or another log")
    if re.match(rb'\{\s*"', start):
        return ("verl JSONL" if b'"data"' in start else "JSONL"), _json_lines
    return "console log", _console


def _trainer_state(path: Path) -> pd.DataFrame:
    value = read_json(path, None)
    history = value.get("log_history") if isinstance(value, dict) else None
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history) or not history:
        raise RunError(f"{path}: no log_history; expected a trainer_state.json with at least one logged step")
    rows = [row for row in history if "train_runtime" not in row]  # the closing summary is no step
    rows = [row for row in rows if not any(str(name).startswith("eval_") for name in row)] or rows
    return pd.DataFrame(rows)


def _lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    """The lines of a file and whether each is whole; of one longer than `_LONGEST_LINE` only the start is given."""
    with open_plain(path) as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # what PowerShell's `>` writes
            file.seek(0)
            yield from ((line.encode(), True) for line in io.TextIOWrapper(file, "utf-16", errors="replace"))
            return
        file.seek(0)
        size = os.fstat(file.fileno()).st_size
        bar = tqdm(total=size, desc=one_line(path.name), unit="B", unit_scale=True, delay=1, leave=False, disable=None)
        with bar:
            while line := file.readline(_LONGEST_LINE):
                whole = line.endswith(b"\n")
                bar.update(len(line))
                yield line, whole or len(line) < _LONGEST_LINE
                while not whole and len(rest := file.readline(_LONGEST_LINE)):
                    whole = rest.endswith(b"\n")
                    bar.update(len(rest))


def _json_lines(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """One object a line, as the workbench writes them and verl, which puts its metrics under `data`."""
    rows, broken = [], 0
    for line, _ in _lines(path):
        if line.strip():
            try:
                row = json.loads(line.lstrip(b"\xef\xbb\xbf"))
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                data = row.get("data")
                rows.append({**data, "step": row.get("step")} if isinstance(data, dict) else row)
            else:
                broken += 1
    if not rows:
        raise RunError(f"{path}: no line of it is a JSON object; expected one a step")
    return pd.DataFrame(rows), [f"{path.name}: {broken} of {len(rows) + broken} lines are no JSON objects"] * (
        broken > 0
    )


def _console(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """TRL's `{'loss': ..., 'reward': ...}` between anything else, progress bars too; steps have no numbers there."""
    rows, skipped = [], 0
    for line, whole in _lines(path):
        skipped += not whole
        for match in _CONSOLE_LINE.findall(line):
            entries = _ENTRY.findall(match.decode("utf-8", "replace"))
            row = {name: float(value) for name, value in entries if _fits(value)}
            if row and not any(n.startswith("eval_") or n == "train_runtime" for n in row):
                rows.append(row)
    if not rows:
        raise RunError(
            f"{path}: no line like {{'loss': 0.1, 'reward': 0.5}} in it; expected what TRL prints while it trains"
        )
    return pd.DataFrame(rows), [f"{path.name}: {skipped} lines longer than 1 MB were not read"] * (skipped > 0)


def _fits(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _csv(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Any table with a column of steps, W&B's history among them; `RUN - metric` of its charts loses the run's name."""
    with open_plain(path) as file:
        if os.fstat(file.fileno()).st_size > _LARGEST_TABLE:
            raise RunError(f"{path}: larger than {_LARGEST_TABLE / 1e6:.0f} MB; expected one row a step")
        data = file.read()
    try:
        table = pd.read_csv(io.BytesIO(data), encoding="utf-8-sig", sep="\t" if path.suffix.lower() == ".tsv" else ",")
    except (ValueError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: no table ({error}); expected a line of names and one row a step") from error
    charts = {c: c.rsplit(" - ", 1)[1] for c in table if " - " in str(c) and not str(c).endswith(("__MIN", "__MAX"))}
    table = table.rename(columns=charts)
    if not table.columns.is_unique:
        raise RunError(f"{path}: a chart of several runs; export the history of one run")
    return table, []


def _tensorboard(path: Path) -> tuple[pd.DataFrame, list[str]]:
    from ..curves.baselines import import_tensorboard

    return import_tensorboard(path), []
