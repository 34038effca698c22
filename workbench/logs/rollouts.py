"""Recorded completions with their rewards, from any writer, as rows that features understand."""

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ParameterError, RunError
from ..runs.completions import FILE, read_parts
from ..runs.files import json_lines
from .completions import completions_table, read_completions, read_trl_completions, reward_functions
from .log import Log

# Column of a row -> what the writers call it: the workbench and TRL, verl (`input`, `output`, `gts`, `score`), prime-rl.
COLUMNS = {
    "prompt": ("prompt", "input", "question", "problem"),
    "completion": ("completion", "output", "response", "generation"),
    "reward": ("reward", "score", "rewards"),
    "advantage": ("advantage", "advantages"),
    "answer": (
        *("answer", "gts", "ground_truth", "solution", "target", "label"),
        *("answers", "final_answer", "correct_answer", "expected_answer", "reference_answer"),
    ),
    "tokens": ("tokens", "completion_tokens", "completion_len", "num_tokens"),
    "finish_reason": ("finish_reason",),
    "step": ("step", "global_step"),
    "group": ("example_id", "group", "group_id", "uid"),
}
EXPECTED = (
    "expected a folder with completions.jsonl (the workbench), completions/*.parquet (TRL's log_completions=True), N.jsonl of "
    "verl's rollout_data_dir or step_N/*.jsonl of prime-rl, or one such file"
)
_STEP = re.compile(r"(?:^|[_-])(\d+)$")
_NOT_TRAINING = re.compile(r"(?<![a-z])(?:eval|valid|val(?![a-z])|test)", re.I)
_MOST_FILES = 5000


def load_completions(source: Any, answers: Any = None) -> tuple[Any, list[str]]:
    """The completions of a training as a table, and a sentence for each thing that could not be read.

    Args:
        source: a folder or file, a run, or a table (DataFrame, list of rows).
        answers: the right answer of each prompt, or a JSON-lines file of rows with both, where the record has none.

    Returns:
        Columns `step`, `prompt`, `completion`, `reward`, and where known `advantage`, `answer`, `tokens`, `finish_reason`.

    Raises:
        RunError: nothing there holds completions.
        ParameterError: a column is missing; it names those that are there.
    """
    import pandas as pd

    damage: list[str] = []
    if isinstance(source, pd.DataFrame):
        raw = source.copy()
    elif isinstance(source, str | os.PathLike) or hasattr(source, "path"):
        raw, damage = _from_path(Path(getattr(source, "path", source)).expanduser())
    else:
        raw = _table(list(source))
    if not len(raw):
        raise ParameterError("the completions: no rows; expected some with `step`, `prompt`, `completion` and `reward`")
    table = _named(raw)
    if "of" in table:  # the workbench records evaluations in the same file
        table = table[table["of"].isin(["training", "train"])].reset_index(drop=True)
        if not len(table):
            raise ParameterError(
                "the completions are all of evaluations; expected some of the training (`of` is training)"
            )
    for name in ("prompt", "completion"):
        table[name] = [_whole(message_text(value)) for value in table[name]]
    if "step" not in table:
        raise ParameterError(f"the completions have no column `step`, only {', '.join(map(str, raw.columns))}; add one")
    if "reward" not in table and "advantage" not in table:
        raise ParameterError(
            f"the completions have no `reward`, only {', '.join(map(str, raw.columns))}; add the column"
        )
    steps = pd.to_numeric(table["step"], errors="coerce")
    odd = [step for step, number in zip(table["step"], steps, strict=True) if pd.isna(number)]
    if len(odd) == len(table):
        raise ParameterError(f"`step` has {odd[0]!r}; expected a number for each completion")
    if odd:
        damage = [*damage, f"{len(odd):,} of {len(table):,} completions have no number as their step; left out."]
    table = table.assign(step=steps)[steps.notna()].sort_values("step", kind="stable", ignore_index=True)
    if answers is not None:
        known = _answers(answers)
        table["answer"] = _looked_up(table["prompt"], known)
        if table["answer"].isna().all():
            count = sum(answer is not None for answer in known.values())
            raise ParameterError(f"answers: none of its {count} prompts with an answer is a prompt of the completions")
    return table, damage


