"""The gradient's scale depends on steps_per_generation / gradient_accumulation_steps (fixed in TRL 1.9.1).

Cause: `dapo`, the default loss, divides by the tokens of the whole generation batch (trl/trainer/grpo_trainer.py:3006 on
1.8.0; `cispo` and `vespo` too), but an update sums over one accumulation window. The two are equal only if they have equally
many batches. The other losses divide by the accumulation steps.
Harm: the gradient is twice too small with 4 batches per generation and 2 per update, and twice too large with 2 and 4. Adam
undoes a constant factor; max_grad_norm and SGD do not. The KL term is scaled too.
Met by: loss_type `dapo` (the default), `cispo` or `vespo` with steps_per_generation or generation_batch_size set so that a
generation has another number of batches than gradient_accumulation_steps (GRPO).
Reported: huggingface/trl#5619, #6024.
Patch: none is needed from 1.9.1 on. patches/loss_scale_window.diff is for 1.8.0.
"""

import tempfile

import tiny
import torch
from trl import GRPOConfig, GRPOTrainer

PER_GENERATION, UPDATES = 4, 2
sums = {}


class Weighed(GRPOTrainer):
    """Each token's loss is 1, so what an update sums over its window is the scale of its gradient."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        ones = inputs | {"advantages": -torch.ones_like(inputs["advantages"])}
        return super().compute_loss(model, ones, *args, **kwargs)

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        sums.setdefault(accumulated, []).append(loss.item())
        return loss


for accumulated in (2, 4, 8):  # over, as many as, and fewer batches than a generation
    fields = {"steps_per_generation": PER_GENERATION, "gradient_accumulation_steps": accumulated}
    # At rate 0 the ratio of the policy to itself stays 1.
    fields |= {"learning_rate": 0.0, "max_steps": UPDATES, "loss_type": "dapo"}
    args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO | fields)
    own = tiny.tokenizer()
    data = tiny.prompts(*tiny.WORDS * 8)
    Weighed(tiny.model(own), tiny.parity, args, data, processing_class=own).train()
scales = {n: sum(each) / UPDATES for n, each in sums.items()}
tiny.verdict(
    any(abs(scale - 1) > 0.01 for scale in scales.values()),
    f"tokens of loss 1, {PER_GENERATION} batches a generation: the mean loss of an update is "
    + ", ".join(f"{scale:.2f} with {n} batches an update" for n, scale in scales.items()),
    "1.00 with any number",
)
