"""The studies that need vLLM in process (that of on_vllm.py), as small as they can be.

Judged in tests/studies/test_on_vllm.py.
"""

from pathlib import Path

from workbench import GRPOTrainer, StopSpec, exact_match_reward
from workbench.recipes.recipes import make_recipe, resolve_model
from workbench.runs.files import jsonable
from workbench.studies.arms import Arm, ObservedGRPOTrainer, train_arms
from workbench.studies.custom_stops import added_token_table, stop_ids_table
from workbench.studies.duplicate_prompts import compare_backends
from workbench.studies.samplers import RawLogprobsGRPOTrainer, late_by

COPIES = 8  # of a prompt, which are all the same by chance once in thousands of seeds
STOP_ID = 31  # `>`, the last token of `<search>`
STOP = "</search>"


def arms() -> dict[str, Arm]:
    # Of so many groups some have a right answer and a wrong one, whatever the model has learned.
    sizes = {"per_device_train_batch_size": 32, "num_generations": 4, "max_completion_length": 24}
    recipe = make_recipe("search", dataset="search", backend="vllm", max_steps=2, **sizes)
    reward, spec = exact_match_reward("answer"), StopSpec(stop=(STOP,))
    stock = {"stop": [STOP], "include_stop_str_in_output": True}
    options = {
        "stock, masked": {"generation_kwargs": stock, "mask_truncated_completions": True},
        "stock, seed": {"generation_kwargs": stock | {"seed": 5}},
        "workbench, masked": {"mask_truncated_completions": True},
        "workbench, seed": {"generation_seed": 5},
        "workbench, shared": {"generation_seed": 5, "share_generation": True},
    }
    trainers = {"stock": ObservedGRPOTrainer, "workbench": GRPOTrainer}
    return {name: Arm(recipe, reward, trainers[name.partition(",")[0]], spec, given) for name, given in options.items()}


def samplers(folder: Path) -> dict:
    """What is logged with weights that come late or never, and with log-probs before the temperature."""
    sizes = {"per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 24, "max_steps": 4}
    sizes |= {"learning_rate": 6e-4, "temperature": 0.5}
    recipe, reward = make_recipe("search", dataset="search", backend="vllm", **sizes), exact_match_reward("answer")
    classes = [late_by(0), late_by(1), late_by(None), RawLogprobsGRPOTrainer]
    arms = {cls.__name__: Arm(recipe, reward, cls, options={"save_strategy": "no"}) for cls in classes}
    runs = train_arms(arms, out_dir=folder, seeds=[0])
    wanted = ("sampler/", "ratio/", "sampling/sampling_logp_difference/mean")
    kept = {name: run.metrics for name, (run,) in runs.items()}
    return {n: m[[c for c in m if c.startswith(wanted)]].to_dict("list") for n, m in kept.items()}


def result(folder: str) -> dict:
    runs = {name: run for name, (run,) in train_arms(arms(), out_dir=Path(folder) / "arms", seeds=[0]).items()}
    path = resolve_model("search")
    made = {
        "metrics": {name: run.metrics.to_dict("list") for name, run in runs.items()},
        "rows": {name: run.completions.to_dict("list") for name, run in runs.items()},
        "samplers": samplers(Path(folder) / "samplers"),
        "token": added_token_table(path, "<call>", folder=Path(folder) / "grown").to_dict(),
        "backends": compare_backends(path, num_generations=COPIES, seed=5, server=True).to_dict("records"),
        "ids": stop_ids_table(path, STOP_ID, server=False).to_dict("index"),
    }
    return jsonable(made)
