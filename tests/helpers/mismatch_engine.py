"""Sampled against scored log-probs on a real vLLM engine, of rollouts and of two GRPO steps (in the process of on_vllm.py)."""

import tempfile
from pathlib import Path

import numpy as np
from tensorboard_files import tensorboard_scalars
from transformers import AutoModelForCausalLM

from workbench.consistency.mismatch import mismatch_report
from workbench.experiments.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.experiments.sampling import Sampling, VLLMSampler, generate
from workbench.experiments.vllm_server import shared_engine, sharing_engines
from workbench.training.grpo import GRPOTrainer
from workbench.training.rewards import length_reward
from workbench.watch.sampler_probe import attach_sampler_probe


def rollout(path: str, llm) -> dict:
    """Largest share of each cause in |scored - sampled| of a token, nats."""
    prompts = load_prompts("starter")[:5600:700]["prompt"]
    rows = generate(VLLMSampler(llm), prompts, sampling=Sampling(24, num_generations=2, seed=0))
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    columns = [[getattr(row, name) for row in rows] for name in ("prompt_ids", "completion_ids", "logprobs")]
    report = mismatch_report(model, *columns)  # at temperature 1 raw and processed log-probs are the same
    explicit = mismatch_report(model, *columns, positions="explicit")
    return {
        "rollout": {name: float(np.abs(part).max()) for name, part in report.parts.items()},
        "largest": report.largest,
        "verdict": report.verdict,
        "explicit": float(np.abs(explicit.ratios.tokens).max()),
    }


def live(path: str, explicit: bool) -> tuple[list[dict], list[str]]:
    """Two GRPO steps: what was logged about sampler and scorer, and the names in TensorBoard's files."""
    recipe = make_recipe("starter-gpt2", backend="vllm", max_steps=2, per_device_train_batch_size=16)
    folder = Path(tempfile.mkdtemp())
    args = grpo_config(recipe, folder, disable_dropout=True, save_strategy="no", report_to="tensorboard")
    data = load_prompts("starter")
    trainer = GRPOTrainer(path, length_reward(), args, train_dataset=data, explicit_positions=explicit)
    attach_sampler_probe(trainer)
    trainer.train()
    wanted = ("mismatch/", "sampling/")
    lines = [{k: v for k, v in line.items() if k.startswith(wanted)} for line in trainer.state.log_history[:-1]]
    return lines, sorted(tensorboard_scalars(folder))


def result() -> dict:
    path = resolve_model("starter-gpt2")
    with sharing_engines():
        llm = shared_engine(model=path, max_model_len=256, logprobs_mode="processed_logprobs")
        made = rollout(path, llm)
        for explicit in (True, False):
            made[f"live, {'explicit' if explicit else 'implicit'}"] = live(path, explicit)
    return made
