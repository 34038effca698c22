"""Train a recipe in a run folder: bind the folder to the recipe, know whether it is finished, resume."""

import copy
import dataclasses
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import trl

from ..errors import ParameterError
from ..generation.preflight import backend_of
from ..generation.stops import StopSpec
from ..runs.completions import forget_after
from ..runs.files import check_links, checkpoints, jsonable, move_aside, read_json
from ..runs.lock import only_training
from ..runs.secrets import hide_tokens, map_text
from ..training.fingerprint import fingerprint
from ..training.grpo import GRPOTrainer, Stops
from ..training.recording import COMPLETE, Recorder
from ..training.rewards import describe_reward, unseen_values
from ..training.rows import is_ppo
from ..watch.padding_monitor import attach_padding_monitor
from ..watch.sampler_probe import attach_sampler_probe
from .held_out import HeldOut, held_out_rewards
from .recipes import STARTERS, Recipe, common_fields, grpo_config, load_prompts, lora_fields, resolve_model
from .sampling import tokenize_prompt

# What a trainer takes itself; any other option is a field of its TRL config.
_OWN_OPTIONS: tuple[str, ...] = ("stops", "explicit_positions", "generation_seed", "share_generation", "callbacks")
_OWN_OPTIONS += ("peft_config", "record_steps")
_OWN_OPTIONS_OF_PPO: tuple[str, ...] = ("stops", "callbacks", "peft_config", "reward_weights")


def last_checkpoint(folder: Path) -> Path | None:
    """The complete checkpoint with the highest step below `folder`, or None."""
    return next((p for p in checkpoints(Path(folder)) if read_json(p / COMPLETE, None) is not None), None)


def training_record(trainer: str, recipe: Recipe, *, reward_funcs: Any, stops: Stops = None, **options: Any) -> dict:
    """Return what `recipe.json` says, in one shape for every trainer; two trainings are the same when it is equal.

    Of data, model and reward models that lie on this machine, `contents` has the SHA-256 of the files, so that a file changed
    in its place makes another training. Every byte is read: a second or two for each GB, once in a process. `held_out` has what
    each `HeldOut` of the callbacks asks; other callbacks are not compared.

    Example:
        >>> record = training_record("GRPOTrainer", Recipe(seed=3), reward_funcs="a/model", temperature=0.7)
        >>> record["recipe"]["seed"], record["reward_funcs"][0]["name"], record["overrides"]
        (3, 'a/model', {'temperature': 0.7})
    """
    record = {
        "trainer": trainer,
        # Without LoRA as before recipes had a rank: folders of earlier versions hold the same training.
        "recipe": {k: v for k, v in dataclasses.asdict(recipe).items() if k != "lora_rank" or v},
        **_functions(reward_funcs, options.get("callbacks")),
        "stops": dataclasses.asdict(StopSpec.of(stops)),
        "overrides": map_text(jsonable(options), hide_tokens),  # such as `hub_token`
    }
    paths = (recipe.model, recipe.dataset, *(reward for reward in _several(reward_funcs) if isinstance(reward, str)))
    if contents := {path: found for path in paths if path not in STARTERS and (found := content_hash(path))}:
        record["contents"] = contents
    return json.loads(json.dumps(jsonable(record), default=_recorded))


def _several(reward_funcs: Any) -> list | tuple:
    return reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]


def _functions(reward_funcs: Any, callbacks: Any) -> dict:
    """Describe the reward functions for a record, and the held-out questions where some are asked."""
    held_out = [one.describe() for one in callbacks or () if isinstance(one, HeldOut) and one.rows]
    described: dict = {"reward_funcs": [describe_reward(reward) for reward in _several(reward_funcs)]}
    return described | ({"held_out": held_out} if held_out else {})


def _rewards(record: dict) -> list[dict]:
    """List a record's reward functions: those of the training, then those of held-out questions."""
    return [*record["reward_funcs"], *(one["reward"] for one in record.get("held_out", ()))]


