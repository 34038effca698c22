"""The final answer in a text, and when two answers are the same. No model and no parser of mathematics is asked."""

import re
from typing import Any

from pandas import isna
from pandas.api.types import is_scalar

_TAG = re.compile(r"</?answer>", re.IGNORECASE)
_BRACE = re.compile(r"[{}]")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_NO_SIGN = r"(?<!^-)(?<![^\w)]-)"  # behind a word or bracket a hyphen is none
_MINUS = "\u2212"  # as typesetters write it
_NUMBER = re.compile(
    rf"(?:(?<![\w)\]])[-{_MINUS}])?(?:\d[\d,]*(?:\.\d+)?|(?<![\w.])\.\d+)(?:[eE][-+{_MINUS}]?\d+)?(?:/\d+)?"
)
_LATEX = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\{([^{}]*)\}")


def boxed(text: str) -> str | None:
    r"""Return what the last `\boxed{...}` holds, with its inner braces; None where there is none or it is not closed.

    Example:
        >>> boxed(r"so \boxed{\frac{1}{2}}")
        '\\frac{1}{2}'
    """
    starts = [match.end() for match in _BOX.finditer(text)]
    ends: dict[int, int] = {}  # behind an opening brace -> the place of the one that closes it
    open_ones: list[int] = []
    for brace in _BRACE.finditer(text) if starts else ():
        if brace[0] == "{":
            open_ones.append(brace.end())
        elif open_ones:
            ends[open_ones.pop()] = brace.start()
    return next((text[start : ends[start]] for start in reversed(starts) if start in ends), None)


def enclosed(tag: re.Pattern, text: str) -> list[str]:
    """Return what stands between an opening tag and the next closing one, in one pass over the text; `tag` finds both.

    Example:
        >>> enclosed(re.compile("</?b>"), "<b>1 <b>2</b> 3 <b>4</b> <b>5")
        ['1 <b>2', '4']
    """
    found, start = [], None
    for each in tag.finditer(text):
        if each[0][1] != "/":
            start = each.end() if start is None else start
        elif start is not None:
            found.append(text[start : each.start()])
            start = None
    return found


def marked_answer(text: str) -> str | None:
    r"""Return the answer that a text marks: the last `<answer>`, else the last `\boxed{}`, else what follows the last `####`.

    Of a box within `<answer>` it is what the box holds.

    Example:
        >>> marked_answer("<think>41?</think><answer> 42 </answer>"), marked_answer("maybe 42")
        (' 42 ', None)
        >>> marked_answer(r"<answer>It is $\boxed{42}$</answer>")
        '42'
    """
    if tags := enclosed(_TAG, text):
        box = boxed(tags[-1])
        return tags[-1] if box is None else box
    if (box := boxed(text)) is not None:
        return box
    if "####" in text:
        after = text.rpartition("####")[2].strip()
        return after.splitlines()[0] if after else None
    return None


def plain(answer: str) -> str:
    r"""Return an answer without what only dresses it: white space, case, dollar signs, bold, commas of thousands, a last stop.

    Example:
        >>> [plain(text) for text in (" $1,234$. ", r"\text{Paris}", "**7.0**")]
        ['1234', 'paris', '7']
    """
    return undressed(answer).lower()


def undressed(answer: str) -> str:
    r"""Return what `plain` does, in the case that it has.

    Example:
        >>> undressed("**Paris**."), undressed(r"1{,}234\%")
        ('Paris', '1234%')
    """
    text = _LATEX.sub(r"\1", answer).replace("\\!", "").replace("\\,", "").replace("\\$", "")
    text = text.replace(_MINUS, "-").replace("{,}", ",").replace("\\%", "%")
    text = " ".join(text.replace("$", " ").replace("**", " ").split()).strip().rstrip(".").strip()
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    if re.fullmatch(r"-?\d+\.0+", text):
        return text.partition(".")[0]
    return text


def wanted(answer: Any) -> list[str]:
    """Return the right answers of a row in plain form: one, or several where it holds a list.

    Example:
        >>> wanted("6 * 7 = 42 #### 42"), wanted(["4", "four"]), wanted(None)
        (['42'], ['4', 'four'], [])
    """
    return [found for text in stated(answer) if (found := plain(text))]


