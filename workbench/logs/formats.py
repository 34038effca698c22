"""The steps in a file, whatever wrote it: recognised by its first bytes and parsed, never executed. Errors name the file."""

import io
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..errors import MissingDependencyError, RunError
from ..runs.files import open_plain
from ..runs.own_code import load_own
from .journals import swanlab_run, wandb_run
from .names import RUN_NAMES, canonical, of_reinforcement_learning, plain
from .printed import printed
from .reader import Reader, Source, reader
from .rows import (
    CSV,
    LONGEST_LINE,
    Found,
    Lost,
    blocks_of,
    flat_row,
    lines_of,
    steps_of,
    unusable_as_error,
    what_is_lost,
)
from .settings import of_sources
from .stores import database, is_long, mlflow_run, parquet, wide

_LARGEST = {CSV: 512_000_000, "JSON": 100_000_000}  # bytes
SUMMARY = "wandb-summary.json"
TENSORBOARD = "TensorBoard"
# Columns that say what a line is, not which run; and the first word of what is no step of a training.
_KIND_NAMES = ["type", "kind", "split", "mode", "phase", "stage", "event"]
_OTHER_KINDS = ["eval", "evaluation", "evaluate", "val", "valid", "validation", "test", "sample", "samples"]
_NEVER_OPENED = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK")  # pickles, archives
# A column of texts in rows that are completions with their rewards; and what a line of a training has and these lack.
_TEXTS = {"completion", "output", "response", "generation"}
_OF_A_STEP = {"loss", "grad_norm", "learning_rate", "kl", "entropy", "mean_length"}
_MOST_RUNS = 50  # that a column parts which has no name of `RUN_NAMES`: more are words of the task
_SPELLED_NAN = re.compile(rb"[,;\t\n]-?nan(?=[,;\t\r\n])", re.I)
_PATIENCE = 1_000  # lines of JSON without a metric of reinforcement learning, then the file is data and no log


def runs_in(path: Path, source: str, readers: Sequence[Reader] = ()) -> list[Found]:
    """The runs in one plain file in UTF-8, read by the first reader that takes it, of `READERS` if none are given.

    `source` is what errors call the file; what follows its last dot may tell the kind.
    """
    with unusable_as_error(source):
        of_file = Source.of(path, source)
        chosen = next(reader for reader in readers or READERS if reader.takes(of_file))
        return tidied(chosen(of_file))


def tidied(runs: Sequence[Found]) -> list[Found]:
    """Runs apart that stand in one table, with their trainer, and what is lost in them."""
    parts = [_named(part) for run in runs for part in _split(run)]
    return [run._replace(damage=(*run.damage, *run.table.attrs.get("lost", ()))) for run in parts]


def _named(run: Found) -> Found:
    """With the trainer, where its own columns tell it."""
    columns = {str(c).removeprefix("train/").replace("critic/", "critic_").replace("/mean", "_mean") for c in run.table}
    if run.trainer is None and columns & {"critic_score_mean", "critic_rewards_mean"}:
        return run._replace(trainer="verl")
    if run.trainer is None and columns & {"global_step/max_steps", "train_speed(iter/s)", "memory(GiB)"}:
        return run._replace(trainer="ms-swift")
    return run


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.removeprefix(b"\xef\xbb\xbf")), dict)
    except (ValueError, RecursionError):
        return False


