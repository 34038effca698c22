"""Texts, tiny models and reference scores that the tests of consistency share."""

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from workbench.experiments.toys.families import family_model as tiny
from workbench.experiments.toys.families import random_texts as some_texts

__all__ = ["TEXTS", "by_hand", "furthest", "in_mixed_precision", "ones", "some_texts", "tiny"]
TEXTS = some_texts(24, 17, 9)


def by_hand(model, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probs of a text, alone and unpadded, by the plain forward pass."""
    with torch.no_grad():
        logprobs = (model(input_ids=torch.tensor([ids])).logits[0].float() / temperature).log_softmax(-1)
    return logprobs[:-1].gather(-1, torch.tensor(ids[1:]).unsqueeze(-1)).squeeze(-1)


def in_mixed_precision(model):
    """The model as a trainer with `bf16=True` leaves it: fp32 weights, and a forward pass under autocast."""
    AcceleratorState._reset_state(reset_partial_state=True)  # as transformers' trainers do, of those before
    prepared = Accelerator(mixed_precision="bf16", cpu=True).prepare_model(model)
    AcceleratorState._reset_state(reset_partial_state=True)
    return prepared


def furthest(rows, others) -> float:
    return max((a - b).abs().max().item() for a, b in zip(rows, others, strict=True))


def ones(*shape, device="cpu"):
    return torch.ones(shape, dtype=torch.long, device=device)
