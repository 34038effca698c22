"""The steps in a file, whatever wrote it: recognised by its first bytes and parsed, never executed. Errors name the file."""

import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from ..errors import MissingDependencyError, RunError
from ..runs.files import open_plain
from ..runs.text import one_line
from .names import canonical, of_reinforcement_learning, plain
from .settings import of_sources

EXPECTED = (
    "trainer_state.json, what TRL or verl printed, a saved notebook, JSON or JSON lines with an object a step, a CSV with a "
    "row a step, or TensorBoard events"
)
_LARGEST = {"CSV": 512_000_000, "JSON": 100_000_000}  # bytes
_LONGEST_LINE = 1_000_000  # bytes of a line of JSON that is parsed; longer ones are skipped
_BLOCK = 8_000_000  # bytes of console output searched at a time
_LONGEST_STEP = 20_000  # bytes of a line of verl that a terminal broke into several
_OTHERS = 1_000  # printed dicts that are no steps, from which on they are not looked at
_WARM_UP = 8  # steps
_PATIENCE = 1_000  # lines of JSON without a metric of reinforcement learning, then the file is data and no log

_NUMBER = r"-?(?:\d{1,40}\.?\d{0,40}(?:[eE][+-]?\d{1,4})?|(?i:nan|inf(?:inity)?))"
_DICT = re.compile(rb"\{\s{0,9}['\"][^{}]{1,20000}\}")
_STEP = re.compile(
    rb"\{[^{}]{0,20000}['\"](?:loss|train_runtime|objective/|eval_)[^{}]{1,20000}\}"
)  # the same of a trainer
_ENTRY = re.compile(
    rf"""['"]([^'"]{{1,100}})['"]:\s{{0,99}}['"]?(?:[\w.]{{1,20}}\()?({_NUMBER})(?:/\d+)?\)?['"]?\s{{0,99}}[,}}]"""
)
_VERL = re.compile(rb"step:(\d{1,12}) - ([^\r\n]+)")
_CONFIG = re.compile(rb"'max_response_length': (\d{1,9})")  # of verl, printed before its first step
_METRIC = re.compile(rf"(\S{{1,200}}):(?:[\w.]{{1,20}}\()?({_NUMBER})\)?")
_COLOURS = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_NESTED = ("data", "metrics", "logs")  # where verl's file logger and others put the metrics of a line
# Names of columns that part the runs of one table, where they hold numbers; those of words need no name.
_RUN_NAMES = {"run", "run_id", "seed", "experiment", "exp", "trial", "config", "group"}


class Found(NamedTuple):
    """One run's lines as they stand in a file."""

    kind: str
    table: pd.DataFrame
    label: str = ""  # which run, where the file holds several
    damage: Sequence[str] = ()
    notes: Sequence[str] = ()
    trainer: str | None = None
    settings: Mapping[str, Any] = {}  # as they stand in the log itself, under TRL's names


def runs_in(path: Path, source: str) -> list[Found]:
    """The runs in one file.

    Args:
        path: of a plain file in UTF-8.
        source: what errors call it; what follows its last dot may tell the kind.

    Raises:
        RunError: nothing in it that is a log, with what it holds instead and what would be read.
        MissingDependencyError: a TensorBoard file, without TensorBoard.
    """
    found = [run for one in _parsed(path, source) for run in _split(one)]
    return [_named(run)._replace(damage=(*run.damage, *run.table.attrs.get("lost", ()))) for run in found]


def _named(run: Found) -> Found:
    """With the trainer, where its own columns tell it."""
    columns = {str(c).removeprefix("train/") for c in run.table}
    if run.trainer is None and columns & {"critic/score/mean", "critic/rewards/mean"}:
        return run._replace(trainer="verl")
    if run.trainer is None and columns & {"global_step/max_steps", "train_speed(iter/s)", "memory(GiB)"}:
        return run._replace(trainer="ms-swift")
    return run


