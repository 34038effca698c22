"""Writes a run folder while a trainer trains: settings, metrics, progress, completions, complete checkpoints."""

import json
import os
import time
from collections.abc import Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import trl
from accelerate.utils import broadcast_object_list
from transformers import PrinterCallback, TrainerCallback

from ..consistency.positions import fills_position_ids
from ..errors import ParameterError, TrainingStopped, warn_user
from ..generation.preflight import backend_of
from ..replay.file import save_step, step_path
from ..runs.completions import FILE, forget_after
from ..runs.files import append_rows, jsonable, open_lines, read_json, sync, write_json
from ..runs.stop_request import go_on, honour_stop, stop_request
from .callback import LiveCallback, say
from .record_step import StepListener
from .rewards import describe_reward, unseen_values
from .rows import AllTrained, is_of_a_step, is_ppo, policy_of, several_turns, stops_of, tokenizer_of
from .step_numbers import kind_of, step_of
from .step_record import StepRecord
from .updates import has_plain_prompts

Steps = int | Collection[int]  # numbers of steps, or N for the first and every N-th

COMPLETE = "complete.json"  # the last file of a checkpoint
_RECORDED: tuple[str, ...] = ("num_generations", "learning_rate", "seed", "temperature", "beta", "max_steps")
_RECORDED += ("per_device_train_batch_size", "gradient_accumulation_steps")
# Fields of TRL's config without which trainings that differ in one of them would count as seeds of one experiment.
_OPTIONS: tuple[str, ...] = ("loss_type", "scale_rewards", "num_iterations", "epsilon", "epsilon_high", "delta")
_OPTIONS += ("importance_sampling_level", "top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs")
_OPTIONS += ("steps_per_generation", "optim", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm")
_OPTIONS += ("bf16", "fp16")
_PRINTED = ("reward", "completions/mean_length", "loss")


class Recorder:
    """Writes a run folder: settings, a line of `metrics.jsonl` a logged step, a line of `completions.jsonl` a completion.

    `recipe.json` says in `source` who wrote it: `workbench` for our trainers, `watched` for any other.
    """

    def __init__(self, record_dir: str | Path, source: str = "workbench"):
        self.record_dir, self.source = Path(record_dir), source
        self._file: TextIO | None = None
        self._started = self._before = 0.0

    def describe(self, settings: Mapping) -> None:
        """Write `recipe.json`."""
        self.record_dir.mkdir(parents=True, exist_ok=True)
        write_json(self.record_dir / "recipe.json", {**settings, "source": self.source})

    def describe_trainer(self, trainer: Any) -> None:
        """Write `recipe.json` from a trainer's own settings, and the configs of its model; a saved model keeps its own."""
        model = policy_of(trainer)
        self.describe(trainer_settings(trainer))
        if has_weights(self.record_dir):
            return
        for name, config in (("config.json", model.config), ("generation_config.json", model.generation_config)):
            write_json(self.record_dir / name, config.to_dict())

    def begin(self, step: int) -> None:
        """Go on after `step`, 0 for a new training; what was recorded after it is dropped."""
        self.record_dir.mkdir(parents=True, exist_ok=True)
        self._before = forget_after(self.record_dir, step)
        self._started = time.monotonic()
        self._file = open_lines(self.record_dir / "metrics.jsonl")

    def log(self, step: int, logs: Mapping) -> dict:
        """Write a logged step; the line as it was written."""
        line = {"step": step, "elapsed_s": round(self.elapsed(), 3), **logs}
        if self._file is not None:
            append_rows(self._file, [line])
        return line

    def add_completions(self, step: int, rows: Mapping[str, list]) -> None:
        """Append completions of a step, all or a piece of them; `rows` maps column to values."""
        each = (dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True))
        with open_lines(self.record_dir / FILE) as file:
            append_rows(file, ({"step": step, **row} for row in each))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def elapsed(self) -> float:
        """Seconds trained, those before an interruption too."""
        return self._before + time.monotonic() - self._started


