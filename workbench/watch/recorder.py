"""Watches anybody's GRPO or RLOO trainer while it trains: records its run into a folder, and changes nothing of it.

Read-only: it uses values that TRL has already computed, draws no random number and communicates with no other process.
"""

import contextlib
import dataclasses
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..errors import ParameterError, warn_user
from ..generation.preflight import backend_of, check_generation_kwargs
from ..generation.stops import End
from ..replay.report import StepReport
from ..runs.completions import TOKENS, save_tokens
from ..runs.files import json_lines, write_text
from ..training.callback import LiveCallback, say
from ..training.engine import finish_reasons, hook, hook_requests
from ..training.record_async import RowsTap, TakenRow
from ..training.recording import Recorder
from ..training.rows import (
    Generation,
    add_reward_columns,
    complete_columns,
    eos_ids,
    function_column,
    is_of_a_step,
    several_turns,
    stopped_for_trl,
    text_of,
    tokenizer_of,
    weighted_sums,
)
from ..training.step_numbers import KINDS, kind_of
from ..training.updates import warn_before_training

_KEPT = 2000  # rows from the start, and as many from the end, that the rules see


StepRows = tuple[int, dict[str, list]]  # a step, and column -> values of the rows that were generated for it


class Watch(LiveCallback):
    """Records a stock trainer's run into a folder, from what TRL has computed; it changes no number of the run.

    Writing and calling `look` are put off while they would take more than 1% of the training's time; where a step takes
    seconds they happen at every step.

    Args:
        look: called with the lines logged so far and the completions of the first and the last steps; the lines that it
            returns are printed.
        tokens: also record ids and log-probs of tokens, of this process's rows, into `tokens/`.
        every: steps between two calls, whatever they cost; None as above.
    """

    name = "watch"

    def __init__(
        self,
        trainer: Any,
        record_dir: Path,
        look: Callable[[list[dict], pd.DataFrame], Sequence[str]],
        *,
        tokens: bool = True,
        every: int | None = None,
    ):
        super().__init__(trainer, every)
        self.recorder = Recorder(record_dir, "workbench" if hasattr(trainer, "stop_rule") else "watched")
        self.on = bool(trainer.accelerator.is_main_process)
        self.lines: list[dict] = []
        self.reports: dict[int, StepReport] = {}  # step -> what the check before it found
        self.others: list[LiveCallback] = []  # what watches with it, and ends with it
        self._look, self._tokens = look, tokens
        self._rows: list[StepRows] = []  # not written yet
        self._token_rows: list[StepRows] = []
        self._first: list[StepRows] = []
        self._last: deque[StepRows] = deque()
        self._look_s, self._loaded = 0.0, False
        self._reasons: list[str] = []  # the engine's, of this generation
        self._generated: tuple = ()
        self._prompts: Sequence = ()  # of a distillation's generation
        self._tap: RowsTap | None = None  # of a trainer that takes its rows from a queue
        self._extra: Counter[str] = Counter()  # values that reward functions logged of this generation, by column
        if self.on:
            self.guarded(self._install_hooks)
            self.guarded(self._check_settings)
            trainer.add_callback(self)

    def detach(self) -> None:
        """Watch no more; what was recorded stays."""
        self.guarded(self._flush)
        super().detach()
        self._close()
        for other in self.others:
            other.detach()

    def _close(self) -> None:
        with contextlib.suppress(OSError):  # of a full disk, which was said at the line that did not fit
            self.recorder.close()

    def _install_hooks(self) -> None:
        self._kind = kind_of(self._trainer)
        if self._kind == "AsyncGRPO":
            self._tap = RowsTap(self._trainer, self.guarded)
            self._hooks = [self._tap.off, hook(self._trainer, "get_batch_samples", self._on_batches)]
            return
        self._hooks = [
            hook(self._trainer, "_generate", self._on_generate),
            hook(self._trainer, "_generate_and_score_completions", self._on_scored),
        ]
        if hasattr(self._trainer, "_log_completion_extra"):
            self._hooks.append(hook(self._trainer, "_log_completion_extra", self._on_extra))
        if self._trainer.use_vllm:
            self._hooks.append(hook_requests(self._trainer.vllm_generation, self._on_engine))

    def _check_settings(self) -> None:
        """Warn of what no back end takes, which TRL mostly ignores without an error; a trainer of ours has said it."""
        if hasattr(self._trainer, "stop_rule"):
            return
        warn_before_training(self._trainer)
        backend = backend_of(self._trainer.args)
        try:
            check_generation_kwargs(getattr(self._trainer.args, "generation_kwargs", None) or {}, backend)
        except ParameterError as error:
            then = (
                "vLLM raises an error at the first step"
                if backend == "vllm"
                else "TRL ignores the option, without an error"
            )
            warn_user(f"{error}. {then}.")

    def _on_engine(self, original: Callable, *args: Any, **kwargs: Any):
        answer = original(*args, **kwargs)
        self.guarded(lambda: self._reasons.extend(finish_reasons(answer)))
        return answer

    def _on_batches(self, original: Callable, *args: Any, **kwargs: Any):
        """Record the rows of the update that the loop has just collected."""
        result = original(*args, **kwargs)
        self.guarded(self._keep_taken, *result)
        return result

    def _keep_taken(self, batches: Sequence, items: Any) -> None:
        update = self._tap.update(batches, items) if self._tap is not None else None
        rows = [row for batch in update.batches for row in batch.rows] if update is not None else []
        if not rows:
            return
        step = self._trainer.state.global_step + 1
        self._add((step, taken_columns(rows)), len(rows))
        if self._tokens:
            self._token_rows.append((step, taken_tokens(rows)))

    def _on_generate(self, original: Callable, *args: Any, **kwargs: Any):
        self._reasons, self._extra = [], Counter()
        self._prompts = args[0] if args else ()
        self._generated = original(*args, **kwargs)
        return self._generated

    def _on_extra(self, original: Callable, column: str, values: Sequence):
        values = list(values)
        self._extra[column] += len(values)
        return original(column, values)

    def _on_scored(self, original: Callable, *args: Any, **kwargs: Any):
        scored = original(*args, **kwargs)
        if self._trainer.model.training:  # an evaluation is not recorded
            self.guarded(self._keep, scored)
        self._generated = ()
        return scored

    def _keep(self, scored: dict) -> None:
        """The rows of one generation, of all processes as TRL gathered them."""
        trainer, step = self._trainer, self._trainer.state.global_step + 1
        prompt_ids, completion_ids = ([list(map(int, ids)) for ids in rows] for rows in self._generated[:2])
        distills = self._kind == "Distillation"  # it logs no completions and gathers none
        count, ends = len(completion_ids) if distills else len(trainer._logs["prompt"]), dict[str, list]()
        if len(completion_ids) == count:  # else other processes have rows whose ids are not known here
            ends = self._end_columns(completion_ids, self._generated[2] if len(self._generated) > 3 else None)
        processes = trainer.accelerator.num_processes
        if distills:
            texts = [tokenizer_of(trainer).decode(ids, skip_special_tokens=True) for ids in completion_ids]
            rows = {"prompt": [text_of(prompt) for prompt in self._prompts], "completion": texts} | ends
        else:
            rows = logged_rows(trainer, ends, {name: n * processes for name, n in self._extra.items()})
        self._add((step, rows), count)
        if self._tokens:
            rows = token_columns(trainer, prompt_ids, completion_ids)
            self._token_rows.append((step, rows | _logprobs(scored, [len(ids) for ids in completion_ids])))

    def _add(self, generation: tuple[int, dict[str, list]], count: int) -> None:
        """Keep the rows of a generation until they are written, and those of the first and last ones for the rules."""
        self._rows.append(generation)
        if len(self._first) * count < _KEPT:
            self._first.append(generation)
        else:
            self._last.append(generation)
            if (len(self._last) - 1) * count >= _KEPT:
                self._last.popleft()

    def _end_columns(self, rows: list[list[int]], own_tokens: Sequence | None) -> dict[str, list]:
        """The known facts of each row's end. Of rows that TRL did not sample in one turn this is only what TRL takes it for."""
        trainer = self._trainer
        if getattr(trainer, "stop_rule", None) is not None and trainer.generation.rows == rows:
            generation = trainer.generation  # a workbench trainer knows, of rows that a child replaced too
        else:
            generation = Generation(rows=rows, ends=self._ends(rows), trl_stopped=stopped_for_trl(trainer, rows))
        return dataclasses.replace(generation, own_tokens=own_tokens).end_columns()

    def _ends(self, rows: list[list[int]]) -> list[End] | None:
        """Return where a stock trainer's rows ended, by the engine or by their lengths; None where neither says so."""
        trainer = self._trainer
        if not samples_as_trl(trainer):
            return None
        limit, stops, pad = limit_of(trainer.args, rows), set(eos_ids(trainer)), tokenizer_of(trainer).pad_token_id
        if len(self._reasons) == len(rows):
            stopped = [reason != "length" for reason in self._reasons]
        elif limit is not None:
            stopped = [has_stopped(ids, limit, stops, pad) for ids in rows]
        else:
            return None
        return [End(len(ids), None, "stop" if s else "length") for ids, s in zip(rows, stopped, strict=True)]

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any):
        self._began, self.seconds = time.monotonic(), 0.0
        self.guarded(self._start, state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any):
        if logs and is_of_a_step(logs):
            self.guarded(lambda: self.lines.append(self.recorder.log(state.global_step, logs)))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any):
        step = state.global_step
        if step and (self.affordable(self._look_s) if self._every is None else step % self._every == 0):
            before = self.seconds
            self.guarded(self._write_and_look)
            self._look_s = self.seconds - before
            if not self._loaded:  # the first time loads libraries, which no later one does
                self._loaded, self.seconds, self._look_s = True, 0.0, 0.0

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any):
        self.guarded(self._write_and_look)
        self._close()

    def _start(self, step: int) -> None:
        record = self.recorder
        record.begin(step)
        (record.record_dir / TOKENS).mkdir(exist_ok=True)
        self.lines = [row for _, row in json_lines(record.record_dir / "metrics.jsonl")]
        record.describe_trainer(self._trainer)
        if self._tokens and (fast := getattr(tokenizer_of(self._trainer), "backend_tokenizer", None)) is not None:
            write_text(record.record_dir / TOKENS / "tokenizer.json", fast.to_str())  # to show ids as texts
        say(f"watching, recorded in {record.record_dir}")

    def _write_and_look(self) -> None:
        self._flush()
        if self.lines:
            for line in self._look(self.lines, _table([*self._first, *self._last])):
                say(line)

    def _flush(self) -> None:
        for step, rows in self._rows:
            self.recorder.add_completions(step, rows)
        if self._token_rows:
            steps = [step for step, _ in self._token_rows]
            save_tokens(self.recorder.record_dir, steps[0], steps[-1], _table(self._token_rows))
        self._rows, self._token_rows = [], []


