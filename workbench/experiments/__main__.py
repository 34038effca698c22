"""The docs example in several processes, which a notebook's one kernel cannot hold.

    accelerate launch --num_processes 7 -m workbench.experiments --out runs/05_grpo_docs_example/eight-gpus \\
        -p model=Qwen/Qwen2-0.5B-Instruct -p dataset=trl-lib/tldr -p backend=vllm --vllm-server http://localhost:8000

Leaves a run folder like the notebook's; started again it goes on from the last checkpoint. Parameters are `Recipe`'s fields.
"""

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import get_type_hints

import torch

from ..errors import ParameterError, WorkbenchError
from ..runs.parameters import Parameter, check_parameters, parse_assignments
from ..runs.results import Result, save_result
from ..runs.run import open_run
from ..training.rewards import length_reward
from ..training.rows import has_gpu
from .recipes import Recipe, make_recipe
from .train import train


def parse_fields(items: list[str]) -> dict:
    """Items such as `max_steps=3` as `Recipe` fields of their types."""
    types = get_type_hints(Recipe)
    known = {name: Parameter(name, kind.__name__, None) for name, kind in types.items()}
    return check_parameters(known, parse_assignments(items))


def main(argv: list[str] | None = None) -> int:
    """Train, and let the first process keep the run's records."""
    parser = argparse.ArgumentParser(prog="python -m workbench.experiments", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="run folder")
    parser.add_argument("-p", "--parameter", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--vllm-server", metavar="URL", help="sample on this vLLM server")
    args = parser.parse_args(argv)
    if not has_gpu():  # accelerate would name the device cpu:0, from which torch cannot load a resumed optimizer
        os.environ.setdefault("ACCELERATE_TORCH_DEVICE", "cpu")
    recipe = make_recipe(**parse_fields(args.parameter))
    server = {"vllm_mode": "server", "vllm_server_base_url": args.vllm_server} if args.vllm_server else {}
    if server and recipe.backend != "vllm":
        raise ParameterError(f"backend={recipe.backend!r}: --vllm-server needs -p backend=vllm")
    first = int(os.environ.get("RANK", "0")) == 0
    run = open_run("05_grpo_docs_example", str(args.out), dataclasses.asdict(recipe)) if first else None
    try:
        train(recipe, reward_funcs=length_reward(20), record_dir=args.out, **server)
    finally:
        if torch.distributed.is_initialized():  # a process that exits with its group's threads alive may abort
            torch.distributed.destroy_process_group()
    if run:
        reward = run.metrics["reward"]
        steps = list(range(1, recipe.max_steps + 1))
        once = Result("every step was logged exactly once", list(run.metrics["step"]) == steps)
        numbers = {"reward, last 20 steps": reward[-20:], "reward, first 3 steps": reward[:3]}
        save_result(run, [once], {name: float(steps.mean()) for name, steps in numbers.items()})
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WorkbenchError as error:
        sys.exit(f"workbench.experiments: {error}")
