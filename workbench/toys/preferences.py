"""A small preference model of the starter's own text, for PPO: one whole sentence is preferred, by TRL's RewardTrainer.

Toy scale: it tells sentences from broken ones. Which of two sentences fits a prompt is beyond a model of this size: trained on
that, it was right in 50 to 56% of held-out pairs.
"""

import contextlib
import functools
import io
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from .cache import cache_root, key_of, made_once
from .starter import EOS, corpus_hash, one_thread, preserved_rng, starter_corpus, starter_model

HELD_OUT = 500  # pairs that the model is not trained on
_TRAINING: dict[str, Any] = {
    "max_steps": 200,
    "per_device_train_batch_size": 16,
    "learning_rate": 1e-3,
    "max_length": 256,
    "seed": 0,
}


def preference_pairs(corpus: list[dict[str, str]], seed: int = 0) -> list[dict[str, str]]:
    """For each row its prompt with its own completion, `chosen`, and a broken one, `rejected`.

    By turns it is cut in the middle, has the next row's sentence after it, or its words in disorder.

    Example:
        >>> rows = [{"prompt": "a:", "completion": " Add two numbers."}, {"prompt": "b:", "completion": " Be still."}]
        >>> [pair["rejected"] for pair in preference_pairs(rows)]
        [' Add two', ' Be still. Add two numbers.']
    """
    rng, pairs = random.Random(seed), []
    for n, row in enumerate(corpus):
        words, after = row["completion"].split(), corpus[(n + 1) % len(corpus)]["completion"]
        broken = [words[: (len(words) + 1) // 2], [*words, *after.split()], rng.sample(words, len(words))][n % 3]
        pairs.append({"prompt": row["prompt"], "chosen": row["completion"], "rejected": " " + " ".join(broken)})
    return pairs


def preference_model(cache_dir: str | os.PathLike | None = None) -> Path:
    """Folder of the preference model and its tokenizer, trained on first use (about a minute on one core) and cached."""
    corpus, base = starter_corpus(cache_dir), starter_model(cache_dir=cache_dir)
    key = key_of({"corpus": corpus_hash(corpus), "base": base.name, "training": _TRAINING, "version": 1})
    return made_once(cache_root(cache_dir) / f"preferences-{key}", lambda made: _build(made, corpus, base))


@torch.no_grad()
def scores(model, tokenizer, prompts: list[str], completions: list[str]) -> list[float]:
    """The model's score of each prompt with its completion, without EOS: B logits."""
    texts = [prompt + text + tokenizer.eos_token for prompt, text in zip(prompts, completions, strict=True)]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right", truncation=True, max_length=512)
    return model(**batch).logits[:, 0].tolist()


@functools.cache
def loaded(folder: Path):
    """Model and tokenizer of a folder, once a process."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def _build(made: Path, corpus: list[dict[str, str]], base: Path) -> None:
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, PrinterCallback
    from trl import RewardConfig, RewardTrainer

    fields = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "dataloader_pin_memory": False}
    fields |= {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "eos_token": EOS, **_TRAINING}
    pairs = preference_pairs(corpus)
    pairs = [pair for n, pair in enumerate(pairs) if n % (len(pairs) // HELD_OUT)]
    with one_thread(), preserved_rng(), tempfile.TemporaryDirectory() as scratch:
        torch.manual_seed(_TRAINING["seed"])
        model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
        tokenizer = AutoTokenizer.from_pretrained(base)
        args = RewardConfig(output_dir=scratch, **fields)
        trainer = RewardTrainer(model, args=args, train_dataset=Dataset.from_list(pairs), processing_class=tokenizer)
        trainer.remove_callback(PrinterCallback)
        print(f"training the preference model, {args.max_steps} steps, once; cached afterwards", flush=True)
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train()
        trainer.model.save_pretrained(made)
        tokenizer.save_pretrained(made)
