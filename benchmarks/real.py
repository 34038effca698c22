"""Stores what notebooks showed on SmolLM2: `make real` runs them, for hours, and goes on where it was interrupted.

    python -m benchmarks.real RUN                  its results and parameters: data/smollm2.json
    python -m benchmarks.real RUN --name stops     its trainings too: data/baselines/workbench-smollm2-stops-...

A file per arm, in the format of `data/README.md`: every finished seed, its curves, answers to held-out questions, a few
completions, and the commit, versions and date of the run. Trainings that are not finished are named and left out. Seeds that
the file has of the same recipe, perhaps from another machine, stay in it.
"""

import argparse
import re
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import ppo_stops
from tools.record import ROOT, finished, made_with, run_main
from workbench.curves.curve import Curve
from workbench.curves.documented import as_text, stored
from workbench.errors import RunError
from workbench.experiments.held_out import FILE, held_out_rewards
from workbench.runs.completions import FILE as SAMPLED
from workbench.runs.files import json_lines, read_json, write_json, write_text
from workbench.runs.run import Run

LOGGED = {  # metric of TRL -> unit
    "completions/clipped_ratio": "share of completions",
    "frac_reward_zero_std": "share of groups",
    "grad_norm": "norm of the gradient",
}
MOVED = "update/moved"  # share of the weights that a step changes, of the steps that were measured; stored as a median
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}  # of the weights
ABOUT = {
    "model": "SmolLM2-135M-Instruct, 135 M parameters, Q4_1 widened to fp32; Apache-2.0",
    "hardware": "a CPU, 1 thread",
    "time": None,
    "figures": {},
    "unknown": ["the time: a machine with other load", "other models, tasks and learning rates"],
}
TASKS = {"sums": "sums of two numbers from 2 to 20", "number-words": "numbers in words, 101 to 999"}
TASKS |= {
    "different": "96 different sums",
    "repeating": "96 sums, half of them eight that repeat",
}  # files of notebook 04
WITHOUT_QUESTIONS = {"starter-chat": "; no questions to answer, the reward is the length"}
TASKS |= {"starter-chat": "summaries of Python functions"}
MOST = 80  # points of a curve
SHOWN = 4  # answers to held-out questions that are kept as text
MODEL = "smollm2"  # the parameter of the runs that are stored
# How results begin that are about toys or about TRL, whatever model a run trains: they would stand under the model's name.
OF_OTHERS = {
    "03_position_ids_and_padding": (
        "Llama and Qwen with plain",
        "Pads move Llama and Qwen",
        "Pads move a random GPT-2",
        "Pads move a value",
        "{} of ratios lie",
        "Scoring without position ids",
    ),
    "04_duplicate_prompts": ("The report finds",),
}


