"""The documented GRPO example on real weights: `-abs(20 - len(completion))`, trained on gemma-3-270m, as baselines.

    python -m benchmarks.real_weights.docs_example [--steps 60] [--tokens 16] [--seeds 0 1 2] [--only ARM ...] [--write-only]

TRL's documented settings (8 completions of one prompt a step, temperature 0.9, beta 0.04) with shorter completions, the
prompts of the starter's corpus, and four arms: the documented learning rate 1e-6 and a higher one, all weights and LoRA. The
schedule is constant: the documented one has fallen by a fortieth after 60 of its 2,500 steps. All arms with one seed,
then the next; an interrupted one goes on from its last checkpoint. Writes what is trained so far to `data/baselines/`.
"""

import dataclasses
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.record import GEMMA, ROOT, about, gemma_folder, need_room, parser, run_main
from workbench.curves.documented import as_text, stored
from workbench.curves.measured import run_curve, training_of
from workbench.experiments.arms import Arm, train_arms
from workbench.experiments.recipes import DOCS
from workbench.runs.files import read_json, write_text
from workbench.runs.run import Run
from workbench.training.rewards import describe_reward, length_reward

METRICS = ("reward", "completions/mean_length", "completions/clipped_ratio", "kl", "frac_reward_zero_std")
SLUGS = {  # arm -> the end of its baseline's name
    "full, 1e-5": "full-1e-5",
    "LoRA, 1e-4": "lora-1e-4",
    "full, 1e-6 (documented)": "full-1e-6",
    "LoRA, 1e-6 (documented)": "lora-1e-6",
}
TRAININGS = ROOT / "build" / "measured" / "docs_example"
GIB = {"full": 8.0, "LoRA": 5.0}  # measured peaks, rounded up


def forget_checkpoints(run: Path) -> bool:
    """Whether a training ended; then its checkpoints go, gigabytes that only going on needs."""
    if finished := bool(read_json(run / "progress.json", {}).get("finished")):
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
    return finished


def lora() -> dict:
    """LoRA of rank 16 on all linear layers, as an option of a trainer."""
    from peft import LoraConfig

    return {"peft_config": LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")}


def arms(model: Path, steps: int, tokens: int) -> dict[str, Arm]:
    """Name -> arm, the most telling first."""
    base = dataclasses.replace(
        DOCS, model=str(model), dataset="starter", max_steps=steps, max_completion_length=tokens,
        lr_scheduler_type="constant", save_steps=8,
    )  # fmt: skip
    found = {}
    for name in SLUGS:
        kind, rate = name.split(" ")[:2]
        options = {"save_total_limit": 1} | (lora() if kind == "LoRA," else {})
        found[name] = Arm(dataclasses.replace(base, learning_rate=float(rate)), length_reward(20), options=options)
    return found


def baseline(name: str, arm: Arm, runs: Sequence[Run], command: str) -> dict:
    """An arm's runs in the format of `data/README.md`."""
    here, recipe, reward = about(), arm.recipe, describe_reward(arm.reward_funcs)
    curves = {}
    for metric in METRICS:
        by_seed = {training_of(run.path)["recipe"]["seed"]: run_curve(run, metric, sparse=True) for run in runs}
        curves[metric] = stored(by_seed)
    provenance = read_json(Path(recipe.model) / "provenance.json", {})
    training = training_of(runs[0].path)
    del training["recipe"]["seed"]
    training["recipe"]["model"] = "gemma-3-270m"
    training["contents"] = {Path(name).name: digest for name, digest in training.get("contents", {}).items()}
    seconds = [float(run.metrics["elapsed_s"].iloc[-1]) for run in runs]
    step = float(np.median([run.metrics["step_time"].median() for run in runs]))
    weights = "all weights" if name.startswith("full") else "LoRA, rank 16, all linear layers"
    return {
        "name": f"workbench-gemma-3-270m-{SLUGS[name]}",
        "title": f"gemma-3-270m, GRPO, target 20 characters, {name}, seeds: {len(runs)}",
        "source": f"recorded here, by `{command}`",
        "date": time.strftime("%Y-%m"),
        "method": f"GRPO in TRL {here['packages']['trl']}, {weights}, learning rate {recipe.learning_rate:g}, constant, "
        f"{recipe.num_generations} completions of one prompt a step, at most {recipe.max_completion_length} tokens, "
        f"temperature {recipe.temperature}, beta {recipe.beta}, fp32",
        "model": f"{provenance['model']}, 268 M parameters, {provenance['quantisation']}; {provenance['licence']}",
        "data": f"prompts of the starter's corpus: docstrings of Python {here['python']}'s standard library",
        "hardware": f"1 thread of {here['cpu']}",
        "time": f"{' and '.join(f'{s:.0f} s' for s in seconds)}, on a machine with other load",
        "seeds": len(runs),
        "reward": {
            "name": "-abs(20 - characters of the completion)",
            "unit": reward["unit"],
            "low": reward["lowest"],
            "high": reward["highest"],
        },
        "curves": curves,
        "figures": {
            "step_seconds": {
                "value": round(step, 2),
                "unit": "seconds",
                "what": "seconds a step, median over steps, then over seeds; the machine did other things too",
                "from": "full log",
            }
        },
        "unknown": [
            "the rest of the documented 2,500 steps, and completions of the documented 256 tokens",
            "other versions of TRL, transformers and torch",
        ],
        "recorded": {
            "training": training,
            "python": here["python"],
            "packages": here["packages"],
            "gguf_sha256": provenance["gguf sha256"],
            "registry_packages": provenance["packages"],
            "checks": provenance["checks"],
            "threads": 1,
        },
    }


def main() -> None:
    options = parser(__doc__, steps=60, tokens=16, seeds=[0, 1, 2], model=GEMMA, trainings=TRAININGS)
    options.set_defaults(out=ROOT / "data" / "baselines")
    options.add_argument("--only", nargs="+", choices=list(SLUGS), default=list(SLUGS), metavar="ARM")
    options.add_argument("--write-only", action="store_true", help="train nothing, write what is trained")
    args = options.parse_args()
    chosen = {
        name: arm for name, arm in arms(gemma_folder(args.model), args.steps, args.tokens).items() if name in args.only
    }
    command = f"python -m benchmarks.real_weights.docs_example --steps {args.steps} --tokens {args.tokens}"
    runs: dict[str, list[Run]] = {name: [] for name in chosen}
    for seed in args.seeds:
        for name, arm in chosen.items():
            folder = args.trainings / SLUGS[name]
            if not args.write_only:
                need_room(f"a step of {name!r}", memory=GIB[name.split(",")[0]], disk=8, folder=folder)
                train_arms({name: arm}, out_dir=folder, seeds=[seed])
            run = next(iter(folder.glob(f"*/seed-{seed}")), None)
            if run and forget_checkpoints(run):
                runs[name].append(Run(run))
                path = args.out / f"workbench-gemma-3-270m-{SLUGS[name]}.json"
                write_text(path, as_text(baseline(name, arm, runs[name], command)))
                print(f"{path.name}: {len(runs[name])} seeds", flush=True)


if __name__ == "__main__":
    run_main(main)
