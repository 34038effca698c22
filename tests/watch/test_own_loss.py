"""A loss that calls the model itself, in place of TRL's scoring method: its value and gradient against the definition."""

import pytest
import torch
import trl
from peft import LoraConfig
from step_cases import make

from workbench import check_step
from workbench.watch.attach import StepCheck

pytestmark = pytest.mark.slow


class TakesLogits:
    """Logits (B, T, V) at the tokens of the completions, and their log-probs (B, T)."""

    first = -1  # where the logits of the first token of a completion stand, counted from it

    def logits_of(self, model, inputs):
        ids, mask = (
            torch.cat([inputs[f"{part}_{kind}"] for part in ("prompt", "completion")], dim=1)
            for kind in ("ids", "mask")
        )
        start = inputs["prompt_ids"].shape[1] + self.first
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return logits[:, start : start + inputs["completion_ids"].shape[1]].float() / self.at_temperature()

    def at_temperature(self):
        return self.temperature

    def logps_of(self, logits, inputs):
        return logits.log_softmax(-1).gather(2, inputs["completion_ids"][..., None])[..., 0]


class OwnLoss(TakesLogits, trl.GRPOTrainer):
    """The loss of `loss_type="grpo"` with clip and KL, from logits that it takes itself."""

    def log_ratios(self, logps, old, mask):
        return logps - old

    def smaller(self, plain, clipped):
        return torch.min(plain, clipped)

    def bonus(self, logits, mask):
        return 0.0

    def _compute_loss(self, model, inputs):
        mask, logits = inputs["completion_mask"].float(), self.logits_of(model, inputs)
        logps, old = self.logps_of(logits, inputs), inputs.get("old_per_token_logps")
        ratios = self.log_ratios(logps, logps.detach() if old is None else old, mask).exp()
        advantages = inputs["advantages"][:, None]
        clipped = ratios.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        loss = -self.smaller(ratios * advantages, clipped * advantages)
        if self.beta:
            off = inputs["ref_per_token_logps"] - logps
            weights = ratios if getattr(self.args, "use_bias_correction_kl", False) else 1.0
            loss = loss + self.beta * weights * (off.exp() - off - 1)
        loss = ((loss * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()
        return (loss + self.bonus(logits, mask)) / self.current_gradient_accumulation_steps


class OwnRLOO(TakesLogits, trl.RLOOTrainer):
    def _compute_loss(self, model, inputs):
        logps = self.logps_of(self.logits_of(model, inputs), inputs)
        ratios = ((logps * inputs["completion_mask"]).sum(1) - inputs["old_logps"]).exp()
        clipped, advantages = ratios.clamp(1 - self.epsilon_low, 1 + self.epsilon_high), inputs["advantages"]
        return -self.smaller(ratios * advantages, clipped * advantages).mean()

    def smaller(self, plain, clipped):
        return torch.min(plain, clipped)


class UnclippedRLOO(OwnRLOO):
    def smaller(self, plain, clipped):
        return plain


class InLogProbs(TakesLogits, trl.GRPOTrainer):
    """The same gradient as DAPO's before the policy moves, from another value."""

    def _compute_loss(self, model, inputs):
        logps, mask = self.logps_of(self.logits_of(model, inputs), inputs), inputs["completion_mask"]
        return -(logps * self.weights(inputs)[:, None] * mask).sum() / inputs["num_items_in_batch"]

    def weights(self, inputs):
        return inputs["advantages"]


class OtherSign(InLogProbs):
    def weights(self, inputs):
        return -inputs["advantages"]


class OwnSequences(OwnLoss):
    def log_ratios(self, logps, old, mask):
        return (((logps - old) * mask).sum(1) / mask.sum(1).clamp(min=1))[:, None].expand_as(logps)


class WithoutTemperature(OwnLoss):
    def at_temperature(self):
        return 1.0


class OneTokenLate(OwnLoss):
    first = 0


class LargerForSmaller(OwnLoss):
    def smaller(self, plain, clipped):
        return torch.max(plain, clipped)


class MeanOverPads(OwnLoss):
    def log_ratios(self, logps, old, mask):
        return ((logps - old) * mask).mean(1, keepdim=True).expand_as(logps)


class LessEntropy(OwnLoss):
    def bonus(self, logits, mask):
        logps = logits.log_softmax(-1)
        return 0.01 * (-(logps.exp() * logps).sum(-1) * mask).sum() / mask.sum()


TWICE, SEQUENCES = {"num_iterations": 2}, {"importance_sampling_level": "sequence", "num_iterations": 2}
PARTS = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_grad_norm": 0.1, "temperature": 0.8}
LORA = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.1)
HEALTHY = {
    "parts": (OwnLoss, PARTS, {}),
    "KL": (OwnLoss, {"beta": 0.1, **TWICE}, {}),
    "sequences": (OwnSequences, SEQUENCES, {}),
    "adapter": (OwnLoss, {"learning_rate": 1e-3}, {"peft_config": LORA}),
    "bf16": (OwnLoss, {"bf16": True}, {}),
    "log-probs": (InLogProbs, {"loss_type": "dapo"}, {}),
    "RLOO": (OwnRLOO, {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}, {}),
}
FAULTS = [
    (WithoutTemperature, {"temperature": 0.8}, "gradient", "cosine 0."),
    (WithoutTemperature, {"temperature": 0.5, "bf16": True}, "gradient", "cosine 0."),
    (OneTokenLate, {}, "gradient", "cosine 0."),
    (LargerForSmaller, TWICE, "loss", "the larger of the plain and the clipped loss for the smaller"),
    (MeanOverPads, SEQUENCES, "loss", "the loss is off by up to"),
    (OwnLoss, SEQUENCES, "ratios", "importance_sampling_level='token'"),
    (LessEntropy, {}, "loss", "loss_type 'grpo' gives another loss"),
    (OwnLoss, {"loss_type": "dapo"}, "loss", "the loss answers as loss_type='grpo' does"),
    (OtherSign, {"loss_type": "dapo"}, "loss", "loss_type 'dapo' gives another loss"),
    (UnclippedRLOO, {}, "loss", "the loss answers as without a clip"),
]


def of_kind(cls, settings):
    return settings if issubclass(cls, trl.RLOOTrainer) else {"loss_type": "grpo"} | settings


@pytest.mark.parametrize("name", HEALTHY)
def test_an_own_loss_as_it_is_defined_is_the_same(name, tmp_path):
    cls, settings, more = HEALTHY[name]
    report = check_step(make(tmp_path, cls, **of_kind(cls, settings), more=more))
    assert report.first is None, report
    assert report["gradient"].verdict in ("same", "rounding"), report
    assert report["loss"].verdict == ("cannot tell" if name in ("bf16", "adapter") else "same"), report


@pytest.mark.parametrize("cls, settings, stage, cause", FAULTS)
def test_a_fault_in_an_own_loss_is_found(cls, settings, stage, cause, tmp_path):
    first = check_step(make(tmp_path, cls, **of_kind(cls, settings))).first
    assert first is not None and first.name == stage and cause in first.cause, first


def test_dropout_in_an_own_loss_is_no_difference(tmp_path):
    settings = {"num_iterations": 2, "max_steps": 2, "learning_rate": 1e-3, "beta": 0.1, "disable_tqdm": True}
    trainer = make(tmp_path, OwnLoss, loss_type="grpo", **settings, more={"peft_config": LORA})
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    verdicts = {name: check.reports[2][name].verdict for name in ("loss", "gradient")}
    assert verdicts["loss"] == "cannot tell" and verdicts["gradient"] != "different", check.reports[2]
