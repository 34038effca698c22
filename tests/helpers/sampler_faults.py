"""Six ways in which an engine is not the policy that is trained, put into real trainings on vLLM; prints verdicts as JSON.

    python tests/helpers/sampler_faults.py [server] [STEPS] [CASE ...]

In a process of its own: an engine of vLLM stays for the life of its process, and all cases share it. With `server` the engine
is a server of vLLM instead. SAMPLER_FAULTS_MODEL is another model's folder, SAMPLER_FAULTS_ROWS the completions of a step.
"""

import contextlib
import gc
import json
import os
import sys
import tempfile
import warnings
from collections import deque
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from tokenizers import normalizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback

from workbench.audit.report import audit_run
from workbench.experiments.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.experiments.train import quiet_libraries
from workbench.experiments.vllm_server import serve, shared_engine, sharing_engines
from workbench.generation.preflight import save_policy
from workbench.runs.completions import read_parts, token_parts
from workbench.runs.run import Run
from workbench.training import sync_on_cpu as vllm_sync
from workbench.training.grpo import GRPOTrainer, RLOOTrainer
from workbench.training.rewards import length_reward
from workbench.training.sync_on_cpu import building_on_cpu, install_cpu_sync
from workbench.watch.attach import attach_watch
from workbench.watch.sampler_probe import attach_sampler_probe

MODEL = os.environ.get("SAMPLER_FAULTS_MODEL", "starter")
ROWS = int(os.environ.get("SAMPLER_FAULTS_ROWS", "16"))


def with_template(folder: str) -> str:
    """The model with a chat template, which it has none of."""
    model, tokenizer = (auto.from_pretrained(resolve_model(MODEL)) for auto in (AutoModelForCausalLM, AutoTokenizer))
    tokenizer.chat_template = "{{ messages[0]['content'] }}!"
    return str(save_policy(model, tokenizer, folder))


PATH = with_template(tempfile.mkdtemp())
LORA = {"peft_config": {"r": 4, "target_modules": ["q_proj", "v_proj"]}, "learning_rate": 3e-3}

STOP = {"stop": ["e"], "include_stop_str_in_output": True}
MASKED = {"generation_kwargs": STOP, "mask_truncated_completions": True, "max_completion_length": 32}


def copies(named_params) -> list:
    return [(name, tensor.detach().clone()) for name, tensor in named_params]


def never():
    """Nothing is sent."""
    return lambda params: None


def late(n: int):
    """What was to be sent n syncs ago is sent."""
    kept: deque = deque(maxlen=n + 1)

    def send(params):
        kept.append(copies(params))
        return kept[0]

    return send


def rounded():
    return lambda params: [(name, tensor.bfloat16().float()) for name, tensor in copies(params)]


def unmerged():
    """The weights of the model as it was loaded, which LoRA does not change."""
    base = copies(AutoModelForCausalLM.from_pretrained(PATH).named_parameters())

    def send(params):
        copies(params)
        return base

    return send


def sender(make) -> object:
    """A sync that sends what `make()` makes of the weights."""
    change = make()

    def colocated(llm, params):
        if (weights := change(params)) is not None:
            RELOAD_COLOCATED(llm, weights)

    def server(client, params, *rest):
        if (weights := change(params)) is not None:
            RELOAD_SERVER(client, weights, *rest)

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(vllm_sync, "reload_colocated", colocated))
    stack.enter_context(mock.patch.object(vllm_sync, "reload_server", server))
    return stack


def uncleared(url: str):
    """Weights are sent and the prefix cache is kept."""
    if not url:
        return mock.patch.object(type(shared_engine(PATH)), "reset_prefix_cache", lambda *_, **__: None)
    from requests import Session

    post = Session.post
    kept = mock.Mock(raise_for_status=lambda: None)
    return mock.patch.object(
        Session, "post", lambda s, u, *a, **k: kept if "reset_prefix" in u else post(s, u, *a, **k)
    )


def other_tokenizer(kind: str):
    """The starter's tokenizer, that reads text or conversations otherwise."""
    tokenizer = AutoTokenizer.from_pretrained(PATH, padding_side="left")
    if kind == "template":
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    else:
        tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def with_one_beginning() -> Dataset:
    """Prompts that share more than a block of the engine's prefix cache, as those of a long system prompt do."""
    begin = "def argument(name, value, other, text) return the sum of all values of the list of names\n" * 7
    return Dataset.from_list([{"prompt": f"{begin}module{n}\nTL;DR:"} for n in range(64)])


