"""The cause that `check_step` names is the one without which the difference goes; else it says what was tested."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import trl
from conftest import daily
from step_cases import CopiedSamples, make
from transformers import AutoModelForCausalLM

from workbench.experiments.recipes import resolve_model
from workbench.training.grpo import GRPOTrainer
from workbench.training.record_step import dropouts_of
from workbench.watch.attach import StepCheck
from workbench.watch.causes import cause_of_sampling, sampled_with, shifted
from workbench.watch.check_step import check_step

pytestmark = pytest.mark.slow


class Scoring(trl.GRPOTrainer):
    """A trainer that changes the log-probs of its scoring in the loss."""

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs):
        logps, *others = super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )
        return self.changed(logps, model, input_ids, attention_mask), *others

    def changed(self, logps, model, input_ids, attention_mask):
        return logps


class ForgottenTemperature(Scoring):
    def changed(self, logps, model, input_ids, attention_mask):
        table = model(input_ids=input_ids, attention_mask=attention_mask).logits[:, :-1].float().log_softmax(-1)
        return table.gather(-1, input_ids[:, 1:, None])[..., 0][:, -logps.shape[1] :]


class ShiftedByOne(Scoring):
    def changed(self, logps, model, input_ids, attention_mask):
        return logps.roll(1, dims=1)


class LaterDistribution(Scoring):
    def changed(self, logps, model, input_ids, attention_mask):
        table = model(input_ids=input_ids, attention_mask=attention_mask).logits.float().log_softmax(-1)
        return table.gather(-1, input_ids[..., None])[..., 0][:, -logps.shape[1] :]


class OverLength(Scoring):
    def changed(self, logps, model, input_ids, attention_mask):
        return logps / attention_mask[:, -logps.shape[1] :].sum(1, keepdim=True)


class MeanOfAll(Scoring):
    def changed(self, logps, model, input_ids, attention_mask):
        there = attention_mask[:, -logps.shape[1] :]
        return ((logps * there).sum(1, keepdim=True) / there.sum(1, keepdim=True)).expand_as(logps)


class RoundedToBf16(Scoring):
    def changed(self, logps, model, input_ids, attention_mask):
        return logps.bfloat16().float()


class OwnAutocast(trl.GRPOTrainer):
    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        with torch.autocast("cpu", torch.bfloat16):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)


class Smoothed(Scoring):
    """Each row's log-probs have a part of those of its neighbour in the batch."""

    def changed(self, logps, model, input_ids, attention_mask):
        return logps + 0.1 * (logps.roll(1, dims=0) - logps)


class Cubed(Scoring):
    """What no suspect explains."""

    def changed(self, logps, model, input_ids, attention_mask):
        return logps - 0.01 * logps**3


class OnlyOnce(Scoring):
    calls = 0

    def changed(self, logps, model, input_ids, attention_mask):
        OnlyOnce.calls += 1
        return logps + 0.1 if OnlyOnce.calls == 1 else logps


class Noise(Scoring):
    def changed(self, logps, model, input_ids, attention_mask):
        return logps + 0.1 * torch.randn_like(logps)


class LeftOutInLoss(trl.GRPOTrainer):
    """The loss takes another mask than the one it gets."""

    def _compute_loss(self, model, inputs):
        mask = inputs["completion_mask"].clone()
        mask[torch.arange(len(mask)), mask.sum(1) - 1] = 0
        return super()._compute_loss(model, inputs | {"completion_mask": mask})


class MoreLoss(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs) - 0.05


def with_attention_dropout():
    model = AutoModelForCausalLM.from_pretrained(resolve_model("starter"), attn_implementation="eager")
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
    return model


def starter(dtype):
    return AutoModelForCausalLM.from_pretrained(resolve_model("starter"), dtype=dtype)


