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
from unittest import mock

import torch
import trl
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from distillation_cases import TWO
from distillation_cases import make as make_distillation
from step_cases import FAULTS, HEALTHY, PROMPTS, length, make
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from workbench.errors import RunError
from workbench.experiments.instruments.ppo_learning import preference_model
from workbench.training import record_step
from workbench.training.processes import held_parameters, whole
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


def failing(name: str, rank: int | None = 1):
    """A trainer of which a method of the judge runs out of memory in one process, or in all."""

    class Failing(trl.GRPOTrainer):
        def train(self, *args, **kwargs):
            original = getattr(judge.Judge, name)

            def failing(*args):
                if rank in (None, self.accelerator.process_index):
                    raise torch.OutOfMemoryError("no memory")
                return original(*args)

            setattr(judge.Judge, name, failing)
            try:
                return super().train(*args, **kwargs)
            finally:
                setattr(judge.Judge, name, original)

    return Failing


def failing_backward(rank: int | None = 1):
    """A trainer whose first layer runs out of memory in a backward pass of the judge, in one process or in all."""

    class Failing(trl.GRPOTrainer):
        def train(self, *args, **kwargs):
            differentiate = judge.Judge._differentiate_rows

            def out_of_memory(*_):
                raise torch.OutOfMemoryError("no memory")

            def differentiated(judged):
                hook = self.model.model.layers[0].register_full_backward_hook(out_of_memory)
                try:
                    return differentiate(judged)
                finally:
                    hook.remove()

            if rank in (None, self.accelerator.process_index):
                judge.Judge._differentiate_rows = differentiated
            try:
                return super().train(*args, **kwargs)
            finally:
                judge.Judge._differentiate_rows = differentiate

    return Failing


class NotRecorded(trl.GRPOTrainer):
    """Cannot be recorded in any process."""

    def train(self, *args, **kwargs):
        with mock.patch.object(record_step, "finish_update", side_effect=AttributeError("no such method")):
            return super().train(*args, **kwargs)


def fails(completions, **_):
    if torch.distributed.get_rank() == 1:
        raise ConnectionError("the server of rewards is busy")
    return length(completions)


EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4, "max_grad_norm": 0.1}
CASES: dict[str, dict[str, Any]] = {**HEALTHY, **{name: case for name, (case, _, _) in FAULTS.items()}}
CASES |= {
    "a reference": {"beta": 0.1},
    "a reward model": {"funcs": (length, str(preference_model()))},
    "bf16, sent in float32": {"cls": SendsInFloat32, "bf16": True},
    "distillation": TWO | {"make": make_distillation},
    "fails while it scores": {"cls": failing("_score")},
    "fails at a stage": {"cls": failing("sampling")},
    "fails in a backward pass": {"cls": failing_backward()},
    "fails in each backward pass": {"cls": failing_backward(None)},
    "fails to record": {"cls": NotRecorded},
    "a reward fails": {"funcs": (fails,)},
    "evaluations": EVALUATED | {"more": {"eval_dataset": Dataset.from_dict({"prompt": PROMPTS})}},
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
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            trainer.train()
    except Exception:
        print(said.getvalue())
        raise
    if not any(isinstance(module, FSDPModule) for module in trainer.model.modules()):
        raise RunError("the weights are whole in each process: is nothing sharded?")
    weights = [whole(p).detach().float() for p in held_parameters(trainer.model)]
    digest = hashlib.sha256(b"".join(w.numpy().tobytes() for w in weights)).hexdigest()
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
