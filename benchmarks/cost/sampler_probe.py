"""What proving the sampler costs, and whether 200 clean steps raise an alarm: GRPO on vLLM in process.

    python -m benchmarks.cost.sampler_probe [--steps 200] [--repeats 5] [--model starter] [--out FILE.json]

First one training that is probed at every step. Then pairs of a training with probes as they are made by default and one
without, in turns on one engine with one seed; shares are medians. Direct: seconds in probes over seconds of the training, which
cancels what the machine does besides.
"""

import functools
import json
import os
import statistics
import tempfile
import time
import warnings

import trl
from transformers import PrinterCallback

from benchmarks.record import in_turns, publish, start
from workbench.diagnostics.sampler_probe import attach_sampler_probe
from workbench.experiments.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.experiments.vllm_server import sharing_engines
from workbench.runs.environment import hardware
from workbench.training.rewards import length_reward
from workbench.training.sync_on_cpu import install_cpu_sync

DEFAULT, NEVER = None, 0


def train(model: str, steps: int, every: int | None) -> dict:
    """Seconds of a training of TRL's own trainer and of its probes, and what these said."""
    recipe = make_recipe("starter", backend="vllm", max_steps=steps)
    args = grpo_config(recipe, tempfile.mkdtemp(), save_strategy="no")
    trainer = trl.GRPOTrainer(resolve_model(model), length_reward(), args, train_dataset=load_prompts("starter"))
    install_cpu_sync(trainer.vllm_generation, args.output_dir)
    trainer.remove_callback(PrinterCallback)
    probe = None if every == NEVER else attach_sampler_probe(trainer, every=every)
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
        "cannot tell": sum(verdict.cause == "cannot tell" for _, verdict in rows),
        "largest difference": max((verdict.difference for _, verdict in rows), default=None),
        "warnings": [str(w.message) for w in caught if str(w.message).startswith("vLLM at step")],
    }


def main() -> None:
    args = start(__doc__, steps=200, pair_steps=40, repeats=5, model="starter")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # as TRL sets it: weights are synced within the process
    with sharing_engines():
        clean = train(args.model, args.steps, 1)
        print(json.dumps(clean), flush=True)
        ways = (functools.partial(train, args.model, args.pair_steps, every) for every in (DEFAULT, NEVER))
        pairs = in_turns(args.repeats, *ways)
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
    publish(result, args.out)


if __name__ == "__main__":
    main()
