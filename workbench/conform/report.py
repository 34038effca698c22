"""Ask a function all questions of a definition, and judge its answers."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from ..errors import ParameterError
from .alternatives import Alternative, alternatives_of
from .case import NotOffered, call
from .definitions import VARIED, Answer, Question, answer_of, cases_of, definition_of, settings_of
from .names import NAMES
from .questions import load_questions

_ALLOWED = (
    1e-5  # difference from the expected answer, relative to its size: float32 passes, 1e-4 on a deviation does not
)
_ZERO = 1e-9
_NAMED = 4  # further cases in the text of a report; its results have all


class Verdict(StrEnum):
    """What is said of the answer to one case."""

    SAME = "same"
    """Value and slopes are those of the definition."""
    OTHER = "other by choice"
    """They are those of another formula that trainers have, which the result names."""
    WRONG = "wrong"
    """They are neither, or the function raised an error."""
    NOT_OFFERED = "not offered"
    """The function has no parameter for a setting of the case, or raised `NotOffered`."""


@dataclass(frozen=True)
class Result:
    """The answer to one case.

    Attributes:
        case: its name.
        verdict: of its answer.
        says: the formula that it is instead, the error, or the reason why it was not asked.
        value, expected: of the loss; of advantages those of the row that differs most.
        place: row and token with the largest difference of a slope; `(row,)` of advantages; None where nothing differs.
        slope, expected_slope: there.
    """

    case: str
    verdict: Verdict
    says: str = ""
    value: float | None = None
    expected: float | None = None
    place: tuple[int, ...] | None = None
    slope: float | None = None
    expected_slope: float | None = None

    def __str__(self) -> str:
        return f"{self.case}: {'; '.join(filter(None, [*self.numbers, self.says]))}"

    @property
    def numbers(self) -> list[str]:
        """The value and the largest difference of a slope, next to what was expected."""
        said = []
        if self.value is not None:
            of_row = f"row {self.place[0]}: " if self.place and self.slope is None else ""
            said.append(f"{of_row}{_shown(self.value)}, expected {_shown(self.expected)}")
        if self.slope is not None and self.place:
            row, token = self.place
            slopes = f"{_shown(self.slope)}, expected {_shown(self.expected_slope)}"
            said.append(f"slope of row {row}, token {token}: {slopes}")
        return said


def _shown(number: float | None) -> str:
    """Six digits; what is left of a sum that cancels is 0."""
    return "none" if number is None else f"{0.0 if abs(number) < 1e-12 else number:.6g}"


@dataclass(frozen=True)
class ConformReport:
    """What a function answered. `print` shows it; the smallest case comes first in each verdict.

    Attributes:
        function: its name.
        definition: that it claims to be.
        results: one a case, the smallest first.
    """

    function: str
    definition: str
    results: tuple[Result, ...]

    def of(self, verdict: Verdict | str) -> list[Result]:
        """The results with a verdict."""
        return [result for result in self.results if result.verdict == verdict]

    def __str__(self) -> str:
        wrong, asked = len(self.of(Verdict.WRONG)), len(self.results) - len(self.of(Verdict.NOT_OFFERED))
        lines = [f"{self.function} as {self.definition} ({NAMES[self.definition]}): {wrong} of {asked} cases wrong"]
        for verdict in (Verdict.WRONG, Verdict.OTHER, Verdict.NOT_OFFERED):
            for group in _by_sentence(self.of(verdict)):
                first, *more = _paragraph(group)
                lines += [f"{verdict:16} {first}", *(f"{'':16} {line}" for line in more)]
        lines.append(f"{Verdict.SAME:16} {len(self.of(Verdict.SAME))} cases")
        return "\n".join(lines)


def conform_report(function: Callable[..., Any], definition: str, name: str = "") -> ConformReport:
    """Ask a function the questions of a definition, and compare value and slopes with the reference's.

    Args:
        function: as `workbench.conform.case` describes it.
        definition: that it claims to be, such as `dapo`; `workbench conform --help` lists them.
        name: in the report; by default the function's own.

    Returns:
        A result for each case.

    Raises:
        ParameterError: for an unknown definition, or if the function offers no case or raises an error in each.

    Example:
        >>> def advantages(rewards, groups):
        ...     means = np.array([rewards[groups == group].mean() for group in groups])
        ...     return rewards - means
        >>> report = conform_report(advantages, "grpo_advantages")
        >>> report.of("other by choice")[0].says
        "no division by the deviation (scale_rewards='none')"
    """
    definition_of(definition)
    name = name or getattr(function, "__name__", type(function).__name__)
    questions = [question for question in load_questions() if definition in question.expected]
    answers: dict[str, Answer] = {}
    results = []
    for question in questions:
        try:
            with np.errstate(all="ignore"):  # a nan is judged, not warned about
                answers[question.name] = _ask(function, definition, question)
        except NotOffered as reason:
            results.append(Result(question.name, Verdict.NOT_OFFERED, str(reason)))
        except (Exception, SystemExit) as error:  # the function is anybody's
            results.append(Result(question.name, Verdict.WRONG, f"raised {type(error).__name__}: {error}"))
        else:
            results.append(_compared(question, question.expected[definition], answers[question.name]))
    if not answers:
        says = next((r.says for r in results if r.verdict == Verdict.WRONG), results[0].says)
        raise ParameterError(f"{name}: none of the {len(results)} cases of {definition} has an answer: {says}")
    return ConformReport(name, definition, tuple(_explained(definition, questions, results, answers)))


def _ask(function: Callable[..., Any], definition: str, question: Question) -> Answer:
    """The answers of a function to all micro-batches of a step, put together."""
    of_rewards = definition_of(definition).of_rewards
    numbers, value = np.zeros_like(question.expected[definition].numbers), 0.0
    for rows, case in cases_of(definition, question):
        result = call(function, case)
        if of_rewards:
            numbers[rows] = _shaped(result, (len(rows),), "advantages")
            continue
        if not isinstance(result, tuple | list) or len(result) != 2:
            kind = type(result).__name__
            raise TypeError(
                f"returned {kind}: expected (value, slopes), slopes the derivative of the loss by each of logps, of shape "
                f"{(len(rows), numbers.shape[1])}; a function of tensors needs @with_torch, which takes the derivative"
            )
        value += float(result[0]) / case.processes
        numbers[rows] += _shaped(result[1], (len(rows), numbers.shape[1]), "slopes") / case.processes
    return Answer(numbers) if of_rewards else Answer(numbers, value)


def _shaped(numbers: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    array = np.asarray(numbers, dtype=float)
    if array.shape != shape:
        raise TypeError(f"returned {what} of shape {array.shape}: expected {shape}")
    return array


def _compared(question: Question, expected: Answer, answer: Answer) -> Result:
    """The result of one case, before alternatives are tried: `same` or `wrong`."""
    if _close(answer, expected):
        return Result(question.name, Verdict.SAME, value=answer.value, expected=expected.value)
    both_nan = np.isnan(answer.numbers) & np.isnan(expected.numbers)
    gaps = np.where(both_nan, 0.0, np.abs(answer.numbers - expected.numbers))
    gaps = np.where(np.isnan(gaps), np.inf, gaps)
    place, there, right = None, None, None
    if gaps.max() > _allowed(expected):
        place = tuple(int(i) for i in np.unravel_index(gaps.argmax(), gaps.shape))
        there, right = float(answer.numbers[place]), float(expected.numbers[place])
    if expected.value is None:
        return Result(question.name, Verdict.WRONG, "", there, right, place)
    says = _times(answer, expected)
    return Result(question.name, Verdict.WRONG, says, answer.value, expected.value, place, there, right)


def _allowed(expected: Answer) -> float:
    """The difference that is rounding."""
    return _ALLOWED * expected.size + _ZERO


def _close(answer: Answer, expected: Answer) -> bool:
    """True if two answers agree within rounding; NaN agrees with NaN."""
    allowed = _allowed(expected)
    if answer.value is not None and expected.value is not None and not abs(answer.value - expected.value) <= allowed:
        return False
    near = np.abs(answer.numbers - expected.numbers) <= allowed
    return bool((near | (np.isnan(answer.numbers) & np.isnan(expected.numbers))).all())


def _times(answer: Answer, expected: Answer) -> str:
    """A factor that explains the whole answer."""
    square = float((expected.numbers**2).sum())
    if not square or not expected.value or not np.isfinite(answer.numbers).all():
        return ""
    times = float((answer.numbers * expected.numbers).sum()) / square
    if times and _close(answer, Answer(times * expected.numbers, times * expected.value)):
        return f"{times:.4g} times the definition"
    return ""


def _alternative_answer(definition: str, question: Question, alternative: Alternative) -> Answer:
    """The answer of an alternative; that of the definition where the alternative changes no setting.

    A choice is a default: where the question sets the setting itself, that counts.
    """
    settings = VARIED | settings_of(definition, question)
    fixed = question.settings if alternative.choice else {}
    changes = tuple(
        (name, value)
        for name, value in alternative.changes.items()
        if settings.get(name) != value and name not in fixed
    )
    return _changed_answer(definition, question, changes) if changes else question.expected[definition]


@functools.cache
def _changed_answer(definition: str, question: Question, changes: tuple[tuple[str, Any], ...]) -> Answer:
    return answer_of(definition, question, dict(changes))


def _explained(
    definition: str, questions: Iterable[Question], results: list[Result], answers: dict[str, Answer]
) -> list[Result]:
    """Name the alternatives that give the answers which differ, those that explain most first.

    An alternative counts only if it changes no answer that is the same, and gives more than half of those that it changes:
    a single case may agree by chance. An answer that is NaN says nothing of it.
    """
    by_name = {question.name: question for question in questions}
    same = [result.case for result in results if result.verdict == Verdict.SAME]
    unexplained = {result.case for result in results if result.verdict == Verdict.WRONG and result.case in answers}

    def agrees(alternative: Alternative, case: str) -> bool:
        return _close(answers[case], _alternative_answer(definition, by_name[case], alternative))

    def changes(alternative: Alternative, case: str) -> bool:
        other = _alternative_answer(definition, by_name[case], alternative)
        return not _close(other, by_name[case].expected[definition])

    explains = {}
    for alternative in alternatives_of(definition) if unexplained else ():
        cases = {case for case in unexplained if agrees(alternative, case)}
        if not cases or not all(agrees(alternative, case) for case in same):
            continue
        changed = [case for case in unexplained if answers[case].finite and changes(alternative, case)]
        if len(cases) > len(changed) / 2:
            explains[alternative] = cases
    said: dict[str, Alternative] = {}
    while explains:
        best = max(explains, key=lambda alternative: len(explains[alternative] - said.keys()))
        said = dict.fromkeys(explains.pop(best), best) | said
    return [
        replace(
            result,
            verdict=Verdict.OTHER if said[result.case].choice else Verdict.WRONG,
            says=f"{said[result.case].formula} ({said[result.case].option})",
        )
        if result.case in said
        else result
        for result in results
    ]


def _by_sentence(results: Iterable[Result]) -> list[list[Result]]:
    """Results that say the same together; those that say nothing too."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.says, []).append(result)
    return list(groups.values())


def _paragraph(group: list[Result]) -> list[str]:
    """The lines of results that say the same: the smallest with its numbers, the sentence, the names of the others."""
    first, *others = group
    lines = [f"{first.case}: {first.says}"] if not first.numbers else [f"{first.case}: {'; '.join(first.numbers)}"]
    if first.numbers and first.says:
        lines.append(first.says)
    if others:
        names = ", ".join(result.case for result in others[:_NAMED])
        lines.append(f"also {names}" + (f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""))
    return lines
