"""TRL's DistillationTrainer for one small update: healthy settings, and faults with the stage at which each lies."""

from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from step_cases import losing_a_gradient
from transformers import AutoModelForCausalLM
from trl import DistillationConfig, DistillationTrainer

from workbench.experiments.recipes import resolve_model

PROMPTS = ["Write a word", "The sum of the numbers is a long story", "One", "Python is a language that"]
BASE = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "per_device_train_batch_size": 4}
BASE |= {
    "max_completion_length": 12,
    "report_to": [],
    "save_strategy": "no",
    "learning_rate": 1e-5,
    "disable_tqdm": True,
}
TWO = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
MANY = {"per_device_train_batch_size": 16, "max_completion_length": 32}
LORA: dict[str, Any] = {"peft_config": LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")}


def teacher(model: str = "starter"):
    """The starter with noise in its weights."""
    noisy = AutoModelForCausalLM.from_pretrained(resolve_model(model), dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in noisy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return noisy


def make(folder: Any, cls: type = DistillationTrainer, model: str = "starter", more=None, **fields: Any):
    """A trainer whose student is the starter: `fields` of its config, `more` arguments of the trainer."""
    args = DistillationConfig(str(folder), **(BASE | fields))
    data = Dataset.from_dict({"prompt": PROMPTS * 4})
    return cls(resolve_model(model), teacher(model), args, data, **(more or {}))


HEALTHY: dict[str, dict[str, Any]] = {
    "reverse KL": {},
    "forward KL, accumulated": {"beta": 0.0, **TWO},
    "JSD at a temperature": {"beta": 0.5, "temperature": 1.3, **TWO},
    "bf16, LoRA": {"bf16": True, "learning_rate": 1e-4, "more": LORA},
    "checkpointed, padded to 16": {"gradient_checkpointing": True, "pad_to_multiple_of": 16, "beta": 0.9},
}


class TwiceTheLoss(DistillationTrainer):
    def compute_loss(self, *args, **kwargs):
        return 2 * super().compute_loss(*args, **kwargs)


class MicroBatchMeans(DistillationTrainer):
    """Divides by the tokens of each micro-batch and by their number."""

    def compute_loss(self, model, inputs, **kwargs):
        items = inputs["completion_mask"].sum() * self.current_gradient_accumulation_steps
        return super().compute_loss(model, inputs | {"num_items_in_batch": items}, **kwargs)


class OtherDirection(DistillationTrainer):
    def _compute_loss(self, *args):
        self.beta = 1 - self.args.beta
        result = super()._compute_loss(*args)
        self.beta = self.args.beta
        return result


class HotTeacher(DistillationTrainer):
    """Its teacher has twice the temperature."""

    def _get_last_hidden_state(self, model, *args, **kwargs):
        hidden = super()._get_last_hidden_state(model, *args, **kwargs)
        return hidden / 2 if model is self.teacher_model else hidden


class LateTeacher(DistillationTrainer):
    """Its teacher is compared one token too late."""

    def _get_last_hidden_state(self, model, *args, **kwargs):
        hidden = super()._get_last_hidden_state(model, *args, **kwargs)
        return hidden.roll(1, 1) if model is self.teacher_model else hidden


class ShorterMask(DistillationTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["completion_mask"][:, 3] = 0
        return output


class OtherPrompts(DistillationTrainer):
    """Its micro-batches have the completions of other prompts."""

    def _prepare_inputs(self, inputs):
        batch = super()._prepare_inputs(inputs)
        return batch | {name: batch[name].roll(1, 0) for name in ("completion_ids", "completion_mask")}


class ColdSampler(DistillationTrainer):
    def _generate(self, prompts):
        self.generation_config.temperature = 0.3
        return super()._generate(prompts)


class OtherMetric(DistillationTrainer):
    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        self._metrics["train"]["entropy"][-1] += 1
        return loss


# Name -> what makes it, the stage, and words of its cause.
FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "sampled colder": ({"cls": ColdSampler, **MANY}, "sampling", "the sampler is not the policy that is scored"),
    "top_k": ({"top_k": 5, **MANY}, "sampling", "top_k=5"),
    "mask": ({"cls": ShorterMask}, "mask", "a mask that does not follow"),
    "other prompts": ({"cls": OtherPrompts}, "batches", "rows of the loss are not as they were generated"),
    "positions": ({"model": "starter-gpt2", "disable_dropout": True}, "log-probs", "not tested: padding"),
    "teacher at another temperature": ({"cls": HotTeacher}, "teacher", "at the temperature of the config"),
    "teacher a token late": ({"cls": LateTeacher}, "teacher", "at the temperature of the config"),
    "other direction": ({"cls": OtherDirection}, "loss", "beta=1 (reverse KL) gives another loss"),
    "twice the loss": ({"cls": TwiceTheLoss}, "loss", "2 times as much"),
    "means of micro-batches": ({"cls": MicroBatchMeans, **TWO}, "loss", "gives another loss"),
    "gradient": ({"cls": losing_a_gradient(DistillationTrainer)}, "gradient", "layers.0."),
    "metric": ({"cls": OtherMetric}, "metrics", "entropy is logged as"),
}
