"""Repeated prompts of a data set, and how often equal ones meet in a batch."""

import dataclasses
import hashlib
import html
import json
import re
import unicodedata
from array import array
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from ..errors import ParameterError
from .groups import shorten


@dataclasses.dataclass(frozen=True)
class DuplicateReport:
    """Repeated prompts of a data set and how often they meet in a batch.

    Attributes:
        rows: prompts read.
        exact, normalised: rows that repeat an earlier one: literally; but for case, punctuation and white space.
        prompts_per_batch: P.
        per_batch: rows of a batch that repeat another of it, literally: the mean over batches drawn at random.
        batches_with_duplicates: share of these batches with at least one such row.
        most_repeated: `(count, first row, text)` of the most frequent prompts that repeat.
    """

    rows: int
    exact: int
    normalised: int
    prompts_per_batch: int
    per_batch: float
    batches_with_duplicates: float
    most_repeated: tuple[tuple[int, int, str], ...]

    @property
    def verdict(self) -> str:
        """What to do, in words."""
        if not self.exact:
            near = f"; {self.normalised} differ only in case, punctuation or spaces" if self.normalised else ""
            return f"no prompt repeats literally{near}"
        return (
            f"{self.exact} of {self.rows} rows repeat an earlier one; {self.batches_with_duplicates:.1%} of batches of "
            f"{self.prompts_per_batch} prompts hold equal prompts. Training copes: equal prompts form groups of their own. "
            "They matter with a fixed seed on a vLLM server (equal prompts share completions), and they weigh double"
        )

    def table(self) -> pd.DataFrame:
        """The counts as a DataFrame."""
        return pd.DataFrame({"value": {k: v for k, v in vars(self).items() if k != "most_repeated"}})

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.verdict)}</p>{self.table().to_html(float_format='%.4g')}"


def duplicate_report(data, *, prompts_per_batch: int = 8, column: str = "prompt", progress: bool = True):
    """Count repeated prompts in one pass; memory is 16 bytes a row, so a million rows are fine.

    Args:
        data: a `datasets.Dataset`, the path of a JSONL file, or an iterable of prompts (read twice, so no generator).
        prompts_per_batch: P, prompts (not completions) of a generation batch.
        column: name of the column with the prompts, in a data set or file.
        progress: show a bar.

    Returns:
        A DuplicateReport.

    Raises:
        ParameterError: no rows, fewer rows than a batch takes, an iterator, or what is no prompt.

    Example:
        >>> report = duplicate_report(["a b", "a b", "A b.", "c"], prompts_per_batch=2, progress=False)
        >>> report.exact, report.normalised, report.most_repeated
        (1, 2, ((2, 0, "'a b'"),))
        >>> round(report.batches_with_duplicates, 2)  # one of the six pairs of rows
        0.17
    """
    if isinstance(data, Iterator):
        raise ParameterError("data: an iterator, and prompts are read twice; give a list of them")
    hashes = _hashes(data, column, progress)
    rows = len(hashes[0])
    if rows < max(1, prompts_per_batch):
        raise ParameterError(f"{rows} rows: expected at least one batch of prompts_per_batch={prompts_per_batch}")
    _, first, counts = np.unique(hashes[0], return_index=True, return_counts=True)
    exact, normalised = (rows - len(np.unique(kind)) for kind in hashes)
    repeats = _repeats_in_batches(hashes[0], prompts_per_batch) if exact and prompts_per_batch > 1 else np.zeros(1)
    mean, share = float(repeats.mean()), float((repeats > 0).mean())
    most_repeated = _most_repeated(data, column, first, counts)
    return DuplicateReport(rows, exact, normalised, prompts_per_batch, mean, share, most_repeated)


def _hashes(data, column: str, progress: bool) -> list[np.ndarray]:
    """Hash each prompt, as it is and normalised: two arrays of 8 bytes a row."""
    from tqdm import tqdm

    hashes = [array("Q") for _ in range(2)]
    for prompt in tqdm(_prompts(data, column), desc="prompts", unit=" rows", disable=not progress):
        for kind, text in zip(hashes, (prompt, _normalised(prompt)), strict=True):
            kind.append(int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()))
    return [np.frombuffer(kind, np.uint64) for kind in hashes]


def _prompts(data, column: str) -> Iterator[str]:
    if isinstance(data, str | Path):
        if not Path(data).is_file():
            raise ParameterError(f"{data}: no such JSONL file")
        with open(data, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    try:
                        row = json.loads(line)
                    except ValueError as error:
                        raise ParameterError(f"{data}, line {number}: not JSON ({error})") from None
                    if column not in row:
                        raise ParameterError(f"column={column!r}: {data}, line {number} has {list(row)}")
                    yield _text(row[column])
    elif hasattr(data, "column_names"):
        names = data.column_names or [*next(iter(data), {})]  # a stream may not know them
        if column not in names:
            raise ParameterError(f"column={column!r}: the data set has {names}")
        for batch in data.select_columns([column]).iter(batch_size=1000):
            yield from map(_text, batch[column])
    else:
        yield from map(_text, data)


def _text(prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list | tuple) or not all(isinstance(message, Mapping) for message in prompt):
        raise ParameterError(
            f"prompt {shorten(prompt)}: expected a text or a list of messages; of rows give the prompts alone"
        )
    return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in prompt)


def _normalised(prompt: str) -> str:
    text = prompt.casefold()
    if text.isascii():
        words = re.findall(r"\w+", text)
    else:  # `\w` takes no marks, which are the vowels of many scripts
        words = "".join(c if c == "_" or unicodedata.category(c)[0] in "LMN" else " " for c in text).split()
    return " ".join(words)


def _repeats_in_batches(hashes: np.ndarray, batch: int) -> np.ndarray:
    """Count the rows of each batch that repeat another of it, over whole epochs in random order.

    The order has a fixed seed. The batches are about 10,000, or fewer large ones.
    """
    rng, rows = np.random.default_rng(0), len(hashes)
    epochs = max(1, -(-min(10_000 * batch, 4_000_000) // rows))
    whole = rows // batch * batch
    drawn = (np.sort(rng.permutation(hashes)[:whole].reshape(-1, batch)) for _ in range(epochs))
    return np.concatenate([(np.diff(batches) == 0).sum(axis=1) for batches in drawn])


def _most_repeated(data, column: str, first: np.ndarray, counts: np.ndarray, most: int = 10) -> tuple:
    order = [n for n in np.argsort(-counts, kind="stable")[:most] if counts[n] > 1]
    wanted = {int(first[n]): int(counts[n]) for n in order}
    prompts = enumerate(islice(_prompts(data, column), max(wanted, default=-1) + 1))
    texts = {row: shorten(prompt) for row, prompt in prompts if row in wanted}
    return tuple((count, row, texts[row]) for row, count in wanted.items())
