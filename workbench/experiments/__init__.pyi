# What `workbench.experiments` gives, each name loaded when it is first used.
from .recipes import load_prompts, make_recipe, resolve_model
from .train import train

# fmt: off
__all__ = [
    "load_prompts", "make_recipe", "resolve_model",
    "train",
]
