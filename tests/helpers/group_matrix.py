"""Batches with 0%, 50% and 100% equal prompts on real vLLM, and what came of each row (in the process of on_vllm.py).

Judged in test_groups_on_vllm.py.
"""

from functools import partial

import trl

from workbench.experiments.instruments.duplicate_prompts import equal_prompt_batch, make_trainer, score_batch
from workbench.experiments.recipes import load_prompts, resolve_model
from workbench.experiments.toys.search_task import CLOSE
from workbench.experiments.vllm_server import sharing_engines
from workbench.generation.stops import StopSpec
from workbench.training.grpo import GRPOTrainer

BATCH = 16
STOP = {"search": CLOSE, "starter": "the "}  # each ends some rows early


def result(url: str | None = None) -> dict:
    model = "starter" if url else "search"  # the one server of a run of the tests serves the starter
    rows = [{"answer": "<search>the</search>"} | row for row in load_prompts(model).to_list()]
    make = partial(make_trainer, path=resolve_model(model), batch_size=BATCH, vllm=True, url=url)
    ours = partial(make, GRPOTrainer, stops=StopSpec(stop=(STOP[model],)))
    made: dict = {"matrix": {}}
    with sharing_engines():
        trainer = ours()
        for g in (2, 4, 8):
            for equal in (0.0, 0.5, 1.0):
                batch = equal_prompt_batch(rows, BATCH // g, g, equal)
                made["matrix"][f"{g} {equal}"] = score_batch(trainer, batch, g)
        two_groups = equal_prompt_batch(rows, 2, 8, 1.0)
        for name, seed in {"seed 7": 7, "seed 7 again": 7, "seed 8": 8}.items():
            made[name] = score_batch(ours(generation_seed=seed), two_groups, 8)
        for name in ("shared", "shared again"):
            made[name] = score_batch(ours(generation_seed=7, share_generation=True), two_groups, 8)
        for name, share in {"many alone": False, "many shared": True}.items():
            trainer = ours(generation_seed=1, share_generation=share)
            batches = [score_batch(trainer, two_groups, 8) for _ in range(8)]
            made[name] = [len(ids) for got in batches for ids in got["ids"]]
        for name, seed in {"run 7": 7, "run 7 again": 7, "run 8": 8}.items() if not url else ():
            trainer = ours(generation_seed=seed)
            trainer.reward_funcs[0] = lambda completions, **_: [float(len(c)) for c in completions]
            trainer.train()
            kept = ("reward", "loss", "completions/mean_length")
            steps = [line for line in trainer.state.log_history if "reward" in line]
            made[name] = [[line[key] for key in kept] for line in steps]
        stock = make(trl.GRPOTrainer, generation_kwargs={"stop": [STOP[model]], "seed": 7})
        made["stock seed"] = score_batch(stock, two_groups, 8)
    return made