# Name -> what makes the trainer, and words of the cause.
LOGPROBS = {
    "temperature": (
        lambda: {"cls": ForgottenTemperature, "temperature": 0.7},
        "they are at temperature 1, args.temperature is 0.7",
    ),
    "attention dropout": (
        lambda: {"model": with_attention_dropout()},
        "the model has dropout, which is on while it trains (attention_dropout=0.3)",
    ),
    "shift": (lambda: {"cls": ShiftedByOne}, "each is that of the token before it"),
    "logits behind the token": (lambda: {"cls": LaterDistribution}, "each is of the distribution behind its token"),
    "over the length": (lambda: {"cls": OverLength}, "each is divided by the length of its completion"),
    "mean over the length": (lambda: {"cls": MeanOfAll}, "each is the mean over its completion"),
    "rounding": (lambda: {"cls": RoundedToBf16}, "they are rounded to bfloat16"),
    "autocast": (lambda: {"cls": OwnAutocast}, "autocast rounds them"),
    "neighbours": (lambda: {"cls": Smoothed}, "rows of a batch move one another"),
    "positions": (lambda: {"model": "starter-gpt2", "disable_dropout": True}, "with position ids that count no pads"),
    "padding and dropout": (lambda: {"model": "starter-gpt2"}, "padding and dropout together ("),
    "dropout": (lambda: {"model": "starter-gpt2", "cls": GRPOTrainer}, "the model has dropout"),
    "left out in the loss": (lambda: {"cls": LeftOutInLoss}, "the loss leaves out 8 tokens that its mask has"),
    "only once": (lambda: {"cls": OnlyOnce}, "scored once more they agree"),
    "noise": (lambda: {"cls": Noise}, "scored once more they are others"),
}


@pytest.mark.parametrize("name", daily(LOGPROBS, "temperature", "shift", "rounding", "positions", "dropout", "noise"))
def test_the_cause_of_other_log_probs_is_tested(name, tmp_path):
    options, cause = LOGPROBS[name]
    trainer = make(tmp_path, **options())
    state, modes = torch.random.get_rng_state(), [module.training for module in trainer.model.modules()]
    first = check_step(trainer).first
    assert first is not None and first.name == "log-probs" and cause in first.cause, first
    assert ("padding moves them" in first.cause) == (name == "positions")
    assert torch.equal(state, torch.random.get_rng_state())
    assert modes == [module.training for module in trainer.model.modules()]


def test_a_cause_that_is_not_found_lists_what_was_tested(tmp_path):
    first = check_step(make(tmp_path, Cubed)).first
    assert first.name == "log-probs"
    tested = first.cause.partition("cause not found; not: ")[2]
    for suspect in ("padding", "positions", "dropout", "temperature", "precision", "a shift by a token"):
        assert suspect in tested, first


@pytest.mark.rare
def test_bf16_weights_are_compared_in_float32_too(tmp_path):
    first = check_step(make(tmp_path, ShiftedByOne, model=starter(torch.bfloat16))).first
    assert "each is that of the token before it" in first.cause
    trainer = make(tmp_path, Cubed, model=starter(torch.bfloat16))
    first = check_step(trainer).first
    assert "cause not found" in first.cause and "precision" in first.cause
    assert {p.dtype for p in trainer.model.parameters()} == {torch.bfloat16}


