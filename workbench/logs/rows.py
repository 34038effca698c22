"""The lines of a log as one run's table, and the lines of a file: what every format comes to."""

import contextlib
import math
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype
from tqdm import tqdm

from ..errors import RunError, WorkbenchError
from ..runs.files import open_plain
from ..runs.text import one_line
from .names import RUN_NAMES, canonical, is_asked_for, of_reinforcement_learning, plain

EXPECTED = (
    "trainer_state.json, what TRL or verl printed, a saved notebook, JSON or JSON lines with an object a step, a CSV with a "
    "row a step, or TensorBoard events"
)
CSV = "CSV"  # the kind of log in which an empty cell may be NaN, or not logged
LONGEST_LINE = 1_000_000  # bytes of a line of JSON that is parsed; longer ones are skipped
_BLOCK = 8_000_000  # bytes of console output searched at a time
_WARM_UP = 8  # steps
_ROWS = 5_000  # of JSON that are objects at a time
_MOST_KINDS = 1_000  # sets of names of one log
_NUMBERS = ("loss", "grad_norm", "reward", "entropy", "kl")
_COUNTED = ("loss", "grad_norm", "reward")  # whose steps without a finite number `names.steps_table` counts
_NOT_OF_STEPS = {"step", "epoch", "episodes", "step_time", "learning_rate"}  # which rows of evaluations have too
_NO_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # in strict JSON, as Trackio writes it
_NESTED = ("data", "metrics", "logs", "train")  # where verl's file logger and others put the metrics of a line


class Found(NamedTuple):
    """One run's lines as they stand in a file."""

    kind: str
    table: pd.DataFrame
    label: str = ""  # which run, where the file holds several
    damage: Sequence[str] = ()
    notes: Sequence[str] = ()
    trainer: str | None = None
    settings: Mapping[str, Any] = {}  # as they stand in the log itself, under TRL's names


@contextlib.contextmanager
def unusable_as_error(source: str) -> Iterator[None]:
    """Turn what nobody foresaw in a stranger's file, such as a number of 400 digits, into a RunError that names the file."""
    try:
        yield
    except WorkbenchError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {one_line(str(error))[:200]}"
        raise RunError(f"{source}: cannot be read as a log ({reason}); expected {EXPECTED}") from error


def flat_row(row: dict) -> dict:
    """Its numbers and words; what is nested in `data`, `metrics` or `train` is added to them, in others as `other/name`."""
    for name in _NESTED:
        if isinstance(nested := row.get(name), dict):
            row = nested | {other: value for other, value in row.items() if other != name}
    if any(isinstance(value, dict) for value in row.values()):
        row = dict(_unnested(row))
    row = {name: _NO_NUMBERS.get(value, value) if isinstance(value, str) else value for name, value in row.items()}
    return {name: value if type(value) is float or _is_short(value) else None for name, value in row.items()}


