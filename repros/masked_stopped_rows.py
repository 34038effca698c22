"""`mask_truncated_completions=True` leaves every completion that ended at a stop string out of the loss.

Cause: the mask asks whether the last token is an EOS (trl/trainer/grpo_trainer.py:2490 on 1.16.0; RLOO,
rloo_trainer.py:1521), the same guess as in false_clipping.py.
Harm: if every completion stops at a string, the whole batch is masked. Loss and gradient are 0, without a warning and
without NaN, and the run goes on to its end without having learned anything.
Met by: mask_truncated_completions=True with any stop in generation_kwargs or a rollout_func (GRPO, RLOO).
Reported: the multi-EOS form of it, huggingface/trl#7039 (clipped_ratio 0.97 with Phi-3.5).
Patch: a completion that ended before the limit was not truncated.
"""

import tempfile

import tiny
from trl import GRPOConfig, GRPOTrainer

own, rows = tiny.tokenizer(), []


def reward(completions, completion_ids, **_):
    rows.extend(zip(completions, map(len, completion_ids), strict=True))
    return tiny.parity(completions)


args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO, mask_truncated_completions=True)
trainer = GRPOTrainer(tiny.model(own), reward, args, tiny.prompts(), processing_class=own, rollout_func=tiny.rollout)
trainer.train()
stopped = sum(any(stop in text for stop in tiny.STOPS) for text, _ in rows)
log = trainer.state.log_history[0]
tiny.verdict(
    stopped > 0 and log["grad_norm"] == 0,
    f"{stopped} of {len(rows)} completions ended at a stop string, {[n for _, n in rows]} tokens of at most 16; rewards "
    f"differ in each group (reward_std {log['reward_std']:.2f}); loss {log['loss']}, grad_norm {log['grad_norm']}",
    "they are trained on, so the gradient is not 0",
)
