"""TRL's AsyncGRPOTrainer for one small update on a CPU: rows that the starter samples, faults, and the stage of each.

Its kernel for GPUs (FlashAttention 3) has a dense stand-in here, its two protocols (rollout worker, weight transfer) have
stubs. Everything else is TRL's.
"""

import copy
import dataclasses
import functools
import queue
import types
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from workbench.experiments.recipes import resolve_model

PROMPTS = ["Write a word", "The sum of the numbers is a long story", "One", "Python is a language that"]
BASE = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "per_device_train_batch_size": 4}
BASE |= {"num_generations": 4, "max_completion_length": 16, "report_to": [], "save_strategy": "no", "token_budget": 0}
BASE |= {"learning_rate": 1e-5, "disable_tqdm": True, "gradient_accumulation_steps": 2}


def dense(query, key, value, starts_q, starts_k, _, __, softmax_scale=None, causal=True, window_size=(-1, -1), **___):
    """FlashAttention's `flash_attn_varlen_func` on a CPU: tensors (tokens, heads, size), a causal mask to the last key."""
    out = torch.empty_like(query)
    for i in range(len(starts_q) - 1):
        rows, seen = (slice(int(starts[i]), int(starts[i + 1])) for starts in (starts_q, starts_k))
        q, k, v = (tensor.transpose(0, 1) for tensor in (query[rows], key[seen], value[seen]))
        k, v = (tensor.repeat_interleave(len(q) // len(tensor), 0) for tensor in (k, v))
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        if window_size[0] >= 0:
            mask = mask.triu(k.shape[1] - q.shape[1] - window_size[0])
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=softmax_scale)
        out[rows] = attended.transpose(0, 1)
    return out


packing._flash_attn = lambda: types.SimpleNamespace(flash_attn_varlen_func=dense)
async_grpo_trainer.get_peak_flops_per_device = lambda *_, **__: None  # it asks CUDA for the name of its GPU


@functools.cache
def policy(noise: float = 0.0):
    """The starter; with noise in its weights as a stand-in for older ones."""
    model = AutoModelForCausalLM.from_pretrained(resolve_model("starter"), dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    return model


@functools.cache
def tokenizer():
    return AutoTokenizer.from_pretrained(resolve_model("starter"))


@torch.no_grad()
def row(
    prompt: list[int], turns: int = 1, tokens: int = 12, noise: float = 0.0, temperature: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, mask and log-probs of a row: `turns` answers of the policy, with three tokens of a tool between two."""
    model, ids, mask = policy(noise), list(prompt), [0] * len(prompt)
    for turn in range(turns):
        if turn:
            ids, mask = [*ids, 70, 77, 86], [*mask, 0, 0, 0]
        options = {"do_sample": True, "top_k": 0, "max_new_tokens": tokens, "temperature": temperature}
        whole = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), pad_token_id=0, **options)
        mask += [1] * (whole.shape[1] - len(ids))
        ids = whole[0].tolist()
    logps = (model(torch.tensor([ids])).logits[0, :-1] / temperature).log_softmax(-1)
    own = logps.gather(1, torch.tensor(ids)[1:, None])[:, 0].numpy()
    return np.array(ids), np.array(mask), np.concatenate([[0.0], own]).astype(np.float32) * np.array(mask)


def samples(
    groups: int = 2, generations: int = 4, versions: tuple[int, ...] = (0,), now: int = 0, fork: bool = False,
    turns: int = 1, tokens: tuple[int, ...] = (4, 20), seed: int = 0, temperature: float = 1.0,
) -> list[RolloutSample]:  # fmt: skip
    """The rows of some groups; group g was sampled with weights of `versions[g]`, older than `now` with noise in them."""
    torch.manual_seed(seed)
    made = []
    for group in range(groups):
        prompt, version = tokenizer()(PROMPTS[group % len(PROMPTS)])["input_ids"], versions[group % len(versions)]
        rewards = np.random.default_rng(seed + group).normal(size=generations)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
        for reward, advantage in zip(rewards, advantages, strict=True):
            noise = 0.01 * (now - version)
            ids, mask, old = row(prompt, turns, tokens[group % len(tokens)], noise, temperature)
            parts = [(ids, mask, old)]
            if fork:  # the conversation was rewritten behind its prompt: a second row, whose context trains no more
                more = row(ids[: len(prompt) + 3].tolist(), 1, 6, noise, temperature)
                parts.append(more)
            metrics = {"reward": float(reward), "reward_std": float(rewards.std())}
            messages = [{"role": "user", "content": PROMPTS[group % len(PROMPTS)]}]
            for ids, mask, old in parts:
                answer = [{"role": "assistant", "content": tokenizer().decode(ids[mask > 0])}]
                made.append(RolloutSample(messages, answer, ids, mask, old, float(advantage), version, group, metrics))
    return made


class Worker:
    """A rollout worker that has its rows ready."""

    def __init__(self, rows: list[RolloutSample] | None = None):
        self.rollout_buffer, self.metrics_queue, self._rows = queue.Queue(), queue.Queue(), rows or []
        self._version = 0

    def start(self):
        for each in self._rows:
            self.rollout_buffer.put(dataclasses.replace(copy.deepcopy(each), model_version=self._version))

    def stop(self):
        pass

    def update_model_version(self, version):
        self._version = version

    def check_health(self, seconds):
        raise RuntimeError("the queue is empty")


class NoTransfer:
    """A weight transfer that sends nothing."""

    def __getattr__(self, name):
        return lambda *_, **__: None


def reward(completions, **_):
    return [0.0] * len(completions)


def make(folder: Any, cls: type = AsyncGRPOTrainer, rows: list | None = None, version: int = 0, more=None, **fields):
    """A trainer on the starter: `fields` of its config, `rows` of its worker, `version` of its weights."""
    args = AsyncGRPOConfig(str(folder), **(BASE | fields))
    data = Dataset.from_dict({"prompt": PROMPTS})
    parts = {"processing_class": tokenizer(), "rollout_worker": Worker(rows), "weight_transfer": NoTransfer()}
    trainer = cls(resolve_model("starter"), reward, args, data, **parts, **(more or {}))
    trainer.model_version = version
    return trainer
