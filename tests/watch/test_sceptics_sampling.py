"""What a sceptic put past the samples, frozen weights and small gradients of a step, and healthy steps that were named."""

import pytest
import torch
import trl
from peft import LoraConfig
from step_cases import LORA, make
from transformers import GenerationConfig

from workbench import check_step
from workbench.watch.attach import StepCheck

pytestmark = pytest.mark.slow

MOVED = {"peft_config": LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)}


class ScoresWithoutGradients(trl.GRPOTrainer):
    """The numbers of TRL's loss, whose old log-probs come from a pass of their own."""

    def _compute_loss(self, model, inputs):
        if self.model.training and inputs.get("old_per_token_logps") is None:
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
            length = inputs["completion_ids"].size(1)
            with torch.no_grad():
                old = self._get_per_token_logps_and_entropies(model, ids, mask, length)[0]
            inputs = inputs | {"old_per_token_logps": old}
        return super()._compute_loss(model, inputs)


def test_old_log_probs_of_a_pass_of_their_own_are_no_fault(tmp_path):
    report = check_step(make(tmp_path, ScoresWithoutGradients))
    assert report.first is None and report["loss"].verdict == "same", report


class MovesFrozen(trl.GRPOTrainer):
    def _generate(self, prompts):
        for parameter in self.model.parameters():
            if not parameter.requires_grad:
                parameter.data.add_(1e-3 * torch.randn_like(parameter))
        return super()._generate(prompts)


class MergesAndUnmerges(trl.GRPOTrainer):
    """As TRL does where it gives the weights to vLLM: it rounds those below the adapter."""

    def _generate(self, prompts):
        self.model.merge_adapter()
        self.model.unmerge_adapter()
        return super()._generate(prompts)


@pytest.mark.parametrize("cls, verdict", [(MovesFrozen, "different"), (MergesAndUnmerges, "same")])
def test_frozen_weights_that_move_in_a_step_are_named(cls, verdict, tmp_path):
    update = check_step(make(tmp_path, cls, more=MOVED))["update"]
    assert update.verdict == verdict, update
    assert ("frozen tensors move inside training_step" in update.cause) is (verdict == "different")


class GivesOtherTexts(trl.GRPOTrainer):
    """The reward functions get each row's text behind a word that nobody sampled."""

    def _generate(self, prompts):
        result = list(super()._generate(prompts))
        at = next(i for i, part in enumerate(result) if isinstance(part, list) and part and isinstance(part[0], str))
        result[at] = [f"Verily {text}" for text in result[at]]
        return tuple(result)


def test_a_text_that_is_no_row_s_is_asked_about(tmp_path):
    rewards = check_step(make(tmp_path, GivesOtherTexts))["rewards"]
    assert rewards.verdict == "cannot tell" and "8 of 8 rows are judged by a text" in rewards.cause, rewards


def with_options(**options):
    class Hidden(trl.GRPOTrainer):
        def _generate(self, prompts):
            policy, original = self.model, self.model.generate
            policy.generate = lambda *args, **kwargs: original(*args, **kwargs | options)
            try:
                return super()._generate(prompts)
            finally:
                del policy.generate

    return Hidden


OPTIONS = {
    "a penalty": ({"repetition_penalty": 1.1}, "different", "repetition_penalty=1.1 is given"),
    "a config of its own": ({"generation_config": None}, "different", "top_p=0.5 is given"),
    "a neutral option": ({"top_p": 1.0, "use_cache": True}, "same", "tokens"),
    "no processor": ({"logits_processor": []}, "same", "tokens"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_generate_alone_gets_are_named(name, tmp_path):
    options, verdict, said = OPTIONS[name]
    trainer = make(tmp_path, with_options(**options))
    if "generation_config" in options:
        given = GenerationConfig(**trainer.generation_config.to_diff_dict() | {"top_p": 0.5})
        trainer = make(tmp_path, with_options(generation_config=given))
    sampling = check_step(trainer)["sampling"]
    assert sampling.verdict == verdict and said in sampling.cause, sampling


class GroupByGroup(trl.GRPOTrainer):
    seeds = False

    def _generate_single_turn(self, prompt_ids, *args):
        ids, size = [], self.num_generations
        for start in range(0, len(prompt_ids), size):
            if self.seeds:
                torch.manual_seed(1000 + self.state.global_step)
            ids += super()._generate_single_turn(prompt_ids[start : start + size], *args)[0]
        return ids, None


class SeedsEachGroup(GroupByGroup):
    seeds = True


@pytest.mark.parametrize("cls, verdict", [(GroupByGroup, "same"), (SeedsEachGroup, "different")])
def test_one_seed_for_each_group_is_named(cls, verdict, tmp_path):
    sampling = check_step(make(tmp_path, cls))["sampling"]
    assert sampling.verdict == verdict, sampling
    assert ("begin with the same random numbers" in sampling.cause) is (verdict == "different")


class NegatesAdapters(trl.GRPOTrainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        for name, parameter in self.model.named_parameters():
            if "lora_A" in name and parameter.grad is not None:
                parameter.grad.neg_()
        return loss


def test_a_small_adapter_gradient_of_the_wrong_sign_is_named(tmp_path):
    trainer = make(tmp_path, NegatesAdapters, more=LORA, learning_rate=1e-6, max_steps=2)
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    assert [report.first and report.first.name for report in check.reports.values()] == [None, "gradient"]


def test_ratios_behind_an_update_are_not_said_to_be_1(tmp_path):
    trainer = make(tmp_path, num_iterations=2, learning_rate=1e-5, bf16=True, max_steps=2)
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    first, second = (report["ratios"] for report in check.reports.values())
    assert "all are 1, as they must be here" in first.cause and "of which the loss is computed" in second.cause
