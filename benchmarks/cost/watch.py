"""What watching a training costs: stock GRPO steps of the starter with `attach_watch` and without.

    python -m benchmarks.cost.watch [--steps 60] [--repeats 3] [--out FILE.json]

Seconds are the processor's, on one thread, so that other load does not count. Two measures. Direct: seconds in the watch over
those of the rest of the same run. Paired: the median step of whole trainings with and without it in turns, same seeds. The
first look, which loads libraries, is counted apart. These steps are as short as steps get (0.65 M parameters, a CPU): the
watch's own cost a step does not grow with the model, so its share falls.
"""

import functools
import itertools
import statistics
import tempfile
import time

import torch
import trl
from transformers import PrinterCallback

from benchmarks.record import in_turns, publish, start
from workbench.audit.live import attach_watch
from workbench.experiments.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.runs.environment import hardware
from workbench.training.rewards import length_reward


def train(steps: int, watched: bool) -> dict:
    """Seconds of a training, of its median step, and in the watch."""
    args = grpo_config(make_recipe("starter", max_steps=steps), tempfile.mkdtemp(), save_strategy="no")
    trainer = trl.GRPOTrainer(resolve_model("starter"), length_reward(), args, train_dataset=load_prompts("starter"))
    trainer.remove_callback(PrinterCallback)
    spent = []
    if watched:
        watch = attach_watch(trainer)
        plain = watch.guarded

        def timed(do, *arguments):
            start = time.process_time()
            plain(do, *arguments)
            spent.append((time.process_time() - start, do.__qualname__))

        watch.guarded = timed
    start, ends = time.process_time(), []
    plain_step = trainer.training_step

    def step(*arguments, **kwargs):
        ends.append(time.process_time())
        return plain_step(*arguments, **kwargs)

    trainer.training_step = step
    trainer.train()
    seconds = time.process_time() - start
    looks = [t for t, name in spent if name.endswith("_write_and_look")]
    rest = sum(t for t, _ in spent) - sum(looks[:1])
    between = [b - a for a, b in itertools.pairwise(ends)]
    return {
        "seconds": seconds,
        "median step": statistics.median(between),
        "in the watch": rest,
        "first look": sum(looks[:1]),
        "looks": len(looks),
    }


def main() -> None:
    args = start(__doc__, steps=60, repeats=3)
    torch.set_num_threads(1)
    train(2, True)  # warm-up
    pairs = in_turns(args.repeats, *(functools.partial(train, args.steps, watched) for watched in (True, False)))
    result = {
        "environment": hardware(),
        "steps": args.steps,
        "median step, without": statistics.median(without["median step"] for _, without in pairs),
        "looks of a run": statistics.median(watched["looks"] for watched, _ in pairs),
        "share of step time, direct": statistics.median(
            watched["in the watch"] / (watched["seconds"] - watched["in the watch"] - watched["first look"])
            for watched, _ in pairs
        ),
        "share of step time, paired": statistics.median(
            watched["median step"] / without["median step"] - 1 for watched, without in pairs
        ),
    }
    publish(result, args.out)


if __name__ == "__main__":
    main()