def stated(answer: Any) -> list[str]:
    """Return the right answers of a row as they stand there.

    Example:
        >>> stated("so it is #### Paris "), stated(None)
        (['Paris'], [])
    """
    if hasattr(answer, "tolist") and not isinstance(answer, str):
        answer = answer.tolist()
    if isinstance(answer, dict):
        return stated(answer.get("ground_truth", answer.get("target")))
    if isinstance(answer, list | tuple):
        return [text for each in answer for text in stated(each)]
    if not known(answer):
        return []
    text = str(answer)
    if isinstance(answer, float) and answer.is_integer():
        text = str(int(answer))
    marked = marked_answer(text)
    return [(text if marked is None else marked).strip()]


def known(answer: Any) -> bool:
    """Return False for None, NaN and pandas' NA."""
    return not (is_scalar(answer) and isna(answer))


def final_answer(text: str) -> str:
    """Return the answer of a completion in plain form: the marked one, else its last number, else all.

    The last number counts if the completion has several words or is an equation.

    Example:
        >>> final_answer("It is 6 times 7, so 42."), final_answer(" Paris. "), final_answer("6*7=42")
        ('42', 'paris', '42')
    """
    marked = marked_answer(text)
    if marked is not None:
        return plain(marked)
    whole = plain(text)
    has_parts = len(whole.split()) > 1 or "=" in whole
    if has_parts and (numbers := _NUMBER.findall(text)):
        return plain(numbers[-1].rstrip(","))
    return whole


def is_right(text: str, answer: Any) -> bool:
    r"""Return True where the final answer of a completion, or all of it, is one of the right ones.

    Example:
        >>> is_right("<answer>1,234</answer>", 1234), is_right("42 or 43", "42"), is_right("The answer is (B).", "B")
        (True, False, True)
        >>> is_right(r"<answer>\boxed{42\%}</answer>", "42"), is_right(r"\boxed{\text{(B)}}", "B")
        (True, True)
    """
    right = wanted(answer)
    final = final_answer(text)
    if {final, final.removesuffix("%").rstrip(), plain(text)} & set(right) or _bare(final) in map(_bare, right):
        return True
    return marked_answer(text) is None and any(
        _behind_answer(plain(text), each) or _is_last_amount(plain(text), each) for each in right
    )


def _bare(answer: str) -> str:
    """The letter of `(b)`, of several to choose from; another answer as it is."""
    return answer[1:-1] if re.fullmatch(r"\([a-z]\)", answer) else answer


def _is_last_amount(text: str, answer: str) -> bool:
    """True where the last number of a text is that of an answer and has its unit, such as `42%` or `12 km`."""
    number, last = _NUMBER.match(answer), [*_NUMBER.finditer(text)][-1:]
    unit = number and answer[number.end() :]
    return bool(unit and last and re.match(rf"{re.escape(answer)}(?![\w/^])", text[last[0].start() :]))


def _behind_answer(text: str, answer: str) -> bool:
    """True where words, a letter or a formula stand behind the last `answer` of a text; of numbers the last one counts.

    Words that only end a text are none: it may end with any word of its question.
    """
    if _NUMBER.fullmatch(answer) or "answer" not in text:
        return False
    said = rf"(?: is)?[\s:(\[\"'`*]*{re.escape(answer)}(?!\w)(?! or |(?: and|, and|,) [b-hj-z]\b)"  # one of several letters
    return bool(re.match(said, text.rpartition("answer")[2]))


def contains_answer(text: str, answer: Any) -> bool:
    """Return True where a right answer stands anywhere in a completion as a word or number of its own.

    Example:
        >>> [contains_answer(text, "42") for text in ("42 or 43", "50-8=42", "142", "-42")]
        [True, True, False, False]
    """
    whole = plain(text)
    return any(re.search(rf"{_NO_SIGN}(?<![\w.]){re.escape(each)}(?!\w|\.\d)", whole) for each in wanted(answer))
