"""Batches of equal prompts through real trainers and back ends: through generation and scoring, and nothing is trained."""

import contextlib
import gc
import inspect
import shutil
import tempfile
import textwrap
import warnings
import weakref
from unittest import mock

import pandas as pd
import trl

from ...errors import RunError
from ...generation.stops import StopSpec
from ...training.engine import hook
from ...training.grpo import GRPOTrainer
from ...training.sync_on_cpu import building_on_cpu, install_cpu_sync
from ..recipes import grpo_config, load_prompts, make_recipe
from ..toys.search_task import CLOSE
from ..train import quiet_libraries
from ..vllm_server import serve, sharing_engines

REMOVED_RULE = "stock TRL, removed rule"


def equal_prompt_batch(rows: list[dict], groups: int, num_generations: int, equal: float) -> list[dict]:
    """`groups` x G rows; the share `equal` of the groups has the first prompt, the others have one each."""
    same = round(groups * equal)
    chosen = [rows[0] if n < same else rows[(7 * n + 1) % len(rows)] for n in range(groups)]
    return [row for row in chosen for _ in range(num_generations)]


def make_trainer(
    cls, path: str, batch_size: int, *, vllm: bool, url: str | None = None, generation_kwargs=None, **kwargs
):
    """A GRPO trainer of class `cls` on the search task, ready to generate, or to train three steps."""
    backend = "vllm" if vllm else "transformers"
    sizes = {"per_device_train_batch_size": batch_size, "num_generations": 2}
    recipe = make_recipe("search", dataset="search", backend=backend, **sizes)
    fields = {"generation_kwargs": generation_kwargs, "save_strategy": "no", "max_completion_length": 24}
    fields |= {"max_steps": 3}
    if url:
        fields |= {"vllm_mode": "server", "vllm_server_base_url": url}
    folder = tempfile.mkdtemp(prefix="workbench-")
    args = grpo_config(recipe, folder, **fields)
    with building_on_cpu(args):  # stock TRL could not even start with a server where there is no CUDA
        trainer = cls(
            path,
            lambda completions, **_: [0.0] * len(completions),
            args,
            train_dataset=load_prompts("search"),
            **kwargs,
        )
    if vllm and cls is trl.GRPOTrainer:
        install_cpu_sync(trainer.vllm_generation, args.output_dir)
    weakref.finalize(trainer, shutil.rmtree, folder, ignore_errors=True)
    return trainer


def score_batch(trainer, rows: list[dict], num_generations: int) -> dict:
    """One batch through the trainer's generation and scoring, with a reward that depends on the prompt: what the reward
    function saw, what the loss would see (`trained_prompts`, `trained_ids`, `advantages`), and what was sent to vLLM.
    """
    trainer.num_generations = num_generations
    trainer.model.train()
    seen: dict = {}

    def reward(prompts, completions, completion_ids, answer, **_):
        wanted = [a.removeprefix("<search>").removesuffix(CLOSE) for a in answer]
        rewards = [10.0 * (topic in text) + len(text) for topic, text in zip(wanted, completions, strict=True)]
        ids = [list(row) for row in completion_ids]
        seen.update(prompts=list(prompts), text=list(completions), ids=ids, rewards=rewards)
        return rewards

    trainer.reward_funcs[0] = reward
    out = trainer._generate_and_score_completions(rows)
    pairs = zip(out["prompt_ids"], out["prompt_mask"], strict=True)
    trained = zip(out["completion_ids"], out["completion_mask"], strict=True)
    tap = getattr(trainer, "engine", None)
    return {
        **seen,
        "asked": [row["prompt"] for row in rows],
        "trained_prompts": [trainer._tokenizer.decode(ids[mask.bool()]) for ids, mask in pairs],
        "trained_ids": [ids[mask.bool()].tolist() for ids, mask in trained],
        "advantages": out["advantages"].tolist(),
        "requests": tap.requests if tap else None,
        "prompt_tokens": tap.prompt_tokens if tap else None,
    }