def _parsed(path: Path, source: str) -> list[Found]:
    suffix = Path(source).suffix.lower()
    if "tfevents" in Path(source).name:
        return [Found("TensorBoard", read_tensorboard(path, source))]
    with open_plain(path) as file:
        start = file.read(4096)
        file.seek(0)
        first = file.readline(_LONGEST_LINE)
        one_line_only = not file.read(1)
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"PAR1"):
        raise RunError(f"{source}: completions alone; give the folder that holds them and trainer_state.json")
    if start[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK"):
        raise RunError(
            f"{source}: a pickle or an archive, which is never opened; give trainer_state.json or another log"
        )
    if suffix in (".csv", ".tsv"):
        return _csv(path, source)
    if suffix in (".json", ".ipynb"):
        return _json(path, source)
    if suffix == ".jsonl":
        return _json_lines(path, source)
    if re.match(rb'\{\s*"|\[\s*[{\[]', start):
        whole = one_line_only or not _is_object(first)
        for read in (_json, _json_lines) if whole else (_json_lines, _json):
            try:
                return read(path, source)
            except RunError as error:
                refused = error
        try:
            return _console(path, source)
        except RunError:
            raise refused from None
    names = re.split(rb"[,;\t]", first)
    if len(names) > 2 and of_reinforcement_learning(n.decode("utf-8", "replace").strip('"\r\n ') for n in names):
        return _csv(path, source)
    return _console(path, source)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.removeprefix(b"\xef\xbb\xbf")), dict)
    except (ValueError, RecursionError):
        return False


# --- rows -----------------------------------------------------------------------------------------------------------


def _row(row: dict) -> dict:
    """Its numbers and words; what is nested in `data` or `metrics` is added to them."""
    flat: dict[str, Any] = {}
    for name in _NESTED:
        if isinstance(nested := row.get(name), dict):
            flat |= nested
    flat |= {name: value for name, value in row.items() if name not in _NESTED}
    return {str(name): value if _is_short(value) else None for name, value in flat.items()}


def _is_short(value) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 100)


def _steps(rows: Sequence[dict]) -> pd.DataFrame:
    """The rows of steps: the closing summary is none, and evaluations are none where there are others."""
    kept = [row for row in rows if "train_runtime" not in row]
    kept = [row for row in kept if not any(name.startswith("eval_") for name in row)] or kept
    table = pd.DataFrame(kept)
    table.attrs["lost"] = _lost(kept)
    return table


def _lost(rows: Sequence[dict]) -> list[str]:
    """A sentence for each loss, gradient or reward that was logged and never a finite number: tables show it as not logged."""
    names = {name for row in rows for name in row}
    known = {column: name for column, name in canonical(names).items() if name in ("loss", "grad_norm", "reward")}
    values = {name: [row[column] for row in rows if column in row] for column, name in known.items()}
    gone = []
    for name, logged in sorted(values.items()):
        count = next((n for n, x in enumerate(logged) if not isinstance(x, float) or math.isfinite(x)), len(logged))
        if count == len(logged) > 1:
            gone.append(f"{name} is no finite number in any step")
        elif count >= _WARM_UP:  # fp16 finds its scale in fewer
            gone.append(f"{name} is no finite number in the first {count} steps")
    return gone


def _split(found: Found) -> list[Found]:
    """The runs of a table that stand below each other or mixed, separated by columns of words, or of seeds."""
    table = found.table
    known = canonical(map(str, table.columns))
    steps = next((c for c in table if known.get(str(c)) == "step"), None)
    if steps is None or len(table) < 4:
        return [found]
    numbers = pd.to_numeric(table[steps], errors="coerce")
    if numbers.dropna().is_monotonic_increasing and numbers.dropna().is_unique:
        return [found]
    labels = [
        c
        for c in table
        if str(c) not in known
        and (plain(c) in _RUN_NAMES or not pd.api.types.is_numeric_dtype(table[c]))
        and 1 < table[c].nunique(dropna=False) <= len(table) // 2
    ]
    for chosen in (*([c] for c in labels), labels):
        groups = list(numbers.groupby([table[c] for c in chosen], sort=False, dropna=False)) if chosen else []
        if groups and all(g.dropna().is_monotonic_increasing and g.dropna().is_unique for _, g in groups):
            words = [", ".join(f"{c} {v}" for c, v in zip(chosen, value, strict=True)) for value, _ in groups]
            return [
                found._replace(table=table.loc[g.index], label=", ".join(filter(None, (found.label, w))))
                for w, (_, g) in zip(words, groups, strict=True)
            ]
    return [found]


# --- JSON -----------------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    """The lines of a file and whether each is whole; of one longer than `_LONGEST_LINE` only the start is given."""
    with open_plain(path) as file, _bar(path, file) as bar:
        while line := file.readline(_LONGEST_LINE):
            whole = line.endswith(b"\n")
            bar.update(len(line))
            yield line, whole or len(line) < _LONGEST_LINE
            while not whole and len(rest := file.readline(_LONGEST_LINE)):
                whole = rest.endswith(b"\n")
                bar.update(len(rest))


def _bar(path: Path, file):
    size = os.fstat(file.fileno()).st_size
    return tqdm(total=size, desc=one_line(path.name), unit="B", unit_scale=True, delay=1, leave=False, disable=None)


