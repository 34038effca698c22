# What `workbench.experiments` gives, each name loaded when it is first used.
from .recipes import load_prompts, make_recipe, resolve_model
from .train import train_grpo, train_online_dpo, train_ppo, train_rloo

# fmt: off
__all__ = [
    "load_prompts", "make_recipe", "resolve_model",
    "train_grpo", "train_online_dpo", "train_ppo", "train_rloo",
]
