"""What a run shows: sentences with their numbers, each with a verdict that obeys its interval."""

import dataclasses
import functools
import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path

from ..errors import ParameterError
from ..extras import packaged
from . import lock
from .files import jsonable, write_json
from .run import Run, set_status
from .text import html_table

WRITE_UP = "write-up of "


@dataclasses.dataclass(frozen=True)
class Claim:
    """A published claim: its words, whether it was true when it was reported, and its threads as `owner/name#number`.

    With `write_up` the words are those of a write-up about the threads, which do not make each claim themselves.
    """

    words: str
    when_reported: str
    threads: tuple[str, ...]
    write_up: bool = False

    def __str__(self) -> str:
        return f'the claim "{self.words}" ({self._of}{", ".join(map(_short, self.threads))})'

    @property
    def _of(self) -> str:
        return WRITE_UP if self.write_up else ""

    @property
    def source(self) -> str:
        """The addresses of the threads, and whether a write-up of them makes the claim."""
        return self._of + " ".join(self.links.values())

    @property
    def links(self) -> dict[str, str]:
        """What a thread is called -> its address."""
        return {_short(t): f"https://github.com/{t.replace('#', '/issues/')}" for t in self.threads}

    def as_html(self) -> str:
        """Quote the words, with a link to each thread."""
        words = re.sub("`(.+?)`", r"<code>\1</code>", html.escape(self.words))
        links = ", ".join(f'<a href="{html.escape(to)}">{html.escape(name)}</a>' for name, to in self.links.items())
        return f"<q>{words}</q> ({self._of}{links})"


def _short(thread: str) -> str:
    return thread.partition("/")[2]


@functools.cache
def load_claims() -> dict[str, Claim]:
    """Claim id -> claim, of `data/claims.json` and `data/claim_sources.json`."""
    known, threads = _read("claims.json"), _read("claim_sources.json")["threads"]
    claims = {}
    for name, one in known.items():
        article = name.partition(".")[0]
        own = threads.get(name)  # a claim of a thread; a write-up's claims share its threads
        claims[name] = Claim(one["claim"], one["when_reported"], tuple(own or threads[article]), write_up=own is None)
    return claims


def claim_titles() -> dict[str, str]:
    """Id of each write-up, such as `A0` -> its subject."""
    return _read("claim_sources.json")["titles"]


def _read(name: str) -> dict:
    return json.loads((packaged("data") / name).read_text(encoding="utf-8"))


NOT_RUN, NOT_COMPARABLE = "not run: ", "not comparable: "
# True, False, None: of a published claim, and of a check of the run itself.
_CLAIM = ("confirmed", "refuted", "inconclusive", "not tested", "not comparable")
_CHECK = ("passed", "failed", "inconclusive", "skipped")
_OF_A_TOY = {"confirmed": "seen on a toy", "refuted": "not seen on a toy"}  # which decides nothing about a real model


