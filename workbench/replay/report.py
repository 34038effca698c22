"""The report of `check_step`: a table of stages, and the tokens of one completion through all of them."""

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from ..errors import ParameterError, did_you_mean
from .formulas import formula_of, trl_line


class StageVerdict(StrEnum):
    """The verdict on a stage of a step."""

    SAME = "same"
    """The trainer used the numbers that the definition gives."""
    ROUNDING = "rounding"
    """They differ by no more than the dtype's rounding."""
    DIFFERENT = "different"
    """They differ by more."""
    CANNOT_TELL = "cannot tell"
    """The step does not hold what would decide it; the cause says what is missing."""
    MEANT = "meant"
    """They differ, and `meant=` names the stage."""


_COLOURS: dict[str, str] = {
    StageVerdict.SAME: "#1a7f37",
    StageVerdict.ROUNDING: "#57606a",
    StageVerdict.DIFFERENT: "#b42318",
    StageVerdict.CANNOT_TELL: "#8a6d00",
    StageVerdict.MEANT: "#0550ae",
}
STAGES = (
    "sampling",
    "ends",
    "turns",
    "mask",
    "rewards",
    "advantages",
    "batches",
    "images",
    "log-probs",
    "reference",
    "teacher",
    "mismatch",
    "ratios",
    "correction",
    "loss",
    "gradient",
    "update",
    "metrics",
)
# Stage -> its largest difference in words. The cause of another stage has its numbers.
_AMOUNTS = {
    "sampling": "{} nats a token",
    "turns": "{} tokens",
    "mask": "{} tokens",
    "rewards": "at most {}",
    "advantages": "at most {}",
    "log-probs": "at most {} nats",
    "reference": "at most {} nats",
    "mismatch": "at most {} nats",
    "correction": "at most {}",
    "loss": "at most {}",
}
_NEAR_ONE = 1e-3  # of a ratio that no update has moved; rounding in bf16 is larger, and then nothing is advised
_COLUMNS = 100  # of the text
_PROMPT = 400  # characters of a prompt that the page shows
_MORE, _LESS = "26, 94, 184", "180, 35, 24"  # a token that the loss makes more and less probable


@dataclass(frozen=True)
class Stage:
    """One stage of a step: what the trainer used against what its definition gives from the stage before."""

    name: str
    verdict: str  # one of `StageVerdict`
    cause: str = ""  # a sentence; with the setting that makes it so where there is one
    largest: float | None = None  # difference, in the stage's own unit
    where: str = ""  # rows and tokens

    @property
    def amount(self) -> str:
        """Where and how much, in words; empty where the stage has no such number or its cause has it."""
        parts = [] if self.where and self.where in self.cause else [self.where]
        if self.largest is not None and self.name in _AMOUNTS:
            parts.append(_AMOUNTS[self.name].format(f"{self.largest:.3g}"))
        return "; ".join(part for part in parts if part)

    @property
    def text(self) -> str:
        """The cause, with where and how much."""
        if self.cause and self.amount:
            return f"{self.cause} ({self.amount})"
        return self.cause or self.amount


