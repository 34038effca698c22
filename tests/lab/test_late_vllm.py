"""What TRL imports of vLLM, and when; an engine that starts so is in test_stopping.py."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
import trl
from conftest import ROOT, need

from workbench.lab.late_vllm import IMPORT_VLLM_LATE, _TRLFinder
from workbench.training.sync_on_cpu import cpu_engine

pytestmark = pytest.mark.slow

# In a process of its own, since vLLM once loaded stays loaded.
CODE = """
import json, sys
from workbench.lab.late_vllm import import_vllm_late
import_vllm_late()
from workbench import GRPOTrainer, RLOOTrainer
from trl.generation import vllm_client, vllm_generation
from trl.import_utils import is_vllm_available
import trl

loaded = [name for name in sys.modules if name.partition(".")[0] == "vllm"]
known = is_vllm_available()
asked = {module.__name__: [n for n, v in vars(module).items() if type(v).__name__ == "_Late"]
         for module in (vllm_client, vllm_generation)}
made = vllm_generation.SamplingParams(max_tokens=3)
import vllm
real = {name: [hasattr(getattr(sys.modules[name], n)._real(), "__name__") for n in names] for name, names in asked.items()}
print(json.dumps([loaded, known, asked, real, made == vllm.SamplingParams(max_tokens=3)]))
"""


@pytest.fixture(scope="module")
def found():
    need(find_spec("vllm"), "vLLM")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CODE], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.rare
def test_trainers_are_imported_without_vllm(found):
    loaded, known, *_ = found
    assert (loaded, known) == ([], True)


@pytest.mark.rare
def test_names_of_vllm_are_the_real_ones_when_used(found):
    _, _, asked, real, equal = found
    assert all({"LLM", "SamplingParams"} <= set(names) for module, names in asked.items() if "client" not in module)
    assert asked.keys() == real.keys() and all(all(names) for names in real.values())
    assert equal


@pytest.mark.parametrize("place, ours", [("generation", True), ("experimental/async_grpo", False)])
def test_only_the_trainers_module_gets_the_stand_in(place, ours):
    name, folder = f"trl.{place.replace('/', '.')}.vllm_client", f"{trl.__path__[0]}/{place}"
    assert (_TRLFinder().find_spec(name, [folder]) is not None) == ours


def test_engine_without_gpu_compiles_nothing(monkeypatch, tmp_path, starter_folder):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cpu_engine(str(starter_folder)) == {"enforce_eager": True, "num_gpu_blocks_override": 512}
    assert cpu_engine("owner/model-of-a-hub") == {"enforce_eager": True}
    (tmp_path / "model.safetensors").write_bytes(bytes(2**24))
    assert cpu_engine(str(tmp_path)) == {"enforce_eager": True}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cpu_engine(str(starter_folder)) == {}


def test_kernels_of_the_lab_import_vllm_late():
    """`make lab` starts kernels by a spec of its own; the runner gives its kernels the same line."""
    spec = json.loads((ROOT / "requirements/jupyter/kernels/python3/kernel.json").read_text())
    assert spec["argv"][-1] == f"--IPKernelApp.exec_lines={IMPORT_VLLM_LATE}"
    assert spec["env"] == {"TRL_EXPERIMENTAL_SILENCE": "1"}
