"""Reads anybody's log: a file, a folder or standard input, each run in it as a `Log`. Nothing in it is executed."""

import codecs
import contextlib
import dataclasses
import functools
import gzip
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import ParameterError, RunError
from ..runs.files import ASIDE, is_second_record, open_plain
from .completions import completions_table, last_trainer_state, read_completions, read_trl_completions
from .formats import READERS, SUMMARY, TENSORBOARD, read_tensorboard, runs_in, tidied
from .log import Log
from .names import COUNTED, reward_columns, steps_table
from .reader import Reader, Source
from .rows import EXPECTED, Found, unusable_as_error
from .settings import facts_of, of_scripts

_MOST_UNPACKED = 1_000_000_000  # bytes of a .gz, or of standard input
_MOST_RATIO = 200  # unpacked to packed bytes: text is packed 5 to 50 times
# Files of a folder that may be its log, those first that hold most; what a line of these has read ends the search.
_PLACES = (
    ("*.jsonl", "*.csv", "*.tsv", "*tfevents*", "*.db"),
    ("runs/*/*tfevents*", "logs/*tfevents*", "logs/*/*tfevents*", "*.json", "*.parquet"),
    ("*.log", "*.out", "*.txt", "*.md", "*.ipynb", "*.gz", "files/output.log", "wandb/*/files/output.log"),
    (SUMMARY, f"files/{SUMMARY}", f"wandb/*/files/{SUMMARY}"),  # one step, so last
)
_BELOW = ("*.jsonl", "*.csv", "*.tsv", "*tfevents*", "*.log", "*.out")  # the same, in the folders below it
_NO_RUNS = ("node_modules", "site-packages", "venv", "__pycache__")  # folders of others' files
_MOST_FILES = 200  # of a folder that are tried


def read(path: str | os.PathLike, *, readers: Sequence[Reader] = ()) -> Log:
    """The one run at a path, see `read_logs`; several are a RunError that names them."""
    logs = read_logs(path, readers=readers)
    if len(logs) > 1:
        raise RunError(
            f"{path}: {len(logs)} runs ({', '.join(log.name for log in logs[:8])}); expected one: give its path"
        )
    return logs[0]


def read_logs(path: str | os.PathLike, *, readers: Sequence[Reader] = ()) -> list[Log]:
    """All runs at a path: in a folder of TRL, of the workbench or with any log in it, in a file, or for `-` in standard input.

    The path is of the user's own choice, so a link to it is followed; links in it are not. `readers` of the user's own are
    asked before those of the workbench.
    """
    if other := [each for each in readers if not isinstance(each, Reader)]:
        raise ParameterError(f"readers: {other[0]!r} is no reader; expected a function that `@reader(...)` decorates")
    readers = (*readers, *READERS)
    if not isinstance(path, str | os.PathLike):
        said = f"path is a {type(path).__name__}: expected the path of a file or folder. `trainer.save_state()` writes the log"
        raise ParameterError(f"{said} of a trainer into its `output_dir`; of a `Run` it is `run.path`")
    if str(path) == "-":
        with _copied(sys.stdin.buffer, "standard input") as copy:
            return [_log(run, copy, name="standard input") for run in runs_in(copy, "standard input", readers)]
    given = Path(path)
    if given.parts[:1] in (("http:",), ("https:",)):
        raise RunError(
            f"{path}: this is a web address, and nothing is downloaded; save the run's history (W&B: as CSV) and give that file"
        )
    try:
        found = given.expanduser().resolve()
    except RuntimeError as error:  # no such user, or a link to itself
        raise RunError(f"{given}: {error}") from error
    if found.is_dir():
        logs = _folder(found, given, readers)
        names = [f"{given}{log.name}" if log.name.startswith(":") else str(given / log.name) for log in logs]
        return [dataclasses.replace(log, name=name) for log, name in zip(logs, names, strict=True)]
    if not found.exists():
        raise RunError(f"{given}: no such file or folder")
    return [
        dataclasses.replace(log, name=str(given) + log.name.removeprefix(found.name)) for log in _file(found, readers)
    ]


