"""Rollouts in one form, from transformers or from vLLM in this process, with one rule for all ends."""

import dataclasses
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any
from unittest import mock

from ..errors import ParameterError
from ..generation.stops import StopRule, StopSpec


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How to sample, under TRL's names.

    Attributes:
        max_completion_length: token limit, at least 1.
        temperature: 0 is greedy.
        top_p: in (0, 1].
        top_k: 0 keeps every token.
        num_generations: completions per prompt.
        seed: seeds the whole call; None leaves the sampler's random state as it is.

    Raises:
        ParameterError: a value out of range.

    Example:
        >>> Sampling(max_completion_length=8, temperature=0)
        Sampling(max_completion_length=8, temperature=0, top_p=1.0, top_k=0, num_generations=1, seed=None)
        >>> Sampling(top_p=1.5)
        Traceback (most recent call last):
        workbench.errors.ParameterError: temperature=1.0, top_p=1.5, top_k=0: expected temperature >= 0, 0 < top_p <= 1, ...
    """

    max_completion_length: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    num_generations: int = 1
    seed: int | None = None

    def __post_init__(self):
        for name in ("max_completion_length", "num_generations"):
            if not isinstance(getattr(self, name), Integral) or getattr(self, name) < 1:
                raise ParameterError(f"{name}={getattr(self, name)}: expected a whole number of at least 1")
        if self.seed is not None and (not isinstance(self.seed, Integral) or self.seed < 0):
            raise ParameterError(f"seed={self.seed!r}: expected None, or a whole number of at least 0")
        if not 0 <= self.temperature < float("inf") or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ParameterError(
                f"temperature={self.temperature}, top_p={self.top_p}, top_k={self.top_k}: expected temperature >= 0, "
                "0 < top_p <= 1, top_k >= 0 (0 keeps all)"
            )


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One completion.

    Attributes:
        completion_ids: up to and with the stop.
        completion: text as a reward function sees it.
        finish_reason: `stop` or `length`, from the ids; `stop` is the id or string that ended it, or None.
        engine_finish_reason: what the sampler itself reported; None where it reports nothing (transformers).
        sampled_tokens: tokens computed for this row: for transformers the batch's longest row, pads included.
        logprobs: of `completion_ids` at the sampling temperature; vLLM's are as its `logprobs_mode` says, by default at 1.
    """

    prompt: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    completion: str
    finish_reason: str
    stop: int | str | None
    engine_finish_reason: str | None
    sampled_tokens: int
    logprobs: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class TransformersSampler:
    """A causal LM and its tokenizer in this process."""

    model: Any
    tokenizer: Any

    @property
    def generation_config(self):
        return self.model.generation_config

    def sample(self, prompt_ids: list[list[int]], rule: StopRule, sampling: Sampling):
        """`(ids, logprobs, None)` per prompt. Ids may follow a completion's end: the batch runs until all have ended."""
        import torch
        from transformers import GenerationConfig

        width, device = max(map(len, prompt_ids)), self.model.device
        pad = self.tokenizer.pad_token_id or 0  # any id does: it is masked
        input_ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompt_ids], device=device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompt_ids], device=device)
        config = GenerationConfig(max_new_tokens=sampling.max_completion_length, do_sample=sampling.temperature > 0)
        if config.do_sample:
            config.update(temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k)
        kept = _SampledLogprobs(len(prompt_ids), sampling, device)
        inputs = {"input_ids": input_ids, "attention_mask": mask, "logits_processor": [kept.before_sampling]}
        # PEFT's own forward is not called by `generate`.
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        # A penalty, min_p or beams of the model's folder would be another distribution than the other samplers'.
        plain = mock.patch.object(base, "generation_config", GenerationConfig())
        own_random = torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=sampling.seed is not None)
        training = [module for module in self.model.modules() if module.training]
        with plain, own_random, base.register_forward_hook(kept.see_logits), torch.no_grad():
            if sampling.seed is not None:
                torch.manual_seed(sampling.seed)
            try:
                self.model.eval()  # without dropout
                sequences = rule.generate(base, self.model.generate, config, **inputs)
            finally:
                for module in training:
                    module.training = True
        logprobs = kept.finish(sequences)
        return [(row, lp, None) for row, lp in zip(sequences[:, width:].tolist(), logprobs.tolist(), strict=True)]


