"""The fields of a kept step, checked before it is read: an error names the field that is wrong, and what it should hold."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ..errors import did_you_mean
from .grpo_math import LossRow, LossSettings
from .step import MicroRows, SampledRow, Step, Turn

_SHOWN = 40  # characters of a wrong value


class UnfitStep(ValueError):
    """A step whose fields are not those of a step, or do not fit together; the text says which."""


class _Kind(NamedTuple):
    expected: str
    fits: Callable[[Any], bool]
    each: "_Kind | None" = None  # of a list: what each of its items has to be


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _list_of(each: _Kind, expected: str) -> _Kind:
    return _Kind(expected, lambda value: isinstance(value, list) and all(map(each.fits, value)), each)


def _table_of(row: _Kind, expected: str) -> _Kind:
    """A list of rows that are equally long."""
    rows = _list_of(row, expected)
    return rows._replace(fits=lambda value: rows.fits(value) and len({len(each) for each in value}) <= 1)


def _or_null(kind: _Kind) -> _Kind:
    return _Kind(f"{kind.expected}, or null", lambda value: value is None or kind.fits(value), kind.each)


def _by_name(each: _Kind, expected: str) -> _Kind:
    return _Kind(expected, lambda value: isinstance(value, dict) and all(map(each.fits, value.values())))


def _either(one: _Kind, other: _Kind, expected: str) -> _Kind:
    return _Kind(expected, lambda value: one.fits(value) or other.fits(value))


_TEXT = _Kind("a text", lambda value: isinstance(value, str))
_FLAG = _Kind("true or false", lambda value: isinstance(value, bool) or value in (0, 1))
_WHOLE = _Kind("a whole number", _is_whole)
_COUNT = _Kind("a whole number from 1 on", lambda value: _is_whole(value) and value > 0)
_NUMBER = _Kind("a number", _is_number)
_MAYBE = _Kind("a number, or null", lambda value: value is None or isinstance(value, float) or _is_number(value))
_FIELDS = _Kind("fields with names", lambda value: isinstance(value, dict))
_TEXTS_BY_NAME = _by_name(_TEXT, "texts with names")
_NUMBERS_BY_NAME = _by_name(_MAYBE, "numbers with names")
_PAIR = _Kind("a list of two", lambda value: isinstance(value, list) and len(value) == 2)
_PAIRS_BY_NAME = _by_name(_PAIR, "lists of two values, with names")
_LIST = _Kind("a list", lambda value: isinstance(value, list))
_TEXTS = _list_of(_TEXT, "a list of texts")
_PARTS = _list_of(_FIELDS, "a list, whose parts have fields")
_IDS = _list_of(_NUMBER, "a list of token ids")
_IDS_OF_ROWS = _list_of(_IDS, "a list for each row, of token ids")
_MASKS = _list_of(_list_of(_NUMBER, ""), "a list for each row, of 0 and 1")
_OF_TOKENS = _list_of(_MAYBE, "a list with a number for each token")
_OF_ROWS = _list_of(_MAYBE, "a list with a number for each row")
_OF_FUNCTIONS = _list_of(_MAYBE, "a list with a number for each reward function")
_RETURNED = _table_of(_OF_FUNCTIONS, "a list for each row, with a number for each reward function")
_REWARDS = _list_of(
    _RETURNED, "a list for each generation, in it a list for each row, with a number for each reward function"
)
_ADVANTAGES = _list_of(
    _either(_OF_ROWS, _table_of(_OF_TOKENS, ""), ""), "a list for each generation, with a number for each row"
)
_ADVANTAGE = _either(_MAYBE, _OF_TOKENS, "a number, or one for each token")
_SCALE = _Kind(
    "'group', 'batch' or 'none'", lambda value: isinstance(value, bool) or value in ("group", "batch", "none")
)
_LIMITS = _Kind("a list of two numbers", lambda value: _OF_FUNCTIONS.fits(value) and len(value) == 2)

_FILE = {"format": _WHOLE, "number": _WHOLE, "versions": _TEXTS_BY_NAME, "vocabulary": _TEXTS_BY_NAME, "step": _FIELDS}
_STEP = {
    "kind": _TEXT,
    "dtype": _TEXT,
    "processes": _COUNT,
    "rank": _WHOLE,
    "settings": _FIELDS,
    "rows": _PARTS,
    "prompts": _LIST,
    "rewards": _REWARDS,
    "returned": _or_null(_RETURNED),
    "advantages": _ADVANTAGES,
    "micro_batches": _PARTS,
    "turns": _or_null(_PARTS),
    "metrics": _NUMBERS_BY_NAME,
    "pad_token_id": _or_null(_WHOLE),
    "deviations": _PAIRS_BY_NAME,
    "begun": _FLAG,
    "reused": _or_null(_FLAG),
    "judged_otherwise": _FIELDS,
    "router_losses": _OF_ROWS,
    "logged": _PARTS,
    "tokens": _OF_ROWS,
    "kl": _or_null(_OF_ROWS),
}
_SAMPLED_ROW = {
    "prompt_ids": _IDS,
    "ids": _IDS,
    "own": _OF_TOKENS,
    "ended": _or_null(_FLAG),
    "end": _WHOLE,
    "cut_for_trl": _FLAG,
    "mask": _OF_TOKENS,
    "old_logps": _or_null(_OF_TOKENS),
    "old_sum": _MAYBE,
    "ref_logps": _or_null(_OF_TOKENS),
    "sampled_logps": _or_null(_OF_TOKENS),
    "correction": _or_null(_OF_TOKENS),
}
_TURN = {"prompt_ids": _IDS, "ids": _IDS}
_MICRO_BATCH = {
    "rows": _PARTS,
    "prompt_ids": _IDS_OF_ROWS,
    "ids": _IDS_OF_ROWS,
    "items": _MAYBE,
    "loss": _MAYBE,
    "completion_ids": _or_null(_IDS_OF_ROWS),
    "completion_mask": _or_null(_MASKS),
    "generation": _or_null(_WHOLE),
    "entropy_coef": _MAYBE,
    "entropy_threshold": _MAYBE,
}
_LOSS_ROW = {
    "logps": _or_null(_OF_TOKENS),
    "advantage": _ADVANTAGE,
    "mask": _OF_TOKENS,
    "old_logps": _or_null(_OF_TOKENS),
    "ref_logps": _or_null(_OF_TOKENS),
    "sampled_logps": _or_null(_OF_TOKENS),
    "correction": _or_null(_OF_TOKENS),
    "entropies": _or_null(_OF_TOKENS),
    "old_sum": _MAYBE,
}
_BY_DEFAULT = {str: _TEXT, bool: _FLAG, int: _or_null(_WHOLE), float: _NUMBER, type(None): _MAYBE}
_SETTINGS = {field.name: _BY_DEFAULT[type(field.default)] for field in dataclasses.fields(LossSettings)} | {
    "num_generations": _COUNT,
    "gradient_accumulation_steps": _COUNT,
    "steps_per_generation": _or_null(_COUNT),
    "num_iterations": _or_null(_COUNT),
    "scale_rewards": _SCALE,
    "reward_weights": _or_null(_OF_FUNCTIONS),
    "reward_clip_range": _or_null(_LIMITS),
    "reward_func_names": _or_null(_TEXTS),
    "generation_kwargs": _or_null(_FIELDS),
    "vllm_importance_sampling_clip_min": _MAYBE,
    "vllm_importance_sampling_clip_max": _MAYBE,
}


def check_fields(content: Mapping[str, Any]) -> None:
    """Say whether a file, as its JSON has it, has the fields of a step, each of its kind.

    Raises:
        UnfitStep: a field is missing, is not of its kind, or is none of a step; the text names it.
    """
    for place, fields, kinds, needed in _parts(content):
        for name in sorted(needed - fields.keys()):
            raise UnfitStep(f"{place} has no `{name}`: expected {kinds[name].expected}")
        for name, value in fields.items():
            if name in kinds and not kinds[name].fits(value):
                raise UnfitStep(f"{place}: {_misfit(name, value, kinds[name])}; expected {kinds[name].expected}")
            if name not in kinds and place not in _OPEN:
                hint = did_you_mean(name, kinds)
                raise UnfitStep(f"{place}: `{name}` is no field of it; {hint}its fields are {', '.join(kinds)}")


def _misfit(name: str, value: Any, kind: _Kind) -> str:
    """The first part of a value that is not of its kind, in words.

    Example:
        >>> _misfit("ids", [5, "a"], _IDS)
        '`ids[1]` is "a"'
    """
    if kind.each and isinstance(value, list):
        wrong = [i for i, each in enumerate(value) if not kind.each.fits(each)]
        if not wrong:  # a table
            return f"`{name}` has rows of {' and '.join(map(str, sorted({len(row) for row in value})))} numbers"
        return _misfit(f"{name}[{wrong[0]}]", value[wrong[0]], kind.each)
    text = json.dumps(value)
    return f"`{name}` is {text if len(text) <= _SHOWN else f'{text[:_SHOWN]}...'}"


_OPEN = ("the file", "settings")  # which may have other fields


def _parts(content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, _Kind], set[str]]]:
    """Each part of a file: its place in words, its fields, their kinds, and the names of those that it has to have."""
    yield "the file", content, _FILE, set(_FILE)
    step = content["step"]
    yield "the step", step, _STEP, _needed(Step) - {"returned"}
    yield "settings", step["settings"], _SETTINGS, set()
    for i, row in enumerate(step["rows"]):
        yield f"row {i}", row, _SAMPLED_ROW, _needed(SampledRow)
    for i, turn in enumerate(step.get("turns") or []):
        yield f"turn {i}", turn, _TURN, _needed(Turn)
    for number, micro in enumerate(step["micro_batches"]):
        yield f"micro-batch {number}", micro, _MICRO_BATCH, _needed(MicroRows)
        for i, row in enumerate(micro["rows"]):
            yield f"micro-batch {number}, row {i}", row, _LOSS_ROW, _needed(LossRow)


def _needed(kind: type) -> set[str]:
    """The names of the fields that have no default."""
    missing = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return {each.name for each in fields if each.default is missing and each.default_factory is missing}
