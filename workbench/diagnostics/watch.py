"""Watches anybody's GRPO or RLOO trainer while it trains: records its run into a folder, and changes nothing of it.

Only what TRL has computed anyway is read, after it was computed; no random number is drawn and other processes are not asked.
"""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import trl
from transformers import TrainerCallback

from ..errors import ParameterError
from ..generation.stops import trl_finish_reason
from ..runs.completions import TOKENS, append_table, save_tokens
from ..runs.files import json_lines, write_text
from ..training.engine import finish_reasons, hook, hook_requests
from ..training.recording import StepRecord, describe_trainer
from ..training.rewards import completion_text
from ..training.trl import eos_ids, is_of_a_step, logged_rewards, several_turns, tokenizer_of

_SHARE = 0.01  # of the training's time that writing and asking may take
_KEPT = 2000  # rows from the start, and as many from the end, that the rules are asked about


Generation = tuple[int, dict[str, list]]  # a step, and column -> values of the rows that were generated for it


class Watch(StepRecord, TrainerCallback):
    """Records a trainer's run into a folder as it trains.

    An error in here is told once and switches the watch off; the training goes on. What costs time, writing parts and asking
    `look`, waits until the watch has taken less than 1% of the training's time: on steps of some seconds it is done every
    step.

    Args:
        trainer: TRL's GRPO or RLOO trainer, or a child, before `train()`.
        out_dir: folder of the record.
        look: asked with the lines logged so far and the completions that are kept, of the first and the last steps; the
            lines that it returns are printed.
        tokens: also record ids and log-probs of tokens, of this process's rows, into `tokens/`.
        every: write and ask each so many steps, whatever it costs; None as above.

    Raises:
        ParameterError: another trainer, or `every` below 1.
    """

    def __init__(
        self,
        trainer,
        out_dir: Path,
        look: Callable[[list[dict], pd.DataFrame], Sequence[str]],
        *,
        tokens: bool = True,
        every: int | None = None,
    ):
        if not isinstance(trainer, trl.GRPOTrainer | trl.RLOOTrainer):
            raise ParameterError(
                f"trainer={type(trainer).__name__}: expected TRL's GRPOTrainer or RLOOTrainer, or a child"
            )
        if every is not None and every < 1:
            raise ParameterError(f"every={every}: expected at least 1 step, or None")
        super().__init__(out_dir)
        self.on = bool(trainer.accelerator.is_main_process)
        self.lines: list[dict] = []
        self._trainer, self._look, self._tokens, self._every = trainer, look, tokens, every
        self._pending: dict[str, list[Generation]] = {"": [], TOKENS: []}  # folder -> what is not written yet
        self._first: list[Generation] = []
        self._last: deque[Generation] = deque()
        self._spent = self._look_s = self._began = 0.0  # seconds: in here, of the last look, when the training began
        self._loaded = False
        self._hooks: list[Callable[[], None]] = []
        self._reasons: list[str] = []  # the engine's, of this generation
        self._generated: tuple = ()
        if self.on:
            self._guarded(self._install_hooks)
            trainer.add_callback(self)

    def off(self) -> None:
        """Stop watching; what was recorded stays."""
        self._guarded(self._flush)
        self.on = False
        for off in self._hooks:
            off()
        self._close()

    def _guarded(self, do: Callable, *args) -> None:
        """Do a part of the watching; an error ends the watch and not the run."""
        if not self.on:
            return
        start = time.perf_counter()
        try:
            do(*args)
        except Exception as error:  # whatever it is: the training is worth more than its record
            self.on = False
            self._say(f"the watch is off, the training goes on: {type(error).__name__}: {error}")
        self._spent += time.perf_counter() - start

    def _close(self) -> None:
        with contextlib.suppress(OSError):  # of a full disk, as was told at the line that did not fit
            super()._close()

    def _say(self, text: str) -> None:
        print(f"workbench: {' '.join(text.split())}", file=sys.stderr, flush=True)

    # --- what TRL computes ------------------------------------------------------------------------------------------

    def _install_hooks(self) -> None:
        self._hooks = [
            hook(self._trainer, "_generate", self._on_generate),
            hook(self._trainer, "_generate_and_score_completions", self._on_scored),
        ]
        if self._trainer.use_vllm:
            self._hooks.append(hook_requests(self._trainer.vllm_generation, self._on_engine))

    def _on_engine(self, original, *args, **kwargs):
        answer = original(*args, **kwargs)
        self._guarded(lambda: self._reasons.extend(finish_reasons(answer)))
        return answer

    def _on_generate(self, original, *args, **kwargs):
        self._reasons = []
        self._generated = original(*args, **kwargs)
        return self._generated

    def _on_scored(self, original, *args, **kwargs):
        scored = original(*args, **kwargs)
        if self._trainer.model.training:  # an evaluation is not recorded
            self._guarded(self._keep, scored)
        self._generated = ()
        return scored

    def _keep(self, scored: dict) -> None:
        """The rows of one generation, of all processes as TRL gathered them."""
        trainer, step = self._trainer, self._trainer.state.global_step + 1
        prompt_ids, completion_ids = ([list(ids) for ids in rows] for rows in self._generated[:2])
        columns: dict[str, list] = {
            name: [_text(value) for value in trainer._logs[name]] for name in ("prompt", "completion")
        }
        if len(completion_ids) == len(columns["prompt"]):  # else other processes have rows whose ids are not known here
            mask = self._generated[2] if len(self._generated) > 3 else None
            columns |= self._end_columns(completion_ids, mask)
        made = step, logged_rewards(trainer, columns)
        self._pending[""].append(made)
        if len(self._first) * len(columns["prompt"]) < _KEPT:
            self._first.append(made)
        else:
            self._last.append(made)
            if (len(self._last) - 1) * len(columns["prompt"]) >= _KEPT:
                self._last.popleft()
        if self._tokens:
            rows: dict[str, list] = {
                "row": list(range(len(completion_ids))),
                "prompt_ids": prompt_ids,
                "completion_ids": completion_ids,
            }
            sampled = getattr(trainer, "_sampled_ids", [])  # of the workbench's trainers: with what follows the end
            if len(sampled) == len(completion_ids) and getattr(trainer, "_ends", []):
                rows["sampled_ids"] = sampled
            self._pending[TOKENS].append((step, rows | _logprobs(scored, [len(ids) for ids in completion_ids])))

    def _end_columns(self, rows: list[list[int]], own: Sequence | None) -> dict[str, list]:
        """What is known of each row's end; of tools and rollout functions only what TRL takes it for."""
        trainer = self._trainer
        tokenizer = tokenizer_of(trainer)
        eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
        ends: dict[str, list] = {
            "completion_tokens": [len(ids) for ids in rows] if own is None else [sum(mask) for mask in own],
            "trl_finish_reason": [trl_finish_reason(ids, eos, pad) for ids in rows],
        }
        if several_turns(trainer):
            return ends
        if len(self._reasons) == len(rows):
            return ends | {"finish_reason": ["length" if r == "length" else "stop" for r in self._reasons]}
        limit, stops = trainer.args.max_completion_length, {eos, *eos_ids(trainer)}
        return ends | {"finish_reason": [finish_reason(ids, limit, stops, pad) for ids in rows]}

    # --- transformers' callbacks ------------------------------------------------------------------------------------

    def on_train_begin(self, args, state, control, **_):
        self._began, self._spent = time.perf_counter(), 0.0
        self._guarded(self._start, state.global_step)

    def on_log(self, args, state, control, logs=None, **_):
        if logs and is_of_a_step(logs):
            self._guarded(lambda: self.lines.append(self.log(state.global_step, logs)))

    def on_step_begin(self, args, state, control, **_):  # everything of the step before is there, its log too
        if not state.global_step:
            return
        if self._every is None:
            due = self._spent + self._look_s <= _SHARE * (time.perf_counter() - self._began)
        else:
            due = state.global_step % self._every == 0
        if due:
            before = self._spent
            self._guarded(self._write_and_look)
            self._look_s = self._spent - before
            if not self._loaded:  # the first time loads libraries, which no later one does
                self._loaded, self._spent, self._look_s = True, 0.0, 0.0

    def on_train_end(self, args, state, control, **_):
        self._guarded(self._write_and_look)
        self._close()

    def _start(self, step: int) -> None:
        self.begin(step)
        (self.out_dir / TOKENS).mkdir(exist_ok=True)
        self.lines = [row for _, row in json_lines(self.out_dir / "metrics.jsonl")]
        describe_trainer(self._trainer, self.out_dir)
        if self._tokens and (fast := getattr(tokenizer_of(self._trainer), "backend_tokenizer", None)) is not None:
            write_text(self.out_dir / TOKENS / "tokenizer.json", fast.to_str())  # to show ids as texts
        self._say(f"watching, recorded in {self.out_dir}")

    def _write_and_look(self) -> None:
        self._flush()
        if self.lines:
            for line in self._look(self.lines, _table([*self._first, *self._last])):
                self._say(line)

    def _flush(self) -> None:
        for folder, made in self._pending.items():
            if made:
                if folder == TOKENS:
                    save_tokens(self.out_dir, made[0][0], made[-1][0], _table(made))
                else:
                    append_table(self.out_dir, _table(made))
                made.clear()


def _table(made: Sequence[Generation]) -> pd.DataFrame:
    """All rows as one table; a column that a generation lacks is None there."""
    names = dict.fromkeys(name for _, rows in made for name in rows)
    columns: dict[str, list] = {"step": [], **{name: [] for name in names}}
    for step, rows in made:
        count = len(next(iter(rows.values())))
        columns["step"] += [step] * count
        for name in names:
            columns[name] += rows.get(name) or [None] * count
    return pd.DataFrame(columns)


def finish_reason(ids: Sequence[int], limit: int, stops: set[int], pad: int) -> str:
    """`stop` or `length`, of a row that `generate` of transformers sampled: pads follow a row that ended before others.

    Example:
        >>> [finish_reason(ids, 4, {7}, 0) for ids in ([5, 6, 5, 6], [5, 6, 5, 7], [5, 9, 0, 0], [5, 9])]
        ['length', 'stop', 'stop', 'stop']
    """
    ended = len(ids) < limit or ids[-1] == pad or ids[-1] in stops
    return "stop" if ended else "length"


def _text(value) -> str:
    """A text, or of a conversation the last message, as the audit reads them."""
    return str(completion_text(value)) if value else ""


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
