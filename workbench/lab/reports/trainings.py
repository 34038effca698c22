"""The trainings of a folder as tables of completions, with what may be wrong with each: signs, from what was recorded."""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...errors import RunError
from ...logs.completions import completions_table, generations_in_a_row, read_trl_completions, reward_functions
from ...runs.completions import FILE, TOKENS, count_completions, read_completions, read_parts, token_parts
from ...runs.files import checkpoints, is_second_record, read_json, read_text

KEPT, STOP, WASTED, MASKED = "kswm"
_LARGEST = 200_000_000  # bytes of a tokenizer.json


class Tokens(NamedTuple):
    """The T tokens of one completion."""

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
    """The tokenizer's file: of the recorded tokens, the folder itself, a policy in it, or its last checkpoint."""
    places = (folder / TOKENS, folder, folder / "policy", *checkpoints(folder))
    files = [place / "tokenizer.json" for place in places]
    return next((p for p in files if p.is_file()), None)


MOST_ROWS = 1_000_000  # of a training, which are read whole
_UNGROUPED = 16  # completions beside each other where there are no groups
_APART = np.log(2)

# What may be wrong with a completion, the first four may be faults: key -> words that follow a share, what tells it.
SIGNS = {
    "unscored": ("without a reward", "rewards"),
    "mixed": ("in a group of several prompts", ""),
    "masked": ("masked as truncated", "whether the loss left completions out"),
    "mistaken": ("stopped, but counted as truncated by TRL", "what TRL counts as truncated"),
    "flat": ("in a group with equal rewards: no advantage", "groups with rewards"),
    "same": ("the same text as another of the group", ""),
    "cut": ("truncated by the length limit", "why completions ended"),
    "empty": ("without text", ""),
    "wasted": ("with tokens computed after the end", "how many tokens were sampled"),
    "apart": ("with a token that sampler and scorer rate apart by a factor of 2", "log-probs of tokens"),
}
_NUMBERS = ("reward", "advantage", "completion_tokens", "sampled_tokens", "tokens_to_eos")
_FAULTS = ("unscored", "mixed", "mistaken")


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """The completions of one training, a row each, groups together and in the order of their steps."""

    name: str
    table: pd.DataFrame
    grouped: bool
    functions: Sequence[str]
    tokens: Sequence[Tokens | None]
    stops: Sequence[str] = ()


def read_trainings(folder: Path) -> tuple[list[Training], list[str]]:
    """Every training recorded in a folder or below it, by the workbench or by TRL's `log_completions`."""
    found, damaged = [], []
    for place, names in _folders(folder):
        if FILE in names:
            if (count := count_completions(place)) > MOST_ROWS:
                raise RunError(f"{place}: {count:,} completions; expected at most {MOST_ROWS:,} for a page of them")
            raw, broken = read_completions(place)
        else:
            raw, broken = read_trl_completions(place / "completions")
        damaged += broken
        name = "" if place == folder else str(place.relative_to(folder))
        if training := training_of(raw, name, _recipe(place), lambda table, at=place: tokens_of(at, table)):
            found.append(training[0])
            damaged += training[1]
    return sorted(found, key=lambda training: training.name), damaged


