"""Tokens of recorded completions, each with what became of it and how sampler and scorer rate it.

They are in `tokens/` next to the completions, as ids, where a training was asked to record them.
"""

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...runs.completions import TOKENS, read_parts, token_parts
from ...runs.files import checkpoints, read_text

KEPT, STOP, WASTED, MASKED = "kswm"
_LARGEST = 200_000_000  # bytes of a tokenizer.json


class Tokens(NamedTuple):
    """Of one completion, T tokens."""

    pieces: list[str]
    uses: str
    ratios: list[float | None]


def tokens_of(folder: Path, table) -> tuple[list[Tokens | None], list[str]]:
    """The recorded tokens of each row of a table of completions, None where there are none.

    Only steps with as many rows of tokens as of completions have them: of several processes one records its own.
    """
    raw, damaged = read_parts(token_parts(folder))
    if not {"step", "completion_ids"} <= set(raw.columns):
        return [None] * len(table), damaged
    whole = table["step"].map(table["step"].value_counts()) == table["step"].map(raw["step"].value_counts())
    raw = raw.sort_values("step", kind="stable")
    rows = iter(raw[raw["step"].isin(set(table.loc[whole, "step"]))].to_dict("records"))
    piece = _pieces(folder)
    about = table.to_dict("records")
    return [_tokens(next(rows), row, piece) if at else None for row, at in zip(about, whole, strict=True)], damaged


def _tokens(recorded: dict, row: dict, piece: Callable[[int], str]) -> Tokens | None:
    """The tokens of a row; None where what is recorded cannot be tokens: anyone may have written it."""
    kept = recorded["completion_ids"]
    ids = recorded["sampled_ids"] if _is_list(recorded.get("sampled_ids")) else kept
    stopped = row.get("finish_reason") == "stop"
    masked = bool(row.get("masked", False))
    scorer, sampler = recorded.get("scorer_logprobs"), recorded.get("sampler_logprobs")
    # TRL hides a masked completion from the scorer's attention too: its log-probs there are of nothing.
    known = not masked and _is_list(scorer) and _is_list(sampler) and len(scorer) == len(sampler)
    try:
        uses = token_uses(len(ids), len(kept), stopped=stopped, masked=masked)
        ratios = np.round(np.subtract(scorer, sampler), 3).tolist() if known else []
        return Tokens([piece(int(i)) for i in ids], uses, [r if math.isfinite(r) else None for r in ratios])
    except (TypeError, ValueError, OverflowError):
        return None


def _is_list(value) -> bool:
    return isinstance(value, np.ndarray | list)


def token_uses(sampled: int, kept: int, *, stopped: bool, masked: bool) -> str:
    """A letter a token: `k` kept, `s` the stop, `w` computed after the end, `m` left out of the loss."""
    used = MASKED * kept if masked else KEPT * (kept - stopped) + STOP * (stopped and kept > 0)
    return used + WASTED * (sampled - kept)


def _pieces(folder: Path) -> Callable[[int], str]:
    """Id -> its text, by the tokenizer that was saved with the training; `#7` where there is none."""
    path = _tokenizer_file(folder)
    if path is None:
        return "#{} ".format
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(read_text(path, _LARGEST))
    except Exception:  # the library raises nothing narrower
        return "#{} ".format
    before = tokenizer.encode("a", add_special_tokens=False).ids[-1:]  # decoders drop a blank at the very beginning
    hidden = len(_decode(tokenizer, before))
    return functools.cache(lambda i: _decode(tokenizer, [*before, i])[hidden:])


def _decode(tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)


def _tokenizer_file(folder: Path) -> Path | None:
    """Of the recorded tokens, the folder itself, a policy in it, or its last checkpoint."""
    places = (folder / TOKENS, folder, folder / "policy", *checkpoints(folder))
    files = [place / "tokenizer.json" for place in places]
    return next((p for p in files if p.is_file()), None)
