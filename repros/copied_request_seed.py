"""A `seed` in generation_kwargs makes all completions of a group the same, with vLLM in process.

Cause: TRL sends each completion of a group as a request of its own (n=1), and all requests get the same SamplingParams, seed
included (trl/generation/vllm_generation.py:663, 672 on 1.16.0). The docstring of generation_kwargs recommends `seed` (line
210).
Harm: the rewards of a group do not differ, so every advantage is 0. The run costs as much as any other and learns nothing.
In server mode (n = num_generations) vLLM adds the index to the seed and a group is fine, but two groups with one prompt are
the same.
Met by: `seed` in generation_kwargs with use_vllm=True and vllm_mode="colocate" (GRPO, RLOO).
Reported: not found.
Patch: add the row's index to the seed.
"""

import tempfile

import engine
import tiny
from trl import GRPOConfig, GRPOTrainer

own, rows = tiny.tokenizer(), []


def reward(completions, **_):
    rows.extend(completions)
    return [float(len(text)) for text in completions]


fields = tiny.GRPO | engine.COLOCATE | {"vllm_max_model_length": 64}
args = GRPOConfig(tempfile.mkdtemp(), **fields, generation_kwargs={"seed": 7})
trainer = GRPOTrainer(engine.folder(own), reward, args, tiny.prompts(), processing_class=own)
engine.without_sync(trainer).train()
different = [len(set(rows[start : start + 4])) for start in range(0, len(rows), 4)]
log = trainer.state.log_history[0]
tiny.verdict(
    max(different) == 1,
    f"different completions in each group of 4: {different}, as {rows[0]!r}; reward_std {log['reward_std']}, "
    f"grad_norm {log['grad_norm']}",
    "4 random samples a group, the same in every run with the seed",
)
