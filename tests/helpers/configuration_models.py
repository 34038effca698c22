"""Tiny models, tokenizers and data with the forms of larger ones: EOS ids, SentencePiece, tool calls, images."""

import functools
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers as hf
import trl
from datasets import Dataset
from PIL import Image
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

from workbench.experiments.recipes import resolve_model
from workbench.experiments.toys.search_task import CLOSE, TOPICS, search_corpus, search_prompts
from workbench.experiments.toys.starter import EOS, PAD
from workbench.generation.preflight import save_policy

CALL, TURN_END, CONTROL = "<search>(.*?)</search>", "<|eot_id|>", "<|python_tag|>"


def search_tokenizer(**options):
    return AutoTokenizer.from_pretrained(resolve_model("search"), padding_side="left", **options)


@functools.cache
def tokenizer():
    """Return the search model's, which nobody changes."""
    return search_tokenizer()


def search_model():
    return AutoModelForCausalLM.from_pretrained(resolve_model("search"), dtype=torch.float32)


@functools.cache
def saved(make: Callable[[Path], object]) -> str:
    """The folder of a model, made once in a process."""
    folder = tempfile.mkdtemp()
    make(Path(folder))
    return folder


# --- tokens ----------------------------------------------------------------------------------------------------------


def llama3_like(folder: Path, token: str = TURN_END, like: str = EOS, eos: tuple[str, ...] = (EOS, TURN_END)) -> None:
    """Save the search model with a second EOS, which the tokenizer does not name.

    It samples `token` as often as `like`: its embeddings are tied, so equal vectors are enough.
    """
    model, tokenizer = search_model(), search_tokenizer()
    if token not in tokenizer.get_vocab():
        tokenizer.add_tokens([hf.AddedToken(token, special=True, normalized=False)])
    save_policy(model, tokenizer, folder)
    with torch.no_grad():
        vectors = model.get_input_embeddings().weight
        new, old = tokenizer.convert_tokens_to_ids([token, like])
        vectors[new] = vectors[old]
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(list(eos))
    model.save_pretrained(folder)


def control_like(folder: Path) -> None:
    """Save the search model with a control token, which is special but none of the tokenizer's special tokens."""
    llama3_like(folder, CONTROL, like="<search", eos=(EOS,))


def qwen25_like(folder: Path) -> None:
    """Save the search model whose pad token ends rows too."""
    llama3_like(folder, PAD, eos=(EOS, PAD))


def llama2_like(folder: Path) -> None:
    """Save a Llama of random weights, which samples mostly bytes, with a SentencePiece tokenizer of the search task."""
    import sentencepiece

    texts = (f"{row['prompt'].strip()} {row['completion']}" for row in search_corpus(400))
    with (folder / "tokenizer.model").open("wb") as file:
        options = {"vocab_size": 420, "model_type": "bpe", "byte_fallback": True, "hard_vocab_limit": False}
        options |= {"pad_id": 3, "sentence_iterator": texts, "model_writer": file, "minloglevel": 2}
        sentencepiece.SentencePieceTrainer.train(**options)
    tokenizer = hf.LlamaTokenizer.from_pretrained(folder, pad_token="<pad>", padding_side="left")
    tokenizer.save_pretrained(folder)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": 1}
    config = hf.LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=256, **shape, **ids)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)


# --- turns: the search model as one that calls tools, in TRL's own loop ----------------------------------------------

TWO_TURNS = {"max_completion_length": 40, "max_tool_calling_iterations": 1, "mask_truncated_completions": True}
# A line of its own for the answer: the tokenizer would join the end of a call and a letter. Calls stand as the model writes
# them; TRL asks for name and arguments of any other.
_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ '\n' }}{% endif %}{{ m['content'] }}"
    "{% for call in m['tool_calls'] or [] %}{% set given = call['function']['arguments'] %}"
    "<search>{{ given['query'] or call['function']['name'] ~ ' ' ~ (given | tojson) }}</search>{% endfor %}"
    "{% if m['role'] == 'assistant' %}END{% else %}{{ '\n' }}{% endif %}{% endfor %}"
)
_FUNCTION = {"name": "search", "arguments": {"query": "{content}"}}
_PARSED = {
    "defaults": {"role": "assistant"},
    "start_anchor": "\n",
    "fields": {"tool_calls": {"open": "<search>", "close_pattern": CLOSE, "repeats": True, "content": "text",
                              "transform": {"type": "function", "function": _FUNCTION}},
               "content": {"close_pattern": r"<\|im_end\|>", "content": "text"}},
}  # fmt: skip


def chat_tokenizer(calls: bool = True, turn_end: str = ""):
    """The search model's tokenizer with a chat template; with `calls` it parses them out of what the model writes.

    Args:
        turn_end: what the template puts behind what the assistant writes: nothing, or EOS as ChatML, Qwen and Llama 3 do.
    """
    tokenizer = search_tokenizer()
    tokenizer.chat_template = _TEMPLATE.replace("END", turn_end)
    if calls:
        tokenizer.response_template = _PARSED
    return tokenizer


