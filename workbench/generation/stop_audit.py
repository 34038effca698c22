"""What stopped and what did not: the stop audit over rollouts, recorded completions, and the files of stock TRL."""

import dataclasses

from ..errors import ParameterError
from .rollouts import Rollout
from .stops import StopRule, StopSpec, trl_finish_reason

# --- stop audit ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class StopReport:
    """What stopped, what TRL would have made of it, and what not stopping cost.

    Attributes:
        rows: completions looked at.
        stopped: of them, ended by a stop.
        trl_stopped: of them, ended by a stop in the eyes of stock TRL 1.12.0; None when it cannot be told.
        engine_disagrees: rows whose engine reported another reason than the ids show; None without engine reasons.
        useful_tokens: up to and with the stop.
        sampled_tokens: computed for them.
        seconds: spent, or None.
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
        """Share of the computed tokens behind an end."""
        return 1 - self.useful_tokens / self.sampled_tokens if self.sampled_tokens else 0.0

    def table(self):
        """The report as a DataFrame, one row a fact."""
        import pandas as pd

        facts = dataclasses.asdict(self) | {
            "clipped_ratio": self.clipped_ratio,
            "trl_clipped_ratio": self.trl_clipped_ratio,
            "wasted": self.wasted,
        }
        return pd.DataFrame({"value": facts})

    def _repr_html_(self) -> str:
        return self.table().to_html(float_format="%.4g")


def stop_report(completions, *, tokenizer=None, stops: StopSpec | None = None, limit: int | None = None, seconds=None):
    """Audit the ends of completions: live rollouts, a recorded `completions.parquet`, or the file that stock TRL wrote.

    Args:
        completions: rollouts, or a DataFrame. A recorded one has `finish_reason` and `trl_finish_reason`; stock TRL's
            has only `completion`, without special tokens, and needs the next three.
        tokenizer: of the run, for stock TRL's file.
        stops: what the run was told to stop at, for stock TRL's file.
        limit: its `max_completion_length`, for stock TRL's file.
        seconds: spent on generation, if known.

    Returns:
        A StopReport. From stock TRL's file a text shorter than the limit counts as stopped, since nothing else ends a
        row early; what TRL made of it is then told from whether a custom stop ends the text. The file has no ids, so
        lengths are those of the text tokenized anew: rows that the policy spelt in other tokens may be misjudged near
        the limit (exact for the search task, off by up to 0.16 in the clipped ratio of the starter at temperature 1).

    Raises:
        ParameterError: nothing to look at, or stock TRL's file without tokenizer and limit.
    """
    if not len(completions):
        raise ParameterError("completions is empty: nothing to report")
    if isinstance(completions[0] if isinstance(completions, list) else None, Rollout):
        if tokenizer is None:
            raise ParameterError("tokenizer: needed to tell what TRL would make of rollouts")
        return _report_rollouts(completions, tokenizer, seconds)
    if "finish_reason" in completions:
        return _report_recorded(completions, seconds)
    if tokenizer is None or limit is None or "completion" not in completions:
        raise ParameterError(
            f"completions has {list(completions.columns)}: without finish_reason it is taken for stock TRL's file, which "
            "needs the column completion and the arguments tokenizer and limit"
        )
    return _report_stock(completions, StopRule(stops or StopSpec(), tokenizer), limit, seconds)


def _report_rollouts(rollouts: list[Rollout], tokenizer, seconds) -> StopReport:
    ends = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    told = [r for r in rollouts if r.engine_finish_reason is not None]
    return StopReport(
        rows=len(rollouts),
        stopped=sum(r.finish_reason == "stop" for r in rollouts),
        trl_stopped=sum(trl_finish_reason(r.completion_ids, *ends) == "stop" for r in rollouts),
        engine_disagrees=sum(r.engine_finish_reason != r.finish_reason for r in told) if told else None,
        useful_tokens=sum(len(r.completion_ids) for r in rollouts),
        sampled_tokens=sum(r.sampled_tokens for r in rollouts),
        seconds=seconds,
    )


def _report_recorded(table, seconds) -> StopReport:
    engine = table.get("engine_finish_reason")
    told = table[engine != ""] if engine is not None else table[:0]
    disagrees = int((told["engine_finish_reason"] != told["finish_reason"]).sum()) if len(told) else None
    useful = int(table["completion_tokens"].sum())
    sampled = table.get("sampled_tokens")
    return StopReport(
        rows=len(table),
        stopped=int((table["finish_reason"] == "stop").sum()),
        trl_stopped=int((table["trl_finish_reason"] == "stop").sum()) if "trl_finish_reason" in table else None,
        engine_disagrees=disagrees,
        useful_tokens=useful,
        sampled_tokens=useful if sampled is None else int(sampled.sum()),
        seconds=seconds,
    )


def _report_stock(table, rule: StopRule, limit: int, seconds) -> StopReport:
    ids = [rule.tokenizer.encode(text, add_special_tokens=False) for text in table["completion"]]
    by_custom = [rule.find(row).stop is not None for row in ids]
    by_eos = [not custom and len(row) < limit for custom, row in zip(by_custom, ids, strict=True)]
    tokens = sum(min(len(row) + eos, limit) for row, eos in zip(ids, by_eos, strict=True))
    return StopReport(len(ids), sum(by_custom) + sum(by_eos), sum(by_eos), None, tokens, tokens, seconds)
