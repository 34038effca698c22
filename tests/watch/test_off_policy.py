"""Losses that are right while every ratio is 1 and wrong afterwards: `check_step` finds them before the first update."""

from typing import Any

import numpy as np
import pytest
import torch
import trl
from conftest import daily
from step_cases import make

from workbench import check_step
from workbench.training.record_step import record_step
from workbench.training.step_numbers import kind_of, step_of
from workbench.watch.off_policy import _LOSS_TYPES, ask_off_policy, limits_of, log_ratios

pytestmark = pytest.mark.slow

OFTEN: dict[str, Any] = {"num_iterations": 2}


class SwapsLimits:
    def _compute_loss(self, model, inputs):
        self.epsilon_low, self.epsilon_high = self.epsilon_high, self.epsilon_low
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.epsilon_low, self.epsilon_high = self.epsilon_high, self.epsilon_low


class Swapped(SwapsLimits, trl.GRPOTrainer):
    pass


class SwappedRloo(SwapsLimits, trl.RLOOTrainer):
    pass


class Unclipped(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        self.epsilon_low = self.epsilon_high = 1e9
        return super()._compute_loss(model, inputs)


class LargerBranch(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        smaller, torch.min = torch.min, torch.max
        try:
            return super()._compute_loss(model, inputs)
        finally:
            torch.min = smaller


class IgnoresOld(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, {**inputs, "old_per_token_logps": None})


class PolicyForReference(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            scored = self._get_per_token_logps_and_entropies(model, ids, mask, inputs["completion_ids"].shape[1])
        return super()._compute_loss(model, {**inputs, "ref_per_token_logps": scored[0]})


class OldForReference(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, {**inputs, "ref_per_token_logps": inputs["old_per_token_logps"]})


def own_loss(ratio_of, kl_of):
    """GRPO's loss with another ratio and KL."""

    class Own(trl.GRPOTrainer):
        def _compute_loss(self, model, inputs):
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
            there = inputs["completion_mask"]
            scored = self._get_per_token_logps_and_entropies(model, ids, mask, there.shape[1], compute_entropy=True)
            ratio = ratio_of(scored[0] - inputs["old_per_token_logps"], there)
            advantages = inputs["advantages"][:, None]
            clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
            loss = -torch.min(ratio * advantages, clipped * advantages)
            kl = kl_of(inputs["ref_per_token_logps"] - scored[0])
            loss = loss + self.beta * (kl * ratio if self.args.use_bias_correction_kl else kl)
            return ((loss * there).sum(-1) / there.sum(-1)).mean() / self.current_gradient_accumulation_steps

    return Own


def of_token(log_ratio, mask):
    return log_ratio.exp()


def of_sequence(log_ratio, mask):
    return ((log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp()


def of_sum(log_ratio, mask):
    return (log_ratio * mask).sum(-1, keepdim=True).exp()


def k3(log_ratio):
    return log_ratio.exp() - log_ratio - 1


def k1(log_ratio):
    return -log_ratio


class SwappedTemperatures(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        args = self.args
        args.sapo_temperature_pos, args.sapo_temperature_neg = args.sapo_temperature_neg, args.sapo_temperature_pos
        try:
            return super()._compute_loss(model, inputs)
        finally:
            args.sapo_temperature_pos, args.sapo_temperature_neg = args.sapo_temperature_neg, args.sapo_temperature_pos


class UnclippedRloo(trl.RLOOTrainer):
    def _compute_loss(self, model, inputs):
        self.epsilon_low = self.epsilon_high = 1e9
        return super()._compute_loss(model, inputs)


def of_type(loss_type):
    class OfType(trl.GRPOTrainer):
        def _compute_loss(self, model, inputs):
            self.loss_type = loss_type
            return super()._compute_loss(model, inputs)

    return OfType


GSPO = {"importance_sampling_level": "sequence", "loss_type": "grpo"}
KL_OF_GRPO = {"beta": 0.1, "loss_type": "grpo"}
PLAIN_KL = {"beta": 0.1, "use_bias_correction_kl": False}
# Name -> the trainer, its settings, the stage and words of the cause.
FAULTS: dict[str, tuple[type, dict[str, Any], str, str]] = {
    "clip range": (Swapped, {"epsilon_high": 0.4}, "loss", "epsilon and epsilon_high in each other's place"),
    "no clip": (Unclipped, {}, "loss", "as without a clip"),
    "larger branch": (LargerBranch, {}, "loss", "the larger of the plain and the clipped"),
    "larger branch, KL": (LargerBranch, {"beta": 0.1}, "loss", "the larger of the plain and the clipped"),
    "old ignored": (IgnoresOld, {}, "ratios", "as if every ratio were 1"),
    "policy for reference": (PolicyForReference, {"beta": 0.1}, "loss", "the reference were the policy itself"),
    "old for reference": (OldForReference, {"beta": 0.1}, "loss", "the reference were the policy that sampled"),
    "k1": (own_loss(of_token, k1), KL_OF_GRPO, "loss", "as with k1"),
    "k1, plain KL": (own_loss(of_token, k1), {**KL_OF_GRPO, "use_bias_correction_kl": False}, "loss", "as with k1"),
    "k1, sequence": (own_loss(of_sequence, k1), {**KL_OF_GRPO, **GSPO}, "loss", "as with k1"),
    "sum of a sequence": (own_loss(of_sum, k3), {**PLAIN_KL, **GSPO}, "ratios", "the sum of a sequence's log-ratios"),
    "tokens for a sequence": (
        own_loss(of_token, k3),
        {**KL_OF_GRPO, **GSPO},
        "ratios",
        "importance_sampling_level='token'",
    ),
    "SAPO": (SwappedTemperatures, {"loss_type": "sapo"}, "loss", "SAPO's two temperatures"),
    "RLOO, clip range": (SwappedRloo, {"epsilon_high": 0.4}, "loss", "epsilon and epsilon_high in each other's place"),
    "RLOO, no clip": (UnclippedRloo, {}, "loss", "as without a clip"),
    "cispo": (of_type("cispo"), {}, "loss", "as loss_type='cispo' does"),
    "vespo": (of_type("vespo"), {}, "loss", "as loss_type='vespo' does"),
    "sapo": (of_type("sapo"), {"loss_type": "grpo"}, "loss", "as loss_type='sapo' does"),
    "dapo": (of_type("dapo"), {"loss_type": "cispo"}, "loss", "as loss_type='dapo' does"),
}


@pytest.mark.parametrize("settings, ratio", [(KL_OF_GRPO, of_token), (KL_OF_GRPO | GSPO, of_sequence)])
def test_a_right_loss_of_ones_own_is_the_same(settings, ratio, tmp_path):
    report = check_step(make(tmp_path, own_loss(ratio, k3), **OFTEN, **settings))
    assert report.first is None and report["ratios"].verdict == report["loss"].verdict == "same", report


@pytest.mark.parametrize(
    "name",
    daily(
        FAULTS,
        "clip range",
        "no clip",
        "old ignored",
        "policy for reference",
        "k1",
        "tokens for a sequence",
        "RLOO, no clip",
        "cispo",
    ),
)
def test_a_fault_that_ratios_of_1_hide_is_named(name, tmp_path):
    cls, settings, stage, cause = FAULTS[name]
    first = check_step(make(tmp_path, cls, **OFTEN, **settings)).first
    assert first is not None and first.name == stage and cause in first.cause, first
    assert "question" in first.where and "defined" in first.where, first.where


def asked(trainer):
    record = record_step(trainer)
    return ask_off_policy(trainer, step_of(trainer, kind_of(trainer), record), record)


PLAIN: dict[str, Any] = {}
RICH = {"beta": 0.05, "epsilon_high": 0.28, "top_entropy_quantile": 0.5, "entropy_coef": 0.1}
MASKED = {"beta": 0.05, "use_bias_correction_kl": True, "off_policy_mask_threshold": 0.1}


# Each loss from day to day with many settings at once, and one of them also by sequences and with masked rows.
@pytest.mark.parametrize("more", daily([PLAIN, RICH, MASKED], RICH), ids=["plain", "rich", "masked"])
@pytest.mark.parametrize("level", daily(["token", "sequence"], "token"))
@pytest.mark.parametrize("loss_type", _LOSS_TYPES)
def test_trl_answers_as_defined(loss_type, level, more, tmp_path):
    settings = {"loss_type": loss_type, "importance_sampling_level": level, **more, **OFTEN}
    got = asked(make(tmp_path, max_completion_length=8, **settings))
    assert not got.problem and not got.cause and got.wrong < 1e-5, got
    assert "old log-probs, ratios of" in got.said


OTHERS: list[dict[str, Any]] = [
    {"delta": 1.5}, {"epsilon": 3e-4, "epsilon_high": 4e-4, **GSPO}, {"gradient_accumulation_steps": 2},
    {"cls": trl.RLOOTrainer, "beta": 0.1, "gradient_accumulation_steps": 2, "epsilon_high": 0.28},
    {"bf16": True, "beta": 0.1}, MASKED,
]  # fmt: skip


@pytest.mark.parametrize("settings", daily(OTHERS, OTHERS[1], OTHERS[3], MASKED))
def test_trl_answers_as_defined_in_other_settings(settings, tmp_path):
    got = asked(make(tmp_path, max_completion_length=8, **OFTEN, **settings))
    assert not got.problem and not got.cause and got.wrong < 1e-5, got


class Corrected(trl.GRPOTrainer):
    """With the inputs that vLLM gives: the sampler's log-probs and weights."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["sampling_per_token_logps"] = output["old_per_token_logps"] + 0.01
        columns = 1 if self.vllm_importance_sampling_mode.startswith("sequence") else output["completion_ids"].shape[1]
        return output | {"importance_sampling_ratio": torch.ones(len(inputs), columns)}

    def _compute_loss(self, model, inputs):
        self.use_vllm = True
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.use_vllm = False


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
@pytest.mark.parametrize("loss_type", daily(["dapo", "vespo"], "dapo"))
def test_weights_of_the_sampler_are_asked_too(loss_type, mode, tmp_path):
    settings = {"vllm_importance_sampling_mode": mode, "off_policy_mask_threshold": 0.1, "loss_type": loss_type}
    got = asked(make(tmp_path, Corrected, max_completion_length=8, **OFTEN, **settings))
    assert not got.problem and not got.cause and got.wrong < 1e-5, got


def test_without_several_updates_no_ratio_is_asked(tmp_path):
    report = check_step(make(tmp_path))
    assert "ratios" not in {stage.name for stage in report.stages}
    assert report["loss"].verdict == "same" and "every ratio is 1 with these settings" in report["loss"].cause


def test_of_several_updates_ratios_are_the_same_if_asked(tmp_path):
    report = check_step(make(tmp_path, **OFTEN))
    assert report["ratios"].verdict == "same" and "ratios of 0." in report["ratios"].cause


class RaisesWhenAsked(trl.GRPOTrainer):
    losses = 0

    def _compute_loss(self, model, inputs):
        self.losses += 1
        if self.losses > 1:
            raise RuntimeError("asked twice")
        return super()._compute_loss(model, inputs)


def test_a_loss_that_cannot_be_asked_cannot_be_told(tmp_path):
    report = check_step(make(tmp_path, RaisesWhenAsked, **OFTEN))
    for name in ("ratios", "loss"):
        assert report[name].verdict == "cannot tell", report
        assert (
            "all ratios are 1, nothing of the clip was met" in report[name].cause
            and "asked twice" in report[name].cause
        )


class LossOfItsOwn(trl.GRPOTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        return model(ids).logits.float().square().mean()


def test_another_loss_that_calls_the_model_is_different(tmp_path):
    report = check_step(make(tmp_path, LossOfItsOwn, **OFTEN))
    assert report["loss"].verdict == report["gradient"].verdict == "different", report
    assert report.first.name == "loss"


class WithPenalty(trl.GRPOTrainer):
    """A loss that is meant to be another: it is called different, with how far it is off."""

    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs) + 0.01 * inputs["advantages"].sum()


def test_a_loss_that_is_meant_to_differ_is_different(tmp_path):
    loss = check_step(make(tmp_path, WithPenalty, **OFTEN))["loss"]
    assert loss.verdict == "different" and "the loss is off by up to" in loss.cause and "value" in loss.where


def test_asking_leaves_the_trainer_as_it_was(tmp_path):
    trainer = make(tmp_path, **OFTEN, beta=0.1)
    record = record_step(trainer)
    step = step_of(trainer, "GRPO", record)
    weights = [p.detach().clone() for p in trainer.model.parameters()]
    attributes, states = dict(vars(trainer)), (torch.random.get_rng_state(), np.random.get_state()[1].tolist())
    modes = [module.training for module in trainer.model.modules()]
    logged = {mode: dict(values) for mode, values in trainer._metrics.items()}
    assert not ask_off_policy(trainer, step, record).cause
    assert vars(trainer) == attributes and {m: dict(v) for m, v in trainer._metrics.items()} == logged
    assert all(map(torch.equal, weights, trainer.model.parameters()))
    assert torch.equal(states[0], torch.random.get_rng_state()) and states[1] == np.random.get_state()[1].tolist()
    assert modes == [module.training for module in trainer.model.modules()]
    assert all(p.grad is None for p in trainer.model.parameters())


@pytest.mark.parametrize("level", ["token", "mean", "sum"])
def test_noise_meets_each_limit_on_both_sides_and_is_at_none(level, tmp_path):
    step = step_of(trainer := make(tmp_path, delta=1.5, **OFTEN), "GRPO", record_step(trainer))
    limits = limits_of(step)
    assert np.exp(limits).round(3).tolist() == [0.8, 1.2, 1.5]
    mask = np.ones((64, 20))
    moves = log_ratios(np.random.default_rng(0), mask, 0.4, level, limits)
    taken = {"token": moves, "mean": moves.mean(1), "sum": moves.sum(1)}[level]
    for limit in limits:
        assert (taken < limit).any() and (taken > limit).any() and np.abs(taken - limit).min() > 1e-3
