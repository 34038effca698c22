"""GRPO in several processes on a few prompts, some of them equal.

    torchrun --nproc_per_node 2 tests/helpers/group_processes.py OUT G

Groups may span the processes; the data set's end leaves an uneven batch.
"""

import sys
from pathlib import Path

import torch
from datasets import Dataset

from workbench.experiments.recipes import grpo_config, make_recipe, resolve_model
from workbench.experiments.train import quiet_libraries
from workbench.training.grpo import GRPOTrainer

PER_DEVICE = 8


def reward_prompt_length(prompts, completions, **_):
    return [100.0 * len(p) + len(c) for p, c in zip(prompts, completions, strict=True)]


def main(out: str, g: int) -> None:
    torch.set_num_threads(1)
    quiet_libraries()
    recipe = make_recipe("search", seed=3, max_steps=4, per_device_train_batch_size=PER_DEVICE, num_generations=g)
    prompts = ["What is amber?\n", "What is amber?\n", "What is amber?\n", "Look up krypton?\n",
               "Tell me about tides?\n"]  # fmt: skip
    args = grpo_config(recipe, Path(out) / "checkpoints", max_completion_length=16, save_strategy="no")
    data = Dataset.from_dict({"prompt": prompts})
    trainer = GRPOTrainer(resolve_model("search"), reward_prompt_length, args, train_dataset=data, record_dir=Path(out))
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
