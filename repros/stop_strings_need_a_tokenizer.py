"""`generation_kwargs={"stop_strings": ...}` cannot be used with transformers.

Cause: transformers' `generate` needs `tokenizer=` for stop strings, and GRPOTrainer calls it without one
(trl/trainer/grpo_trainer.py:1873 on 1.16.0; RLOO, rloo_trainer.py:1385; OnlineDPO, online_dpo_trainer.py:1046).
Harm: the first step ends in a ValueError, after the model is loaded. Whoever wants a text to stop at has to find token ids
for it, which most texts do not have. Asked for in huggingface/trl#2820.
Patch: pass the tokenizer.
"""

import tempfile

import tiny
from trl import GRPOConfig, GRPOTrainer

own = tiny.tokenizer()
args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO, generation_kwargs={"stop_strings": ["a", "e", "o"]})
trainer = GRPOTrainer(tiny.model(own), tiny.parity, args, tiny.prompts(), processing_class=own)
should = "generation stops at the strings"
try:
    trainer.train()
except ValueError as error:
    if "tokenizer" not in str(error):
        raise
    tiny.verdict(True, f"ValueError: {' '.join(str(error).split())}", should)
tiny.verdict(False, f"a step was trained: {trainer.state.log_history[0]}", should)
