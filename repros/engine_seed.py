"""With vLLM in process, runs of different seeds draw the same samples.

Cause: the engine's seed is `accelerator.process_index // self.tensor_parallel_size` (trl/generation/vllm_generation.py:357
on 1.16.0; OnlineDPO, experimental/online_dpo/online_dpo_trainer.py:499), without `args.seed`. The trainer seeds the process
with its own seed first, and then vLLM seeds the whole process with this one.
Harm: `seed=1`, `seed=2` and `seed=3` start from the same random numbers. Only the order of the data differs. If that is
fixed (one prompt, shuffle_dataset=False), the first step is the same in all runs, and an error bar over seeds is too small.
Met by: use_vllm=True with vllm_mode="colocate" (GRPO, RLOO, OnlineDPO).
Reported: huggingface/trl#7040 (a pull request, closed).
Patch: add args.seed.
"""

import json
import subprocess
import sys
import tempfile

import engine
import tiny
from trl import GRPOConfig, GRPOTrainer


def samples(seed: int) -> list[str]:
    own, rows = tiny.tokenizer(), []
    fields = tiny.GRPO | engine.COLOCATE | {"vllm_max_model_length": 64, "seed": seed}
    args, data = GRPOConfig(tempfile.mkdtemp(), **fields), tiny.prompts(*["the red fox"] * 4)

    def reward(completions, **_):
        rows.extend(completions)
        return tiny.parity(completions)

    engine.without_sync(GRPOTrainer(engine.folder(own), reward, args, data, processing_class=own)).train()
    return rows


if sys.argv[1:]:  # the second run is a process of its own: an engine stays
    tiny.stop(0, json.dumps(samples(2)))
second = subprocess.run([sys.executable, __file__, "second"], capture_output=True, text=True)
if second.returncode:
    tiny.cannot_run(second.stdout.splitlines()[-2])
one, two = samples(1), json.loads(second.stdout.splitlines()[-2])
same = sum(a == b for a, b in zip(one, two, strict=True))
tiny.verdict(
    same == len(one),
    f"{same} of {len(one)} completions of the first step are the same with seed=1 and seed=2: {one[:2]}, {two[:2]}",
    "another seed, other samples",
)
