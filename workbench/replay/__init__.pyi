# What `workbench.replay` gives, each name loaded when it is first used.
from .file import replay_step
from .report import StepReport

__all__ = ["StepReport", "replay_step"]