def taken_columns(rows: Sequence[TakenRow]) -> dict[str, list]:
    """The rows that an AsyncGRPOTrainer took from its queue for one update, as columns of completions."""
    samples = [row.sample for row in rows]
    names = dict.fromkeys(name for sample in samples for name in sample.metrics if name.startswith("rewards/"))
    rewards = {name.removeprefix("rewards/"): [sample.metrics.get(name) for sample in samples] for name in names}
    columns: dict[str, list] = {
        "prompt": [text_of(sample.prompt) for sample in samples],
        "completion": [text_of(sample.completion) for sample in samples],
        "completion_tokens": [int(np.sum(sample.completion_mask)) for sample in samples],
        "group": [sample.group_id for sample in samples],
        "staleness": [row.staleness for row in rows],
        "reward": [sample.metrics.get("reward") for sample in samples],
        "advantage": [sample.advantage for sample in samples],
    }
    return add_reward_columns(columns, rewards)


def taken_tokens(rows: Sequence[TakenRow]) -> dict[str, list]:
    """Their tokens: a completion begins at the first token that trains, with the tokens of tools in it."""
    starts = [max(1, int(np.argmax(row.sample.completion_mask))) for row in rows]
    pairs = [*zip((row.sample for row in rows), starts, strict=True)]
    return {
        "row": list(range(len(rows))),
        "prompt_ids": [sample.input_ids[:start].tolist() for sample, start in pairs],
        "completion_ids": [sample.input_ids[start:].tolist() for sample, start in pairs],
        "sampler_logprobs": [np.asarray(sample.old_log_probs[start:], dtype=np.float32) for sample, start in pairs],
    }