@dataclasses.dataclass(frozen=True)
class Result:
    """One sentence of a notebook's results, with its verdict.

    Args:
        says: the sentence, with its numbers.
        holds: True, False, or None if the data cannot decide. For a number with an interval pass `*interval.above(bound)`,
            which is this and `why`: None if the bound lies in the interval.
        why: the reason for None. Begin it with `not run: ` if the run left this out, and with `not comparable: ` if a run of a
            toy model cannot decide a claim about a real one. With True or False: the criterion, if the sentence needs one.
        claim: id of the published claim that this confirms or refutes, as in `data/claims.json`; without one this is a check.
            A failed check makes the run fail. A refuted claim is a finding, and does not.
        toy: a toy model was measured. `show_results` and `save_result` set it from the run.

    Raises:
        ParameterError: `holds` is not True, False or None, or it is None without a reason.

    Example:
        >>> Result("forward passes equal the longest row in 30 of 30 updates", True).verdict
        'passed'
        >>> Result("3.3 x the forward passes", True, claim="A0.2").verdict
        'confirmed'
        >>> Result("3.3 x the forward passes", True, claim="A0.2", toy=True).verdict
        'seen on a toy'
        >>> Result("1.2 (0.8 to 1.7) x the seconds", None, "its interval holds 1", "A0.2").verdict
        'inconclusive'
        >>> Result("it peaks at step 79", None, "not comparable: a toy of 80 steps", "A4.2").verdict
        'not comparable'
        >>> Result("a server", None, "not run: server=False").verdict
        'skipped'
    """

    says: str
    holds: bool | None = None
    why: str = ""
    claim: str = ""
    toy: bool = dataclasses.field(default=False, repr=False)

    @classmethod
    def of(cls, says: str, measured: object, criterion: object, *, claim: str = "", digits: str = ".3g") -> "Result":
        """Make a result of measured numbers, which it formats.

        Args:
            says: the sentence, with `{}` in the place of each number.
            measured: the number, interval or text of the only `{}`, or a tuple of them.
            criterion: True, False, or a pair of `holds` and `why` such as `interval.above(bound)`.
            claim: as of `Result`.
            digits: how a float or an interval is formatted.

        Raises:
            ParameterError: the sentence has another number of places than there are numbers.

        Example:
            >>> Result.of("{} of 16 completions hold the id, {} tokens follow", (12, 0), False, claim="A1.1").says
            '12 of 16 completions hold the id, 0 tokens follow'
            >>> Result.of("It takes {} times the passes", 1.234, (None, "its interval holds 1")).verdict
            'inconclusive'
        """
        numbers = measured if isinstance(measured, tuple) else (measured,)
        if says.count("{}") != len(numbers):
            raise ParameterError(f"Result.of({says!r}, {measured!r}): expected a {{}} in the sentence for each number")
        holds, why = criterion if isinstance(criterion, tuple) else (criterion, "")
        before, *after = says.split("{}")  # other braces are of what is quoted, such as a stop string
        parts = (_brief(number, digits) + text for number, text in zip(numbers, after, strict=True))
        return cls(before + "".join(parts), holds, why, claim)

    def __post_init__(self):
        holds = jsonable(self.holds)
        if holds not in (True, False, None) or not isinstance(holds, bool | None):
            raise ParameterError(f"Result({self.says!r}, holds={self.holds!r}): expected True, False or None")
        if holds is None and not self.why:
            raise ParameterError(f"Result({self.says!r}, holds=None): expected the reason as `why`")
        if holds is not None and self.why.startswith((NOT_RUN, NOT_COMPARABLE)):
            raise ParameterError(
                f"Result({self.says!r}, holds={self.holds!r}, why={self.why!r}): a `why` that begins so needs holds=None"
            )
        object.__setattr__(self, "holds", holds)  # numpy's truth values are not JSON's

    @property
    def verdict(self) -> str:
        """Of a claim: confirmed, refuted, inconclusive, not tested, not comparable, seen on a toy, not seen on a toy. Of a
        check: passed, failed, inconclusive, skipped.
        """
        words = _CLAIM if self.claim else _CHECK
        if self.holds is not None:
            word = words[0 if self.holds else 1]
            return _OF_A_TOY.get(word, word) if self.toy else word
        if self.claim and self.why.startswith(NOT_COMPARABLE):
            return _CLAIM[4]
        return words[3 if self.why.startswith(NOT_RUN) else 2]

    @property
    def reason(self) -> str:
        """`why` without `not run: ` or `not comparable: ` at its start."""
        return self.why.removeprefix(NOT_RUN).removeprefix(NOT_COMPARABLE)


def _brief(number: object, digits: str) -> str:
    if hasattr(number, "in_brief"):
        return number.in_brief(digits)
    return f"{number:{digits}}" if isinstance(number, Real) and not isinstance(number, Integral) else str(number)


class ResultTable(Sequence[Result]):
    """Results as a table: published claim, if there is one, what was measured, verdict. Shows itself in a notebook."""

    def __init__(self, results: Iterable[Result]):
        self._results = tuple(results)

    def __len__(self):
        return len(self._results)

    def __getitem__(self, index):
        return self._results[index]

    def _repr_html_(self) -> str:
        """A row a result; a claim with several results is quoted at the first of them."""
        claims = [_claim_html(r.claim) for r in self]
        if not any(r.claim for r in self):
            return html_table(([html.escape(r.says), _verdict_html(r)] for r in self), _HEADS)
        quoted = ["" if claim == before else claim for claim, before in zip(claims, ["", *claims], strict=False)]
        rows = ([quote, html.escape(r.says), _verdict_html(r)] for quote, r in zip(quoted, self, strict=True))
        return html_table(rows, ("published claim", *_HEADS))

    def __repr__(self) -> str:
        return "\n".join(map(_as_text, self))


