"""Recorded completions as one table, from any writer: the workbench, or TRL's `log_completions`."""

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..runs import completions as runs
from ..runs.files import checkpoints, read_json

# Finish reasons of vLLM and others: it ended by itself, the limit cut it. Of any other word neither is known.
STOPPED = ("stop", "eos", "stop_sequence", "end", "tool_calls")
CUT = ("length", "max_tokens", "limit", "truncated")

_TRL_PART = re.compile(r"completions_(\d+)\.parquet")
_LOGGED = re.compile(r"rewards/(.+)/mean")
_NOT_REWARDS = {"step", "advantage", "completion_tokens", "sampled_tokens", "tokens_to_eos", "index"}


def read_completions(folder: Path) -> tuple[Any, list[str]]:
    """The completions recorded in a training's folder: `completions.jsonl`, or TRL's `completions/`.

    A DataFrame `step, prompt, completion, ...`, empty where there are none; a sentence for each file or line
    that cannot be read.
    """
    if os.path.lexists(folder / runs.FILE):
        return runs.read_completions(folder)
    if (folder / "completions").is_symlink():
        raise RunError(f"{folder / 'completions'}: a link; it is not opened")
    return read_trl_completions(folder / "completions")


def read_trl_completions(folder: Path) -> tuple[Any, list[str]]:
    """The parts that TRL's `log_completions` writes, one a step; a sentence for each that cannot be read."""
    import pandas as pd

    if not folder.is_dir() or folder.is_symlink():
        return pd.DataFrame(), []
    parts = sorted((p for p in folder.iterdir() if _TRL_PART.fullmatch(p.name)), key=lambda p: int(p.stem[12:]))
    table, damage = runs.read_parts(parts)
    if rewards := _logged_rewards(folder.parent):  # other numbers that `log_extra` put beside them are no rewards
        table = table.drop(columns=[name for name in reward_functions(table) if name not in rewards])
    return table, damage


def last_trainer_state(folder: Path) -> Path | None:
    """`trainer_state.json` of a folder, or of its last checkpoint where that goes on from it."""
    found = [path for p in (folder, *checkpoints(folder)) if (path := p / "trainer_state.json").is_file()]
    if len(found) > 1 and found[0].parent == folder and _begins_with(_steps_in(found[1]), _steps_in(found[0])):
        return found[1]  # resumed, and killed before it saved its state there
    return found[0] if found else None


def _begins_with(later: list[str], earlier: list[str]) -> bool:
    return len(later) > len(earlier) > 0 and later[: len(earlier)] == earlier


def _steps_in(state: Path) -> list[str]:
    """The lines of a training's log but for its closing summaries, as text: NaN is not NaN."""
    try:
        found = read_json(state, {})
    except (RunError, OSError):
        return []
    history = found.get("log_history") if isinstance(found, dict) else None
    lines = history if isinstance(history, list) else []
    return [json.dumps(line) for line in lines if not (isinstance(line, dict) and "train_runtime" in line)]


def _logged_rewards(folder: Path) -> set[str]:
    """Names of the reward functions in a training's log, empty where there is none that can be read."""
    state = last_trainer_state(folder)
    try:
        found = read_json(state, {}) if state else {}
    except (RunError, OSError):
        return set()
    history = found.get("log_history") if isinstance(found, dict) else None
    lines = [line for line in history if isinstance(line, dict)] if isinstance(history, list) else []
    return {m[1] for line in lines for name in line if (m := _LOGGED.fullmatch(str(name)))}


def completions_table(raw) -> Any | None:
    """Recorded completions in the order of steps, as text, with `reward` where it is known; None where there are none.

    TRL writes a column for each reward function; their sum is the reward, since their weights are in no file.
    """
    if not {"step", "prompt", "completion"} <= set(raw.columns) or not len(raw):
        return None
    table = raw.rename(columns={"advantages": "advantage"}).sort_values("step", kind="stable", ignore_index=True)
    for name in ("prompt", "completion"):
        table[name] = table[name].map(_text)
    if "reward" not in table and (functions := reward_functions(table)):
        table["reward"] = table[functions].sum(axis=1, min_count=1)
    return table


def reward_functions(table) -> list[str]:
    """The columns that hold what single reward functions gave: all numbers that are nothing else."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    known = _NOT_REWARDS | {"reward"}
    return [c for c in table if c not in known and is_numeric_dtype(table[c]) and not is_bool_dtype(table[c])]


def generations_in_a_row(table) -> int | None:
    """G as equal prompts stand in a row in the completions; None where no prompt stands twice.

    Where prompts repeat in a batch, what is found may be a multiple of G, or where none does, G itself.

    Example:
        >>> import pandas as pd
        >>> generations_in_a_row(pd.DataFrame({"step": [1] * 6, "prompt": list("aabbcc")}))
        2
    """
    import numpy as np

    if table is None or not len(table):
        return None
    new_step = (table["step"] != table["step"].shift()).to_numpy()
    starts = np.flatnonzero(new_step | (table["prompt"] != table["prompt"].shift()).to_numpy())
    lengths = np.diff([*starts, len(table)])
    whole = ~np.append(new_step[starts[1:]], True)  # the last rows of a step may be cut short
    size = math.gcd(*map(int, lengths[whole] if whole.any() else lengths))
    return size if size > 1 else None


def _text(value) -> str:
    """A text, or the messages of a conversation."""
    if isinstance(value, str):
        return value
    several = not isinstance(value, bytes | Mapping) and hasattr(value, "__len__") and len(value) > 0
    if several and all(isinstance(message, Mapping) for message in value):
        return "\n".join(str(message.get("content", "")) for message in value)
    return str(value)
