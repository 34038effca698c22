"""Notebook 02's three arms on real weights: stock TRL masked and unmasked, and ours, with a stop string, on gemma-3-270m.

    python -m benchmarks.real_weights.custom_stops [--steps 8] [--seeds 0]

The task: after one example, write `<search>TOPIC</search>` and stop there; reward 1 for the exact call. A base model does it
at times, so there is something to learn. vLLM samples, as in the notebook: on transformers stock TRL takes no stop string. All
arms with one seed, then the next; an interrupted one goes on from its last checkpoint.
"""

import dataclasses
import json
import os
from pathlib import Path
from statistics import fmean

import pandas as pd

from benchmarks.real_weights.docs_example import forget_checkpoints, lora
from benchmarks.record import ROOT, Results, gemma_folder, need_room, parser, run_main
from workbench import GRPOTrainer, StopSpec, exact_match_reward
from workbench.recipes.recipes import DOCS
from workbench.runs.run import Run
from workbench.studies.arms import Arm, ObservedGRPOTrainer, train_arms
from workbench.toys.search_task import search_prompts

STOP = "</search>"
EXAMPLE = "Question: What is iron?\n<search>iron</search>\n\nQuestion: "


def write_prompts(path: Path) -> Path:
    """The search task's 120 questions behind one worked example, as the file that a recipe names."""
    rows = [row | {"prompt": EXAMPLE + row["prompt"]} for row in search_prompts()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def arms(model: Path, prompts: Path, steps: int) -> dict[str, Arm]:
    """Notebook 02's arms with a recipe that fits this model: LoRA, four completions of each of two prompts a step."""
    recipe = dataclasses.replace(
        DOCS, model=str(model), dataset=str(prompts), backend="vllm", max_steps=steps, learning_rate=3e-4, beta=0.0,
        lr_scheduler_type="constant", num_generations=4, temperature=1.0, max_completion_length=16, save_steps=4,
    )  # fmt: skip
    reward, spec = exact_match_reward("answer"), StopSpec(stop=(STOP,))
    masked = {"vllm_max_model_length": 128, "save_total_limit": 1, "mask_truncated_completions": True} | lora()
    stock = masked | {"generation_kwargs": {"stop": [STOP], "include_stop_str_in_output": True}}
    return {
        "stock, masked": Arm(recipe, reward, ObservedGRPOTrainer, spec, stock),
        "stock, unmasked": Arm(
            recipe, reward, ObservedGRPOTrainer, spec, stock | {"mask_truncated_completions": False}
        ),
        "workbench, masked": Arm(recipe, reward, GRPOTrainer, spec, masked),
    }


def folder_of(arm: str) -> str:
    """The folder of an arm, as `train_arms` names it."""
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in arm)


def row_of(members: list[Run]) -> dict[str, float]:
    """Reward at both ends, clipped ratio as logged and in truth, and steps without gradient, over an arm's seeds."""
    logged = pd.concat([run.metrics["completions/clipped_ratio"] for run in members])
    cut = [(run.completions["finish_reason"] == "length").groupby(run.completions["step"]) for run in members]
    per_step = pd.concat([of_run.mean() for of_run in cut])
    return {
        "reward, first 10 steps": fmean(run.metrics["reward"].iloc[:10].mean() for run in members),
        "reward, last 10 steps": fmean(run.metrics["reward"].iloc[-10:].mean() for run in members),
        "logged clipped ratio": float(logged.mean()),
        "true clipped ratio": float(
            (pd.concat([run.completions for run in members])["finish_reason"] == "length").mean()
        ),
        "clipped ratio error": float(abs(logged.to_numpy() - per_step.to_numpy()).max()),
        "steps without gradient": float(pd.concat([run.metrics["grad_norm"] == 0 for run in members]).mean()),
    }


def table_of(runs: dict[str, list[Run]]) -> dict:
    """A row for each arm that is trained, over its seeds, and each curve."""
    trained = {name: members for name, members in runs.items() if members}
    rows = {name: row_of(members) for name, members in trained.items()}
    curves = {name: [run.metrics["reward"].round(4).tolist() for run in members] for name, members in trained.items()}
    seconds = {name: [float(run.metrics["elapsed_s"].iloc[-1]) for run in members] for name, members in trained.items()}
    return {"arms": rows, "reward by step": curves, "elapsed s": seconds}


def main() -> None:
    options = parser(__doc__, steps=8, seeds=[0], trainings=ROOT / "build" / "measured" / "custom_stops")
    options.add_argument(
        "--write-only", action="store_true", help="train nothing, write what is trained, finished or not"
    )
    args = options.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    results = Results("real_weights.custom_stops", args.out)
    chosen = arms(gemma_folder(), write_prompts(args.trainings / "prompts.jsonl"), args.steps)
    need_room("its checkpoints", disk=8, folder=args.trainings)
    runs: dict[str, list[Run]] = {name: [] for name in chosen}
    for seed in args.seeds:
        for name, arm in chosen.items():
            if args.write_only:
                runs[name] += [
                    Run(p) for p in args.trainings.glob(f"{folder_of(name)}/seed-{seed}") if len(Run(p).metrics)
                ]
                continue
            need_room(f"a step of {name!r} with vLLM", memory=9)
            (run,) = train_arms({name: arm}, out_dir=args.trainings, seeds=[seed])[name]
            forget_checkpoints(run.path)
            runs[name].append(run)
    results.part("table", lambda: {"steps": args.steps, **table_of(runs)}, again=True)


if __name__ == "__main__":
    run_main(main)
