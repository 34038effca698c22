"""One optimizer step each of stock TRL's trainers and of the workbench's, and what came of every row.

test_trl_defects.py imports it; `result` runs in the process of on_vllm.py.
"""

import tempfile

import trl

from workbench.experiments.recipes import load_prompts, resolve_model
from workbench.experiments.vllm_server import sharing_engines
from workbench.generation.stops import StopSpec
from workbench.training.grpo import GRPOTrainer, RLOOTrainer
from workbench.training.sync_on_cpu import install_cpu_sync

CLOSE = "</search>"
EVERY_END = (CLOSE, ".")  # in the search task a call ends in the one, anything else in the other
TRAINERS = {("stock", "GRPO"): trl.GRPOTrainer, ("stock", "RLOO"): trl.RLOOTrainer,
            ("workbench", "GRPO"): GRPOTrainer, ("workbench", "RLOO"): RLOOTrainer}  # fmt: skip
CPU = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none", "disable_tqdm": True,
       "save_strategy": "no", "logging_steps": 1}  # fmt: skip
SMALL = CPU | {"model_init_kwargs": {"dtype": "float32"}, "max_steps": 1, "per_device_train_batch_size": 32}
SMALL |= {"dataloader_pin_memory": False, "num_generations": 4, "max_completion_length": 24, "beta": 0.0}
SMALL |= {"learning_rate": 3e-4}
VLLM = {"use_vllm": True, "vllm_mode": "colocate"}


def parity_reward(completions, **_):
    """Half of each group is right, so that every group has an advantage and a gradient to lose."""
    return [float(n % 2) for n in range(len(completions))]


def policy_trainer(cls, fields=None, *, model="search", data="search", reward_funcs=parity_reward, **kwargs):
    """A GRPO or RLOO trainer, stock or ours. `fields`: of its config; `kwargs`: the trainer's own."""
    config = trl.RLOOConfig if issubclass(cls, trl.RLOOTrainer) else trl.GRPOConfig
    args = config(**{"output_dir": tempfile.mkdtemp()} | SMALL | (fields or {}))
    made = cls(resolve_model(model), reward_funcs, args, **{"train_dataset": load_prompts(data)} | kwargs)
    if args.use_vllm and is_stock(cls):
        install_cpu_sync(made.vllm_generation, args.output_dir)
    return made


def is_stock(cls) -> bool:
    """Whether it is TRL's own, which cannot sync weights with vLLM on a CPU."""
    return cls.__module__.startswith("trl.")


def one_step(trainer) -> dict:
    """Train as configured, usually one step. Of its last batch: what reward functions saw, what the loss was told."""
    seen = {}
    reward, score = trainer.reward_funcs[0], trainer._generate_and_score_completions

    def spying_reward(completions, completion_ids, **rest):
        seen.update(text=list(completions), ids=[list(ids) for ids in completion_ids])
        return reward(completions=completions, completion_ids=completion_ids, **rest)

    def spying_score(inputs):
        out = score(inputs)
        mask = (out["completion_mask"] * out.get("tool_mask", 1)).bool()
        seen["trained"] = [row[m].tolist() for row, m in zip(out["completion_ids"], mask, strict=True)]
        return out

    trainer.reward_funcs[0], trainer._generate_and_score_completions = spying_reward, spying_score
    trainer.train()
    return seen | {"log": trainer.state.log_history[-2]}  # the last line is the summary of the run


def result() -> dict:
    """Every case that needs vLLM in process; the trainers share an engine, and each syncs its own weights first."""
    cases = {}
    no_eos = {"logit_bias": {1: -100.0}}
    options = {"stop": list(EVERY_END), "include_stop_str_in_output": True}
    fields = {"mask_truncated_completions": True, "vllm_max_model_length": 256, "log_completions": True, **VLLM}
    with sharing_engines():
        for (who, kind), cls in TRAINERS.items():
            if who == "stock":
                trainer = policy_trainer(cls, fields | {"generation_kwargs": options | no_eos})
            else:
                trainer = policy_trainer(cls, fields | {"generation_kwargs": no_eos}, stops=StopSpec(stop=EVERY_END))
            cases[f"{who} {kind}"] = one_step(trainer) | {"folder": trainer.args.output_dir}
    return cases