class _SampledLogprobs:
    """Log-probs of the tokens that `generate` samples, (B, T), from the model's own logits: before `generate` suppresses an
    EOS or cuts the distribution. The logits of all steps would be B x T x V.
    """

    def __init__(self, rows: int, sampling: Sampling, device: Any):
        import torch

        self._temperature = sampling.temperature or 1.0
        # One tensor for all steps: small ones kept from each step would lie between the large ones and hold their memory.
        self._table = torch.zeros(rows, sampling.max_completion_length, device=device)
        self._steps = 0
        self._logits: Any = None
        self._previous: Any = None

    def see_logits(self, model: Any, args: Any, output: Any) -> None:
        """A forward hook."""
        self._logits = output.logits[:, -1]

    def before_sampling(self, input_ids: Any, scores: Any):
        """A logits processor: what was sampled in the step before is the last column now."""
        if self._previous is not None:
            self._keep(input_ids)
        self._previous = self._logits
        return scores

    def finish(self, sequences: Any):
        """(B, T), after `generate` returned its sequences."""
        self._keep(sequences)
        return self._table[:, : self._steps]

    def _keep(self, input_ids: Any) -> None:
        distribution = (self._previous.float() / self._temperature).log_softmax(-1)
        self._table[:, self._steps] = distribution.gather(1, input_ids[:, -1:])[:, 0]
        self._steps += 1


@dataclasses.dataclass(frozen=True)
class VLLMSampler:
    """A `vllm.LLM` in this process."""

    llm: Any

    @property
    def tokenizer(self):
        return self.llm.get_tokenizer()

    @property
    def generation_config(self):
        """The one in the model's folder. It may name more EOS ids than the tokenizer; the engine stops at all of them."""
        from transformers import GenerationConfig

        try:
            return GenerationConfig.from_pretrained(self.llm.model_config.model)
        except (OSError, ValueError):  # the folder has none
            return None

    def sample(self, prompt_ids: list[list[int]], rule: StopRule, sampling: Sampling):
        """`(ids, logprobs, vLLM's finish reason)` per prompt; each row has a random stream of its own."""
        from vllm import SamplingParams

        params = [
            SamplingParams(
                seed=None if sampling.seed is None else sampling.seed * 1_000_003 + row,
                max_tokens=sampling.max_completion_length,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                logprobs=0,
                **rule.for_vllm(),
            )
            for row in range(len(prompt_ids))
        ]
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in prompt_ids], params, use_tqdm=False)
        rows = []
        for output in outputs:
            made = output.outputs[0]
            logprobs = [step[token].logprob for step, token in zip(made.logprobs, made.token_ids, strict=True)]
            rows.append((list(made.token_ids), logprobs, made.finish_reason))
        return rows


def prompt_text(tokenizer: Any, prompt: str | Sequence[Mapping]) -> str:
    """Return the text of a prompt: messages as the chat template renders them, ready for an answer."""
    if isinstance(prompt, str):
        return prompt
    return tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)


def tokenize_prompt(tokenizer: Any, prompt: str | Sequence[Mapping]):
    """Tokenize a prompt as TRL's GRPO does: a template writes the special tokens itself, so messages get no second BOS."""
    return tokenizer(prompt_text(tokenizer, prompt), add_special_tokens=isinstance(prompt, str))


def generate(
    sampler: TransformersSampler | VLLMSampler,
    prompts: Sequence[str | Sequence[Mapping]],
    *,
    stops: StopSpec | None = None,
    sampling: Sampling | None = None,
) -> list[Rollout]:
    """Sample completions, prompt by prompt: the `num_generations` completions of a prompt are next to each other.

    Args:
        sampler: a `TransformersSampler` or a `VLLMSampler`.
        prompts: P texts, or prompts as messages for the tokenizer's chat template.
        stops: when completions end; default at every EOS.
        sampling: how to sample.

    Returns:
        P x num_generations rollouts.

    Raises:
        ParameterError: no prompts, a prompt without tokens, or stops that do not fit the tokenizer or the length limit.
    """
    sampling = sampling or Sampling()
    prompts = prompts if isinstance(prompts, str) else list(prompts)
    if not len(prompts) or isinstance(prompts, str):
        raise ParameterError(f"prompts={prompts!r}: expected a list of at least one text or list of messages")
    tokenizer = sampler.tokenizer
    rule = StopRule(
        StopSpec.of(stops), tokenizer, getattr(sampler, "generation_config", None), sampling.max_completion_length
    )
    prompts = [p for p in prompts for _ in range(sampling.num_generations)]
    texts = [prompt_text(tokenizer, p) for p in prompts]
    prompt_ids = [tokenize_prompt(tokenizer, p)["input_ids"] for p in prompts]
    if [] in prompt_ids:
        empty = prompt_ids.index([]) // sampling.num_generations
        raise ParameterError(f"prompt {empty} is empty; add text, or set a BOS token in the tokenizer")
    sampled = sampler.sample(prompt_ids, rule, sampling)
    return [_rollout(rule, *parts) for parts in zip(texts, prompt_ids, sampled, strict=True)]


def _rollout(rule: StopRule, prompt: str, prompt_ids: list[int], row: tuple) -> Rollout:
    ids, logprobs, reason = row
    end = rule.find_end(ids)
    return Rollout(
        prompt=prompt,
        prompt_ids=tuple(prompt_ids),
        completion_ids=tuple(ids[: end.index]),
        completion=rule.text(ids, end),
        finish_reason=end.finish_reason,
        stop=end.stop,
        engine_finish_reason=reason,
        sampled_tokens=len(ids),
        logprobs=tuple(logprobs[: end.index]),
    )
