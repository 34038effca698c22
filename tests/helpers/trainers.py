"""A trainer of each kind, stock and the workbench's, for one small step on the starter model with learned positions."""

import copy
import functools
import tempfile
from pathlib import Path

import torch
import trl
from ppo_parts import HAS_PPO, PPOTrainer, StockPPO, ppo_config
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from workbench.experiments.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.training.grpo import GRPOTrainer, RLOOTrainer
from workbench.training.rewards import length_reward

STOCK = {"GRPO": trl.GRPOTrainer, "RLOO": trl.RLOOTrainer, "PPO": StockPPO}
OURS = {"GRPO": GRPOTrainer, "RLOO": RLOOTrainer, "PPO": PPOTrainer}
RECIPE = make_recipe("starter-gpt2", max_steps=1, num_generations=2, per_device_train_batch_size=8,
                     max_completion_length=12, beta=0.05)  # fmt: skip
PLAIN = {"disable_dropout": True, "save_strategy": "no"}
EXACT, WRONG = 1e-5, 0.1  # nats


@functools.cache
def prompts():
    return load_prompts("starter").select(range(0, 5600, 350))


def load(auto=AutoModelForCausalLM, **kwargs):
    return auto.from_pretrained(resolve_model("starter-gpt2"), **kwargs)


def make(cls, **kwargs):
    """A trainer of any kind for one small step on the learned-position starter model, with a reference policy."""
    folder, path = tempfile.mkdtemp(), resolve_model("starter-gpt2")
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    if HAS_PPO and issubclass(cls, StockPPO):
        data = prompts().map(lambda row: tokenizer(row["prompt"]), remove_columns=prompts().column_names)
        policy, torch_state = load(), torch.get_rng_state()
        torch.manual_seed(0)
        heads = [load(AutoModelForSequenceClassification, num_labels=1) for _ in range(2)]
        torch.set_rng_state(torch_state)
        args = ppo_config(RECIPE, Path(folder))
        return cls(args, tokenizer, policy, copy.deepcopy(policy), heads[0], data, heads[1], **kwargs)
    config = trl.RLOOConfig if issubclass(cls, trl.RLOOTrainer) else trl.GRPOConfig
    args = grpo_config(RECIPE, folder, config, **PLAIN)
    reward = kwargs.pop("reward", None) or length_reward()
    return cls(kwargs.pop("model", None) or path, reward, args, train_dataset=prompts(), **kwargs)