class RunRecorder(Recorder, TrainerCallback):
    """Records a training of ours, keeps `progress.json` current, and ends the training on request.

    A checkpoint counts only once `complete.json` stands in it, the last thing written: a kill or a power cut while it is being
    saved leaves one that `last_checkpoint` passes over. After `stop_request.request_stop` the training ends with
    `TrainingStopped`. The settings recorded are the trainer's; without one a recipe's are there already.
    """

    def __init__(self, record_dir: str | Path, trainer: Any = None):
        super().__init__(record_dir)
        self.trainer = trainer
        self._stop_reason: str | None = None  # why the training is to end

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any):
        trained = state.global_step >= state.max_steps
        if not trained and (reason := self._end_asked(args)):
            self._end(state, reason)
        if state.is_world_process_zero:
            go_on(self.record_dir)
            before = read_json(self.record_dir / "recipe.json", {}) if state.global_step else {}
            self.begin(state.global_step)
            if self.trainer is not None:
                self.describe_trainer(self.trainer)
                self._compare_rewards(before.get("reward_funcs"), state.global_step)
            resumed = Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE
            self._before = max(self._before, read_json(resumed, {}).get("elapsed_s", 0.0))  # the last log may be older
            self._progress(state)
        if trained:
            if self._file is not None:
                print(
                    f"{self.record_dir}: this training is finished ({state.max_steps} steps); nothing is trained again"
                )
            self.on_train_end(args, state, control)
            raise AllTrained

    def _compare_rewards(self, before: list | None, step: int) -> None:
        """Warn where a training goes on with another reward, or one of which not all can be compared."""
        now = read_json(self.record_dir / "recipe.json", {})["reward_funcs"]
        if before and (before != now or unseen_values(now)):
            other = (
                f"has {unseen_values(now)}: only types were compared" if before == now else f"was {before}, is {now}"
            )
            warn_user(f"{self.record_dir}: resumed after step {step}; its reward {other}")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any):
        if self._file is None or "train_runtime" in logs:  # the closing summary is not a step
            return
        line = self.log(state.global_step, logs)
        shown = not args.disable_tqdm  # the bar of transformers prints every log itself
        if not shown and state.global_step % max(1, state.max_steps // 10) == 0 and is_of_a_step(logs):
            numbers = [f"{k.rpartition('/')[2]} {line[k]:.3g}" for k in _PRINTED if line.get(k) is not None]
            at = f"step {state.global_step}/{state.max_steps}", f"{self.elapsed():.0f} s"
            print("  ".join([*at, *numbers]), flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any):
        if self._file is not None:
            self._progress(state)
        if state.global_step < state.max_steps and (reason := self._end_asked(args)):
            self._stop_reason = reason
            control.should_save = True  # and `on_save` ends the training

    def on_save(self, args: Any, state: Any, control: Any, **_: Any):
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and checkpoint.is_dir():  # a subclass may store elsewhere
            saved = {"step": state.global_step, "elapsed_s": round(self.elapsed(), 3)}
            records = [self.record_dir / name for name in ("metrics.jsonl", FILE)]
            sync(*(path for path in (*records, *checkpoint.rglob("*")) if path.is_file() and not path.is_symlink()))
            write_json(checkpoint / COMPLETE, saved, durable=True)
        if self._stop_reason:
            self._end(state, self._stop_reason)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any):
        if self._file is not None:
            self.close()
            self._progress(state, finished=True)

    def _end_asked(self, args: Any) -> str | None:
        """Rank 0 decides and broadcasts, so that all ranks stop together."""
        if args.world_size == 1:
            return stop_request(self.record_dir)
        return broadcast_object_list([stop_request(self.record_dir) if args.process_index == 0 else None])[0]

    def _end(self, state: Any, reason: str) -> None:
        text = f"stopped after step {state.global_step} of {state.max_steps}: {reason}"
        if state.is_world_process_zero:
            self.close()
            honour_stop(self.record_dir, text)
        raise TrainingStopped(text)

    def _progress(self, state: Any, finished: bool = False) -> None:
        progress = {"step": state.global_step, "max_steps": state.max_steps, "elapsed_s": round(self.elapsed(), 3)}
        write_json(self.record_dir / "progress.json", progress | {"finished": finished})


def trainer_settings(trainer: Any) -> dict:
    """The settings of a trainer, of TRL's or ours, in the shape that recipes are recorded in."""
    args = trainer.args
    recipe = {name: getattr(args, name, None) for name in _RECORDED}
    recipe |= {"backend": backend_of(args), "model": policy_of(trainer).config._name_or_path}
    if not several_turns(trainer):
        limits = (getattr(args, name, None) for name in ("max_completion_length", "max_new_tokens", "response_length"))
        recipe["max_completion_length"] = next((limit for limit in limits if limit is not None), None)
    rewards = getattr(trainer, "reward_funcs", None) or []  # an AsyncGRPOTrainer's are with its worker
    if not rewards and is_ppo(type(trainer)):
        rewards = [trainer.reward_model]
    options = {name: value for name in _OPTIONS if (value := getattr(args, name, None)) is not None}
    return {
        "trainer": type(trainer).__name__,
        "recipe": recipe,
        "reward_funcs": [describe_reward(reward) for reward in rewards],
        "stops": stops_of(trainer),
        "plain_prompts": has_plain_prompts(trainer),
        "overrides": {
            "mask_truncated_completions": getattr(args, "mask_truncated_completions", None),
            "reward_weights": getattr(args, "reward_weights", None),
            "explicit_positions": is_ppo(type(trainer)) or fills_position_ids(policy_of(trainer)),
            **json.loads(json.dumps(jsonable(options), default=str)),
        },
        "trl": trl.__version__,
    }


