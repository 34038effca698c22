"""GRPO with a stop string on real weights: stock TRL masked, stock TRL unmasked, the workbench's trainer masked.

    python -m benchmarks.stop_string            train what is missing, seed by seed over all arms
    python -m benchmarks.stop_string --collect  add what is trained to data/measured/, and each arm to data/baselines/

gemma-3-270m answers small questions in `<answer>...</answer>`, vLLM ends a completion at the stop string `</answer>`, and
`mask_truncated_completions=True` asks TRL to leave truncated completions out of the loss. Reward 1 for the right answer.

Each training is a process of its own with a folder of its own. One that was interrupted goes on from its last checkpoint, and
its files hold every step once. A folder has
- `settings.json`: everything that identifies the training,
- `metrics.jsonl`: TRL's log, a line a step,
- `completions.jsonl`: every completion that was trained on,
- `held_out.jsonl`: completions of the held-out questions at steps 0, 10, 20, ...: greedy, so without sampling noise.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.fetch_gemma import GEMMA, check_weights
from benchmarks.record import MEASURED, ROOT, about, made_with, need_room, parser, run_main
from benchmarks.tasks import STOP, TASK, reward_of, rows
from workbench.curves.curve import Curve
from workbench.curves.documented import as_text, stored
from workbench.errors import RunError
from workbench.runs.files import json_lines, read_json, whole_file, write_json, write_text

TRAININGS = ROOT / "build" / "real_weights" / "custom_stops"
STOCK_MASKED, STOCK_UNMASKED, WORKBENCH_MASKED = ARMS = ("stock-masked", "stock-unmasked", "workbench-masked")
EXAMPLES, HELD_OUT = 2, 100
EVERY = 10  # steps between two checkpoints, and between two looks at the held-out questions
GRPO = {  # TRL's names
    "learning_rate": 1e-4, "lr_scheduler_type": "constant", "per_device_train_batch_size": 16, "num_generations": 8,
    "max_completion_length": 16, "temperature": 1.0, "beta": 0.0,
}  # fmt: skip
LORA = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
RECORDS = ("metrics.jsonl", "completions.jsonl", "held_out.jsonl")


def make_trainer(arm: str, seed: int, folder: Path, model: Path, steps: int, train_rows: list[dict], reward):
    """Make the trainer of an arm: TRL's own code, and what the workbench asks for in its place."""
    import trl
    import trl.trainer.utils
    from datasets import Dataset
    from peft import LoraConfig

    # TRL 1.16.0 scores the completions' positions alone where it has Triton, and all positions elsewhere: the same numbers,
    # at ten times the work with a dictionary of 262,144 tokens. Every arm scores here as it would on a GPU.
    trl.trainer.utils._use_triton = lambda device: True
    options: dict = {"mask_truncated_completions": arm != STOCK_UNMASKED}
    if arm != WORKBENCH_MASKED:
        options["generation_kwargs"] = {"stop": [STOP], "include_stop_str_in_output": True}
    args = trl.GRPOConfig(
        str(folder / "checkpoints"), seed=seed, max_steps=steps, logging_steps=1, save_steps=EVERY, save_total_limit=2,
        report_to="none", disable_tqdm=True, gradient_checkpointing=False, use_cpu=True, bf16=False,
        model_init_kwargs={"dtype": "float32"}, use_vllm=True, vllm_mode="colocate", vllm_max_model_length=160,
        vllm_gpu_memory_utilization=0.2, **GRPO, **options,
    )  # fmt: skip
    common = {"args": args, "train_dataset": Dataset.from_list(train_rows), "peft_config": LoraConfig(**LORA)}
    if arm == WORKBENCH_MASKED:
        from workbench.generation.stops import StopSpec
        from workbench.training.grpo import GRPOTrainer

        return GRPOTrainer(str(model), reward, stops=StopSpec(stop=(STOP,)), **common)
    trainer = trl.GRPOTrainer(str(model), reward, **common)
    trainer.vllm_generation.sync_weights = lambda: sync_weights(trainer.vllm_generation)
    return trainer


def sync_weights(generation) -> None:
    """Do what TRL's own `sync_weights` does, in the way that vLLM's CPU backend can: it has repacked the linear weights."""
    runner = generation.llm.llm_engine.model_executor.driver_worker.model_runner
    runner.reload_weights(weights_iterator=generation._iter_named_params())
    generation.llm.reset_prefix_cache()


