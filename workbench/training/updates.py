"""What makes a training come to nothing: steps lost to the rounding of bfloat16 weights, prompts without a chat template."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from ..errors import warn_user
from .rows import eos_ids, is_ppo, policy_of, several_turns, tokenizer_of

LEAST_MOVED = 0.5  # of the elements with a gradient: below it most of a step is lost
_SAMPLE = 20_000  # elements: the error of a share is below 0.4%


def sample_of(parameters: Iterable[torch.Tensor], most: int = _SAMPLE) -> list[torch.Tensor]:
    """Return views, one a parameter, of at most about `most` elements that lie evenly over all of them; none is copied."""
    flat = [parameter.detach().reshape(-1) for parameter in parameters]
    stride, offset, views = max(1, sum(map(len, flat)) // most), 0, []
    for values in flat:
        views.append(values[-offset % stride :: stride])
        offset += len(values)
    return views


def count_moved(before: Sequence, after: Sequence, gradients: Sequence) -> torch.Tensor:
    """Count the elements with a gradient and, of these, those that a step changed, in the weights' own dtype.

    Example:
        >>> weights, stepped = torch.tensor([1.0, 1.0, 0.01]).bfloat16(), torch.tensor([1.0, 1.0, 0.011]).bfloat16()
        >>> count_moved([weights], [stepped], [torch.tensor([0.5, 0.0, -2.0])]).tolist()
        [2, 1]
    """
    counts = torch.zeros(2, dtype=torch.long)
    for old, new, gradient in zip(before, after, gradients, strict=True):
        moving = gradient != 0
        counts = counts.to(old.device) + torch.stack([moving.sum(), (moving & (old != new)).sum()])
    return counts


def movable_share(parameters: Iterable[torch.Tensor], learning_rate: float) -> float:
    """Share of a sample of elements that a step of `learning_rate`, about what Adam takes, changes in their dtype; 0 to 1.

    Example:
        >>> weights = torch.tensor([1.0, 0.1, 0.01, 0.001])
        >>> movable_share([weights.bfloat16()], 1e-5), movable_share([weights], 1e-5)
        (0.25, 1.0)
    """
    views = sample_of(parameters)
    moved = sum(int((x + step != x).sum()) for x in views for step in (learning_rate, -learning_rate))
    return moved / (2 * sum(map(len, views)))


PLAIN_PROMPTS = (
    "prompts are plain strings: TRL applies the tokenizer's chat template to message lists only, and a model that was tuned "
    'with a template may never stop without it. Write {"prompt": [{"role": "user", "content": ...}]}. To keep plain '
    'strings, silence this: warnings.filterwarnings("ignore", "prompts are plain strings")'
)


def has_plain_prompts(trainer: Any) -> bool:
    """Whether the first prompt is a string with no mark of the chat template, whose turns end at an EOS of the policy.

    A base model's template, as Qwen2.5's, ends turns at another token than its EOS.
    """
    tokenizer, data = tokenizer_of(trainer), trainer.train_dataset
    if not getattr(tokenizer, "chat_template", None) or several_turns(trainer) or not hasattr(data, "__getitem__"):
        return False
    asked, answered = "workbench asks", "workbench answers"
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    try:
        prompt, text = data[0].get("prompt"), tokenizer.apply_chat_template(turns, tokenize=False)
        (before, _, rest), special = text.partition(asked), tokenizer.all_special_tokens
        between, _, after = rest.partition(answered)
        ends = [*tokenizer.convert_ids_to_tokens(eos_ids(trainer))] or [asked]
    except Exception:  # a template and a data set are anybody's
        return False
    marks = {*before.split()[-1:], *between.split()[:2], *(token for token in special if token in text)}
    tuned = after.strip().startswith(tuple(ends))
    return tuned and isinstance(prompt, str) and not any(mark in prompt for mark in marks)


def warn_before_training(trainer: Any) -> None:
    """Warn of a trainer's settings that make its training come to nothing: plain prompts, and updates that rounding takes."""
    if has_plain_prompts(trainer):
        warn_user(PLAIN_PROMPTS)
    for text in _lost_updates(trainer):
        warn_user(text)


def _lost_updates(trainer: Any) -> Iterator[str]:
    """What to say where the trained weights have half precision and Adam's step at this rate would leave most as they are."""
    users = trainer.optimizer is not None and not is_ppo(type(trainer))  # PPO has made one by now
    if users or trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:  # which train copies in fp32
        return
    rate, trained = trainer.args.learning_rate, [p for p in policy_of(trainer).parameters() if p.requires_grad]
    half = [p for p in trained if p.dtype in (torch.bfloat16, torch.float16) and p.numel()]
    if not half or "adam" not in str(trainer.args.optim).lower():
        return
    if (share := movable_share(half, rate)) < LEAST_MOVED:
        dtype = str(half[0].dtype).removeprefix("torch.")
        yield (
            f"the trained weights are {dtype}: at learning_rate={rate:g} a step changes about {share:.2g} of them, the others "
            "stay as they were, by rounding. Load the model with dtype=torch.float32; with bf16=True it still computes in "
            "bfloat16. A rate that was tuned with such weights can be too high then"
        )