def check_steps(name: str, steps: Steps) -> None:
    """Refuse what names no steps."""
    numbers = steps if isinstance(steps, Collection) and not isinstance(steps, str) else [steps]
    if not numbers or not all(type(number) is int and number > 0 for number in numbers):
        raise ParameterError(
            f"{name}={steps!r}: expected step numbers from 1 on, or N for the first step and every N-th"
        )


def check_kept(trainer: Any) -> None:
    """Refuse to keep steps of a trainer whose loss takes more than rows with log-probs."""
    if (kind := kind_of(trainer)) in ("AsyncGRPO", "Distillation"):
        raise ParameterError(
            f"record_steps: files of steps hold the rows of GRPO or RLOO, and this trainer is {kind}; "
            "check_every checks its steps while it trains"
        )


def is_due(step: int, steps: Steps) -> bool:
    """Say whether a step is one of `steps`: numbers, or N for the first and every N-th.

    Example:
        >>> [step for step in range(1, 8) if is_due(step, 3)], is_due(2, [2, 9])
        ([1, 3, 6], True)
    """
    return step == 1 or step % steps == 0 if isinstance(steps, int) else step in steps


class StepRecorder(LiveCallback):
    """Keeps what the loss consumed of some steps, each in a file of the record; each process its own rows."""

    name = "recorder of steps"

    def __init__(self, trainer: Any, record_dir: str | Path, steps: Steps):
        check_steps("record_steps", steps)
        check_kept(trainer)
        super().__init__(trainer)
        self._kind, self._folder, self._steps = kind_of(trainer), Path(record_dir), steps
        self._record = StepRecord(losses=False)
        self._hooks = [StepListener(trainer, self._record, self.guarded).off]
        trainer.add_callback(self)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any):
        self._record.stale, self._record.reused, self._record.micro_batches = True, False, []
        self._record.losses = is_due(state.global_step + 1, self._steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any):
        if self._record.losses:
            self.guarded(self._write, state.global_step)
        self._record.losses = False

    def _write(self, number: int) -> None:
        trainer, record = self._trainer, self._record
        record.metrics = {name: list(values) for name, values in trainer._metrics["train"].items()}
        versions = {name: version(name) for name in ("trl", "transformers", "torch")}
        path = step_path(self._folder, number, trainer.accelerator.process_index)
        step = step_of(trainer, self._kind, record)
        size = save_step(path, number, step, tokenizer_of(trainer).decode, versions)
        say(f"step {number} is kept: {path} ({size / 1000:.0f} KB); see it with `workbench replay {path}`")


def check_record_dir(record_dir: str | Path | None, record_steps: Any = None) -> None:
    """Refuse a folder that cannot be made or written, or that holds files of somebody else which a record would replace."""
    if record_steps is not None:
        check_steps("record_steps", record_steps)
        if record_dir is None:
            raise ParameterError(f"record_steps={record_steps}: steps are saved in record_dir; set it too")
    if record_dir is None:
        return
    if not isinstance(record_dir, str | Path) or not str(record_dir):
        raise ParameterError(f"record_dir={record_dir!r}: expected the path of a folder")
    folder = Path(record_dir)
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        what = "cannot be written" if nearest.is_dir() else "is a file"
        raise ParameterError(f"record_dir={str(record_dir)!r}: {nearest} {what}; expected the path of a folder")
    names = ("recipe.json",) if has_weights(folder) else ("recipe.json", "config.json", "generation_config.json")
    taken = [name for name in names if (folder / name).exists()]
    if taken and not {"source", "recipe"} & set(read_json(folder / "recipe.json", {})):
        raise ParameterError(
            f"record_dir={str(record_dir)!r}: the record would replace {taken[0]} there; name another folder"
        )


def has_weights(folder: Path) -> bool:
    """Say whether a model is saved in a folder."""
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))


def attach_recorder(trainer: Any, record_dir: str | Path, record_steps: Any = None) -> RunRecorder:
    """Attach a recorder in place of transformers' printer of raw logs; it also keeps single steps whole for a replay."""
    recorder = RunRecorder(record_dir, trainer)
    if record_steps is not None:
        StepRecorder(trainer, record_dir, record_steps)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(recorder)
    return recorder
