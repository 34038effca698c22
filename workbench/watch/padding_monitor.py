"""What padding does to a trainer's own scores, measured while it trains, and those scores themselves.

TRL samples with `generate`, which counts positions from the mask, and in GRPO and RLOO scores with a plain forward pass on
left-padded prompts, which does not. Its PPO passes position ids in both.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
import trl
from trl.data_utils import prepare_multimodal_messages

from ..consistency.padding import evaluating, pad_batch
from ..errors import ParameterError
from ..training.callback import LiveCallback, add_to_log, attach_first
from ..training.rows import is_of_a_step, is_ppo, tokenizer_of

_ROWS = 4
_COMPLETION_TOKENS = 16


@torch.no_grad()
def trainer_logprobs(trainer: Any, prompt_ids: Sequence, completion_ids: Sequence) -> list[torch.Tensor]:
    """Log-probs of completions by the trainer's own scoring path, stock or the workbench's, without dropout.

    Of B lists of token ids, padded here as trainers do, on the left and on the right: B tensors, one number a completion token,
    at the trainer's temperature.
    """
    pad_id = tokenizer_of(trainer).pad_token_id
    device = trainer.accelerator.device
    prompt, completion = pad_batch(prompt_ids, pad_id, "left"), pad_batch(completion_ids, pad_id, "right")
    prompt, completion = ({name: x.to(device) for name, x in part.items()} for part in (prompt, completion))
    model = getattr(trainer, "policy_model", trainer.model)
    with evaluating(model):
        scored = _score(trainer, model, prompt, completion, pad_id)
    return [row[: len(ids)].float() for row, ids in zip(scored, completion_ids, strict=True)]


def _score(trainer: Any, model: Any, prompt: dict, completion: dict, pad_id: int) -> torch.Tensor:
    ids, mask = (torch.cat([prompt[name], completion[name]], dim=1) for name in ("input_ids", "attention_mask"))
    width = completion["input_ids"].shape[1]
    if isinstance(trainer, trl.GRPOTrainer | trl.RLOOTrainer):
        return trainer._get_per_token_logps_and_entropies(model, ids, mask, width)[0]
    if is_ppo(type(trainer)):
        from trl.experimental.ppo import ppo_trainer  # which the trainer's module has loaded

        logits = ppo_trainer.forward(model, ids, pad_id).logits[:, -width - 1 : -1] / (trainer.args.temperature + 1e-7)
        return ppo_trainer.selective_log_softmax(logits, completion["input_ids"])
    raise _not_scored(trainer)


def _not_scored(trainer: Any) -> ParameterError:
    return ParameterError(f"{type(trainer).__name__}: expected TRL's GRPO, RLOO or PPO trainer, or a child")


class PaddingMonitor(LiveCallback):
    """Scores a fixed batch with and without padding every `every` steps, by the trainer's own scoring path.

    Logs, with the trainer's metrics, in nats: `padding/max_difference` and `padding/mean_difference` of the log-probs of
    one text alone and left-padded next to longer ones. The first step that is logged is measured too.
    """

    name = "padding monitor"

    def __init__(self, trainer: Any, prompt_ids: Sequence, completion_ids: Sequence, every: int = 10):
        super().__init__(trainer, every)
        if len(prompt_ids) != len(completion_ids) or len({len(ids) for ids in prompt_ids}) < 2:
            raise ParameterError(
                f"a batch of prompts with {[len(ids) for ids in prompt_ids]} tokens and {len(completion_ids)} completions: "
                "expected a completion for each prompt and prompts of unequal length, else nothing is padded"
            )
        self._batch, self._interval, self._step_of_next = (prompt_ids, completion_ids), every, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any):
        # A resumed training measures at the steps of an undisturbed one, so that both logs are equal.
        self._step_of_next = _next_multiple(state.global_step, self._interval) if state.global_step else 0

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any):
        if state.global_step < self._step_of_next or not is_of_a_step(logs):
            return
        self._step_of_next = _next_multiple(state.global_step, self._interval)
        if numbers := self.guarded(self.measure):
            add_to_log(numbers, logs, state)

    def measure(self) -> dict[str, float]:
        """The numbers of this moment."""
        prompts, completions = self._batch
        padded = trainer_logprobs(self._trainer, prompts, completions)
        alone = [trainer_logprobs(self._trainer, [p], [c])[0] for p, c in zip(prompts, completions, strict=True)]
        differences = (torch.cat(padded) - torch.cat(alone)).abs()
        return {f"padding/{name}_difference": getattr(differences, name)().item() for name in ("max", "mean")}


def _next_multiple(step: int, interval: int) -> int:
    """The first multiple of `interval` above a step."""
    return step - step % interval + interval


def attach_padding_monitor(trainer: Any, *, every: int = 10) -> PaddingMonitor:
    """Attach a `PaddingMonitor`. Its batch is made of the trainer's first prompts, from the shortest to the longest.

    It runs before all other callbacks, so that everything that writes logs (files, W&B, TensorBoard) gets its numbers.
    """
    if not (isinstance(trainer, trl.GRPOTrainer | trl.RLOOTrainer) or is_ppo(type(trainer))):
        raise _not_scored(trainer)
    prompts = prompts_of_all_lengths(trainer)
    completions = [ids[-_COMPLETION_TOKENS:] for ids in reversed(prompts)]  # any text will do: it is scored twice
    monitor = PaddingMonitor(trainer, prompts, completions, every)
    attach_first(trainer, monitor)
    return monitor


def prompts_of_all_lengths(trainer: Any, rows: int = 64) -> list[list[int]]:
    """Token ids of `_ROWS` of the first prompts, spread over their lengths."""
    first = list(islice(trainer.train_dataset, rows))  # data that stream have no length
    tokenizer = tokenizer_of(trainer)
    if "input_ids" in first[0]:  # PPO
        ids = [list(row["input_ids"]) for row in first]
    elif isinstance(first[0]["prompt"], str):
        ids = [tokenizer(text=row["prompt"])["input_ids"] for row in first]
    else:
        ids = [_chat_ids(trainer.processing_class, tokenizer, row["prompt"]) for row in first]
    ids = sorted((row for row in ids if row), key=len)
    return [ids[round(n * (len(ids) - 1) / (_ROWS - 1))] for n in range(_ROWS)]


def _chat_ids(processing_class: Any, tokenizer: Any, messages: list[dict]) -> list[int]:
    """Token ids of a conversation, without its images where it has some."""
    if processing_class is not tokenizer:
        messages = prepare_multimodal_messages(messages)
    text = processing_class.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(text=text, add_special_tokens=False)["input_ids"]
