# What `workbench.recipes` gives, each name loaded when it is first used.
from .ppo import PPOTrainer, train_ppo
from .recipes import load_prompts, make_recipe, resolve_model
from .train import train_grpo, train_online_dpo, train_rloo

# fmt: off
__all__ = [
    "PPOTrainer", "load_prompts", "make_recipe", "resolve_model",
    "train_grpo", "train_online_dpo", "train_ppo", "train_rloo",
]
