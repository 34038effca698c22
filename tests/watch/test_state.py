"""A check changes nothing: a training with checks is, bit for bit, the training without."""

import random
import types
from collections import deque

import numpy as np
import pytest
import torch
import trl
from conftest import daily
from datasets import Dataset
from peft import LoraConfig
from step_cases import PROMPTS, in_bf16, length, make

from workbench import attach_watch, check_step

pytestmark = pytest.mark.slow

STEPS = 4


class HeavyBall(torch.optim.Optimizer):
    """SGD with a momentum in fp32, whatever the weights have."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter, dtype=torch.float32))
                momentum.mul_(0.9).add_(parameter.grad.float())
                parameter.sub_(group["lr"] * momentum.sign() * (1 + momentum.abs()).log())


class Counting(torch.optim.SGD):
    """SGD whose rate follows counters that `state_dict` does not hold."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.count = 0
        self.seen = {"steps": [0], "average": torch.zeros(3)}

    def step(self, closure=None):
        self.count += 1
        self.seen["steps"].append(self.count)
        self.seen["average"] += self.count
        for group in self.param_groups:
            group["lr"] = 1e-2 / self.count / (1 + float(self.seen["average"][0]))
        return super().step(closure)


def counts_in_forward(model):
    """A model that counts its calls, in a buffer and in an attribute, and scales its output by them."""
    model.register_buffer("calls", torch.zeros(()))
    model.number_of_calls = 0
    forward = model.forward

    def counting(self, *args, **kwargs):
        self.calls += 1
        self.number_of_calls += 1
        output = forward(*args, **kwargs)
        output.logits = output.logits * (1 + 1e-3 * self.calls + 1e-3 * self.number_of_calls)
        return output

    model.forward = types.MethodType(counting, model)
    return model


def own(kind, model, lr):
    return {"model": model, "more": {"optimizers": (kind(model.parameters(), lr=lr), None)}}


class OnIterable(trl.GRPOTrainer):
    def __init__(self, *args, train_dataset, **kwargs):
        data = Dataset.from_dict({"prompt": PROMPTS * 4}).to_iterable_dataset()
        super().__init__(*args, train_dataset=data, **kwargs)


def with_columns(completions, log_extra, log_metric, **_):
    """A reward that gives TRL's log a column and a metric."""
    values = length(completions)
    log_extra("length", values)
    log_metric("shortest", min(values))
    return values


def adapter():
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.3)
    return {"more": {"peft_config": lora}, "learning_rate": 1e-3, "beta": 0.1, "gradient_checkpointing": True}


