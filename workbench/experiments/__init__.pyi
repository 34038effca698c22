# What `workbench.experiments` gives, each name loaded when it is first used.
from .held_out import HeldOut
from .instruments.real_model import measured_on_smollm2, on_smollm2
from .recipes import load_prompts, make_recipe, resolve_model
from .sampling import Sampling, TransformersSampler, VLLMSampler, generate
from .train import train

# fmt: off
__all__ = [
    "HeldOut", "Sampling", "TransformersSampler", "VLLMSampler", "generate", "load_prompts", "make_recipe",
    "measured_on_smollm2", "on_smollm2", "resolve_model", "train",
]
