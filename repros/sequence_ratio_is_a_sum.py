"""The default importance ratio sums over tokens: where all differ to one side, long completions fall out. A disputed default.

Cause: in the modes `sequence_mask` (the default) and `sequence_truncate` the log-ratio of engine to trainer is summed over
the tokens (trl/trainer/grpo_trainer.py:2669 on 1.16.0), and the cap is 3.0 at every length. The trainer's own ratio with
importance_sampling_level="sequence" is a mean over tokens.
Harm: 0.012 nats per token of one sign make a ratio of 1.1 over 10 tokens and of 3.3 over 100. So a completion of 100 tokens is
left out of the loss, and a short one is not. Rounding in bf16 has both signs, and its sum grows more slowly.
Met by: use_vllm=True with vllm_importance_sampling_correction=True and a sequence mode, both defaults (GRPO).
Reported: huggingface/trl#5814, #4772. A pull request with the mean, #5815, was closed. The sum is the exact ratio of two
sequences; its price is that few long ones are kept. Whether this is a defect is a matter of opinion.
Patch: divide by the number of tokens, as #5815 did. Without it use a mode `token_mask` or `token_truncate`.
"""

import tempfile
import types

import tiny
import torch
from trl import GRPOConfig, GRPOTrainer

GAP, LENGTHS = 0.012, (10, 100)  # nats a token, tokens of each second completion


def rollout(prompts, trainer):
    """Random completions of two lengths; the engine gives each of their tokens GAP nats less than the trainer."""
    starts = [own(text)["input_ids"] for text in prompts]
    ids = [torch.randint(2, len(own), (LENGTHS[n % 2],)).tolist() for n in range(len(prompts))]
    logprobs = []
    for start, row in zip(starts, ids, strict=True):
        with torch.no_grad():
            scores = trainer.model(torch.tensor([start + row])).logits[0, len(start) - 1 : -1].float().log_softmax(-1)
        logprobs.append([float(scores[at, token]) - GAP for at, token in enumerate(row)])
    return {"prompt_ids": starts, "completion_ids": ids, "logprobs": logprobs}


own = tiny.tokenizer()
args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO | {"max_completion_length": max(LENGTHS)})
trainer = GRPOTrainer(tiny.model(own), tiny.parity, args, tiny.prompts(), processing_class=own, rollout_func=rollout)
trainer.use_vllm = True  # the rollout function is the engine
trainer.vllm_generation, trainer._last_loaded_step = types.SimpleNamespace(sync_weights=lambda: None), -1
trainer.train()
log = trainer.state.log_history[0]
low, high = (log[f"sampling/importance_sampling_ratio/{end}"] for end in ("min", "max"))
tiny.verdict(
    low == 0,
    f"engine and trainer differ by {GAP} nats a token in every completion: ratio {high:.2f} with {LENGTHS[0]} tokens, "
    f"{low:.2f} with {LENGTHS[1]}",
    "one ratio for one difference a token, 1.01",
)