def _json_lines(path: Path, source: str) -> list[Found]:
    """One object a line, as the workbench, verl's file logger and ms-swift write them."""
    rows: list[dict] = []
    names: dict[str, None] = {}
    broken, verl = 0, False
    for line, _ in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            broken += 1
            continue
        verl |= isinstance(row.get("data"), dict)
        rows.append(_row(row))
        names |= dict.fromkeys(rows[-1])
        if len(rows) == _PATIENCE and not of_reinforcement_learning(names):
            break
    if not rows:
        raise RunError(f"{source}: no line of it is a JSON object; expected one a step")
    damage = [f"{Path(source).name}: {broken} of {len(rows) + broken} lines are no JSON objects"] * (broken > 0)
    return [Found("verl JSONL" if verl else "JSONL", _steps(rows), "", damage, (), "verl" if verl else None)]


def _json(path: Path, source: str) -> list[Found]:
    """`trainer_state.json`, a notebook, a Kaggle log, a list of steps, or an object with such lists in it."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _LARGEST["JSON"]:
            raise RunError(
                f"{source}: {size / 1e6:.0f} MB of JSON; expected at most {_LARGEST['JSON'] / 1e6:.0f}. Save a notebook "
                "without its pictures, or give the log of the training itself"
            )
        data = file.read()
    try:
        value = json.loads(data.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        if Path(source).suffix.lower() == ".json" and _is_object(data.partition(b"\n")[0]):
            return _json_lines(path, source)
        raise RunError(f"{source}: not JSON ({error})") from error
    if isinstance(value, dict) and isinstance(value.get("cells"), list):
        return _notebook(value["cells"], source)
    if isinstance(value, list) and value and all(isinstance(v, dict) and "stream_name" in v for v in value):
        text = "".join(v["data"] for v in value if isinstance(v.get("data"), str))
        return [_printed([text.encode("utf-8", "replace")], source)]
    found = list(_tables(value, source))
    if isinstance(value, dict) and "log_history" in value:
        found = [run._replace(kind="trainer_state.json") for run in found if run.label == "log_history"]
    good = [run for run in found if of_reinforcement_learning(map(str, run.table.columns))] or found[:1]
    if not good:
        has = f"it has {', '.join(map(str, list(value)[:12]))}" if isinstance(value, dict) else "it has none"
        raise RunError(
            f"{source}: no log_history, nor another list of objects; {has}. Expected a trainer_state.json with at least one "
            "logged step, or an object a step"
        )
    return [good[0]._replace(label="")] if len(good) == 1 else good


def _tables(value, label: str, depth: int = 0) -> Iterator[Found]:
    """Lists of objects, and columns of numbers, in a value and up to three levels below it."""
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        yield Found("JSON", _steps([_row(row) for row in value]), label)
    elif isinstance(value, dict) and depth < 4:
        columns = {k: v for k, v in value.items() if isinstance(v, list) and v and all(map(_is_number, v))}
        sizes = {len(v) for v in columns.values()}
        if len(columns) > 1 and len(sizes) == 1:
            yield Found("JSON", pd.DataFrame(columns), label)
        for name, inner in value.items():
            yield from _tables(inner, str(name), depth + 1)


def _is_number(value) -> bool:
    return value is None or isinstance(value, int | float)


# --- what was printed -----------------------------------------------------------------------------------------------


def _blocks(path: Path) -> Iterator[bytes]:
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


def _console(path: Path, source: str) -> list[Found]:
    return [_printed(_blocks(path), source)]


def _printed(blocks, source: str) -> Found:
    """What TRL or verl printed, between anything else, progress bars too."""
    rows: list[dict] = []
    verl: list[dict] = []
    others: dict[tuple, int] = {}
    limits: set[bytes] = set()
    for block in blocks:
        if not verl:
            limits |= set(_CONFIG.findall(block))
        for match in _VERL.finditer(block):
            if block[match.start() - 1 : match.start()] not in (b"_", b"/") and (
                row := _verl_row(_unwrapped(block, match))
            ):
                verl.append(row | {"step": float(match[1])})
        if verl:
            continue
        for match in (_DICT if sum(others.values()) < _OTHERS else _STEP).findall(block):
            entries = _ENTRY.findall(match.decode("utf-8", "replace"))
            row = {name: float(value) for name, value in entries}
            if _of_a_trainer(row):
                rows.append(row)
            elif row:
                key = tuple(row)
                if key in others or len(others) < 100:
                    others[key] = others.get(key, 0) + 1
    if verl:
        settings = (
            {"max_completion_length": int(next(iter(limits))), "settings_from": "the log"} if len(limits) == 1 else {}
        )
        return Found("verl console log", _steps(verl), trainer="verl", settings=settings)
    if any("epoch" in row for row in rows):  # which every Trainer logs, and a dict of the user's own seldom has
        rows = [row for row in rows if "epoch" in row]
    count = sum(others.values())
    number = f"{count}" + " and more" * (count >= _OTHERS)
    if not rows:
        most = max(others, key=others.__getitem__, default=())
        seen = f"; {number} other dicts are, such as {{{', '.join(map(repr, most[:6]))}}}" if others else ""
        raise RunError(
            f"{source}: no line like {{'loss': 0.1, 'reward': 0.5}} or `step:1 - critic/score/mean:0.5` is in it{seen}; "
            f"expected {EXPECTED}"
        )
    notes = [f"{number} printed dicts that are no steps of a trainer are left out"] * (count > 0)
    return Found("console log", _steps(rows), notes=notes)


def _of_a_trainer(row: dict) -> bool:
    """Whether a printed dict is what a Trainer logs: it always has a loss, or PPO's `objective/...`."""
    return "loss" in row or "train_runtime" in row or any(name.startswith(("objective/", "eval_")) for name in row)


