"""Instruments of the notebook on what GRPO's loss is divided by: the divisor of TRL 1.8, a reward, the loss by hand."""

from collections.abc import Callable, Sequence

import pandas as pd
import torch

from ...training.rewards import described
from ..arms import ObservedGRPOTrainer


class OldDivisorGRPOTrainer(ObservedGRPOTrainer):
    """Stock GRPO with the divisor that `dapo`, `cispo` and `vespo` had up to TRL 1.8.0.

    It is the number of all sampled tokens of a generation batch: those that `mask_truncated_completions` leaves out too, and
    whether or not an update sums over as many batches. TRL counts what is in the loss since 1.9.0. Since 1.9.1 it multiplies
    that by `gradient_accumulation_steps / steps_per_generation`; here the factor is taken out again.
    """

    def _generate(self, prompts: list):
        generated = super()._generate(prompts)
        self._sampled = float(sum(len(row) for row in generated[1]))
        return generated

    def _generate_and_score_completions(self, inputs: list):
        output = super()._generate_and_score_completions(inputs)
        windows = self.args.steps_per_generation / self.args.gradient_accumulation_steps
        kept = output["num_items_in_batch"]
        output["num_items_in_batch"] = torch.full_like(kept, self._sampled * windows, dtype=torch.float)
        return output


def contains_reward(column: str) -> Callable[..., list[float]]:
    """A reward of 1 for a completion that contains the text of the data set's column, else 0.

    Example:
        >>> contains_reward("answer")(["so: 42 it is", "41"], answer=["42", "42"])
        [1.0, 0.0]
    """

    @described(unit="share of right completions", lowest=0, highest=1, column=column)
    def contains(completions: Sequence[str], **columns) -> list[float]:
        return [float(wanted in text) for text, wanted in zip(completions, columns[column], strict=True)]

    return contains


def token_mean_loss(completions: pd.DataFrame) -> pd.Series:
    """The value of the `dapo` loss where every ratio is 1: minus the mean advantage of a token, for each step of a run.

    Example:
        >>> rows = pd.DataFrame({"step": [1, 1], "advantage": [1.0, -1.0], "completion_tokens": [6, 2]})
        >>> token_mean_loss(rows).tolist()
        [-0.5]
    """
    weighted = completions["advantage"] * completions["completion_tokens"]
    steps = completions["step"]
    return -weighted.groupby(steps).sum() / completions["completion_tokens"].groupby(steps).sum()