def _split(found: Found) -> list[Found]:
    """The runs of a table that stand below each other or mixed, separated by columns of words, or of seeds."""
    table = found.table
    known = canonical(map(str, table.columns))
    steps = next((c for c in table if known.get(str(c)) == "step"), None)
    if steps is None or len(table) < 4:
        return [found]
    found = _without_evaluations(found, steps)
    table = found.table
    numbers = pd.to_numeric(table[steps], errors="coerce")
    if numbers.dropna().is_monotonic_increasing and numbers.dropna().is_unique:
        return [found]
    if (one := _one_line_a_step(found, numbers)) is not None:
        return [one]
    labels = [
        c
        for c in table
        if str(c) not in known
        and (plain(c) in RUN_NAMES or not pd.api.types.is_numeric_dtype(table[c]))
        and 1
        < table[c].nunique(dropna=False)
        <= min(len(table) // 2, len(table) if plain(c) in RUN_NAMES else _MOST_RUNS)
    ]
    for chosen in (*([c] for c in labels), labels):
        groups = list(table.groupby([table[c] for c in chosen], sort=False, dropna=False)) if chosen else []
        trained = [(values, part) for values, part in groups if _is_of_training(part, chosen, values)] or groups
        orders = [numbers.loc[part.index].dropna() for _, part in trained]
        if groups and all(order.is_monotonic_increasing and order.is_unique for order in orders):
            names_of_trained = {values for values, _ in trained}
            left_out = [_words(chosen, values) for values, _ in groups if values not in names_of_trained]
            about = f"lines with {', '.join(left_out)} are left out: they are no steps of a training"
            notes = [about] if left_out else []
            several = len(trained) > 1
            return [
                found._replace(
                    table=part,
                    label=", ".join(filter(None, (found.label, _words(chosen, values) if several else ""))),
                    notes=[*found.notes, *notes],
                )
                for values, part in trained
            ]
    return [found]


def _one_line_a_step(found: Found, numbers: pd.Series) -> Found | None:
    """The run with the lines of a step in one, where each has other metrics, as of rollout and training; else None.

    Of a kind with several lines a step, as one for each minibatch, the means count.
    """
    table, known = found.table, canonical(map(str, found.table.columns))
    kinds = [c for c in table if _says_the_kind(c)]
    part, order = table[numbers.notna()], numbers.dropna()
    metrics = [c for c in part if known.get(str(c)) not in (None, "step", "epoch") and part[c].notna().any()]
    kind = part[kinds].astype(str).agg(" ".join, axis=1) if kinds else None
    # Training that is asynchronous logs a step long after its rollouts.
    each = [order] if kind is None else [of_one for _, of_one in order.groupby(kind)]
    if order.is_unique or not all(of_one.is_monotonic_increasing for of_one in each):
        return None
    several = (part[metrics].groupby(order).count() > 1).any(axis=None)
    of_kind = set() if kind is None or not several else {frozenset(kind[part[c].notna()]) for c in metrics}
    if several and (len(of_kind) < 2 or sum(map(len, of_kind)) > len(frozenset().union(*of_kind))):
        return None
    last = pd.Series(part.index, index=part.index).groupby(order).last()  # the label of each step's last line
    numbers_in, by_step = part.select_dtypes("number").columns, part.groupby(order)
    joined = by_step.last()
    joined[numbers_in] = by_step[numbers_in].mean()
    joined = joined.set_index(last.to_numpy())
    label_of = dict(zip(part.index, order.map(last), strict=True))
    lost = {
        name: [label_of[row] for row in rows if row in label_of] for name, rows in table.attrs.get("rows", {}).items()
    }
    joined.attrs |= table.attrs | ({"rows": Lost(lost)} if "rows" in table.attrs else {})
    return found._replace(table=joined)


def _without_evaluations(found: Found, steps: str) -> Found:
    """Without lines that a column calls evaluations or samples, where the others are of a training; `steps` is a column."""
    table = found.table
    others = [table[c].map(_is_of_another_kind) for c in table if _says_the_kind(c)]
    left_out = np.any(others, axis=0) if others else np.zeros(len(table), bool)
    part = table[~left_out]
    if not left_out.any() or not of_reinforcement_learning(str(c) for c in part if part[c].notna().any()):
        return found
    if "rows" in table.attrs:
        kept = set(part.index)
        part.attrs["rows"] = Lost({n: [at for at in rows if at in kept] for n, rows in table.attrs["rows"].items()})
    part.attrs["steps of evaluations"] = pd.to_numeric(table[steps][left_out], errors="coerce").dropna().to_list()
    note = f"{left_out.sum()} lines of evaluations or samples are left out: they are no steps of a training"
    return found._replace(table=part, notes=[*found.notes, note])


def _words(columns: list, values: tuple) -> str:
    return ", ".join(f"{column} {value}" for column, value in zip(columns, values, strict=True))


def _is_of_another_kind(value) -> bool:
    return plain(value).partition("_")[0] in _OTHER_KINDS


def _says_the_kind(column) -> bool:
    return plain(column).rpartition("_")[2] in _KIND_NAMES  # log_type is one


def _is_of_training(part: pd.DataFrame, columns: list, values: tuple) -> bool:
    """True for lines that hold metrics of a training and are not named evaluations or samples."""
    for column, value in zip(columns, values, strict=True):
        if _says_the_kind(column) and _is_of_another_kind(value):
            return False
    return of_reinforcement_learning(str(column) for column in part if part[column].notna().any())


# --- JSON -----------------------------------------------------------------------------------------------------------


def _json_lines(path: Path, source: str) -> list[Found]:
    """One object a line, as the workbench, verl's file logger and ms-swift write them."""
    counts = dict.fromkeys(("rows", "broken", "verl"), 0)
    ours = path.name == "metrics.jsonl" and (path.parent / "recipe.json").is_file()  # where NaN is null
    table = steps_of(_objects(path, counts, math.nan if ours else None))
    if not counts["rows"]:
        raise RunError(f"{source}: no line is a JSON object; expected one object a line, for one step")
    _refuse_completions(table, source)
    broken, lines = counts["broken"], counts["rows"] + counts["broken"]
    damage = [f"{Path(source).name}: {broken} of {lines} lines are not JSON objects"] * (broken > 0)
    verl = counts["verl"] > 0
    return [Found("verl JSONL" if verl else "JSONL", table, "", damage, (), "verl" if verl else None)]


def _refuse_completions(table: pd.DataFrame, source: str) -> None:
    """Raises for rows that each are a completion with its reward, as evaluations and dumps of rollouts keep them.

    A loop may print a completion with each step; then the row has a step of its own, or a loss.
    """
    known = canonical(map(str, table.columns))
    steps = next((c for c in table if known.get(str(c)) == "step"), None)
    several = steps is None or table[steps].nunique() <= len(table) // 2
    if len(table) > 1 and several and _TEXTS & set(map(plain, table)) and not _OF_A_STEP & set(known.values()):
        raise RunError(
            f"{source}: its {len(table)} rows are completions with their rewards, not steps of a training; give the log of the "
            "training, and these with --completions; `workbench reward-report` reads completions alone"
        )


def _objects(path: Path, counts: dict[str, int], null: float | None = None) -> Iterator[dict]:
    """The objects in lines of JSON, flat, with what null stands for; what is no log ends early."""
    names: dict[str, None] = {}
    for line in lines_of(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            counts["broken"] += 1
            continue
        counts["verl"] += isinstance(row.get("data"), dict)
        counts["rows"] += 1
        yield (flat := flat_row({name: null if value is None else value for name, value in row.items()}))
        if counts["rows"] <= _PATIENCE:
            names |= dict.fromkeys(flat)
            if counts["rows"] == _PATIENCE and not of_reinforcement_learning(names):
                return


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
        return [printed([text.encode("utf-8", "replace")], source)]
    if isinstance(value, dict) and Path(source).name == SUMMARY:
        return [Found("W&B's summary", pd.DataFrame([flat_row(value)]), notes=[f"{SUMMARY} has only the last step"])]
    found = list(_tables(value, source))
    if isinstance(value, dict) and "log_history" in value:
        found = [run._replace(kind="trainer_state.json") for run in found if run.label == "log_history"]
    good = [run for run in found if of_reinforcement_learning(map(str, run.table.columns))] or found[:1]
    trained = [run for run in good if not _is_of_another_kind(run.label)]
    if trained and len(trained) < len(good):
        note = "what a key calls an evaluation or samples is left out: it is no training"
        good = [run._replace(notes=[*run.notes, note]) for run in trained]
    if not good:
        has = f"its keys are {', '.join(map(str, list(value)[:12]))}" if isinstance(value, dict) else "it has no keys"
        raise RunError(
            f"{source}: no log_history and no other list of objects; {has}. Expected a trainer_state.json with at least one "
            "logged step, or a list with an object for each step"
        )
    return [good[0]._replace(label="")] if len(good) == 1 else good


def _tables(value, label: str, depth: int = 0) -> Iterator[Found]:
    """Lists of objects, and columns of numbers, in a value and up to three levels below it."""
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        if is_long(value[0]):
            yield from wide(pd.DataFrame([flat_row(row) for row in value]))
            return
        yield Found("JSON", steps_of([flat_row(row) for row in value]), label)
    elif isinstance(value, dict) and depth < 4:
        columns = {k: v for k, v in value.items() if isinstance(v, list) and v and all(map(_is_number, v))}
        sizes = [len(v) for v in columns.values()]
        size = max(set(sizes), key=sizes.count, default=0)  # an evaluation has another
        if sizes.count(size) > 1:
            yield Found("JSON", pd.DataFrame({k: v for k, v in columns.items() if len(v) == size}), label)
        for name, inner in value.items():
            outer = label if depth and _is_of_another_kind(label) else ""  # `eval` above the names of data sets
            yield from _tables(inner, f"{outer}/{name}" if outer else str(name), depth + 1)


def _is_number(value) -> bool:
    return value is None or isinstance(value, int | float)


# --- notebooks ------------------------------------------------------------------------------------------------------


def _notebook(cells: list, source: str) -> list[Found]:
    """The tables that a Trainer shows in a notebook, or what was printed there."""
    runs, shown, outputs = [], [], 0
    settings = of_sources(_text(c.get("source")) for c in cells if isinstance(c, dict) and c.get("cell_type") == "code")
    settings |= {"settings_from": "the notebook"} if settings else {}
    for number, cell in enumerate(cells, 1):
        kept = cell.get("outputs") if isinstance(cell, dict) else None
        texts = []
        for output in kept if isinstance(kept, list) else ():
            outputs += 1
            data = output.get("data") if isinstance(output, dict) else None
            data = data if isinstance(data, dict) else {}
            texts += [_text(output.get("text")), _text(data.get("text/plain"))] if isinstance(output, dict) else []
            page = _text(data.get("text/html"))
            if "<th" in page:
                runs += [Found("notebook", t, f"cell {number}", settings=settings) for t in _html_steps(page)]
        shown.append((f"cell {number}", "\n".join(texts)))
    runs = [run for n, run in enumerate(runs, 1) if n == len(runs) or not _is_begun(run, runs[n])]
    runs = runs or [run for label, text in shown for run in _printed_in(text, label, settings)]
    if len(runs) == 1:
        return [runs[0]._replace(label="")]
    if runs:
        labels = [run.label for run in runs]
        twice = [f", table {labels[: n + 1].count(x)}" * (labels.count(x) > 1) for n, x in enumerate(labels)]
        return [run._replace(label=run.label + more) for run, more in zip(runs, twice, strict=True)]
    raise RunError(
        f"{source}: a notebook of {len(cells)} cells with {outputs} saved outputs; none is a table of steps with a reward, "
        "and none has such lines as TRL or verl print. A table of Step and Training Loss has no reward: save "
        "trainer.state.log_history, or audit a checkpoint's trainer_state.json"
    )


def _is_begun(run: Found, later: Found) -> bool:
    """Say whether a table is the start of the next one: a notebook may keep what a progress bar showed before."""
    size = len(run.table)
    return size < len(later.table) and list(run.table) == list(later.table) and run.table.equals(later.table.head(size))


def _printed_in(text: str, label: str, settings: dict) -> list[Found]:
    """Return what was printed below one cell, where it is of reinforcement learning."""
    try:
        run = printed([text.encode("utf-8", "replace")], label)
    except RunError:
        return []
    good = of_reinforcement_learning(map(str, run.table.columns))
    return [run._replace(kind="notebook", label=label, settings={**settings, **run.settings})] * good


def _text(value) -> str:
    lines = value if isinstance(value, list) else [value]
    return "".join(line for line in lines if isinstance(line, str))


def _html_steps(page: str) -> list[pd.DataFrame]:
    """The tables of steps in a page, as a Trainer writes them: never one within another."""
    found = []
    for table in page.split("<table")[1:]:
        rows = [re.split(r"<t[dh]\b[^<>]*>", row)[1:] for row in table.split("<tr")[1:]]
        texts = [[unescape(re.sub(r"<[^<>]*>", "", cell.partition("</t")[0])).strip() for cell in row] for row in rows]
        head, body = (texts or [[]])[0], [row for row in texts[1:] if len(row) == len(texts[0])]
        if body and of_reinforcement_learning(head) and _counts_steps(head, body):
            found.append(pd.DataFrame(body, columns=head))
            found[-1].attrs |= what_is_lost([dict(zip(head, row, strict=True)) for row in body])
    return found


def _counts_steps(head: list[str], body: list[list[str]]) -> bool:
    """False where a column has the name of steps and fractions in it, such as marks for the steps of an answer."""
    at = next((place for place, name in enumerate(head) if canonical([name]).get(name) == "step"), None)
    numbers = pd.to_numeric(
        pd.Series([] if at is None else [row[at] for row in body], dtype=object), errors="coerce"
    ).dropna()
    return bool((numbers == numbers.round()).all())


# --- tables ---------------------------------------------------------------------------------------------------------


def _csv(path: Path, source: str) -> list[Found]:
    """Any table with a column of steps, W&B's history and charts among them. Only columns that are asked for are read."""
    with open_plain(path) as file:
        if os.fstat(file.fileno()).st_size > _LARGEST[CSV]:
            raise RunError(f"{source}: larger than {_LARGEST['CSV'] / 1e6:.0f} MB; expected one row a step")
        start = file.read(4_000_000)
        head, _, body = start.partition(b"\n")
        if not body and len(start) == 4_000_000:
            raise RunError(
                f"{source}: not a table: the first line has no end; expected a line of names and one row a step"
            )
        separator = "\t" if source.lower().endswith(".tsv") else max(",;\t", key=head.decode("latin-1").count)
        options: dict[str, Any] = {"encoding": "utf-8-sig", "sep": separator}
        try:
            sample = pd.read_csv(io.BytesIO(start), nrows=3, **options)  # a text in quotes may have several lines
            chosen = _asked_for(sample)
            file.seek(0)
            if not chosen and is_long(sample):
                return wide(pd.read_csv(file, **options))
            table = pd.read_csv(file, usecols=chosen, **options) if chosen else sample
            if table.empty:
                raise ValueError("no line below the first")
            if _SPELLED_NAN.search(start):  # then an empty cell is no NaN
                file.seek(0)
                texts = pd.read_csv(file, usecols=chosen or None, dtype=str, keep_default_na=False, **options)
                table.attrs |= what_is_lost(texts.to_dict("records"))
        except (ValueError, pd.errors.ParserError) as error:
            raise RunError(f"{source}: no table ({error}); expected a line of names and one row a step") from error
    table.attrs["separator"] = separator
    charts = [c for c in table if " - " in str(c)]
    if not charts:
        return [Found(CSV, table)]
    common = [c for c in table if c not in charts and canonical([str(c)]).get(str(c)) in ("step", "epoch")]
    runs: dict[str, dict] = {}
    for column in charts:
        run, _, metric = str(column).rpartition(" - ")
        runs.setdefault(run, {})[column] = metric
    whole = table[[c for c in table if c not in charts]]
    found = [Found(CSV, table[[*common, *own]].rename(columns=own), run) for run, own in runs.items()]
    found = [run._replace(table=run.table.dropna(how="all", subset=list(runs[run.label].values()))) for run in found]
    found += [Found(CSV, whole)] if of_reinforcement_learning(map(str, whole)) else []
    return found if len(found) > 1 else [found[0]._replace(label="")]


def _asked_for(sample: pd.DataFrame) -> list:
    """Columns that are known, those of reward functions, and those that may part runs; none where it is no log."""
    columns = {c: re.sub(r"^.* - ", "", str(c)) for c in sample if not str(c).endswith(("__MIN", "__MAX"))}
    if not of_reinforcement_learning(columns.values()):
        return []
    known = {plain(c) for c in canonical(columns.values())}
    words = [c for c in columns if plain(c) in RUN_NAMES or not pd.api.types.is_numeric_dtype(sample[c])][:50]
    return [c for c, n in columns.items() if plain(n) in known or plain(n).startswith("rewards_") or c in words]


def read_tensorboard(path: Path, source: str = "", *, resumed: Sequence[Path] = ()) -> pd.DataFrame:
    """The scalars of a TensorBoard event file, a row a step; `elapsed_s` counts from the first event.

    A last record cut short by a kill is left out. Of a step that is in a file of `resumed` too, the last value counts.
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise MissingDependencyError(
            f"{source or path}: TensorBoard's event files need its reader: pip install 'trl-workbench[tensorboard]'"
        ) from error
    source = source or str(path)
    if not path.is_file():
        raise RunError(f"{source}: no such file; expected an events.out.tfevents... file")
    rows: dict[int, dict] = {}
    # The loader turns scalars of TensorFlow 1 into tensors, as 2 writes them.
    events = [event for file in (path, *resumed) for event in EventFileLoader(str(file)).Load()]
    for event in events:
        for value in event.summary.value:
            number = make_ndarray(value.tensor) if value.HasField("tensor") else np.array("")
            if number.ndim == 0 and np.issubdtype(number.dtype, np.number):
                row = rows.setdefault(event.step, {"step": event.step})
                row |= {"elapsed_s": event.wall_time - events[0].wall_time, value.tag: float(number)}
    if not rows:
        raise RunError(f"{source}: no scalars in it; expected a TensorBoard file, whose name contains tfevents")
    ordered = [rows[step] for step in sorted(rows)]
    table = pd.DataFrame(ordered)
    table.attrs |= what_is_lost(ordered)
    return table


# --- readers, one for each kind of file -----------------------------------------------------------------------------


@reader(files="*tfevents*")
def tensorboard(source: Source) -> list[Found]:
    """Events of TensorBoard."""
    return [Found(TENSORBOARD, read_tensorboard(source.path, source.name))]


@reader(sniff=lambda source: _text_of(source)[:2] in _NEVER_OPENED)
def never_opened(source: Source) -> list[Found]:
    """Refuses pickles, which can run anything, and archives."""
    raise RunError(f"{source.name}: pickles and archives are never opened; give trainer_state.json or another log")


@reader(sniff=lambda source: source.suffix in (".csv", ".tsv"))
def table(source: Source) -> list[Found]:
    """A table with the name of one."""
    return _csv(source.path, source.name)


@reader(sniff=lambda source: source.suffix in (".json", ".ipynb"))
def json_value(source: Source) -> list[Found]:
    """One value of JSON."""
    return _json(source.path, source.name)


@reader(sniff=lambda source: source.suffix == ".jsonl")
def json_lines(source: Source) -> list[Found]:
    """A value of JSON a line."""
    return _json_lines(source.path, source.name)


@reader(sniff=lambda source: re.match(rb'\{\s*"|\[\s*[{\[]', _text_of(source)) is not None)
def unnamed_json(source: Source) -> list[Found]:
    """Read what begins as JSON does: one value, lines of values, or a console log whose first line looks so."""
    first, is_only = _first_line(source)
    whole = is_only or not _is_object(first)
    for read in (_json, _json_lines) if whole else (_json_lines, _json):
        try:
            return read(source.path, source.name)
        except RunError as error:
            refused = error
    try:
        return console.function(source)
    except RunError:
        raise refused from None


def _has_names(source: Source) -> bool:
    """True for a file whose first line has three names or more, metrics among them."""
    names = re.split(rb"[,;\t]", _first_line(source)[0]) if source.start else []
    return len(names) > 2 and of_reinforcement_learning(n.decode("utf-8", "replace").strip('"\r\n ') for n in names)


@reader(sniff=_has_names)
def unnamed_table(source: Source) -> list[Found]:
    """A table in a file with the name of none."""
    return _csv(source.path, source.name)


@reader(sniff=lambda source: not source.path.is_dir())
def console(source: Source) -> list[Found]:
    """Any other file: what a program printed."""
    return [printed(blocks_of(source.path), source.name)]


def _text_of(source: Source) -> bytes:
    """The first bytes, without what an editor puts in front of a text."""
    return source.start.removeprefix(b"\xef\xbb\xbf").lstrip()


def _first_line(source: Source) -> tuple[bytes, bool]:
    """The first line of a file, and whether nothing follows it."""
    with open_plain(source.path) as file:
        first = file.readline(LONGEST_LINE)
        return first, not file.read(1)


# The first one that takes a file or folder reads it.
READERS: tuple[Reader, ...] = (
    tensorboard, database, parquet, mlflow_run, wandb_run, swanlab_run, never_opened,
    table, json_value, json_lines, unnamed_json, unnamed_table, console,
)  # fmt: skip


def load_readers(path: str | os.PathLike) -> list[Reader]:
    """Run a user's Python file and take the readers that it defines.

    Raises:
        ParameterError: no such file, an error in it, no reader in it.
    """
    return load_own(path, "readers", Reader, READERS, "workbench.logs")
