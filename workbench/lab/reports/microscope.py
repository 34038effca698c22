"""The completions microscope: one page that leads from the rewards of all steps to a step, a group, a completion, its tokens.

Self-contained and inert as the reports: texts are compressed data that the page's only script unpacks and shows as text.
"""

import base64
import functools
import json
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from ...errors import RunError
from ...runs.text import UNSEEN
from .clean import shortened
from .page import hider, render, write_page
from .trainings import SIGNS, Training, is_fault, read_trainings

MOST_CHARACTERS = 40_000_000  # of completions in a page; text compresses to about a third of it
_LONGEST = 100_000  # characters of a text
_CHUNK = 300_000  # characters that the page unpacks at once
_BINS = 24  # of rewards


def microscope_data(trainings: Sequence[Training], hide: Callable[[str], str] = str) -> tuple[dict, list[str]]:
    """Return what the page holds: numbers of all steps, and the texts of every n-th group, all where they are few enough."""
    hide = functools.cache(lambda text, hide=hide: shortened(text, _LONGEST, change=hide))
    characters = sum(int(t.table["completion"].str.len().clip(upper=_LONGEST).sum()) for t in trainings)
    every = max(1, math.ceil(characters / MOST_CHARACTERS))
    head: dict = {"unseen": UNSEEN.pattern, "every": every, "trainings": []}
    chunks: list[str] = []
    for training in trainings:
        groups = np.arange(0, int(training.table["group"].iloc[-1]) + 1, every)
        places = _add_chunks(chunks, training, groups, hide)
        head["trainings"].append(_summary(training, hide) | _columns(training, groups, hide) | {"chunk": places})
    head |= {"shown": sum(len(t["flags"]) for t in head["trainings"]), "total": sum(len(t.table) for t in trainings)}
    return head, chunks


def _add_chunks(chunks: list[str], training: Training, groups: np.ndarray, hide: Callable) -> list[list[int]]:
    """Append the texts of these groups to `chunks`; for each group its chunk and its place there."""
    table = training.table
    columns = {name: table[name].tolist() for name in ("prompt", "completion")}
    columns |= {"tokens": list(training.tokens)}
    if len(training.functions) > 1:
        columns["rewards"] = table[list(training.functions)].to_numpy().tolist()
    starts = np.flatnonzero(np.diff(table["group"], prepend=-1, append=-1)).tolist()
    places: list[list[int]] = []
    waiting: list[dict] = []
    length = 0
    for group in groups.tolist():
        own = slice(starts[group], starts[group + 1])
        waiting.append(_texts({name: values[own] for name, values in columns.items()}, hide))
        places.append([len(chunks), len(waiting) - 1])
        length += sum(map(len, waiting[-1]["completions"])) + len(waiting[-1]["prompts"][0])
        if length > _CHUNK or group == groups[-1]:
            chunks.append(packed(waiting))
            waiting, length = [], 0
    return places


def _texts(rows: dict[str, list], hide: Callable[[str], str]) -> dict:
    """One group: its prompts, one where all are equal; completions, rewards of each function, tokens."""
    prompts = rows["prompt"][:1] if len(set(rows["prompt"])) == 1 else rows["prompt"]
    texts: dict[str, Any] = {"prompts": [hide(text) for text in prompts]}
    texts["completions"] = [hide(text) for text in rows["completion"]]
    if "rewards" in rows:
        texts["rewards"] = [[_number(value) for value in row] for row in rows["rewards"]]
    if any(rows["tokens"]):
        texts["tokens"] = [t and [_hidden(t.pieces, hide), t.uses, t.ratios] for t in rows["tokens"]]
    return texts


def _hidden(pieces: list[str], hide: Callable[[str], str]) -> list[str]:
    """Tokens without what is to be hidden; where only several together say it, the first has all of the text."""
    text = "".join(pieces)
    return pieces if hide(text) == text else [hide(text), *[""] * (len(pieces) - 1)]


def _columns(training: Training, groups: np.ndarray, hide: Callable[[str], str]) -> dict:
    """Of the groups that are shown their step and size, and columns of their rows."""
    table = training.table
    rows = table[table["group"].isin(groups)]
    flags = sum(rows[key].to_numpy(int) << n for n, key in enumerate(SIGNS) if key in rows)
    steps = np.unique(table["step"])
    columns = {"steps_of_groups": steps.searchsorted(rows.groupby("group")["step"].first()).tolist()}
    columns |= {"sizes": rows.groupby("group").size().tolist(), "flags": np.asarray(flags).tolist()}
    for name in ("reward", "advantage", "kept", "sampled"):
        if name in rows:
            columns[name] = [_number(value) for value in rows[name]]
    if "finish_reason" in rows:
        names = rows["finish_reason"].fillna("").astype(str).map(hide)
        columns["finish_reasons"] = list(dict.fromkeys(names))
        columns["finish_reason"] = names.map(columns["finish_reasons"].index).tolist()
    return columns


