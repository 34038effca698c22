"""Writes a run folder while a trainer trains: settings, metrics, progress, completions, complete checkpoints."""

import dataclasses
import time
from pathlib import Path
from typing import Any, TextIO

import pandas as pd
import trl
from accelerate.utils import broadcast_object_list, gather_object
from transformers import PrinterCallback, TrainerCallback

from ..consistency.positions import fills_position_ids
from ..errors import TrainingStopped
from ..generation.preflight import backend_of
from ..runs.completions import FILE, forget_after
from ..runs.files import append_rows, open_lines, read_json, write_json
from ..runs.stop_request import go_on, honour_stop, stop_request
from .rewards import describe_reward
from .trl import eos_ids, is_of_a_step, several_turns

COMPLETE = "complete.json"  # the last file of a checkpoint
_PRINTED = ("reward", "completions/mean_length", "loss")


def prompts_per_step(args) -> float:
    """How many new prompts one optimizer step takes, over all processes, of any TRL trainer's config.

    GRPO and RLOO count completions in their batches, `num_generations` a prompt, and see each batch `num_iterations`
    times; `steps_per_generation` changes when prompts are drawn, not how many. OnlineDPO and PPO count prompts.

    Example:
        >>> from types import SimpleNamespace as Config
        >>> batch = {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 2, "world_size": 3}
        >>> prompts_per_step(Config(**batch, num_generations=8, num_iterations=2)), prompts_per_step(Config(**batch))
        (12.0, 192.0)
    """
    rows = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    return rows / getattr(args, "num_generations", 1) / getattr(args, "num_iterations", 1)


class StepRecord:
    """The two files of a training that grow with it: a line of `metrics.jsonl` a logged step, one of `completions.jsonl` a row.

    Args:
        out_dir: the run folder.
    """

    def __init__(self, out_dir: str | Path):
        self.out_dir = Path(out_dir)
        self._file: TextIO | None = None
        self._started = self._before = 0.0

    def begin(self, step: int) -> None:
        """Go on after `step`, 0 for a new training; what was recorded after it is dropped."""
        self.out_dir.mkdir(parents=True, exist_ok=True)
        self._before = forget_after(self.out_dir, step)
        self._started = time.monotonic()
        self._file = open_lines(self.out_dir / "metrics.jsonl")

    def log(self, step: int, logs: dict) -> dict:
        """Write a logged step; the line as it was written."""
        line = {"step": step, "elapsed_s": round(self._elapsed(), 3)} | logs
        if self._file is not None:
            append_rows(self._file, [line])
        return line

    def add_completions(self, step: int, rows: dict[str, list]) -> None:
        """Append completions of a step, all or a piece of them, to `completions.jsonl`; `rows` maps column to values."""
        with open_lines(self.out_dir / FILE) as file:
            append_rows(
                file, ({"step": step, **dict(zip(rows, row, strict=True))} for row in zip(*rows.values(), strict=True))
            )

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _elapsed(self) -> float:
        return self._before + time.monotonic() - self._started


