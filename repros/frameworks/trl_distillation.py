"""TRL's DistillationTrainer: its `compute_loss` over a vocabulary of two, the sampled token and all others together."""

import contextlib
from collections import defaultdict
from types import SimpleNamespace

import torch
import torch.distributed.tensor  # the loss asks whether a weight is a DTensor
from packaging.version import Version

from workbench.conform import with_torch

PACKAGE = "trl"
OFFERS = {"divergence_beta", "processes"}
FILE, KERNELS = "trl/trainer/distillation_trainer.py", "trl/kernels/"


def two_outcomes(logps):
    """Logits (R, T, 2) of the sampled token, which is 0, and of the others."""
    return torch.stack([logps, torch.log(-torch.expm1(logps))], dim=-1)


def functions(wheel):
    parts = ("_BLOCK_SIZE", "_MM_OUT_DTYPE", "_torch_transform", "_addmm_fp32", "_use_triton")
    given = {"Version": Version, "_TRITON_AVAILABLE": False}
    given |= vars(wheel.take(KERNELS + "chunked_logprob.py", *parts, **given))
    given["maybe_gather_lm_head_ctx"] = lambda *_: contextlib.nullcontext()
    parts = ("TOKEN_CHUNK_SIZE", "VOCAB_CHUNK_SIZE", "_stats_tile", "_jsd_tile", "_backward_tile", "_compute_dtype")
    kernel = wheel.take(KERNELS + "chunked_divergence.py", *parts, "_project", "ChunkedDivergenceFunction", **given)
    given["ChunkedDivergenceFunction"] = kernel.ChunkedDivergenceFunction
    methods = ("DistillationTrainer.compute_loss", "DistillationTrainer._compute_loss")
    trainer = wheel.take(FILE, "_chunked_divergence_loss", *methods, **given)
    head = SimpleNamespace(weight=torch.eye(2), bias=None)

    def loss(case):
        config = SimpleNamespace(get_text_config=SimpleNamespace)
        model, teacher = (SimpleNamespace(get_output_embeddings=lambda: head, config=config) for _ in range(2))
        teacher.eval = lambda: None
        hidden = {id(model): two_outcomes(case.logps), id(teacher): two_outcomes(case.ref_logps)}
        accelerator = SimpleNamespace(num_processes=case.processes, unwrap_model=lambda x: x)
        accelerator.gather_for_metrics = lambda x: x
        self = SimpleNamespace(model=SimpleNamespace(training=True), teacher_model=teacher, accelerator=accelerator)
        self.beta, self.temperature = case.settings["divergence_beta"], 1.0
        self._metrics = {"train": defaultdict(list)}
        self._forward_redirection = lambda wrapped, inner, method, *rest: method(*rest)
        self._get_last_hidden_state = lambda asked, *_: hidden[id(asked)]
        self._compute_loss = lambda *rest: trainer._compute_loss(self, *rest)
        ids = torch.zeros_like(case.mask, dtype=torch.long)
        batch = {"prompt_ids": ids[:, :0], "prompt_mask": ids[:, :0], "completion_ids": ids}
        batch |= {"completion_mask": case.mask, "num_items_in_batch": torch.tensor(case.total_tokens)}
        return trainer.compute_loss(self, model, batch)

    return {"distillation": with_torch(loss)}