def _table(made: Sequence[StepRows]) -> pd.DataFrame:
    """All rows as one table; a column that a generation lacks is None there."""
    names = dict.fromkeys(name for _, rows in made for name in rows)
    columns: dict[str, list] = {"step": [], **{name: [] for name in names}}
    for step, rows in made:
        count = len(next(iter(rows.values())))
        columns["step"] += [step] * count
        for name in names:
            columns[name] += rows.get(name) or [None] * count
    return pd.DataFrame(columns)


def limit_of(args: Any, rows: Sequence[Sequence[int]]) -> int | None:
    """The length at which transformers' `generate` cut these rows, as `generation_kwargs` may say; None where it is not known.

    Where time is the limit the longest rows were cut, unless a stop string ended them.
    """
    options = args.generation_kwargs or {}
    limit = options.get("max_new_tokens", args.max_completion_length)
    if limit is None or "max_time" in options:
        return None if options.get("stop_strings") else max(map(len, rows))
    return limit


def logged_rows(trainer: Any, ends: dict[str, list], extra: Mapping[str, int]) -> dict[str, list]:
    """The rows of a trainer's last generation, as TRL's GRPO or RLOO gathered them over all processes.

    Args:
        trainer: stock, so that nothing of ours has noted its rows.
        ends: columns of `Generation.end_columns`, one value for each row.
        extra: how many values reward functions logged of this generation, by column; TRL keeps those of earlier ones too.
    """
    logs = trainer._logs
    logged = {function_column(name): list(logs["extra"][name])[-count:] for name, count in extra.items() if count}
    columns = {name: [text_of(value) for value in logs[name]] for name in ("prompt", "completion")}
    columns = complete_columns(logged, len(logs["prompt"])) | columns | ends
    rewards = {name: list(values) for name, values in logs["rewards"].items()}
    own = {"reward": weighted_sums(trainer, rewards), "advantage": list(logs["advantages"])}
    return add_reward_columns(columns | own, rewards)


