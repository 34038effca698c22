"""A trainer of one small step on the embedded model, for the tests of people who write trainers."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trl
from datasets import Dataset

from ..errors import ParameterError
from ..training.rewards import completion_text, length_reward
from .toys.starter import starter_corpus, starter_model

_PROMPTS = 16
# One generation of 16 completions on the CPU in fp32, where a difference is no rounding.
_FIELDS = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "dataloader_pin_memory": False,
    "per_device_train_batch_size": 16,
    "num_generations": 4,
    "max_completion_length": 16,
    "learning_rate": 1e-4,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
}


def share_of_vowels(completions: Sequence, **_: Any) -> list[float]:
    """A reward for each completion, from 0 to 1."""
    texts = [completion_text(completion) for completion in completions]
    return [sum(letter in "aeiou" for letter in text) / max(len(text), 1) for text in texts]


def small_trainer(
    trainer_class: type,
    output_dir: str | os.PathLike,
    *,
    config_class: type | None = None,
    reward_funcs: Sequence[Callable] | None = None,
    trainer_options: Mapping[str, Any] | None = None,
    **config: Any,
) -> Any:
    """Build a trainer of TRL on the embedded starter model and its data, on the CPU, with two reward functions.

    Args:
        trainer_class: `GRPOTrainer` or `RLOOTrainer` of TRL or a subclass.
        output_dir: of the config.
        config_class: the trainer's own config; default TRL's for the trainer.
        reward_funcs: in place of the two: distance from 20 characters, and share of vowels.
        trainer_options: further arguments of the trainer, such as `peft_config`.
        config: fields of the config, which replace those of the small step.

    Raises:
        ParameterError: another class.
    """
    if not isinstance(trainer_class, type) or not issubclass(trainer_class, trl.GRPOTrainer | trl.RLOOTrainer):
        raise ParameterError(
            f"trainer_class={trainer_class!r}: expected TRL's GRPOTrainer or RLOOTrainer or a subclass"
        )
    if config_class is None:
        config_class = trl.RLOOConfig if issubclass(trainer_class, trl.RLOOTrainer) else trl.GRPOConfig
    fields = _FIELDS | {"model_init_kwargs": {"dtype": "float32"}} | config
    prompts = [{"prompt": row["prompt"]} for row in starter_corpus()[:_PROMPTS]]
    return trainer_class(
        str(starter_model()),
        list(reward_funcs) if reward_funcs is not None else [length_reward(20), share_of_vowels],
        args=config_class(output_dir=str(output_dir), **fields),
        train_dataset=Dataset.from_list(prompts),
        **(trainer_options or {}),
    )
