"""TRL 1.12.0's PPOTrainer that stops generating where the `StopSpec` says, learns from reward functions too, and
records its run.

TRL's `train` is one long method without hooks. It calls module functions, of which three are replaced while it runs, so
everything else is TRL's own code.
"""

import contextlib
import gc
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers import DataCollatorWithPadding
from trl.trainer.utils import pad, selective_log_softmax

from ..errors import MissingDependencyError, ParameterError
from ..generation.stops import StopRule, Stops, StopSpec
from ..trl_release import LAST_WITH_PPO
from .grpo import finish_trainer
from .ppo_rewards import NotifyingLoader, RewardFunctions, SplitColumnsCollator
from .recording import check_record_dir
from .rows import Generation, add_reward_columns, add_rows, completion_metrics

try:
    with mock.patch.dict(os.environ, TRL_EXPERIMENTAL_SILENCE="1"):  # PPO's release is known
        from trl.experimental.ppo import PPOConfig, ppo_trainer
except ImportError as error:
    raise MissingDependencyError(
        f"PPOTrainer: trl {version('trl')} has no PPO, which TRL removed in 1.13; call workbench.use_trl('{LAST_WITH_PPO}') "
        f"first ({error})"
    ) from error


class PPOTrainer(ppo_trainer.PPOTrainer):
    """`trl.experimental.ppo.PPOTrainer` with early stopping by default.

    In addition to stock TRL it takes several stops, strings among them, and reward functions in place of a reward model.
    The missing-EOS penalty applies to completions that no configured stop ended (stock TRL looks for EOS alone, trl #3750).
    The saved policy keeps its EOS (stock TRL writes None into the generation config). Rewards and values have the same
    index as in a run that is padded to the limit. The old log-probs come from the policy's own logits, so the first ratio
    is 1 with `min_tokens` and with a repetition penalty, too.

    Args:
        args, processing_class, model, ...: TRL's. Leave `args.stop_token` and `args.stop_token_id` unset: give `stops`.
        reward_model: TRL's, None where there are reward functions.
        reward_funcs: one reward function or several in the convention of TRL's GRPO, in place of a reward model. They get
            `prompts`, `completions`, `completion_ids`, `trainer_state` and the other columns of the data set.
        reward_weights: a factor for each function; default 1.
        stops: when a completion ends. TRL's default is that every completion runs to the limit: `StopSpec.never()`.
        record_dir: run folder to record into.

    Attributes:
        reward_funcs: the user's own objects; without reward functions there is no such attribute.
        forwards: policy forward passes spent on generation, one number per update.

    Raises:
        ParameterError: right padding, no pad token of its own, TRL's `stop_token`, no reward or two kinds, unfit stops, fewer
            prompts than an update takes.
    """

    recorder: Any = None  # a `RunRecorder`
    # `args.missing_eos_penalty`, from where it is applied here to where TRL has passed its own.
    _withheld: float | None = None
    dataloader: Any
    eval_dataloader: Any

    def __init__(
        self,
        args: PPOConfig,
        processing_class: Any,
        model: Any,
        ref_model: Any = None,
        reward_model: Any = None,
        train_dataset: Any = None,
        value_model: Any = None,
        data_collator: Any = None,
        eval_dataset: Any = None,
        optimizers: tuple = (None, None),
        callbacks: list | None = None,
        peft_config: Any = None,
        *,
        reward_funcs: Any = None,
        reward_weights: Sequence[float] | None = None,
        stops: Stops = None,
        record_dir: str | Path | None = None,
    ):
        spec = StopSpec.of(stops)
        check_record_dir(record_dir)
        self._functions = _functions(reward_model, reward_funcs, reward_weights)
        if self._functions and (args.deepspeed or os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"):
            raise ParameterError(
                "reward_funcs with DeepSpeed: TRL's PPO prepares the reward model with it, and functions are no model. Give a "
                "reward_model, or train without DeepSpeed"
            )
        if args.stop_token is not None or args.stop_token_id is not None:
            raise ParameterError("stop_token and stop_token_id: leave both unset and give stops=StopSpec(...)")
        if processing_class.padding_side != "left":
            raise ParameterError(
                "padding_side='right': PPO writes behind the prompt; set padding_side='left' in the tokenizer"
            )
        self._eos_rule = StopRule(StopSpec(), processing_class, model.generation_config)
        pad_id, eos_ids = processing_class.pad_token_id, self._eos_rule.eos_ids
        if pad_id is None or pad_id in eos_ids:
            raise ParameterError(
                f"pad token id {pad_id}: expected an id other than the EOS ids {list(eos_ids)} of tokenizer and generation "
                "config, because PPO leaves every pad out of the loss. Give the tokenizer a pad token of its own"
            )
        self.stop_rule = StopRule(spec, processing_class, model.generation_config, args.response_length)
        if isinstance(stop := self.stop_rule.last_end([pad_id], args.response_length).stop, str):
            raise ParameterError(
                f"stop string {stop!r}: the pad token completes it, and PPO takes every pad for the end of a row. Give the "
                "tokenizer another pad token"
            )
        columns = getattr(train_dataset, "column_names", None)
        if data_collator is None and columns and "input_ids" not in columns:
            raise ParameterError(
                f"train_dataset: columns {columns}; PPO takes tokenised prompts, so expected a column input_ids"
            )
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * processes
        if train_dataset is not None and len(train_dataset) < batch:
            raise ParameterError(
                f"train_dataset: {len(train_dataset)} prompts, and an update takes {batch} (per_device_train_batch_size x "
                "gradient_accumulation_steps x processes). TRL's PPO drops a batch that is not full, and would look for one "
                "for ever. Give more prompts or a smaller batch"
            )
        eos_token_id = model.generation_config.eos_token_id
        if self._functions:
            reward_model = self._functions
            data_collator = SplitColumnsCollator(data_collator or DataCollatorWithPadding(processing_class))
        parts = (ref_model, reward_model, train_dataset, value_model, data_collator, eval_dataset)
        super().__init__(args, processing_class, model, *parts, optimizers, callbacks, peft_config)
        model.generation_config.eos_token_id = eos_token_id  # stock has overwritten it
        if self._functions:
            self.reward_funcs = self._functions.functions
            self.dataloader = NotifyingLoader(self.dataloader, self._functions)
            self.eval_dataloader = NotifyingLoader(self.eval_dataloader, self._functions)
        self.forwards: list[int] = []
        self._scored: dict[str, list] = {}  # columns of the rows since the last log, which TRL scores in pieces
        finish_trainer(self, record_dir)

    def train(self):
        """Train as TRL does, with this trainer's stops. With `record_dir`, save the policy in `policy/` there."""
        gc.freeze()  # TRL collects garbage twice an update, half a second each among all that its libraries have loaded
        np.random.seed(self.args.seed)  # TRL permutes its mini-batches with numpy, which it never seeds
        try:
            with self._own_functions():
                super().train()
        finally:
            gc.unfreeze()
            if self.recorder:
                self.recorder.close()
        if self.recorder and self.accelerator.is_main_process:
            folder = self.recorder.record_dir / "policy"
            self.policy_model.save_pretrained(folder)
            self.processing_class.save_pretrained(folder)

    def log(self, logs: Any, *args: Any, **kwargs: Any):
        """TRL's log line, with `reward`, each reward function's mean, and the forward passes spent on generation."""
        self._give_penalty_back()  # callbacks, checkpoints and trackers keep the user's settings
        own: dict[str, float] = {"generation/forwards": self.forwards[-1]} if self.forwards else {}
        if "objective/scores" in logs:  # the name of the other trainers
            own["reward"] = logs["objective/scores"]
        own |= self._functions.metrics() if self._functions else {}
        own |= completion_metrics(self._scored) if self._scored else {}
        self._scored = {}
        return super().log(logs | own, *args, **kwargs)

    def generate_completions(self, sampling: bool = False):
        """Sample from the evaluation set as TRL does, with this trainer's stops. The completions are not recorded."""
        recorder, self.recorder = self.recorder, None
        scored, self._scored = self._scored, {}
        updates = len(self.forwards)
        try:
            with self._own_functions():
                return super().generate_completions(sampling)
        finally:
            self._give_penalty_back()
            self.recorder, self._scored = recorder, scored
            del self.forwards[updates:]

    @contextlib.contextmanager
    def _own_functions(self):
        if ppo_trainer.get_reward == self._get_reward:  # TRL samples from the evaluation set while it trains
            yield
            return
        self._original_get_reward = ppo_trainer.get_reward
        own = {"batch_generation": self._batch_generation, "get_reward": self._get_reward}
        own["selective_log_softmax"] = _log_softmax
        try:
            with mock.patch.multiple(ppo_trainer, **own):
                yield
        finally:
            self._give_penalty_back()

    def _give_penalty_back(self) -> None:
        if self._withheld is not None:
            self.args.missing_eos_penalty, self._withheld = self._withheld, None

    @torch.no_grad()
    def _batch_generation(
        self, model: Any, queries: torch.Tensor, chunk_size: int, pad_token_id: int, generation_config: Any
    ):
        """TRL's `batch_generation`, stopping at the rule: responses `[B, T]` behind their queries and logits `[B, T, V]`.

        When every row stopped before the limit one pad column is added: TRL puts a row's final reward one past its last
        token, where a run padded to the limit has a pad and the longest row of an unpadded one has nothing.
        """
        chunks = [self._generate(model, q, pad_token_id, generation_config) for q in queries.split(chunk_size)]
        self.forwards.append(sum(logits.shape[1] for _, logits in chunks))
        responses = pad([r for rows, _ in chunks for r in rows], padding_value=pad_token_id, padding_side="right")
        logits = pad([x for _, rows in chunks for x in rows], padding_value=0, padding_side="right")
        if not self.stop_rule.spec.stops_never:
            for row in responses:
                row[self.stop_rule.find_end(row.tolist()).index :] = pad_token_id
            if responses.shape[1] < generation_config.max_new_tokens:
                responses = torch.nn.functional.pad(responses, (0, 1), value=pad_token_id)
                logits = torch.nn.functional.pad(logits, (0, 0, 0, 1))
        return torch.cat((queries, responses), dim=1), logits

    def _generate(self, model: Any, queries: torch.Tensor, pad_token_id: int, generation_config: Any):
        attention_mask = queries != pad_token_id
        output = self.stop_rule.generate(
            model,
            model.generate,
            generation_config,
            input_ids=torch.masked_fill(queries, ~attention_mask, 0),
            attention_mask=attention_mask,
            return_dict_in_generate=True,
            output_logits=True,
        )
        # Not the scores, in which a minimum of tokens bans stops and a penalty lowers tokens: TRL scores again without them.
        return output.sequences[:, queries.shape[1] :], torch.stack(output.logits, 1).div_(
            generation_config.temperature
        )

    def _get_reward(self, model: Any, query_responses: torch.Tensor, pad_token_id: int, context_length: int):
        """TRL's `get_reward`; for the reward, with functions, the missing-stop penalty and the rows recorded."""
        if model is not self.reward_model:
            return self._original_get_reward(model, query_responses, pad_token_id, context_length)
        queries, responses = query_responses[:, :context_length], query_responses[:, context_length:].tolist()
        rows = [row[: row.index(pad_token_id)] if pad_token_id in row else row for row in responses]
        ends = [self.stop_rule.find_end(row) for row in rows]
        prompts = self.processing_class.batch_decode(queries, skip_special_tokens=True)
        completions = [self.stop_rule.text(row, end) for row, end in zip(rows, ends, strict=True)]
        ids = [row[: end.index] for row, end in zip(rows, ends, strict=True)]
        if self._functions:
            sums, each = self._functions.score_next(prompts, completions, ids, self.state)
            scores = torch.tensor(sums, device=queries.device)
            logits = lengths = None  # TRL reads the scores alone
        else:
            logits, scores, lengths = self._original_get_reward(model, query_responses, pad_token_id, context_length)
            each = {}
        if self.args.missing_eos_penalty is not None and not self.stop_rule.spec.stops_never:
            self._withheld = self.args.missing_eos_penalty
            self.args.missing_eos_penalty = None  # else TRL takes it from rows without EOS
        if self._withheld is not None:
            missing = torch.tensor([end.finish_reason != "stop" for end in ends], device=scores.device)
            scores = scores - self._withheld * missing
        eos = self.processing_class.eos_token_id
        trl_stopped = [eos in row for row in rows]  # stock PPO looks for EOS anywhere
        generation = Generation(
            rows=ids, ends=ends, trl_stopped=trl_stopped, texts=completions, prompts=prompts, rewards=each
        )
        columns = generation.columns()
        columns["tokens_to_eos"] = [self._eos_rule.find_end(row).index for row in rows]
        columns["reward"] = scores.tolist()
        columns = add_reward_columns(columns, generation.rewards)
        for name, values in add_rows(self, columns).items():
            self._scored.setdefault(name, []).extend(values)
        return logits, scores, lengths


def _log_softmax(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """TRL's, of logits (B, T, V) and ids (B, T); the pads behind a row's end, which TRL masks then, may lie outside of V."""
    return selective_log_softmax(logits, ids.clamp(max=logits.shape[-1] - 1))


def _functions(reward_model: Any, reward_funcs: Any, reward_weights: Sequence[float] | None) -> RewardFunctions | None:
    """The reward functions as TRL's reward model, None where there is a real one."""
    if (reward_model is None) == (reward_funcs is None):
        raise ParameterError("reward_model and reward_funcs: give one of the two; PPO learns from one of them")
    if reward_funcs is not None:
        return RewardFunctions(reward_funcs, reward_weights)
    if reward_weights is not None:
        raise ParameterError(f"reward_weights={list(reward_weights)}: expected None, since reward_model is given")
    return None
