"""What not stopping costs: PPO updates and GRPO rollouts at several length limits, legacy, stock and workbench.

    export PYTHONPATH=.venv/lanes/trl-1.12.0  # the last release with PPO
    python -m benchmarks.cost.stop_cost [--limits 64 128 256] [--repeats 5] [--model starter] [--out FILE.json]

Every comparison is paired: the variants take turns within one process and share prompts and seeds; figures are medians.
`--model` also takes `qwen2-0.5b`, that shape with random weights: fine for timing, nothing else.
"""

import copy
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
import trl
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PrinterCallback,
    TrainerCallback,
)

from benchmarks.record import publish, start
from workbench.experiments.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.generation.stops import StopSpec
from workbench.runs.environment import hardware
from workbench.training.grpo import GRPOTrainer
from workbench.training.rewards import length_reward


def model_folder(name: str) -> str:
    """A folder that `from_pretrained` takes: a named model, or a shape with random weights and the starter's tokenizer."""
    if name != "qwen2-0.5b":
        return resolve_model(name)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("starter"))
    shape = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
    shape |= {"num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": True}
    shape |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    folder = tempfile.mkdtemp()
    AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def ppo(folder: str, limit: int, variant: str, updates: int) -> dict:
    """Forward passes and seconds per update. Stock runs as TRL's default (legacy) or with its own `stop_token`."""
    from trl.experimental.ppo import PPOTrainer as StockPPOTrainer

    from workbench.experiments.train import ppo_config
    from workbench.training.ppo import PPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    prompts = load_prompts("starter").select(range(256))
    dataset = prompts.map(lambda row: tokenizer(row["prompt"]), remove_columns=prompts.column_names)
    recipe = make_recipe("starter", max_steps=updates, per_device_train_batch_size=16, max_completion_length=limit)
    args = ppo_config(recipe, Path(tempfile.mkdtemp()), **({"stop_token": "eos"} if variant == "stock eos" else {}))
    policy = AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(0)
    heads = [AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1) for _ in range(2)]
    parts = (args, tokenizer, policy, copy.deepcopy(policy), heads[0], dataset, heads[1])
    stops = {"workbench": StopSpec(), "workbench legacy": StopSpec.never()}
    trainer = PPOTrainer(*parts, stops=stops[variant]) if variant in stops else StockPPOTrainer(*parts)
    trainer.remove_callback(PrinterCallback)
    clock = _StepClock()
    trainer.add_callback(clock)
    forwards = _count_forwards(policy)
    trainer.train()
    return {"seconds": clock.median(), "forwards": forwards.per_update(updates)}


class _StepClock(TrainerCallback):
    """Seconds of each step; with `time.process_time`, of this process's own work, whatever else the machine does."""

    def __init__(self, now=time.perf_counter):
        self._now, self._ends = now, []

    def on_train_begin(self, *_, **__):
        self._ends = [self._now()]

    def on_step_end(self, *_, **__):
        self._ends.append(self._now())

    def median(self) -> float:
        return statistics.median(b - a for a, b in zip(self._ends, self._ends[1:], strict=False))


class _count_forwards:
    """Counts the policy's one-token forward passes, those of generation after the first."""

    def __init__(self, model):
        self.count = 0
        model.register_forward_pre_hook(self._seen, with_kwargs=True)

    def _seen(self, module, args, kwargs):
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.count += ids is not None and ids.shape[1] == 1

    def per_update(self, updates: int) -> float:
        return self.count / updates + 1  # the first token comes from the pass over the prompt


def grpo_rollout(folder: str, limit: int, variant: str) -> dict:
    """One generation of 32 rows: seconds, row-steps computed and useful tokens."""
    trainer = _grpo(folder, limit, variant)
    rows = [trainer.train_dataset[i * 40] for i in range(4) for _ in range(8)]
    torch.manual_seed(1)
    start = time.perf_counter()
    ids = trainer._generate([row["prompt"] for row in rows])[1]
    seconds = time.perf_counter() - start
    useful = sum(len(row) for row in ids) if variant != "workbench legacy" else None
    return {"seconds": seconds, "longest": max(map(len, ids)), "useful tokens": useful}


def grpo_step_time(folder: str, variant: str, steps: int = 16) -> tuple[float, float]:
    """Median seconds of a training step without custom stops: on the wall, and of this process's own work."""
    trainer = _grpo(folder, 64, variant, max_steps=steps)
    clocks = _StepClock(), _StepClock(time.process_time)
    for clock in clocks:
        trainer.add_callback(clock)
    trainer.train()
    return clocks[0].median(), clocks[1].median()


def _grpo(folder: str, limit: int, variant: str, max_steps: int = 1):
    recipe = make_recipe("starter", max_steps=max_steps, max_completion_length=limit)
    args = grpo_config(recipe, tempfile.mkdtemp(), save_strategy="no")
    cls = trl.GRPOTrainer if variant == "stock" else GRPOTrainer
    stops = {"stops": StopSpec.never()} if variant == "workbench legacy" else {}
    trainer = cls(folder, length_reward(), args, train_dataset=load_prompts("starter"), **stops)
    trainer.remove_callback(PrinterCallback)
    return trainer


def medians(rows: list[dict]) -> dict:
    """Per key, the median over repeats."""
    return {k: None if rows[0][k] is None else statistics.median(r[k] for r in rows) for k in rows[0]}


def main() -> None:
    args = start(__doc__, limits=[64, 128, 256], repeats=5, model="starter")
    folder = model_folder(args.model)
    result = {"environment": hardware(), "model": args.model, "ppo update": {}, "grpo rollout": {}}
    for limit in args.limits:
        variants = ("stock legacy", "stock eos", "workbench legacy", "workbench")
        turns = [{v: ppo(folder, limit, v, updates=3) for v in variants} for _ in range(args.repeats)]
        result["ppo update"][limit] = {v: medians([t[v] for t in turns]) for v in variants}
        turns = [
            {v: grpo_rollout(folder, limit, v) for v in ("stock", "workbench legacy", "workbench")}
            for _ in range(args.repeats)
        ]
        result["grpo rollout"][limit] = {v: medians([t[v] for t in turns]) for v in turns[0]}
        print(limit, json.dumps({k: result[k][limit] for k in ("ppo update", "grpo rollout")}, indent=1), flush=True)
    pairs = [(grpo_step_time(folder, "stock"), grpo_step_time(folder, "workbench")) for _ in range(2 * args.repeats)]
    overhead = [statistics.median(ours[n] / stock[n] - 1 for stock, ours in pairs) for n in range(2)]
    result["grpo step overhead"] = dict(zip(("wall", "process"), overhead, strict=True))
    publish(result, args.out)


if __name__ == "__main__":
    main()