def _unnested(row: dict, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Names and values, of values that are objects `name/inner name`, up to three levels below the row."""
    for name, value in row.items():
        if isinstance(value, dict) and depth < 3:
            yield from ((f"{name}/{inner}", of) for inner, of in _unnested(value, depth + 1))
        else:
            yield name, value


def _is_short(value) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 100)


@lru_cache(1000)
def _kind(names: tuple[str, ...]) -> str:
    """Return what a row with these names is: the closing `summary`, an `evaluation`, or a `step`."""
    # A loop may put its evaluation into the row of a step, which then has metrics of its own.
    own = set(canonical(name for name in names if name != "train_loss").values()) - _NOT_OF_STEPS
    # MLflow keeps the numbers of a step together: with its last step, which has a loss, those of the summary.
    summary = "train_runtime" in names and "loss" not in own
    evaluation = not own and any(name.startswith("eval_") for name in names)
    return "summary" if summary else "evaluation" if evaluation else "step"


class Lost(dict):
    """Column -> the labels of its rows whose value was logged and is no finite number; a table keeps it as `attrs["rows"]`."""

    def __deepcopy__(self, memo) -> "Lost":
        return self  # pandas copies `attrs` with each operation on a table


def steps_of(rows: Iterable[dict]) -> pd.DataFrame:
    """The rows of steps: the closing summary is none, and evaluations are none where there are others.

    In a log of more than `_ROWS` rows, numbers that nobody asks for are left out. `attrs["lost"]` of the table is a sentence
    for each series with values that are not finite, `attrs["rows"]` says where they are.
    """
    parts: list[pd.DataFrame] = []
    rows, logged = iter(rows), dict[str, list]()
    counts, lost, since, seen = Counter[str](), Lost(), Counter[str](), 0
    while block := list(islice(rows, _ROWS)):
        kinds = [_kind(tuple(row)) for row in block]
        wanted = "step" if parts or "step" in kinds else "evaluation"
        kept = [row for row, kind in zip(block, kinds, strict=True) if kind == wanted]
        table = pd.DataFrame(kept)
        for number, row in enumerate(kept, seen):
            for column, value in row.items():
                if isinstance(value, int | float):
                    counts[column] += 1
                    if not _is_finite(value):
                        lost.setdefault(column, array("l")).append(number)
                        since[column] += 1
                    elif column in since:
                        since[column] = 0
        for column, name in canonical(map(str, table.columns)).items():
            if name in _NUMBERS and not any(map(_is_finite, values := logged.setdefault(name, []))):
                values.extend(row[column] for row in kept if column in row)
        if kept:
            whole = len(block) < _ROWS and not parts
            parts.append(table if whole else table[[c for c in table if _is_kept(table[c])]])
            seen += len(kept)
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    table.attrs["lost"] = _sentences(logged, lost, counts, since)
    table.attrs["rows"] = lost
    return table


def what_is_lost(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The `attrs` of `steps_of` for rows that all are steps, whose values may be text: words are not logged, `nan` is."""
    numbers: list[dict[str, float]] = []
    for row in rows:
        numbers.append({})
        for name, value in row.items():
            with contextlib.suppress(TypeError, ValueError):
                numbers[-1][name] = float(value)
    table = steps_of(numbers)
    return dict(table.attrs) if len(table) == len(rows) else {}


def _is_kept(column: pd.Series) -> bool:
    name = str(column.name)
    return is_asked_for(name) or plain(name) in RUN_NAMES or not is_numeric_dtype(column)


class _Part:
    """The rows of a console log that have the same names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.asked = [i for i, name in enumerate(names) if is_asked_for(name)]
        self.others = [i for i, name in enumerate(names) if i not in self.asked and plain(name) not in RUN_NAMES]
        self.at, self.numbers, self.more = array("l"), array("d"), array("d")
        self.lost: dict[str, list[int]] = {}

    def table(self, names: tuple[str, ...]) -> pd.DataFrame:
        """A row a line, labelled by its place in the log."""
        numbers = np.frombuffer(self.numbers).reshape(len(self.at), -1)
        asked = pd.DataFrame(numbers, index=self.at, columns=[names[i] for i in self.asked])
        if not self.others:
            return asked
        more = np.frombuffer(self.more).reshape(len(self.at), -1)
        return asked.join(pd.DataFrame(more, index=self.at, columns=[names[i] for i in self.others]))


class Rows:
    """The steps that a console log shows, 8 bytes a number; of many steps, columns that nobody asks for are left out."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, ...], _Part] = {}
        self.count = 0

    def add(self, row: Mapping[str, float]) -> None:
        """Keep a row, in the order in which they come."""
        names = tuple(row)
        if (part := self._parts.get(names)) is None:
            if len(self._parts) >= _MOST_KINDS:
                return
            part = self._parts[names] = _Part(names)
            part.others = part.others if self.count < _ROWS else []
        if not part.asked:
            return
        values = list(row.values())
        if not math.isfinite(sum(values)):
            for name, value in row.items():
                if not math.isfinite(value):
                    part.lost.setdefault(name, []).append(self.count)
        part.at.append(self.count)
        part.numbers.extend([values[i] for i in part.asked])
        part.more.extend([values[i] for i in part.others])
        self.count += 1
        if self.count == _ROWS:
            for part in self._parts.values():
                part.others, part.more = [], array("d")

    def table(self, *, least: int = 1) -> pd.DataFrame:
        """The rows of steps, as `steps_of`, of which at least some have the same names.

        Where some rows have an epoch, which every Trainer logs and a dict of the user's own seldom has, only these are steps.
        """
        kept = {names: part for names, part in self._parts.items() if part.asked and _kind(names) != "summary"}
        often = [set(names) for names, part in kept.items() if len(part.at) >= least]
        kept = {names: part for names, part in kept.items() if any(_are_alike(set(names), each) for each in often)}
        kept = {names: part for names, part in kept.items() if _kind(names) == "step"} or kept
        with_epoch = {names: part for names, part in kept.items() if "epoch" in names}
        if not any("step" in names for names in with_epoch):  # a loop of one's own may name an epoch now and then
            kept = with_epoch or kept
        tables = _without_another_training(every := {names: part.table(names) for names, part in kept.items()})
        others = sum(len(part) for names, part in every.items() if names not in tables)
        kept, parts = {names: kept[names] for names in tables}, list(tables.values())
        table = _joined(parts)
        known = canonical(table.columns)
        logged = {name: [p[column] for p in parts if column in p] for column, name in known.items() if name in _NUMBERS}
        lost, counts, since = Lost(), Counter[str](), Counter[str]()
        for name in dict.fromkeys(name for part in kept.values() for name in part.lost):
            of_name = [part for names, part in kept.items() if name in names]
            lost[name] = sorted(row for part in of_name for row in part.lost.get(name, ()))
            there = sorted(row for part in of_name for row in part.at)
            counts[name], gone = len(there), set(lost[name])
            since[name] = next((n for n, row in enumerate(reversed(there)) if row not in gone), len(there))
        values = {name: pd.concat(several).sort_index() for name, several in logged.items()}
        table.attrs["lost"] = _sentences(values, lost, counts, since)
        table.attrs["rows"] = lost if len(table) == sum(map(len, parts)) else _of_steps(lost, parts, table)
        table.attrs["notes"] = [f"{others} lines of another training, before this one, are left out"] * (others > 0)
        return table


def _are_alike(names: set[str], usual: set[str]) -> bool:
    """Say whether names are those that often come, with more, or with fewer of them but a step and a metric."""
    return usual <= names or (names < usual and "step" in names and of_reinforcement_learning(names))


def _without_another_training(tables: dict[tuple, pd.DataFrame]) -> dict[tuple, pd.DataFrame]:
    """Without rows that have no metric of rewards, come before all that have one, and end at a later epoch than these begin."""
    learned = [table for names, table in tables.items() if of_reinforcement_learning(names)]
    first = min(learned, key=lambda table: table.index[0], default=None)
    if first is None or "epoch" not in first:
        return tables
    begins, epoch = first.index[0], first["epoch"].iloc[0]

    def is_other(table: pd.DataFrame) -> bool:
        return table.index[-1] < begins and "epoch" in table and table["epoch"].iloc[-1] > epoch

    return {names: table for names, table in tables.items() if not is_other(table)}


def _of_steps(lost: Lost, parts: Sequence[pd.DataFrame], table: pd.DataFrame) -> Lost:
    """The labels of rows where the rows of one step were joined."""
    step_of = pd.concat([part["step"] for part in parts])
    label_of = {step: label for label, step in table["step"].items()}
    return Lost({name: [label_of[s] for s in step_of[list(rows)] if s in label_of] for name, rows in lost.items()})


def _joined(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Rows of several sets of names: those of one step are one where each set has every step once, as slime prints them.

    The last step is left out where a part of it is not printed yet.
    """
    if len(parts) < 2:
        return parts[0] if parts else pd.DataFrame()
    longest = max(parts, key=len)
    parts = [_in_steps_of(longest, part) if len(part) < len(longest) else part for part in parts]
    table = pd.concat(parts).sort_index()
    if all("step" in part and part["step"].is_unique and part["step"].is_monotonic_increasing for part in parts):
        whole = table.groupby("step").last().copy().reset_index()  # pandas warns of frames in a hundred pieces
        ended = whole.iloc[-1].notna() | whole.iloc[:-1].isna().any()
        return whole if ended.all() or len(whole) in (1, len(table)) else whole.iloc[:-1]
    return table


def _in_steps_of(training: pd.DataFrame, part: pd.DataFrame) -> pd.DataFrame:
    """The rows of rollouts at the first step that each is trained in, of k: slime counts rollouts apart.

    Rollout 2 then stands before step 2k, or behind step 3k - 1.
    """
    if "step" not in training or "step" not in part:
        return part
    own, steps = part["step"].to_numpy(), training["step"].to_numpy()
    next_ = np.searchsorted(training.index, part.index)
    for neighbours, at, ahead in ((next_ < len(steps), next_, 0), (next_ > 0, next_ - 1, 1)):
        seen, rollouts = steps[at[neighbours]] + ahead, own[neighbours] + ahead
        if len(rollouts) > 2 and rollouts[-1] > 0:
            k = seen[-1] / rollouts[-1]
            if k > 1 and k == int(k) and (seen == k * rollouts).all():
                return part.assign(step=k * own)
    return part


def _lost(values: Mapping[str, Sequence]) -> list[str]:
    """A sentence for each loss, gradient or reward that was logged and never a finite number: tables show it as not logged."""
    gone = []
    for name, logged in sorted(values.items()):
        count = next((n for n, value in enumerate(logged) if _is_finite(value)), len(logged))
        if count == len(logged) and (count > 1 or max(map(len, values.values())) == 1):
            gone.append(f"{name} is no finite number in any step")
        elif count >= _WARM_UP:  # fp16 finds its scale in fewer
            gone.append(f"{name} is no finite number in the first {count} steps")
    return gone


def _sentences(
    values: Mapping[str, Sequence], lost: Mapping[str, Sequence], logged: Mapping[str, int], since: Mapping[str, int]
) -> list[str]:
    """A sentence for each series that is no finite number in some steps that have it; one that is not known has its own name.

    `values` are those of `_NUMBERS`, `logged` counts the rows of each series, `since` those at its end that are not finite.
    """
    sentences = _lost(values)
    said = {sentence.partition(" ")[0] for sentence in sentences}
    asked = canonical(logged)
    for name, rows in sorted(lost.items()):
        count, whole = len(rows), logged[name]
        if whole < 2 or asked.get(name) in (*said, *(_NUMBERS if count == whole else _COUNTED)):
            continue
        steps = "any step" if count == whole else f"{'the last ' * (since[name] == count)}{count} of {whole} steps"
        sentences.append(f"{name} is no finite number in {steps}")
    return sentences


def _is_finite(value) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file; of one longer than `LONGEST_LINE` only the start."""
    with open_plain(path) as file, _bar(path, file) as bar:
        while line := file.readline(LONGEST_LINE):
            whole = line.endswith(b"\n")
            bar.update(len(line))
            yield line
            while not whole and len(rest := file.readline(LONGEST_LINE)):
                whole = rest.endswith(b"\n")
                bar.update(len(rest))


def blocks_of(path: Path) -> Iterator[bytes]:
    """A file in pieces that end with a line, or are very long."""
    with open_plain(path) as file, _bar(path, file) as bar:
        left = b""
        while block := file.read(_BLOCK):
            bar.update(len(block))
            block = left + block
            end = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1 or len(block)
            left = block[end:]
            yield block[:end]
        yield left


def _bar(path: Path, file):
    size = os.fstat(file.fileno()).st_size
    return tqdm(total=size, desc=one_line(path.name), unit="B", unit_scale=True, delay=1, leave=False, disable=None)