def finish_reason(text: str, ids: list[int], eos_token_id: int) -> str:
    """Say why a completion really ended: `stop` where it has the stop string or EOS, else `length`.

    Example:
        >>> finish_reason("<answer>8</answer>", [5, 6], 1), finish_reason("8", [7, 1], 1), finish_reason("8", [7], 1)
        ('stop', 'stop', 'length')
    """
    return "stop" if STOP in text or eos_token_id in ids else "length"


def append(file: Path, lines: Iterable[dict]) -> None:
    """Add lines to a file, written through to the disk."""
    with file.open("a", encoding="utf-8") as out:
        out.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        out.flush()
        os.fsync(out.fileno())


def read_lines(file: Path) -> list[dict]:
    """Read the whole lines of a file; none where there is none. A last line that was cut while it was written is left out."""
    return [row for _, row in json_lines(file)] if file.is_file() else []


def forget_after(folder: Path, step: int) -> None:
    """Drop what was recorded after a step, so that a training that goes on there has every step once.

    One that begins anew looks at the held-out questions again before its first step.
    """
    for name in RECORDS:
        kept = [line for line in read_lines(folder / name) if 0 < step >= line["step"]]
        with whole_file(folder / name) as unfinished:
            append(unfinished, kept)


def last_checkpoint(folder: Path) -> tuple[int, Path | None]:
    """Find the newest checkpoint that was written to its end, and its step; (0, None) where there is none."""
    whole = [path.parent for path in folder.glob("checkpoints/checkpoint-*/complete")]
    newest = max(whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
    return (int(newest.name.rpartition("-")[2]), newest) if newest else (0, None)


def train(arm: str, seed: int, folder: Path, model: Path, steps: int) -> None:
    """Run one training, from its last checkpoint on."""
    need_room("a training", memory=8, disk=3, folder=folder)
    weights = check_weights(model)
    train_rows, held_rows = rows(EXAMPLES, HELD_OUT)
    here = about()
    settings = {
        "arm": arm, "seed": seed, "steps": steps, "task": TASK, "examples": EXAMPLES, "stop": STOP, "grpo": GRPO,
        "lora": LORA, "questions": {"train": len(train_rows), "held out": len(held_rows)}, "held out": "greedy",
        "model": weights, "environment": {name: here[name] for name in ("python", "packages", "threads")},
    }  # fmt: skip
    old = folder / "settings.json"
    if old.is_file() and json.loads(old.read_text()) != settings:
        raise RunError(f"{old}: the training there has other settings; move the folder away, or go back to them")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(old, settings)

    from transformers import TrainerCallback, set_seed
    from vllm import LLM, SamplingParams

    def right_answer(prompts, completions, completion_ids, answer, trainer_state, **_):
        """1 for the right answer; and each completion is recorded."""
        rewards = [reward_of(text, right) for text, right in zip(completions, answer, strict=True)]
        lines = []
        for prompt, text, ids, right, got in zip(prompts, completions, completion_ids, answer, rewards, strict=True):
            question = prompt.rpartition("\n\n")[2]  # the worked examples are the same in all
            line = {"step": trainer_state.global_step + 1, "prompt": question, "completion": text}
            line |= {"finish_reason": finish_reason(text, ids, eos), "tokens": len(ids), "answer": right, "reward": got}
            lines.append(line)
        append(folder / "completions.jsonl", lines)
        return rewards

    trainer = make_trainer(arm, seed, folder, model, steps, train_rows, right_answer)
    eos = trainer.processing_class.eos_token_id
    engine, generation = trainer.vllm_generation.llm, trainer.vllm_generation
    greedy = SamplingParams(temperature=0, max_tokens=16, stop=[STOP], include_stop_str_in_output=True)

    def hold_out(step: int) -> None:
        generation.sync_weights()
        # The class's own method: a trainer that watches its engine's `generate` is not to see these.
        outputs = LLM.generate(engine, [row["prompt"] for row in held_rows], greedy, use_tqdm=False)
        lines = []
        for number, (output, row) in enumerate(zip(outputs, held_rows, strict=True)):
            (made,), right = output.outputs, row["answer"]
            line = {"step": step, "question": number, "completion": made.text, "finish_reason": made.finish_reason}
            line |= {"tokens": len(made.token_ids), "answer": right, "reward": reward_of(made.text, right)}
            lines.append(line)
        append(folder / "held_out.jsonl", lines)

    class Recorder(TrainerCallback):
        def on_train_begin(self, args, state, control, **_):
            if not state.global_step:
                hold_out(0)

        def on_step_end(self, args, state, control, **_):
            if state.global_step % EVERY == 0:
                hold_out(state.global_step)

        def on_log(self, args, state, control, logs, **_):
            if "train_runtime" not in logs:  # the closing summary is not a step
                append(folder / "metrics.jsonl", [{"step": state.global_step} | logs])
                shown = (f"{name} {logs.get(name)}" for name in ("reward", "grad_norm", "completions/clipped_ratio"))
                print(arm, f"seed {seed}", f"step {state.global_step}", *shown, flush=True)

        def on_save(self, args, state, control, **_):
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / "complete").touch()

    trainer.add_callback(Recorder())
    step, checkpoint = last_checkpoint(folder)
    forget_after(folder, step)
    set_seed(seed)  # again: the engine, which starts in this process, has set its own
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    write_json(folder / "finished", here)
    shutil.rmtree(folder / "checkpoints")


