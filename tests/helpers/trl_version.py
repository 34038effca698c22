"""What the installed TRL has; looked up by its version, so that nothing heavy is imported."""

from importlib.metadata import version

HAS_PPO = int(version("trl").split(".")[1]) <= 12  # it left TRL with 1.13
