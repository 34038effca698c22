"""`generation_kwargs={"stop": ...}`, vLLM's name, is ignored on transformers, without an error.

Cause: transformers' GenerationConfig keeps names that it does not know, and generates without them
(trl/trainer/grpo_trainer.py:1171-1175, 1867 on 1.16.0; RLOO, rloo_trainer.py:803-807, 1379). Only `stop_strings` ends in an
error.
Harm: completions run to the length limit. Each step costs more, the reward function reads what follows the stop, and the log
shows only a clipped_ratio of 1. Settings that worked on vLLM lose their stops.
Met by: vLLM's names in generation_kwargs (`stop`, `stop_token_ids`, `max_tokens`) without vLLM (GRPO, RLOO).
Reported: not found; huggingface/trl#2820 asks for stop strings.
Patch: refuse names that GenerationConfig does not have.
"""

import tempfile

import tiny
from trl import GRPOConfig, GRPOTrainer

own, rows = tiny.tokenizer(), []


def reward(completions, **_):
    rows.extend(completions)
    return tiny.parity(completions)


options = {"stop": tiny.STOPS, "suppress_tokens": [own.eos_token_id, own.pad_token_id]}
args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO, generation_kwargs=options)
should = "generation stops at the strings, or an error names the option"
try:
    trainer = GRPOTrainer(tiny.model(own), reward, args, tiny.prompts(), processing_class=own)
except ValueError as error:
    if "'stop'" not in str(error):
        raise
    tiny.verdict(False, f"ValueError: {' '.join(str(error).split())}", should)
trainer.train()
past = [row for row in rows if any(stop in row[:-1] for stop in tiny.STOPS)]
tiny.verdict(
    bool(past),
    f"{len(past)} of {len(rows)} completions go on behind a stop of {tiny.STOPS}, as {past[:1]}; "
    f"clipped_ratio {trainer.state.log_history[0]['completions/clipped_ratio']:g}, no error",
    should,
)
