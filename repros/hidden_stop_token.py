"""Reward functions cannot see a special token that ended the completion.

Cause: completions are decoded with skip_special_tokens=True (trl/trainer/grpo_trainer.py:2244, 2247 on 1.16.0; RLOO,
rloo_trainer.py:1416, 1419). That removes also the special tokens that the user asked generation to stop at.
Harm: a reward that looks for `<call>` is 0 for every completion, right or wrong, so there is no advantage and nothing is
learned. The ids are right and only the text is not, but most reward functions read the text.
Met by: `stop_token_ids` or `eos_token_id` in generation_kwargs that are special tokens (GRPO, RLOO).
Reported: huggingface/trl#2897, #3026; #4521 (an option to show all special tokens) was closed, by decision. The patch shows
only those that were asked for.
Patch: keep, in the text, the stop ids that generation_kwargs names.
"""

import tempfile

import tiny
from trl import GRPOConfig, GRPOTrainer

own, rows = tiny.tokenizer("<call>"), []
call = own.convert_tokens_to_ids("<call>")
letters = own.convert_tokens_to_ids(["a", "e"])
silent = [token for token in range(len(own)) if token not in (call, *letters)]


def reward(completions, completion_ids, **_):
    rows.extend(zip(completions, completion_ids, strict=True))
    return [float(text.endswith("<call>")) for text in completions]


stops = {"eos_token_id": [own.eos_token_id, call], "suppress_tokens": silent}
args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO, generation_kwargs=stops)
trainer = GRPOTrainer(tiny.model(own), reward, args, tiny.prompts(), processing_class=own)
trainer.train()
ended = [(text, list(ids)) for text, ids in rows if call in list(ids)]
shown = sum("<call>" in text for text, _ in ended)
if not ended:
    tiny.cannot_run("no completion ended at <call>")
tiny.verdict(
    shown < len(ended),
    f"{len(ended)} of {len(rows)} completions ended with the special stop <call>, {shown} show it to the reward function: "
    f"ids {ended[0][1]} are the text {ended[0][0]!r}; mean reward {trainer.state.log_history[0]['reward']}",
    "the reward function sees the token that it asked generation to stop at",
)