def collect(trainings: Path, out: Path) -> dict:
    """Add the finished trainings to the summary, and each one's completions; one of the same arm and seed is replaced.

    Returns:
        The summary: `trainings`, a list of {"settings", "steps", "curves", "held out"}. `curves` maps a name to [steps]
        numbers, and `held out` has `step`, `reward` (share of right answers), `truncated` and `tokens`.
    """
    (out / "stop_string").mkdir(parents=True, exist_ok=True)
    found = read_json(out / "stop_string.json", {}).get("trainings", [])
    for finished in sorted(trainings.glob("*/finished")):
        folder = finished.parent
        settings = json.loads((folder / "settings.json").read_text())
        metrics, completions, held = (read_lines(folder / name) for name in RECORDS)
        steps = [line["step"] for line in metrics]
        if steps != list(range(1, len(steps) + 1)):
            raise RunError(f"{folder / 'metrics.jsonl'}: steps {steps}, expected each step once from 1 on")
        by_step = [[row for row in completions if row["step"] == step] for step in steps]
        looks = sorted({row["step"] for row in held if row["step"] <= len(steps)})
        by_look = [[row for row in held if row["step"] == step] for step in looks]
        found = [one for one in found if arm_and_seed(one) != (settings["arm"], settings["seed"])]
        found.append(
            {
                "settings": settings,
                "made": read_json(finished, {}),
                "steps": len(steps),
                "curves": {
                    "reward": [share(made, "reward", 1.0) for made in by_step],
                    "logged clipped ratio": [line["completions/clipped_ratio"] for line in metrics],
                    "truncated": [share(made, "finish_reason", "length") for made in by_step],
                    "gradient norm": [line["grad_norm"] for line in metrics],
                    "loss": [line["loss"] for line in metrics],
                    "groups without spread": [line["frac_reward_zero_std"] for line in metrics],
                    "mismatch": [line["sampling/sampling_logp_difference/mean"] for line in metrics],
                    "completion tokens": [sum(row["tokens"] for row in made) for made in by_step],
                    "tokens so far": [line["num_tokens"] for line in metrics],
                },
                "held out": {
                    "step": looks,
                    "reward": [share(made, "reward", 1.0) for made in by_look],
                    "truncated": [share(made, "finish_reason", "length") for made in by_look],
                    "tokens": [sum(row["tokens"] for row in made) for made in by_look],
                },
            }
        )
        name = f"completions-{folder.name}.jsonl.gz"
        whole = [{"of": "training"} | row for row in completions if row["step"] <= len(steps)]
        whole += [{"of": "held out"} | row for row in held if row["step"] <= len(steps)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in whole)
        (out / "stop_string" / name).write_bytes(
            gzip.compress(text.encode(), mtime=0)
        )  # the same bytes for the same rows
    summary = {"what": " ".join(__doc__.split("\n\n")[0].split()), "trainings": sorted(found, key=arm_and_seed)}
    write_json(out / "stop_string.json", summary)
    return summary


RIGHT = "share of right answers"


