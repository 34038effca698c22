"""A run's files: written whole or not at all, read in this one place, with errors that name the file.

A run's folder may come from anyone: its files are opened only if they are plain files, never through a link.
"""

import contextlib
import errno
import json
import math
import os
import re
import stat
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, TextIO

from ..errors import RunError


class State(StrEnum):
    """The state of a run."""

    QUEUED = "queued"
    """It waits for a process or for Slurm."""
    RUNNING = "running"
    """A process executes it."""
    DONE = "done"
    """All cells ran, and the results are there."""
    FAILED = "failed"
    """A cell raised an error, or a check of the run failed."""
    INTERRUPTED = "interrupted"
    """It was stopped or killed; `--resume` goes on with it."""


STATES = tuple(State)
ASIDE = "replaced-"
WATCHED = "_watch"  # where `attach_watch` records, in a trainer's output_dir
_LARGEST = 64_000_000  # bytes of a JSON file
_LAST_LINES = 1_000_000  # bytes from the end in which the last line of metrics is looked for
_MOST_VALUES = 1_000_000  # of a text in YAML, each as often as an alias names it
_DEEPEST = 4  # levels below a run's folder in which its notebook may train
_WRITTEN = re.compile(r"checkpoints|tokens|steps|policy|checkpoint-\d+")  # what a training fills
_OBJECTS = (
    "params.json",
    "env.json",
    "status.json",
    "result.json",
    "progress.json",
    "recipe.json",
    "stop.json",
    "audit.json",
)


# --- writing --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def whole_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A temporary name in the same folder, to write the file under; it becomes `path` when the block ends, or is removed.

    `durable`: after a power cut too there is either the former file or this one, whole.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        if durable:
            sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        with contextlib.suppress(OSError):  # whoever reads now has the new file
            sync(path.parent)


def sync(*paths: Path) -> None:
    """Wait until files, or the names in folders, are on the disk; some file systems cannot say that."""
    for path in paths:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(number)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
                raise
        finally:
            os.close(number)


def write_over(path: Path, value) -> None:
    """`value` as JSON in the blocks that a file of the same kind has already: on a full disk no other file fits.

    Raises:
        OSError: it needs more than those blocks; the file is as it was.
    """
    data = json.dumps(jsonable(value), allow_nan=False).encode() + b"\n"
    number = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        about = os.fstat(number)
        if len(data) > max(about.st_size, 512 * about.st_blocks):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.pwrite(number, data, 0)
        os.ftruncate(number, len(data))
    finally:
        os.close(number)


def is_temporary(name: str) -> bool:
    """Say whether a file has a temporary name, under which a killed process may have left it (see `whole_file`)."""
    return bool(re.fullmatch(r"\..+\.[0-9a-f]{32}", name))


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process left under temporary names in a run's folder and below it."""
    for inner, _, names in os.walk(folder):
        for name in names:
            if is_temporary(name):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(inner, name))


def files_named(folder: Path, name: str) -> list[Path]:
    """Every file of a name in a folder and below it, apart from what `move_aside` put there and what vanishes meanwhile."""
    found = []
    for inner, below, names in os.walk(folder):
        below[:] = [other for other in below if not other.startswith(ASIDE)]
        found += [Path(inner) / name] * (name in names)
    return sorted(found)


def training_folders(folder: Path) -> list[Path]:
    """Each folder with the `metrics.jsonl` of a training, from a folder on and below it; see `is_second_record`."""
    return sorted(p.parent for p in files_named(folder, "metrics.jsonl") if not is_second_record(p.parent))


def is_second_record(folder: Path) -> bool:
    """Say whether `attach_watch` has recorded here a training that records itself, so that it would count twice."""
    trained = folder.parent.parent
    watched = folder.name == WATCHED and folder.parent.name == "checkpoints"
    return watched and (trained / "metrics.jsonl").is_file()


def move_aside(folder: Path, names: Iterable[str], why: str) -> None:
    """Move what there is of these names into `replaced-TIME` in the folder, and say so: nothing recorded is deleted."""
    if there := [folder / name for name in names if os.path.lexists(folder / name)]:
        target = folder / f"{ASIDE}{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
        target.mkdir()
        for path in there:
            os.replace(path, target / path.name)
        print(f"{folder}: {why}; it is now in {target.name}/", file=sys.stderr)


