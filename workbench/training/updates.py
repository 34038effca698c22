"""What makes a training come to nothing: steps lost to rounding, prompts without a chat template, rewritten turns."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from ..errors import ParameterError, warn_user
from ..generation.template import CLOSES_CALL, call_text, check_template, stop_text
from .rows import eos_ids, is_ppo, policy_of, several_turns, stops_of, tokenizer_of

_CHECK = "`check_template(tokenizer, stops=...)` of workbench.generation"
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
    "prompts are plain strings: TRL applies the chat template to message lists only, and a model that was tuned with it may "
    'never stop without it. Write {"prompt": [{"role": "user", "content": ...}]}; reward functions then get message lists. '
    'To keep plain strings, silence this: warnings.filterwarnings("ignore", "prompts are plain strings")'
)


def has_plain_prompts(trainer: Any) -> bool:
    """Say whether the first prompt is a string with no mark of the chat template, whose turns end at an EOS of the policy.

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
    """Warn of prompts that are not as the model knows them, of updates that rounding takes, and of turns that are changed."""
    said = [PLAIN_PROMPTS] if has_plain_prompts(trainer) else []
    for text in (*said, *_special_tokens(trainer), *_lost_updates(trainer), *_changed_turns(trainer)):
        warn_user(text)


def _special_tokens(trainer: Any) -> Iterator[str]:
    """The warning where the first prompt begins with two BOS, or ends with an EOS that the tokenizer added.

    TRL tokenizes text with the tokenizer's special tokens, and text that a chat template made has some already.
    """
    tokenizer, data = tokenizer_of(trainer), trainer.train_dataset
    if not hasattr(data, "__getitem__") or getattr(trainer, "rollout_func", None) is not None:
        return
    try:
        row = data[0]
        text = "" if "input_ids" in row else row["prompt"]
        ids = list(row["input_ids"] if "input_ids" in row else tokenizer(text=text)["input_ids"])
        own = tokenizer(text=text, add_special_tokens=False)["input_ids"]
    except Exception:  # a tokenizer and a data set are anybody's; message lists are no text
        return
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    if bos is not None and ids[:2] == [bos, bos]:
        yield (
            f"prompts begin with {tokenizer.bos_token!r} twice: the text has one, and the tokenizer adds one. Write message "
            "lists, or take it off the text: prompt.removeprefix(tokenizer.bos_token)"
        )
    if own and eos != bos and ids[-1] == eos != own[-1]:
        yield (
            f"prompts end with {tokenizer.eos_token!r}, which the tokenizer adds: the model continues behind its end. Load the "
            "tokenizer with add_eos_token=False"
        )


def _changed_turns(trainer: Any) -> Iterator[str]:
    """The warning where rows have several turns, and the chat template rewrites an earlier one or a stop leaves one open."""
    if not several_turns(trainer):
        return
    template, processor = getattr(trainer, "chat_template", None), trainer.processing_class
    options = {"chat_template": template} if template else {}
    options |= getattr(trainer, "chat_template_kwargs", None) or {}
    own_rollout = getattr(trainer, "rollout_func", None) is not None
    report = check_template(processor, [] if own_rollout else _stops_of_calls(trainer, options), **options)
    said = [f"it {verdict.question}" for verdict in report.harms(("user", "tool") if own_rollout else ("tool",))]
    if said and own_rollout:
        said[-1] += (
            ". If the rollout function renders the conversation again for each turn, the context in which turn 2 is sampled is "
            "not the context that the loss scores; append token ids instead"
        )
    elif said:
        said[-1] += (
            ". TRL appends the answer to the tokens of the turn, so the policy is trained in a conversation that the template "
            "never renders, and a server that renders it shows the policy another context; take a template that keeps turns"
        )
    closes_itself = hasattr(trainer, "stop_rule") and report[CLOSES_CALL].verdict == "yes"
    if report[CLOSES_CALL].verdict != "cannot tell" and not closes_itself:
        said += [f"it {verdict.question}: {verdict.says}" for verdict in report.open_turns()]
    if said:
        yield f"the chat template changes a conversation of several turns: {'; '.join(said)}. More: {_CHECK}"


def _stops_of_calls(trainer: Any, options: dict) -> list[str | int]:
    """The stops that stand in a call as the chat template renders it: behind any other stop no tool answers."""
    try:
        text = call_text(trainer.processing_class, **options)
    except ParameterError:
        return []
    settings = stops_of(trainer)
    stops = (*settings["stop"], *settings["stop_token_ids"])
    return [stop for stop in stops if stop_text(trainer.processing_class, stop) in text]


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
        fix = "Load the model with dtype=torch.float32; with bf16=True it still computes in bfloat16"
        if any(getattr(policy_of(trainer), f"is_loaded_in_{bits}bit", False) for bits in (4, 8)):
            fix = "TRL makes adapters of a quantised model bfloat16: train LoRA on weights that are not quantised"
        yield (
            f"the trained weights are {dtype}: at learning_rate={rate:g} a step changes about {share:.2g} of them, the others "
            f"stay as they were, by rounding. {fix}. A rate that was tuned with such weights can be too high then"
        )
