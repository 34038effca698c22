"""What the package needs to know of a TRL trainer, its config and its rows."""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from accelerate.utils import gather_object
from transformers.trainer_utils import TrainOutput

from ..consistency.positions import fills_position_ids, with_position_ids
from ..errors import RunError, warn_user
from ..generation.stops import End, tokenizer_in

NO_TOKEN = -1
# What the record has of a completion; a reward function's `log_extra` cannot take these names.
OWN_COLUMNS = {"step", "prompt", "completion", "completion_text", "reward", "advantage"}
OWN_COLUMNS |= {"finish_reason", "trl_finish_reason", "engine_finish_reason", "completion_tokens", "sampled_tokens"}


class EndedRow(list):
    """A row of token ids that knows its `end`: its `[-1]` shows TRL an EOS exactly where the row stopped, else no token id.

    Iteration, length, slices and conversion to tensors give the real ids.

    Example:
        >>> row = EndedRow([5, 6, 9], End(3, 9, "stop"), eos_token_id=1)
        >>> row[-1], row[:], len(row)
        (1, [5, 6, 9], 3)
    """

    def __init__(self, ids: Sequence[int], end: End, eos_token_id: int):
        super().__init__(ids)
        self.end = end
        self._last = eos_token_id if end.finish_reason == "stop" else NO_TOKEN

    def __getitem__(self, index: Any):
        return self._last if index == -1 else super().__getitem__(index)


class EndError(RunError):
    """TRL does not read where rows end as `EndedRow` shows it."""


class EmptyRow(np.ndarray):
    """A row without tokens, of integers, where `torch.tensor([])` is of floats. `[-1]` shows that no EOS ended it."""

    def __new__(cls):
        return np.empty(0, np.int64).view(cls)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) or index == -1:
            return [] if isinstance(index, slice) else NO_TOKEN
        raise IndexError(index)


class AllTrained(Exception):
    """A training was resumed at its end."""


class TrainedOnce:
    """For a trainer with a recorder: resumed at its end it returns, where transformers may train a step more."""

    def train(self: Any, *args: Any, **kwargs: Any) -> TrainOutput:
        try:
            return super().train(*args, **kwargs)  # type: ignore[misc]  # transformers'
        except AllTrained:
            self.is_in_train = False  # transformers' own, which an evaluation asks
            return TrainOutput(self.state.global_step, 0.0, {})
        finally:
            if self.recorder:
                self.recorder.close()


def has_gpu() -> bool:
    """Whether torch sees a CUDA device."""
    return torch.cuda.is_available()


def tokenizer_of(trainer: Any):
    """The trainer's tokenizer; a processor has one inside."""
    return tokenizer_in(trainer.processing_class)


def policy_of(trainer: Any) -> Any:
    """The model that a trainer trains, without the wrappers of processes; PPO's stands next to a value model."""
    return trainer.accelerator.unwrap_model(getattr(trainer, "policy_model", trainer.model))


def is_ppo(trainer_class: type) -> bool:
    """Whether a class is TRL's PPO trainer or a child of it. Nothing is imported: one release of TRL has it."""
    return any(base.__module__ == "trl.experimental.ppo.ppo_trainer" for base in trainer_class.__mro__)


def is_of_a_step(logs: Mapping) -> bool:
    """Whether a log is that of training steps: not of an evaluation, and not the closing summary."""
    # a reward function may log a metric of its own named eval_...
    evaluation = any(name.startswith("eval_") and name.endswith("_runtime") for name in logs)
    return "train_runtime" not in logs and not evaluation


def several_turns(trainer: Any) -> bool:
    """Whether rows have turns, or come from the user's own sampler: then their limit is not known here."""
    return bool(getattr(trainer, "tools", None)) or getattr(trainer, "rollout_func", None) is not None


def eos_ids(trainer: Any) -> list[int]:
    """All ids at which a stock trainer's sampler stops: EOS of tokenizer and generation config, and those of its options."""
    options = getattr(trainer.args, "generation_kwargs", None) or {}
    values: tuple = tokenizer_of(trainer).eos_token_id, policy_of(trainer).generation_config.eos_token_id
    values += options.get("eos_token_id"), options.get("stop_token_ids")
    ids = [i for value in values for i in (value if isinstance(value, list | tuple) else [value])]
    return [i for i in dict.fromkeys(ids) if i is not None]


