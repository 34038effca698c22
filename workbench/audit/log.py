"""What the audit knows of a run: `Log`, made by the readers, and asked by the rules."""

import dataclasses
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

TRAINERS_WITHOUT_GROUPS = ("PPO", "OnlineDPO")


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
        facts: settings that are known: `num_generations`, `max_completion_length`, `learning_rate`, `mask_truncated`,
            `stop_strings`, `stop_token_ids`, `eos_token_ids`, `tokenizer_ids`, `model_type`, `dtype`, `trainer`, ...
        damage: a sentence for each thing that could not be read.
        disputed: metrics that a finding contradicts; `metric` no longer gives them.
    """

    name: str
    kind: str
    steps: pd.DataFrame
    order: tuple[float, ...] = ()
    completions: pd.DataFrame | None = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    damage: tuple[str, ...] = ()
    disputed: frozenset[str] = frozenset()

    def metric(self, name: str) -> np.ndarray | None:
        """A metric that the log has and nothing contradicts, (N,) with NaN for steps without it; else None."""
        return None if name in self.disputed else self.logged(name)

    def logged(self, name: str) -> np.ndarray | None:
        """A metric as it was logged, true or not."""
        if name not in self.steps or self.steps[name].isna().all():
            return None
        return self.steps[name].to_numpy(float)

    def without(self, metrics) -> "Log":
        """The same log, whose `metrics` no other rule may use."""
        return dataclasses.replace(self, disputed=self.disputed | frozenset(metrics))

    def at(self, chosen) -> tuple[int, ...]:
        """The numbers of the steps where `chosen`, (N,) of bool, holds."""
        return tuple(int(step) for step in self.steps["step"][chosen])

    @property
    def lacks(self) -> list[str]:
        """What rules ask for that this log does not contain, in plain words."""
        wanted = {
            "reward": "rewards",
            "grad_norm": "gradient norms",
            "entropy": "entropies",
            "clipped_ratio": "clipped ratios",
            "mean_length": "completion lengths",
            "zero_std_share": "the share of groups with equal rewards",
            "logp_difference": "sampler against scorer log-probs",
        }
        missing = [words for name, words in wanted.items() if self.logged(name) is None]
        return missing + (["completions"] if self.completions is None else [])

    @property
    def grouped(self) -> bool:
        """Whether the trainer compares completions of one prompt."""
        return not str(self.facts.get("trainer", "")).removeprefix("Observed").startswith(TRAINERS_WITHOUT_GROUPS)

    @cached_property
    def num_generations(self) -> int | None:
        """G, as configured or else as equal prompts stand in a row in the completions; None where neither tells."""
        if not self.grouped:
            return None
        if known := self.facts.get("num_generations"):
            return int(known)
        table = self.completions
        if table is None or not len(table):
            return None
        new_step = (table["step"] != table["step"].shift()).to_numpy()
        starts = np.flatnonzero(new_step | (table["prompt"] != table["prompt"].shift()).to_numpy())
        lengths = np.diff([*starts, len(table)])
        whole = ~np.append(new_step[starts[1:]], True)  # the last rows of a step may be cut short
        size = math.gcd(*map(int, lengths[whole] if whole.any() else lengths))
        return size if size > 1 else None

    @cached_property
    def sure_of_groups(self) -> bool:
        """Whether G is configured, or advantages confirm it: those of a group add up to 0."""
        if self.facts.get("num_generations"):
            return True
        table, size = self.completions, self.num_generations
        if table is None or size is None or "advantage" not in table or not table["advantage"].any():
            return False
        number = table.groupby("step").cumcount() // size
        sums = table["advantage"].groupby([table["step"], number]).sum()
        return bool((sums.abs() < 0.01).mean() > 0.99)

    @cached_property
    def groups(self) -> pd.DataFrame | None:
        """A row a group: `step`, `prompts` and `texts` that differ in it, `rewards` that differ, `best` reward."""
        table, size = self.completions, self.num_generations
        if table is None or not len(table) or size is None or size < 2:
            return None
        number = table.groupby("step").cumcount() // size
        by_group = table.groupby([table["step"], number.rename("group")])
        columns = {"rows": by_group.size(), "prompts": by_group["prompt"].nunique()}
        columns["texts"] = by_group["completion"].nunique()
        if "reward" in table:
            columns |= {"rewards": by_group["reward"].nunique(), "best": by_group["reward"].max()}
        return pd.DataFrame(columns).reset_index()
