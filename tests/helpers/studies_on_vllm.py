"""The studies that need vLLM in process (that of on_vllm.py), as small as they can be.

Judged in tests/experiments/test_on_vllm.py.
"""

import dataclasses
import json
from pathlib import Path

from peft import LoraConfig
from transformers import AutoTokenizer

from workbench import GRPOTrainer, StopSpec, exact_match_reward
from workbench.experiments.arms import Arm, ObservedGRPOTrainer, train_arms
from workbench.experiments.instruments.custom_stops import added_token_table, stop_ids_table
from workbench.experiments.instruments.duplicate_prompts import compare_backends
from workbench.experiments.instruments.samplers import (
    RawLogprobsGRPOTrainer,
    ReloadedGRPOTrainer,
    StaleCacheGRPOTrainer,
    UnmergedGRPOTrainer,
    late_by,
)
from workbench.experiments.recipes import load_prompts, make_recipe, resolve_model
from workbench.runs.files import jsonable

COPIES = 8  # of a prompt, which are all the same by chance once in thousands of seeds
STOP_ID = 31  # `>`, the last token of `<search>`
STOP = "</search>"


def arms() -> dict[str, Arm]:
    # Of so many groups some have a right answer and a wrong one, whatever the model has learned.
    sizes = {"per_device_train_batch_size": 32, "num_generations": 4, "max_completion_length": 24}
    recipe = make_recipe("search", dataset="search", backend="vllm", max_steps=2, **sizes)
    reward, spec = exact_match_reward("answer"), StopSpec(stop=(STOP,))
    stock = {"stop": [STOP], "include_stop_str_in_output": True}
    options = {
        "stock, masked": {"generation_kwargs": stock, "mask_truncated_completions": True},
        "stock, seed": {"generation_kwargs": stock | {"seed": 5}},
        "workbench, masked": {"mask_truncated_completions": True},
        "workbench, seed": {"generation_seed": 5},
        "workbench, shared": {"generation_seed": 5, "share_generation": True},
    }
    trainers = {"stock": ObservedGRPOTrainer, "workbench": GRPOTrainer}
    return {name: Arm(recipe, reward, trainers[name.partition(",")[0]], spec, given) for name, given in options.items()}


def alike(path: Path) -> str:
    """The prompts of the task behind one beginning of more than a block of the engine's prefix cache, 128 tokens."""
    tokenizer, rows = AutoTokenizer.from_pretrained(resolve_model("search")), list(load_prompts("search"))
    beginning = tokenizer.decode(tokenizer.encode("".join(row["prompt"] for row in rows))[:140])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row | {"prompt": f"{beginning}\n{row['prompt']}"}) for row in rows))
    return str(path)


def every_second(completions, **_) -> list[float]:
    """Half of a group is right, whatever was sampled: each step has a gradient, so each has other weights."""
    return [float(n % 2) for n in range(len(completions))]


def samplers(folder: Path) -> dict:
    """What is logged of each fault of a sampler, of its counterpart without, and with log-probs before the temperature."""
    sizes = {"per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 24, "max_steps": 4}
    sizes |= {"learning_rate": 6e-4, "temperature": 0.5}
    recipe, reward = make_recipe("search", dataset="search", backend="vllm", **sizes), every_second
    plain, lora = {"save_strategy": "no"}, {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"])}
    classes = [late_by(0), late_by(1), late_by(None), ReloadedGRPOTrainer, RawLogprobsGRPOTrainer]
    arms = {cls.__name__: Arm(recipe, reward, cls, options=plain) for cls in classes}
    adapter = dataclasses.replace(recipe, learning_rate=6e-3)
    for name, cls in {"merged": late_by(0), "not merged": UnmergedGRPOTrainer}.items():
        arms[name] = Arm(adapter, reward, cls, options=plain | lora)
    cached = dataclasses.replace(recipe, dataset=alike(folder / "alike.jsonl"))
    for name, cls in {"cache cleared": late_by(0), "cache kept": StaleCacheGRPOTrainer}.items():
        arms[name] = Arm(cached, reward, cls, options=plain)
    runs = train_arms(arms, out_dir=folder, seeds=[0])
    wanted = ("reward", "sampler/", "ratio/", "sampling/sampling_logp_difference/mean")
    kept = {name: run.metrics for name, (run,) in runs.items()}
    return {n: m[[c for c in m if c.startswith(wanted)]].to_dict("list") for n, m in kept.items()}


def result(folder: str) -> dict:
    runs = {name: run for name, (run,) in train_arms(arms(), out_dir=Path(folder) / "arms", seeds=[0]).items()}
    path = resolve_model("search")
    made = {
        "metrics": {name: run.metrics.to_dict("list") for name, run in runs.items()},
        "rows": {name: run.completions.to_dict("list") for name, run in runs.items()},
        "samplers": samplers(Path(folder) / "samplers"),
        "token": added_token_table(path, "<call>", folder=Path(folder) / "grown").to_dict(),
        "backends": compare_backends(path, num_generations=COPIES, seed=5, server=True).to_dict("records"),
        "ids": stop_ids_table(path, STOP_ID, server=False).to_dict("index"),
    }
    return jsonable(made)
