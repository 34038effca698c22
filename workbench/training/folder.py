"""A training folder: what it was asked to hold, whether it holds it, and going on where it ended."""

import copy
import dataclasses
import json
import os
import shutil
from pathlib import Path

from ..errors import TrainingStopped
from ..generation.stops import StopSpec
from ..runs.files import jsonable, read_json, write_json
from .monitoring import monitor_padding
from .recipes import Recipe
from .recording import COMPLETE, quiet_libraries
from .rewards import describe_reward


def last_checkpoint(folder: Path) -> Path | None:
    """The complete checkpoint with the highest step below `folder`, or None."""
    complete = [p.parent for p in Path(folder).glob(f"checkpoint-*/{COMPLETE}")]
    return max(complete, key=lambda p: int(p.name.rpartition("-")[2]), default=None)


def training_record(trainer: str, recipe: Recipe, *, reward_funcs, stops: StopSpec | None = None, **options) -> dict:
    """What `recipe.json` says, in one shape for every trainer; two trainings are the same when it is equal.

    Args:
        trainer: name of the trainer's class.
        recipe: what is trained.
        reward_funcs: one or several, or a reward model.
        stops: when completions end; None for every EOS.
        **options: of the trainer and its config, beside the recipe.

    Returns:
        `trainer`, `recipe`, `reward_funcs` (see `describe_reward`), `stops`, `overrides`, fit for JSON.

    Example:
        >>> from workbench.training.rewards import length_reward
        >>> record = training_record("GRPOTrainer", Recipe(seed=3), reward_funcs=length_reward(20), temperature=0.7)
        >>> record["recipe"]["seed"], record["reward_funcs"][0]["arguments"], record["overrides"]
        (3, {'target': 20, 'sign': -1}, {'temperature': 0.7})
    """
    several = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    record = {
        "trainer": trainer,
        "recipe": dataclasses.asdict(recipe),
        "reward_funcs": [describe_reward(reward) for reward in several],
        "stops": dataclasses.asdict(stops or StopSpec()),
        "overrides": options,
    }
    return json.loads(json.dumps(jsonable(record), default=_recorded))


def _recorded(value):
    """What a record says of an option that JSON has no form for: of a LoRA config its fields, else the kind of thing."""
    if isinstance(value, set | frozenset):  # whose order is another in each session
        return sorted(map(str, value))
    if not dataclasses.is_dataclass(value):
        return type(value).__name__
    chosen = {}
    for field in dataclasses.fields(value):  # a new version of PEFT, and its new fields, make no other training
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        if field.name != "peft_version" and (given := getattr(value, field.name)) != default:
            chosen[field.name] = given
    return {"kind": type(value).__name__, **chosen}


def open_folder(out_dir: Path, record: dict) -> None:
    """Bind a training folder to one record; a folder that holds another training is emptied first.

    Resuming with other settings would join two experiments into one curve.
    """
    if int(os.environ.get("RANK", "0")) > 0:
        return  # of several processes the first one does it
    out_dir.mkdir(parents=True, exist_ok=True)
    path = out_dir / "recipe.json"
    if read_json(path, record) != record:
        for name in ("metrics.jsonl", "progress.json"):
            (out_dir / name).unlink(missing_ok=True)
        for name in ("completions.parquet", "checkpoints", "policy"):
            shutil.rmtree(out_dir / name, ignore_errors=True)
    write_json(path, record)


def is_finished(out_dir: Path, record: dict) -> bool:
    """Whether the folder holds this very training, from its first step to its last."""
    same = read_json(out_dir / "recipe.json", None) == record
    return same and read_json(out_dir / "progress.json", {}).get("finished", False)


def train_recipe(
    trainer_class,
    recipe: Recipe,
    *,
    reward_funcs,
    out_dir: str | Path,
    stops: StopSpec | None = None,
    monitor_every: int = 0,
    **options,
):
    """Train a recipe in a run folder; called again after an interruption it goes on from the last checkpoint.

    Args:
        trainer_class: one of this folder, with a `from_recipe`.
        recipe: what to train; all of it is checked before anything in the folder is touched.
        reward_funcs: one reward function or several, in TRL's convention.
        out_dir: run folder; holds `recipe.json`, `checkpoints/` and the recorded metrics and completions.
        stops: when completions end; default at every EOS.
        monitor_every: measure the padding consistency of the trainer's scores every so many steps; 0 never.
        **options: of the trainer (`explicit_positions`, `generation_seed`, ...) and of its TRL config.

    Returns:
        The trainer, trained.
    """
    quiet_libraries()
    out_dir = Path(out_dir)
    if "peft_config" in options:  # PEFT writes into it, and the next call is to ask for what this one asks
        options["peft_config"] = copy.deepcopy(options["peft_config"])
    asked = options | ({"monitor_every": monitor_every} if monitor_every else {})
    record = training_record(trainer_class.__name__, recipe, reward_funcs=reward_funcs, stops=stops, **asked)
    trainer = trainer_class.from_recipe(recipe, reward_funcs=reward_funcs, out_dir=out_dir, stops=stops, **options)
    if monitor_every:
        monitor_padding(trainer, every=monitor_every)
    open_folder(out_dir, record)
    trainer.accelerator.wait_for_everyone()  # before any process looks for a checkpoint
    checkpoint = last_checkpoint(out_dir / "checkpoints")
    try:
        trainer.train(**({"resume_from_checkpoint": str(checkpoint)} if checkpoint else {}))
    except TrainingStopped:  # asked to end, or nothing was left to train
        trainer.accelerator.wait_for_everyone()
        if not is_finished(out_dir, record):
            raise
    return trainer
