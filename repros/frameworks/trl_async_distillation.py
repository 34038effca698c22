"""TRL's AsyncDistillationTrainer: its `compute_loss` on packed tokens, a vocabulary of two, and one log-prob of the teacher."""

import contextlib
import time
from collections import defaultdict
from types import SimpleNamespace

import torch
import torch.distributed.tensor
import torch.utils.checkpoint

from repros.frameworks.trl_distillation import two_outcomes
from workbench.conform import NotOffered, with_torch

PACKAGE = "trl"
OFFERS = {"divergence_beta"}
FILE = "trl/experimental/async_distillation/async_distillation_trainer.py"


def functions(wheel):
    given = {"DTensor": torch.distributed.tensor.DTensor, "is_peft_model": lambda _: False, "time": time}
    parts = (
        "_add_tail_bucket",
        "_jsd_divergence",
        "_narrow_top1_actual_support",
        "_jsd_loss_chunk",
        "_chunked_jsd_loss",
    )
    methods = [f"AsyncDistillationTrainer.{name}" for name in ("compute_loss", "_compute_loss")]
    trainer = wheel.take(FILE, "_CHUNKED_LM_HEAD_CHUNK_SIZE", *parts, *methods, **given)

    def loss(case):
        """A row for each completion, behind one token of a prompt: the loss takes the tokens of the mask alone."""
        counted = case.mask.bool()
        if not counted.any():
            raise NotOffered("a micro-batch of it has a token")
        tokens = int(counted.sum())
        hidden = two_outcomes(case.logps[counted])
        model = SimpleNamespace(get_output_embeddings=lambda: SimpleNamespace(weight=torch.eye(2), bias=None))
        model.config = SimpleNamespace(get_text_config=SimpleNamespace)
        last = torch.nn.functional.pad(hidden, (0, 0, 0, 1))[None]  # what the last token predicts is not used
        model.base_model = lambda **_: SimpleNamespace(last_hidden_state=last)
        self = SimpleNamespace(_teacher_ids=["teacher"], _metrics={"train": defaultdict(list)})
        self.args = SimpleNamespace(
            beta=case.settings["divergence_beta"], teacher_temperature=1.0, add_tail_bucket=True
        )
        self.current_gradient_accumulation_steps = case.micro_batches
        self.accelerator = SimpleNamespace(num_processes=1, unwrap_model=lambda x: x, autocast=contextlib.nullcontext)
        self.accelerator.reduce = lambda x, reduction: x
        for count in ("forward_tokens", "trained_tokens", "seq_len_weighted", "samples", "forward_s"):
            setattr(self, f"_step_{count}", 0.0)
        self._forward_redirection = lambda wrapped, inner, method, *rest: method(*rest)
        self._compute_loss = lambda *rest: trainer._compute_loss(self, *rest)
        ids = torch.zeros(1, tokens + 1, dtype=torch.long)
        batch = {"input_ids": ids, "attention_mask": ids + 1, "position_ids": ids, "teacher_topk_ids": ids[..., None]}
        batch["completion_mask"] = torch.arange(tokens + 1)[None] > 0
        batch["teacher_topk_logprobs"] = torch.nn.functional.pad(case.ref_logps[counted], (1, 0))[None, :, None]
        for count in ("global_n_tokens", "global_n_forward_tokens", "mean_seq_len"):
            batch[count] = torch.tensor([float(tokens)])  # of this micro-batch, as the collator counts them
        return trainer.compute_loss(self, model, batch)

    return {"distillation": with_torch(loss)}
