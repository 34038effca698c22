"""Trainers of one small step for `check_step`: healthy settings, and faults with the stage at which each lies."""

from typing import Any

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, RLOOConfig

from workbench.experiments.recipes import resolve_model
from workbench.training.grpo import GRPOTrainer, RLOOTrainer

PROMPTS = ["Write a word", "The sum of the numbers is a long story", "One", "Python is a language that"]
BASE = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "per_device_train_batch_size": 8}
BASE |= {
    "num_generations": 4,
    "max_completion_length": 12,
    "report_to": [],
    "save_strategy": "no",
    "learning_rate": 1e-5,
}
STOPS = [265, 70, 77, 86, 10, 14]  # common tokens of the starter
LORA: dict[str, Any] = {"peft_config": LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")}


def length(completions, **_):
    return [len(text) / 10 for text in completions]


def vowels(completions, **_):
    return [sum(letter in "aeiou" for letter in text) / 5 for text in completions]


def of_prompt(prompts, **_):
    return [float(len(prompt)) for prompt in prompts]


def with_stops():
    """The starter with six common tokens that end a completion."""
    model = AutoModelForCausalLM.from_pretrained(resolve_model("starter"), dtype=torch.float32)
    model.generation_config.eos_token_id = STOPS
    return model


def make(
    folder: Any, cls: type = trl.GRPOTrainer, model: Any = "starter", funcs=(length, vowels), more=None, **fields: Any
):
    """A trainer on the starter: `fields` of its TRL config, `more` arguments of the trainer."""
    config = RLOOConfig if issubclass(cls, trl.RLOOTrainer) else GRPOConfig
    policy = resolve_model(model) if isinstance(model, str) else model
    args = config(output_dir=str(folder), **(BASE | fields))
    return cls(policy, list(funcs), args=args, train_dataset=Dataset.from_dict({"prompt": PROMPTS}), **(more or {}))


HEALTHY: dict[str, dict[str, Any]] = {
    "plain": {},
    "fields of the loss": {
        "beta": 0.1,
        "loss_type": "grpo",
        "top_entropy_quantile": 0.5,
        "gradient_accumulation_steps": 2,
    },
    "several iterations": {"num_iterations": 2, "steps_per_generation": 4, "per_device_train_batch_size": 4},
    "bf16, LoRA": {"bf16": True, "beta": 0.1, "learning_rate": 1e-4, "more": LORA},
    "masked": {"mask_truncated_completions": True, "gradient_checkpointing": True, "loss_type": "bnpo"},
    "normalized first": {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1.0, 2.0]},
    "RLOO": {"cls": trl.RLOOTrainer, "beta": 0.1, "gradient_accumulation_steps": 2, "normalize_advantages": True},
    "RLOO, clipped": {"cls": trl.RLOOTrainer, "reward_clip_range": (0.0, 4.0)},
    "ours": {"cls": GRPOTrainer, "mask_truncated_completions": True, "more": {"stops": [" the", "e"]}},
    "ours, RLOO": {"cls": RLOOTrainer, "more": {"stops": ["e"]}},
}


class ColdSampler(trl.GRPOTrainer):
    def _generate(self, prompts):
        self.generation_config.temperature = 0.3
        return super()._generate(prompts)


class ShiftedRewards(trl.GRPOTrainer):
    def _calculate_rewards(self, *args):
        return super()._calculate_rewards(*args).roll(1, 0)


class SortedPrompts(trl.GRPOTrainer):
    """Samples the longest prompts first, and keeps the completions in this order."""

    def _tokenize_prompts(self, prompts):
        ids, *rest = super()._tokenize_prompts(prompts)
        return sorted(ids, key=len, reverse=True), *rest


class RolledTexts(trl.GRPOTrainer):
    """Gives the reward functions the text of the completion before."""

    def _generate(self, prompts):
        output = list(super()._generate(prompts))
        texts = next(i for i, part in enumerate(output) if isinstance(part, list) and isinstance(part[0], str))
        output[texts] = output[texts][-1:] + output[texts][:-1]
        return tuple(output)


class RolledIds(trl.GRPOTrainer):
    """Gives the reward functions the token ids of the completion before."""

    def _calculate_rewards(self, inputs, prompts, completions, ids):
        def rolled(function):
            def scored(completion_ids, **columns):
                return function(completion_ids=completion_ids[-1:] + completion_ids[:-1], **columns)

            return scored

        functions, self.reward_funcs = self.reward_funcs, [rolled(function) for function in self.reward_funcs]
        try:
            return super()._calculate_rewards(inputs, prompts, completions, ids)
        finally:
            self.reward_funcs = functions