def with_rollouts(log: Log, source: str | os.PathLike) -> Log:
    """A log with completions that lie elsewhere, as in verl's `rollout_data_dir`, the rows of a prompt next to each other.

    Raises:
        RunError: nothing at `source` holds completions.
        ParameterError: a column of them is missing, or none of them is of a step of the log.
    """
    table, damage = load_completions(source)
    steps = log.steps["step"]
    if not table["step"].isin(steps).any():
        raise ParameterError(
            f"completions={source}: they are of the steps {table['step'].min()} to {table['step'].max()}, and {log.name} has "
            f"{steps.min():.0f} to {steps.max():.0f}; expected those of the same training"
        )
    of_prompt = table.groupby(["step", "prompt"], sort=False).ngroup()  # verl dumps rows in the order of their lengths
    table = table.loc[of_prompt.sort_values(kind="stable").index]
    return dataclasses.replace(log, completions=completions_table(table), damage=(*log.damage, *damage))


def _named(raw):
    """The table with the columns' names of `COLUMNS`; the first of the names that is there counts."""
    chosen = {}
    for name, others in COLUMNS.items():
        there = next((other for other in others if other in raw.columns), None)
        if there is not None and there != name:
            chosen[there] = name
    table = raw.rename(columns=chosen)
    for name in ("prompt", "completion"):
        if name not in table:
            raise ParameterError(f"the completions have no column `{name}`, only {', '.join(map(str, raw.columns))}")
    own = {other for others in COLUMNS.values() for other in others}
    functions = [column for column in reward_functions(table) if column not in own]
    if "reward" not in table and functions:  # TRL writes a column for each function; their weights are in no file
        table["reward"] = table[functions].sum(axis=1, min_count=1)
    if "is_truncated" in table and "finish_reason" not in table:
        table["finish_reason"] = ["length" if cut else "stop" for cut in table["is_truncated"]]
    elif "stop_condition" in table and "finish_reason" not in table:
        table["finish_reason"] = table["stop_condition"]
    return table


def message_text(value: Any) -> str:
    """A text; of a conversation the contents of its messages, with calls of tools and their answers between tags.

    Example:
        >>> message_text([{"role": "assistant", "content": "Sum:", "tool_calls": [{"name": "add"}]}])
        'Sum:\\n<tool_call>{"name": "add"}</tool_call>'
    """
    if isinstance(value, str):
        return value
    several = hasattr(value, "__len__") and not isinstance(value, bytes | Mapping)
    if not several or not all(isinstance(message, Mapping) for message in value):
        return str(value)
    parts = []
    for message in value:
        content = message.get("content")
        if isinstance(content, list | np.ndarray):
            content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
        if message.get("role") == "tool":
            content = f"<tool_response>{content}</tool_response>"
        if content:
            parts.append(str(content))
        calls = message.get("tool_calls")
        for call in [] if calls is None else calls:
            parts.append(f"<tool_call>{call if isinstance(call, str) else json.dumps(call, default=str)}</tool_call>")
    return "\n".join(parts)


def _answers(answers: Any) -> dict[str, Any]:
    """Prompt -> its right answer."""
    if isinstance(answers, Mapping):
        return {message_text(prompt).strip(): answer for prompt, answer in answers.items()}
    if isinstance(answers, str | os.PathLike):
        path = Path(answers)
        if not path.is_file():
            raise ParameterError(f"answers={path}: no such file; expected JSON lines with `prompt` and `answer`")
        answers = (row for _, row in json_lines(path))
    found = {}
    for row in answers:
        prompt = next((name for name in COLUMNS["prompt"] if name in row), None)
        answer = next((name for name in COLUMNS["answer"] if name in row), None)
        if prompt is None or answer is None:
            raise ParameterError(f"answers: a row has {', '.join(map(str, row))}; expected `prompt` and `answer`")
        if row[prompt] is None:
            raise ParameterError(f"answers: a row has the prompt None, and `{answer}` {row[answer]!r}; leave it out")
        found[message_text(row[prompt]).strip()] = row[answer]  # None where the right answer is not known
    return found


