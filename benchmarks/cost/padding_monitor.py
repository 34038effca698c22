"""What watching padding consistency costs: GRPO steps of the starter models with the monitor at N=10 and without.

    python -m benchmarks.cost.padding_monitor [--every 10] [--steps 40] [--repeats 5] [--model starter] [--out FILE.json]

Two measures. Direct: seconds in the monitor over seconds of the steps it watched, in one run, which cancels what the machine
does besides. Paired: whole trainings with and without it in turns, same seeds; medians. The learning rate is next
to 0, so that all steps sample alike.
"""

import functools
import statistics
import tempfile
import time

from transformers import PrinterCallback

from benchmarks.record import in_turns, publish, start
from workbench.diagnostics.padding_monitor import attach_padding_monitor
from workbench.experiments.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.runs.environment import hardware
from workbench.training.grpo import GRPOTrainer
from workbench.training.rewards import length_reward


def train(model: str, steps: int, every: int | None) -> dict:
    """Seconds of a training, and of them in the monitor."""
    recipe = make_recipe("starter", max_steps=steps, learning_rate=1e-12)
    args = grpo_config(recipe, tempfile.mkdtemp(), save_strategy="no")
    trainer = GRPOTrainer(resolve_model(model), length_reward(), args, train_dataset=load_prompts("starter"))
    trainer.remove_callback(PrinterCallback)
    spent = []
    if every:
        monitor = attach_padding_monitor(trainer, every=every)
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
    args = start(__doc__, every=10, steps=40, repeats=5, model="starter")
    train(args.model, 2, 1)  # warm-up
    ways = (functools.partial(train, args.model, args.steps, every) for every in (args.every, None))
    pairs = in_turns(args.repeats, *ways)
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
    publish(result, args.out)


if __name__ == "__main__":
    main()
