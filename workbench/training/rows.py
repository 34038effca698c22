"""What the package needs to know of a TRL trainer, its config and its rows."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """Say whether torch sees a CUDA device."""
    return torch.cuda.is_available()


def tokenizer_of(trainer: Any):
    """The trainer's tokenizer; a processor has one inside."""
    return tokenizer_in(trainer.processing_class)


def policy_of(trainer: Any) -> Any:
    """The model that a trainer trains, without the wrappers of processes; PPO's stands next to a value model."""
    return trainer.accelerator.unwrap_model(getattr(trainer, "policy_model", trainer.model))


def is_ppo(trainer_class: type) -> bool:
    """Say whether a class is TRL's PPO trainer or a child of it. Nothing is imported: one release of TRL has it."""
    return any(base.__module__ == "trl.experimental.ppo.ppo_trainer" for base in trainer_class.__mro__)


def is_of_a_step(logs: Mapping) -> bool:
    """Say whether a log is that of training steps: not of an evaluation, and not the closing summary."""
    # a reward function may log a metric of its own named eval_...
    evaluation = any(name.startswith("eval_") and name.endswith("_runtime") for name in logs)
    return "train_runtime" not in logs and not evaluation


def several_turns(trainer: Any) -> bool:
    """Say whether rows have turns, or come from the user's own sampler: then their limit is not known here."""
    return bool(getattr(trainer, "tools", None)) or getattr(trainer, "rollout_func", None) is not None


def eos_ids(trainer: Any) -> list[int]:
    """All ids at which a stock trainer's sampler stops: EOS of tokenizer and generation config, and those of its options."""
    options = getattr(trainer.args, "generation_kwargs", None) or {}
    values: tuple = tokenizer_of(trainer).eos_token_id, policy_of(trainer).generation_config.eos_token_id
    values += options.get("eos_token_id"), options.get("stop_token_ids")
    if not getattr(trainer.args, "use_vllm", False):  # else nothing samples with it
        values += (getattr(getattr(trainer, "generation_config", None), "eos_token_id", None),)
    ids = [i for value in values for i in (value if isinstance(value, list | tuple) else [value])]
    return [i for i in dict.fromkeys(ids) if i is not None]


def stops_of(trainer: Any) -> dict:
    """Strings and ids at which this trainer's sampler stops, apart from the EOS of model and tokenizer."""
    if (rule := getattr(trainer, "stop_rule", None)) is not None:
        return dataclasses.asdict(rule.spec)
    options = getattr(trainer.args, "generation_kwargs", None) or {}
    strings = options.get("stop") or options.get("stop_strings") or []
    strings = [strings] if isinstance(strings, str) else list(strings)
    least = options.get("min_tokens") or options.get("min_new_tokens") or 0
    eos = policy_of(trainer).generation_config.eos_token_id
    known = {tokenizer_of(trainer).eos_token_id, *(eos if isinstance(eos, list | tuple) else [eos])}
    return {"stop": strings, "stop_token_ids": sorted(set(eos_ids(trainer)) - known), "min_tokens": least}


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


def stopped_for_trl(trainer: Any, rows: Sequence[Sequence[int]]) -> list[bool]:
    """For each of B plain rows, True where stock TRL takes it for stopped, by the last id."""
    ends = trl_ends(trainer)
    return [len(ids) > 0 and int(ids[-1]) in ends for ids in rows]  # a subclass may have tensors


@dataclasses.dataclass(frozen=True)
class Generation:
    """One generation of this process: B completions, and what is known of each. What is left empty is not known.

    A trainer's `_generate` makes it, and the scoring adds prompts, rewards and what functions logged. Each of these makes a new
    one, so one that somebody holds does not change.

    Attributes:
        rows: B lists of token ids, up to and with the stop; a tool's answers are among them.
        ends: where each row ended; None where that is not known.
        trl_stopped: whether stock TRL takes each row for one that stopped.
        texts: B texts, as they are recorded.
        own_tokens: B masks, 1 for the policy's own tokens and 0 for a tool's; None where all are the policy's.
        sampled: B lists of token ids, with what follows each end; empty where rows had several turns.
        engine_reasons: the engine's finish reasons; other processes than a server's first have none. None without an engine.
        prompts: B texts, as they are recorded.
        rewards: name of a reward function -> B values, NaN where it gave none.
        logged: column -> values that reward functions gave to `log_extra`.

    Example:
        >>> rows, ends = [[5, 6], [5, 7]], [End(2, 6, "stop"), End(2, None, "length")]
        >>> Generation(rows, ends, trl_stopped=[False, False], own_tokens=[[1, 1], [0, 1]]).end_columns()
        {'finish_reason': ['stop', 'length'], 'trl_finish_reason': ['length', 'length'], 'completion_tokens': [2, 1]}
        >>> Generation(rows, None, trl_stopped=[True, False]).end_columns()
        {'trl_finish_reason': ['stop', 'length'], 'completion_tokens': [2, 2]}
    """

    rows: Sequence[Sequence[int]] = ()
    ends: Sequence[End] | None = None
    trl_stopped: Sequence[bool] = ()
    texts: Sequence[str] = ()
    own_tokens: Sequence[Sequence[int]] | None = None
    sampled: Sequence[Sequence[int]] = ()
    engine_reasons: Sequence[str] | None = None
    prompts: Sequence[str] = ()
    rewards: Mapping[str, list] = dataclasses.field(default_factory=dict)
    logged: Mapping[str, list] = dataclasses.field(default_factory=dict)

    def end_columns(self) -> dict[str, list]:
        """The recorded facts of each row's end: column -> B values. A fact that is not known has no column."""
        columns: dict[str, list] = {}
        if not self.rows:
            return columns
        if self.ends is not None:
            columns["finish_reason"] = [end.finish_reason for end in self.ends]
        columns["trl_finish_reason"] = ["stop" if stopped else "length" for stopped in self.trl_stopped]
        if self.own_tokens is None:
            columns["completion_tokens"] = [len(ids) for ids in self.rows]
        else:
            columns["completion_tokens"] = [int(sum(mask)) for mask in self.own_tokens]
        if self.sampled:
            columns["sampled_tokens"] = [len(ids) for ids in self.sampled]
        if self.engine_reasons is not None:
            complete = len(self.engine_reasons) == len(self.rows)
            columns["engine_finish_reason"] = list(self.engine_reasons) if complete else [""] * len(self.rows)
        return columns

    def columns(self) -> dict[str, list]:
        """The recorded columns of each completion apart from rewards: column -> B values."""
        return {"prompt": list(self.prompts), "completion": list(self.texts), **self.end_columns()}