def chats() -> Dataset:
    """The search prompts as conversations of one message."""
    return Dataset.from_list([{"prompt": [{"role": "user", "content": r["prompt"].strip()}]} for r in search_prompts()])


def answer_to(query: str) -> str:
    return f"Find facts on {query}?"


def search(query: str) -> str:
    """Look something up.

    Args:
        query: what to look up.

    Returns:
        What is known.
    """
    return answer_to(query)


class Library:
    """An environment with a prompt, a tool and a reward of its own."""

    def reset(self, topic: str, **_) -> str:
        self.topic, self.asked = topic, []
        return f"What is {topic}?"

    def search(self, query: str) -> str:
        self.asked.append(query)
        return answer_to(query)

    def get_reward(self) -> float:
        return float(self.topic in self.asked)


Library.search.__doc__ = search.__doc__  # TRL reads the tool's schema there


def two_turns(prompts, trainer) -> dict:
    """What the model writes, an answer from outside, and what it writes then, with a field for rewards."""
    made = {"prompt_ids": [], "completion_ids": [], "logprobs": None, "env_mask": [], "turns": []}
    for prompt in prompts:
        asked = tokenizer().encode(prompt)
        first = _written(trainer, asked)
        called = re.search(CALL, tokenizer().decode(first))
        answer = tokenizer().encode(f"\n{answer_to(called.group(1))}\n") if called else []
        second = _written(trainer, asked + first + answer) if called else []
        made["prompt_ids"].append(asked)
        made["completion_ids"].append(first + answer + second)
        made["env_mask"].append([1] * len(first) + [0] * len(answer) + [1] * len(second))
        made["turns"].append(2 if called else 1)
    return made


def _written(trainer, ids: list[int]) -> list[int]:
    model, ends = trainer.accelerator.unwrap_model(trainer.model), {"stop_strings": [CLOSE], "tokenizer": tokenizer()}
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), do_sample=True, max_new_tokens=14, **ends)
    return out[0, len(ids) :].tolist()


def rolling_out() -> dict:
    """What `build` needs for a rollout function of two turns."""
    return {"rollout_func": two_turns, "rewards": lambda turns, **_: [n % 2 + number for n, number in enumerate(turns)]}


def turns(text: str) -> list[str]:
    """A row's text at its tool's answer, which is not the policy's: what it wrote before and after."""
    for call in (CALL, r"<search>(.*?<\|im_end\|>)"):  # TRL 1.16 answers one that EOS ended too
        if (called := re.search(call, text)) and (answer := f"\n{answer_to(called.group(1).strip())}\n") in text:
            return text.split(answer)
    return [text]


def ended(ids: list[int]) -> bool:
    """Whether a row's last turn ended: in a call or in EOS."""
    text = turns(tokenizer().decode(ids))[-1]
    return CLOSE in text or text.endswith(EOS)


def calling(**options) -> dict:
    """What `build` needs for tools; the options are those of `chat_tokenizer`."""
    return {"tokenizer": chat_tokenizer(**options), "data": chats(), "tools": [search]}


def in_library(factory=Library, **options) -> dict:
    """What `build` needs for an environment that owns its prompts and rewards."""
    data = Dataset.from_list([{"topic": topic, "environment": "library"} for topic in TOPICS])
    return {"tokenizer": chat_tokenizer(**options), "data": data, "environment_factory": factory, "rewards": None}


# --- images: vision-language models around the search model, with processors made here -------------------------------

_SIDE, _SQUARE = 28, {"height": 28, "width": 28}
_EYES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
_EYES |= {"image_size": _SIDE, "patch_size": 14}
_TEXT = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT |= {"num_key_value_heads": 2, "max_position_embeddings": 512, "eos_token_id": 1, "pad_token_id": 0}
_TEXT |= {"bos_token_id": None}
_TIED = {"tie_word_embeddings": True}
_WITH_IMAGES = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}IMAGE{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% if m['role'] != 'assistant' %}{{ '\n' }}{% endif %}{% endfor %}"
)


def llava():
    tokenizer = _with_tokens(image_token="<image>")
    looks = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    images = hf.CLIPImageProcessorPil(size=_SQUARE, crop_size=_SQUARE)
    processor = hf.LlavaProcessor(images, tokenizer, chat_template=_WITH_IMAGES.replace("IMAGE", "<image>"), **looks)
    text = hf.Qwen2Config(vocab_size=len(tokenizer), **_TIED, **_TEXT)
    at = tokenizer.convert_tokens_to_ids("<image>")
    parts = {"vision_config": hf.CLIPVisionConfig(projection_dim=32, **_EYES), "text_config": text}
    return hf.LlavaConfig(image_token_index=at, vision_feature_layer=-1, **parts, **_TIED), processor