# --- folders --------------------------------------------------------------------------------------------------------


def _folder(folder: Path, given: Path, readers: Sequence[Reader]) -> list[Log]:
    """The runs of a folder: the one that it is, with what was recorded in it; else what lies in it and below it."""
    places = list(_walk(folder))
    recorded = _recorded(places)
    state = last_trainer_state(folder)
    if recorded and (state is not None or folder in recorded):
        return [log for inner in recorded for log in _own_runs(inner, folder)]
    if state is not None:
        return _trl_folder(folder, state)
    refused: dict[str, RunError] = {}
    found = [log for inner in recorded for log in _own_runs(inner, folder)]
    known = set(recorded)
    found += _saved_by_trl(folder, places, known, refused)
    found += _read_whole(folder, places, readers, known, refused)
    more_files = [pattern for reader in readers for pattern in reader.files if pattern not in _BELOW]
    for inner, _ in places[1:]:
        if not _related(inner, known):
            found += _logs_in(_plain_files(inner, (*more_files, *_BELOW)), folder, refused, readers)
    for patterns in ((*more_files, *_PLACES[0]), *_PLACES[1:]):
        files = [path for path in _plain_files(folder, patterns) if not _related(path, known)]
        if own := _logs_in(files, folder, refused, readers):
            return [*own, *(log for log in found if log.name not in [o.name for o in own])]
    if found:
        return found
    if len(refused) == 1:
        raise next(iter(refused.values()))
    if refused:
        reasons = "; ".join(str(error).removeprefix(f"{folder}{os.sep}") for error in list(refused.values())[:3])
        more = f"; and {len(refused) - 3} files more" if len(refused) > 3 else ""
        raise RunError(f"{given}: no log in this folder. {reasons}{more}")
    names = sorted(p.name for p in folder.iterdir())
    holds = f"; it holds {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}" if names else ", which is empty"
    elsewhere = "; a trainer with record_dir writes its log there, so give that folder"
    raise RunError(f"{given}: no log in this folder{holds}; expected {EXPECTED}{elsewhere}")


def recorded_logs(folder: Path) -> tuple[list[Log], list[str]]:
    """The trainings recorded in a run's folder and below it, and a sentence for each record that cannot be read.

    A record is the workbench's, or TRL's own where it saved its state. No other file is taken for a log, as `read_logs` does:
    a run also has its notebook, with what that printed.
    """
    folder = Path(os.path.abspath(folder))
    places, refused = list(_walk(folder)), dict[str, RunError]()
    recorded = _recorded(places)
    found = []
    for inner in recorded:
        found += _attempt(refused, str(inner), functools.partial(_own_runs, inner, folder))
    found += _saved_by_trl(folder, places, set(recorded), refused)
    return found, [str(error) for error in refused.values()]


def _recorded(places: Sequence[tuple[Path, list[str]]]) -> list[Path]:
    folders = [inner for inner, names in places if "metrics.jsonl" in names and _has_bytes(inner / "metrics.jsonl")]
    return [inner for inner in folders if not is_second_record(inner)]


def _saved_by_trl(
    folder: Path, places: Sequence[tuple[Path, list[str]]], known: set[Path], refused: dict[str, RunError]
) -> list[Log]:
    """The trainings whose state TRL saved, apart from those in or around a folder of `known`, which grows."""
    found = []
    for inner, _ in places:
        if (state := last_trainer_state(inner)) is not None and not _related(inner, known):
            known.add(inner)
            name = str(inner.relative_to(folder))
            logs = _attempt(refused, name, functools.partial(_trl_folder, inner, state))
            found += [dataclasses.replace(log, name=name + log.name) for log in logs]
    return found


