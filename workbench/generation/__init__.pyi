# What `workbench.generation` gives, each name loaded when it is first used.
from .preflight import save_policy
from .sampling import Sampling, TransformersSampler, VLLMSampler, generate
from .stops import StopRule, StopSpec

# fmt: off
__all__ = ["Sampling", "StopRule", "StopSpec", "TransformersSampler", "VLLMSampler", "generate", "save_policy"]