def _unwrapped(block: bytes, match: re.Match) -> str:
    """The line of a step with those that a terminal's width broke off: they begin with ` - `, or go on inside a name."""
    lines = block[match.start(2) : match.end() + _LONGEST_STEP].splitlines()
    text = lines[0].decode("utf-8", "replace")
    for line in lines[1:]:
        more = line.decode("utf-8", "replace")
        if more.lstrip().startswith("- "):
            text = f"{text.rstrip()} {more.lstrip()}"
        elif not _is_metric(text.rpartition(" - ")[2]) and _is_metric(
            (text + more)[text.rfind(" - ") + 3 :].partition(" - ")[0]
        ):
            text += more
        else:
            break
    return _COLOURS.sub("", text) if "\x1b" in text else text


def _is_metric(text: str) -> re.Match | None:
    return _METRIC.fullmatch(text.strip())


def _verl_row(line: str) -> dict | None:
    """`name:value - name:value ...`; None where no metric is in it."""
    found = filter(None, map(_is_metric, line.split(" - ")))
    row = {metric[1]: float(metric[2]) for metric in found}
    return row if any("/" in name for name in row) else None


# --- notebooks ------------------------------------------------------------------------------------------------------


class _HtmlTables(HTMLParser):
    """All tables of a page as rows of texts."""

    def __init__(self):
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self._cell: list[str] | None = None

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self.tables.append([])
        elif tag == "tr" and self.tables:
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._cell = []

    def handle_endtag(self, tag):
        if tag in ("td", "th") and self._cell is not None:
            if self.tables and self.tables[-1]:
                self.tables[-1][-1].append("".join(self._cell).strip())
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell.append(data)


def _notebook(cells: list, source: str) -> list[Found]:
    """The tables that a Trainer shows in a notebook, or what was printed there."""
    runs, texts, outputs = [], [], 0
    settings = of_sources(_text(c.get("source")) for c in cells if isinstance(c, dict) and c.get("cell_type") == "code")
    settings |= {"settings_from": "the notebook"} if settings else {}
    for number, cell in enumerate(cells, 1):
        kept = cell.get("outputs") if isinstance(cell, dict) else None
        for output in kept if isinstance(kept, list) else ():
            if not isinstance(output, dict):
                continue
            outputs += 1
            data = output.get("data")
            data = data if isinstance(data, dict) else {}
            texts += [_text(output.get("text")), _text(data.get("text/plain"))]
            page = _text(data.get("text/html"))
            if "<th" in page:
                runs += [Found("notebook", t, f"cell {number}", settings=settings) for t in _html_steps(page)]
    if len(runs) == 1:
        return [runs[0]._replace(label="")]
    if runs:
        labels = [run.label for run in runs]
        twice = [f", table {labels[: n + 1].count(x)}" * (labels.count(x) > 1) for n, x in enumerate(labels)]
        return [run._replace(label=run.label + more) for run, more in zip(runs, twice, strict=True)]
    try:
        run = _printed(["\n".join(texts).encode("utf-8", "replace")], source)
        return [run._replace(kind="notebook", settings={**settings, **run.settings})]
    except RunError as error:
        raise RunError(
            f"{source}: a notebook of {len(cells)} cells with {outputs} saved outputs; none is a table of steps with a reward, "
            "or what TRL or verl printed. Save it with the outputs of its training"
        ) from error


def _text(value) -> str:
    lines = value if isinstance(value, list) else [value]
    return "".join(line for line in lines if isinstance(line, str))


