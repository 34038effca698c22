"""Position ids that leave pads uncounted: from a mask, in any model's forward pass, and what a model makes of them."""

import inspect
from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch.utils.hooks import RemovableHandle

from ..errors import ParameterError

_PACKED = ("cu_seq_lens_q", "cu_seqlens", "seq_idx", "max_length_q")


def position_ids(attention_mask: torch.Tensor) -> torch.Tensor:
    """Position of each real token in its own text; pads get 0.

    `attention_mask.cumsum(-1) - 1` alone gives left pads position -1: an index error, or the last entry of a table.

    Args:
        attention_mask: (B, T), 1 = real token.

    Returns:
        (B, T) long.

    Raises:
        ParameterError: a mask of another shape.

    Example:
        >>> position_ids(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]]))
        tensor([[0, 0, 0, 1],
                [0, 1, 2, 0]])
    """
    if attention_mask.dim() != 2:
        raise ParameterError(f"attention_mask has shape {tuple(attention_mask.shape)}: expected (B, T)")
    real = attention_mask.long()
    return (real.cumsum(-1) - 1).masked_fill(real == 0, 0)


def backbone(model: torch.nn.Module):
    """The model under its head, through PEFT, DDP and torch.compile; a model without a head is its own backbone."""
    model = unwrapped(model)
    body = getattr(model, getattr(model, "base_model_prefix", "") or "", model)
    return getattr(body, "_orig_mod", body)


def unwrapped(model: torch.nn.Module):
    model = getattr(model, "_orig_mod", model)  # torch.compile's
    model = getattr(model, "module", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def takes_position_ids(model: torch.nn.Module) -> bool:
    """Say whether forward has a parameter `position_ids` of its own; `**kwargs` that take it and drop it do not count."""
    return "position_ids" in _parameters(unwrapped(model))


def derives_positions(model: torch.nn.Module) -> bool:
    """Say whether the model counts positions itself, from the mask or the ids: giving it others changes nothing or is wrong.

    It is seen by the parts that do it: a position table that takes the mask (OPT), positions made from the ids that
    begin after the pad id (RoBERTa), three-dimensional positions of text and images (Qwen-VL).
    """
    counts = ("get_rope_index", "create_position_ids_from_input_ids", "create_position_ids_from_inputs_embeds")
    for module in backbone(model).modules():
        if any(hasattr(module, name) for name in counts):
            return True
        if isinstance(module, torch.nn.Embedding) and "attention_mask" in _parameters(module):
            return "BioGpt" not in type(module).__name__  # whose model hands it positions that count pads
    return False


def rope_parameters(model: torch.nn.Module) -> list[Mapping]:
    """The rotary parameters in the model's config: one mapping, empty without any, and one per kind of layer."""
    config = text_config(model)
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if not parameters and hasattr(config, "rope_theta"):
        parameters = {"rope_type": "default"}  # of transformers 4, which says so by saying nothing
    return [parameters, *(value for value in parameters.values() if isinstance(value, Mapping))]


def rope_types(model: torch.nn.Module) -> set[str]:
    """The kinds of rotary positions in the model's config (`default`, `yarn`, `dynamic`, ...); empty without any."""
    kinds = (parameters.get("rope_type") or parameters.get("type") for parameters in rope_parameters(model))
    return {kind for kind in kinds if kind}


def window(model: torch.nn.Module) -> int | None:
    """Positions the model has; None where text may be longer (ALiBi, dynamic NTK, no statement in the config)."""
    config = text_config(model)
    if getattr(config, "alibi", False) or "dynamic" in rope_types(model):
        return None
    return getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None)


def text_config(model: torch.nn.Module):
    """The config of the language part."""
    config = unwrapped(model).config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _parameters(module: torch.nn.Module) -> list[str]:
    return list(inspect.signature(type(module).forward).parameters)[1:]


def with_position_ids(model: torch.nn.Module) -> RemovableHandle:
    """Make a model count position ids from the attention mask wherever a caller passes none.

    `with with_position_ids(model): ...` ends with the block; a plain `with_position_ids(model)` lasts until `remove()` of
    the handle. The hook is on the backbone. So it works in PEFT (wrapped before or after), with value heads, and where a
    trainer calls the backbone alone. `save_pretrained` does not save it: call this again after loading.

    The hook does nothing if the caller passes position ids, in cached decoding, for packed inputs, and without a 2-D mask.
    A model that derives its positions itself, or takes none, gets no hook.

    Args:
        model: any transformers model.

    Returns:
        The hook's handle, itself a context manager.
    """
    body = backbone(model)
    if derives_positions(model) or not takes_position_ids(model):
        return RemovableHandle(OrderedDict())  # a handle of nothing
    return body.register_forward_pre_hook(fill_position_ids, with_kwargs=True)


def fills_position_ids(model: torch.nn.Module) -> bool:
    """Say whether the model has the hook of `with_position_ids`."""
    return fill_position_ids in backbone(model)._forward_pre_hooks.values()


def fill_position_ids(module: torch.nn.Module, args: tuple, kwargs: dict):
    """The forward pre-hook that `with_position_ids` installs; at module level, so that such models can be pickled."""
    given = dict(zip(_parameters(module), args, strict=False)) | kwargs if args else kwargs
    mask, past = given.get("attention_mask"), given.get("past_key_values", given.get("cache"))  # transformers 5.24
    if given.get("position_ids") is not None or any(given.get(name) is not None for name in _PACKED):
        return None
    if past is not None and (past.get_seq_length() if hasattr(past, "get_seq_length") else len(past)) > 0:
        return None
    text = given.get("input_ids") if given.get("input_ids") is not None else given.get("inputs_embeds")
    if not isinstance(mask, torch.Tensor) or text is None or mask.shape != text.shape[:2]:
        return None
    if ((mask != 0) & (mask != 1)).any():  # packed rows that number their texts 1, 2, ...; additive masks
        return None
    if args and len(args) > (at := _parameters(module).index("position_ids")):
        return (*args[:at], position_ids(mask), *args[at + 1 :]), kwargs
    return args, kwargs | {"position_ids": position_ids(mask)}
