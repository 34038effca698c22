"""A fixed text under vLLM: its log-probs, what the prefix cache makes of them, and how the engine reads text.

Asked through vLLM's public interface, in process or over HTTP as TRL's client does. All requests are greedy, so that no random
number is drawn.
"""

import contextlib
from typing import Any

import numpy as np

from ..training.engine import unhooked
from ..training.rows import has_gpu

_TOP = 5  # log-probs of the next token
# The text begins as prompts of the training do. With a salt a request finds in the prefix cache only what the probe left there,
# not what the trainer has sampled since the last sync.
_SALT = "sampler probe"
# What tokenizers of one dictionary may read otherwise: capitals, accents, digits, white space.
_WRITTEN = "The Red naïve fox paid 1234.50 for\n\n  two  DOGS;\tdef f(x): return x**2"
_TALK = [{"role": "user", "content": "Name a colour."}, {"role": "assistant", "content": "Blue."}]


def encoded(tokenizer: Any) -> dict[str, list[int]]:
    """Ids of `_WRITTEN`, and of `_TALK` where the tokenizer has a template for it."""
    ids = {"text": tokenizer.encode(_WRITTEN)}
    if getattr(tokenizer, "chat_template", None):
        with contextlib.suppress(Exception):  # a template may ask for what this conversation lacks
            talk = tokenizer.apply_chat_template(_TALK, tokenize=False)
            ids["conversation"] = tokenizer.encode(talk, add_special_tokens=False)
    return ids


class EngineInProcess:
    """An engine of vLLM in this process."""

    def __init__(self, llm: Any):
        self._llm = llm
        config = llm.llm_engine.vllm_config
        self._caches = bool(config.cache_config.enable_prefix_caching)
        self.length = config.cache_config.block_size + 8, config.model_config.max_model_len - 1

    def ask(self, ids: list[int]) -> tuple:
        """Of `Probe` everything after the trainer's."""
        from vllm import SamplingParams

        options = {"max_tokens": 1, "temperature": 0.0, "logprobs": _TOP}
        params = [SamplingParams(**options, prompt_logprobs=0)]
        if self._caches:  # before the other, whose states it is to find only if they are old
            params.insert(0, SamplingParams(**options))
        prompts = [{"prompt_token_ids": ids, "cache_salt": _SALT}] * len(params)
        *plain, fresh = unhooked(self._llm, "generate")(prompts, params, use_tqdm=False)
        logprobs = [row[i].logprob for i, row in zip(ids[1:], fresh.prompt_logprobs[1:], strict=True)]
        tops = [np.sort([x.logprob for x in o.outputs[0].logprobs[0].values()])[-_TOP:] for o in (*plain, fresh)]
        return np.array(logprobs), *((*tops, plain[0].num_cached_tokens) if plain else ())

    def encode(self) -> dict[str, list[int]]:
        return encoded(self._llm.get_tokenizer())


class EngineServer:
    """A vLLM server, with the requests of TRL's client."""

    def __init__(self, generation: Any):
        self._client = client = generation.vllm_client
        (self._model,) = client.session.get(f"{client.base_url}/v1/models").json()["data"][:1]
        # A server does not report its block size: 128 tokens on a CPU, 16 on a GPU.
        self.length = (24 if has_gpu() else 136), int(self._model["max_model_len"]) - 1

    def _post(self, path: str, **fields) -> dict:
        answer = self._client.session.post(
            f"{self._client.base_url}{path}", json={"model": self._model["id"], **fields}
        )
        answer.raise_for_status()
        return answer.json()

    def _complete(self, ids: list[int], **fields) -> tuple[dict, int | None]:
        fields |= {"max_tokens": 1, "temperature": 0.0, "logprobs": _TOP, "return_tokens_as_token_ids": True}
        fields["cache_salt"] = _SALT
        answer = self._post("/v1/completions", prompt=ids, **fields)  # as ids, as two tokens may have one text
        details = answer["usage"].get("prompt_tokens_details") or {}
        return answer["choices"][0], details.get("cached_tokens")

    def ask(self, ids: list[int]) -> tuple:
        plain, cached_tokens = self._complete(ids)
        fresh, _ = self._complete(ids, prompt_logprobs=0)
        logprobs = [row[str(i)]["logprob"] for i, row in zip(ids[1:], fresh["prompt_logprobs"][1:], strict=True)]
        tops = [np.sort(list(c["logprobs"]["top_logprobs"][0].values()))[-_TOP:] for c in (plain, fresh)]
        return np.array(logprobs), *tops, cached_tokens

    def encode(self) -> dict[str, list[int]]:
        ids = {"text": self._post("/tokenize", prompt=_WRITTEN)["tokens"]}
        with contextlib.suppress(OSError):  # a server without a template refuses conversations
            ids["conversation"] = self._post("/tokenize", messages=_TALK, add_generation_prompt=False)["tokens"]
        return ids
