"""`check_step` in trainings whose weights FSDP2 holds in parts, in two processes on a CPU; what torchrun starts.

    torchrun --nproc_per_node 2 tests/helpers/sharded_steps.py FOLDER NAME...

Leaves FOLDER/rank-N.json: case -> stage -> verdict and cause, and whether the weights are those of a training without.
Accelerate shards only on accelerators, so that it takes these two processes for those of two.
"""

import contextlib
import hashlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import trl
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from distillation_cases import TWO
from distillation_cases import make as make_distillation
from step_cases import FAULTS, HEALTHY, length, make
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from workbench.errors import RunError
from workbench.experiments.instruments.ppo_learning import preference_model
from workbench.watch import judge
from workbench.watch.attach import StepCheck

LAYERS = {"starter-gpt2": "GPT2Block"}
os.environ |= {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
}
begin = PartialState.__init__


def as_on_accelerators(self, *args, **kwargs):
    begin(self, *args, **kwargs)
    if self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.MULTI_GPU


class SendsInFloat32(trl.GRPOTrainer):
    """Averages the gradients of bf16 weights in float32."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        self.accelerator.state.fsdp_plugin.mixed_precision_policy = policy


class FailsInOne(trl.GRPOTrainer):
    """Runs out of memory in one of the processes while a row is scored."""

    def train(self, *args, **kwargs):
        score = judge.Judge._score

        def failing(*args):
            if self.accelerator.process_index:
                raise torch.OutOfMemoryError("no memory")
            return score(*args)

        judge.Judge._score = failing
        try:
            return super().train(*args, **kwargs)
        finally:
            judge.Judge._score = score


CASES: dict[str, dict[str, Any]] = {**HEALTHY, **{name: case for name, (case, _, _) in FAULTS.items()}}
CASES |= {
    "a reference": {"beta": 0.1},
    "a reward model": {"funcs": (length, str(preference_model()))},
    "bf16, sent in float32": {"cls": SendsInFloat32, "bf16": True},
    "distillation": TWO | {"make": make_distillation},
    "fails in one": {"cls": FailsInOne},
}


def trained(folder: Path, case: dict[str, Any], checked: bool) -> tuple[str, dict[int, Any], str]:
    """A hash of the weights after two steps, the reports, and what was said."""
    case = dict(case)
    if callable(case.get("model")):
        case["model"] = case["model"]()
    # All rows of an update are of four prompts.
    if {"gradient_accumulation_steps", "steps_per_generation"} & case.keys() and "make" not in case:
        case["per_device_train_batch_size"] = 2
        case["steps_per_generation"] = case["gradient_accumulation_steps"] = 2
    torch.manual_seed(0)
    trainer = case.pop("make", make)(folder, max_steps=2, disable_tqdm=True, **case)
    check = StepCheck(trainer, 1, tell=lambda line: None) if checked else None
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        trainer.train()
    if not any(isinstance(module, FSDPModule) for module in trainer.model.modules()):
        raise RunError("the weights are whole in each process: is nothing sharded?")
    weights = (p.full_tensor() for p in trainer.model.parameters())
    digest = hashlib.sha256(b"".join(w.detach().float().numpy().tobytes() for w in weights)).hexdigest()
    return digest, check.reports if check else {}, said.getvalue()


def main(folder: str, *names: str) -> None:
    torch.set_num_threads(1)
    PartialState.__init__ = as_on_accelerators
    found = {}
    for name in names:
        case = CASES[name]
        os.environ["FSDP_TRANSFORMER_CLS_TO_WRAP"] = LAYERS.get(str(case.get("model")), "Qwen2DecoderLayer")
        digest, reports, said = trained(Path(folder, name), case, True)
        stages = {n: {s.name: [s.verdict, s.cause] for s in report.stages} for n, report in reports.items()}
        alike = digest == trained(Path(folder, name), case, False)[0]
        found[name] = {"stages": stages, "alike": alike, "said": said[-2000:]}
    rank = torch.distributed.get_rank()
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
