"""Same tokens, same numbers: batches with padding, position ids that ignore it, log-probs read back without it.

transformers' `generate` derives position ids from the attention mask, its forward pass does not: it counts pads as text.
A model with learned positions then scores left-padded text at other positions than it was sampled at.
"""

import contextlib
from collections.abc import Mapping, Sequence

import torch

from ..errors import ParameterError
from .positions import position_ids, takes_position_ids, text_config, window

SIDES = ("left", "right")
POSITIONS = ("explicit", "implicit")
# Largest difference of a log-prob (nats) that rounding explains, most precise dtype first.
TOLERANCE = {"float32": 1e-4, "float16": 0.05, "bfloat16": 0.25}
MAX_LOGITS = 2**24  # numbers of fp32 logits held at once: 64 MiB


def pad_batch(sequences: Sequence, pad_id: int, side: str = "left", width: int | None = None) -> dict:
    """Pad token sequences to one length, for `model(**batch)`.

    Args:
        sequences: B sequences of token ids (lists or 1-D tensors), none of them empty.
        pad_id: fills the rest; any id does, the mask hides it.
        side: `left` or `right`, where the pads go.
        width: T; default the longest sequence.

    Returns:
        `input_ids` (B, T) and `attention_mask` (B, T), long, 1 = real token.

    Raises:
        ParameterError: no sequences, an empty one, one longer than `width`, no pad id, or an unknown side.

    Example:
        >>> pad_batch([[5, 6, 7], [8]], pad_id=0)
        {'input_ids': tensor([[5, 6, 7],
                [0, 0, 8]]), 'attention_mask': tensor([[1, 1, 1],
                [0, 0, 1]])}
        >>> pad_batch([[5], [8]], pad_id=0, side="right", width=3)["input_ids"]
        tensor([[5, 0, 0],
                [8, 0, 0]])
    """
    if side not in SIDES:
        raise ParameterError(f"side={side!r}: expected one of {', '.join(SIDES)}")
    if pad_id is None:
        raise ParameterError("pad_id=None: expected a token id; without a pad token use the EOS id, the mask hides it")
    rows = [torch.as_tensor(sequence, dtype=torch.long).flatten() for sequence in sequences]
    if not rows:
        raise ParameterError("sequences: the batch is empty; expected at least one sequence of token ids")
    if empty := [n for n, row in enumerate(rows) if not len(row)]:
        raise ParameterError(f"sequences: rows {empty} hold no tokens; leave them out")
    longest = max(len(row) for row in rows)
    width = longest if width is None else width
    if width < longest:
        raise ParameterError(f"width={width}: the longest sequence has {longest} tokens; expected at least that")
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long, device=rows[0].device)
    mask = torch.zeros_like(ids)
    for n, row in enumerate(rows):
        place = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[n, place], mask[n, place] = row, 1
    return {"input_ids": ids, "attention_mask": mask}


def check_batch(batch: Mapping) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch's `input_ids` and `attention_mask`, both (B, T), where padding can be distinguished from text."""
    for name in ("input_ids", "attention_mask"):
        if not isinstance(batch.get(name), torch.Tensor):
            raise ParameterError(f"batch: expected a tensor `{name}`; make one with pad_batch(sequences, pad_id)")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    if ids.dim() != 2 or ids.numel() == 0:
        raise ParameterError(f"input_ids has shape {tuple(ids.shape)}: expected (B, T), at least one row and token")
    if ids.shape != mask.shape:
        raise ParameterError(
            f"attention_mask has shape {tuple(mask.shape)}, input_ids {tuple(ids.shape)}: expected equal"
        )
    if ids.device != mask.device:
        raise ParameterError(f"attention_mask is on {mask.device}, input_ids on {ids.device}: move both to one device")
    if ((mask != 0) & (mask != 1)).any():
        raise ParameterError("attention_mask holds values other than 0 and 1; expected 1 = real token, 0 = pad")
    starts = (mask.long().diff(dim=-1, prepend=mask.new_zeros(len(mask), 1).long()) == 1).sum(-1)
    if rows := (starts == 0).nonzero().flatten().tolist():
        raise ParameterError(f"attention_mask: rows {rows} are pads only; leave them out, they have no log-probs")
    if rows := (starts > 1).nonzero().flatten().tolist():
        raise ParameterError(f"attention_mask: rows {rows} have a hole (0 between 1s); expected one stretch of text")
    return ids, mask


