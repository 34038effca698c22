"""Two trainings on one vLLM engine, and whether their models are still there (on_vllm.py)."""

import gc
import weakref
from pathlib import Path

from workbench.experiments.arms import Arm, ObservedGRPOTrainer, train_arms
from workbench.experiments.recipes import make_recipe
from workbench.training.rewards import length_reward


def result(folder: str) -> list[bool]:
    models = []

    class Seen(ObservedGRPOTrainer):
        """Stock GRPO whose model can be looked for."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            models.append(weakref.ref(self.model))

    recipe = make_recipe("starter", backend="vllm", max_steps=1, max_completion_length=8)
    arm = Arm(recipe, length_reward(20), Seen, options={"save_strategy": "no"})
    train_arms({"one": arm, "two": arm}, out_dir=Path(folder), seeds=[0])
    gc.collect()
    return [model() is not None for model in models]
