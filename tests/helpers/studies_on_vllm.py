"""The studies that need vLLM in process, as small as they can be: `python tests/helpers/studies_on_vllm.py FOLDER`, JSON.

In a process of its own: an engine of vLLM stays for the life of its process. Judged in tests/studies/test_on_vllm.py.
"""

import dataclasses
import json
import sys
from pathlib import Path

import torch

from workbench.runs.files import jsonable
from workbench.studies.custom_stops import added_token_table, custom_stop_arms, stop_ids_table, stop_table
from workbench.studies.duplicate_prompts import compare_backends
from workbench.studies.repeated_prompts import HALF, repeated_prompt_arms, save_data
from workbench.studies.seeds import train_arms
from workbench.training.recipes import make_recipe, resolve_model
from workbench.training.recording import quiet_libraries

STOP_ID = 31  # `>`, the last token of `<search>`


def prompts_of_steps(run) -> list[int]:
    """How many different prompts each step has."""
    return run.completions.groupby("step")["prompt"].nunique().tolist()


def main(folder: str) -> None:
    torch.set_num_threads(1)
    quiet_libraries()
    fields = {"max_steps": 2, "per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 24}
    recipe = make_recipe("search", dataset="search", backend="vllm", **fields)
    runs = train_arms(custom_stop_arms(recipe, "</search>"), out_dir=Path(folder) / "arms", seeds=[0])
    repeating = dataclasses.replace(recipe, dataset=str(save_data(Path(folder) / "data")[HALF]))
    seeded = train_arms(repeated_prompt_arms(repeating, 5), out_dir=Path(folder) / "repeated", seeds=[0])
    result = {
        "stops": stop_table(runs).to_dict("index"),
        "rows": {name: members[0].completions.to_dict("list") for name, members in runs.items()},
        "repeated": {name: members[0].metrics.to_dict("list") for name, members in seeded.items()},
        "asked": {name: prompts_of_steps(members[0]) for name, members in seeded.items()},
        "token": added_token_table(resolve_model("search"), "<call>", folder=Path(folder) / "grown").to_dict(),
        "backends": compare_backends(resolve_model("search"), num_generations=2, seed=5, url=None).to_dict("index"),
        "ids": stop_ids_table(resolve_model("search"), STOP_ID, url=None).to_dict("index"),
    }
    print("RESULT " + json.dumps(jsonable(result)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