def qwen2_vl():
    names = ("vision_start", "vision_end", "image_pad", "video_pad")
    tokenizer = _with_tokens(**{f"{name}_token": f"<|{name}|>" for name in names})
    images = hf.Qwen2VLImageProcessorPil(patch_size=14, merge_size=2, min_pixels=_SIDE**2, max_pixels=4 * _SIDE**2)
    template = _WITH_IMAGES.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    processor = _WithoutVideos(images, tokenizer, None, chat_template=template)
    ids = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in names}
    ids["image_token_id"], ids["video_token_id"] = ids.pop("image_pad_token_id"), ids.pop("video_pad_token_id")
    rope = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
    text = {"vocab_size": len(tokenizer), "rope_parameters": rope, **_TEXT, **_TIED}
    eyes = {"depth": 2, "embed_dim": 32, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
    return hf.Qwen2VLConfig(text_config=text, vision_config=eyes, **ids, **_TIED), processor


def gemma3():
    tokens = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer = _with_tokens(**tokens)
    template = _WITH_IMAGES.replace("IMAGE", "<start_of_image>")
    processor = hf.Gemma3Processor(hf.Gemma3ImageProcessorPil(size=_SQUARE), tokenizer, template, image_seq_length=4)
    boi, eoi, image = tokenizer.convert_tokens_to_ids(list(tokens.values()))
    ids = {"image_token_index": image, "boi_token_index": boi, "eoi_token_index": eoi}
    text = {"vocab_size": len(tokenizer), "head_dim": 32, "sliding_window": 64, **_TEXT}
    return hf.Gemma3Config(mm_tokens_per_image=4, text_config=text, vision_config=_EYES, **ids), processor


FAMILIES = {"LLaVA": llava, "Qwen2-VL": qwen2_vl, "Gemma 3": gemma3}


class _WithoutVideos(hf.Qwen2VLProcessor):
    """Qwen2-VL's processor without its part for videos, which needs torchvision."""

    def check_argument_for_proper_class(self, argument_name, argument):
        if argument_name != "video_processor":
            return super().check_argument_for_proper_class(argument_name, argument)


def _with_tokens(**tokens: str):
    """The search model's tokenizer with tokens for images, which it has as attributes too."""
    tokenizer = search_tokenizer(extra_special_tokens=tokens)
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens.values())})
    return tokenizer


@functools.cache
def seeing(family: str) -> dict:
    """What `build` needs for a model whose language part is the search model's (Gemma 3: random)."""
    config, processor = FAMILIES[family]()
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    if family != "Gemma 3":
        weights, own = search_model().model.state_dict(), model.model.language_model
        known = weights.pop("embed_tokens.weight")
        own.load_state_dict(weights, strict=False)
        with torch.no_grad():  # tokens that are new are never sampled
            own.embed_tokens.weight.zero_()
            own.embed_tokens.weight[: len(known)] = known
        model.tie_weights()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 1, 0
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    load = functools.partial(AutoModelForImageTextToText.from_pretrained, folder, dtype=torch.float32)
    return {"model": load, "tokenizer": processor}


def not_images(family: str) -> dict:
    """Config fields that keep random weights from sampling a placeholder for an image."""
    tokens = seeing(family)["tokenizer"].tokenizer.added_tokens_decoder
    return {"generation_kwargs": {"suppress_tokens": [i for i, token in tokens.items() if i > 1 and token.special]}}


def pictures() -> Dataset:
    """The search prompts as conversations, each with a picture of noise."""
    noise = np.random.default_rng(0).integers(0, 255, (24, _SIDE, _SIDE, 3), np.uint8)
    rows = zip(chats().select(range(24)), noise, strict=True)
    return Dataset.from_list([row | {"image": Image.fromarray(pixels)} for row, pixels in rows])


# --- subclasses of a user, which override TRL's own methods ------------------------------------------------------------

SHORT = 3  # tokens


def short_ids(trainer, count: int) -> list[list[int]]:
    return [[5 + row, 6, trainer._tokenizer.eos_token_id] for row in range(count)]


def samples_itself(base):
    class Sampler(base):
        def _generate_single_turn(self, prompt_ids, *_, **__):
            rows = short_ids(self, len(prompt_ids))
            return (rows, None) if issubclass(base, trl.GRPOTrainer) else rows

    return Sampler


def cuts_each_turn(base):
    class Cutter(base):
        def _generate_single_turn(self, *args, **kwargs):
            sampled = super()._generate_single_turn(*args, **kwargs)
            if isinstance(sampled, tuple):
                return [row[:SHORT] for row in sampled[0]], sampled[1]
            return [row[:SHORT] for row in sampled]

    return Cutter


def scores_itself(base):
    class Scorer(base):
        def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
            return torch.tensor([[float(len(text))] for text in completions])

    return Scorer


def takes_roots(base):
    class Roots(base):
        def _calculate_rewards(self, *args):
            return super()._calculate_rewards(*args) ** 0.5

    return Roots
