"""Of several EOS ids of a model only the tokenizer's one counts (fixed in TRL 1.14.2).

Cause: the trainer gave `generate` the tokenizer's `eos_token_id`, and cut completions at it. It ignored the list in
`model.generation_config.eos_token_id`, which in chat models has an end-of-turn token. Since 1.14.2 it collects them all
(trl/trainer/grpo_trainer.py:408-416 on 1.16.0).
Harm: with transformers, completions run on after their end of turn, to the limit. vLLM stops there, and they count as
truncated: clipped_ratio is 0.97 with Phi-3.5.
Met by: a model with several EOS ids in its generation_config.json, whatever the settings (GRPO, RLOO).
Reported: huggingface/trl#7039.
Patch: none is needed from 1.14.2 on. patches/several_eos_ids.diff is for 1.12.0.
"""

import tempfile

import tiny
from trl import GRPOConfig, GRPOTrainer

own, rows = tiny.tokenizer(), []
period, letters = own.convert_tokens_to_ids("."), own.convert_tokens_to_ids(["a", "e"])
silent = [token for token in range(len(own)) if token not in (period, *letters)]


def reward(completions, completion_ids, **_):
    rows.extend(list(ids) for ids in completion_ids)
    return tiny.parity(completions)


model = tiny.model(own)
model.generation_config.eos_token_id = [own.eos_token_id, period]
args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO, generation_kwargs={"suppress_tokens": silent})
trainer = GRPOTrainer(model, reward, args, tiny.prompts(), processing_class=own)
trainer.train()
past = [len(ids) - 1 - ids.index(period) for ids in rows if period in ids]
log = trainer.state.log_history[0]
if not past:
    tiny.cannot_run("no completion ended at the second EOS id")
tiny.verdict(
    sum(past) > 0,
    f"{len(past)} of {len(rows)} completions have the model's second EOS id; {sum(past)} tokens behind it are trained on, "
    f"clipped_ratio {log['completions/clipped_ratio']}",
    "a completion ends at any EOS id of the model",
)
