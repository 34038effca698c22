"""One small model per family, with random weights, to see what padding does to each kind of position."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ...errors import ParameterError

VOCAB, WINDOW = 128, 128
_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GLU = _COMMON | {"intermediate_size": 128, "num_key_value_heads": 2, "max_position_embeddings": WINDOW}
_NEO = {
    "attention_types": [[["global", "local", "global"], 1]],
    "num_layers": 3,
    "window_size": 8,
    "max_position_embeddings": WINDOW,
}
_DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
_LONG = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
# name -> model type and config as transformers has them, in names that transformers 4 and 5 both read
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _GLU),
    "qwen2": ("qwen2", _GLU),
    "qwen3": ("qwen3", _GLU | {"head_dim": 16}),
    "mistral, sliding window": ("mistral", _GLU | {"sliding_window": 8}),
    "gemma2": ("gemma2", _GLU | {"head_dim": 16, "sliding_window": 8}),
    "gemma3": ("gemma3_text", _GLU | {"head_dim": 16, "sliding_window": 8}),
    "phi": ("phi", _GLU),
    "gpt_neox": ("gpt_neox", _GLU),
    "gptj": ("gptj", _COMMON | {"rotary_dim": 8, "n_positions": WINDOW}),
    "falcon, rope": ("falcon", _COMMON | {"alibi": False}),
    "opt": ("opt", _COMMON | {"ffn_dim": 128, "word_embed_proj_dim": 64, "max_position_embeddings": WINDOW}),
    "gpt2": ("gpt2", _COMMON | {"n_positions": WINDOW}),
    "gpt_neo": ("gpt_neo", _COMMON | _NEO),
    "gpt_bigcode": ("gpt_bigcode", _COMMON | {"n_positions": WINDOW}),
    "llama, dynamic NTK": ("llama", _GLU | {"max_position_embeddings": 32, "rope_scaling": _DYNAMIC}),
    "phi3, longrope": ("phi3", _GLU | {"original_max_position_embeddings": 32, "rope_scaling": _LONG}),
    "bloom": ("bloom", _COMMON),
    "mpt": ("mpt", _COMMON | {"max_seq_len": WINDOW}),
    "falcon, alibi": ("falcon", _COMMON | {"alibi": True}),
}


def family_model(name: str, auto: Any = AutoModelForCausalLM, **fields):
    """A family's model in fp32 and evaluation mode, its weights large enough that positions matter; `fields` of its config."""
    if name not in FAMILIES:
        raise ParameterError(f"name={name!r}: expected one of {', '.join(FAMILIES)}")
    kind, own = FAMILIES[name]
    config = AutoConfig.for_model(kind, **own | fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = auto.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = 0.15 * torch.randn_like(parameter)
                parameter.copy_(noise if parameter.dim() > 1 else parameter + noise)
    return model.eval()


def random_texts(*lengths: int) -> list[list[int]]:
    """Token ids of these lengths, without special tokens; the same at each call."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in lengths]
