"""What the installed TRL has; looked up by its version, so that nothing heavy is imported."""

from importlib.metadata import version

TRL = tuple(int(number) for number in version("trl").split(".")[:3])
HAS_PPO = TRL < (1, 13)  # it left TRL with 1.13
