"""What stopped and what did not: the stop audit over rollouts, recorded completions, and the files of stock TRL."""

import dataclasses
from collections.abc import Sequence

import pandas as pd

from ..errors import ParameterError
from ..generation.sampling import Rollout
from ..generation.stops import StopRule, StopSpec, trl_finish_reason


@dataclasses.dataclass(frozen=True)
class StopReport:
    """What stopped, what TRL would have made of it, and what not stopping cost.

    Attributes:
        rows: completions looked at.
        stopped: of them, ended by a stop.
        trl_stopped: of them, ended by a stop as stock TRL 1.12.0 counts; None when that is not known.
        engine_disagrees: rows whose `engine_finish_reason` is not what the ids show; None where no row has one.
        useful_tokens: up to and with the stop.
        sampled_tokens: computed for them.
        seconds: spent, or None.

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
    seconds: float | None = None

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


def stop_report(
    completions: Sequence[Rollout] | pd.DataFrame,
    *,
    tokenizer=None,
    stops: StopSpec | None = None,
    limit: int | None = None,
    seconds: float | None = None,
) -> StopReport:
    """Audit the ends of completions: live rollouts, a recorded `completions.parquet`, or the file that stock TRL wrote.

    Args:
        completions: rollouts, or a DataFrame. A recorded one has `finish_reason` and `completion_tokens`, where known also
            `trl_finish_reason`, `engine_finish_reason` and `sampled_tokens`; stock TRL's has only `completion`, without
            special tokens, and needs the next three.
        tokenizer: of the run, for rollouts and stock TRL's file.
        stops: at what the run stopped, for stock TRL's file.
        limit: its `max_completion_length`, for stock TRL's file.
        seconds: spent on generation, if known.

    Returns:
        A StopReport. From stock TRL's file a text shorter than the limit counts as stopped, since nothing else ends a
        row early; TRL counts it as stopped unless a custom stop ends the text. The file has no ids, so lengths are those
        of the text tokenized again: rows that the policy wrote in other tokens may be misjudged near the limit (exact for
        the search task, off by up to 0.16 in the clipped ratio of the starter at temperature 1).

    Raises:
        ParameterError: nothing to look at, rollouts without tokenizer, or stock TRL's file without tokenizer and limit.

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
        if tokenizer is None or limit is None or "completion" not in table:
            raise ParameterError(
                f"completions has {list(table.columns)}: without finish_reason it is taken for stock TRL's file, "
                "which needs the column completion and the arguments tokenizer and limit"
            )
        table = _ends_of_texts(table["completion"], StopRule(stops or StopSpec(), tokenizer), limit)
    # Runs recorded long ago lack all columns but `finish_reason` and `completion_tokens`.
    known = table[table["engine_finish_reason"] != ""] if "engine_finish_reason" in table else table[:0]
    return StopReport(
        rows=len(table),
        stopped=int((table["finish_reason"] == "stop").sum()),
        trl_stopped=int((table["trl_finish_reason"] == "stop").sum()) if "trl_finish_reason" in table else None,
        engine_disagrees=int((known["engine_finish_reason"] != known["finish_reason"]).sum()) if len(known) else None,
        useful_tokens=int(table["completion_tokens"].sum()),
        sampled_tokens=int(table.get("sampled_tokens", table["completion_tokens"]).sum()),
        seconds=seconds,
    )


def _ends_of_rollouts(rollouts: Sequence[Rollout], tokenizer) -> pd.DataFrame:
    """Rollouts as the columns that a run records."""
    table = pd.DataFrame([vars(rollout) for rollout in rollouts])
    special = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    return table.assign(
        trl_finish_reason=[trl_finish_reason(ids, *special) for ids in table["completion_ids"]],
        engine_finish_reason=table["engine_finish_reason"].fillna(""),
        completion_tokens=table["completion_ids"].map(len),
    )


def _ends_of_texts(texts: Sequence[str], rule: StopRule, limit: int) -> pd.DataFrame:
    """Stock TRL's texts as the columns that a run records; the EOS that TRL left out of a text counts as a token."""
    ids = [rule.tokenizer.encode(text, add_special_tokens=False) for text in texts]
    tokens = pd.Series([len(row) for row in ids])
    by_custom = pd.Series([rule.find_end(row).stop is not None for row in ids])
    by_eos = ~by_custom & (tokens < limit)
    reason = {True: "stop", False: "length"}
    return pd.DataFrame(
        {
            "finish_reason": (by_custom | by_eos).map(reason),
            "trl_finish_reason": by_eos.map(reason),
            "completion_tokens": (tokens + by_eos).clip(upper=limit),
        }
    )
