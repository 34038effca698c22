# What `workbench.reward` gives, each name loaded when it is first used.
from .features import feature
from .placebo import placebo, placebo_report
from .report import reward_report
from .trial import try_reward

# fmt: off
__all__ = ["feature", "placebo", "placebo_report", "reward_report", "try_reward"]
