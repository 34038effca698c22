"""Generates batches with 0%, 50% and 100% equal prompts on real vLLM and prints what came of each row, as JSON.

Run as a process of its own, `python tests/helpers/group_matrix.py [URL]`; judged in test_group_matrix.py.
"""

import json
import sys
from functools import partial

import torch
import trl

from workbench.generation.stops import StopSpec
from workbench.studies.duplicate_prompts import equal_prompt_batch, make_trainer, score_batch
from workbench.toys.search_task import CLOSE
from workbench.training.grpo import GRPOTrainer
from workbench.training.recipes import load_prompts, resolve_model
from workbench.training.recording import quiet_libraries
from workbench.training.vllm_sync import sharing_engines

BATCH = 16
STOPS = StopSpec(strings=(CLOSE,))


def main(url: str | None = None) -> None:
    torch.set_num_threads(1)
    quiet_libraries()
    rows = load_prompts("search").to_list()
    make = partial(make_trainer, path=resolve_model("search"), batch_size=BATCH, vllm=True, url=url)
    result: dict = {"matrix": {}}
    with sharing_engines():
        trainer = make(GRPOTrainer, stops=STOPS)
        for g in (2, 4, 8):
            for equal in (0.0, 0.5, 1.0):
                batch = equal_prompt_batch(rows, BATCH // g, g, equal)
                result["matrix"][f"{g} {equal}"] = score_batch(trainer, batch, g)
        two_groups = equal_prompt_batch(rows, 2, 8, 1.0)
        for name, options in {
            "seed 7": {"generation_seed": 7},
            "seed 7 again": {"generation_seed": 7},
            "seed 8": {"generation_seed": 8},
            "shared": {"generation_seed": 7, "share_generation": True},
            "shared again": {"generation_seed": 7, "share_generation": True},
        }.items():
            trainer = make(GRPOTrainer, stops=STOPS, **options)
            result[name] = score_batch(trainer, two_groups, 8)
        for name, share in {"many alone": False, "many shared": True}.items():
            trainer = make(GRPOTrainer, stops=STOPS, generation_seed=1, share_generation=share)
            batches = [score_batch(trainer, two_groups, 8) for _ in range(8)]
            result[name] = [len(ids) for got in batches for ids in got["ids"]]
        if not url:
            for name, seed in {"run 7": 7, "run 7 again": 7, "run 8": 8}.items():
                trainer = make(GRPOTrainer, stops=STOPS, generation_seed=seed)
                trainer.reward_funcs[0] = lambda completions, **_: [float(len(c)) for c in completions]
                trainer.train()
                kept = ("reward", "loss", "completions/mean_length")
                steps = [line for line in trainer.state.log_history if "reward" in line]
                result[name] = [[line[key] for key in kept] for line in steps]
        stock = make(trl.GRPOTrainer, generation_kwargs={"stop": [CLOSE], "seed": 7})
        result["stock seed"] = score_batch(stock, two_groups, 8)
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
