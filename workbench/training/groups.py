"""Prompt groups: GRPO compares the G completions of one prompt, so they must belong to one prompt and really differ.

Article A3: for three weeks of 2025 TRL's main branch took the *set* of a batch's prompts where it needed every G-th, and
equal prompts broke the shapes. Today's TRL takes every G-th, as the article proposed, but nothing checks that each group of
G is one prompt; here it is checked.
"""

import dataclasses
import hashlib
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ..errors import ParameterError


class GroupError(ParameterError):
    """A batch whose groups are not G completions of one prompt, or are G copies of one sample."""


def check_groups(prompts: Sequence, completions: Sequence | None, num_generations: int) -> None:
    """Refuse a batch that is not made of groups of `num_generations` rows with one prompt each.

    Args:
        prompts: B prompts (texts, messages or ids), each G times in a row.
        completions: B completions, or None.
        num_generations: G, at least 1.

    Raises:
        GroupError: names the group and its first odd row.
    """
    if num_generations < 1:
        raise ParameterError(f"num_generations={num_generations}: expected at least 1")
    if len(prompts) % num_generations:
        raise GroupError(f"{len(prompts)} prompts are no multiple of num_generations={num_generations}")
    if completions is not None and len(completions) != len(prompts):
        raise GroupError(f"{len(prompts)} prompts but {len(completions)} completions: each row needs one of both")
    for start in range(0, len(prompts), num_generations):
        group = prompts[start : start + num_generations]
        odd = next((n for n, prompt in enumerate(group) if prompt != group[0]), None)
        if odd is not None:
            raise GroupError(
                f"group {start // num_generations} (rows {start} to {start + num_generations - 1}) holds more than one "
                f"prompt: row {start} is {_short(group[0])}, row {start + odd} is {_short(group[odd])}. The sampler has "
                f"to repeat each prompt num_generations={num_generations} times in a row"
            )


def identical_groups(completions: Sequence, num_generations: int) -> list[int]:
    """Numbers of the groups whose G >= 2 completions are all the same: their advantages are zero."""
    starts = range(0, len(completions), num_generations)
    groups = [list(completions[s : s + num_generations]) for s in starts]
    return [n for n, group in enumerate(groups) if len(group) > 1 and all(c == group[0] for c in group)]


def group_advantages(rewards, num_generations: int, scale: str = "group"):
    """Advantages as TRL 1.12.0's GRPO computes them from the summed rewards.

    Args:
        rewards: tensor `[B]`, G rows a group; NaN marks an unscorable row, whose advantage is 0.
        num_generations: G, at least 2.
        scale: `group`, `batch` or `none`, TRL's `scale_rewards`.

    Returns:
        Tensor `[B]`.

    Raises:
        GroupError: B is no multiple of G.
    """
    import torch

    if scale not in ("group", "batch", "none"):
        raise ParameterError(f"scale={scale!r}: expected group, batch or none")
    if num_generations < 2 or rewards.numel() % num_generations:
        raise GroupError(f"{rewards.numel()} rewards, num_generations={num_generations}: expected groups of 2 or more")
    groups = rewards.view(-1, num_generations)
    centred = groups - groups.nanmean(dim=1, keepdim=True)
    if scale == "group":
        centred = centred / (_nanstd(groups) + 1e-4)
    elif scale == "batch":
        centred = centred / (_nanstd(rewards.view(1, -1)) + 1e-4)
    return torch.nan_to_num(centred, nan=0.0).view(-1)


def _nanstd(rows):
    """Sample standard deviation of each row, `[N, 1]`, over the entries that are not NaN."""
    count = (~rows.isnan()).sum(dim=1, keepdim=True)
    squares = (rows - rows.nanmean(dim=1, keepdim=True)).square().nansum(dim=1, keepdim=True)
    return (squares / (count - 1)).sqrt()


def _short(prompt) -> str:
    text = repr(prompt)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- duplicates of a data set --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class DuplicateReport:
    """Repeated prompts of a data set and how often they meet in a batch (claims A3.5, A3.7).

    Attributes:
        rows: prompts read.
        exact, normalised, same_words: rows that repeat an earlier one: literally; but for case, punctuation and white
            space; with the same words in any order.
        prompts_per_batch: P.
        per_batch: expected rows of a batch that repeat another of it, literally.
        batches_with_duplicates: share of batches with at least one such row.
        most_repeated: `(count, first row, text)` of the most frequent prompts that repeat.
    """

    rows: int
    exact: int
    normalised: int
    same_words: int
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

    def table(self):
        """The counts as a DataFrame."""
        import pandas as pd

        facts = {k: v for k, v in dataclasses.asdict(self).items() if k != "most_repeated"}
        return pd.DataFrame({"value": facts})

    def _repr_html_(self) -> str:
        import html

        return f"<p>{html.escape(self.verdict)}</p>{self.table().to_html(float_format='%.4g')}"


