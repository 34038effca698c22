"""Each trainer in several processes with a run folder, and next to stock; what torchrun starts twice.

    torchrun --nproc_per_node 2 tests/helpers/configurations_in_two_processes.py FOLDER

Each process writes how far it is from stock, and what it sampled; test_configurations_elsewhere.py judges.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed
from configuration_runs import BATCH, STEPS, STOP, TELL, Watched, apart, has_every_end, watched
from samples import until_seen
from trainers import OURS

from workbench.experiments.train import quiet_libraries
from workbench.generation.stops import StopSpec
from workbench.runs.run import Run


def beside_stock(kind: str, folder: Path) -> dict:
    """How far ours is from stock, and the rows that this process sampled with a stop: some end at it, some are cut."""
    fields = {"total_episodes": STEPS * 4 * BATCH} if kind == "PPO" else {}  # of both processes

    def train(seed: int) -> Watched:
        own = {"stops": StopSpec(stop=(STOP,)), "record_dir": folder / f"{kind} {seed}", "explicit_positions": True}
        return watched("ours", kind, fields | TELL[kind] | {"seed": seed}, **own)

    def every_end(made: Watched) -> bool:
        torch.distributed.barrier()  # the main process has written them
        return has_every_end(Run(made.record_dir).completions, (STOP,))

    difference = apart(*(watched(who, kind, fields) for who in ("stock", "ours")))
    made = until_seen(train, every_end)
    rows = {"seen": list(zip(made.texts, made.scores, strict=True)), "steps": made.trainer.state.global_step}
    return difference | rows | {"folder": str(made.record_dir)}


def main(folder: str) -> None:
    torch.set_num_threads(1)
    quiet_libraries()
    result = {kind: beside_stock(kind, Path(folder)) for kind in OURS if OURS[kind]}
    (Path(folder) / f"rank-{torch.distributed.get_rank()}.json").write_text(json.dumps(result))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