class RunRecorder(StepRecord, TrainerCallback):
    """Appends a line to `metrics.jsonl` per logged step, keeps `progress.json` current, and ends when it is asked to.

    A checkpoint counts only once `complete.json` stands in it, the last thing written: a kill while it is being saved
    leaves one that `last_checkpoint` passes over.

    Args:
        out_dir: the run folder.

    Raises:
        TrainingStopped: out of `trainer.train()`, when `stop_request.request_stop` asked for it.
    """

    def __init__(self, out_dir: str | Path):
        super().__init__(out_dir)
        self._asked: str | None = None  # why the training is to end
        self._prompts: float | None = None  # a step takes; None where it changed when the training was resumed

    def describe(self, trainer) -> None:
        """Write the trainer's settings, unless a recipe has written its own."""
        if read_json(self.out_dir / "recipe.json", {}).get("source") != "recipe":
            describe_trainer(trainer, self.out_dir)

    def on_train_begin(self, args, state, control, **_):
        if reason := self._end_asked(args):
            self._end(state, reason)
        if state.is_world_process_zero:
            self.out_dir.mkdir(parents=True, exist_ok=True)
            go_on(self.out_dir)
            self.begin(state.global_step)
            self._prompts = prompts_per_step(args)
            if state.global_step and read_json(self._progress_file, {}).get("prompts_per_step") != self._prompts:
                self._prompts = None
            self._progress(state)
        if state.global_step >= state.max_steps:  # resumed at its end; transformers would train a step more
            self.on_train_end(args, state, control)
            raise TrainingStopped(f"all {state.max_steps} steps were trained before; nothing is left to train")

    def on_log(self, args, state, control, logs=None, **_):
        if self._file is None or "train_runtime" in logs:  # the closing summary is not a step
            return
        line = self.log(state.global_step, logs)
        if state.global_step % max(1, state.max_steps // 10) == 0 and is_of_a_step(logs):
            numbers = [f"{k.rpartition('/')[2]} {line[k]:.3g}" for k in _PRINTED if line.get(k) is not None]
            at = f"step {state.global_step}/{state.max_steps}", f"{self._elapsed():.0f} s"
            print("  ".join([*at, *numbers]), flush=True)

    def on_step_end(self, args, state, control, **_):
        if self._file is not None:
            self._progress(state)
        if state.global_step < state.max_steps and (reason := self._end_asked(args)):
            self._asked = reason
            control.should_save = True  # and `on_save` ends the training

    def on_save(self, args, state, control, **_):
        if state.is_world_process_zero:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            write_json(checkpoint / COMPLETE, {"step": state.global_step})
        if self._asked:
            self._end(state, self._asked)

    def on_train_end(self, args, state, control, **_):
        if self._file is not None:
            self._close()
            self._progress(state, finished=True)

    def _end_asked(self, args) -> str | None:
        """The first process looks, and all of them do as it saw: one that stopped alone would leave the rest waiting."""
        if args.world_size == 1:
            return stop_request(self.out_dir)
        return broadcast_object_list([stop_request(self.out_dir) if args.process_index == 0 else None])[0]

    def _end(self, state, reason: str) -> None:
        text = f"stopped after step {state.global_step} of {state.max_steps}: {reason}"
        if state.is_world_process_zero:
            self._close()
            honour_stop(self.out_dir, text)
        raise TrainingStopped(text)

    def _progress(self, state, finished: bool = False) -> None:
        progress = {"step": state.global_step, "max_steps": state.max_steps, "elapsed_s": round(self._elapsed(), 3)}
        progress |= {"prompts_per_step": self._prompts, "finished": finished}
        write_json(self._progress_file, progress)

    @property
    def _progress_file(self) -> Path:
        return self.out_dir / "progress.json"


def add_rows(trainer, columns: dict[str, list]) -> dict[str, list]:
    """Record rows of the step, of which each process has some, and return those of all: column -> values."""
    columns = {name: gather_object(values) for name, values in columns.items()}
    if trainer.recorder and trainer.accelerator.is_main_process:
        trainer.recorder.add_completions(trainer.state.global_step + 1, columns)
    return columns


def describe_trainer(trainer, folder: Path) -> None:
    """Write `recipe.json`, in the shape that recipes have, and the model's configs: what the audit asks of a run.

    Args:
        trainer: TRL's GRPOTrainer or RLOOTrainer, or a child.
        folder: where to.
    """
    args = trainer.args
    recipe: dict[str, Any] = {name: getattr(args, name, None) for name in ("num_generations", "learning_rate", "seed")}
    recipe["backend"] = backend_of(args)
    if not several_turns(trainer):
        recipe["max_completion_length"] = args.max_completion_length
    model = trainer.accelerator.unwrap_model(trainer.model)
    about = {
        "trainer": type(trainer).__name__,
        "source": "workbench" if hasattr(trainer, "stop_rule") else "stock",
        "recipe": recipe,
        "reward_funcs": [describe_reward(function) for function in trainer.reward_funcs],
        "stops": _stops(trainer),
        "overrides": {
            "mask_truncated_completions": args.mask_truncated_completions,
            "reward_weights": args.reward_weights,
            "explicit_positions": fills_position_ids(model),
        },
        "trl": trl.__version__,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "recipe.json", about)
    for name, config in (("config.json", model.config), ("generation_config.json", model.generation_config)):
        write_json(folder / name, config.to_dict())


def _stops(trainer) -> dict:
    """Strings and ids at which this trainer's sampler stops."""
    if (rule := getattr(trainer, "stop_rule", None)) is not None:
        return dataclasses.asdict(rule.spec) | {"stop_token_ids": list(rule.stop_ids)}
    options = trainer.args.generation_kwargs or {}
    strings = options.get("stop") or options.get("stop_strings") or []
    return {"stop": [strings] if isinstance(strings, str) else list(strings), "stop_token_ids": eos_ids(trainer)}


def attach_recorder(trainer, out_dir: str | Path) -> RunRecorder:
    """Attach a recorder to a trainer, in place of transformers' printer of raw log dictionaries."""
    recorder = RunRecorder(out_dir)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(recorder)
    return recorder


def quiet_libraries() -> None:
    """Switch off the progress bars of transformers and datasets, and load reports: the run has its own lines.

    Tables show texts whole: pandas cuts them at 50 characters, and with them the reason of a refusal.
    """
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    pd.set_option("display.max_colwidth", None)
