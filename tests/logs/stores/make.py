"""Write the files of this folder, each with the tracker itself and offline: one broken run, its first 20 steps.

uv run --no-project --python 3.11 --with wandb==0.31.0 --with swanlab==0.10.3 tests/logs/stores/make.py
"""

import json
import os
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
STATE = HERE.parents[2] / "data" / "audit" / "masked_stops" / "trainer_state.json"
CONFIG = {"num_generations": 8, "mask_truncated_completions": True, "scale_rewards": "group", "seed": 3}
NAMES = ("loss", "reward", "reward_std", "grad_norm", "learning_rate", "completions/clipped_ratio",
         "completions/mean_length", "completions/max_length", "completions/mean_terminated_length")  # fmt: skip


def steps() -> list[dict]:
    """The first steps of the run, with the numbers that rules ask for."""
    history = [row for row in json.loads(STATE.read_text())["log_history"] if "loss" in row][:20]
    return [{"step": row["step"]} | {name: row[name] for name in NAMES} for row in history]


def prefixed(row: dict) -> dict:
    """As the Trainer's callbacks name metrics."""
    return {f"train/{name}": value for name, value in row.items() if name != "step"}


def write_wandb(folder: Path) -> Path:
    """A run of W&B with a value that is nested, one that is text, one that is no number, and a page of HTML."""
    import wandb

    quiet = wandb.Settings(x_disable_meta=True, x_disable_stats=True, console="off", host="host", save_code=False)
    run = wandb.init(project="p", mode="offline", dir=folder, id="stopped", config=CONFIG, settings=quiet)
    for row in steps():
        words = "long " * 8000 if row["step"] == 10 else "a word"  # longer than a block of the file
        odd = {
            "nested": {"depth": row["step"]},
            "text": words,
            "critic/odd": float("nan"),
            "page": wandb.Html("<p>x</p>"),
        }
        run.log(prefixed(row) | {"train/global_step": row["step"]} | odd)
    run.config.update({"max_completion_length": 8})
    run.finish()
    wandb.teardown()  # its process writes the last block when it ends
    return next(folder.glob("wandb/offline-run-*/*.wandb"))


def write_swanlab(folder: Path) -> Path:
    """A run of SwanLab."""
    import swanlab

    swanlab.init(project="p", mode="offline", logdir=folder, config=CONFIG, experiment_name="stopped")
    for row in steps():
        swanlab.log(prefixed(row), step=row["step"])
    swanlab.finish()
    return next(folder.glob("run-*/*.swanlab"))


if __name__ == "__main__":
    os.environ |= {"WANDB_SILENT": "true", "WANDB_DISABLE_GIT": "true"}
    for write, name in ((write_wandb, "run-stopped.wandb"), (write_swanlab, "run-stopped.swanlab")):
        with tempfile.TemporaryDirectory() as folder:
            (HERE / name).write_bytes(write(Path(folder)).read_bytes())
