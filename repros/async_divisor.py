"""AsyncGRPO divides by the tokens of a micro-batch and then by their number, so a token of a short one counts more.

Cause: `compute_loss` divides a micro-batch's sum by its own tokens and by the number of micro-batches
(trl/experimental/async_grpo/async_grpo_trainer.py:1540, 1544 on 1.16.0). The mean over the update divides by all tokens.
Harm: the gradient is the mean of the micro-batches' means. With micro-batches of 6 and 54 tokens a token of the first
counts nine times as much as one of the second, so short completions outweigh long ones.
Met by: gradient_accumulation_steps above 1 and micro-batches with unequal numbers of trained tokens (AsyncGRPO).
Reported: huggingface/trl#7206.
Patch: count the tokens of the update where its micro-batches are collected, and divide by them once.
"""

import collections
import inspect
import math
import types

import tiny
import torch
from trl.experimental.async_grpo import AsyncGRPOTrainer

source = inspect.getsource(AsyncGRPOTrainer.compute_loss)
PACKED, ONE_A_ROW = "token_index" in source, "advantages.unsqueeze(1)" in source


class OneUpdate(AsyncGRPOTrainer):
    def __init__(self):  # TRL's own loss, without what the rest of a training needs: a server, a kernel for GPUs
        self.accelerator = types.SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x)
        self._metrics = {"train": collections.defaultdict(list)}
        self.epsilon_low = self.epsilon_high = 0.2
        self.temperature, self.aux_loss_enabled, self._train_tokens_start_time = 1.0, False, None
        self._step_forward_tokens = self._step_trained_tokens = self._step_seq_len_weighted = 0.0
        self._step_samples = self._step_forward_s = 0.0


def model(input_ids, **inputs):  # each of two tokens has the probability one half
    scored = input_ids.numel() - (not PACKED)
    outputs = {"log_probs": torch.full((1, scored), math.log(0.5)), "entropy": torch.zeros(1, scored)}
    return type("Outputs", (dict,), {"__getattr__": dict.get})(outputs, logits=torch.zeros(1, input_ids.numel(), 2))


def micro_batch(tokens, loss):  # a row whose prompt has one token; each ratio is 1, so the advantage is -loss
    whole, terms = (1, tokens + 1), (1, tokens) if PACKED else (1, tokens + 1)
    row = {"input_ids": torch.zeros(whole, dtype=torch.long), "attention_mask": torch.ones(whole, dtype=torch.long)}
    row |= {"position_ids": torch.arange(tokens + 1)[None], "token_index": torch.arange(tokens)[None], "metrics": {}}
    row |= {"shift_labels": row["input_ids"], "completion_mask": (torch.arange(tokens + 1) > 0).long()[None]}
    row |= {"old_log_probs": torch.full(terms, math.log(0.5)), "segment_id": torch.zeros(terms, dtype=torch.long)}
    row |= {"advantages": torch.full((1,) if ONE_A_ROW else terms, -loss), "tree_max_seqlens": torch.zeros(1, 2)}
    row |= {name: -torch.ones(1, 1) for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}
    counts = ("global_n_tokens", "global_n_forward_tokens", "mean_seq_len")
    return row | {name: torch.tensor([float(tokens)]) for name in counts}


trainer = OneUpdate()
batches, items = trainer.get_batch_samples(iter([micro_batch(100, 2.0), micro_batch(900, 0.5)]), 2, "cpu")
trainer.current_gradient_accumulation_steps = len(batches)
loss = sum(float(trainer.compute_loss(model, batch, num_items_in_batch=items)) for batch in batches)
happens = f"100 tokens with a loss of 2.0 each and 900 with 0.5, in two micro-batches: the update's loss is {loss:.3f}"
tiny.verdict(abs(loss - 0.65) > 0.01, happens, "0.650, the mean over the 1000 tokens")
