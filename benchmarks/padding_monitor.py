"""What watching padding consistency costs: GRPO steps of the starter models with the monitor at N=10 and without.

    python benchmarks/padding_monitor.py [--every 10] [--steps 40] [--repeats 5] [--model starter] [--out FILE.json]

Two measures. Direct: seconds in the monitor over seconds of the steps it watched, in one run, which cancels what the machine
does besides. Paired: whole trainings with and without it in turns, same seeds; medians. The learning rate is next
to 0, so that all steps sample alike.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers import PrinterCallback

from workbench.diagnostics.padding_monitor import monitor_padding
from workbench.recipes.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.runs.environment import hardware
from workbench.training.grpo import GRPOTrainer
from workbench.training.recording import quiet_libraries
from workbench.training.rewards import length_reward
from workbench.training.trl import has_gpu


def train(model: str, steps: int, every: int | None) -> dict:
    """Seconds of a training, and of them in the monitor."""
    recipe = make_recipe("starter", max_steps=steps, learning_rate=1e-12)
    args = grpo_config(recipe, tempfile.mkdtemp(), save_strategy="no")
    trainer = GRPOTrainer(resolve_model(model), length_reward(), args, train_dataset=load_prompts("starter"))
    trainer.remove_callback(PrinterCallback)
    spent = []
    if every:
        monitor = monitor_padding(trainer, every=every)
        plain = monitor.measure

        def timed():
            start = time.perf_counter()
            numbers = plain()
            spent.append(time.perf_counter() - start)
            return numbers

        monitor.measure = timed
    start = time.perf_counter()
    trainer.train()
    return {"seconds": time.perf_counter() - start, "monitor": sum(spent), "calls": len(spent)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    quiet_libraries()
    if not has_gpu():
        torch.set_num_threads(1)
    train(args.model, 2, 1)  # warm-up
    pairs = []
    for n in range(args.repeats):
        order = (None, args.every) if n % 2 else (args.every, None)
        made = {every: train(args.model, args.steps, every) for every in order}
        pairs.append((made[args.every], made[None]))
        print(json.dumps(pairs[-1]), flush=True)
    result = {
        "environment": hardware(),
        "model": args.model,
        "every": args.every,
        "steps": args.steps,
        "seconds per step, without": statistics.median(without["seconds"] / args.steps for _, without in pairs),
        "seconds per measurement": statistics.median(watched["monitor"] / watched["calls"] for watched, _ in pairs),
        "share of step time, direct": statistics.median(
            watched["monitor"] / (watched["seconds"] - watched["monitor"]) for watched, _ in pairs
        ),
        "share of step time, paired": statistics.median(
            watched["seconds"] / without["seconds"] - 1 for watched, without in pairs
        ),
    }
    print(json.dumps({k: v for k, v in result.items() if k != "environment"}, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