def check_links(folder: Path) -> None:
    """Refuse a link where a training in this folder would write, up to the run that the folder belongs to and below it.

    Raises:
        RunError: it names the link, which could lead into anybody's folder.
    """
    folder = Path(os.path.abspath(folder))  # not resolved: links are what is looked for
    above = (folder, *folder.parents[:_DEEPEST])
    runs = [place for place in above if all((place / name).is_file() for name in ("params.json", "status.json"))]
    found = [place for place in above if runs and runs[-1] in place.parents]
    for inner, below, names in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(ASIDE)]
        inside = any(map(_WRITTEN.fullmatch, Path(inner).relative_to(folder).parts))
        found += [Path(inner) / name for name in (*below, *names) if inside or _WRITTEN.fullmatch(name)]
    if link := next((path for path in found if path.is_symlink()), None):
        raise RunError(
            f"{link}: this is a link, and a training would write where it leads. Remove it; for runs elsewhere, use --runs-dir"
        )


def checkpoints(folder: Path) -> list[Path]:
    """Folders `checkpoint-N` of a training, in its folder or in `checkpoints/` in it, the last one first."""
    found = [p for pattern in ("checkpoint-*", "checkpoints/checkpoint-*") for p in folder.glob(pattern)]
    return sorted((p for p in found if p.name[11:].isdigit()), key=lambda p: -int(p.name[11:]))


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a whole file or nothing."""
    with whole_file(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value, *, durable: bool = False) -> None:
    """`value` as strict JSON; numbers that are not finite become null."""
    write_text(path, json.dumps(jsonable(value), indent=1, allow_nan=False) + "\n", durable=durable)


def open_lines(path: Path) -> TextIO:
    """A file of JSON lines, opened to be written on."""
    return path.open("a", encoding="utf-8", errors="replace")  # of half a character: no table takes one


def append_rows(file: TextIO, rows: Iterable[Mapping]) -> None:
    """Each row as a line of strict JSON, all of them with the system when this returns."""
    file.write(
        "".join(json.dumps(jsonable(row), allow_nan=False, ensure_ascii=False, default=str) + "\n" for row in rows)
    )
    file.flush()


def append_plain(path: Path) -> TextIO:
    """A text file of a run, opened to be written on; made where there is none."""
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
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise RunError(f"{path}: a link or a socket, not a plain file; it is not opened") from None
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise RunError(f"{path}: not a plain file; it is not opened")
    return os.fdopen(number, "rb")


def read_text(path: Path, most: int = _LARGEST) -> str:
    """A file of a run as text; bytes that are no UTF-8 are shown as such."""
    with open_plain(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise RunError(f"{path}: larger than {most / 1e6:.0f} MB; no run records that much there")
    return data.decode("utf-8", "backslashreplace")


def read_json(path: Path, default):
    """The file's value, or `default` when there is no such file, or an empty one or one of NULs, as a power cut leaves it."""
    try:
        text = read_text(path)
    except FileNotFoundError:
        return default
    if not text.strip("\0 \n"):
        return default
    try:
        value = json.loads(text)
        problem = problem_of(path.name, value)
    except (ValueError, RecursionError) as error:
        problem = f"not JSON ({error})"
    except (AttributeError, KeyError, TypeError) as error:
        problem = f"not what a run writes ({error})"
    if problem:
        raise RunError(f"{path}: {problem}; repair or remove the file")
    return value


def parse_yaml(text: str):
    """The value of a text in YAML, in which aliases stand for at most a million values.

    Raises:
        ValueError: no YAML, or one that nests too deep or stands for more values, as an alias of aliases of aliases does.
    """
    import yaml

    try:
        value = yaml.safe_load(text)
        if _count(value, {}) > _MOST_VALUES:
            raise ValueError(f"its aliases stand for more than {_MOST_VALUES:,} values; write them out")
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"not YAML ({str(error) or 'it nests too deep'})") from None
    return value


def _count(value, counted: dict[int, int]) -> int:
    """Return how many values stand in a value, each as often as it is named; one that holds itself is endless."""
    if not isinstance(value, dict | list | tuple | set):
        return 1
    if id(value) not in counted:
        counted[id(value)] = _MOST_VALUES + 1  # while it is counted: where it holds itself
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        counted[id(value)] = 1 + sum(_count(each, counted) for each in inner)
    return counted[id(value)]


