"""Generates batches with 0%, 50% and 100% equal prompts on real vLLM and prints what came of each row, as JSON.

Run as a process of its own, `python tests/group_matrix.py [URL]`; judged in test_group_matrix.py.
"""

import json
import re
import sys
import tempfile

import torch
import trl

from workbench.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.search_task import CLOSE
from workbench.stops import StopSpec
from workbench.trainers.grpo import GRPOTrainer
from workbench.trainers.recording import quiet_libraries
from workbench.trainers.vllm_sync import install_cpu_sync, server_without_nccl, sharing_engines

BATCH = 16


def batch(rows, groups: int, g: int, equal: float) -> list[dict]:
    """`groups` groups of `g` rows; the share `equal` of the groups has the first prompt."""
    same = round(groups * equal)
    chosen = [rows[0] if n < same else rows[7 * n + 1] for n in range(groups)]
    return [row for row in chosen for _ in range(g)]


def make(cls, url, model="search", generation_kwargs=None, **kwargs):
    recipe = make_recipe(model, dataset="search", backend="vllm", max_steps=2, per_device_train_batch_size=BATCH)
    fields = {"generation_kwargs": generation_kwargs, "save_strategy": "no"}
    if url:
        fields |= {"vllm_mode": "server", "vllm_server_base_url": url}
    args = grpo_config(recipe, tempfile.mkdtemp(), max_completion_length=24, **fields)
    reward, data = lambda completions, **_: [0.0] * len(completions), load_prompts("search")
    with server_without_nccl(args):  # stock TRL could not even start beside a server without CUDA
        return cls(resolve_model(model), reward, args, train_dataset=data, **kwargs)


def generate(trainer, rows, g: int) -> dict:
    """One batch through the trainer's own scoring, with a reward that depends on the prompt."""
    trainer.num_generations = g
    trainer.model.train()
    if getattr(trainer, "vllm_generation", None) is not None:
        trainer._last_loaded_step = -1
    seen = {}

    def reward(prompts, completions, completion_ids, **_):
        topics = [re.search(r"(\w+)\?", p).group(1) for p in prompts]
        rewards = [10.0 * (topic in text) + len(text) for topic, text in zip(topics, completions, strict=True)]
        ids = [list(row) for row in completion_ids]
        seen.update(prompts=list(prompts), text=list(completions), ids=ids, rewards=rewards)
        return rewards

    trainer.reward_funcs[0] = reward
    out = trainer._generate_and_score_completions(rows)
    tokenizer = trainer._tokenizer
    prompts = [tokenizer.decode(i[m.bool()]) for i, m in zip(out["prompt_ids"], out["prompt_mask"], strict=True)]
    trained = [i[m.bool()].tolist() for i, m in zip(out["completion_ids"], out["completion_mask"], strict=True)]
    tap = getattr(trainer, "engine_tap", None)
    return {
        **seen,
        "asked": [row["prompt"] for row in rows],
        "trained_prompts": prompts,
        "trained_ids": trained,
        "advantages": out["advantages"].tolist(),
        "requests": tap.requests if tap else None,
        "prompt_tokens": tap.prompt_tokens if tap else None,
        "identical": trainer._metrics["train"].get("groups/identical", [None])[-1],
    }


def main(url: str | None = None) -> None:
    torch.set_num_threads(1)
    quiet_libraries()
    rows = load_prompts("search").to_list()
    stops = {"stops": StopSpec(strings=(CLOSE,))}
    result = {"matrix": {}}
    with sharing_engines():
        trainer = make(GRPOTrainer, url, **stops)
        for g in (2, 4, 8):
            for equal in (0.0, 0.5, 1.0):
                result["matrix"][f"{g} {equal}"] = generate(trainer, batch(rows, BATCH // g, g, equal), g)
        eight = batch(rows, 2, 8, 1.0)
        if not url:
            trainer.engine_tap.close()
        for name, options in {
            "seed 7": {"generation_seed": 7},
            "seed 7 again": {"generation_seed": 7},
            "seed 8": {"generation_seed": 8},
            "shared": {"generation_seed": 7, "share_generation": True},
            "shared again": {"generation_seed": 7, "share_generation": True},
        }.items():
            trainer = make(GRPOTrainer, url, **stops, **options)
            result[name] = generate(trainer, eight, 8)
            if not url:
                trainer.engine_tap.close()
        stock = make(trl.GRPOTrainer, url, generation_kwargs={"stop": [CLOSE], "seed": 7})
        install_cpu_sync(stock.vllm_generation, stock.args.output_dir)
        result["stock seed"] = generate(stock, eight, 8)
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
