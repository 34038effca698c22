"""How far pads move log-probs in bf16, with position ids and without, next to what another batch size alone does."""

from collections.abc import Sequence

import pandas as pd
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ...consistency.padding import SIDES, pad_batch, token_logprobs

ANOTHER_SIZE = "no pads, another batch size"
HOW = {"implicit": "no position ids", "explicit": "position ids"}
ROWS = 6  # texts in a batch
LONGEST = 48  # tokens of a text


def bf16_changes(model: str, texts: Sequence[str], *, pads: int = 6) -> pd.DataFrame:
    """Score texts in bf16 alone, in padded batches, and among copies of themselves; say how far the log-probs move.

    A batch has 6 texts of up to 48 tokens, and `pads` pads more than its longest text needs. Copies of a text need no pads, so
    they show what another batch size does alone.

    Args:
        model: folder or hub id of a causal language model.
        texts: texts of two tokens or more.
        pads: pads beyond the longest text of a batch, 0 or more.

    Returns:
        The mean |change| of a log-prob in nats, from the text alone: a row for each text, a column for each way to score it.
    """
    tokenizer = AutoTokenizer.from_pretrained(model)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    ids = [tokenizer(text)["input_ids"][:LONGEST] for text in texts]
    alone = [token_logprobs(policy, pad_batch([row], 0))[0] for row in ids]
    scored: dict[str, list[torch.Tensor]] = {}
    for side in SIDES:
        for positions, name in HOW.items():
            scored[f"{side} pads, {name}"] = []
            for start in range(0, len(ids), ROWS):
                rows = ids[start : start + ROWS]
                batch = pad_batch(rows, 0, side, width=max(map(len, rows)) + pads)
                scored[f"{side} pads, {name}"] += token_logprobs(policy, batch, positions)
    scored[ANOTHER_SIZE] = [token_logprobs(policy, pad_batch([row] * ROWS, 0))[0] for row in ids]
    changes = {}
    for way, rows in scored.items():
        changes[way] = [float((row - base).abs().mean()) for row, base in zip(rows, alone, strict=True)]
    return pd.DataFrame(changes)