def _summary(training: Training, hide: Callable[[str], str]) -> dict:
    """Return what the head of the page says of all completions, those that are not shown too."""
    table = training.table
    by_step = table.groupby("step")
    sizes = by_step.size()
    signs = []
    for key, (words, _) in SIGNS.items():
        if key in table and table[key].any():
            shares = by_step[key].mean()
            share, worst = float(table[key].mean()), int(np.argmax(shares.to_numpy()))
            by_steps = np.round(shares, 3).tolist()
            sign = {"key": key, "words": words, "share": share, "worst": worst, "by_step": by_steps}
            signs.append(sign | {"fault": is_fault(key, table)})
    lacks = [lack for key, (_, lack) in SIGNS.items() if lack and key not in table]
    return {
        "name": hide(training.name),
        "total": len(table),
        "grouped": training.grouped,
        "functions": [hide(name) for name in training.functions],
        "stops": [hide(stop) for stop in training.stops],
        "steps": [int(step) for step in sizes.index],
        "sizes_of_steps": sizes.tolist(),
        "signs": signs,
        "lacks": lacks,
        "absent": [words for key, (words, _) in SIGNS.items() if key in table and not table[key].any()],
        "bits": {key: n for n, key in enumerate(SIGNS)},
        "has_tokens": any(found is not None for found in training.tokens),
    } | (_rewards(table) if "reward" in table and table["reward"].notna().any() else {})


def _rewards(table: pd.DataFrame) -> dict:
    """Rewards by step: their mean, how many of them fall into each bin, and their course in a sentence."""
    steps = np.unique(table["step"])
    means = table.groupby("step")["reward"].mean()
    scored = table[table["reward"].notna()]
    values = np.unique(scored["reward"])
    if len(values) > _BINS:  # the outermost 1% must not squeeze all others into one bin
        low, high = np.quantile(scored["reward"], (0.005, 0.995))
        values = np.unique(np.linspace(low, high, _BINS))
    nearest = np.abs(scored["reward"].to_numpy()[:, None] - values).argmin(axis=1)
    counts = np.zeros((len(steps), len(values)), int)
    np.add.at(counts, (steps.searchsorted(scored["step"]), nearest), 1)
    return {
        "bins": [_number(v) for v in values],
        "histogram": counts.tolist(),
        "mean": [_number(v) for v in means],
        "course": reward_course(means),
    }


def reward_course(means: pd.Series) -> str:
    """Return how the mean reward went, in a sentence; `means` has the steps as its index.

    Example:
        >>> reward_course(pd.Series([0.0, 0.5, 1.0, 0.2], index=[1, 2, 3, 4]))
        'Mean reward 0 in step 1, 0.2 in step 4; the highest was 1 in step 3.'
    """
    means = means.dropna()
    width = max(1, len(means) // 10)
    rolled = means.rolling(width).mean().dropna().to_numpy()
    best = int(rolled.argmax())

    def steps(first: int) -> str:
        last = first + width - 1
        return f"step {means.index[first]}" if width == 1 else f"steps {means.index[first]} to {means.index[last]}"

    if len(rolled) < 2:
        return f"Mean reward {rolled[0]:.3g} in {steps(0)}."
    end = len(rolled) - 1
    text = f"Mean reward {rolled[0]:.3g} in {steps(0)}, {rolled[end]:.3g} in {steps(end)}"
    return f"{text}; the highest was {rolled[best]:.3g} in {steps(best)}." if 0 < best < end else f"{text}."


def _number(value) -> float | int | None:
    """Five digits, None for what is no number."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) else short


def packed(value) -> str:
    """A JSON value, compressed, as base64."""
    return base64.b64encode(zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 6)).decode()


# --- the page ------------------------------------------------------------------------------------------------------


def write_microscope(
    folder: Path, path: Path, title: str, hide: Callable[[str], str], *, redacted: bool = False
) -> Path | None:
    """Write the page of all completions recorded in a folder and below; None, and no page, where there are none."""
    trainings, damaged = read_trainings(folder)
    if not trainings:
        path.unlink(missing_ok=True)
        return None
    head, chunks = microscope_data(trainings, hide)
    values = {"damaged": [hide(text) for text in damaged], "head": head, "redacted": redacted, "title": hide(title)}
    data = {"packed_head": Markup(packed(head)), "chunks": Markup("\n".join(chunks))}
    return write_page(path, render("microscope.html.j2", script="microscope.js", **values, **data))


def report_folder(folder: Path, out: Path | None = None, *, redact: bool = False) -> Path:
    """The page of a training that is no run of the workbench, such as the output of stock TRL."""
    name = f"{folder.resolve().name}-microscope" if out else "microscope"
    path = (out or folder) / f"{name}{'-redacted' if redact else ''}.html"
    title = f"Completions of {folder.resolve().name}"
    if folder.is_dir() and (page := write_microscope(folder, path, title, hider([], redact), redacted=redact)):
        return page
    raise RunError(
        f"{folder}: not a run folder (it has no params.json), and no completions are recorded in it; TRL records them with "
        "log_completions=True"
    )