def duplicate_report(data, *, prompts_per_batch: int = 8, column: str = "prompt", progress: bool = True):
    """Count repeated prompts in one pass; memory is 24 bytes a row, so a million rows are no matter.

    Args:
        data: a `datasets.Dataset`, the path of a JSONL file, or an iterable of prompts (read twice, so no generator).
        prompts_per_batch: P, prompts (not completions) of a generation batch.
        column: of the prompts, in a data set or file.
        progress: show a bar.

    Returns:
        A DuplicateReport.

    Raises:
        ParameterError: no rows, or fewer rows than a batch takes.
    """
    from tqdm import tqdm

    hashes = [array("Q") for _ in range(3)]
    for prompt in tqdm(_prompts(data, column), desc="prompts", unit=" rows", disable=not progress):
        for kind, text in zip(hashes, _forms(prompt), strict=True):
            kind.append(int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()))
    rows = len(hashes[0])
    if rows < max(1, prompts_per_batch):
        raise ParameterError(f"{rows} rows: expected at least one batch of prompts_per_batch={prompts_per_batch}")
    _, first, counts = np.unique(np.frombuffer(hashes[0], np.uint64), return_index=True, return_counts=True)
    repeats = [rows - len(np.unique(np.frombuffer(kind, np.uint64))) for kind in hashes]
    expected, share = _expected_per_batch(counts, rows, prompts_per_batch)
    return DuplicateReport(
        rows, *repeats, prompts_per_batch, expected, share, _most_repeated(data, column, first, counts)
    )


def _prompts(data, column: str) -> Iterator[str]:
    import json

    if isinstance(data, str | Path):
        if not Path(data).is_file():
            raise ParameterError(f"{data}: no such JSONL file")
        with open(data, encoding="utf-8") as file:
            rows = (json.loads(line) for line in file if line.strip())
            yield from (_text(row[column]) for row in rows)
    elif hasattr(data, "column_names"):
        if column not in data.column_names:
            raise ParameterError(f"column={column!r}: the data set has {data.column_names}")
        for batch in data.select_columns([column]).iter(batch_size=1000):
            yield from map(_text, batch[column])
    else:
        yield from map(_text, data)


def _text(prompt) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(f"{m['role']}: {m['content']}" for m in prompt)


def _forms(prompt: str) -> tuple[str, str, str]:
    words = re.findall(r"\w+", prompt.casefold())
    return prompt, " ".join(words), " ".join(sorted(words))


def _expected_per_batch(counts: np.ndarray, rows: int, batch: int) -> tuple[float, float]:
    """Expected repeated rows of a batch drawn without replacement, and the share of batches with any."""
    repeated = counts[counts > 1].astype(float)
    if not len(repeated) or batch < 2:
        return 0.0, 0.0
    # A class of m rows is missed by a batch with probability C(rows - m, batch) / C(rows, batch).
    draws = np.arange(batch)[:, None]
    missed = np.prod(np.clip((rows - repeated - draws) / (rows - draws), 0, 1), axis=0)
    in_batch = batch * repeated / rows
    expected = float((in_batch - (1 - missed)).sum())
    pairs = batch * (batch - 1) / 2 * float((repeated * (repeated - 1)).sum()) / (rows * (rows - 1))
    return max(0.0, expected), float(1 - np.exp(-pairs))


def _most_repeated(data, column: str, first: np.ndarray, counts: np.ndarray, most: int = 10) -> tuple:
    order = [n for n in np.argsort(-counts, kind="stable")[:most] if counts[n] > 1]
    wanted = {int(first[n]): int(counts[n]) for n in order}
    if not wanted:
        return ()
    last = max(wanted)
    texts: dict[int, str] = {}
    for row, prompt in enumerate(_prompts(data, column)):
        if row in wanted:
            texts[row] = prompt
        if row == last:
            break
    return tuple((wanted[row], row, _short(texts[row])) for row in wanted)


def duplicate_frequency(data, batch_sizes: Iterable[int], column: str = "prompt"):
    """Share of batches with equal prompts for several batch sizes, as a DataFrame `prompts per batch, share`."""
    import pandas as pd

    reports = [duplicate_report(data, prompts_per_batch=p, column=column, progress=False) for p in batch_sizes]
    shares = [report.batches_with_duplicates for report in reports]
    return pd.DataFrame({"prompts per batch": list(batch_sizes), "share of batches": shares})