class LargerAdvantages(trl.GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        return output | {"advantages": output["advantages"] * 1.5}


class ShorterMask(trl.GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["completion_mask"][:, -1] = 0
        return output


class TwiceTheLoss(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return 2 * super()._compute_loss(model, inputs)


class OtherReference(trl.GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        return output | {"ref_per_token_logps": output["ref_per_token_logps"] - 0.05}


class OtherOldLogps(trl.GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        logps = torch.zeros_like(output["completion_ids"], dtype=torch.float32) - 5
        return output | {"old_per_token_logps": logps}


class OnePromptEach(trl.GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        return [0, 1, 2, 3] * 2


class CopiedSamples(trl.GRPOTrainer):
    def _generate_single_turn(self, *args, **kwargs):
        ids, *rest = super()._generate_single_turn(*args, **kwargs)
        size = self.num_generations
        return [list(ids[n - n % size]) for n in range(len(ids))], *rest


class OtherMetric(trl.GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self._metrics["train"]["reward"][-1] += 1
        return output


class NegatedAdvantages(trl.RLOOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        return output | {"advantages": -output["advantages"]}


class NegatedForTheLoss(trl.RLOOTrainer):
    def _prepare_inputs(self, inputs):
        batch = super()._prepare_inputs(inputs)
        return batch | {"advantages": -batch["advantages"]}


def small(completions, **_):
    return [len(text) / 1e5 for text in completions]


SMALL: dict[str, Any] = {"funcs": [small], "bf16": True}


def losing_a_gradient(trainer, part="layers.0.", factor=0.0):
    """A child of a trainer that zeroes the gradient of one layer, or multiplies that of some tensors."""

    class LostGradient(trainer):
        def training_step(self, model, *args):
            loss = super().training_step(model, *args)
            for name, parameter in model.named_parameters():
                if part in name and parameter.grad is not None:
                    parameter.grad.mul_(factor)
            return loss

    return LostGradient


def in_bf16():
    return AutoModelForCausalLM.from_pretrained(resolve_model("starter"), dtype=torch.bfloat16)


# Name -> what makes it, the stage, and words of its cause.
FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "sampled colder, said": ({"generation_kwargs": {"temperature": 0.3}}, "sampling", "temperature=0.3"),
    "sampled colder": ({"cls": ColdSampler}, "sampling", "the sampler is not the policy that is scored"),
    "top_k": ({"top_k": 5}, "sampling", "top_k=5"),
    "pads behind a stop": ({"generation_kwargs": {"eos_token_id": STOPS}}, "ends", "tokens behind their end"),
    "mask": ({"cls": ShorterMask}, "mask", "a mask that does not follow"),
    "rewards shifted": ({"cls": ShiftedRewards}, "rewards", "each has that of the row before it"),
    "prompts sorted": ({"cls": SortedPrompts}, "rewards", "get other prompts than 8 of 8 rows have"),
    "texts rolled": ({"cls": RolledTexts}, "rewards", "get other completions than 8 of 8 rows have"),
    "ids rolled": ({"cls": RolledIds}, "rewards", "get other completion_ids than 8 of 8 rows have"),
    "small advantages": ({"cls": NegatedAdvantages, **SMALL, "beta": 0.0}, "advantages", "other advantages"),
    "small advantages, later": ({"cls": NegatedForTheLoss, **SMALL}, "batches", "-1 times"),
    "advantages": ({"cls": LargerAdvantages}, "advantages", "other advantages"),
    "positions": ({"model": "starter-gpt2", "disable_dropout": True}, "log-probs", "padding moves them"),
    "dropout": ({"model": "starter-gpt2", "cls": GRPOTrainer}, "log-probs", "the model has dropout"),
    "one prompt a row": ({"cls": OnePromptEach}, "rewards", "hold several prompts"),
    "copies": ({"cls": CopiedSamples}, "sampling", "far beyond chance"),
    "reference": ({"cls": OtherReference, "beta": 0.1}, "reference", "other log-probs"),
    "old log-probs": ({"cls": OtherOldLogps}, "ratios", "scores it in two ways"),
    "metric": ({"cls": OtherMetric}, "metrics", "reward"),
    "loss": ({"cls": TwiceTheLoss}, "loss", "2 times as much"),
    "gradient": ({"cls": losing_a_gradient(trl.GRPOTrainer)}, "gradient", "layers.0."),
    "gradient, bf16": (
        {"cls": losing_a_gradient(trl.GRPOTrainer, "layers.0.mlp"), "bf16": True},
        "gradient",
        "in model.layers.0.mlp.",
    ),
    "gradient, a part": (
        {"cls": losing_a_gradient(trl.GRPOTrainer, "model.norm.weight", 0.6)},
        "gradient",
        "off by more than 10% of its size in model.norm.weight",
    ),
    "clipped away": ({"optim": "sgd", "max_grad_norm": 1e-9}, "update", "max_grad_norm=1e-09 cuts a gradient"),
    "lost to bf16": ({"model": in_bf16, "learning_rate": 1e-6}, "update", "the rounding of bfloat16 weights loses"),
}