@torch.no_grad()  # not inference_mode: length-dependent RoPE keeps a tensor made here, which training then needs
def token_logprobs(
    model: torch.nn.Module, batch: Mapping, positions: str = "explicit", *, temperature: float = 1.0
) -> list[torch.Tensor]:
    """Compute the log-prob of every real token, given the tokens before it. No gradients are computed.

    Args:
        model: causal language model, bare or in PEFT.
        batch: `input_ids` and `attention_mask`, each (B, T), as `pad_batch` makes them.
        positions: `explicit` passes position ids counted from the mask, to a model whose forward takes them; `implicit`
            passes none, as TRL's GRPO does.
        temperature: logits are divided by it, as in TRL.

    Returns:
        B fp32 tensors. Each has one number less than its row has real tokens, as nothing stands before the first.

    Raises:
        ParameterError: a batch that is empty, or whose `input_ids` and `attention_mask` are missing, of unequal shapes or on
            two devices; a mask with other values than 0 and 1, a row of pads only, or a hole; a model without logits;
            positions beyond the model's window.

    Example: a model that gives every token of its vocabulary of 4 the same probability, 1/4.
        >>> from types import SimpleNamespace
        >>> class Uniform(torch.nn.Linear):
        ...     config = None
        ...     def forward(self, input_ids, attention_mask, use_cache):
        ...         return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 4))
        >>> token_logprobs(Uniform(1, 1), pad_batch([[1, 2, 3], [2, 3]], pad_id=0))
        [tensor([-1.3863, -1.3863]), tensor([-1.3863])]
    """
    if not temperature > 0:
        raise ParameterError(f"temperature={temperature}: expected a positive number")
    inputs = model_inputs(model, batch, positions)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    vocabulary = getattr(text_config(model), "vocab_size", 1)
    rows_at_once = max(1, MAX_LOGITS // (ids.shape[1] * vocabulary))
    found = []
    with evaluating(model):
        for start in range(0, len(ids), rows_at_once):
            rows = slice(start, start + rows_at_once)
            part = {name: x[rows] if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
            logprobs = (logits_of(model, part)[:, :-1].float() / temperature).log_softmax(-1)
            scored = logprobs.gather(-1, ids[rows, 1:, None]).squeeze(-1)
            has_previous = (mask[rows, 1:] * mask[rows, :-1]).bool()
            found += [row[keep] for row, keep in zip(scored, has_previous, strict=True)]
    return found


def model_inputs(model: torch.nn.Module, batch: Mapping, positions: str) -> dict:
    """Return what the model's forward takes for a checked batch, position ids included where they are `explicit`."""
    ids, mask = check_batch(batch)
    inputs = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    if positions not in POSITIONS:
        raise ParameterError(f"positions={positions!r}: expected one of {', '.join(POSITIONS)}")
    if positions == "explicit" and takes_position_ids(model):
        inputs["position_ids"] = position_ids(mask)
    device = next(model.parameters()).device
    if ids.device != device and not hasattr(model, "hf_device_map"):
        raise ParameterError(f"the batch is on {ids.device}, the model on {device}: move the batch to the model")
    used = int(mask.sum(-1).max()) if "position_ids" in inputs else ids.shape[1]
    if (limit := window(model)) and used > limit:
        raise ParameterError(
            f"the batch uses {used} positions, the model's window has {limit}: shorten the text"
            + ("" if "position_ids" in inputs else ", or pad less, or pass positions='explicit'")
        )
    return inputs


def logits_of(model: torch.nn.Module, inputs: Mapping) -> torch.Tensor:
    """The model's logits (B, T, V)."""
    logits = getattr(model(**inputs), "logits", None)
    if logits is None or logits.dim() != 3:
        raise no_logits(model)
    tokens = inputs["input_ids"].shape[1]
    if logits.shape[1] > tokens:
        raise ParameterError(
            f"the model turns {tokens} tokens into {logits.shape[1]}: models that add tokens cannot be scored here"
        )
    return logits


def no_logits(model: torch.nn.Module) -> ParameterError:
    return ParameterError(f"{type(model).__name__} gives no logits per token; load it with AutoModelForCausalLM")


@contextlib.contextmanager
def evaluating(model: torch.nn.Module):
    """Evaluation mode, without dropout, inside the block; then each module has its own mode again."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
