"""TRL's AsyncGRPOTrainer: its `compute_loss` on a trainer of attributes alone, with packed tokens and their log-probs.

A model that is not asked gives the log-probs.
"""

import time
from collections import defaultdict
from types import SimpleNamespace

import torch

from workbench.conform import NotOffered, with_torch

PACKAGE = "trl"
OFFERS = {"epsilon_high"}
FILE = "trl/experimental/async_grpo/async_grpo_trainer.py"


def functions(wheel):
    utils = vars(wheel.take("trl/trainer/utils.py", "nanmin", "nanmax"))
    asynchronous = wheel.take(FILE, "AsyncGRPOTrainer.compute_loss", time=time, **utils)

    def loss(case):
        """A row for each completion, without its prompt: the loss takes the tokens of the mask alone."""
        counted = case.mask.bool()
        if not counted.any():
            raise NotOffered("a micro-batch of it has a token")
        s = case.settings
        self = SimpleNamespace(epsilon_low=s["epsilon"], aux_loss_enabled=False, _metrics={"train": defaultdict(list)})
        self.epsilon_high = s["epsilon"] if s["epsilon_high"] is None else s["epsilon_high"]
        self.current_gradient_accumulation_steps = case.micro_batches
        self.accelerator = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x)
        for count in ("forward_tokens", "trained_tokens", "seq_len_weighted", "samples", "forward_s"):
            setattr(self, f"_step_{count}", 0.0)
        tokens = int(counted.sum())
        ids, places = torch.zeros(1, tokens, dtype=torch.long), torch.arange(tokens)[None]
        rows = torch.arange(len(counted))[:, None].expand_as(case.mask)[counted]
        batch = {"input_ids": ids, "attention_mask": ids + 1, "position_ids": places, "shift_labels": ids}
        batch |= {"token_index": places, "old_log_probs": case.old_logps[counted][None], "segment_id": rows[None]}
        batch |= {"advantages": case.advantages[rows][None], "tree_max_seqlens": torch.zeros(1, 2)}
        batch |= {name: -torch.ones(1, 1) for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}
        for count in ("global_n_tokens", "global_n_forward_tokens", "mean_seq_len"):
            batch[count] = torch.tensor([float(tokens)])  # of this micro-batch, as the collator counts them
        answer = SimpleNamespace(log_probs=case.logps[counted], entropy=torch.zeros(tokens))
        return asynchronous.compute_loss(self, lambda **_: answer, batch)

    return {"dapo": with_torch(loss)}
