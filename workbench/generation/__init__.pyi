# What `workbench.generation` gives, each name loaded when it is first used.
from .preflight import save_policy
from .stops import StopRule, StopSpec

# fmt: off
__all__ = ["StopRule", "StopSpec", "save_policy"]
