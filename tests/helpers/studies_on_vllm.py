"""The studies that need vLLM in process (that of on_vllm.py), as small as they can be.

Judged in tests/studies/test_on_vllm.py.
"""

import dataclasses
from pathlib import Path

from workbench.recipes.recipes import make_recipe, resolve_model
from workbench.runs.files import jsonable
from workbench.studies.arms import train_arms
from workbench.studies.custom_stops import added_token_table, custom_stop_arms, stop_ids_table, stop_table
from workbench.studies.duplicate_prompts import compare_backends
from workbench.studies.repeated_prompts import HALF, repeated_prompt_arms, save_data

COPIES = 8  # of a prompt, which are all the same by chance once in thousands of seeds
STOP_ID = 31  # `>`, the last token of `<search>`


def prompts_of_steps(run) -> list[int]:
    """How many different prompts each step has."""
    return run.completions.groupby("step")["prompt"].nunique().tolist()


def result(folder: str) -> dict:
    fields = {"max_steps": 2, "per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 24}
    recipe = make_recipe("search", dataset="search", backend="vllm", **fields)
    runs = train_arms(custom_stop_arms(recipe, "</search>"), out_dir=Path(folder) / "arms", seeds=[0])
    # Of so many groups some have a right answer and a wrong one, whatever the model has learned.
    repeating = dataclasses.replace(
        recipe, per_device_train_batch_size=32, dataset=str(save_data(Path(folder) / "data")[HALF])
    )
    seeded = train_arms(repeated_prompt_arms(repeating, 5), out_dir=Path(folder) / "repeated", seeds=[0])
    made = {
        "stops": stop_table(runs).to_dict("index"),
        "rows": {name: members[0].completions.to_dict("list") for name, members in runs.items()},
        "repeated": {name: members[0].metrics.to_dict("list") for name, members in seeded.items()},
        "asked": {name: prompts_of_steps(members[0]) for name, members in seeded.items()},
        "token": added_token_table(resolve_model("search"), "<call>", folder=Path(folder) / "grown").to_dict(),
        "backends": compare_backends(resolve_model("search"), num_generations=COPIES, seed=5, url=None).to_dict(
            "index"
        ),
        "ids": stop_ids_table(resolve_model("search"), STOP_ID, url=None).to_dict("index"),
    }
    return jsonable(made)
