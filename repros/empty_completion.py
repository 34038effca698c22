"""One empty completion ends the run with an IndexError.

Cause: `ids[-1]` of an empty list (trl/trainer/grpo_trainer.py:2302 and, with mask_truncated_completions, 2490 on 1.16.0).
Harm: one such completion ends a run of days. A rollout function returns one if its environment fails before the model says
anything, and so does a server for a prompt that fills its context.
Met by: a rollout_func, or a server, that returns a completion without tokens (GRPO, RLOO).
Reported: not found.
Patch: a completion without tokens did not end by itself, so it counts as truncated.
"""

import tempfile

import tiny
from trl import GRPOConfig, GRPOTrainer

own = tiny.tokenizer()


def rollout(prompts, trainer):
    made = tiny.rollout(prompts, trainer)
    made["completion_ids"][1] = []
    return made


args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO)
trainer = GRPOTrainer(tiny.model(own), tiny.parity, args, tiny.prompts(), processing_class=own, rollout_func=rollout)
should = "the row is scored, trains nothing, and the run goes on"
try:
    trainer.train()
except IndexError as error:
    tiny.verdict(True, f"IndexError: {error}", should)
log = trainer.state.log_history[0]
tiny.verdict(
    False, f"a step was trained, min_length {log['completions/min_length']}, grad_norm {log['grad_norm']}", should
)
