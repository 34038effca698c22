"""With mask_truncated_completions the loss is still divided by the tokens that were left out (fixed in TRL 1.9.0).

Cause: `dapo`, the default loss, divides by num_items_in_batch, counted before truncated completions are masked
(trl/trainer/grpo_trainer.py:2081, 3006 on 1.8.0; `cispo` and `vespo` too). The tokens of masked completions are in the
divisor and not in the sum.
Harm: the gradient shrinks with the share of truncated tokens, at each step by another factor. A batch in which most
completions are truncated counts least. In a run that learns to end, the gradients grow, though nobody has set that.
Met by: loss_type `dapo` (the default), `cispo` or `vespo` with mask_truncated_completions=True (GRPO).
Reported: huggingface/trl#6439.
Patch: none is needed from 1.9.0 on. patches/loss_scale_masked.diff is for 1.8.0.
"""

import tempfile

import tiny
import torch
from trl import GRPOConfig, GRPOTrainer

seen = {}


class Weighed(GRPOTrainer):
    """Each token's loss is 1, so the loss of an update is the scale of its gradient."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        seen["kept"] = int(inputs["completion_mask"].sum())
        ones = inputs | {"advantages": -torch.ones_like(inputs["advantages"])}
        loss = super().compute_loss(model, ones, *args, **kwargs)
        seen["loss"] = loss.item()
        return loss


def reward(completions, completion_ids, **_):
    seen["tokens"] = sum(map(len, completion_ids))
    return tiny.parity(completions)


own = tiny.tokenizer()
fields = {"mask_truncated_completions": True, "loss_type": "dapo", "per_device_train_batch_size": 32}
args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO | fields)
Weighed(tiny.model(own), reward, args, tiny.prompts(*tiny.WORDS * 2), processing_class=own).train()
kept, tokens, loss = seen["kept"], seen["tokens"], seen["loss"]
tiny.verdict(
    0 < kept < tokens and abs(loss - 1) > 0.01,
    f"{kept} of {tokens} tokens are of completions that ended; their mean loss is 1, the update's is {loss:.3f}",
    "1.000",
)
