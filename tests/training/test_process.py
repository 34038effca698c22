"""Importing or building a trainer leaves the process as stock TRL leaves it."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
from conftest import ROOT, need

pytestmark = pytest.mark.slow

# In a process of its own, as a user's script: the tests' own processes import vLLM late.
CODE = """
import json, os, sys, tempfile
import torch, transformers, trl
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.generation import vllm_client, vllm_generation

vllm, model = json.loads(sys.argv[1]), sys.argv[2]
rewards, data = (lambda completions, **_: [float(len(c)) for c in completions]), Dataset.from_dict({"prompt": ["a", "b"]})
common = {"output_dir": tempfile.mkdtemp(), "use_cpu": True, "bf16": False, "gradient_checkpointing": False}
common |= {"report_to": "none", "per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 8}
if vllm:
    common |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 64, "vllm_gpu_memory_utilization": 0.2}


def build(kind, module):
    config = getattr(trl, kind + "Config")
    trainer = getattr(module, kind + "Trainer")(model, rewards, config(**common), train_dataset=data)
    return trainer


def state():
    trl_modules = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "trl" and m is not None}
    attributes = {f"{n}.{k}": id(v) for n, m in trl_modules.items() for k, v in vars(m).items() if not k.startswith("__")}
    classes = {f"{c.__module__}.{c.__name__}": c for m in trl_modules.values() for c in vars(m).values()
               if isinstance(c, type) and c.__module__.partition(".")[0] == "trl"}
    methods = {f"{n}.{k}": id(v) for n, c in classes.items() for k, v in vars(c).items() if not k.startswith("__")}
    return {"finders": [repr(f) for f in sys.meta_path], "path": list(sys.path), "environment": dict(os.environ),
            "attributes": attributes | methods, "methods": list(methods), "classes": list(classes),
            "vllm": "vllm" in sys.modules and type(sys.modules["vllm"]).__name__}


if not vllm:
    stock = build("GRPO", trl), build("RLOO", trl)
before = state()
import workbench
from workbench import GRPOTrainer, RLOOTrainer

ours = build("GRPO", workbench) if vllm else (build("GRPO", workbench), build("RLOO", workbench))
after = state()
said = {name: (before[name], after[name]) for name in ("finders", "path", "environment", "vllm") if before[name] != after[name]}
moved = [n for n, value in before["attributes"].items() if after["attributes"].get(n) != value]
moved += [n for n in set(after["methods"]) - set(before["methods"]) if n.rpartition(".")[0] in before["classes"]]
print("RESULT " + json.dumps({"said": said, "moved": moved, "compared": len(before["attributes"])}))
"""


# What vLLM and TRL write into the environment when an engine starts, under stock TRL too.
ENGINES_OWN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LD_PRELOAD"}
ENGINES_OWN |= {"NUMEXPR_MAX_THREADS", "TORCHINDUCTOR_CPP_DYNAMIC_THREADS"}


def process_state(vllm: bool, model) -> dict:
    command = [sys.executable, "-W", "ignore", "-c", CODE, json.dumps(vllm), str(model)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[0].removeprefix("RESULT "))


@pytest.mark.rare
def test_building_a_trainer_changes_nothing_else(starter_folder):
    found = process_state(False, starter_folder)
    assert found["compared"] > 1000
    assert found["said"] == {}
    assert found["moved"] == []


@pytest.mark.rare
def test_building_a_trainer_on_vllm_patches_no_module(starter_folder):
    need(find_spec("vllm"), "vLLM")
    found = process_state(True, starter_folder)
    before, after = found["said"].pop("environment", [{}, {}])
    assert found["said"] == {}
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert {name for name in changed if not name.startswith(("VLLM_", "AITER_"))} <= ENGINES_OWN
    assert found["moved"] == []
