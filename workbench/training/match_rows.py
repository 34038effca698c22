"""Which sampled rows the loss gets, found by their tokens: a method may sample again until groups differ, or leave rows out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..replay.stages import without_pads
from .step_record import StepRecord, row_tokens

# What a record has of its generations, in the order in which it was taken down.
_TAKEN = ("generated", "rewards", "scored", "texts", "turns", "finish_reasons")


def counts_of(record: StepRecord) -> dict[str, int]:
    return {name: len(getattr(record, name)) for name in _TAKEN}


def match_rows(record: StepRecord, before: Mapping[str, int], pad: int | None) -> None:
    """Keep of a generation what belongs to the rows that the loss gets: a method may sample again, or leave rows out.

    Rows are found by their tokens, among the last samples first.

    Args:
        before: how much was taken down before this generation.
    """
    made, output = record.generated[before["generated"] :], record.outputs[-1]
    if len(made) == 1 and len(made[0][1]) == len(output["completion_ids"]):
        return
    texts = _texts_of(output, pad)
    places = _places_of(texts, made, pad)
    if made and places == [(len(made) - 1, row) for row in range(len(made[-1][1]))]:
        _keep_last(record, before, made)
        return
    rows = [_row_at(made, *each) for each in zip(places, texts, strict=True)]
    prompts, ids, masks = (list(part) for part in zip(*rows, strict=True))
    has_masks = any(mask is not None for mask in masks)
    masks = [[1] * len(row) if mask is None else mask for row, mask in zip(ids, masks, strict=True)]
    record.generated[before["generated"] :] = [(prompts, ids, masks if has_masks else None, None)]
    strange, sampled = places.count(None), sum(len(each[1]) for each in made)
    reasons, turns = record.finish_reasons[before["finish_reasons"] :], record.turns[before["turns"] :]
    firsts = np.cumsum([0, *(len(each[1]) for each in made)])
    del record.finish_reasons[before["finish_reasons"] :], record.texts[before["texts"] :]
    if strange:
        record.turns.clear()
    else:
        if len(reasons) == sampled:
            record.finish_reasons += [reasons[firsts[number] + row] for number, row in filter(None, places)]
        if len(turns) == len(made):  # one turn each
            joined = [ids for asked, _ in turns for ids in asked], [ids for _, given in turns for ids in given]
            record.turns[before["turns"] :] = [joined]
    record.notice_selection(len(rows), sampled, strange)


def _texts_of(output: Mapping[str, Any], pad: int | None) -> list[tuple[list[int], list[int]]]:
    """Prompt and completion of each row that the loss gets, without padding."""
    found = []
    for i, ids in enumerate(output["completion_ids"]):
        prompt = output["prompt_ids"][i][output["prompt_mask"][i].bool()]
        kept = torch.nonzero(output["completion_mask"][i].bool() | (ids != pad))
        found.append((prompt.tolist(), ids[: int(kept.max()) + 1 if len(kept) else 0].tolist()))
    return found


def _places_of(
    texts: Sequence[tuple[list[int], list[int]]], made: Sequence[tuple], pad: int | None
) -> list[tuple[int, int] | None]:
    """Where each text was sampled: number of the sampling, and row there. None: nowhere, or it was taken already."""
    free: dict[tuple, list[tuple[int, int]]] = {}
    for number in reversed(range(len(made))):
        for row, text in enumerate(zip(made[number][0], made[number][1], strict=True)):
            free.setdefault(_key_of(*text, pad), []).append((number, row))
    found = (free.get(_key_of(*text, pad)) for text in texts)
    return [places.pop(0) if places else None for places in found]


def _key_of(prompt: Any, ids: Any, pad: int | None) -> tuple:
    return tuple(row_tokens(prompt)), without_pads(row_tokens(ids), pad)


class UnsampledRow(list):
    """The token ids of a row that the loss gets and that was not sampled here, so that nobody knows how it ended."""


def _row_at(made: Sequence[tuple], place: tuple[int, int] | None, text: tuple[list[int], list[int]]) -> tuple:
    """Prompt, completion and mask of tools of a sampled row; of any other one those that the loss gets."""
    if place is None:
        return text[0], UnsampledRow(text[1]), None
    number, row = place
    prompts, ids, *others = made[number]
    masks = others[0] if len(others) > 1 else None  # RLOO has no tools
    return prompts[row], ids[row], None if masks is None else masks[row]


def _keep_last(record: StepRecord, before: Mapping[str, int], made: Sequence[tuple]) -> None:
    """Forget all but the last of several samplings, of which the loss gets every row."""
    tables = record.rewards[before["rewards"] :]
    if len(tables) == len(made):  # the numbers of its rows are those of what is left
        first = sum(map(len, record.rewards[: before["rewards"]]))
        last = first + sum(map(len, tables[:-1]))
        for name, rows in record.judged_otherwise.items():
            earlier = {row for row in rows if row < first}
            record.judged_otherwise[name] = earlier | {row - last + first for row in rows if row >= last}
    for name in _TAKEN:
        part = getattr(record, name)
        count = len(part) - before[name]
        if count % len(made) == 0:  # else it was not done for each of them
            del part[before[name] : len(part) - count // len(made)]
