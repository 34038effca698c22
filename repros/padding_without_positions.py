"""GRPO scores left-padded rows without position ids: log-probabilities are wrong if positions are learned.

Cause: the forward pass gets ids and the attention mask, but no position_ids (trl/trainer/grpo_trainer.py:1450 on 1.16.0;
RLOO, rloo_trainer.py:1019; OnlineDPO, experimental/online_dpo/online_dpo_trainer.py:1104). Without them a model counts from
the first pad. `generate` makes them from the mask, so sampling and scoring use different positions.
Harm: with GPT-2 the log-probability of a token depends on the length of the other prompts in its batch, on the random
weights of this script by up to 2.3 nats, a ratio of 10. Rotary positions are relative, so only rounding changes.
Met by: a model with learned positions, whatever the settings (GRPO, RLOO, OnlineDPO).
Reported: huggingface/trl#6800, #6819 (OnlineDPO; 34 nats a sequence).
Patch: position ids from the mask, for models whose forward takes them and that are given no images.
"""

import tempfile

import tiny
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from trl import GRPOConfig, GRPOTrainer

own = tiny.tokenizer()
size = {"vocab_size": len(own), "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "initializer_range": 0.2}
ids = {"bos_token_id": None, "eos_token_id": own.eos_token_id, "pad_token_id": own.pad_token_id}
model = GPT2LMHeadModel(GPT2Config(**size, **ids)).eval()
args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO)
trainer = GRPOTrainer(model, tiny.parity, args, tiny.prompts(), processing_class=own)
trainer.model.eval()

own.padding_side = "left"
long, short = "the red fox ran. a blue cat sat.", "go on"
completion = torch.tensor([own(" we see the sea.")["input_ids"]])


def logps(*texts):
    batch = own(list(texts), return_tensors="pt", padding=True)
    rows = completion.repeat(len(texts), 1)
    ids = torch.cat([batch["input_ids"], rows], 1)
    mask = torch.cat([batch["attention_mask"], torch.ones_like(rows)], 1)
    with torch.no_grad():
        return trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, rows.shape[1])[0][-1]


gap = (logps(long, short) - logps(short)).abs().max().item()
tiny.verdict(
    gap > 1e-3,
    f"log-probabilities of one completion of one prompt, alone and beside a longer prompt, differ by up to {gap:.2g} nats",
    "the other rows of a batch change nothing but rounding (below 0.001)",
)