@dataclass(frozen=True)
class CheckedRow:
    """One completion as the loss took it: its tokens and, for each, what the stages gave. Arrays (T,).

    Of a completion that the loss leaves out, `mask` and `slopes` are 0, and the log-probs and ratios NaN.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    texts: list[str]  # of each token
    mask: np.ndarray
    advantage: Any  # a number, or (T,)
    logps: np.ndarray  # the trainer's
    alone: np.ndarray  # of the row alone, without padding
    ratios: np.ndarray
    slopes: np.ndarray  # by which each token's log-prob moves the loss
    prompt: str = ""  # its text
    number: int | None = None  # the stages' number of this row in its generation; None where it has none


@dataclass(frozen=True)
class StepReport:
    """The stages of one training step in their order, each with a verdict.

    Shown as a headline and a table; in a notebook also with the completions, each token with its share of the gradient, and
    with links to each stage's definition.
    """

    stages: Sequence[Stage]
    rows: Sequence[CheckedRow]
    kind: str = "GRPO"  # of the trainer, or RLOO
    of_trl: bool = True  # False: of a file that another trainer wrote

    @property
    def different(self) -> list[Stage]:
        """The stages whose verdict is `different`."""
        return [stage for stage in self.stages if stage.verdict == "different"]

    @property
    def first(self) -> Stage | None:
        """The first stage that is different, None where none is."""
        return next(iter(self.different), None)

    def with_meant(self, names: Sequence[str]) -> "StepReport":
        """The same report, in which a stage with one of these names that is `different` is `meant`, and not `first`."""
        stages = [
            replace(stage, verdict="meant") if stage.name in names and stage.verdict == "different" else stage
            for stage in self.stages
        ]
        return replace(self, stages=stages)

    @property
    def undecided(self) -> list[Stage]:
        """The stages whose verdict is `cannot tell`."""
        return [stage for stage in self.stages if stage.verdict == "cannot tell"]

    @property
    def headline(self) -> str:
        """One line: the first stage that differs and where, the other ones, and what is open."""
        different = self.different
        parts = ["no stage differs"]
        if different:
            parts = [", ".join(filter(None, [f"first: {different[0].name}", different[0].where]))]
        if len(different) > 1:
            parts.append(f"also different: {', '.join(stage.name for stage in different[1:])}")
        if meant := [stage.name for stage in self.stages if stage.verdict == "meant"]:
            parts.append(f"meant to differ: {', '.join(meant)}")
        if self.undecided:
            names = ", ".join(stage.name for stage in self.undecided)
            parts.append(f"{len(self.undecided)} could not be decided: {names}")
        return "; ".join(parts)

    @property
    def advice(self) -> str:
        """A sentence on how to see later updates, if ratios or loss are in question and every ratio is 1; else empty.

        Of GRPO and RLOO, whose steps can be kept.
        """
        verdicts = {stage.name: stage.verdict for stage in self.stages}
        asked = verdicts.get("ratios") in ("different", "cannot tell") or verdicts.get("loss") == "different"
        ratios = np.concatenate([row.ratios[row.mask > 0] for row in self.rows] or [np.zeros(0)])
        asked = asked and "ratios" in verdicts and self.kind in ("GRPO", "RLOO")
        if not asked or not len(ratios) or not np.abs(ratios - 1).max() <= _NEAR_ONE:
            return ""
        if not self.of_trl:
            return (
                "every ratio of this step is 1. If a later update of these completions has others, write a file of it too, "
                "with `reused`: true"
            )
        return (
            "every ratio of this step is 1. If a later update has others, keep it with "
            "attach_watch(trainer, record_steps=[2]); `workbench replay DIR --step 2` then checks it"
        )

    def __getitem__(self, name: str) -> Stage:
        return {stage.name: stage for stage in self.stages}[name]

    def table(self) -> pd.DataFrame:
        """Stage, verdict, largest difference, where, cause."""
        return pd.DataFrame([vars(stage) for stage in self.stages]).rename(columns={"name": "stage"})

    def tokens(self, row: int = 0) -> pd.DataFrame:
        """The tokens of one completion through all stages: a line each.

        Args:
            row: its place in `rows`, which are in the order of their generation.

        Returns:
            Columns `token`, `id`, `mask`, `advantage`, `logp` (the trainer's), `logp_alone`, `ratio`, and `gradient`, this
            token's share of the sum of all absolute slopes of the step.

        Raises:
            ParameterError: there is no such row.
        """
        if row not in range(len(self.rows)):
            raise ParameterError(f"row={row!r}: expected a row of this step, 0 to {len(self.rows) - 1}")
        r = self.rows[row]
        total = sum(float(np.abs(other.slopes).sum()) for other in self.rows) or 1.0
        columns: dict[str, Any] = {"token": r.texts, "id": r.completion_ids, "mask": r.mask, "advantage": r.advantage}
        columns |= {"logp": r.logps, "logp_alone": r.alone, "ratio": r.ratios, "gradient": -r.slopes / total}
        return pd.DataFrame(columns)

    def __str__(self) -> str:
        width = max((len(stage.name) for stage in self.stages), default=0)
        lines = [_wrapped(self.headline, "")]
        for stage in self.stages:
            lines.append(_wrapped(stage.text, f"{stage.name:<{width}}  {stage.verdict:<11}  "))
        if self.advice:
            lines.append(_wrapped(self.advice, "Do: "))
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        titles = "".join(
            f"<th>{title}</th>" for title in ("stage", "verdict", "cause", "where, how much", "definition")
        )
        lines = "".join(_stage_line(stage, self.kind) for stage in self.stages)
        advice = f"<p>Do: {html.escape(self.advice)}</p>" if self.advice else ""
        page = f"<p><b>{html.escape(self.headline)}</b></p><table><tr>{titles}</tr>{lines}</table>{advice}"
        if not self.rows:
            return page
        return page + _LEGEND + "".join(map(self._row_html, range(len(self.rows))))

    def _row_html(self, row: int) -> str:
        """A completion below its prompt, its tokens shaded by their share of the gradient as `_LEGEND` says."""
        table = self.tokens(row)
        strongest = (
            max(
                (float(np.abs(self.tokens(i)["gradient"]).max()) for i in range(len(self.rows)) if len(self.tokens(i))),
                default=0,
            )
            or 1.0
        )
        spans = []
        for token, mask, share in zip(table["token"], table["mask"], table["gradient"], strict=True):
            style = (
                f"background-color: rgba({_MORE if share > 0 else _LESS}, {min(abs(share) / strongest, 1) * 0.6:.2f})"
            )
            style += "" if mask else "; text-decoration: line-through; color: #888"
            spans.append(f'<span style="{style}" title="{share:+.2%} of the gradient">{html.escape(token)}</span>')
        advantages = np.atleast_1d(self.rows[row].advantage)
        number = self.rows[row].number
        name = f"Completion {row} of the loss" if number is None else f"Completion {number}"
        head = f"{name}, advantage {advantages.mean() if len(advantages) else 0.0:+.2f}"
        head += " in the mean of its tokens" if len(advantages) > 1 else ""
        text = f'<code style="white-space: pre-wrap">{"".join(spans)}</code>'
        return f"<p>{head}<br>{_prompt_html(self.rows[row].prompt)}{text}</p>"


def stage_names(option: str, names: str | Sequence[str]) -> tuple[str, ...]:
    """The names of stages that a user gives in an option, a single one in a tuple.

    Raises:
        ParameterError: a name that is no stage's.

    Example:
        >>> stage_names("meant", "rewards"), stage_names("allow", ["ends", "rewards"])
        (('rewards',), ('ends', 'rewards'))
    """
    given = (names,) if isinstance(names, str) else tuple(names)
    for name in given:
        if name not in STAGES:
            hint = did_you_mean(str(name), STAGES)
            raise ParameterError(f"{option}={names!r}: {name!r} is no stage; {hint}the stages are {', '.join(STAGES)}")
    return given


_LEGEND = (
    f'<p>Tokens: <mark style="background-color: rgba({_MORE}, 0.4)">blue</mark> the loss makes it more probable, '
    f'<mark style="background-color: rgba({_LESS}, 0.4)">red</mark> less; the darker, the larger its share of the gradient; '
    '<s style="color: #888">struck out</s> not in the loss. The prompt is above, in grey.</p>'
)


def _wrapped(text: str, head: str) -> str:
    """A text behind its head, in lines of at most 100 columns where its words are short enough."""
    wrap = textwrap.TextWrapper(
        width=_COLUMNS,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        expand_tabs=False,
    )
    return "\n".join(wrap.wrap(text)) or head.rstrip()


def _prompt_html(prompt: str) -> str:
    """The end of a prompt, in grey; nothing where its text is not known."""
    if not prompt:
        return ""
    end = prompt if len(prompt) <= _PROMPT else f"... {prompt[-_PROMPT:]}"
    return f'<code style="white-space: pre-wrap; color: #888">{html.escape(end)}</code><br>'


def _stage_line(stage: Stage, kind: str) -> str:
    definition = f"<code>{html.escape(formula_of(stage.name, kind))}</code>"
    if address := trl_line(stage.name, kind):
        definition += f' <a href="{html.escape(address)}">TRL</a>'
    colour = _COLOURS[stage.verdict]
    cells = (
        f"<td>{html.escape(stage.name)}</td>",
        f'<td style="color: {colour}; white-space: nowrap"><b>{stage.verdict}</b></td>',
        f'<td style="text-align: left">{html.escape(stage.cause)}</td>',
        f'<td style="text-align: left">{html.escape(stage.amount)}</td>',
        f'<td style="text-align: left">{definition}</td>',
    )
    return f"<tr>{''.join(cells)}</tr>"
