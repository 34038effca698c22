"""Writes a training run's folder while it trains: metrics, progress, completions, complete checkpoints."""

import json
import time
from pathlib import Path
from typing import TextIO

import numpy as np
import pandas as pd
import trl
from accelerate.utils import broadcast_object_list, gather_object
from transformers import PrinterCallback, TrainerCallback

from ..errors import TrainingStopped
from ..generation.stops import StopSpec
from ..runs.completions import forget_after, join_completions, save_part
from ..runs.files import jsonable, read_json, write_json
from ..runs.stop_request import go_on, honour_stop, run_is_lost, stop_request
from .describe import describe_trainer
from .monitoring import completion_metrics, is_of_a_step
from .recipes import Recipe, grpo_config, load_prompts, resolve_model

# What a trainer takes itself; any other option is a field of its TRL config.
TRAINER_OPTIONS = ("explicit_positions", "generation_seed", "share_generation", "callbacks", "peft_config")
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
    """The two files of a training that grow with it: a line of `metrics.jsonl` a logged step, completions in parts.

    Args:
        out_dir: the run folder.
    """

    def __init__(self, out_dir: str | Path):
        self.out_dir = Path(out_dir)
        self._file: TextIO | None = None
        self._latest: pd.DataFrame | None = None  # the completions of the last step
        self._started = self._before = 0.0

    def begin(self, step: int) -> None:
        """Go on after `step`, 0 for a new training; what was recorded after it is dropped."""
        self.out_dir.mkdir(parents=True, exist_ok=True)
        self._before = forget_after(self.out_dir, step)
        self._started = time.monotonic()
        self._file = (self.out_dir / "metrics.jsonl").open("a", encoding="utf-8")

    def log(self, step: int, logs: dict) -> dict:
        """Write a logged step, with what its completions tell; the line as it was written."""
        line = {"step": step, "elapsed_s": round(self._elapsed(), 3)} | logs
        if self._latest is not None and self._latest["step"].iloc[0] == step and is_of_a_step(logs):
            line |= completion_metrics(self._latest)
        if self._file is not None:
            self._file.write(json.dumps(jsonable(line), allow_nan=False) + "\n")
            self._file.flush()
        return line

    def save_completions(self, step: int, rows: dict[str, list]) -> None:
        """Write one step's completions as a part of `completions.parquet/`; `rows` maps column to values."""
        self._latest = pd.DataFrame({"step": step, **rows})
        save_part(self.out_dir, step, self._latest)

    def add_completions(self, step: int, rows: dict[str, list]) -> None:
        """Like `save_completions`, for a step whose completions are generated or scored in pieces."""
        if self._latest is not None and step in self._latest["step"].to_numpy():
            before = self._latest.drop(columns="step").to_dict("list")
            missing = [None] * len(self._latest), [None] * len(next(iter(rows.values())))
            names = dict.fromkeys([*before, *rows])  # a reward function's `log_extra` may begin with a later piece
            rows = {name: [*before.get(name, missing[0]), *rows.get(name, missing[1])] for name in names}
        self.save_completions(step, rows)

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
        if run_is_lost(self.out_dir):  # before anything of this step is written
            self._close()
            raise TrainingStopped(f"stopped at step {state.global_step}: another process has taken this run")
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
            join_completions(self.out_dir)
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


def record_rows(trainer, columns: dict[str, list]) -> None:
    """Record rows of the step, of which each process has some: column -> values."""
    columns = {name: gather_object(values) for name, values in columns.items()}
    if trainer.accelerator.is_main_process:
        trainer._recorder.add_completions(trainer.state.global_step + 1, columns)


def with_functions(columns: dict[str, list], rewards: dict[str, list]) -> dict[str, list]:
    """Columns of completions with those of each reward function, which takes no column from another.

    Example:
        >>> with_functions({"reward": [2.0]}, {"reward": [1.0], "words": [4]})
        {'reward': [2.0], 'reward (function)': [1.0], 'words': [4]}
    """
    return columns | {f"{name} (function)" if name in columns else name: values for name, values in rewards.items()}


def logged_rewards(trainer, columns: dict[str, list]) -> dict[str, list]:
    """Columns of the last generation batch of GRPO or RLOO, with its `reward`, `advantage` and each reward function."""
    rewards = {name: list(values) for name, values in trainer._logs["rewards"].items()}
    weights = trainer.reward_weights.numpy(force=True)
    scores = np.array(list(rewards.values()), float).T
    if len(rewards) < len(weights):  # functions of one name share a column in TRL: their sum is not known
        scores = np.full((len(scores), 1), np.nan)
    unscorable = np.isnan(scores * weights).all(axis=1)
    total = np.where(unscorable, np.nan, np.nansum(scores * weights, axis=1)).tolist()
    return with_functions(columns | {"reward": total, "advantage": list(trainer._logs["advantages"])}, rewards)


def record(trainer, out_dir: str | Path) -> RunRecorder:
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
    import pandas as pd
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    pd.set_option("display.max_colwidth", None)


class RecordingMixin:
    """Writes metrics and completions into a run folder; for trainers that keep TRL's completions table (`_logs`).

    Args:
        out_dir: run folder for `metrics.jsonl`, `progress.json` and `completions.parquet/`; None records nothing.
    """

    def __init__(self, *args, out_dir: str | Path | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self._recorder = record(self, out_dir) if out_dir else None

    def train(self, *args, **kwargs):
        if self._recorder and self.accelerator.is_main_process:
            folder = self._recorder.out_dir
            if "trl" in read_json(
                folder / "recipe.json", {"trl": None}
            ):  # none, or of an earlier trainer, not a recipe
                describe_trainer(self, folder)
        return super().train(*args, **kwargs)

    @classmethod
    def from_recipe(cls, recipe: Recipe, *, reward_funcs, out_dir: Path, stops: StopSpec | None = None, **options):
        """The trainer that `train_recipe` trains, GRPO's or RLOO's; `options` are its own and its config's."""
        own = {name: options.pop(name) for name in TRAINER_OPTIONS if name in options}
        config_class = trl.RLOOConfig if issubclass(cls, trl.RLOOTrainer) else trl.GRPOConfig
        args = grpo_config(recipe, out_dir / "checkpoints", config_class, **options)
        own |= {"train_dataset": load_prompts(recipe.dataset), "stops": stops, "out_dir": out_dir}
        return cls(resolve_model(recipe.model), reward_funcs, args, **own)

    def _generate_and_score_completions(self, inputs):
        scored = super()._generate_and_score_completions(inputs)
        if self._recorder and self.model.training and self.accelerator.is_main_process:
            self._recorder.add_completions(self.state.global_step + 1, self._logged_rows())
        return scored

    def _logged_rows(self) -> dict[str, list]:
        """The last generation batch as TRL gathered it over all processes: column -> B values."""
        extra = {name: list(values) for name, values in self._logs["extra"].items()}
        columns = {
            "prompt": [str(p) for p in self._logs["prompt"]],
            "completion": extra.pop("completion_text"),
            **extra,
        }
        return logged_rewards(self, columns)