def content_hash(path: str) -> str | None:
    """Of a local file, of the files in a model's folder, or of all below another one; None for a name that is no path.

    Example:
        >>> content_hash("no/such/folder") is None
        True
    """
    if not os.path.exists(path):  # unlike Path's, no error for a name that no file can have
        return None
    place, whole = Path(path), hashlib.sha256()
    below = place.glob("*" if (place / "config.json").is_file() else "**/*") if place.is_dir() else [place]
    for file in sorted(file for file in below if file.is_file()):
        name, stat = file.relative_to(place), file.stat()
        if not any(part.startswith(".") for part in name.parts):  # what the hub and git keep there
            whole.update(f"{name.as_posix()} {_file_hash(file, stat.st_size, stat.st_mtime_ns)}\n".encode())
    return whole.hexdigest()[:12]


@functools.cache
def _file_hash(file: Path, size: int, changed: int) -> str:
    """Read once in a process, as long as the file has this size and this time of its last change."""
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _recorded(value: Any):
    """Return what a record says of an option that JSON has no form for.

    Of a config its fields, of a function its name and the hash of its code, of anything else the kind of thing.
    """
    if isinstance(value, set | frozenset):  # whose order is another in each session
        return sorted(map(str, value))
    if isinstance(value, torch.dtype):
        return str(value)
    kind, chosen = type(value).__name__, {}
    fields: tuple = ()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
    elif callable(value):
        name = getattr(value, "__name__", kind)
        return {"name": name, **fingerprint(value, name)}
    elif not hasattr(value, "to_dict"):
        return kind
    for field in fields:  # a new version of PEFT, and its new fields, make no other training
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        if field.name != "peft_version" and (given := getattr(value, field.name)) != default:
            chosen[field.name] = given
    if hasattr(value, "to_dict"):  # configs of transformers, quantization's among them, whose values are no fields
        known = {"transformers_version", *(field.name for field in fields)}
        more = jsonable(value.to_dict())
        chosen |= {name: given for name, given in more.items() if given is not None and name not in known}
    return {"kind": kind, **chosen}


# Settings that change what is logged and saved, not what is trained.
_NOT_TRAINED = (
    "logging_ report_to run_name save_ log_ num_completions_to_print disable_tqdm push_to_hub hub_ monitor_every"
)
_NOT_TRAINED += " callbacks record_steps project trackio_ wandb_ same_reward"


_ON_BY_DEFAULT = {
    field.name
    for field in dataclasses.fields(trl.GRPOConfig)
    if field.default not in (None, dataclasses.MISSING) and field.name not in Recipe.__dataclass_fields__
}


# Folder, and code of a reward after a training in it by this process -> before it: lists that count calls have changed.
_BEFORE: dict[tuple[Path, str], str] = {}


def as_started(record_dir: Path, record: dict) -> dict:
    """The record with its rewards as they were when this process began to train in the folder, if nobody else changed them."""
    place = record_dir.resolve()

    def before(part: dict) -> dict:
        code = part.get("code")
        return part | {"code": _BEFORE.get((place, code), code)} if isinstance(code, str) else part

    return json.loads(json.dumps(record), object_hook=before)


def _note_end(record_dir: Path, record: dict, reward_funcs: Any, callbacks: Any) -> None:
    after = _functions(reward_funcs, callbacks)
    for before, now in zip(_rewards(record), _rewards(after), strict=True):
        if "code" in before:
            _BEFORE[record_dir.resolve(), now["code"]] = before["code"]


def check_reward(record_dir: Path, record: dict, same_reward: bool) -> None:
    """Raise where a folder's training would go on, or be reused, and values of its reward cannot be compared with today's.

    Raises:
        ParameterError: it names the values; `same_reward=True` says that they are as they were.
    """
    held = last_checkpoint(record_dir / "checkpoints") or _has_finished(record_dir)
    unseen, before = unseen_values(_rewards(record)), _before(record_dir, record)
    if unseen and held and not same_reward and before is not None and not _different(before, record):
        raise ParameterError(
            f"{record_dir}: holds a training with this reward, but these values of the reward cannot be compared with its own: "
            f"{unseen}. If they have not changed, give same_reward=True to go on; else give another record_dir"
        )


