"""Features of a completion: one function each, from its text and what else is recorded of it to a number."""

import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ParameterError
from ..logs.completions import CUT, STOPPED
from ..runs.own_code import load_own
from .answers import boxed, contains_answer, enclosed, is_right, wanted

EXACT = "right answer"
_WORD = re.compile(r"\w+")
_LETTER = re.compile(r"[^\W\d_]")
_SYMBOL = re.compile(r"[^\w\s]")
_LAST_LATIN = 0x24F
_OPENING, _CLOSING = re.compile(r"<(\w+)>"), re.compile(r"</(\w+)>")
_HEDGES = re.compile(
    r"\b(?:maybe|perhaps|might|possibly|probably|i think|i guess|i believe|not sure|unsure|it seems|could be|wait|"
    r"alternatively|hmm)\b",
    re.IGNORECASE,
)
_CALL = re.compile(r"<tool_call>|<function_call>|<\|python_tag\|>")
_TOOL_ANSWER = re.compile(r"</?tool_response>")
_FAILED = re.compile(r"\b(?:error|exception|traceback|failed|timed? ?out|invalid)\b", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, eq=False)
class Feature:
    """What `feature` makes of a function; called as the function is, it gives a number, NaN where it is not known."""

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        """`exclamation_marks` -> `exclamation marks`."""
        return self.function.__name__.replace("_", " ")

    @property
    def asks_for(self) -> list[str]:
        """The columns that the function names, besides the completion."""
        parameters = list(inspect.signature(self.function).parameters.values())
        return [parameter.name for parameter in parameters[1:] if parameter.kind is not parameter.VAR_KEYWORD]

    def __call__(self, completion: str, **row: Any) -> float:
        """Ask one completion; columns of its row that the function does not name go to its `**row`."""
        value = self.function(completion, **row)
        return float("nan") if value is None else float(value)


def feature(function: Callable[..., Any]) -> Feature:
    """Make a feature of completions from a function, for `reward_report` and `placebo`.

    The function takes the text of a completion, and by name what else is recorded of it: `prompt`, `answer`, `tokens`,
    `finish_reason` and every further column. It ends with `**row` for those that it does not use. It returns a number, or None
    where the feature is not known. The feature has the name of the function, with blanks for `_`.

    Raises:
        ParameterError: the function does not take `**row`.

    Example:
        >>> @feature
        ... def exclamation_marks(completion, **row):
        ...     return completion.count("!")
        >>> exclamation_marks.name, exclamation_marks("Yes!!", prompt="Is it?")
        ('exclamation marks', 2.0)
    """
    parameters = inspect.signature(function).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        name = getattr(function, "__name__", repr(function))
        raise ParameterError(f"feature {name}: expected `def {name}(completion, **row)`; add `**row` to its parameters")
    return Feature(function)


@feature
def length(completion: str, tokens: Any = None, **row: Any) -> float:
    """Logarithm of the number of tokens, or of characters where tokens are not recorded; `tokens` may hold their ids."""
    if hasattr(tokens, "__len__") and not isinstance(tokens, str):
        return float(np.log1p(len(tokens)))
    return float(np.log1p(len(completion) if tokens is None or tokens != tokens else float(tokens)))


@feature
def stopping(completion: str, finish_reason: Any = None, **row: Any) -> float | None:
    """1 where it stopped by itself, 0 where the limit cut it."""
    if finish_reason in STOPPED:
        return 1.0
    return 0.0 if finish_reason in CUT else None


@feature
def closed_tags(completion: str, **row: Any) -> int:
    """Tags such as `<think>` that are opened and closed."""
    last = {tag[1]: tag.start() for tag in _CLOSING.finditer(completion)}
    return sum(last.get(tag[1], 0) >= tag.end() for tag in _OPENING.finditer(completion))


@feature
def code_fences(completion: str, **row: Any) -> int:
    """Closed pairs of three backticks."""
    return completion.count("```") // 2


@feature
def answer_box(completion: str, **row: Any) -> float:
    r"""1 where an answer is marked by `<answer>`, `\boxed{}` or `####`."""
    return float("</answer>" in completion or "####" in completion or boxed(completion) is not None)


@feature
def answer_anywhere(completion: str, answer: Any = None, **row: Any) -> float | None:
    """1 where the right answer stands anywhere in the text."""
    if not wanted(answer):
        return None
    return float(contains_answer(completion, answer))


@feature
def numbers(completion: str, **row: Any) -> int:
    """How many numbers it holds."""
    return len(re.findall(r"\d+(?:[.,]\d+)*", completion))


@feature
def repetition(completion: str, **row: Any) -> float:
    """Share of its runs of three words that it has said before."""
    runs = _runs(completion.lower())
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


