"""Logits of whole batches within a bound of memory, and models in another dtype, for the reports."""

import contextlib
import copy
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import torch
from torch._dynamo import OptimizedModule

from ..errors import ParameterError
from .padding import MAX_LOGITS, evaluating, logits_of, model_inputs, no_logits, pad_batch
from .positions import backbone, unwrapped


@torch.no_grad()  # not inference_mode: length-dependent RoPE keeps a tensor made here, which training then needs
def map_logits(
    model: Any, batch: Mapping, function: Callable, *, positions: str = "explicit", max_logits: int = MAX_LOGITS
) -> list:
    """`function(logits, targets)` over slices of the logits: one pass through the layers, the head in slices.

    A batch stays one batch, because what its rows do to each other is what reports measure. Of a model with a backbone under
    its head at most `max_logits` fp32 logits are held at once. `function` takes the logits of a slice (B, t, V) and the ids
    (B, t) that follow its positions; what follows the last position is no token of the text.
    """
    inputs = model_inputs(model, batch, positions)
    ids = inputs["input_ids"]
    body = backbone(model)
    once = _RunOnce(body.forward, ids.shape[1])
    with evaluating(model), contextlib.ExitStack() as stack:
        if body is not unwrapped(model):
            if getattr(unwrapped(model), "get_output_embeddings", lambda: True)() is None:
                raise no_logits(model)
            stack.enter_context(mock.patch.object(body, "forward", once))
        logits = logits_of(model, inputs)
        step = max(1, max_logits // (len(ids) * logits.shape[-1]))
        targets, results = ids.roll(-1, dims=1), []
        for start in range(0, ids.shape[1], step):
            place = slice(start, start + step)
            if once.output is None:  # no backbone, or one that the model's forward goes round
                part = logits[:, place]
            else:
                once.place = place
                part = logits_of(model, inputs)
            results.append(function(part.float(), targets[:, place]))
    return results


class _RunOnce:
    """Stands in for a backbone's forward: runs it once, then gives the model's own head the positions in `place`."""

    def __init__(self, forward: Callable, tokens: int):
        self.forward, self.tokens = forward, tokens
        self.output: Any = None
        self.place = slice(0, 1)

    def __call__(self, *args: Any, **kwargs: Any):
        if self.output is None:
            self.output = self.forward(*args, **kwargs)
        hidden = self.output[0]
        if hidden.shape[1] != self.tokens:
            raise ParameterError(
                f"the model turns {self.tokens} tokens into {hidden.shape[1]}: models that add tokens cannot be scored here"
            )
        return type(self.output)(last_hidden_state=hidden[:, self.place])


def cast_copy(model: Any, dtype: str):
    """A copy with its parameters in another dtype; buffers stay, as they do when a model is loaded in that dtype.

    What accelerate (mixed precision) and TRL (fused head, head in fp32) put in the place of a `forward` is not copied: it
    computes with the original's weights. No second copy in the model's own dtype is made.
    """
    cast = {}
    for parameter in model.parameters():
        made = parameter.detach().to(getattr(torch, dtype), copy=True)
        cast[id(parameter)] = torch.nn.Parameter(made, requires_grad=parameter.requires_grad)
    made = copy.deepcopy(model, cast)
    for module in made.modules():
        if not isinstance(module, OptimizedModule):  # torch.compile's, which calls what it was made of
            vars(module).pop("forward", None)
            vars(module).pop("_original_forward", None)
    return made


@contextlib.contextmanager
def without_autocast(model: Any):
    """Inside the block the model computes in its weights' dtype, whatever accelerate put around `forward`.

    A model that was trained with `bf16=True`, TRL's default, has fp32 weights and computes in bf16 ever after.
    """
    with contextlib.ExitStack() as stack:
        for module in _autocast_by_accelerate(model):
            stack.enter_context(mock.patch.object(module, "forward", vars(module)["_original_forward"]))
        yield


def computed_dtype(model: Any) -> str:
    """`float32`, `bfloat16`, ...: what the model computes in; accelerate's mixed precision sets it."""
    own = str(next(model.parameters()).dtype).removeprefix("torch.")
    layer = next((module for module in model.modules() if isinstance(module, torch.nn.Linear)), None)
    if layer is None or not _autocast_by_accelerate(model):
        return own
    found: list[str] = []
    with layer.register_forward_hook(lambda *given: found.append(str(given[-1].dtype).removeprefix("torch."))):
        device = next(model.parameters()).device
        map_logits(model, {name: x.to(device) for name, x in pad_batch([[0, 0]], 0).items()}, lambda *_: None)
    return found[0] if found else own


def _autocast_by_accelerate(model: Any) -> list:
    """The modules whose `forward` accelerate has replaced for mixed precision: it keeps the original as `_original_forward`."""
    return [module for module in model.modules() if {"forward", "_original_forward"} <= vars(module).keys()]