def open_folder(record_dir: Path, record: dict, same_reward: bool = False) -> None:
    """Bind a training folder to one record.

    What the folder holds of another training is moved aside, and the difference printed. What it holds of this one is moved
    aside if there is no checkpoint to go on from.
    """
    if int(os.environ.get("RANK", "0")) > 0:
        return  # of several processes the first one does it
    check_links(record_dir)
    record_dir.mkdir(parents=True, exist_ok=True)
    before = _before(record_dir, record)
    if before is not None and (different := _different(before, record, same_reward)):
        held = ("recipe.json", "metrics.jsonl", "completions.jsonl", "held_out.jsonl", "progress.json")
        move_aside(
            record_dir,
            (*held, "tokens", "steps", "checkpoints", "policy"),
            f"holds another training ({'; '.join(different)})",
        )
    if last_checkpoint(record_dir / "checkpoints") is None:
        forget_after(record_dir, 0)  # before the recipe is written, which would be moved too
    Recorder(record_dir).describe(record)


def _before(record_dir: Path, record: dict) -> dict | None:
    """The record of the training in a folder, None where there is none.

    Records of earlier versions have no `held_out`. Those of a finished training count as asked the same where its file has
    an answer to each question at each look.
    """
    before = read_json(record_dir / "recipe.json", None)
    if before is None or "held_out" in before or "held_out" not in record or not _has_finished(record_dir):
        return before
    answers, last = held_out_rewards(record_dir), _fields(record)["max_steps"]
    asked = [(step, one["questions"]) for one in record["held_out"] for step in one["looks"] if step <= last]
    same = all(len(answers.get(step, ())) == questions for step, questions in asked)
    return before | {"held_out": record["held_out"]} if same else before


def _has_finished(record_dir: Path) -> bool:
    return read_json(record_dir / "progress.json", {}).get("finished", False)


def _different(before: dict, record: dict, same_reward: bool = False) -> list[str]:
    """Return what differs between two records, such as `max_steps 5000 -> 6000`; a field that one lacks has its default.

    With `same_reward` the hashes of rewards are not compared.
    """
    fields = [_fields(before), _fields(record)]
    if same_reward:
        for each in fields:
            each["reward_funcs"] = [_without_code(reward) for reward in each.get("reward_funcs", [])]
            each["held_out"] = [one | {"reward": _without_code(one["reward"])} for one in each.get("held_out", [])]
    names = sorted({*fields[0], *fields[1]})
    pairs = [(name, *(each.get(name) for each in fields)) for name in names]  # 1 is 1.0, and a dict has no order
    pairs = [(name, *map(json.dumps, values)) for name, *values in pairs if values[0] != values[1]]
    return [f"{name} {old[:200]} -> {new[:200]}" for name, old, new in pairs if old != new]


def _without_code(described: dict) -> dict:
    return {name: value for name, value in described.items() if name not in ("code", "unseen")}


def _fields(record: dict) -> dict:
    own = {name: value for name, value in record.items() if name not in ("source", "recipe", "overrides")}
    fields = dataclasses.asdict(Recipe()) | record.get("recipe", {}) | record.get("overrides", {}) | own
    unseen = tuple(_NOT_TRAINED.split())
    # None switches off what TRL does by default, such as `max_grad_norm`; of another option it is the default.
    off = {name for name, value in record.get("overrides", {}).items() if value is None and name in _ON_BY_DEFAULT}
    fields |= dict.fromkeys(off, "None")
    return {name: value for name, value in fields.items() if value is not None and not name.startswith(unseen)}