def trl_ends(trainer: Any) -> set[int | None]:
    """The ids that, as a row's last, end it for stock TRL: before 1.14.2 of several EOS ids the tokenizer's alone."""
    tokenizer = tokenizer_of(trainer)
    return {*(getattr(trainer, "eos_token_ids", None) or [tokenizer.eos_token_id]), tokenizer.pad_token_id}


@contextlib.contextmanager
def positions_filled(trainer: Any) -> Iterator[None]:
    """While open, every forward pass of the trainer's policy and reference gets position ids, if it is to pass them."""
    with contextlib.ExitStack() as hooks:
        for model in (trainer.model, getattr(trainer, "ref_model", None)) if trainer.explicit_positions else ():
            # Virtual tokens stand before the pads, which `generate` counts there.
            virtual = getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False)
            if isinstance(model, torch.nn.Module) and not (virtual or fills_position_ids(model)):
                hooks.enter_context(with_position_ids(model))
        yield


def end_columns(
    rows: Sequence[Sequence[int]],
    stopped: Sequence[bool] | None,
    for_trl: Collection[int | None],
    *,
    completion_tokens: Sequence[int] | None = None,
    sampled_tokens: Sequence[int] | None = None,
    engine: Sequence[str] | None = None,
) -> dict[str, list]:
    """What is recorded of each row's end: column -> B values; what is None is not known.

    Args:
        rows: B lists of token ids, up to and with the stop.
        stopped: whether each ended at a stop.
        for_trl: `trl_ends` of the trainer.
        completion_tokens: of the policy's own, where rows hold a tool's tokens too; default the rows' lengths.
        sampled_tokens: computed for each row.
        engine: the engine's finish reasons; other processes than a server's first have none.
    """
    columns: dict[str, list] = {}
    if stopped is not None:
        columns["finish_reason"] = ["stop" if s else "length" for s in stopped]
    columns["trl_finish_reason"] = ["stop" if len(ids) and ids[-1] in for_trl else "length" for ids in rows]
    columns["completion_tokens"] = [len(ids) for ids in rows] if completion_tokens is None else list(completion_tokens)
    if sampled_tokens is not None:
        columns["sampled_tokens"] = list(sampled_tokens)
    if engine is not None:
        columns["engine_finish_reason"] = list(engine) if len(engine) == len(rows) else [""] * len(rows)
    return columns


def completion_metrics(rows: Mapping[str, Sequence]) -> dict[str, float | None]:
    """What is logged of a batch's recorded columns next to TRL's own metrics.

    `stops/clipped_ratio` is the share truncated in truth, `stops/trl_clipped_ratio` in stock TRL's eyes, `stops/wasted` that
    of computed tokens after an end, where these are known, `completions/distinct` that of different texts, near 0 for a
    collapsed policy.

    Example:
        >>> completion_metrics({"completion": ["a", "a", "b", "c"]})
        {'completions/distinct': 0.75}
    """
    count = len(rows["completion"])
    metrics: dict[str, float | None] = {"completions/distinct": len(set(rows["completion"])) / count}
    for column, name in (("finish_reason", "clipped_ratio"), ("trl_finish_reason", "trl_clipped_ratio")):
        if column in rows:
            metrics[f"stops/{name}"] = sum(reason != "stop" for reason in rows[column]) / count
    if sampled := sum(rows.get("sampled_tokens", ())):
        metrics["stops/wasted"] = 1 - sum(rows["completion_tokens"]) / sampled
    return metrics


def add_reward_columns(columns: dict[str, list], rewards: dict[str, list]) -> dict[str, list]:
    """Columns of completions with one for each reward function; a name that is taken gets ` (function)`.

    Example:
        >>> add_reward_columns({"score": [2.0]}, {"score": [1.0], "words": [4], "step": [0.5]})
        {'score': [2.0], 'score (function)': [1.0], 'words': [4], 'step (function)': [0.5]}
    """
    taken = OWN_COLUMNS | columns.keys()
    return columns | {function_column(name, taken): values for name, values in rewards.items()}


def function_column(name: str, taken: Iterable[str] = frozenset(OWN_COLUMNS)) -> str:
    """The recorded name of a column that a reward function gave, which replaces none of the record's own."""
    return f"{name} (function)" if name in taken else name


def text_of(value: Any) -> str:
    """A text, or the contents of a conversation's messages, a line each; in the place of an image stands its kind."""
    if isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        return "\n".join(text_of(p.get("content", p.get("text", f"<{p.get('type')}>")) or "") for p in value)
    return str(value)