CASES = {
    "AdamW": dict,
    "Adafactor, bf16": lambda: {"model": in_bf16(), "optim": "adafactor", "learning_rate": 1e-3},
    "AdamW, bf16": lambda: {"model": in_bf16(), "learning_rate": 1e-3},
    "fp32 momentum, bf16": lambda: own(HeavyBall, in_bf16(), 1e-2),
    "counters outside of state_dict": lambda: own(Counting, in_bf16().float(), 1e-2),
    "buffers that count": lambda: {"model": counts_in_forward(in_bf16().float()), "learning_rate": 1e-3},
    "reference in step": lambda: {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1},
    "several iterations": lambda: {
        "num_iterations": 2,
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
    },
    "dropout": lambda: {"model": "starter-gpt2", "learning_rate": 1e-3},
    "iterable data": lambda: {"cls": OnIterable, "accelerator_config": {"dispatch_batches": False}},
    "RLOO": lambda: {"cls": trl.RLOOTrainer, "beta": 0.1},
    "columns and metrics of a reward": lambda: {"reward": with_columns},
    "adaptive entropy": lambda: {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_target": 1.0},
    "adapter with dropout, recomputed": adapter,
}


def trainer_of(folder, name, prompts):
    """A trainer of a case; its reward function notes the prompts that it is called with."""

    torch.manual_seed(1)
    options = CASES[name]()
    judge = options.pop("reward", length)

    def reward(completions, **columns):
        prompts.append(columns["prompts"])
        return judge(completions, **columns)

    schedule = {"max_steps": STEPS, "lr_scheduler_type": "cosine", "disable_tqdm": True}
    return make(folder, funcs=[reward], **(schedule | options))


def copied(value):
    """A copy of a nest of containers, tensors and numbers, to compare."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        numbered = enumerate(value.items())  # of the optimizer's state: its keys are parameters
        return {name if isinstance(name, str) else str(i): copied(each) for i, (name, each) in numbered}
    if isinstance(value, list | tuple | deque):
        return [copied(each) for each in value]
    return value if isinstance(value, int | float | str | bool) else None


def state_of(trainer) -> dict:
    optimizer = trainer.optimizer and getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    models = [trainer.model, *([trainer.ref_model] if getattr(trainer, "ref_model", None) else [])]
    schedule = trainer.lr_scheduler and trainer.lr_scheduler.state_dict()
    hidden = {name: value for name, value in vars(optimizer or trainer.args).items() if name in ("count", "seen")}
    return {
        "weights": copied([list(model.parameters()) for model in models]),
        "buffers": copied([list(model.buffers()) for model in models]),
        "modes": [[module.training for module in model.modules()] for model in models],
        "calls": getattr(trainer.model, "number_of_calls", None),
        "gradients": [p.grad is None for p in trainer.model.parameters()],
        "optimizer": copied(optimizer and dict(optimizer.state)),
        "groups": copied(optimizer and optimizer.param_groups),
        "counters": copied(hidden),
        "schedule": copied({k: v for k, v in (schedule or {}).items() if not callable(v)}),
        "random": [random.getstate(), *(x for x in np.random.get_state()), torch.random.get_rng_state()],
        "log": copied(trainer._logs),
        "entropy": [getattr(trainer, name, None) for name in ("entropy_coef", "_last_world_entropy")],
        "place": [trainer.state.global_step, trainer._step, trainer.state.num_input_tokens_seen],
    }


def differences(first, second, path="") -> list[str]:
    """The places where two states are not the same bit for bit."""
    if isinstance(first, torch.Tensor):
        same = isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
        return [] if same else [path]
    if isinstance(first, np.ndarray):
        return [] if np.array_equal(first, second) else [path]
    if type(first) is not type(second):
        return [path]
    if isinstance(first, dict):
        if first.keys() != second.keys():
            return [path]
        return [x for name in first for x in differences(first[name], second[name], f"{path}{name} ")]
    if isinstance(first, list | tuple):
        if len(first) != len(second):
            return [path]
        return [x for i, pair in enumerate(zip(first, second, strict=True)) for x in differences(*pair, f"{path}{i} ")]
    return [] if first == second else [path]


@pytest.mark.parametrize(
    "name",
    daily(CASES, "AdamW", "counters outside of state_dict", "several iterations", "adapter with dropout, recomputed"),
)
def test_a_training_is_the_same_with_and_without_checks(name, tmp_path):
    prompts, prompts_without = [], []
    trainer, without = trainer_of(tmp_path / "a", name, prompts), trainer_of(tmp_path / "b", name, prompts_without)
    before = state_of(trainer)
    check_step(trainer)
    assert differences(before, state_of(trainer)) == []
    for each, checked in ((trainer, True), (without, False)):
        prompts.clear()
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        if checked:
            attach_watch(each, tmp_path / "record", check_every=2)
        each.train()
        if checked:
            state, calls = state_of(each), list(prompts)
    assert differences(state_of(without), state) == []
    # Checks call the reward functions once more, at steps 1, 2 and 4, with the prompts of the generation that follows.
    trained = [call for i, call in enumerate(calls) if i == 0 or call != calls[i - 1]]
    assert [x for i, x in enumerate(prompts_without) if i == 0 or x != prompts_without[i - 1]] == trained


class Averaging(trl.GRPOTrainer):
    """Keeps an average of its losses, which it changes in place."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.average = torch.zeros(())

    def training_step(self, *args):
        loss = super().training_step(*args)
        self.average.mul_(0.9).add_(loss.cpu() + 1)
        return loss


def test_an_average_of_a_subclass_alone_is_not_put_back(tmp_path):
    trainer = make(tmp_path, Averaging)
    before = state_of(trainer)
    check_step(trainer)
    assert differences(before, state_of(trainer)) == []
    assert trainer.average != 0 and "changes in place" in check_step.__doc__


def breaks_after_step(optimizer):
    step = optimizer.step

    def broken(*_, **__):
        step()
        raise RuntimeError("behind the step")

    optimizer.step = broken


BROKEN = ["Adafactor, bf16", "fp32 momentum, bf16", "buffers that count"]


@pytest.mark.parametrize("name", daily(BROKEN, "buffers that count"))
def test_an_error_in_the_update_changes_nothing(name, tmp_path):
    trainer = trainer_of(tmp_path, name, [])
    trainer.train()
    breaks_after_step(trainer.optimizer.optimizer)
    before = state_of(trainer)
    with pytest.raises(RuntimeError, match="behind the step"):
        check_step(trainer)
    assert differences(before, state_of(trainer)) == []


def test_an_error_while_a_step_is_judged_changes_nothing(tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path, "buffers that count", [])
    before = state_of(trainer)

    def broken(*_):
        raise RuntimeError("in the judge")

    monkeypatch.setattr("workbench.watch.judge.update_stage", broken)
    with pytest.raises(RuntimeError, match="in the judge"):
        check_step(trainer)
    assert differences(before, state_of(trainer)) == []