def is_finished(record_dir: Path, record: dict, same_reward: bool = False) -> bool:
    """Say whether the folder holds this very training, from its first step to its last."""
    before = _before(record_dir, record)
    return before is not None and not _different(before, record, same_reward) and _has_finished(record_dir)


def make_trainer(trainer_class: Any, recipe: Recipe, *, reward_funcs: Any, record_dir: Path, **options: Any):
    """The trainer that `train` trains; `options` are its own and its config's."""
    args, own = make_config(trainer_class, recipe, record_dir, **options)
    if is_ppo(trainer_class):
        return _make_ppo(trainer_class, recipe, args, reward_funcs=reward_funcs, record_dir=record_dir, **own)
    own |= {"record_dir": record_dir, "train_dataset": load_prompts(recipe.dataset)}
    return trainer_class(resolve_model(recipe.model), reward_funcs, args, **own)


def make_config(trainer_class: Any, recipe: Recipe, record_dir: Path, **options: Any) -> tuple[Any, dict]:
    """The TRL config of a training, and those options that its trainer takes itself; loads neither model nor data."""
    options |= lora_fields(recipe, options)
    names, config = _OWN_OPTIONS, grpo_config  # type: tuple[str, ...], Any
    if is_ppo(trainer_class):
        if recipe.backend != "transformers":
            raise ParameterError(f"backend={recipe.backend!r}: TRL's PPOTrainer samples with transformers only")
        if options.pop("record_steps", None) is not None:
            raise ParameterError("record_steps: only GRPO and RLOO save steps, PPO does not; leave it out")
        names, config = _OWN_OPTIONS_OF_PPO, ppo_config
    elif issubclass(trainer_class, trl.RLOOTrainer):
        options["config_class"] = trl.RLOOConfig
    own = {name: options.pop(name) for name in names if name in options}
    return config(recipe, record_dir / "checkpoints", **options), own


def _make_ppo(trainer_class: Any, recipe: Recipe, args: Any, *, reward_funcs: Any, record_dir: Path, **own: Any):
    """PPO's trainer; `reward_funcs` may be a model too, or text for one of random weights."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = resolve_model(recipe.model)
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    prompts = load_prompts(recipe.dataset)
    # Messages as TRL's GRPO reads them: its PPO takes ids alone.
    dataset = prompts.map(lambda row: tokenize_prompt(tokenizer, row["prompt"]))
    # As TRL loads the models of its other trainers: a bf16 checkpoint would lose most updates of a small learning rate.
    policy = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    value_model, reward_model = random_heads(path, recipe.seed)
    if not isinstance(reward_funcs, str | torch.nn.Module):
        own, reward_model = own | {"reward_funcs": reward_funcs}, None
    else:
        dataset = dataset.remove_columns(prompts.column_names)
        reward_model = reward_model if isinstance(reward_funcs, str) else reward_funcs
    reference = None if "peft_config" in own else copy.deepcopy(policy)  # with LoRA the policy without its adapter
    models = (policy, reference, reward_model)
    return trainer_class(args, tokenizer, *models, dataset, value_model, record_dir=record_dir, **own)


def random_heads(path: str, seed: int) -> list:
    """Two fp32 sequence classifiers on the model at `path`, value and reward, whose heads have random weights of that seed."""
    from transformers import AutoModelForSequenceClassification

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        options = {"num_labels": 1, "dtype": torch.float32}
        return [AutoModelForSequenceClassification.from_pretrained(path, **options) for _ in range(2)]


def ppo_config(recipe: Recipe, output_dir: Path, **overrides: Any):
    """TRL's `PPOConfig` for a recipe: `max_steps` updates of `per_device_train_batch_size` responses a process."""
    from trl.experimental.ppo import PPOConfig

    processes = int(os.environ.get("WORLD_SIZE", "1"))  # TRL counts the episodes of all
    batch = recipe.per_device_train_batch_size * recipe.gradient_accumulation_steps * processes
    fields = common_fields(recipe, output_dir) | {
        "lr_scheduler_type": recipe.lr_scheduler_type,
        "local_rollout_forward_batch_size": recipe.per_device_train_batch_size,
        "total_episodes": recipe.max_steps * batch,
        "response_length": recipe.max_completion_length,
        "kl_coef": recipe.beta,
        "num_mini_batches": 1,
        "num_sample_generations": 0,
        "save_strategy": "no",  # TRL's PPO loop cannot resume
    }
    return PPOConfig(**(fields | overrides))


