"""Faults with which a sceptic fooled `check_step`: own scoring, references that move, samplers with options nobody lists."""

import pytest
import torch
import trl
from peft import LoraConfig
from step_cases import BASE, LORA, make
from transformers import AutoModelForCausalLM

from workbench import check_step
from workbench.experiments.recipes import load_prompts, resolve_model

pytestmark = pytest.mark.slow


class EntropiesOneLate(trl.GRPOTrainer):
    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs):
        logits = model(input_ids=input_ids, attention_mask=attention_mask).logits / self.temperature
        table = logits.log_softmax(-1)
        logps = table[:, :-1].gather(-1, input_ids[:, 1:, None])[..., 0][:, -logits_to_keep:]
        entropies = -(table.exp() * table).sum(-1)[:, -logits_to_keep:]  # without [:, :-1]
        return logps, entropies if kwargs.get("compute_entropy") else None, None


def test_entropies_of_other_places_are_named(tmp_path):
    stage = check_step(make(tmp_path, EntropiesOneLate, top_entropy_quantile=0.2)).first
    assert (stage.name, stage.verdict) == ("log-probs", "different")
    assert "entropies of the tokens are not those of a row alone: each is that of the token after it" in stage.cause


BIAS_TOO = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", bias="all")


@pytest.mark.parametrize("adapter, verdict", [(BIAS_TOO, "different"), (LORA["peft_config"], "same")])
def test_a_reference_below_an_adapter_that_trains_is_named(adapter, verdict, tmp_path):
    stage = check_step(make(tmp_path, more={"peft_config": adapter}, beta=0.1))["reference"]
    assert stage.verdict == verdict, stage
    assert ("part of that trains" in stage.cause) == (verdict == "different")


def test_a_reference_that_is_the_policy_is_named(tmp_path):
    trainer = make(tmp_path, beta=0.1)
    trainer.ref_model = trainer.model
    stage = check_step(trainer)["reference"]
    assert stage.verdict == "different" and "weights of the policy itself" in stage.cause


@pytest.mark.parametrize("moved", [True, False])
def test_the_reference_of_rloo_is_compared_with_the_policy(moved, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(resolve_model("starter"), dtype=torch.float32)
    if moved:  # as a merged adapter, or weights that were loaded into the instance
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    stage = check_step(make(tmp_path, trl.RLOOTrainer, model=model, beta=0.1))["reference"]
    assert stage.verdict == ("cannot tell" if moved else "same"), stage
    assert "the model that the training starts from" in stage.cause


class DividesByTheLimit(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        self.loss_type = "dr_grpo"
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.loss_type = "grpo"


@pytest.mark.parametrize("cls, verdict", [(DividesByTheLimit, "different"), (trl.GRPOTrainer, "same")])
def test_a_divisor_shows_though_all_rows_are_equally_long(cls, verdict, tmp_path):
    stage = check_step(make(tmp_path, cls, loss_type="grpo", max_completion_length=3))["loss"]
    assert stage.verdict == verdict, stage
    assert ("as loss_type='dr_grpo' does" in stage.cause) == (verdict == "different")


class ClampsAdvantages(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs | {"advantages": inputs["advantages"].clamp(-1.5, 1.5)})


def halves(completions, **_):
    return [float(i % 2) for i in range(len(completions))]  # advantages of size 0.94 in groups of eight


@pytest.mark.parametrize("cls, verdict", [(ClampsAdvantages, "different"), (trl.GRPOTrainer, "same")])
def test_advantages_as_large_as_a_group_can_have_are_asked(cls, verdict, tmp_path):
    sizes = {"num_generations": 8, "per_device_train_batch_size": 16}
    assert check_step(make(tmp_path, cls, funcs=(halves,), **sizes))["loss"].verdict == verdict


@pytest.mark.parametrize("option", [{"exponential_decay_length_penalty": (2, 1.5)}, {"top_h": 0.4}])
def test_an_option_that_no_list_has_may_change_the_sampler(option, tmp_path):
    stage = check_step(make(tmp_path, generation_kwargs=option))["sampling"]
    assert stage.verdict in ("cannot tell", "different") and next(iter(option)) in stage.cause


def test_an_eos_of_the_samplers_config_alone_is_found_at_ends(tmp_path):
    trainer = make(tmp_path, max_completion_length=24)
    often = trainer.processing_class.encode(" the")[-1]
    trainer.generation_config.eos_token_id = [often, trainer.processing_class.eos_token_id]
    assert check_step(trainer).first.name == "ends"


def test_a_limit_of_the_samplers_config_alone_is_found_at_ends(tmp_path):
    trainer = make(tmp_path, loss_type="dr_grpo")
    trainer.generation_config.max_new_tokens = 4
    stage = check_step(trainer).first
    assert stage.name == "ends" and "max_completion_length is 12, the trainer has 4" in stage.cause


@pytest.mark.parametrize("merged", [True, False])
def test_a_step_that_trains_nothing_is_no_open_question(merged, tmp_path):
    trainer = make(tmp_path, more=LORA, gradient_checkpointing=True)  # without it the backward pass raises an error
    if merged:
        trainer.model.merge_adapter()
    stage = check_step(trainer)["gradient"]
    assert stage.verdict == ("different" if merged else "same"), stage
    assert ("the adapter is merged" in stage.cause) == merged


class SamplesWithoutItsAdapter(trl.GRPOTrainer):
    def _generate_single_turn(self, *args, **kwargs):
        with self.model.disable_adapter():
            return super()._generate_single_turn(*args, **kwargs)


def letters(completions, **_):
    return [sum(letter in "aeiou" for letter in text) / 5 + len(text) / 50 for text in completions]


def test_a_sampler_that_repeats_itself_is_judged_by_its_tokens(tmp_path):
    args = trl.GRPOConfig(str(tmp_path), **BASE | {"per_device_train_batch_size": 16, "max_completion_length": 16})
    adapter, data = LORA["peft_config"], load_prompts("search")
    model = resolve_model("search")  # it is sure of what it writes, so that a sharper sampler repeats itself
    trainer = SamplesWithoutItsAdapter(model, letters, args, train_dataset=data, peft_config=adapter)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # an adapter that has been trained
        for name, parameter in trainer.model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.6 * torch.randn(parameter.shape, generator=generator))
    stage = check_step(trainer).first
    assert stage.name == "sampling" and not stage.cause.startswith("a group holds"), stage
