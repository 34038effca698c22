"""What a trainer asks of vLLM and gets back, watched and mended in one place: finish reasons, prompts, seeds, sharing.

TRL sends a batch in process as one request per row (`n=1`) and to a server as one request per prompt (`n=G`), with one
set of sampling parameters for all. A `seed` among these makes the copies of a prompt identical in process, and equal
prompts share their completions on a server (article A3, still live in TRL 1.12.0): zero advantage, without a word.
"""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from .groups import GroupError, identical_groups

_STRIDE = 1_000_003  # between the seeds of two requests; vLLM numbers the n samples of one request seed, seed + 1, ...


class EngineTap:
    """Stands between a `VLLMGeneration` and its engine, for as long as that generates; other calls of the engine pass.

    Args:
        generation: TRL's, in either mode.
        step: tells the training step and whether it trains, so that a resumed run draws what it would have drawn, and an
            evaluation moves no training.
        seed: every completion gets a random stream of its own, from this, the step and its place; None leaves randomness to
            the engine.
        share: send equal prompts as one request with as many samples as they need (claim A3.7).

    Attributes:
        reasons: the engine's finish reasons of the last generation, in the order of its completions.
        logprobs: of its completions' tokens, as the engine gave them.
        requests: prompts sent at the last generation.
        prompt_tokens: tokens of these prompts.
    """

    def __init__(
        self, generation, step: Callable[[], tuple[int, bool]], *, seed: int | None = None, share: bool = False
    ):
        self._generation, self._step, self._seed, self._share = generation, step, seed, share
        self._calls: dict[tuple[int, bool], int] = {}  # of this step: how often the engine was asked in it
        self._generating = False
        self.reasons: list[str] = []
        self.logprobs: list[list[float]] = []
        self.requests = self.prompt_tokens = 0
        self._original_generate = generation.generate
        generation.generate = self._generate
        if generation.mode == "colocate":
            self._engine_generate = generation.llm.generate
            generation.llm.generate = self._llm_generate
        elif generation.accelerator.is_main_process:
            self._engine_post = generation.vllm_client._post
            generation.vllm_client._post = self._post

    def _generate(self, prompts, *args, **kwargs):
        images = args[0] if args else kwargs.get("images")
        if images and any(images) and self._generation.mode == "server" and (self._share or self._seed is not None):
            raise GroupError(
                "generation_seed and share_generation: TRL asks a server for rows with images by another request, which "
                "takes neither; leave both out"
            )
        self.reasons = []
        self._now = self._step()
        self._calls = {now: n for now, n in self._calls.items() if now[0] == self._now[0]}
        self._calls[self._now] = self._calls.get(self._now, -1) + 1
        self._generating = True
        try:
            result = self._original_generate(prompts, *args, **kwargs)
        finally:
            self._generating = False
        self.logprobs = [[token[0] for token in row] for row in result[2]] if result[2] is not None else []
        cause = "in server mode every process must send equally many prompts"
        if images and any(images):
            cause = "vLLM expands image tokens that TRL has expanded already (trl #6294): sample with transformers"
        for row, (asked, got) in enumerate(zip(prompts, result[0], strict=True)):
            if list(asked) != list(got):
                raise GroupError(
                    f"row {row}: the engine answered another prompt ({list(got)[:8]}...) than the one the completion would "
                    f"be trained with ({list(asked)[:8]}...); {cause}"
                )
        return result

    def _seed_of(self, request: int) -> int | None:
        if self._seed is None:
            return None
        group = 0
        if self._generation.mode == "colocate":  # ranks that share an engine have to ask it alike
            group = self._generation.accelerator.process_index // self._generation.tensor_parallel_size
        step, training = self._now
        # Of integers only: the same in every process and session.
        mixed = hash((self._seed, step, self._calls[self._now], group, *(() if training else (1,))))
        return (mixed + request * _STRIDE) % 2**31

    def _llm_generate(self, prompts, sampling_params=None, *args, **kwargs):
        if not self._generating:
            return self._engine_generate(prompts, sampling_params, *args, **kwargs)
        if self._generation.tensor_parallel_size > 1 and self._share:
            raise GroupError("share_generation: not with vllm_tensor_parallel_size > 1, where ranks split the rows")
        # Equal ids with images are no equal prompts: such a row is a request of its own.
        ids = [tuple(p["prompt_token_ids"]) for p in prompts]
        alone = [n if p.get("multi_modal_data") else None for n, p in enumerate(prompts)]
        plan = self._plan(ids, list(zip(ids, alone, strict=True)))
        params = []
        for number, rows in enumerate(plan):
            own = sampling_params.clone()
            own.n, own.seed = len(rows), sampling_params.seed if self._seed is None else self._seed_of(number)
            params.append(own)
        outputs = self._engine_generate([prompts[rows[0]] for rows in plan], *args, sampling_params=params, **kwargs)
        dealt = [None] * len(prompts)
        for rows, output in zip(plan, outputs, strict=True):
            for row, sample in zip(rows, output.outputs, strict=True):
                dealt[row] = copy.copy(output)
                dealt[row].outputs = [sample]
        self.reasons = [output.outputs[0].finish_reason for output in dealt]
        return dealt

    def _post(self, url: str, *args, **kwargs):
        if not self._generating or not url.endswith("/v1/completions"):
            return self._engine_post(url, *args, **kwargs)
        body = kwargs["json"]
        prompts, n = body["prompt"], body["n"]
        keys = [tuple(p) for p in prompts]
        plan = self._plan(keys, keys)
        if self._seed is None and not self._share:
            answer = self._engine_post(url, **kwargs)
            self.reasons = [choice["finish_reason"] for choice in answer["choices"]]
            return answer
        choices = self._post_each(url, body, plan, n)
        self.reasons = [choice["finish_reason"] for choice in choices]
        return {"choices": choices}

    def _post_each(self, url: str, body: dict, plan: list[list[int]], n: int) -> list[dict]:
        """One request per entry of the plan, all at once; choices dealt out in the order of the prompts."""

        def send(number: int) -> list[dict]:
            rows = plan[number]
            own = body | {"prompt": [body["prompt"][rows[0]]], "n": n * len(rows)}
            if (seed := self._seed_of(number)) is not None:
                own["seed"] = seed
            return self._engine_post(url, json=own)["choices"]

        with ThreadPoolExecutor(min(64, len(plan))) as pool:
            answers = list(pool.map(send, range(len(plan))))
        dealt: list[list[dict]] = [[] for _ in body["prompt"]]
        for rows, choices in zip(plan, answers, strict=True):
            for place, row in enumerate(rows):
                dealt[row] = choices[place * n : (place + 1) * n]
        return [choice for choices in dealt for choice in choices]

    def _plan(self, ids: Sequence[tuple], keys: Sequence) -> list[list[int]]:
        """Rows of each request: one, or where requests are shared those of equal keys, in the order of their first."""
        rows: dict = {}
        for row, key in enumerate(keys):
            rows.setdefault(key if self._share else row, []).append(row)
        plan = list(rows.values())
        self.requests, self.prompt_tokens = len(plan), sum(len(ids[rows[0]]) for rows in plan)
        return plan


def improbable_copies(ids: Sequence, logprobs: Sequence, num_generations: int) -> list[int]:
    """Groups of G identical samples that chance cannot explain: seeded alike, or dealt from one request.

    G samples coincide by chance with probability `p ** (G - 1)`; a sharp policy does that rightly, so only groups below
    `exp(-30)` are named.

    Args:
        ids: B rows of completion ids.
        logprobs: B rows of their log-probabilities under the sampling distribution.
        num_generations: G.
    """
    found = []
    for group in identical_groups([list(row) for row in ids], num_generations):
        total = sum(x for x in logprobs[group * num_generations] if x is not None)
        if total * (num_generations - 1) < -30:
            found.append(group)
    return found