def train(
    recipe: Recipe,
    *,
    reward_funcs: Any,
    record_dir: str | Path,
    trainer: Any = GRPOTrainer,
    stops: Stops = None,
    monitor_every: int = 0,
    same_reward: bool = False,
    **options: Any,
):
    """Train a recipe in a run folder. Call it again after an interruption: it resumes. PPO begins again, like TRL's loop.

    All settings are checked before the folder is changed. Files of another training there are moved into `replaced-TIME`.

    Args:
        recipe: see `make_recipe`; its `beta` is the KL coefficient of each trainer.
        reward_funcs: one reward function or several, in TRL's convention. PPO also takes a sequence classifier with one
            label, or "random weights" for one that is enough to measure generation and masking but teaches nothing.
        record_dir: run folder.
        trainer: `GRPOTrainer`, `RLOOTrainer` or `PPOTrainer` of the workbench.
        stops: when completions end, see `GRPOTrainer`.
        same_reward: True says that the training in the folder has this reward, even if code or values differ. Without it, a
            folder is resumed only if all of the reward can be compared and is equal.
        monitor_every: steps between two measurements of what padding does; 0 measures nothing.
        **options: `callbacks`, `peft_config`, and any field of the trainer's TRL config. GRPO and RLOO also take
            `explicit_positions`, `generation_seed`, `share_generation` and `record_steps`. PPO also takes `reward_weights`:
            large rewards, such as lengths in characters, need a weight of about 0.1, because PPO's value model starts at 0.

    Returns:
        The trainer, trained.

    Raises:
        ParameterError: before anything is trained: a setting that the trainer does not take, or, without `same_reward`, a
            folder to resume whose reward holds values that cannot be compared, such as a client or a model.
        RunError: another thread trains in this folder, or there is a link where the training would write.
        TrainingStopped: the training was asked to stop. It has saved a complete checkpoint of its last step.
    """
    quiet_libraries()
    record_dir = Path(record_dir)
    if "peft_config" in options:  # PEFT changes the config; a copy keeps reruns equal
        options["peft_config"] = copy.deepcopy(options["peft_config"])
    asked = options | ({"monitor_every": monitor_every} if monitor_every else {})
    record = training_record(trainer.__name__, recipe, reward_funcs=reward_funcs, stops=stops, **asked)
    record = as_started(record_dir, record)
    check_reward(record_dir, record, same_reward)
    check_links(record_dir)
    with only_training(record_dir):
        made = make_trainer(trainer, recipe, reward_funcs=reward_funcs, record_dir=record_dir, stops=stops, **options)
        if monitor_every:
            attach_padding_monitor(made, every=monitor_every)
        if backend_of(made.args) == "vllm":  # to a server the probe is attached by hand
            attach_sampler_probe(made)
        open_folder(record_dir, record, same_reward)
        made.recorder.trainer = None  # the recipe says it in full
        made.accelerator.wait_for_everyone()  # before any process looks for a checkpoint
        checkpoint = last_checkpoint(record_dir / "checkpoints")
        try:
            made.train(**({"resume_from_checkpoint": str(checkpoint)} if checkpoint else {}))
        finally:
            _note_end(record_dir, record, reward_funcs, options.get("callbacks"))
    return made


def quiet_libraries() -> None:
    """Switch off the libraries' progress bars and load reports; tables show texts whole, which pandas cuts at 50 characters."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    pd.set_option("display.max_colwidth", None)
