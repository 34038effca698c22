"""Tiny models with the token arrangements of larger ones: Llama-3's and Qwen2.5's EOS ids, Llama-2's SentencePiece."""

from pathlib import Path

import torch
from transformers import AddedToken, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaTokenizer

from workbench.experiments.recipes import resolve_model
from workbench.experiments.toys.search_task import search_corpus
from workbench.experiments.toys.starter import EOS, PAD
from workbench.generation.preflight import save_policy

TURN_END, CONTROL = "<|eot_id|>", "<|python_tag|>"


def llama3_like(folder: Path) -> Path:
    """The search model with a second EOS, which the tokenizer does not name."""
    return _search_model(folder, TURN_END, like=EOS, eos=(EOS, TURN_END))


def control_like(folder: Path) -> Path:
    """The search model with a control token, which is special but none of the tokenizer's special tokens."""
    return _search_model(folder, CONTROL, like="<search", eos=(EOS,))


def qwen25_like(folder: Path) -> Path:
    """The search model whose pad token ends rows too."""
    return _search_model(folder, PAD, like=EOS, eos=(EOS, PAD))


def _search_model(folder: Path, token: str, like: str, eos: tuple[str, ...]) -> Path:
    """The search model that samples `token` as often as `like`: its embeddings are tied, so equal vectors are enough."""
    model = AutoModelForCausalLM.from_pretrained(resolve_model("search"))
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("search"))
    if token not in tokenizer.get_vocab():
        tokenizer.add_tokens([AddedToken(token, special=True, normalized=False)])
    save_policy(model, tokenizer, folder)
    with torch.no_grad():
        vectors = model.get_input_embeddings().weight
        new, old = tokenizer.convert_tokens_to_ids([token, like])
        vectors[new] = vectors[old]
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(list(eos))
    model.save_pretrained(folder)
    return folder


def llama2_like(folder: Path) -> Path:
    """A Llama of random weights, which samples mostly bytes, with a SentencePiece tokenizer trained on the search task."""
    import sentencepiece

    folder.mkdir(parents=True, exist_ok=True)
    texts = (f"{row['prompt'].strip()} {row['completion']}" for row in search_corpus(400))
    with (folder / "tokenizer.model").open("wb") as file:
        options = {"vocab_size": 420, "model_type": "bpe", "byte_fallback": True, "hard_vocab_limit": False,
                   "pad_id": 3}  # fmt: skip
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=texts, model_writer=file, minloglevel=2, **options)
    tokenizer = LlamaTokenizer.from_pretrained(folder, pad_token="<pad>", padding_side="left")
    tokenizer.save_pretrained(folder)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": 1}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=256, **shape, **ids)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder
