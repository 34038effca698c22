"""Rollouts from each back end in one form, and the stop audit over rollouts and recorded completions.

`generate` samples with transformers, with vLLM in this process or with a vLLM server; stops are the same `StopSpec`
everywhere, and a row's end is found from its ids by the same pure function, whoever sampled it.
"""

import dataclasses
from collections.abc import Sequence

from ..errors import ParameterError
from .stops import StopRule, StopSpec


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How to sample, under TRL's names.

    Attributes:
        max_completion_length: token limit, at least 1.
        temperature: 0 is greedy.
        top_p: in (0, 1].
        top_k: 0 keeps every token.
        num_generations: completions per prompt.
        seed: of the whole call; None leaves the engine's random state to itself.
    """

    max_completion_length: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    num_generations: int = 1
    seed: int | None = None

    def __post_init__(self):
        if self.max_completion_length < 1 or self.num_generations < 1:
            raise ParameterError(
                f"max_completion_length={self.max_completion_length}, num_generations={self.num_generations}: "
                "expected at least 1"
            )
        if not 0 <= self.temperature < float("inf") or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ParameterError(
                f"temperature={self.temperature}, top_p={self.top_p}, top_k={self.top_k}: expected temperature >= 0, "
                "0 < top_p <= 1, top_k >= 0 (0 keeps all)"
            )


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One completion.

    Attributes:
        prompt: text.
        prompt_ids: the prompt's ids.
        completion_ids: up to and with the stop.
        completion: text as a reward function sees it.
        finish_reason: `stop` or `length`, from the ids.
        stop: the id or string that ended it, or None.
        engine_finish_reason: what the engine itself reported; None where it reports nothing (transformers).
        sampled_tokens: tokens computed for this row: for transformers the batch's longest row, pads included.
        logprobs: of `completion_ids` under the sampling distribution as the engine gave them, or None.
    """

    prompt: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    completion: str
    finish_reason: str
    stop: int | str | None
    engine_finish_reason: str | None
    sampled_tokens: int
    logprobs: tuple[float, ...] | None = None


@dataclasses.dataclass(frozen=True)
class TransformersSampler:
    """A causal LM and its tokenizer in this process."""

    model: object
    tokenizer: object

    def sample(self, prompt_ids: list[list[int]], rule: StopRule, sampling: Sampling):
        """`(ids, logprobs, engine reason)` per prompt; ids are raw, behind the end stands whatever was computed."""
        import torch
        from transformers import GenerationConfig

        width = max(map(len, prompt_ids))
        pad = self.tokenizer.pad_token_id
        device = self.model.device
        input_ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompt_ids], device=device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompt_ids], device=device)
        how = {"do_sample": False}
        if sampling.temperature > 0:
            how = {
                "do_sample": True,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
            }
        config = GenerationConfig(max_new_tokens=sampling.max_completion_length, **how)
        if sampling.seed is not None:
            torch.manual_seed(sampling.seed)
        with torch.no_grad():
            output = rule.generate(
                self.model,
                self.model.generate,
                config,
                input_ids=input_ids,
                attention_mask=mask,
                return_dict_in_generate=True,
                output_logits=True,
            )
        ids = output.sequences[:, width:]
        logprobs = [x.float() / (sampling.temperature or 1.0) for x in output.logits]
        logprobs = torch.stack(
            [x.log_softmax(-1).gather(1, ids[:, n : n + 1])[:, 0] for n, x in enumerate(logprobs)], 1
        )
        return [(row, lp, None) for row, lp in zip(ids.tolist(), logprobs.tolist(), strict=True)]


@dataclasses.dataclass(frozen=True)
class VLLMSampler:
    """A `vllm.LLM` in this process."""

    llm: object

    @property
    def tokenizer(self):
        return self.llm.get_tokenizer()

    def sample(self, prompt_ids: list[list[int]], rule: StopRule, sampling: Sampling):
        """`(ids, logprobs, engine reason)` per prompt; each row has a random stream of its own."""
        from vllm import SamplingParams

        fields = _vllm_fields(rule, sampling)
        params = [
            SamplingParams(**fields, seed=None if sampling.seed is None else sampling.seed * 1_000_003 + n)
            for n in range(len(prompt_ids))
        ]
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in prompt_ids], params, use_tqdm=False)
        rows = []
        for output in outputs:
            made = output.outputs[0]
            logprobs = [step[token].logprob for step, token in zip(made.logprobs, made.token_ids, strict=True)]
            rows.append((list(made.token_ids), logprobs, made.finish_reason))
        return rows


@dataclasses.dataclass(frozen=True)
class ServerSampler:
    """A vLLM server's completions endpoint.

    Attributes:
        url: `http://host:port`.
        tokenizer: of the model it serves.
        model: name it serves the model under; default its first.
    """

    url: str
    tokenizer: object
    model: str | None = None

    def sample(self, prompt_ids: list[list[int]], rule: StopRule, sampling: Sampling):
        """`(ids, logprobs, engine reason)` per prompt; each row is a request's prompt of its own."""
        import requests

        model = self.model or requests.get(f"{self.url}/v1/models", timeout=60).json()["data"][0]["id"]
        body = {"model": model, "return_token_ids": True, **_vllm_fields(rule, sampling)}
        rows = []
        for n, ids in enumerate(prompt_ids):
            seed = {} if sampling.seed is None else {"seed": sampling.seed * 1_000_003 + n}
            answer = requests.post(f"{self.url}/v1/completions", json={**body, "prompt": ids, **seed}, timeout=600)
            answer.raise_for_status()
            choice = answer.json()["choices"][0]
            rows.append((choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"]))
        return rows


def _vllm_fields(rule: StopRule, sampling: Sampling) -> dict:
    return {
        "max_tokens": sampling.max_completion_length,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "logprobs": 0,
        **rule.for_vllm(),
    }


def generate(
    engine: TransformersSampler | VLLMSampler | ServerSampler,
    prompts: Sequence[str],
    *,
    stops: StopSpec | None = None,
    sampling: Sampling | None = None,
) -> list[Rollout]:
    """Sample completions, prompt by prompt: the `num_generations` rows of a prompt stand together.

    Args:
        engine: who samples.
        prompts: P texts.
        stops: when completions end; default at every EOS.
        sampling: how to sample.

    Returns:
        P x num_generations rollouts.

    Raises:
        ParameterError: no prompts, one without tokens, or stops that do not fit the tokenizer or the length limit.
    """
    sampling = sampling or Sampling()
    if not prompts:
        raise ParameterError("prompts is empty: expected at least one text")
    tokenizer = engine.tokenizer
    config = engine.model.generation_config if isinstance(engine, TransformersSampler) else None
    rule = StopRule(stops or StopSpec(), tokenizer, config, sampling.max_completion_length)
    texts = [p for p in prompts for _ in range(sampling.num_generations)]
    prompt_ids = [tokenizer.encode(p) for p in texts]
    if [] in prompt_ids:
        empty = prompt_ids.index([]) // sampling.num_generations
        raise ParameterError(
            f"prompt {empty} is empty: nothing to continue; give it text, or the tokenizer a BOS token"
        )
    sampled = engine.sample(prompt_ids, rule, sampling)
    return [_rollout(rule, *parts, row) for *parts, row in zip(texts, prompt_ids, sampled, strict=True)]


def _rollout(rule: StopRule, prompt: str, prompt_ids: list[int], row: tuple) -> Rollout:
    ids, logprobs, reason = row
    end = rule.find(ids)
    return Rollout(
        prompt=prompt,
        prompt_ids=tuple(prompt_ids),
        completion_ids=tuple(ids[: end.index]),
        completion=rule.text(ids, end),
        finish_reason=end.finish_reason,
        stop=end.stop,
        engine_finish_reason=reason,
        sampled_tokens=len(ids),
        logprobs=None if logprobs is None else tuple(logprobs[: end.index]),
    )