def _read_whole(
    folder: Path,
    places: Sequence[tuple[Path, list[str]]],
    readers: Sequence[Reader],
    known: set[Path],
    refused: dict[str, RunError],
) -> list[Log]:
    """The runs of folders that a reader takes as a whole, apart from those in or around one of `known`, which grows."""
    found = []
    for inner, _ in places:
        source = Source.of(inner, str(inner))
        chosen = None if _related(inner, known) else next((each for each in readers if each.takes(source)), None)
        if chosen is not None:
            name = "" if inner == folder else str(inner.relative_to(folder))
            logs = _attempt(refused, name, functools.partial(_whole, chosen, source))
            known |= {inner} if logs else set()
            found += [dataclasses.replace(log, name=name + log.name) for log in logs]
    return found


def _whole(chosen: Reader, source: Source) -> list[Log]:
    with unusable_as_error(source.name):
        return [_log(run, source.path) for run in tidied(chosen(source))]


def _walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """A folder and those below it with the names of their files, without hidden folders and installed packages."""
    for inner, below, names in os.walk(folder):
        below[:] = sorted(n for n in below if not n.startswith((".", ASIDE)) and n not in _NO_RUNS)
        yield Path(inner), names


def _has_bytes(path: Path) -> bool:
    return not path.is_symlink() and path.stat().st_size > 0


def _related(path: Path, known: Collection[Path]) -> bool:
    """Say whether a path is one of some folders, lies in one, or holds one."""
    return any(path == other or other in path.parents or path in other.parents for other in known)


def _attempt(refused: dict[str, RunError], name: str, read: Callable[[], list[Log]]) -> list[Log]:
    try:
        return read()
    except RunError as error:  # events of an evaluation alone, or data next to the log
        refused[name] = error
        return []


def _logs_in(paths: Sequence[Path], folder: Path, refused: dict[str, RunError], readers: Sequence[Reader]) -> list[Log]:
    """The runs in files, named after their place in a folder."""
    found = []
    for path in paths:
        name = str(path.relative_to(folder))
        logs = _attempt(refused, name, functools.partial(_file, path, readers))
        found += [dataclasses.replace(log, name=name + log.name[len(path.name) :]) for log in logs]
    return _resumed(found, folder)


def _resumed(logs: Sequence[Log], folder: Path) -> list[Log]:
    """Event files of TensorBoard in one folder as one run where each goes on: a resumed training begins a new file."""
    runs: list[list[Log]] = []
    for log in logs:
        if runs and _goes_on(runs[-1][0], log):
            runs[-1].append(log)
        else:
            runs.append([log])
    return [_one_run(parts, folder) if len(parts) > 1 else parts[0] for parts in runs]


def _goes_on(log: Log, later: Log) -> bool:
    """Say whether a file is of the same training; one from the start begins at most a logging interval after step 0."""
    packed = log.name.endswith(".gz") or later.name.endswith(".gz")
    if packed or {log.kind, later.kind} != {TENSORBOARD} or Path(log.name).parent != Path(later.name).parent:
        return False
    steps = later.steps["step"]
    begins = steps.iloc[0] > max(log.steps["step"].iloc[0], steps.diff().median())
    return log.steps.columns.equals(later.steps.columns) and bool(begins)


def _one_run(parts: Sequence[Log], folder: Path) -> Log:
    first, *others = (folder / log.name for log in parts)
    begins = ", ".join(f"{log.steps['step'].iloc[0]:.0f}" for log in parts[1:])
    note = f"{len(parts)} event files are one training, which was resumed: later ones begin at step {begins}"
    run = Found(TENSORBOARD, read_tensorboard(first, parts[0].name, resumed=others), notes=[note])
    return _log(tidied([run])[0], first, parts[0].name)


def _plain_files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    found = [p for pattern in patterns for p in sorted(folder.glob(pattern)) if p.is_file()]
    found = [p for p in found if p.name != SUMMARY or SUMMARY in patterns]
    inside = [
        p for p in found if not any(q.is_symlink() for q in (p, *p.parents) if q != folder and folder in q.parents)
    ]
    return list(dict.fromkeys(inside))[:_MOST_FILES]


