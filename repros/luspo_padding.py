"""With loss_type="luspo" pads add to the gradient, and rows count by their length squared (fixed in TRL 1.10.0).

Cause: the loss is the mean of `per_token_loss * mask.sum(1, keepdim=True)` (trl/trainer/grpo_trainer.py:3148 on 1.9.2, 2405
on 1.0.0). That is right if per_token_loss has the shape (B, 1). It has (B, T), pads included, at
importance_sampling_level="token", with a KL term, with an entropy mask and with a token mode of vLLM's correction.
Harm: at the first update the loss is right, since every ratio is 1, and its gradient is not. Pads move the weights. A row of
n tokens in a batch of width T counts n / T times what it should: the length bias that this loss removes.
Met by: loss_type="luspo" with importance_sampling_level="token" (the default, at which TRL warns), beta > 0,
top_entropy_quantile < 1, or use_vllm=True with a mode token_truncate or token_mask (GRPO).
Reported: huggingface/trl#6654.
Patch: none is needed from 1.10.0 on. patches/luspo_padding.diff is for 1.9.2.
"""

import tempfile

import tiny
from trl import GRPOConfig, GRPOTrainer

SETTINGS = {
    "importance_sampling_level='token'": {},
    "'sequence' with beta=0.1": {"importance_sampling_level": "sequence", "beta": 0.1},
}
shares = {}


class Sloped(GRPOTrainer):
    """Notes for its setting which share of the loss's slopes by the log-probs is that of pads."""

    setting = ""

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        logps, *rest = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if logps.requires_grad:
            logps.retain_grad()
            self.logps = logps
        return logps, *rest

    def training_step(self, model, inputs, *args, **kwargs):
        loss = super().training_step(model, inputs, *args, **kwargs)
        pads = self._buffered_inputs[0]["completion_mask"] == 0
        slopes = self.logps.grad.abs()
        shares[self.setting] = float(slopes[pads].sum() / slopes.sum())
        return loss


own, folder = tiny.tokenizer(), tempfile.mkdtemp()
tiny.model(own).save_pretrained(folder)  # the reference of the KL term is loaded from there
for setting, own_fields in SETTINGS.items():
    # The second update counts: in the first one the policy is its reference, and the KL term has no slope.
    fields = {"loss_type": "luspo", "per_device_train_batch_size": 32, "max_steps": 2, "learning_rate": 0.05}
    args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO | fields | own_fields)
    trainer = Sloped(folder, tiny.parity, args, tiny.prompts(*tiny.WORDS * 4), processing_class=own)
    trainer.setting = setting
    trainer.train()
tiny.verdict(
    any(share > 1e-6 for share in shares.values()),
    "share of pads in the slopes of the loss: " + ", ".join(f"{share:.1%} at {name}" for name, share in shares.items()),
    "0.0% at any setting",
)