def problem_of(name: str, value) -> str:
    """Return what is wrong with a run's JSON file, where whoever reads it goes by that; empty when nothing is.

    Example:
        >>> problem_of("status.json", {"state": "lost"})
        "state='lost': expected one of queued, running, done, failed, interrupted"
    """
    if name not in _OBJECTS:
        return ""
    if not isinstance(value, dict):
        return f"it is {repr(value)[:80]}: expected an object, {{...}}"
    if name == "progress.json" and not all(type(value.get(key)) is int for key in ("step", "max_steps")):
        return "expected whole numbers as `step` and `max_steps`"
    if name == "status.json" and value.get("state") not in STATES:
        return f"state={value.get('state')!r}: expected one of {', '.join(STATES)}"
    if name == "status.json" and not all(isinstance(at, int | float) for at in value.get("times", {}).values()):
        return f"times={repr(value['times'])[:80]}: expected a number of seconds for each state"
    if name == "status.json" and not isinstance(value.get("ran_s", 0.0), int | float):
        return f"ran_s={repr(value['ran_s'])[:80]}: expected a number of seconds"
    job = value.get("owner", {}).get("job") if name == "status.json" else None
    if job and not re.fullmatch(r"\d+(_\d+)?", job):  # it is handed to Slurm's commands
        return f"owner.job={job!r}: expected a Slurm job, such as 12 or 12_3"
    log = value.get("owner", {}).get("log") if name == "status.json" else None
    if log is not None and not isinstance(log, str):
        return f"owner.log={repr(log)[:80]}: expected the path of a log"
    if name == "status.json" and not isinstance(value.get("gpus", ""), str):
        return f"gpus={value['gpus']!r}: expected a text, as in CUDA_VISIBLE_DEVICES"
    if name == "audit.json":
        return _problem_of_audit(value)
    return _problem_of_result(value) if name == "result.json" else ""


def _problem_of_result(value: dict) -> str:
    results, headline, numbers = value.get("results", []), value.get("headline"), value.get("numbers")
    if not isinstance(results, list) or not all(map(_is_result, results)):
        return "expected objects with `says`, `holds`, `why` and `claim` as `results`"
    named = isinstance(headline, dict) and isinstance(headline.get("name"), str) and "value" in headline
    if headline is not None and not named:
        return f"headline={repr(headline)[:80]}: expected an object with `name`, a text, and `value`"
    if numbers is not None and not isinstance(numbers, dict):
        return f"numbers={repr(numbers)[:80]}: expected an object of name and number"
    return ""


def _problem_of_audit(value: dict) -> str:
    trainings = value.get("trainings")
    if not isinstance(value.get("error"), str) or not isinstance(trainings, list):
        return "expected a list as `trainings` and a text as `error`"
    counted = all(isinstance(each.get(key), int) for each in trainings for key in ("checked", "rules"))
    findings = [finding for each in trainings for finding in each["findings"]]
    worded = all(
        isinstance(f.get(key), str) for f in findings for key in ("title", "severity", "says", "advice", "because")
    )
    if not counted or not worded or not all(isinstance(f.get("expected"), bool) for f in findings):
        return "expected trainings with `checked`, `rules` and `findings`, as the runner writes them"
    return ""


def _is_result(value) -> bool:
    texts = isinstance(value, dict) and all(isinstance(value.get(key, ""), str) for key in ("says", "why", "claim"))
    decided = texts and (isinstance(value.get("holds"), bool) or (value.get("holds") is None and value.get("why")))
    return bool(decided and "says" in value)


def read_tail(path: Path, most: int) -> str:
    """The last `most` bytes of a file of a run, as text; a character cut at their start is left out."""
    with open_plain(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        data = file.read(most)
    return data.lstrip(bytes(range(0x80, 0xC0))).decode("utf-8", "replace")


# --- lines ----------------------------------------------------------------------------------------------------------


def json_lines(path: Path, damaged: list[str] | None = None, *, last: int = 0) -> Iterator[tuple[bytes, dict]]:
    """The lines of a file such as `metrics.jsonl`, as they stand and parsed; not a last one that a kill cut short."""
    with open_plain(path) as file:
        if last and (size := file.seek(0, os.SEEK_END)):
            file.seek(max(0, size - last))
            if size > last:
                file.readline()
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield line, _row(line)
            except ValueError as error:
                if not line.endswith(b"\n"):  # half written
                    return
                sentence = f"{path}, {'' if last else f'line {number}: '}{error}"
                if damaged is None:
                    raise RunError(f"{sentence}; remove or repair that line") from error
                damaged.append(f"{sentence}; the other lines are shown.")


def _row(line: bytes) -> dict:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(f"{repr(row)[:80]} is no object, {{...}}")
    return row


def load_metrics(path: Path):
    """`metrics.jsonl` as a DataFrame. A last line cut short by a kill is left out."""
    import pandas as pd

    try:
        return pd.DataFrame([row for _, row in json_lines(path)])
    except FileNotFoundError:
        raise RunError(f"{path}: no metrics; the run logged no step") from None


def last_metrics(path: Path) -> dict:
    """The last whole line of a `metrics.jsonl`, found from the end of the file; empty when there is none."""
    try:
        rows = [row for _, row in json_lines(path, last=_LAST_LINES)]
    except FileNotFoundError:
        raise RunError(f"{path}: no metrics; the run logged no step") from None
    return rows[-1] if rows else {}