def baseline(arm: str, trainings: list[dict]) -> dict:
    """Put the trainings of an arm, as `collect` has them, into the format of `data/README.md`."""
    trainings = [training for training in trainings if training["settings"]["arm"] == arm]
    settings = trainings[0]["settings"]

    def curve(of: str, unit: str, at: str = "curves") -> dict:
        by_seed = {}
        for training in trainings:
            found = training[at]
            x = np.array(found.get("step", range(1, training["steps"] + 1)), float)
            by_seed[training["settings"]["seed"]] = Curve("", x, np.array(found[of]), unit, 0.0, 1.0)
        return stored(by_seed)

    curves = {
        "reward": curve("reward", RIGHT),
        "eval_accuracy": curve("reward", RIGHT, "held out"),
        "completions/clipped_ratio": curve("logged clipped ratio", "share of completions"),
        "frac_reward_zero_std": curve("groups without spread", "share of groups"),
    }
    grpo, model, trl = settings["grpo"], settings["model"], settings["environment"]["packages"]["trl"]
    return {
        "name": f"workbench-gemma-3-270m-stops-{arm}",
        "title": f"gemma-3-270m, GRPO with a stop string, {arm.replace('-', ' ')}, seeds: {len(trainings)}",
        "source": "recorded here, by `python -m benchmarks.stop_string`",
        "date": "2026-11",
        "method": f"GRPO in TRL {trl}, LoRA, rank {settings['lora']['r']}, all linear layers, learning rate "
        f"{grpo['learning_rate']:g}, constant, {grpo['per_device_train_batch_size']} completions a step in groups of "
        f"{grpo['num_generations']}, at most {grpo['max_completion_length']} tokens, temperature {grpo['temperature']}, "
        f"beta {grpo['beta']}, stop string {settings['stop']}, fp32",
        "model": f"{model['model']}, 268 M parameters, {model['quantisation']}; {model['licence']}",
        "data": f"{settings['task']}, {settings['questions']['train']} questions, {settings['examples']} examples a prompt",
        "hardware": "a CPU, 1 thread",
        "time": None,
        "seeds": len(trainings),
        "task": settings["task"],
        "reward": {"name": "right answer in <answer>...</answer>", "unit": RIGHT, "low": 0.0, "high": 1.0},
        "curves": curves,
        "figures": {},
        "unknown": ["the time: machines with other load", "other models, tasks and learning rates"],
        "recorded": {key: settings[key] for key in ("grpo", "lora", "model", "environment")}
        | {"made_with": sorted(set(map(made_of, trainings)))},
    }


def made_of(training: dict) -> str:
    """Say which commit, versions and date a collected training is of."""
    here = training.get("made") or training["settings"]["environment"]
    return made_with({"environment": here, "stored_in": training.get("stored_in", {})})


def arm_and_seed(training: dict) -> tuple[str, int]:
    return training["settings"]["arm"], training["settings"]["seed"]


def share(lines: list[dict], name: str, value) -> float | None:
    return sum(line[name] == value for line in lines) / len(lines) if lines else None


def main() -> None:
    options = parser(__doc__, steps=60, seeds=[0, 1, 2], model=GEMMA, trainings=TRAININGS)
    options.set_defaults(out=MEASURED)
    options.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM")
    options.add_argument("--collect", action="store_true", help="train nothing, add what is trained to the results")
    options.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # of the arms and seeds, in this process
    args = options.parse_args()
    if args.collect:
        trainings = collect(args.trainings, args.out)["trainings"]
        for arm in {training["settings"]["arm"] for training in trainings}:
            made = baseline(arm, trainings)
            write_text(ROOT / "data" / "baselines" / f"{made['name']}.json", as_text(made))
        for training in trainings:
            settings = training["settings"]
            print(settings["arm"], "seed", settings["seed"], "steps", training["steps"], training["held out"]["reward"])
        return
    defaults = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    os.environ.update({name: value for name, value in defaults.items() if name not in os.environ})
    if args.one:
        (arm,), (seed,) = args.arms, args.seeds
        train(arm, seed, args.trainings / f"{arm}-seed-{seed}", args.model, args.steps)
        return
    for seed in args.seeds:
        for arm in args.arms:
            if (args.trainings / f"{arm}-seed-{seed}" / "finished").is_file():
                continue
            command = [sys.executable, "-m", "benchmarks.stop_string", "--one", "--arms", arm]
            command += ["--seeds", str(seed), "--steps", str(args.steps)]
            command += ["--model", str(args.model), "--trainings", str(args.trainings)]
            if code := subprocess.run(command).returncode:
                raise RunError(f"{arm}, seed {seed}, ended with {code}; the same command goes on with it")


if __name__ == "__main__":
    run_main(main)