@feature
def copied_prompt(completion: str, prompt: str = "", **row: Any) -> float:
    """Share of its runs of three words that stand in the prompt."""
    runs = _runs(completion.lower())
    known = set(_runs(prompt.lower()))
    return sum(run in known for run in runs) / len(runs) if runs else 0.0


@feature
def capitals(completion: str, **row: Any) -> float:
    """Share of capital letters."""
    return sum(map(str.isupper, completion)) / max(1, len(completion))


@feature
def other_alphabets(completion: str, **row: Any) -> float:
    """Share of the letters that are not Latin: Chinese, Cyrillic and others."""
    if completion.isascii():
        return 0.0
    letters = _LETTER.findall(completion)
    return sum(ord(letter) > _LAST_LATIN for letter in letters) / len(letters) if letters else 0.0


@feature
def symbols(completion: str, **row: Any) -> float:
    """Share of characters that are no letter, digit or white space."""
    return len(_SYMBOL.findall(completion)) / max(1, len(completion))


@feature
def lines(completion: str, **row: Any) -> float:
    """Logarithm of the number of lines."""
    return float(np.log1p(completion.count("\n")))


@feature
def hedging_words(completion: str, **row: Any) -> int:
    """How often it says perhaps, I think, wait and the like."""
    return len(_HEDGES.findall(completion))


@feature
def tool_calls(completion: str, tool_calls: Any = None, **row: Any) -> float:
    """How many tools it called."""
    if isinstance(tool_calls, int | float) and tool_calls == tool_calls:
        return float(tool_calls)
    return float(len(_CALL.findall(completion)))


@feature
def failed_tool_calls(completion: str, **row: Any) -> int:
    """How many answers of tools speak of an error."""
    return sum(bool(_FAILED.search(answer)) for answer in enclosed(_TOOL_ANSWER, completion))


FEATURES: tuple[Feature, ...] = (
    length,
    stopping,
    closed_tags,
    code_fences,
    answer_box,
    answer_anywhere,
    numbers,
    repetition,
    copied_prompt,
    capitals,
    other_alphabets,
    symbols,
    lines,
    hedging_words,
    tool_calls,
    failed_tool_calls,
)


def _runs(text: str) -> list[tuple[str, ...]]:
    """Runs of three words of a text, all its words where it has fewer."""
    words = _WORD.findall(text)
    if len(words) < 3:
        return [(word,) for word in words]
    return list(zip(words, words[1:], words[2:], strict=False))


def checked(own: Sequence[Any]) -> tuple[Feature, ...]:
    """The built-in features and those of a user, none of which has the name of another.

    Raises:
        ParameterError: something that `@feature` did not decorate, or a name that comes twice.
    """
    if isinstance(own, Feature):
        raise ParameterError(
            f"features: {own.name!r} alone; expected a list of features, such as [{own.function.__name__}]"
        )
    for each in own:
        if not isinstance(each, Feature):
            raise ParameterError(f"features: {each!r} is no feature; expected a function that `@feature` decorates")
    every = (*FEATURES, *own)
    names = [each.name for each in every] + [EXACT]
    for name in names:
        if names.count(name) > 1:
            raise ParameterError(f"features: two features have the name {name!r}; rename your function")
    return every


def named(name: str, own: Sequence[Feature] = ()) -> Feature:
    """The feature of a name, written with blanks, `_` or `-`."""
    every = {each.name: each for each in (*FEATURES, *own)}
    asked = name.replace("_", " ").replace("-", " ")
    if asked not in every:
        raise ParameterError(f"feature {name!r}: expected one of {', '.join(every)}, or a function under `@feature`")
    return every[asked]


def load_features(path: str | os.PathLike) -> list[Feature]:
    """Run a user's Python file and take the features that it defines.

    Raises:
        ParameterError: no such file, an error in it, or no feature in it.
    """
    return load_own(path, "features", Feature, FEATURES, "workbench.reward")


def measured(rows: Sequence[Mapping[str, Any]], features: Sequence[Feature]) -> np.ndarray:
    """The features of completions, (N, K), NaN where one is not known.

    Raises:
        ParameterError: a feature raises, or returns what is no number.
    """
    values = np.full((len(rows), len(features)), np.nan)
    for place, each in enumerate(features):
        for number, row in enumerate(rows):
            try:
                values[number, place] = each(**row)
                if np.isinf(values[number, place]):
                    raise ValueError(f"it returned {values[number, place]}; expected a finite number, or None")
            except Exception as error:
                text = repr(row["completion"])[:60]
                raise ParameterError(
                    f"feature {each.name}, completion {number} ({text}): {error!r}; repair it"
                ) from error
    return values


def right(rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """1 for a completion whose final answer is right, 0 for another, (N,); NaN where no answer is recorded."""
    pairs = [(row["completion"], row.get("answer")) for row in rows]
    return np.array([float(is_right(text, answer)) if wanted(answer) else np.nan for text, answer in pairs])
