"""Tiny vision-language models around the search model, with processors made here: LLaVA, Qwen2-VL, Gemma 3."""

from pathlib import Path

import numpy as np
import torch
from configuration_turns import chats
from datasets import Dataset
from PIL import Image
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    LlavaConfig,
    LlavaProcessor,
    Qwen2Config,
    Qwen2VLConfig,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
)

from workbench.experiments.recipes import resolve_model

_SIDE = 28
_SQUARE = {"height": _SIDE, "width": _SIDE}
_EYES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
_EYES |= {"image_size": _SIDE, "patch_size": 14}
_IDS = {"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None}
_TEMPLATE = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}IMAGE{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% if m['role'] != 'assistant' %}{{ '\n' }}{% endif %}{% endfor %}"
)


def llava():
    tokenizer = _tokenizer(image_token="<image>")
    looks = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    images = CLIPImageProcessorPil(size=_SQUARE, crop_size=_SQUARE)
    processor = LlavaProcessor(images, tokenizer, chat_template=_TEMPLATE.replace("IMAGE", "<image>"), **looks)
    tied = {"tie_word_embeddings": True}
    text = Qwen2Config(vocab_size=len(tokenizer), max_position_embeddings=512, **tied, **_SHAPE, **_IDS)
    at = tokenizer.convert_tokens_to_ids("<image>")
    parts = {"vision_config": CLIPVisionConfig(projection_dim=32, **_EYES), "text_config": text}
    return LlavaConfig(image_token_index=at, vision_feature_layer=-1, **parts, **tied), processor


def qwen2_vl():
    names = ("vision_start", "vision_end", "image_pad", "video_pad")
    tokenizer = _tokenizer(**{f"{name}_token": f"<|{name}|>" for name in names})
    images = Qwen2VLImageProcessorPil(patch_size=14, merge_size=2, min_pixels=_SIDE**2, max_pixels=4 * _SIDE**2)
    template = _TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    processor = _WithoutVideos(images, tokenizer, None, chat_template=template)
    ids = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in names}
    ids["image_token_id"], ids["video_token_id"] = ids.pop("image_pad_token_id"), ids.pop("video_pad_token_id")
    rope = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
    text = {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "rope_parameters": rope, **_SHAPE, **_IDS}
    eyes = {"depth": 2, "embed_dim": 32, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
    tied = {"tie_word_embeddings": True}
    return Qwen2VLConfig(text_config=text | tied, vision_config=eyes, **ids, **tied), processor


def gemma3():
    tokens = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer = _tokenizer(**tokens)
    template = _TEMPLATE.replace("IMAGE", "<start_of_image>")
    processor = Gemma3Processor(Gemma3ImageProcessorPil(size=_SQUARE), tokenizer, template, image_seq_length=4)
    boi, eoi, image = tokenizer.convert_tokens_to_ids(list(tokens.values()))
    text = {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "head_dim": 32, "sliding_window": 64}
    ids = {"image_token_index": image, "boi_token_index": boi, "eoi_token_index": eoi}
    parts = {"text_config": text | _SHAPE | _IDS, "vision_config": _EYES}
    return Gemma3Config(mm_tokens_per_image=4, **parts, **ids), processor


_SHAPE = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4}
_SHAPE |= {"num_key_value_heads": 2}
FAMILIES = {"LLaVA": llava, "Qwen2-VL": qwen2_vl, "Gemma 3": gemma3}


class _WithoutVideos(Qwen2VLProcessor):
    """Qwen2-VL's processor without its part for videos, which needs torchvision."""

    def check_argument_for_proper_class(self, argument_name, argument):
        if argument_name != "video_processor":
            return super().check_argument_for_proper_class(argument_name, argument)


def _tokenizer(**tokens: str):
    """The search model's tokenizer with tokens for images, which it has as attributes too."""
    path = resolve_model("search")
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left", extra_special_tokens=tokens)
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens.values())})
    return tokenizer


def save_vision_model(family: str, folder: Path):
    """Save a model whose language part is the search model's (Gemma 3: random) to `folder`; returns its processor."""
    config, processor = FAMILIES[family]()
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    if family != "Gemma 3":
        search = AutoModelForCausalLM.from_pretrained(resolve_model("search"), dtype=torch.float32).model
        weights, own = search.state_dict(), model.model.language_model
        known = weights.pop("embed_tokens.weight")
        own.load_state_dict(weights, strict=False)
        with torch.no_grad():  # tokens that are new are never sampled
            own.embed_tokens.weight.zero_()
            own.embed_tokens.weight[: len(known)] = known
        model.tie_weights()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 1, 0
    model.save_pretrained(folder)
    return processor


def load_vision_model(folder: Path):
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)


def pictures() -> Dataset:
    """The search prompts as conversations, each with a picture of noise."""
    noise = np.random.default_rng(0).integers(0, 255, (24, _SIDE, _SIDE, 3), np.uint8)
    rows = zip(chats().select(range(24)), noise, strict=True)
    return Dataset.from_list([row | {"image": Image.fromarray(pixels)} for row, pixels in rows])