def _looked_up(prompts, known: dict[str, Any]) -> list:
    """The answer of each prompt; where a chat template surrounds it, that of the last known prompt in it."""
    found = {}
    for prompt in prompts.unique():
        inside = prompt.strip()
        if inside not in known:
            ends = [(_end_of(text, prompt), len(text), text) for text in known if text and text in prompt]
            inside = max((each for each in ends if each[0]), default=(0, 0, ""))[2]
        found[prompt] = known.get(inside)
    return [found[prompt] for prompt in prompts]


def _end_of(text: str, prompt: str) -> int:
    """Where a text ends in a prompt as a turn of its own: next to a line break, a tag, a colon before it or an end; else 0."""
    before, _, behind = prompt.rpartition(text)
    whole = before.rstrip(" ")[-1:] in ("", "\n", ">", ":") and behind.lstrip(" ")[:1] in ("", "\n", "<")
    return len(before) + len(text) if whole else 0


def _from_path(path: Path):
    """The raw table at a path."""
    if not path.exists():
        raise RunError(f"{path}: no such file or folder; {EXPECTED}")
    damage: list[str] = []
    if path.is_file():
        rows = _table(_rows_of_file(path, damage))
        if not len(rows):
            raise RunError(f"{path}: no completions in this file{_first(damage)}; {EXPECTED}")
        return rows, damage
    for place in (path, path.parent if path.name.startswith("checkpoint-") else path):
        if (place / FILE).exists() or (place / "completions").is_dir():
            table, damage = read_completions(place)
            if len(table):
                return table, damage
    if path.name == "completions":
        table, damage = read_trl_completions(path)
        if len(table):
            return table, damage
    inner = sorted({file.parent for name in (FILE, "completions_*.parquet") for file in path.rglob(name)})
    if len(inner) == 1:
        return _from_path(inner[0].parent if inner[0].name == "completions" else inner[0])
    if inner:
        names = ", ".join(str(each.relative_to(path)) for each in inner[:6])
        raise RunError(
            f"{path}: completions of {len(inner)} trainings ({names}); expected those of one: give its folder"
        )
    files = [file for file in sorted(path.rglob("*.jsonl")) if file.is_file() and not file.is_symlink()]
    rows = []
    for file in files[:_MOST_FILES]:
        if not _NOT_TRAINING.search(str(file.relative_to(path))) and _step_of(file) is not None:
            rows += _rows_of_file(file, damage)
    if not rows:
        raise RunError(f"{path}: no completions in this folder{_first(damage)}; {EXPECTED}")
    return _table(rows), damage


def _table(rows: list):
    """A DataFrame of rows. JSON can hold half of a character, such as `\\ud800`, which no table can: it becomes `?`."""
    import pandas as pd

    def whole(row: Any) -> Any:
        if not isinstance(row, Mapping):
            return row
        return {name: _whole(value) if isinstance(value, str) else value for name, value in row.items()}

    return pd.DataFrame(list(map(whole, rows)))


def _whole(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _first(damage: list[str]) -> str:
    return f" ({damage[0]})" if damage else ""


def _rows_of_file(path: Path, damage: list[str]) -> list[dict]:
    """The rows of a JSON-lines or parquet file; the step is that of its name or folder where the rows have none."""
    if path.suffix == ".parquet":
        table, broken = read_parts([path])
        damage += broken
        return table.to_dict("records")
    rows = list(_json_rows(path, damage))
    step = _step_of(path)
    return [row if "step" in row or step is None else {**row, "step": step} for row in rows]


def _json_rows(path: Path, damage: list[str]) -> Iterator[dict]:
    if path.suffix != ".gz":
        yield from (row for _, row in json_lines(path, damage))
        return
    import gzip

    from ..runs.files import open_plain

    with open_plain(path) as packed, gzip.open(packed, "rt", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                damage.append(f"{path}: a line is not JSON; the others are read")
                continue
            if isinstance(row, dict):
                yield row


def _step_of(path: Path) -> int | None:
    """`rollouts/12.jsonl` -> 12, `step_12/train_rollouts.jsonl` -> 12."""
    for name in (path.name.partition(".")[0], path.parent.name):
        if match := _STEP.search(name):
            return int(match[1])
    return None
