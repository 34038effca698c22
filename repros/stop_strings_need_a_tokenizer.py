"""`generation_kwargs={"stop_strings": ...}` cannot be used with transformers.

Cause: transformers' `generate` needs `tokenizer=` for stop strings, and GRPOTrainer calls it without one
(trl/trainer/grpo_trainer.py:1873 on 1.16.0; RLOO, rloo_trainer.py:1385; OnlineDPO, online_dpo_trainer.py:1046).
Harm: the first step ends in a ValueError, after the model is loaded. To stop at a text, a user has to find a token id for
it, which most texts do not have.
Met by: `stop_strings` in generation_kwargs without vLLM (GRPO, RLOO, OnlineDPO).
Reported: huggingface/trl#2820 asks for stop strings.
Patch: pass the tokenizer, and cut the pads with which `generate` fills shorter rows: after a stop string there is no EOS.
"""

import tempfile

import tiny
from trl import GRPOConfig, GRPOTrainer

own, rows = tiny.tokenizer(), []


def reward(completions, completion_ids, **_):
    rows.extend(list(ids) for ids in completion_ids)
    return tiny.parity(completions)


options = {"stop_strings": tiny.STOPS, "suppress_tokens": [own.eos_token_id, own.pad_token_id]}
args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO, generation_kwargs=options)
trainer = GRPOTrainer(tiny.model(own), reward, args, tiny.prompts(), processing_class=own)
should = "generation stops at the strings, and a completion has no pads behind its stop"
try:
    trainer.train()
except ValueError as error:
    if "tokenizer" not in str(error):
        raise
    tiny.verdict(True, f"ValueError: {' '.join(str(error).split())}", should)
pads = sum(ids.count(own.pad_token_id) for ids in rows)
tiny.verdict(
    pads > 0, f"a step was trained, on completions of {[len(ids) for ids in rows]} tokens, {pads} of them pads", should
)
