"""Each trainer in several processes with a run folder, and beside stock; what torchrun starts twice.

    torchrun --nproc_per_node 2 tests/helpers/configurations_in_two_processes.py FOLDER

Each process says what it logged and how far it is from stock. Judged in test_configurations_in_two_processes.py.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed
from configuration_runs import BATCH, LIMIT, STEPS, STOP, TELL, G, has_every_end, reward, watched
from ppo_parts import train_ppo
from samples import until_seen

from workbench.experiments.recipes import make_recipe
from workbench.experiments.train import train_grpo, train_online_dpo, train_rloo
from workbench.generation.stops import StopSpec
from workbench.training.recording import quiet_libraries

TRAIN = {"GRPO": train_grpo, "RLOO": train_rloo, "OnlineDPO": train_online_dpo}
TRAIN |= {"PPO": train_ppo} if train_ppo else {}


def beside_stock(kind: str) -> dict:
    """What stock and ours log without custom stops, and which of their weights differ at the end."""
    fields = {"total_episodes": STEPS * 4 * BATCH} if kind == "PPO" else {}  # of both processes
    stock = watched("stock", kind, fields, until=processes_differ if kind == "OnlineDPO" else None)
    ours = watched("ours", kind, fields | {"seed": stock.trainer.args.seed})
    theirs, own = stock.weights(), ours.weights()
    return {
        "stock": stock.log,
        "ours": [{name: line.get(name) for name in of} for line, of in zip(ours.log, stock.log, strict=True)],
        "apart": [name for name in theirs if not torch.equal(theirs[name], own[name])],
        "learned": any(not torch.equal(theirs[name], stock.before[name]) for name in theirs),
    }


def processes_differ(got) -> bool:
    """Whether the processes logged other shares of ended rows."""
    shares = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(shares, [line["val/contain_eos_token"] for line in got.log])
    return shares[0] != shares[1]


def recorded(kind: str, record_dir: Path) -> dict:
    """A recipe trained in a run folder: the rows that this process sampled, and what they earned; of rows with every end."""

    def every_end(made: dict) -> bool:
        torch.distributed.barrier()  # the main process has written them
        found = has_every_end(record_dir, (STOP,))
        torch.distributed.barrier()  # all have read them
        return found

    return until_seen(lambda seed: train_recorded(kind, record_dir, seed), every_end)


def train_recorded(kind: str, record_dir: Path, seed: int) -> dict:
    shape = {"num_generations": 2 if kind == "OnlineDPO" else G, "per_device_train_batch_size": BATCH}
    shape |= {"max_steps": STEPS, "max_completion_length": LIMIT, "beta": 0.05}
    recipe, seen = make_recipe("search", dataset="search", seed=seed, **shape), []

    def watching(completions, **_):
        scores = reward(completions)
        seen.extend(zip(completions, scores, strict=True))
        return scores

    rewards = {} if kind == "PPO" else {"reward_funcs": watching}
    trainer = TRAIN[kind](recipe, record_dir=record_dir, stops=StopSpec(stop=(STOP,)), **TELL[kind], **rewards)
    return {"seen": seen, "steps": trainer.state.global_step, "rank": trainer.accelerator.process_index}


def main(folder: str) -> None:
    torch.set_num_threads(1)
    quiet_libraries()
    result = {kind: beside_stock(kind) | recorded(kind, Path(folder) / kind) for kind in TRAIN}
    (Path(folder) / f"rank-{result['GRPO']['rank']}.json").write_text(json.dumps(result))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
