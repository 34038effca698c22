"""A training of a few numbers that records itself as the real ones do, for `every_place`: a step takes no time."""

import json
from pathlib import Path
from types import SimpleNamespace

from workbench.experiments.train import last_checkpoint, open_folder
from workbench.training.recording import RunRecorder
from workbench.training.rows import AllTrained

STEPS, ROWS, SAVED_EVERY = 4, 2, 2


def train_stub(seed: int, folder: Path) -> int:
    """Train a whole number for `STEPS` steps, from the last complete checkpoint in the folder, and return it."""
    fields = {"seed": seed, "max_steps": STEPS, "num_generations": ROWS, "per_device_train_batch_size": ROWS}
    open_folder(folder, {"trainer": "StubTrainer", "recipe": fields, "reward_funcs": [], "overrides": {}})
    weight, first = seed + 1, 0
    if checkpoint := last_checkpoint(folder / "checkpoints"):
        saved = json.loads((checkpoint / "weights.json").read_text())
        weight, first = saved["weight"], saved["step"]
    args = SimpleNamespace(
        output_dir=str(folder / "checkpoints"), world_size=1, process_index=0, disable_tqdm=True, logging_steps=1
    )
    state = SimpleNamespace(global_step=first, max_steps=STEPS, is_world_process_zero=True)
    control = SimpleNamespace(should_save=False)
    recorder = RunRecorder(folder)
    try:
        recorder.on_train_begin(args, state, control)
    except AllTrained:
        return weight
    for step in range(first + 1, STEPS + 1):
        weight = weight * 16807 % (2**31 - 1)  # Park and Miller's generator: each step depends on all before it
        texts = [f"{weight} of row {row}" for row in range(ROWS)]
        rewards = [float((weight + row) % 7) for row in range(ROWS)]
        shown = {"prompt": ["a number"] * ROWS, "completion": texts, "finish_reason": ["stop"] * ROWS}
        recorder.add_completions(step, shown | {"reward": rewards})
        state.global_step = step
        recorder.on_log(args, state, control, {"loss": weight / 2**31, "reward": sum(rewards) / ROWS})
        recorder.on_step_end(args, state, control)
        if step % SAVED_EVERY == 0 or control.should_save:
            _save(Path(args.output_dir) / f"checkpoint-{step}", {"weight": weight, "step": step})
            recorder.on_save(args, state, control)
    recorder.on_train_end(args, state, control)
    return weight


def _save(checkpoint: Path, weights: dict) -> None:
    """In place, as transformers writes a checkpoint."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    with (checkpoint / "weights.json").open("w") as file:
        json.dump(weights, file)