def _own_runs(folder: Path, top: Path) -> list[Log]:
    """The run that a folder is; several where other programs wrote them into one `metrics.jsonl`."""
    path = folder / "metrics.jsonl"
    runs = [run._replace(kind="metrics.jsonl") for run in runs_in(path, str(path))]
    facts, more = facts_of(folder)
    recorded, broken = read_completions(folder)
    damage = [*more, *broken]
    if len(runs) == 1:
        return [_log(runs[0], path, str(folder.relative_to(top)), facts, recorded, damage)]
    unclear = f"the completions of this folder are left out: they do not say which of the {len(runs)} runs they are of"
    notes = [unclear] if len(recorded) else []
    name = str(path.relative_to(top))
    return [_log(run._replace(notes=[*run.notes, *notes]), path, name, facts, damage=damage) for run in runs]


def _trl_folder(folder: Path, state: Path) -> list[Log]:
    runs = runs_in(state, str(state))
    facts, damage = facts_of(folder)
    home = folder if (folder / "completions").is_dir() or not folder.name.startswith("checkpoint-") else folder.parent
    recorded, broken = read_trl_completions(home / "completions")
    return [_log(run, state, "", facts, recorded, [*damage, *broken]) for run in runs]


# --- files ----------------------------------------------------------------------------------------------------------


def _file(path: Path, readers: Sequence[Reader]) -> list[Log]:
    """The runs in one file, named after it and, where there are several, after what distinguishes them."""
    if path.name == "trainer_state.json":
        return [dataclasses.replace(log, name=path.name) for log in _trl_folder(path.parent, path)]
    with _readable(path) as (plain, source):
        return [_log(run, path, path.name) for run in runs_in(plain, source, readers)]


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[tuple[Path, str]]:
    """The file in UTF-8, unpacked where it is not, and its name without `.gz`."""
    with open_plain(path) as file:
        start = file.read(2)
        file.seek(0)
        if start == b"\x1f\x8b":
            size = os.fstat(file.fileno()).st_size
            most = min(_MOST_UNPACKED, max(100_000_000, _MOST_RATIO * size))
            with gzip.open(file) as unpacked, _copied(unpacked, str(path), most) as copy:
                yield copy, re.sub(r"\.gz$", "", str(path))
            return
        if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # what PowerShell's `>` writes
            with codecs.EncodedFile(file, "utf-8", "utf-16", "replace") as text, _copied(text, str(path)) as copy:
                yield copy, str(path)
            return
    yield path, str(path)


@contextlib.contextmanager
def _copied(stream, source: str, most: int = _MOST_UNPACKED) -> Iterator[Path]:
    """A temporary file of what a stream gives, which is refused when it is larger than any log."""
    with tempfile.TemporaryDirectory(prefix="wb-log-") as folder:
        copy = Path(folder) / "log"
        try:
            with copy.open("wb") as file:
                while block := stream.read(1_000_000):
                    if file.tell() + len(block) > most:
                        raise RunError(
                            f"{source}: more than {most / 1e6:.0f} MB once it is unpacked; expected the log of one training. "
                            "Unpack it and give the file itself"
                        )
                    file.write(block)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise RunError(
                f"{source}: the .gz is cut short or damaged ({error}); unpack what is left of it, and give that file"
            ) from error
        yield copy


def _log(
    run: Found, source: Path, name: str = "", facts: dict | None = None, recorded=None, damage: Sequence[str] = ()
) -> Log:
    with unusable_as_error(str(source)):
        steps, order, wrong = steps_table(run.table, str(source))
        completions = None if recorded is None else completions_table(recorded)
        known: dict[str, Any] = {"trainer": run.trainer} if run.trainer else {}
        known |= {"reward_functions": len(reward_columns(run.table.columns))}
        known |= {"lines_counted": True} if any(COUNTED in sentence for sentence in wrong) else {}
    known |= {**of_scripts(source.parent), **run.settings, **(facts or {})}
    name += f": {run.label}" * bool(run.label)
    damage = (*run.damage, *damage, *wrong)
    return Log(name, run.kind, steps, tuple(order), completions, known, damage, tuple(run.notes), run.table, order)
