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

from benchmarks.real_weights.docs_example import forget_checkpoints, lora
from benchmarks.record import ROOT, Results, gemma_folder, need_room, parser, run_main
from workbench.recipes.recipes import DOCS
from workbench.runs.run import Run
from workbench.studies.arms import Arm, train_arms
from workbench.studies.custom_stops import custom_stop_arms, stop_table
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
    vllm = {"vllm_max_model_length": 128, "save_total_limit": 1} | lora()
    made = custom_stop_arms(recipe, STOP)
    return {name: dataclasses.replace(arm, options=dict(arm.options) | vllm) for name, arm in made.items()}


def folder_of(arm: str) -> str:
    """The folder of an arm, as `train_arms` names it."""
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in arm)


def table_of(runs: dict[str, list[Run]]) -> dict:
    """The study's table, of the arms that are trained, and each curve."""
    trained = {name: members for name, members in runs.items() if members}
    rows = stop_table(trained).T.to_dict()
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
