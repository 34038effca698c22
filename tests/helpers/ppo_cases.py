"""PPO trainers of one small update for `check_step`: healthy settings, and faults with the stage at which each lies."""

import copy
import functools
import inspect
import textwrap
from typing import Any

import torch
from ppo_parts import PPOTrainer, StockPPO, ppo_config, ppo_trainer
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from workbench.experiments.recipes import load_prompts, make_recipe, resolve_model

RECIPE = make_recipe("starter", max_steps=1, per_device_train_batch_size=8, learning_rate=1e-3, beta=0.05)
RECIPE = make_recipe(**{**RECIPE.__dict__, "max_completion_length": 12})
EOS = {"stop_token": "eos"}


def length(completions, **_):
    return [len(text) / 10 for text in completions]


@functools.cache
def _data(rows: int, path: str):
    tokenizer, texts = AutoTokenizer.from_pretrained(path), load_prompts("starter").select(range(rows))
    return texts.map(lambda row: tokenizer(row["prompt"]))


def make(folder: Any, cls: Any = None, change: Any = None, rows: int = 64, dtype: Any = torch.float32, **options: Any):
    """A trainer on the starter whose reference is another policy: fields of the config, ours also `stops`, `reward_funcs`.

    `change` is called with the parts of the trainer before it is made, as a dict by TRL's names.
    """
    cls, path = cls or StockPPO, resolve_model("starter")
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    functions, peft_config = options.get("reward_funcs"), options.pop("peft_config", None)
    own = {name: options.pop(name) for name in ("stops", "reward_funcs") if name in options}
    data = _data(rows, path)
    if functions is None:
        data = data.select_columns(["input_ids", "attention_mask"])
    torch.manual_seed(0)
    load = functools.partial(AutoModelForSequenceClassification.from_pretrained, path, num_labels=1, dtype=dtype)
    policy, heads = AutoModelForCausalLM.from_pretrained(path, dtype=dtype), [load(), load()]
    reference = None if peft_config else copy.deepcopy(policy)
    if reference is not None:
        with torch.no_grad():
            reference.model.norm.weight *= 0.8
    parts = {"processing_class": tokenizer, "model": policy, "ref_model": reference, "value_model": heads[1]}
    parts |= {"reward_model": None if functions else heads[0], "train_dataset": data}
    if change is not None:
        change(parts)
    if peft_config is not None:
        parts["peft_config"] = peft_config
    return cls(ppo_config(RECIPE, folder, **options), **parts, **own)


def with_line(old: str, new: str) -> type:
    """TRL's trainer with a part of its `train` replaced."""
    source = textwrap.dedent(inspect.getsource(StockPPO.train))
    assert source.count(old) == 1, (old, source.count(old))
    made: dict[str, Any] = {}
    exec(compile(source.replace(old, new), "train with a fault", "exec"), vars(ppo_trainer), made)
    return type("FaultyPPO", (StockPPO,), made)


def healthy() -> dict[str, dict[str, Any]]:
    """Name -> what makes it. At the limit, or at EOS where a row reaches the limit."""
    from peft import LoraConfig

    adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    other = {"kl_estimator": "k3", "kl_coef": 0.3, "gamma": 0.9, "lam": 0.8, "temperature": 0.7, "cliprange": 0.1}
    return {
        "to the limit": {"response_length": 4},
        "eos": EOS,
        "other settings": EOS | other | {"whiten_rewards": True, "cliprange_value": 0.01, "vf_coef": 1.0},
        "accumulated, in chunks": EOS | {"gradient_accumulation_steps": 2, "local_rollout_forward_batch_size": 4},
        "mini-batches": EOS | {"num_mini_batches": 2, "num_ppo_epochs": 2, "gradient_checkpointing": True},
        "penalty": EOS | {"missing_eos_penalty": 1.0},
        "LoRA": EOS | {"peft_config": adapter},
        "bf16 weights": EOS | {"dtype": torch.bfloat16},
        "ours": {"cls": PPOTrainer, "response_length": 40, "missing_eos_penalty": 1.0},
        "ours, a stop": {"cls": PPOTrainer, "stops": ["e"], "missing_eos_penalty": 1.0},
        "ours, functions": {"cls": PPOTrainer, "reward_funcs": length, "local_rollout_forward_batch_size": 4},
    }


