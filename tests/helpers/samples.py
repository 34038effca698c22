"""Rows of a tiny model that a test needs: looked for over seeds, since what a model samples depends on how it was trained."""

from collections.abc import Callable
from typing import TypeVar

import torch

Made = TypeVar("Made")
TRIES = 30


def until_seen(make: Callable[[int], Made], seen: Callable[[Made], bool], *, tries: int = TRIES) -> Made:
    """`make(seed)` of the first seed for which `seen` holds.

    A condition that holds of one in five samples is missed by `TRIES` of them once in a thousand models.
    """
    for seed in range(tries):
        if seen(made := make(seed)):
            return made
    raise AssertionError(f"seeds 0 to {tries - 1}: none samples the rows that this test is about")


@torch.no_grad()
def text_logprob(model, prompt_ids: list[int], completion_ids: list[int]) -> float:
    """Log-probability of a completion under the model, in nats, scored alone and without pads."""
    model.eval()
    logits = model(input_ids=torch.tensor([[*prompt_ids, *completion_ids]])).logits[0, len(prompt_ids) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(completion_ids)[:, None]).sum().item()
