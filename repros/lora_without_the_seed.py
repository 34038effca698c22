"""LoRA's first weights do not depend on `seed` (fixed in TRL 1.15.0).

Cause: the adapter was made before the trainer set its seed, so its random half came from whatever the process had drawn
before (trl/trainer/grpo_trainer.py:447 and 1083 on 1.12.0). Since 1.15.0 the seed is set first (331-333 on 1.16.0).
Harm: two runs with one seed start from different adapters. So the same recipe does not give the same run, and nobody can
repeat a run from its seed. A cosine of 0.00002 between the adapters of two arms with one seed was reported.
Met by: a peft_config (GRPO, RLOO).
Reported: huggingface/trl#6688.
Patch: none is needed from 1.15.0 on. patches/lora_without_the_seed.diff is for 1.12.0.
"""

import tempfile

import tiny
import torch
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

own = tiny.tokenizer()
base = tiny.model(own)
folder = tempfile.mkdtemp()
base.save_pretrained(folder)
own.save_pretrained(folder)


def adapter(drawn_before: int) -> torch.Tensor:
    """LoRA's weights in a run with seed=1, in a process that has drawn some random numbers."""
    torch.rand(drawn_before)
    args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO, seed=1)
    lora = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
    trainer = GRPOTrainer(folder, tiny.parity, args, tiny.prompts(), processing_class=own, peft_config=lora)
    return torch.cat([p.detach().flatten() for name, p in trainer.model.named_parameters() if "lora_A" in name])


one, two = adapter(0), adapter(1)
cosine = torch.nn.functional.cosine_similarity(one, two, dim=0).item()
tiny.verdict(
    not torch.equal(one, two),
    f"the first LoRA weights of two runs with seed=1: cosine {cosine:.3f}",
    "the same weights, cosine 1",
)