def frozen_head(parts: dict) -> None:
    parts["value_model"].score.requires_grad_(False)


def pad_is_eos(parts: dict) -> None:
    parts["processing_class"].pad_token = parts["processing_class"].eos_token


def penalty_on_repeats(parts: dict) -> None:
    parts["model"].generation_config.repetition_penalty = 1.5


VALUES = "vpred_temp[:, context_length - 1 : -1]"
# Name -> a part of `train`, what replaces it, the stage, words of its cause, and fields of the config.
LINES: dict[str, tuple] = {
    "sampled colder": ("(args.temperature + 1e-7)", "0.3", "sampling", "the sampler is not the policy that is scored"),
    "mask": (
        "response_idxs > sequence_lengths.uns",
        "response_idxs >= sequence_lengths.uns",
        "mask",
        "padding_mask does not follow",
    ),
    "mask of values": (
        "_lengths_p1 = sequence_lengths + 1",
        "_lengths_p1 = sequence_lengths",
        "mask",
        "padding_mask_p1 does not follow",
    ),
    "scores": ("torch.cat(scores, 0)", "torch.cat(scores, 0).roll(1)", "scores", "another score"),
    "old log-probs": ("torch.cat(logprobs, 0)", "torch.cat(logprobs, 0) * 1.1", "log-probs", "at temperature 1"),
    "reference": (
        "ref_logits /= args.temperature + 1e-7",
        "pass",
        "reference",
        "at temperature 0.7",
        {"temperature": 0.7},
    ),
    "values": ("full_value[:, context_length - 1 : -1]", "full_value[:, context_length:]", "values", "other values"),
    "sign of the KL": ("-args.kl_coef * kl", "args.kl_coef * kl", "rewards", "the other sign"),
    "place of the score": ("rewards[actual_start, actual_end]", "rewards[:, 0]", "rewards", "other rewards"),
    "lam": ("args.lam * lastgaelam", "0.5 * lastgaelam", "advantages", "lam=0.95 give other returns"),
    "whitening": ("masked_whiten(advantages, ~padding_mask)", "advantages + 0", "advantages", "whitening"),
    "scored at 1": ("  logits /= args.temperature + 1e-7", "  pass", "ratios", "in two ways", {"temperature": 0.7}),
    "values in the loss": (VALUES, "vpred_temp[:, context_length:]", "ratios", "the loss has other values"),
    "ratio": ("torch.exp(logprobs_diff)", "torch.exp(-logprobs_diff)", "ratios", "other ratios"),
    "cliprange": ("1.0 - args.cliprange, 1.0", "1.0, 1.0", "loss", "cliprange=0.2"),
    "value clip": (
        "torch.max(vf_losses1",
        "torch.min(vf_losses1",
        "loss",
        "range_value=0.01",
        {"cliprange_value": 0.01},
    ),
    "vf_coef": ("pg_loss + args.vf_coef * vf_loss", "pg_loss + vf_loss", "loss", "vf_coef=0.1"),
    "detached values": (VALUES, f"{VALUES}.detach()", "gradient", "value_model."),
    "no step": ("optimizer.step()", "pass", "update", "0 optimizer steps"),
}
# Name -> what makes a trainer whose settings give another step than they say, the stage, and words of its cause.
SETTINGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no stop": ({}, "ends", "stop_token=None"),
    "penalty at a stop": ({"stop_token_id": 15, "missing_eos_penalty": 1.0}, "ends", "TRL looks for EOS (id 1)"),
    "pad is EOS": (EOS | {"change": pad_is_eos}, "ends", "pad and EOS are one token"),
    "repetition penalty": (EOS | {"change": penalty_on_repeats}, "log-probs", "repetition_penalty=1.5"),
    "no row at the limit": (EOS | {"response_length": 40}, "rewards", "the longest rows"),
    "frozen value head": (EOS | {"change": frozen_head}, "gradient", "the value head is frozen"),
    "mini-batches": (EOS | {"gradient_accumulation_steps": 2, "num_mini_batches": 2}, "update", "4 optimizer steps"),
    "last batch": (EOS | {"gradient_accumulation_steps": 2, "rows": 16}, "update", "the last batch of the data set"),
    "lost to bf16": (EOS | {"dtype": torch.bfloat16, "learning_rate": 1e-6}, "update", "rounding of bfloat16"),
}