def _folders(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Folders in which completions were recorded; links are not followed."""
    for inner, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != TOKENS and not is_second_record(Path(inner, name))]
        if FILE in files or "completions" in folders:
            yield Path(inner), files


def _recipe(folder: Path) -> dict:
    """`recipe.json` as far as it is ours: a notebook may have a file of its own that is called so."""
    try:
        found = read_json(folder / "recipe.json", {})
    except (RunError, OSError):
        return {}
    known = {"trainer": str, "source": str, "recipe": dict, "overrides": dict, "stops": dict}
    return {k: found[k] for k, kind in known.items() if isinstance(found, dict) and isinstance(found.get(k), kind)}


def training_of(
    raw: pd.DataFrame, name: str = "", recipe: Mapping = {}, find_tokens: Callable | None = None
) -> tuple[Training, list[str]] | None:
    """A training from its recorded rows; None where there are none with step, prompt and completion."""
    table = completions_table(raw.dropna(subset="step") if "step" in raw else raw)
    if table is None:
        return None
    table = table.drop(columns=[key for key in (*SIGNS, "group", "kept", "sampled") if key in table])
    for column in set(_NUMBERS) & set(table):  # anyone may have written them
        numbers = pd.to_numeric(table[column], errors="coerce").astype(float)
        table[column] = numbers.where(np.isfinite(numbers))
    size = _generations(table, recipe)
    number = table.groupby("step").cumcount() // (size if size > 1 else _UNGROUPED)
    table["group"] = (number.ne(number.shift()) | table["step"].ne(table["step"].shift())).cumsum() - 1
    if "completion_tokens" in table:
        kept = table["completion_tokens"]
        table["kept"] = np.minimum(kept, table["tokens_to_eos"]) if "tokens_to_eos" in table else kept
        table["sampled"] = table.get("sampled_tokens", kept)
    table = table.assign(**signs_of(table, size > 1, recipe))
    tokens, damaged = find_tokens(table) if find_tokens else ([None] * len(table), [])
    if any(found and found.ratios for found in tokens):
        table["apart"] = [bool(found) and any(r and abs(r) > _APART for r in found.ratios) for found in tokens]
    functions = [name for name in reward_functions(raw) if name in table]
    stops = recipe.get("stops", {}).get("stop")
    stops = [stop for stop in stops if stop and isinstance(stop, str)] if isinstance(stops, list) else []
    return Training(name, table, size > 1, functions, tokens, stops), damaged


def _generations(table: pd.DataFrame, recipe: Mapping) -> int:
    """G; 1 where completions are not compared, or it is not known which are."""
    if "PPO" in recipe.get("trainer", ""):
        return 1
    size = recipe.get("recipe", {}).get("num_generations")
    return size if type(size) is int and 0 < size <= MOST_ROWS else generations_in_a_row(table) or 1


def signs_of(table: pd.DataFrame, grouped: bool, recipe: Mapping) -> dict[str, pd.Series]:
    """Of each row whether it shows a sign: key of `SIGNS` -> (N,) of bool, for those that can be decided."""
    signs = {"empty": table["completion"].str.strip() == ""}
    if grouped:
        signs["mixed"] = table.groupby("group")["prompt"].transform("nunique") > 1
        signs["same"] = table.duplicated(["group", "completion"], keep=False)
    if "reward" in table:
        signs["unscored"] = table["reward"].isna()
    if grouped and "reward" in table:
        rewards = table.groupby("group")["reward"]
        signs["flat"] = (rewards.transform("max") == rewards.transform("min")) & (rewards.transform("count") > 1)
    if "finish_reason" in table:
        signs["cut"] = table["finish_reason"] == "length"
    # TRL's own record has no recipe; `ObservedGRPOTrainer` is stock GRPO as an arm.
    stock = recipe.get("source") == "watched" or recipe.get("trainer", "Observed").startswith("Observed")
    taken = table.get("trl_finish_reason" if stock else "finish_reason")
    if taken is not None and "overrides" in recipe:
        signs["masked"] = (taken == "length") & bool(recipe["overrides"].get("mask_truncated_completions"))
    if stock and {"finish_reason", "trl_finish_reason"} <= set(table.columns):
        signs["mistaken"] = (table["finish_reason"] == "stop") & (table["trl_finish_reason"] == "length")
    if "kept" in table and ({"sampled_tokens", "tokens_to_eos"} & set(table.columns)):
        signs["wasted"] = table["sampled"] > table["kept"]
    return signs


def is_fault(key: str, table: pd.DataFrame) -> bool:
    """Whether a sign is wrong by itself: of what the loss left out, rows that really stopped; of groups, if none can teach."""
    if key == "masked":
        return "finish_reason" in table and bool((table["masked"] & (table["finish_reason"] == "stop")).any())
    return key in _FAULTS or (key in ("flat", "same") and bool(table[key].all()))
