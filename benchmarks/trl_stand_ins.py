"""Tiny models and prompts in the place of those on the hub that TRL's own tests load, for a machine without the hub.

`write_models(FOLDER)` writes a cache that `HF_HOME` names. Architectures are those of the hub's tiny models, weights are
random, the tokenizer is a byte-level BPE of 400 tokens with the chat template that TRL has for the family. Vision models have
no stand-in.
"""

from pathlib import Path

import tokenizers
import transformers
import trl
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

WORDS = ["short", "plain", "clear", "open", "calm", "quick", "even", "small", "bright", "quiet"]
TEXTS = [f"{first.capitalize()} is better than {second}." for first in WORDS for second in WORDS if first < second][:20]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>", "<bos>", "<eos>", "<tool_call>", "</tool_call>"]
SPECIAL += ["<tool_response>", "</tool_response>", "<think>", "</think>"]
SIZE = {"hidden_size": 8, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZE |= {"num_key_value_heads": 2, "head_dim": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
# Name on the hub, without organization and `tiny-` -> model type, TRL's chat template, further fields.
MODELS: dict[str, tuple[str, str, dict]] = {
    "Qwen2ForCausalLM-2.5": ("qwen2", "qwen2_5", {}),
    "Qwen2ForSequenceClassification-2.5": ("qwen2", "qwen2_5", {}),
    "Qwen3ForCausalLM": ("qwen3", "qwen3", {}),
    "Qwen3ForSequenceClassification": ("qwen3", "qwen3", {}),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "qwen3", EXPERTS),
    "LlamaForCausalLM-3.2": ("llama", "llama3_2", {}),
    "LlamaForSequenceClassification-3.2": ("llama", "llama3_2", {}),
    "MistralForCausalLM-0.2": ("mistral", "qwen2_5", {}),
    "Cohere2ForCausalLM": ("cohere2", "cohere2", {}),
    "Gemma2ForCausalLM": ("gemma2", "gemma", {}),
    "Glm4MoeForCausalLM": ("glm4_moe", "glm4moe", {"n_routed_experts": 4, "num_experts_per_tok": 2}),
    "GptOssForCausalLM": ("gpt_oss", "gptoss", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


def tokenizer(template: str):
    """A byte-level BPE with one of TRL's chat templates; its EOS ends a turn, as the hub's do."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=letters, show_progress=False
    )
    bpe.train_from_iterator(TEXTS, trainer)
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    made.chat_template = (Path(trl.__file__).parent / f"chat_templates/{template}.jinja").read_text()
    return made


def write_models(home: Path) -> None:
    """Write each model of `MODELS` as the hub's cache has it, under `home`."""
    for name, (kind, template, fields) in MODELS.items():
        cache = home / f"hub/models--trl-internal-testing--tiny-{name}"
        own = tokenizer(template)
        ids = {"vocab_size": len(own), "eos_token_id": own.eos_token_id, "pad_token_id": own.pad_token_id}
        config = transformers.AutoConfig.for_model(kind, **SIZE | ids | {"bos_token_id": None} | fields)
        causal = "CausalLM" in name
        auto = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForSequenceClassification
        if not causal:
            config.num_labels = 1
        transformers.set_seed(0)
        auto.from_config(config).save_pretrained(cache / "snapshots/0")
        own.save_pretrained(cache / "snapshots/0")
        (cache / "refs").mkdir()
        (cache / "refs/main").write_text("0")


def load_dataset(path: str, name: str, split: str | None = None, streaming: bool = False):
    """Take the place of `datasets.load_dataset` for `trl-internal-testing/zen`: 18 prompts to train on, 2 to test."""
    if path != "trl-internal-testing/zen" or not name.endswith("prompt_only"):
        raise ConnectionError(f"{path}, {name}: no stand-in")
    messages = name.startswith("conversational")
    rows = [{"prompt": [{"role": "user", "content": text}] if messages else text} for text in TEXTS]
    splits = {"train": rows[:18], "test": rows[18:]}
    made = {key: Dataset.from_list(some) for key, some in splits.items()}
    if streaming:
        streams: dict[str, IterableDataset] = {key: some.to_iterable_dataset() for key, some in made.items()}
        return streams[split] if split else IterableDatasetDict(streams)
    return made[split] if split else DatasetDict(made)
