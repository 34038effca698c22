"""A small preference model of the starter's own text, for PPO: one whole sentence is preferred, by TRL's RewardTrainer.

Toy scale: it knows whole sentences from broken ones. Which of two sentences fits a prompt is beyond a model of this size:
trained on that, it was right in 50 to 56% of held-out pairs.
"""

import functools
import random
from pathlib import Path

from .starter import toy

HELD_OUT = 500  # pairs that the model is not trained on


def preference_pairs(corpus: list[dict[str, str]], seed: int = 0) -> list[dict[str, str]]:
    """For each row its prompt with its own completion, `chosen`, and a broken one, `rejected`.

    By turns it is cut in the middle, has the next row's sentence after it, or its words in disorder.
    """
    rng, pairs = random.Random(seed), []
    for n, row in enumerate(corpus):
        words, after = row["completion"].split(), corpus[(n + 1) % len(corpus)]["completion"]
        broken = [words[: (len(words) + 1) // 2], [*words, *after.split()], rng.sample(words, len(words))][n % 3]
        pairs.append({"prompt": row["prompt"], "chosen": row["completion"], "rejected": " " + " ".join(broken)})
    return pairs


def preference_model() -> Path:
    """Folder of the preference model and its tokenizer, shipped with the package."""
    return toy("preferences")


def scores(model, tokenizer, prompts: list[str], completions: list[str]) -> list[float]:
    """The model's score of each prompt with its completion, without EOS: B logits."""
    import torch

    texts = [prompt + text + tokenizer.eos_token for prompt, text in zip(prompts, completions, strict=True)]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right", truncation=True, max_length=512)
    with torch.no_grad():
        return model(**batch).logits[:, 0].tolist()


@functools.cache
def loaded(folder: Path):
    """Model and tokenizer of a folder, once a process."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1).eval()
    return model, AutoTokenizer.from_pretrained(folder)
