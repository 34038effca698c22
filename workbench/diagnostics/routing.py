"""Which experts a mixture model sends each token to, read from one forward pass and held fixed in another.

For models of transformers whose routers take the top k of a softmax (Mixtral, Qwen-MoE, OLMoE and their kind). A token near
the border of two experts is sent elsewhere by a rounding error, and its log-prob jumps: it is separated from rounding itself by
scoring again with the other pass's choices ("routing replay").
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import ParameterError


def routers(model: Any) -> list:
    """The model's routers, in the order of its layers; empty for a dense model."""
    return [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]


@contextlib.contextmanager
def routing(model: Any, forced: Sequence | None = None):
    """While open, the experts that each router takes are added to the list that it yields, layer after layer.

    Args:
        model: whose routers return logits (t, E), scores (t, k) and experts (t, k) of t tokens.
        forced: of each router's call the experts to take instead, (t, k); a row of -1 leaves a token its own.

    Raises:
        ParameterError: a router of another kind, which cannot be made to take other experts.
    """
    taken: list[torch.Tensor] = []

    def hook(module, inputs, output):
        logits, scores, own = output
        taken.append(own)
        if forced is None:
            return None
        chosen = torch.as_tensor(forced[len(taken) - 1], device=own.device, dtype=own.dtype)
        return logits, *_reweighted(module, logits, scores, own, torch.where(chosen < 0, own, chosen))

    hooks = [router.register_forward_hook(hook) for router in routers(model)]
    try:
        yield taken
    finally:
        for handle in hooks:
            handle.remove()


def _reweighted(module, logits, scores, own, chosen) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and experts of a router that takes `chosen`, by the rule that gave `scores` to its own."""
    probs = logits.float().softmax(-1)
    for rule in (lambda p: p, lambda p: p / p.sum(-1, keepdim=True)):
        if torch.allclose(rule(probs.gather(-1, own)), scores.float(), atol=1e-2):
            return rule(probs.gather(-1, chosen)).to(scores.dtype), chosen
    raise ParameterError(f"{type(module).__name__}: its scores are no softmax over experts; leave the routing out")
