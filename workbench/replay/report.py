"""What `check_step` found: a table of stages, and the tokens of one completion through all of them."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ..errors import ParameterError

VERDICTS = ("same", "rounding", "different", "cannot tell", "meant")
_COLOURS = {
    "same": "#1a7f37",
    "rounding": "#57606a",
    "different": "#b42318",
    "cannot tell": "#8a6d00",
    "meant": "#0550ae",
}
STAGES = (
    "sampling",
    "ends",
    "turns",
    "mask",
    "rewards",
    "advantages",
    "batches",
    "log-probs",
    "reference",
    "mismatch",
    "ratios",
    "correction",
    "loss",
    "gradient",
    "update",
    "metrics",
)


@dataclass(frozen=True)
class Stage:
    """One stage of a step: what the trainer used against what its definition gives from the stage before."""

    name: str
    verdict: str  # one of VERDICTS
    cause: str = ""  # a sentence; with the setting that makes it so where there is one
    largest: float | None = None  # difference, in the stage's own unit
    where: str = ""  # rows and tokens


@dataclass(frozen=True)
class CheckedRow:
    """One completion as the loss took it: its tokens and, for each, what the stages gave. Arrays (T,)."""

    prompt_ids: list[int]
    completion_ids: list[int]
    texts: list[str]  # of each token
    mask: np.ndarray
    advantage: Any  # a number, or (T,)
    logps: np.ndarray  # the trainer's
    alone: np.ndarray  # of the row alone, without padding
    ratios: np.ndarray
    slopes: np.ndarray  # by which each token's log-prob moves the loss


@dataclass(frozen=True)
class StepReport:
    """The stages of one training step in their order, each with a verdict.

    Shown as a table; in a notebook with the completions under it, each token with its share of the gradient.
    """

    stages: Sequence[Stage]
    rows: Sequence[CheckedRow]

    @property
    def first(self) -> Stage | None:
        """The first stage that is different, None where none is."""
        return next((stage for stage in self.stages if stage.verdict == "different"), None)

    def with_meant(self, names: Sequence[str]) -> "StepReport":
        """The same report, in which a stage with one of these names that is `different` is `meant`, and not `first`."""
        stages = [
            replace(stage, verdict="meant") if stage.name in names and stage.verdict == "different" else stage
            for stage in self.stages
        ]
        return StepReport(stages, self.rows)

    def __getitem__(self, name: str) -> Stage:
        return {stage.name: stage for stage in self.stages}[name]

    def table(self) -> pd.DataFrame:
        """Stage, verdict, largest difference, where, cause."""
        return pd.DataFrame([vars(stage) for stage in self.stages]).rename(columns={"name": "stage"})

    def tokens(self, row: int = 0) -> pd.DataFrame:
        """The tokens of one completion through all stages: a line each.

        Args:
            row: in the order in which the loss took them.

        Returns:
            Columns `token`, `id`, `mask`, `advantage`, `logp` (the trainer's), `logp_alone`, `ratio`, and `gradient`, this
            token's share of the sum of all absolute slopes of the step.
        """
        r = self.rows[row]
        total = sum(float(np.abs(other.slopes).sum()) for other in self.rows) or 1.0
        columns: dict[str, Any] = {"token": r.texts, "id": r.completion_ids, "mask": r.mask, "advantage": r.advantage}
        columns |= {"logp": r.logps, "logp_alone": r.alone, "ratio": r.ratios, "gradient": -r.slopes / total}
        return pd.DataFrame(columns)

    def __str__(self) -> str:
        width = max(len(stage.name) for stage in self.stages)
        return "\n".join(f"{s.name:<{width}}  {s.verdict:<11}  {s.cause}".rstrip() for s in self.stages)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<table>{''.join(map(_stage_line, self.stages))}</table>" + "".join(
            map(self._row_html, range(len(self.rows)))
        )

    def _row_html(self, row: int) -> str:
        """A completion whose tokens are shaded by their share: blue for more probable, red for less, struck out: no loss."""
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
            colour = "26, 94, 184" if share > 0 else "180, 35, 24"
            style = f"background: rgba({colour}, {min(abs(share) / strongest, 1) * 0.6:.2f})"
            style += "" if mask else "; text-decoration: line-through; color: #888"
            spans.append(f'<span style="{style}" title="{share:+.2%} of the gradient">{html.escape(token)}</span>')
        advantages = np.atleast_1d(self.rows[row].advantage)
        head = f"Completion {row}, advantage {advantages.mean() if len(advantages) else 0.0:+.2f}"
        head += " in the mean of its tokens" if len(advantages) > 1 else ""
        return f'<p>{head}<br><code style="white-space: pre-wrap">{"".join(spans)}</code></p>'


def check_meant(names: Sequence[str]) -> tuple[str, ...]:
    """The names of stages that a user means to differ, a single one in a tuple.

    Raises:
        ParameterError: a name that is no stage's.

    Example:
        >>> check_meant("rewards")
        ('rewards',)
    """
    names = (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        if name not in STAGES:
            raise ParameterError(f"meant: {name!r} is no stage of a step; the stages are {', '.join(STAGES)}")
    return names


def _stage_line(stage: Stage) -> str:
    cells = (
        f"<td>{html.escape(stage.name)}</td>",
        f'<td style="color: {_COLOURS[stage.verdict]}; white-space: nowrap"><b>{stage.verdict}</b></td>',
        f'<td style="text-align: left">{html.escape(stage.cause)}</td>',
    )
    return f"<tr>{''.join(cells)}</tr>"