def _html_steps(page: str) -> list[pd.DataFrame]:
    parser = _HtmlTables()
    parser.feed(page)
    found = []
    for head, *body in filter(None, parser.tables):
        rows = [dict(zip(head, row, strict=True)) for row in body if len(row) == len(head)]
        if rows and of_reinforcement_learning(head):
            found.append(pd.DataFrame(rows))
    return found


# --- tables ---------------------------------------------------------------------------------------------------------


def _csv(path: Path, source: str) -> list[Found]:
    """Any table with a column of steps, W&B's history and charts among them. Only columns that are asked for are read."""
    with open_plain(path) as file:
        if os.fstat(file.fileno()).st_size > _LARGEST["CSV"]:
            raise RunError(f"{source}: larger than {_LARGEST['CSV'] / 1e6:.0f} MB; expected one row a step")
        start = file.read(4_000_000)
        head, _, body = start.partition(b"\n")
        if not body and len(start) == 4_000_000:
            raise RunError(
                f"{source}: no table, its first line has no end; expected a line of names and one row a step"
            )
        separator = "\t" if source.lower().endswith(".tsv") else max(",;\t", key=head.decode("latin-1").count)
        options: dict[str, Any] = {"encoding": "utf-8-sig", "sep": separator}
        try:
            some = io.BytesIO(head + b"\n" + b"\n".join(body.split(b"\n", 3)[:3]))
            sample = pd.read_csv(some, **options)
            chosen = _asked_for(sample)
            file.seek(0)
            table = pd.read_csv(file, usecols=chosen, **options) if chosen else sample
        except (ValueError, pd.errors.ParserError) as error:
            raise RunError(f"{source}: no table ({error}); expected a line of names and one row a step") from error
    charts = [c for c in table if " - " in str(c)]
    if not charts:
        return [Found("CSV", table)]
    common = [c for c in table if c not in charts and canonical([str(c)]).get(str(c)) in ("step", "epoch")]
    runs: dict[str, dict] = {}
    for column in charts:
        run, _, metric = str(column).rpartition(" - ")
        runs.setdefault(run, {})[column] = metric
    whole = table[[c for c in table if c not in charts]]
    found = [Found("CSV", table[[*common, *own]].rename(columns=own), run) for run, own in runs.items()]
    found = [run._replace(table=run.table.dropna(how="all", subset=list(runs[run.label].values()))) for run in found]
    found += [Found("CSV", whole)] if of_reinforcement_learning(map(str, whole)) else []
    return found if len(found) > 1 else [found[0]._replace(label="")]


def _asked_for(sample: pd.DataFrame) -> list:
    """Columns that are known, those of reward functions, and those that may part runs; none where it is no log."""
    columns = {c: re.sub(r"^.* - ", "", str(c)) for c in sample if not str(c).endswith(("__MIN", "__MAX"))}
    if not of_reinforcement_learning(columns.values()):
        return []
    known = {plain(c) for c in canonical(columns.values())}
    words = [c for c in columns if plain(c) in _RUN_NAMES or not pd.api.types.is_numeric_dtype(sample[c])][:50]
    return [c for c, n in columns.items() if plain(n) in known or plain(n).startswith("rewards_") or c in words]


def read_tensorboard(path: Path, source: str = "") -> pd.DataFrame:
    """The scalars of a TensorBoard event file, a row a step; `elapsed_s` counts from the first event.

    A last record cut short by a kill is left out.

    Raises:
        MissingDependencyError: TensorBoard, which reads its own files, is not installed.
        RunError: no such file, or no scalars in it (a file of another format has none).
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise MissingDependencyError("event files are read with TensorBoard: pip install tensorboard") from error
    source = source or str(path)
    if not path.is_file():
        raise RunError(f"{source}: no such file; expected an events.out.tfevents... file")
    rows: dict[int, dict] = {}
    events = list(EventFileLoader(str(path)).Load())  # it turns scalars of TensorFlow 1 into tensors, as 2 writes them
    for event in events:
        for value in event.summary.value:
            number = make_ndarray(value.tensor) if value.HasField("tensor") else np.array("")
            if number.ndim == 0 and np.issubdtype(number.dtype, np.number):
                row = rows.setdefault(event.step, {"step": event.step})
                row |= {"elapsed_s": event.wall_time - events[0].wall_time, value.tag: float(number)}
    if not rows:
        raise RunError(f"{source}: no scalars in it; expected a TensorBoard file, whose name contains tfevents")
    return pd.DataFrame(rows.values()).sort_values("step", ignore_index=True)
