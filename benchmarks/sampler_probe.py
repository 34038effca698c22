"""What proving the sampler costs, and whether 200 clean steps raise an alarm: GRPO on vLLM in process.

    python benchmarks/sampler_probe.py [--steps 200] [--repeats 5] [--model starter] [--out FILE.json]

First one training that is probed at every step. Then pairs of a training with probes as they are made by default and one
without, in turns on one engine with one seed; shares are medians. Direct: seconds in probes over seconds of the training, which
cancels what the machine does besides.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import torch
import trl
from transformers import PrinterCallback

from workbench.diagnostics.sampler_probe import probe_sampler
from workbench.recipes.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.runs.environment import hardware
from workbench.studies.engines import sharing_engines
from workbench.training.recording import quiet_libraries
from workbench.training.rewards import length_reward
from workbench.training.sync_on_cpu import install_cpu_sync
from workbench.training.trl import has_gpu

DEFAULT, NEVER = None, 0


def train(model: str, steps: int, every: int | None) -> dict:
    """Seconds of a training of TRL's own trainer and of its probes, and what these said."""
    recipe = make_recipe("starter", backend="vllm", max_steps=steps)
    args = grpo_config(recipe, tempfile.mkdtemp(), save_strategy="no")
    trainer = trl.GRPOTrainer(resolve_model(model), length_reward(), args, train_dataset=load_prompts("starter"))
    install_cpu_sync(trainer.vllm_generation, args.output_dir)
    trainer.remove_callback(PrinterCallback)
    probe = None if every == NEVER else probe_sampler(trainer, every=every)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - start
    rows = probe.verdicts if probe else []
    return {
        "seconds": seconds,
        "seconds in probes": probe.seconds if probe else 0.0,
        "probes": len(rows),
        "faults": sum(verdict.fault for _, verdict in rows),
        "undecidable": sum(verdict.cause == "undecidable" for _, verdict in rows),
        "largest difference": max((verdict.difference for _, verdict in rows), default=None),
        "warnings": [str(w.message) for w in caught if str(w.message).startswith("vLLM at step")],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pair-steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # as TRL sets it: weights are synced within the process
    quiet_libraries()
    if not has_gpu():
        torch.set_num_threads(1)
    with sharing_engines():
        clean = train(args.model, args.steps, 1)
        print(json.dumps(clean), flush=True)
        pairs = []
        for n in range(args.repeats):
            order = (NEVER, DEFAULT) if n % 2 else (DEFAULT, NEVER)
            made = {every: train(args.model, args.pair_steps, every) for every in order}
            pairs.append((made[DEFAULT], made[NEVER]))
            print(json.dumps(pairs[-1]), flush=True)
    result = {
        "environment": hardware(),
        "model": args.model,
        "clean": {"steps": args.steps} | clean,
        "steps of a pair": args.pair_steps,
        "seconds per step, without": statistics.median(p[1]["seconds"] / args.pair_steps for p in pairs),
        "seconds per probe": statistics.median(p[0]["seconds in probes"] / p[0]["probes"] for p in pairs),
        "probes of a training": [p[0]["probes"] for p in pairs],
        "share of time, direct": statistics.median(p[0]["seconds in probes"] / p[0]["seconds"] for p in pairs),
        "share of time, paired": statistics.median(p[0]["seconds"] / p[1]["seconds"] - 1 for p in pairs),
        "share of a step, probed each step": clean["seconds in probes"]
        / (clean["seconds"] - clean["seconds in probes"]),
    }
    print(json.dumps({k: v for k, v in result.items() if k != "environment"}, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