def cases(url: str) -> dict:
    """Name -> (what is injected, trainer's class, its options)."""
    none = contextlib.nullcontext
    return {
        "clean": (none, GRPOTrainer, {}),
        "clean, LoRA": (none, GRPOTrainer, LORA),
        "clean, RLOO": (none, RLOOTrainer, {}),
        "clean, stock": (none, trl.GRPOTrainer, {}),
        "clean, one beginning": (none, GRPOTrainer, {"train_dataset": with_one_beginning()}),
        "not synced": (lambda: sender(never), GRPOTrainer, {}),
        "not probed": (none, trl.GRPOTrainer, {"probed": False}),
        "watched": (none, trl.GRPOTrainer, {"watched": True}),
        "watched, masked stops": (none, trl.GRPOTrainer, {"watched": True, "args": MASKED}),
        "not synced, stock": (lambda: sender(never), trl.GRPOTrainer, {}),
        "synced late, 1": (lambda: sender(lambda: late(1)), GRPOTrainer, {}),
        "synced late, 2": (lambda: sender(lambda: late(2)), GRPOTrainer, {}),
        "lost precision": (lambda: sender(rounded), GRPOTrainer, {}),
        "LoRA not merged": (lambda: sender(unmerged), GRPOTrainer, LORA),
        "stale prefix cache": (lambda: uncleared(url), GRPOTrainer, {}),
        "other tokenizer": (none, GRPOTrainer, {"processing_class": other_tokenizer("text")}),
        "other template": (none, GRPOTrainer, {"processing_class": other_tokenizer("template")}),
    }


def run(case: tuple, url: str, steps: int) -> dict:
    """Verdicts of a training, what was warned of, and what was logged."""
    inject, cls, options = case
    options = dict(options)
    watched = options.pop("watched", False)
    probed = options.pop("probed", not watched)
    changed = options.pop("args", {})
    fields = {"max_steps": steps, "per_device_train_batch_size": ROWS, "max_completion_length": 16, "beta": 0.0}
    fields |= {"learning_rate": options.pop("learning_rate", 3e-4), "lr_scheduler_type": "constant"}
    recipe = make_recipe(MODEL, dataset="starter", backend="vllm", **fields)
    server = {"vllm_mode": "server", "vllm_server_base_url": url} if url else {}
    config = trl.RLOOConfig if cls is RLOOTrainer else trl.GRPOConfig
    args = grpo_config(recipe, tempfile.mkdtemp(), config, **{"save_strategy": "no"} | server | changed)
    options.setdefault("train_dataset", load_prompts("starter"))
    if "peft_config" in options:
        options["peft_config"] = LoraConfig(**options["peft_config"])
    with warnings.catch_warnings(record=True) as caught, building_on_cpu(args):
        warnings.simplefilter("always")
        trainer = cls(PATH, reward_funcs=length_reward(), args=args, **options)
        if cls is trl.GRPOTrainer:
            install_cpu_sync(trainer.vllm_generation, args.output_dir)
        trainer.remove_callback(PrinterCallback)
        probe = attach_sampler_probe(trainer) if probed else None
        watch = attach_watch(trainer, every=1) if watched else None
        start = AutoModelForCausalLM.from_pretrained(PATH)  # the engine is as after its start
        if url:
            client, exchange = trainer.vllm_generation.vllm_client, Path(tempfile.mkdtemp())
            RELOAD_SERVER(client, start.named_parameters(), start.config, exchange)
        else:
            RELOAD_COLOCATED(getattr(trainer, "vllm_generation", trainer).llm, start.named_parameters())
        with inject():
            trainer.train()
    lines = trainer.state.log_history[:-1]
    found = {name: [line.get(name) for line in lines] for name in ("reward", "entropy")}
    if watch:
        return found | what_was_watched(watch.recorder.record_dir)
    if not probe:
        return found
    said = [text for w in caught if (text := str(w.message)).startswith(("vLLM at step", "the sampler is not"))]
    verdicts = [(step, v.cause, v.decided, v.steps_behind, v.difference, v.text) for step, v in probe.verdicts]
    logged = [{k: v for k, v in line.items() if k.startswith("sampler/")} for line in lines]
    found |= {"verdicts": verdicts, "warned": said, "logged": logged}
    return found | {"seconds": probe.seconds, "count": probe._count}


def what_was_watched(folder: Path) -> dict:
    """The record's rows, and what the audit says of it."""
    rows, (tokens, _) = Run(folder).completions, read_parts(token_parts(folder))
    scored = zip(tokens["sampler_logprobs"], tokens["scorer_logprobs"], strict=True)
    return {
        "finish_reason": rows["finish_reason"].tolist(),
        "trl_finish_reason": rows["trl_finish_reason"].tolist(),
        "probed": "sampler/difference" in Run(folder).metrics,
        "logprobs": (tokens["sampler_logprobs"].map(len) == tokens["completion_ids"].map(len)).all().item(),
        "apart": [float(np.abs(s - t).max()) for s, t in scored if len(t)],
        "problems": audit_run(folder).problems,
        "first": audit_run(folder).runs[0].findings[0].rule,
    }


RELOAD_COLOCATED, RELOAD_SERVER = vllm_sync.reload_colocated, vllm_sync.reload_server


def result(where: str = "", steps: str = "3", *names: str) -> dict:
    with serve(PATH) if where else contextlib.nullcontext("") as url, sharing_engines():
        if not url:
            shared_engine(model=PATH, max_model_len=256, logprobs_mode="processed_logprobs")
        every, made = cases(url), {}
        for name in names or every:
            made[name] = run(every[name], url, int(steps))
            print("CASE " + json.dumps({name: made[name]}), flush=True)
            gc.collect()  # a trainer is a circle of references, and of a real model gigabytes
    return made


if __name__ == "__main__":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # as TRL sets it: weights are synced within the process
    torch.set_num_threads(1)
    quiet_libraries()
    print("RESULT " + json.dumps(result(*sys.argv[1:])), flush=True)