def completion_metrics(rows: Mapping[str, Sequence]) -> dict[str, float]:
    """Return what is logged of a batch's recorded columns next to TRL's own metrics.

    `stops/clipped_ratio` is the share truncated in truth, `stops/trl_clipped_ratio` in stock TRL's eyes, `stops/wasted` that
    of computed tokens after an end, where these are known, `completions/distinct` that of different texts, near 0 for a
    collapsed policy.

    Example:
        >>> completion_metrics({"completion": ["a", "a", "b", "c"]})
        {'completions/distinct': 0.75}
    """
    count = len(rows["completion"])
    metrics = {"completions/distinct": len(set(rows["completion"])) / count}
    for column, name in (("finish_reason", "clipped_ratio"), ("trl_finish_reason", "trl_clipped_ratio")):
        if column in rows:
            metrics[f"stops/{name}"] = sum(reason != "stop" for reason in rows[column]) / count
    if sampled := sum(rows.get("sampled_tokens", ())):
        metrics["stops/wasted"] = 1 - sum(rows["completion_tokens"]) / sampled
    return metrics


def add_reward_columns(columns: dict[str, list], rewards: Mapping[str, list]) -> dict[str, list]:
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

    A subclass says in `generation` what it knows of the rows when it has generated.
    """

    recorder: Any = None  # a `RunRecorder`
    generation = Generation()  # the last one

    def _log_completion_extra(self: Any, column: str, values: Sequence) -> None:
        """Note a reward function's `log_extra`, under a name that does not replace what is recorded anyway."""
        values = list(values)  # an iterator can be read once
        super()._log_completion_extra(column, values)  # type: ignore[misc]  # TRL's
        logged, name = self.generation.logged, function_column(column)
        logged = {**logged, name: [*logged.get(name, ()), *values]}
        self.generation = dataclasses.replace(self.generation, logged=logged)

    def _scored_generation(self: Any, rows: Sequence, completions: Sequence) -> Generation:
        """The generation whose rows are being scored."""
        return self.generation

    def _note_scores(self: Any, prompts: Sequence[str], completions: Sequence, ids: Sequence, rewards: Any) -> None:
        """Note prompts, texts and rewards of this process's rows; `rewards` (N, F) are those of all processes."""
        first = self.accelerator.process_index * len(prompts)
        own = rewards[first : first + len(prompts)].T.tolist()
        generation = self._scored_generation(ids, completions)
        self.generation = dataclasses.replace(
            generation,
            prompts=prompts,
            texts=generation.texts or [text_of(completion) for completion in completions],
            rewards=dict(zip(self.reward_func_names, own, strict=True)),
        )

    def _generate_and_score_completions(self: Any, inputs: list):
        self.generation = Generation()
        calculate = self._calculate_rewards  # of a subclass too, which may change the rewards or replace the method

        def noting(inputs: Any, prompts: Any, completions: Any, completion_ids_list: Sequence):
            plain = [ids[:] for ids in completion_ids_list]  # a child that scores itself reads the real last token
            asked = [text_of(prompt) for prompt in prompts]  # a reward function may write into the messages
            rewards = calculate(inputs, prompts, completions, plain)
            self._note_scores(asked, completions, completion_ids_list, rewards)
            return rewards

        with mock.patch.object(self, "_calculate_rewards", noting):
            output = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        generation = self.generation
        names = sorted(set(gather_object(list(generation.logged))))  # a function may log on one process alone
        logged = {name: generation.logged.get(name, [None] * len(inputs)) for name in names}
        columns = {**logged, **generation.columns(), "reward": weighted_sums(self, generation.rewards)}
        columns = add_reward_columns(columns | {"advantage": output["advantages"].tolist()}, generation.rewards)
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
