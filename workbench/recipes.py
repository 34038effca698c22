"""Where `workbench.experiments` was until 0.2, for one release: each name warns of its new place."""

import warnings
from functools import partial
from importlib import import_module
from typing import Any

_TRAINERS = {
    "train_grpo": "GRPOTrainer",
    "train_rloo": "RLOOTrainer",
    "train_ppo": "PPOTrainer",
}


def __getattr__(name: str) -> Any:
    place = import_module("workbench" if name == "PPOTrainer" else "workbench.experiments")
    if name in _TRAINERS:
        new = f"workbench.experiments.train with trainer=workbench.{_TRAINERS[name]}"
    elif name in place.__all__:
        new = f"{place.__name__}.{name}"
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"workbench.recipes.{name} is now {new}; version 0.4 removes the old name", FutureWarning, stacklevel=2
    )
    if name in _TRAINERS:
        own = {"reward_funcs": "random weights"} if name == "train_ppo" else {}
        return partial(place.train, trainer=getattr(import_module("workbench"), _TRAINERS[name]), **own)
    return getattr(place, name)
