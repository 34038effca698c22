"""With top_k, top_p or min_p the importance ratio is not 1, but the probability of the tokens that truncation keeps.

Cause: TRL asks vLLM for `processed_logprobs` (trl/generation/vllm_generation.py:361 on 1.16.0), which are normalised over
the tokens that truncation keeps. The trainer's are over the whole vocabulary (trl/trainer/grpo_trainer.py:2662). If the kept
tokens have the probability S, the ratio of a token is exactly S, with equal weights and no update.
Harm: each token's loss is multiplied by its S, and each sequence's by the product of them: 0.00003 for S = 0.9 over 100
tokens. The gradient shrinks with length, and most where the policy is least sure.
Met by: top_k, top_p below 1 or min_p, with use_vllm=True and vllm_importance_sampling_correction=True, the default (GRPO).
Reported: huggingface/trl#6789, open. #7269, closed, takes the kept tokens from vLLM 0.28 and above.
Patch: refuse the combination, until the trainer can score on the engine's support.
"""

import tempfile

import engine
import tiny
import torch
from trl import GRPOConfig, GRPOTrainer

TOP_K, own, kept = 8, tiny.tokenizer(), []


def reward(prompts, completions, completion_ids, **_):
    """Notes the probability of the TOP_K likeliest tokens at each token, under the trainer's weights."""
    for prompt, ids in zip(prompts, completion_ids, strict=True):
        start = own(prompt)["input_ids"]
        with torch.no_grad():
            scores = trainer.model(torch.tensor([start + list(ids)])).logits[0, len(start) - 1 : -1].float()
        kept.extend(scores.softmax(-1).topk(TOP_K).values.sum(-1).tolist())
    return tiny.parity(completions)


fields = tiny.GRPO | engine.COLOCATE | {"vllm_max_model_length": 64, "top_k": TOP_K}
should = "1 for every token: engine and trainer have the same weights"
try:
    args = GRPOConfig(tempfile.mkdtemp(), **fields, vllm_importance_sampling_mode="token_truncate")
    trainer = GRPOTrainer(engine.folder(own), reward, args, tiny.prompts(), processing_class=own)
except ValueError as error:
    if "top_k" not in str(error):
        raise
    tiny.verdict(False, f"ValueError: {' '.join(str(error).split())}", should)
engine.without_sync(trainer).train()
log = trainer.state.log_history[0]
low, mean, high = (log[f"sampling/importance_sampling_ratio/{end}"] for end in ("min", "mean", "max"))
tiny.verdict(
    high < 0.99,
    f"top_k={TOP_K} of {len(own)} tokens: ratio {low:.3f} to {high:.3f}, mean {mean:.3f}; the kept mass is {min(kept):.3f} to "
    f"{max(kept):.3f}, mean {sum(kept) / len(kept):.3f}",
    should,
)