def compare_backends(path: str, *, num_generations: int, seed: int, server: bool) -> pd.DataFrame:
    """Four groups, two of one prompt, through stock and workbench trainers on each back end, with `server` a vLLM server too.

    Returns:
        A row per back end and trainer: `prompts` of the batch and `completions` that came back, `distinct per group` (1..G,
        mean over the groups), rows trained under the `wrong prompt`, whether `equal prompts share` their completions,
        vLLM's `requests`, and the `error` in which generation or scoring ended, else empty.
    """
    quiet_libraries()
    batch = equal_prompt_batch(load_prompts("search").to_list(), 4, num_generations, 0.5)
    table = []
    with warnings.catch_warnings(), sharing_engines(), serve(path) if server else contextlib.nullcontext() as url:
        warnings.filterwarnings("ignore", "prompts are plain strings")  # those of this task are, whatever the model
        for place in ("transformers", "vLLM", *(["vLLM server"] if server else [])):
            at = {"vllm": place != "transformers", "url": url if place == "vLLM server" else None}
            for name, options in _trainers(place, seed).items():
                cls = GRPOTrainer if name.startswith("workbench") else trl.GRPOTrainer
                trainer = make_trainer(cls, path, len(batch), **at, **options)
                with removed_rule() if name == REMOVED_RULE else contextlib.nullcontext():
                    table.append({"back end": place, "trainer": name} | _judge(trainer, batch, num_generations))
                del trainer
                gc.collect()  # a trainer holds itself, and its model takes memory beside the next one's
    return pd.DataFrame(table)


def _trainers(place: str, seed: int) -> dict[str, dict]:
    """Name -> options of the trainers that are compared on a back end."""
    stops = {"stops": StopSpec(stop=(CLOSE,))}
    if place == "transformers":
        return {"stock TRL": {}, REMOVED_RULE: {}, "workbench": stops}
    stock = {"stop": [CLOSE]}
    seeded = stops | {"generation_seed": seed}
    trainers = {
        "stock TRL": {"generation_kwargs": stock},
        "stock TRL, seed": {"generation_kwargs": stock | {"seed": seed}},
        "workbench, generation_seed": seeded,
        "workbench, share_generation": seeded | {"share_generation": True},
    }
    return trainers | ({REMOVED_RULE: {"generation_kwargs": stock}} if place == "vLLM server" else {})


def _judge(trainer, batch: list[dict], g: int) -> dict:
    sampled: list = []
    hook(trainer, "_generate_single_turn", lambda own, *a, **kw: sampled.append(own(*a, **kw)) or sampled[-1])
    try:
        got = score_batch(trainer, batch, g)
    except Exception as wrong:  # whatever TRL raises here is what is being looked at
        completions = len(sampled[-1][0]) if sampled else 0
        error = f"{type(wrong).__name__}: {str(wrong).splitlines()[0]}"
        return {"prompts": len(batch), "completions": completions, "error": error}
    groups = [got["text"][n : n + g] for n in range(0, len(batch), g)]
    moved = zip(got["asked"], got["trained_prompts"], got["ids"], got["trained_ids"], strict=True)
    return {
        "prompts": len(batch),
        "completions": len(got["ids"]),
        "distinct per group": sum(len(set(texts)) for texts in groups) / len(groups),
        "wrong prompt": sum(asked != trained or ids != kept for asked, trained, ids, kept in moved),
        "equal prompts share": groups[0] == groups[1],
        "requests": got["requests"],
        "error": "",
    }


def removed_rule():
    """While open, TRL takes the set of a batch's prompts where it takes every G-th for a vLLM server (trl #3045)."""
    from trl.generation import vllm_generation  # here, after the workbench has put off TRL's import of vLLM

    generation = vllm_generation.VLLMGeneration
    source = textwrap.dedent(inspect.getsource(generation.generate))
    every, rule = "all_prompts[::num_generations]", "[list(p) for p in dict.fromkeys(map(tuple, all_prompts))]"
    if every not in source:
        raise RunError(
            f"TRL {trl.__version__}: VLLMGeneration.generate has no {every}; the old rule cannot be put back"
        )
    found: dict = {}
    exec(source.replace(every, rule), vars(vllm_generation), found)
    return mock.patch.object(generation, "generate", found["generate"])