def complete_columns(columns: Mapping[str, Sequence], count: int) -> dict[str, list]:
    """The columns that have a value for each of `count` rows; a warning names the others, which a function logged in part.

    Example:
        >>> complete_columns({"words": (4, 2)}, 2)
        {'words': [4, 2]}
    """
    for name, values in columns.items():
        if len(values) != count:
            warn_user(f"log_extra({name!r}): {len(values)} values for {count} completions, so none is recorded")
    return {name: list(values) for name, values in columns.items() if len(values) == count}


def add_rows(trainer: Any, columns: dict[str, list], record: bool = True) -> dict[str, list]:
    """Return a batch's rows of all processes, column -> values; record them where the trainer has a recorder."""
    gathered = {name: gather_object(values) for name, values in columns.items()}
    rows = complete_columns(gathered, len(gathered["prompt"]))
    if record and trainer.recorder and trainer.accelerator.is_main_process:
        trainer.recorder.add_completions(trainer.state.global_step + 1, rows)
    return rows


class RecordsRows(TrainedOnce):
    """For GRPO and RLOO: notes rows while TRL scores them, logs `completion_metrics`, records the rows that are trained on.

    A subclass fills `_columns` when it has generated: column -> a value for each row of this process.
    """

    recorder: Any = None  # a `RunRecorder`
    _columns: Mapping[str, list] = {}
    _functions_columns: Mapping[str, list] = {}
    _rewards: Mapping[str, list] = {}

    def _log_completion_extra(self: Any, column: str, values: Sequence) -> None:
        """Note a reward function's `log_extra`, under a name that does not replace what is recorded anyway."""
        super()._log_completion_extra(column, list(values))  # type: ignore[misc]  # TRL's
        name = function_column(column)
        self._functions_columns = {**self._functions_columns, name: [*self._functions_columns.get(name, ()), *values]}

    def _note_rows(self: Any, prompts: Sequence, completions: Sequence, ids: Sequence, rewards: Any) -> None:
        """The rows of this process as they were scored, with the rewards that TRL has gathered of all processes."""
        first = self.accelerator.process_index * len(prompts)
        own = rewards[first : first + len(prompts)].T.tolist()
        self._rewards = dict(zip(self.reward_func_names, own, strict=True))
        texts = self._columns.get("completion_text") or [text_of(completion) for completion in completions]
        columns = {name: values for name, values in self._columns.items() if name != "completion_text"}
        self._columns = {"prompt": [text_of(prompt) for prompt in prompts], "completion": texts, **columns}

    def _generate_and_score_completions(self: Any, inputs: list):
        self._columns, self._functions_columns = {}, {}
        calculate = self._calculate_rewards  # of a subclass too, which may change the rewards or replace the method

        def noting(inputs: Any, prompts: Any, completions: Any, completion_ids_list: Sequence):
            rewards = calculate(inputs, prompts, completions, completion_ids_list)
            self._note_rows(prompts, completions, completion_ids_list, rewards)
            return rewards

        with mock.patch.object(self, "_calculate_rewards", noting):
            output = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        names = sorted(set(gather_object(list(self._functions_columns))))  # a function may log on one process alone
        logged = {name: self._functions_columns.get(name, [None] * len(inputs)) for name in names}
        columns = {**logged, **self._columns, "reward": weighted_sums(self, self._rewards)}
        columns = add_reward_columns(columns | {"advantage": output["advantages"].tolist()}, self._rewards)
        self._log(completion_metrics(add_rows(self, columns, record=self.model.training)))
        return output

    def _log(self: Any, numbers: dict[str, float | None]) -> None:
        """Into TRL's own log, which means them over a logged step and sends them to W&B, TensorBoard and the record."""
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, value in numbers.items():
            if value is not None:
                metrics[name].append(float(value))


def weighted_sums(trainer: Any, rewards: Mapping[str, list]) -> list[float]:
    """Each row's reward; no number where no function scored it."""
    weights = trainer.reward_weights.numpy(force=True)
    scores = np.array(list(rewards.values()), float).T
    if len(rewards) < len(weights):  # functions of one name share a column in TRL: their sum is not known
        scores = np.full((len(scores), 1), np.nan)
    unscorable = np.isnan(scores * weights).all(axis=1)
    return np.where(unscorable, np.nan, np.nansum(scores * weights, axis=1)).tolist()
