"""Measured while it trains: what padding does to the trainer's own scores, and how far sampler and scorer are apart."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from transformers import TrainerCallback
from trl.data_utils import prepare_multimodal_messages

from ..consistency.ratios import ratio_report
from ..errors import ParameterError
from ..generation.stop_audit import stop_report
from .positions import trainer_logprobs

PROBES = 4
_PROBE_TOKENS = 16


def is_of_a_step(logs: Mapping) -> bool:
    """Whether a log is that of training steps: not of an evaluation, and not the closing summary.

    Example:
        >>> is_of_a_step({"loss": 0.1}), is_of_a_step({"eval_loss": 0.1}), is_of_a_step({"train_runtime": 9.0})
        (True, False, False)
    """
    return "train_runtime" not in logs and not any(name.startswith("eval_") for name in logs)


def completion_metrics(completions: pd.DataFrame) -> dict[str, float | None]:
    """What is logged about a step's completions, beside TRL's own metrics. A new per-step metric goes here, and only here.

    Args:
        completions: B rows as they are recorded, with `completion` and, where ends are known, `finish_reason` and
            `completion_tokens`.

    Returns:
        `stops/clipped_ratio`, cut by the length limit in truth; `stops/trl_clipped_ratio`, in stock TRL's eyes;
        `stops/wasted`, the share of computed tokens after an end; `completions/distinct`, the share of different texts,
        1/B to 1: a policy that has collapsed writes one text over and over.

    Example:
        >>> rows = pd.DataFrame({"completion": ["a", "a", "b", "c"]})
        >>> completion_metrics(rows)
        {'completions/distinct': 0.75}
    """
    metrics = {"completions/distinct": completions["completion"].nunique() / len(completions)}
    if "finish_reason" in completions:
        report = stop_report(completions)
        names = ("clipped_ratio", "trl_clipped_ratio", "wasted")
        metrics |= {f"stops/{name}": getattr(report, name) for name in names}
    return metrics


class PaddingMonitor(TrainerCallback):
    """Scores a fixed batch with and without padding every `every` steps, by the trainer's own scoring path (claim A2.6).

    Logs, with the trainer's metrics, in nats: `padding/max_difference` and `padding/mean_difference` of the log-probs of
    one text alone and left-padded beside longer ones.

    Args:
        trainer: stock or the workbench's.
        prompt_ids, completion_ids: the fixed batch, lists of token ids; prompts of unequal length.
        every: optimizer steps between measurements; the first step that is logged is measured.

    Raises:
        ParameterError: fewer than two texts, prompts of one length, or `every` below 1.
    """

    def __init__(self, trainer, prompt_ids: Sequence, completion_ids: Sequence, every: int = 10):
        if every < 1:
            raise ParameterError(f"every={every}: expected at least 1 step")
        if len(prompt_ids) != len(completion_ids) or len({len(ids) for ids in prompt_ids}) < 2:
            raise ParameterError(
                f"probe of prompts with {[len(ids) for ids in prompt_ids]} tokens and {len(completion_ids)} completions: "
                "expected a completion for each prompt and prompts of unequal length, else nothing is padded"
            )
        self._trainer, self._probe, self._every = trainer, (prompt_ids, completion_ids), every
        self._next = 0

    def on_train_begin(self, args, state, control, **_):
        self._next = state.global_step  # a resumed run measures where it goes on

    def on_log(self, args, state, control, logs=None, **_):
        if state.global_step < self._next or not is_of_a_step(logs):
            return
        self._next = state.global_step - state.global_step % self._every + self._every
        numbers = self.measure()
        logs.update(numbers)
        state.log_history[-1].update(numbers)

    def measure(self) -> dict[str, float]:
        """The numbers of this moment."""
        prompts, completions = self._probe
        padded = trainer_logprobs(self._trainer, prompts, completions)
        alone = [trainer_logprobs(self._trainer, [p], [c])[0] for p, c in zip(prompts, completions, strict=True)]
        differences = (torch.cat(padded) - torch.cat(alone)).abs()
        return {
            "padding/max_difference": differences.max().item(),
            "padding/mean_difference": differences.mean().item(),
        }


def monitor_padding(trainer, *, every: int = 10) -> PaddingMonitor:
    """Attach a `PaddingMonitor` whose batch is made of the trainer's first prompts, shortest beside longest.

    It goes before all other callbacks, so that whatever writes logs (files, W&B, TensorBoard) has its numbers.
    """
    prompts = probe_prompts(trainer)
    completions = [ids[-_PROBE_TOKENS:] for ids in reversed(prompts)]  # any text will do: it is scored twice
    monitor = PaddingMonitor(trainer, prompts, completions, every)
    trainer.callback_handler.callbacks.insert(0, monitor)
    return monitor


def probe_prompts(trainer, rows: int = 64) -> list[list[int]]:
    """Token ids of `PROBES` of the first prompts, spread over their lengths."""
    data, tokenizer = trainer.train_dataset, trainer.processing_class
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor has one
    first = data.select(range(min(rows, len(data))))
    if "input_ids" in first.column_names:  # PPO
        ids = [list(row) for row in first["input_ids"]]
    elif isinstance(first[0]["prompt"], str):
        ids = [tokenizer(text=prompt)["input_ids"] for prompt in first["prompt"]]
    else:
        ids = [_chat_ids(trainer.processing_class, tokenizer, prompt) for prompt in first["prompt"]]
    ids = sorted((row for row in ids if row), key=len)
    return [ids[round(n * (len(ids) - 1) / (PROBES - 1))] for n in range(PROBES)]


def _chat_ids(processing_class, tokenizer, messages: list[dict]) -> list[int]:
    """Token ids of a conversation, without its images where it has some."""
    if processing_class is not tokenizer:
        messages = prepare_multimodal_messages(messages)
    text = processing_class.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(text=text, add_special_tokens=False)["input_ids"]


class MismatchMixin:
    """Logs, for GRPO on vLLM, the raw ratios of trainer to sampler before TRL clips them: `mismatch/...`.

    TRL 1.12.0 logs minimum, mean and maximum after clipping, so that its maximum is the bound itself.
    """

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        scored, sampled = (output.get(name) for name in ("old_per_token_logps", "sampling_per_token_logps"))
        if scored is not None and sampled is not None:
            mask = (output["completion_mask"] * output.get("tool_mask", 1)).bool()
            rows = [[x[m].tolist() for x, m in zip(xs, mask, strict=True) if m.any()] for xs in (scored, sampled)]
            self._log_mismatch(*rows)
        return output

    def _log_mismatch(self, scored: list, sampled: list) -> None:
        from accelerate.utils import gather_object

        scored, sampled = gather_object(scored), gather_object(sampled)
        if not scored:  # everything was masked
            return
        report = ratio_report(scored, sampled)
        low, middle, high = np.exp(np.quantile(report.tokens, (0.01, 0.5, 0.99)))
        numbers = {
            "ratio_1%": low,
            "ratio_50%": middle,
            "ratio_99%": high,
            "ratios_outside": report.outside,
            "kl": report.kl(),
            "ess_tokens": report.effective_sample_size("token"),
            "ess_sequences": report.effective_sample_size("sequence"),
        }
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, value in numbers.items():
            metrics[f"mismatch/{name}"].append(float(value))