def baseline(arm: str, trainings: dict[int, Run], name: str, environment: dict) -> dict:
    """Put the trainings of an arm into the format of a documented run."""
    first = read_json(next(iter(trainings.values())).path / "recipe.json", {})
    recipe, (reward, *_) = first["recipe"], first["reward_funcs"]
    words = arm.replace("--", ", ").replace("-", " ")
    dataset = Path(recipe["dataset"]).stem
    low, high, task = reward["lowest"], reward["highest"], TASKS[dataset]
    if target := reward.get("arguments", {}).get("target"):
        task += f", {target} characters"
    rank = recipe.get("lora_rank")  # a record has it where it is not 0
    trained = f"LoRA, rank {rank}, all linear layers" if rank else "all weights"
    dtype = first["overrides"].get("model_init_kwargs", {}).get("dtype", "float32")
    learns = "the right answer in its tag" if reward["name"] == "reward_exact_match" else reward["name"]
    settings = {key: value for key, value in recipe.items() if key != "seed"} | {"dataset": dataset}
    metrics = {seed: one.metrics for seed, one in trainings.items()}
    held = {seed: looks(one.path) for seed, one in trainings.items()}

    def curves(values: dict[int, pd.Series], unit: str, low: float | None = 0.0, high: float | None = 1.0) -> dict:
        size = -(-max(map(len, values.values())) // MOST)  # steps a point
        short = {seed: thinned(y, size) for seed, y in values.items()}
        made = {
            seed: Curve("", y.index.to_numpy(float), y.to_numpy(float), unit, low, high) for seed, y in short.items()
        }
        return stored(made) | {"steps_per_point": size}

    logged = {seed: one.set_index("step") for seed, one in metrics.items()}
    truncated = {
        seed: (one.completions["finish_reason"] == "length").groupby(one.completions["step"]).mean()
        for seed, one in trainings.items()
    }
    found = {"reward": curves({seed: one["reward"] for seed, one in logged.items()}, reward["unit"], low, high)}
    for metric, unit in LOGGED.items():
        found[metric] = curves(
            {seed: one[metric] for seed, one in logged.items()}, unit, 0.0, None if metric == "grad_norm" else 1.0
        )
    found["truncated"] = curves(truncated, "share of completions")
    if all(len(one) for one in held.values()):
        found["eval_accuracy"] = curves(held, reward["unit"], low, high)
    batch = recipe["per_device_train_batch_size"] * recipe["gradient_accumulation_steps"]
    some = pd.concat([one.completions.tail(4) for one in trainings.values()])[["completion", "finish_reason", "reward"]]
    return ABOUT | {
        "name": name,
        "title": f"SmolLM2-135M-Instruct, {task}, {words}, rate {recipe['learning_rate']:g}, seeds: {len(trainings)}",
        "source": "recorded here, by `make real`",
        "date": environment["date"][:7],
        "method": f"GRPO in TRL {environment['packages']['trl']}, {trained}, "
        f"learning rate {recipe['learning_rate']:g}, {recipe['lr_scheduler_type']}, {batch} completions a step in groups of "
        f"{recipe['num_generations']}, at most {recipe['max_completion_length']} tokens, temperature {recipe['temperature']}, "
        f"beta {recipe['beta']}, sampled by {recipe['backend']}, {DTYPES[dtype]}",
        "data": f"{task}, as messages{WITHOUT_QUESTIONS.get(dataset, ' with two worked examples; held-out questions apart')}",
        "seeds": len(trainings),
        "task": task,
        "reward": {"name": learns, "unit": reward["unit"], "low": low, "high": high},
        "curves": found,
        "recorded": {
            "arm": words,
            "recipe": settings,
            "stops": first["stops"], "overrides": first["overrides"], "completions": some.to_dict("records"),
            "answers": {str(seed): answers(one.path) for seed, one in trainings.items()},
            "said": said(trainings[min(trainings)].path),
            "commonest": {str(seed): commonest(one.completions) for seed, one in trainings.items()},
            "moved": {str(seed): float(one[MOVED].median()) for seed, one in metrics.items() if MOVED in one},
            "made_with": [made_with({"environment": environment})],
        },
    }  # fmt: skip


def with_stored(made: dict, known: dict) -> dict:
    """Add the seeds that a stored file has and this run has not, where recipe, stops and overrides are the same.

    How many completions of a step go through the model at once may differ.
    """
    if _settings(made) != _settings(known):
        return made
    curves = {}
    for metric, curve in made["curves"].items():
        by_seed = dict(sorted((known["curves"][metric]["by_seed"] | curve["by_seed"]).items()))
        means = np.mean(list(by_seed.values()), axis=0)
        points = [[x, float(f"{y:.5g}")] for (x, _), y in zip(curve["points"], means, strict=True)]
        curves[metric] = curve | {"points": points, "by_seed": by_seed}
    seeds = len(curves["reward"]["by_seed"])
    sources = dict.fromkeys(known["recorded"]["made_with"] + made["recorded"]["made_with"])
    by_seed = {
        name: known["recorded"].get(name, {}) | made["recorded"].get(name, {})
        for name in ("answers", "commonest", "moved")
    }
    return made | {
        "title": made["title"].replace(f"seeds: {made['seeds']}", f"seeds: {seeds}"),
        "seeds": seeds,
        "curves": curves,
        "recorded": made["recorded"] | by_seed | {"made_with": list(sources)},
    }


def _settings(stored: dict) -> tuple:
    recorded = stored.get("recorded", {})
    recipe = dict(recorded.get("recipe", {}))
    batch = recipe.pop("per_device_train_batch_size", 0) * recipe.pop("gradient_accumulation_steps", 0)
    return batch, recipe, recorded.get("stops"), recorded.get("overrides")


def thinned(values: pd.Series, size: int) -> pd.Series:
    """Means over `size` steps in a row, [steps / size], each at its last step."""
    block = np.arange(len(values)) // size
    means = values.groupby(block).mean()
    return means.set_axis(pd.Series(values.index).groupby(block).last())


def looks(folder: Path) -> pd.Series:
    """The share of held-out questions answered right at each look, [looks] by step; empty where there was none."""
    return pd.Series({step: float(np.mean(rewards)) for step, rewards in held_out_rewards(folder).items()}, dtype=float)


def answers(folder: Path) -> list[float]:
    """Return the reward of each held-out question at the last look; empty where there was no look."""
    return next(reversed(held_out_rewards(folder).values()), [])


def said(folder: Path) -> dict[str, list[str]]:
    """Return what was answered to the first held-out questions, `untrained` and `trained`; without a look, what was sampled."""
    rows = [row for _, row in json_lines(folder / (FILE if (folder / FILE).is_file() else SAMPLED))]
    ends = {"untrained": rows[0]["step"], "trained": rows[-1]["step"]} if rows else {}
    return {when: [row["completion"] for row in rows if row["step"] == step][:SHOWN] for when, step in ends.items()}


def commonest(completions: pd.DataFrame) -> dict:
    """Return the most common completion of the last tenth of the steps, `count`, and `of` how many."""
    steps = completions["step"]
    counts = completions["completion"][steps > steps.max() - steps.nunique() / 10].value_counts()
    return {"completion": counts.index[0], "count": int(counts.iloc[0]), "of": int(counts.sum())}


def of_model(notebook: str, says: str) -> bool:
    """Say whether a sentence of a notebook is about the model that the run trains."""
    begins = OF_OTHERS.get(notebook, ())
    return not any(re.match(re.escape(start).replace(r"\{\}", r"\S+"), says) for start in begins)


def results(run: Path, environment: dict) -> dict:
    """What a finished run of a notebook says of its model: parameters, results, minutes, and what made them.

    Raises:
        RunError: the run is of another model.
    """
    model, notebook = Run(run).params.get("model"), Run(run).notebook
    if model != MODEL:
        raise RunError(f"{run}: model={model!r}; expected model={MODEL!r}, whose results data/smollm2.json holds")
    own = ("seed", "out_dir", "interactive")
    parameters = {key: value for key, value in read_json(run / "params.json", {}).items() if key not in own}
    if parameters.get("comparisons") is False:  # the seeds are those of the comparisons
        parameters["seeds"] = 1
    if "dataset" in parameters:
        parameters["dataset"] = Path(parameters["dataset"]).stem  # a file's name, without its folder
    said = [
        {key: one[key] for key in ("says", "holds", "why", "claim")}
        for one in read_json(run / "result.json", {})["results"]
        if of_model(notebook, one["says"])
    ]
    if notebook == ppo_stops.NOTEBOOK and parameters["seeds"] < ppo_stops.size()["seeds"]:
        said = ppo_stops.with_more_seeds(said)
    kept = {
        key: environment[key]
        for key in ("git_commit", "packages", "cpu", "cores", "threads", "date")
        if key in environment
    }
    # A run that found its trainings finished took less time than these.
    trained = sum(read_json(path, {}).get("elapsed_s", 0) for path in run.rglob("progress.json"))
    seconds = max(read_json(run / "status.json", {}).get("ran_s", 0), trained)
    return {"parameters": parameters, "minutes": round(seconds / 60), "results": said, "environment": kept}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("run", type=Path, help="run folder, with env.json and a folder per arm")
    options.add_argument("--name", help="of the experiment, such as stops")
    options.add_argument("--out", type=Path, default=ROOT / "data", help="folder with smollm2.json and baselines/")
    args = options.parse_args()
    (args.out / "baselines").mkdir(parents=True, exist_ok=True)
    environment = read_json(args.run / "env.json", {})
    date = (
        read_json(args.run / "status.json", {}).get("created", "")
        or pd.Timestamp((args.run / "env.json").stat().st_mtime, unit="s").date().isoformat()
    )
    environment |= {"date": str(date)[:10]}
    if (args.run / "result.json").is_file():
        file = args.out / "smollm2.json"
        notebook = Run(args.run).notebook
        rows = read_json(file, {}).get("rows", {}) | {notebook: results(args.run, environment)}
        write_json(file, {"rows": dict(sorted(rows.items()))})
        print(file)
    for arm, trainings in finished(args.run).items() if args.name else ():
        task = Path(read_json(next(iter(trainings.values())).path / "recipe.json", {})["recipe"]["dataset"]).stem
        name = f"workbench-smollm2-{args.name}-{task}-{arm.replace('--', '-').lower()}"
        made = baseline(arm, trainings, name, environment)
        file = args.out / "baselines" / f"{name}.json"
        write_text(file, as_text(with_stored(made, read_json(file, {}))))
        print(file)


if __name__ == "__main__":
    run_main(main)
