"""Generation ends at a stop id in `generation_kwargs`, but the padding after it is trained on.

Cause: `generation_kwargs={"eos_token_id": [...]}` reaches `generate`, but completions are cut only at the EOS ids of the
model and the tokenizer (trl/trainer/grpo_trainer.py:408-416 and 1881 on 1.16.0). So the pads with which `generate` fills
shorter rows stay in the completion and in the loss.
Harm: every row has the length of the longest, and pads that were never sampled get the row's advantage. The longest row
ended as asked and counts as truncated, because its last token is no EOS; the padded ones count as ended.
Met by: `eos_token_id` in generation_kwargs without vLLM (GRPO, RLOO).
Reported: not found; huggingface/trl#7039 is its multi-EOS form.
Patch: the ids of generation_kwargs end a completion too.
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


stops = {"eos_token_id": [own.eos_token_id, period], "suppress_tokens": silent}
args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO, generation_kwargs=stops)
trainer = GRPOTrainer(tiny.model(own), reward, args, tiny.prompts(), processing_class=own)
trainer.train()
pads = sum(ids.count(own.pad_token_id) for ids in rows)
sampled = [len(ids) - ids.count(own.pad_token_id) for ids in rows]
if len(set(sampled)) == 1:
    tiny.cannot_run("all completions have one length, nothing is padded")
log = trainer.state.log_history[0]
tiny.verdict(
    pads > 0,
    f"completions of {sampled} sampled tokens; {pads} pads among the tokens trained on, "
    f"mean_length {log['completions/mean_length']}, clipped_ratio {log['completions/clipped_ratio']}",
    f"no pad, mean_length {sum(sampled) / len(sampled)}",
)
