"""One optimizer step each of stock TRL's trainers and of the workbench's, and what came of every row.

test_trl_defects.py imports it; `result` runs in the process of on_vllm.py.
"""

import tempfile
from contextlib import contextmanager
from unittest import mock

import trl
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.experimental.online_dpo import OnlineDPOConfig
from trl.experimental.online_dpo import OnlineDPOTrainer as StockOnlineDPO

from workbench.experiments.recipes import load_prompts, resolve_model
from workbench.experiments.vllm_server import shared_engine, sharing_engines
from workbench.generation.stops import StopSpec
from workbench.training.grpo import GRPOTrainer, RLOOTrainer
from workbench.training.online_dpo import OnlineDPOTrainer
from workbench.training.sync_on_cpu import install_cpu_sync

CLOSE = "</search>"
EVERY_END = (CLOSE, ".")  # in the search task a call ends in the one, anything else in the other
CALL_TOKENS = 5  # of `<search>TOPIC</search>`
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


def no_reward(completions, **_):
    return [0.0] * len(completions)


def online_dpo_trainer(cls, fields=None, *, model="search", **kwargs):
    path = resolve_model(model)
    fields = CPU | {"per_device_train_batch_size": 16, "max_length": 200} | (fields or {})
    args = OnlineDPOConfig(tempfile.mkdtemp(), missing_eos_penalty=100.0, **fields)
    policy, reference = (AutoModelForCausalLM.from_pretrained(path) for _ in range(2))
    own = {"processing_class": AutoTokenizer.from_pretrained(path, padding_side="left"), "ref_model": reference}
    made = cls(policy, reward_funcs=no_reward, args=args, train_dataset=load_prompts(model), **own, **kwargs)
    if args.use_vllm and is_stock(cls):
        install_cpu_sync(made, args.output_dir)
    return made


def online_dpo_step(trainer, prompts: list[str]) -> dict:
    """One batch: ids as reward functions get them, tokens within the mask, rewards after the missing-EOS penalty."""
    seen = {}
    forward, rewards = trainer._forward, trainer._calculate_rewards_from_functions

    def spying_function(completions, completion_ids, **_):
        seen.update(text=list(completions), ids=[list(ids) for ids in completion_ids])
        return no_reward(completions)

    trainer.reward_funcs[0] = spying_function
    trainer._forward = lambda *a, **k: seen.update(mask=a[4]) or forward(*a, **k)
    # A tensor that stock's penalty is subtracted from in place.
    trainer._calculate_rewards_from_functions = lambda *a, **k: seen.setdefault("rewards", rewards(*a, **k))
    trainer.training_step(trainer.model, {"prompt": prompts})
    del trainer._forward, trainer._calculate_rewards_from_functions
    told = {"loss_tokens": seen.pop("mask").sum(1).tolist(), "rewards": seen.pop("rewards").tolist()}
    return seen | told | {"contain_eos": trainer.stats["val/contain_eos_token"][-1]}


@contextmanager
def sharing_every_engine():
    """Within it all trainers of a model share an engine, also those of Online DPO."""
    with sharing_engines(), mock.patch("trl.experimental.online_dpo.online_dpo_trainer.LLM", shared_engine):
        yield


def result() -> dict:
    """Every case that needs vLLM in process; the trainers share an engine, and each syncs its own weights first."""
    from vllm.exceptions import VLLMValidationError

    cases = {}
    no_eos = {"logit_bias": {1: -100.0}}
    options = {"stop": list(EVERY_END), "include_stop_str_in_output": True}
    fields = {"mask_truncated_completions": True, "vllm_max_model_length": 256, "log_completions": True, **VLLM}
    with sharing_every_engine():
        for (who, kind), cls in TRAINERS.items():
            if who == "stock":
                trainer = policy_trainer(cls, fields | {"generation_kwargs": options | no_eos})
            else:
                trainer = policy_trainer(cls, fields | {"generation_kwargs": no_eos}, stops=StopSpec(stop=EVERY_END))
            cases[f"{who} {kind}"] = one_step(trainer) | {"folder": trainer.args.output_dir}
        try:
            online_dpo_trainer(StockOnlineDPO, {"generation_kwargs": {"stop": [CLOSE]}, **VLLM})
        except VLLMValidationError as error:
            cases["stock OnlineDPO, a stop alone"] = str(error)
        options = {"generation_kwargs": {"stop": [CLOSE], "detokenize": True}}
        for limit in (24, CALL_TOKENS):
            fields = {"max_new_tokens": limit, **VLLM}
            stock = online_dpo_trainer(StockOnlineDPO, fields | options)
            ours = online_dpo_trainer(OnlineDPOTrainer, fields, stops=StopSpec(stop=(CLOSE,)))
            for who, trainer in {"stock": stock, "workbench": ours}.items():
                made = online_dpo_step(trainer, trainer.train_dataset[:96:6]["prompt"])
                cases[f"{who} OnlineDPO {limit}"] = made
    return cases