_HEADS = ("measured", "verdict")


def _claim_html(name: str) -> str:
    if not name:
        return "(a check of this run)"
    claim = load_claims().get(name)
    return claim.as_html() if claim else html.escape(name)


def _verdict_html(result: Result) -> str:
    return f"<b>{result.verdict}</b>" + (f"<br>{html.escape(result.reason)}" if result.reason else "")


def _as_text(result: Result) -> str:
    about = f" {load_claims().get(result.claim, result.claim)}\n   " if result.claim else ""
    return f"{result.verdict}:{about} {result.says}" + (f" ({result.reason})" if result.reason else "")


def show_results(results: Iterable[Result], run: Run | None = None) -> ResultTable:
    """Show results as a table at the end of a cell, each next to the words of its claim. The table is a sequence of them.

    Args:
        results: a row each.
        run: which they are of. A run of a toy model confirms and refutes no claim.

    Raises:
        ParameterError: an element that is no `Result`.

    Example:
        >>> show_results([Result("The loss is that of its definition", False, claim="A5.3")])
        refuted: the claim "With `mask_truncated_completions` the tokens that are left out still divide the loss" (trl#6439)
            The loss is that of its definition
    """
    results = _checked("show_results", results)
    return ResultTable(_of_run(results, run) if run else results)


def _checked(caller: str, results: Iterable[Result]) -> list[Result]:
    results = list(results)
    for result in results:
        if not isinstance(result, Result):
            raise ParameterError(f"{caller}: {result!r}: expected a Result")
    return results


def _of_run(results: Iterable[Result], run: Run) -> list[Result]:
    return [dataclasses.replace(result, toy=run.toy) for result in results]


def save_result(run: Run, results: Sequence[Result], numbers: Mapping[str, float] | None = None) -> Path:
    """Write the run's outcome to `result.json`. If this process executes the run itself, the run ends.

    Args:
        run: the run folder.
        results: the first is the run's main finding, and stands first in its report and on its card.
        numbers: name -> number, for tables over several runs. The index shows the first one.

    Raises:
        ParameterError: no results, or an element that is no `Result`.
    """
    results = _checked("save_result", results)
    if not results:
        raise ParameterError("save_result: results is empty; expected at least one Result")
    path, numbers = run.path / "result.json", dict(numbers or {})
    headline = next(({"name": name, "value": value} for name, value in numbers.items()), None)
    write_json(
        path,
        {"headline": headline, "results": [dataclasses.asdict(r) for r in _of_run(results, run)], "numbers": numbers},
        durable=True,
    )
    if lock.holds(run.path):
        (run.path / "audit.json").unlink(missing_ok=True)  # an audit of an earlier execution
        set_status(run.path, "done")
        lock.let_go(run.path)
    return path


def results_of(result: Mapping) -> list[Result]:
    """The results in a `result.json`, `Run.result`; empty where a notebook saved none.

    Example:
        >>> results_of({"results": [{"says": "it rises", "holds": True}]})
        [Result(says='it rises', holds=True, why='', claim='')]
    """
    fields = ("says", "holds", "why", "claim", "toy")
    return [Result(**{name: r[name] for name in fields if name in r}) for r in result.get("results", [])]


def count_verdicts(results: Iterable[Result], *, claims: bool) -> dict[str, int]:
    """Return how many checks, or published claims, have each verdict; those that occur.

    Example:
        >>> count_verdicts([Result("a", True), Result("b", True), Result("c", False, claim="A0.1")], claims=False)
        {'passed': 2}
    """
    counts = Counter(r.verdict for r in results if bool(r.claim) == claims)
    return {word: counts[word] for word in ((*_CLAIM, *_OF_A_TOY.values()) if claims else _CHECK) if counts[word]}
