"""What the audit asks of a run's settings, read off a trainer, stock or the workbench's."""

import dataclasses
from pathlib import Path
from typing import Any

import trl

from ..consistency.positions import fills_position_ids
from ..runs.files import write_json
from .rewards import describe_reward
from .stopping import backend_of


def describe_trainer(trainer, folder: Path) -> None:
    """Write `recipe.json`, in the shape that trainings of the workbench have, and the model's configs.

    Args:
        trainer: TRL's GRPOTrainer or RLOOTrainer, or a child.
        folder: where to.
    """
    args, ours = trainer.args, type(trainer).__module__.startswith("workbench.")
    recipe: dict[str, Any] = {name: getattr(args, name, None) for name in ("num_generations", "learning_rate", "seed")}
    recipe["backend"] = backend_of(args)
    if not several_turns(trainer):
        recipe["max_completion_length"] = args.max_completion_length
    model = trainer.accelerator.unwrap_model(trainer.model)
    about = {
        "trainer": type(trainer).__name__ if ours else f"Observed{type(trainer).__name__}",
        "recipe": recipe,
        "reward_funcs": [describe_reward(function) for function in trainer.reward_funcs],
        "stops": _stops(trainer),
        "overrides": {
            "mask_truncated_completions": args.mask_truncated_completions,
            "reward_weights": args.reward_weights,
            "explicit_positions": fills_position_ids(model),
        },
        "trl": trl.__version__,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "recipe.json", about)
    for name, config in (("config.json", model.config), ("generation_config.json", model.generation_config)):
        write_json(folder / name, config.to_dict())


def _stops(trainer) -> dict:
    """Strings and ids at which this trainer's sampler stops."""
    if (rule := getattr(trainer, "stop_rule", None)) is not None:
        return dataclasses.asdict(rule.spec) | {"token_ids": list(rule.stop_ids)}
    options = trainer.args.generation_kwargs or {}
    strings = options.get("stop") or options.get("stop_strings") or []
    return {"strings": [strings] if isinstance(strings, str) else list(strings), "token_ids": eos_ids(trainer)}


def several_turns(trainer) -> bool:
    """Whether rows have turns, or come from the user's own sampler: then their limit is not known here."""
    return bool(getattr(trainer, "tools", None)) or getattr(trainer, "rollout_func", None) is not None


def eos_ids(trainer) -> list[int]:
    """All ids at which a stock trainer's sampler stops."""
    known: list = []
    options = trainer.args.generation_kwargs or {}
    for value in (
        trainer.model.generation_config.eos_token_id,
        options.get("eos_token_id"),
        options.get("stop_token_ids"),
    ):
        known += value if isinstance(value, list | tuple) else [value]
    return [i for i in known if i is not None]
