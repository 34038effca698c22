"""What stopped and what did not, of rollouts or of recorded completions."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..errors import ParameterError
from ..generation.sampling import Rollout
from ..generation.stops import trl_finish_reason


@dataclasses.dataclass(frozen=True)
class StopReport:
    """How many completions stopped, how many TRL counts as stopped, and the tokens that were wasted.

    Attributes:
        rows: completions counted.
        stopped: of them, ended by a stop.
        trl_stopped: of them, ended by a stop as stock TRL 1.12.0 counts; None when that is not known.
        engine_disagrees: rows whose `engine_finish_reason` is not what the ids show; None where no row has one.
        useful_tokens: up to and with the stop.
        sampled_tokens: computed for them.

    Example: of four rows TRL counts two as stopped, one in truth ran into the limit; a quarter of the work was for nothing.
        >>> report = StopReport(4, 3, 2, None, useful_tokens=30, sampled_tokens=40)
        >>> report.clipped_ratio, report.trl_clipped_ratio, report.wasted
        (0.25, 0.5, 0.25)
    """

    rows: int
    stopped: int
    trl_stopped: int | None
    engine_disagrees: int | None
    useful_tokens: int
    sampled_tokens: int

    @property
    def clipped_ratio(self) -> float:
        """Share of rows that really ran into the length limit."""
        return 1 - self.stopped / self.rows

    @property
    def trl_clipped_ratio(self) -> float | None:
        """The share that stock TRL logs as `completions/clipped_ratio`."""
        return None if self.trl_stopped is None else 1 - self.trl_stopped / self.rows

    @property
    def wasted(self) -> float:
        """Share of the computed tokens that come after an end."""
        return 1 - self.useful_tokens / self.sampled_tokens if self.sampled_tokens else 0.0

    def table(self) -> pd.DataFrame:
        """The report as a DataFrame, one row a fact."""
        shares = {name: getattr(self, name) for name in ("clipped_ratio", "trl_clipped_ratio", "wasted")}
        return pd.DataFrame({"value": dataclasses.asdict(self) | shares})

    def _repr_html_(self) -> str:
        return self.table().to_html(float_format="%.4g")


def stop_report(completions: Sequence[Rollout] | pd.DataFrame, *, tokenizer: Any = None) -> StopReport:
    """Count why completions ended, what stock TRL would log, and the share of wasted tokens.

    Args:
        completions: rollouts, or recorded completions as a DataFrame with `finish_reason` and `completion_tokens`, where known
            also `trl_finish_reason`, `engine_finish_reason` and `sampled_tokens`. `workbench audit` reads stock TRL's files.
        tokenizer: of rollouts.

    Raises:
        ParameterError: no completions, rollouts without tokenizer, or a table without `finish_reason`.

    Example: two rows stopped; TRL takes the first for cut, because a custom stop ended it.
        >>> reasons = {"finish_reason": ["stop", "stop"], "trl_finish_reason": ["length", "stop"]}
        >>> report = stop_report(pd.DataFrame(reasons | {"completion_tokens": [3, 5], "sampled_tokens": [5, 5]}))
        >>> report.clipped_ratio, report.trl_clipped_ratio, report.useful_tokens, report.sampled_tokens
        (0.0, 0.5, 8, 10)
    """
    if not len(completions):
        raise ParameterError("completions is empty: nothing to report")
    table = completions
    if not isinstance(table, pd.DataFrame):
        if tokenizer is None:
            raise ParameterError("tokenizer: needed to tell what TRL would make of rollouts")
        table = _ends_of_rollouts(table, tokenizer)
    elif "finish_reason" not in table:
        raise ParameterError(f"completions has {list(table.columns)}: expected the columns of a recorded run")
    # Runs recorded long ago lack all columns but `finish_reason` and `completion_tokens`.
    known = table[table["engine_finish_reason"] != ""] if "engine_finish_reason" in table else table[:0]
    return StopReport(
        rows=len(table),
        stopped=int((table["finish_reason"] == "stop").sum()),
        trl_stopped=int((table["trl_finish_reason"] == "stop").sum()) if "trl_finish_reason" in table else None,
        engine_disagrees=int((known["engine_finish_reason"] != known["finish_reason"]).sum()) if len(known) else None,
        useful_tokens=int(table["completion_tokens"].sum()),
        sampled_tokens=int(table.get("sampled_tokens", table["completion_tokens"]).sum()),
    )


def _ends_of_rollouts(rollouts: Sequence[Rollout], tokenizer: Any) -> pd.DataFrame:
    """Rollouts as the columns that a run records."""
    table = pd.DataFrame([vars(rollout) for rollout in rollouts])
    special = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    return table.assign(
        trl_finish_reason=[trl_finish_reason(ids, *special) for ids in table["completion_ids"]],
        engine_finish_reason=table["engine_finish_reason"].fillna(""),
        completion_tokens=table["completion_ids"].map(len),
    )