def samples_as_trl(trainer: Any) -> bool:
    """True where TRL itself samples the rows in one turn. The lengths of a child's own rows do not say how they ended."""
    base = next(each for each in type(trainer).__mro__ if each.__module__ in KINDS)
    methods = ("_generate", "_generate_single_turn")
    return not several_turns(trainer) and all(getattr(type(trainer), name) is getattr(base, name) for name in methods)


def has_stopped(ids: Sequence[int], limit: int, stops: set[int], pad: int) -> bool:
    """Say whether a row that transformers' `generate` sampled stopped: pads follow one that ended before others.

    Example:
        >>> [has_stopped(ids, 4, {7}, 0) for ids in ([5, 6, 5, 6], [5, 6, 5, 7], [5, 9, 0, 0], [5, 9])]
        [False, True, True, True]
    """
    return len(ids) < limit or ids[-1] == pad or ids[-1] in stops


def token_columns(trainer: Any, prompt_ids: list, completion_ids: list) -> dict[str, list]:
    """The ids of B rows; of a workbench trainer also `sampled_ids`, with what follows each end."""
    columns = {"row": list(range(len(completion_ids))), "prompt_ids": prompt_ids, "completion_ids": completion_ids}
    sampled = getattr(trainer, "sampled_ids", ())
    return columns | ({"sampled_ids": list(sampled)} if len(sampled) == len(completion_ids) else {})


def _logprobs(scored: dict, lengths: Sequence[int]) -> dict[str, list]:
    """Log-probs of each row's tokens under sampler and scorer, where the trainer has them: B rows of float32.

    Of a row that is left out of the loss the scorer has none: TRL hides it from the attention too.
    """
    found: dict[str, list] = {}
    seen = scored["completion_mask"].any(dim=1).tolist()
    scorer_lengths = [length * sees for length, sees in zip(lengths, seen, strict=True)]
    for column, name, known in (
        ("sampler_logprobs", "sampling_per_token_logps", lengths),
        ("scorer_logprobs", "old_per_token_logps", scorer_lengths),
    ):
        if scored.get(name) is not None:
            table = scored[name].float().numpy(force=True)
            found[column] = [np.array(row[:length]) for row, length in zip(table, known, strict=True)]
    return found