def test_a_healthy_step_looks_for_no_cause(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.watch.judge.cause_of_logprobs", None)
    assert check_step(make(tmp_path)).first is None


class NoTruncated(trl.GRPOTrainer):
    """Rows that were cut are left out, though nobody has asked for it."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        ends = (output["completion_ids"] == self.processing_class.eos_token_id).any(dim=1)
        output["completion_mask"] = output["completion_mask"] * ends[:, None]
        return output


class NothingMasked(trl.GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["completion_mask"] = torch.ones_like(output["completion_mask"])
        return output


def test_rows_that_are_left_out_are_counted_by_their_end(tmp_path):
    mask = check_step(make(tmp_path, NoTruncated))["mask"]
    assert mask.verdict == "different" and "were truncated and are left out of the loss" in mask.cause, mask
    assert "though mask_truncated_completions is off" in mask.cause and "ended, but" not in mask.cause


def test_truncated_rows_that_stay_in_the_loss_are_named(tmp_path):
    mask = check_step(make(tmp_path, NothingMasked, mask_truncated_completions=True, max_completion_length=6))["mask"]
    assert mask.verdict == "different" and "were truncated, but are in the loss" in mask.cause, mask


def test_greedy_sampling_is_named_with_its_setting(tmp_path):
    first = check_step(make(tmp_path, generation_kwargs={"do_sample": False}, max_completion_length=32)).first
    assert first.name == "sampling" and "each token is the likeliest one" in first.cause, first
    assert "(do_sample=False)" in first.cause


def test_copies_that_the_trainer_made_are_not_the_sampler_s(tmp_path):
    first = check_step(make(tmp_path, CopiedSamples)).first
    assert "the sampler drew other ones, and the trainer put one in their place" in first.cause


class CopyingSampler(trl.GRPOTrainer):
    """The model's `generate` itself returns copies."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        original = self.model.generate

        def generate(*inputs, **options):
            ids = original(*inputs, **options)
            return ids[torch.arange(len(ids)) // self.num_generations * self.num_generations]

        self.model.generate = generate


def test_copies_without_a_cause_say_what_was_tested(tmp_path):
    cause = check_step(make(tmp_path, CopyingSampler)).first.cause
    assert "the sampler itself returned them; cause not found; not: greedy sampling, a seed" in cause


SAMPLED = [{"temperature": 0.3}, {"top_k": 3}, {"min_p": 0.3}]


@pytest.mark.parametrize("options", daily(SAMPLED, {"temperature": 0.3}))
def test_a_setting_of_the_sampler_is_tested(options, tmp_path):
    fields = {"generation_kwargs": options, "per_device_train_batch_size": 16, "max_completion_length": 24}
    first = check_step(make(tmp_path, **fields)).first
    name, value = next(iter(options.items()))
    assert first.name == "sampling", first
    assert f"{name}={value}, with which they are as likely as they should be" in first.cause, first


class ColderSampler(trl.GRPOTrainer):
    def _generate(self, prompts):
        self.generation_config.temperature = 0.3
        return super()._generate(prompts)


def test_a_setting_that_does_not_explain_it_is_not_the_cause(tmp_path):
    first = check_step(make(tmp_path, ColderSampler, top_p=0.999)).first
    assert first.name == "sampling" and "top_p=0.999 is set, but does not explain it" in first.cause, first


@pytest.mark.parametrize("options, said", [({"min_tokens": 5}, "min_tokens=5 is set, which was not"), ({}, "selected")])
def test_a_minimum_of_tokens_is_said_where_it_may_explain(options, said, monkeypatch):
    monkeypatch.setattr("workbench.watch.causes.logits_alone", lambda *_: torch.zeros(3, 5))
    step = SimpleNamespace(rows=[SimpleNamespace(ids=[1, 2], prompt_ids=[0])])
    assert said in cause_of_sampling(None, step, options, 1.0, lambda rows: 0.0)


def test_a_loss_that_is_rounding_has_no_factor(tmp_path):
    loss = check_step(make(tmp_path, MoreLoss, max_completion_length=1))["loss"]  # the advantages of a group cancel out
    assert loss.verdict == "different" and "times as much" not in loss.cause, loss


def test_dropout_is_found_in_modules_and_in_attributes():
    assert dropouts_of(with_attention_dropout()) == ["attention_dropout=0.3"]
    assert dropouts_of(starter(torch.float32)) == []


def test_noise_of_the_training_is_not_called_dropout(tmp_path):
    trainer = make(tmp_path, neftune_noise_alpha=5.0, max_steps=1, disable_tqdm=True)
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    cause = check.reports[1]["log-probs"].cause
    assert "otherwise while it trains (neftune_noise_alpha=5): in evaluation they agree" in cause, cause


def test_numbers_move_by_a_token():
    np.testing.assert_array_equal(shifted(np.array([1.0, 2.0, 3.0]), -1), [2.0, 3.0, np.nan])


def test_sampler_options_make_the_distribution_they_say():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    logps, entropies, variances = sampled_with(logits, [0], [1], {"temperature": 1.0, "top_k": 2})
    assert logps[0] == pytest.approx(np.log(0.375)) and entropies[0] == pytest.approx(0.6615632)
    assert variances[0] == pytest.approx(0.625 * 0.375 * np.log(0.625 / 0.375) ** 2)
    assert sampled_with(logits, [0], [2], {"temperature": 1.0, "top_k": 2})[0][0] == -np.inf
    penalized = sampled_with(logits, [1], [0], {"temperature": 1.0, "repetition_penalty": 2.0})[0][0]
    assert penalized == pytest.approx(np.log(0.5 / (0.5 + 0.3**2 + 0.2)))
    assert sampled_with(logits, [0], [1], {"temperature": 1.0, "presence_penalty": 1.0}) is None
