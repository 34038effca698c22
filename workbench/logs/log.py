"""What is known of a run: `Log`, made by `read`."""

import copy
import dataclasses
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from .completions import generations_in_a_row
from .names import PART

# AsyncGRPO compares groups too, but a step may train a part of a group, or several rows of one conversation.
TRAINERS_WITHOUT_GROUPS = ("PPO", "OnlineDPO", "Distillation", "AsyncGRPO")

# Series that rules use, in plain words.
IN_WORDS = {
    "reward": "rewards",
    "loss": "the loss",
    "grad_norm": "gradient norms",
    "kl": "the KL",
    "entropy": "entropies",
    "mean_length": "completion lengths",
    "clipped_ratio": "clipped ratios",
    "zero_std_share": "the share of groups with equal rewards",
    "logp_difference": "sampler against scorer log-probs",
}
# What TRL alone calls so, and what is built on it; a table in a notebook has `Training Loss`.
_TRLS = re.compile(r"(?:train/)?(?:completions ?[/_]|frac_reward_zero_std|rewards ?/.+/ ?mean$|Training Loss$)")
NOT_MISSED = ("loss", "kl")  # a log without them is no poorer


@dataclasses.dataclass(frozen=True, eq=False)
class Log:
    """A run's log under the names of `names.NAMES`.

    Attributes:
        name: of the run, as it is shown.
        kind: what was read, such as `trainer_state.json`.
        steps: one row a logged step, in order; column `step` and those metrics that the log has.
        order: the step numbers as they stood in the file, before they were put in order.
        completions: `step, prompt, completion` and, where known, `reward`, `advantage`, `completion_tokens`,
            `finish_reason`; rows in the order of the file. None where there are none.
        facts: settings that are known: `num_generations`, `max_completion_length`, `mask_truncated_completions`,
            `scale_rewards`, `stop_strings`, `stop_token_ids`, `min_tokens`, `eos_token_ids`, `pad_token_id`,
            `tokenizer_ids`, `tokenizer_file`, `model_type`, `dtype`, `trainer`, ...
        damage: a sentence for each thing that could not be read.
        notes: a sentence for each thing that was left out on purpose.
        lines: the columns of the file under their own names, a row a line; see `raw`.
        step_of_line: the step of each row of `lines` that logs one.
        disputed: metrics that a finding contradicts; `metric` no longer gives them.
        findings: what rules of the audit have found in it.
    """

    name: str
    kind: str
    steps: pd.DataFrame
    order: tuple[float, ...] = ()
    completions: pd.DataFrame | None = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    damage: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lines: pd.DataFrame | None = dataclasses.field(default=None, repr=False)
    step_of_line: pd.Series | None = dataclasses.field(default=None, repr=False)
    disputed: frozenset[str] = frozenset()
    findings: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def metric(self, name: str) -> np.ndarray | None:
        """A metric that the log has and nothing contradicts, (N,) with NaN for steps without it; else None."""
        return None if name in self.disputed else self.logged(name)

    def logged(self, name: str) -> np.ndarray | None:
        """A metric as it was logged, true or not."""
        return self._metrics.get(name)

    def raw(self, name: str) -> pd.Series | None:
        """A series of the file under its own name, such as `critic/vf_loss`: step -> the number that was logged, or None.

        A step without the series is not in it, while a NaN or an infinite number in it was logged as one. A table of CSV has no
        such difference: there an empty cell and a NaN are both missing. Of logs with more than 5,000 lines only the series
        that have a name in `names.NAMES` are kept.
        """
        if self.lines is None or self.step_of_line is None or name not in self.lines:
            return None
        column = self.lines[name].reindex(self.step_of_line.index)
        numbers = pd.to_numeric(column, errors="coerce").astype(float)
        not_finite = self.lines.attrs.get("rows", {}).get(name, ())
        logged = numbers.notna() | column.index.isin(list(not_finite))
        series = pd.Series(numbers[logged].to_numpy(), index=self.step_of_line[logged].to_numpy(), name=name)
        return series if len(series) else None

    @cached_property
    def _metrics(self) -> dict[str, np.ndarray]:
        """The columns with a number in them, (N,) each."""
        columns = {str(name): self.steps[name].to_numpy(float) for name in self.steps}
        return {name: values for name, values in columns.items() if not np.isnan(values).all()}

    def without(self, metrics) -> "Log":
        """The same log, whose `metrics` no other rule may use; what was found and computed before stays."""
        log = copy.copy(self)
        object.__setattr__(log, "disputed", self.disputed | frozenset(metrics))
        return log

    def at(self, chosen) -> tuple[int, ...]:
        """The numbers of the steps where `chosen`, (N,) of bool, holds."""
        return tuple(int(step) for step in self.steps["step"][chosen])

    @property
    def parts(self) -> dict[str, np.ndarray]:
        """Reward function -> its mean at each step, (N,)."""
        return {c.removeprefix(PART): self.steps[c].to_numpy(float) for c in self.steps if c.startswith(PART)}

    @property
    def has(self) -> list[str]:
        """What rules use of this log, in plain words."""
        there = [text for name, text in IN_WORDS.items() if self.logged(name) is not None]
        parts = [f"{len(self.parts)} parts of the reward"] if len(self.parts) > 1 else []
        return there + parts + (["completions"] if self.completions is not None else [])

    @property
    def lacks(self) -> list[str]:
        """What rules ask for that this log does not contain, in plain words."""
        missing = [text for name, text in IN_WORDS.items() if name not in NOT_MISSED and self.logged(name) is None]
        return missing + (["completions"] if self.completions is None else [])

    @property
    def each_step(self) -> bool:
        """Whether every step is known to have a line; else a line may hold means over several."""
        steps = self.steps["step"].to_numpy()
        return not self.facts.get("lines_counted") and (len(steps) < 2 or float(np.median(np.diff(steps))) == 1)

    @property
    def trainer(self) -> str:
        """Its name where settings or metrics tell it, without `Observed`; `TRL` for one of TRL's; else an empty string."""
        known = str(self.facts.get("trainer") or "").removeprefix("Observed")
        return known or ("PPO" if self.logged("eos_tokens") is not None else "TRL" if self._has_trls_names else "")

    @cached_property
    def _has_trls_names(self) -> bool:
        names = [] if self.lines is None else [str(name) for name in self.lines]
        return self.kind == "trainer_state.json" or any(map(_TRLS.match, names))

    @property
    def grouped(self) -> bool:
        """True where the G completions of a prompt lie next to each other, which is not so where a critic is trained."""
        critic = self.logged("value_loss")
        return not self.trainer.startswith(TRAINERS_WITHOUT_GROUPS) and (
            critic is None or not np.nanmax(np.abs(critic))
        )

    @cached_property
    def num_generations(self) -> int | None:
        """G, as configured, or as equal prompts stand in a row in the completions, or as advantages add up to 0; or None."""
        if not self.grouped:
            return None
        if known := self.facts.get("num_generations"):
            return int(known)
        return generations_in_a_row(self.completions) or self._generations_by_advantage()

    def _generations_by_advantage(self) -> int | None:
        """The smallest number of rows in a row, less than a step has, whose advantages add up to 0 throughout."""
        if self.completions is None or not len(self.completions):
            return None
        rows = int(self.completions.groupby("step").size().min())
        return next((size for size in range(2, rows // 2 + 1) if rows % size == 0 and self._balanced(size)), None)

    def _balanced(self, size: int) -> bool:
        table = self.completions
        if table is None or "advantage" not in table or not table["advantage"].any():
            return False
        number = table.groupby("step").cumcount() // size
        sums = table["advantage"].groupby([table["step"], number]).sum()
        return bool((sums.abs() < 0.01).mean() > 0.99)

    @cached_property
    def sure_of_groups(self) -> bool:
        """Whether G is configured, or advantages confirm it: those of a group add up to 0."""
        known, size = self.facts.get("num_generations"), self.num_generations
        return bool(known) or (size is not None and self._balanced(size))

    @cached_property
    def groups(self) -> pd.DataFrame | None:
        """A row a group: `step`, `prompts`, `texts`, `rewards` that differ in it, mean `reward`, whether it is `compared`."""
        table, size = self.completions, self.num_generations
        if table is None or not len(table) or size is None or size < 2:
            return None
        number = table.groupby("step").cumcount() // size
        by_group = table.groupby([table["step"], number.rename("group")])
        columns = {"prompts": by_group["prompt"].nunique(), "texts": by_group["completion"].nunique()}
        if "reward" in table:
            columns["rewards"] = by_group["reward"].nunique()
            columns["reward"] = by_group["reward"].mean()
        if "advantage" in table:  # of an evaluation with one completion a prompt, which TRL writes among them, it is 0
            columns["compared"] = by_group["advantage"].any()
        return pd.DataFrame(columns).reset_index()
