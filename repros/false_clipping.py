"""A completion that ended at a stop string counts as truncated.

Cause: GRPO counts a completion as truncated if its last token is not an EOS (trl/trainer/grpo_trainer.py:2302 on 1.16.0;
RLOO, rloo_trainer.py:1446). A stop string, or any stop that is not an EOS, is another way to end.
Harm: `completions/clipped_ratio` is 1 and `mean_terminated_length` 0 for a run in which nothing was truncated. So a user
raises max_completion_length and pays for it. With mask_truncated_completions nothing is learned (masked_stopped_rows.py).
dropped_finish_reason.py shows the same with vLLM's `stop`.
Met by: any stop in generation_kwargs, or a rollout_func that stops at a text (GRPO, RLOO).
Reported: huggingface/trl#2820 asks for stop strings; #7039 is its multi-EOS form.
Patch: a completion that ended before the limit was not truncated. (vLLM's own reason is better: dropped_finish_reason.diff.)
"""

import tempfile

import tiny
from trl import GRPOConfig, GRPOTrainer

own, rows = tiny.tokenizer(), []


def reward(completions, completion_ids, **_):
    rows.extend(zip(completions, map(len, completion_ids), strict=True))
    return tiny.parity(completions)


args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO)
trainer = GRPOTrainer(tiny.model(own), reward, args, tiny.prompts(), processing_class=own, rollout_func=tiny.rollout)
trainer.train()
stopped = [any(stop in text for stop in tiny.STOPS) for text, _ in rows]
log = trainer.state.log_history[0]
clipped, length = log["completions/clipped_ratio"], log["completions/mean_terminated_length"]
tiny.verdict(
    clipped != 1 - sum(stopped) / len(rows),
    f"{sum(stopped)} of {len(rows)} completions ended at a stop string, {[n for _, n in rows]} tokens of at most 16; "
    f"clipped_ratio {clipped}, mean_terminated_length {length}",
    f"clipped_ratio {1 - sum(stopped) / len(rows)}",
)
