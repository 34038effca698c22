"""One optimizer step each of stock TRL's trainers and of the workbench's, and what came of every row.

test_trl_defects.py imports it; `result` runs in the process of on_vllm.py.
"""

from configuration_runs import POLICY, watched

from workbench.experiments.toys.search_task import CLOSE
from workbench.experiments.vllm_server import sharing_engines
from workbench.generation.stops import StopSpec

EVERY_END = (CLOSE, ".")  # in the search task a call ends in the one, anything else in the other
SMALL = {
    "max_steps": 1,
    "per_device_train_batch_size": 32,
    "max_completion_length": 24,
    "beta": 0.0,
    "learning_rate": 3e-4,
}
VLLM = {"use_vllm": True, "vllm_mode": "colocate"}


def parity_reward(completions, **_):
    """Half of each group is right, so that every group has an advantage and a gradient to lose."""
    return [float(n % 2) for n in range(len(completions))]


def one_step(who: str, kind: str, fields=None, **kwargs) -> dict:
    """Train a step of `configuration_runs.build`: what reward functions saw, what the loss was told, what was logged."""
    own = {"explicit_positions": True} if who == "ours" else {}
    got = watched(who, kind, SMALL | (fields or {}), rewards=parity_reward, **own | kwargs)
    return {"text": got.texts, "ids": got.ids, "trained": got.trained, "log": got.log[-1]}


def result() -> dict:
    """Every case that needs vLLM in process; the trainers share an engine, and each syncs its own weights first."""
    no_eos, stock = {"logit_bias": {1: -100.0}}, {"stop": list(EVERY_END), "include_stop_str_in_output": True}
    fields = {"mask_truncated_completions": True, "vllm_max_model_length": 256, "log_completions": True, **VLLM}
    made = {}
    with sharing_engines():
        for kind in POLICY:
            made[f"stock {kind}"] = one_step("stock", kind, fields | {"generation_kwargs": stock | no_eos})
            own = {"stops": StopSpec(stop=EVERY_END)}
            made[f"ours {kind}"] = one_step("ours", kind, fields | {"generation_kwargs": no_eos}, **own)
    return made
