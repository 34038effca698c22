"""vLLM under a trainer: the one place that touches `llm.generate`, a server's requests and the weight sync.

`hook` puts a function around a method and takes it off again, so the trainer's request control, the sampler's proof and the
record of a stock trainer share one engine in any order.

TRL sends a batch in process as one request per row (`n=1`) and to a server as one request per prompt (`n=G`), with one
set of sampling parameters for all. A `seed` among these makes the copies of a prompt identical in process, and equal
prompts share their completions on a server: zero advantage, without an error. `EngineRequests` gives each its own.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .groups import GroupError, identical_groups

_STRIDE = 1_000_003  # between the seeds of two requests; vLLM numbers the n samples of one request seed, seed + 1, ...


class _Hooked:
    """A method with functions around it, the last one outermost."""

    def __init__(self, owner: Any, name: str):
        self._owner, self._name, self._own = owner, name, vars(owner).get(name)
        self.original: Callable = getattr(owner, name)
        self.around: list[Callable] = []
        setattr(owner, name, self)

    def restore(self) -> None:
        if self._own is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._own)

    def __call__(self, *args: Any, **kwargs: Any):
        call = self.original
        for around in self.around:
            call = functools.partial(around, call)
        return call(*args, **kwargs)


def hook(owner: Any, name: str, around: Callable) -> Callable[[], None]:
    """Call `around(original, *args, **kwargs)` in place of `owner.name(*args, **kwargs)`; returns what takes it off.

    Example:
        >>> class Engine:
        ...     def ask(self, n):
        ...         return n + 1
        >>> engine = Engine()
        >>> off = hook(engine, "ask", lambda original, n: 10 * original(n))
        >>> engine.ask(1), unhooked(engine, "ask")(1)
        (20, 2)
        >>> off()
        >>> engine.ask(1), vars(engine)
        (2, {})
    """
    hooked = vars(owner).get(name)
    if not isinstance(hooked, _Hooked):
        hooked = _Hooked(owner, name)
    hooked.around.append(around)

    def off() -> None:
        if around in hooked.around:
            hooked.around.remove(around)
            if not hooked.around and vars(owner).get(name) is hooked:
                hooked.restore()

    return off


def unhooked(owner: Any, name: str) -> Callable:
    """`owner.name` as it is without hooks."""
    method = getattr(owner, name)
    return method.original if isinstance(method, _Hooked) else method


def unhook(owner: Any, name: str) -> None:
    """Take off every hook: an engine that several trainers use one after another starts clean."""
    hooked = vars(owner).get(name)
    if isinstance(hooked, _Hooked):
        hooked.restore()


def generation_of(trainer: Any):
    """Return what samples for a trainer: TRL's `VLLMGeneration`, which may be given itself."""
    return getattr(trainer, "vllm_generation", trainer)


def hook_sync(generation: Any, around: Callable) -> Callable[[], None]:
    """`around(original)` at each weight sync."""
    return hook(generation, "sync_weights", around)


def hook_generate(generation: Any, around: Callable) -> Callable[[], None]:
    """`around(original, prompts, images, ...)` at each generation of the trainer's."""
    return hook(generation, "generate", around)


def hook_requests(generation: Any, around: Callable) -> Callable[[], None]:
    """`around(original, ...)` at each `llm.generate`, or at each POST of a server's client (there in the main process)."""
    if generation.mode == "colocate":
        return hook(generation.llm, "generate", around)
    client = getattr(generation, "vllm_client", None)
    return hook(client, "_post", around) if client is not None else (lambda: None)


def finish_reasons(answer: Any) -> list[str]:
    """The engine's finish reasons, of `llm.generate`'s outputs or a server's answer."""
    if isinstance(answer, dict):
        return [choice["finish_reason"] for choice in answer.get("choices", ())]
    return [sample.finish_reason for output in answer or () for sample in output.outputs]


class EngineRequests:
    """The requests of a trainer while it generates, seeded and shared; other calls of the engine pass unchanged.

    Of the last generation it has the engine's finish reasons, its log-probs in process, and the prompts and tokens sent.

    Args:
        generation: TRL's `VLLMGeneration`, in either mode.
        step: returns the training step and whether it trains, so that a resumed run samples what it would have sampled,
            and an evaluation does not change the training.
        seed: of the random stream that every completion gets for itself.
        share: send equal prompts as one request with as many samples as they need.
        run_seed: taken as `seed` on a server, whose own stream is not the training's; None leaves it to the server.
    """

    def __init__(
        self,
        generation: Any,
        step: Callable,
        *,
        seed: int | None = None,
        share: bool = False,
        run_seed: int | None = None,
    ):
        self._generation, self._step, self._share = generation, step, share
        self._asked = share or seed is not None
        self._seed = run_seed if seed is None and generation.mode == "server" else seed
        self._calls: dict[tuple[int, bool], int] = {}  # of this step: requests of it so far
        self._generating = False
        self.reasons: list[str] = []
        self.logprobs: list[list[float]] = []
        self.requests = self.prompt_tokens = 0
        hook_generate(generation, self._generate)
        hook_requests(generation, self._in_process if generation.mode == "colocate" else self._on_server)

    def _generate(self, original: Callable, prompts: Any, *args: Any, **kwargs: Any):
        images = args[0] if args else kwargs.get("images")
        if images and any(images) and self._generation.mode == "server" and self._asked:
            raise GroupError(
                "generation_seed and share_generation: TRL sends prompts with images to a server in another kind of request, "
                "which has neither option; leave both out"
            )
        self.reasons = []
        self._now = self._step()
        self._calls = {now: n for now, n in self._calls.items() if now[0] == self._now[0]}
        self._calls[self._now] = self._calls.get(self._now, -1) + 1
        self._generating = True
        try:
            result = original(prompts, *args, **kwargs)
        finally:
            self._generating = False
        sampled = result[2] if self._generation.mode == "colocate" else None  # a server's may know no temperature
        self.logprobs = [[token[0] for token in row] for row in sampled or ()]
        cause = "in server mode every process must send equally many prompts"
        if self._generation.mode == "colocate":
            cause = "in process the engine, or what wraps its `generate`, answered another prompt"
        if images and any(images):
            cause = "vLLM expands image tokens that TRL has expanded already (trl #6294): sample with transformers"
        for row, (asked, got) in enumerate(zip(prompts, result[0], strict=True)):
            if list(asked) != list(got):
                raise GroupError(
                    f"row {row}: the engine completed the prompt {list(got)[:8]}..., but the completion would be trained "
                    f"with the prompt {list(asked)[:8]}...; {cause}"
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

    def _in_process(self, original: Callable, prompts: Any, sampling_params: Any = None, *args: Any, **kwargs: Any):
        if not self._generating:
            return original(prompts, sampling_params, *args, **kwargs)
        if self._generation.tensor_parallel_size > 1 and self._share:
            raise GroupError("share_generation=True: expected vllm_tensor_parallel_size=1; else ranks split the batch")
        # Equal ids with images are no equal prompts: such a row is a request of its own.
        ids = [tuple(p["prompt_token_ids"]) for p in prompts]
        alone = [n if p.get("multi_modal_data") else None for n, p in enumerate(prompts)]
        plan = self._plan(ids, list(zip(ids, alone, strict=True)))
        params = []
        for number, rows in enumerate(plan):
            own = sampling_params.clone()
            own.n, own.seed = len(rows), sampling_params.seed if self._seed is None else self._seed_of(number)
            params.append(own)
        outputs = original([prompts[rows[0]] for rows in plan], *args, sampling_params=params, **kwargs)
        dealt: list[Any] = [None] * len(prompts)
        for rows, output in zip(plan, outputs, strict=True):
            for row, sample in zip(rows, output.outputs, strict=True):
                dealt[row] = copy.copy(output)
                dealt[row].outputs = [sample]
        self.reasons = finish_reasons(dealt)
        return dealt

    def _on_server(self, original: Callable, url: str, *args: Any, **kwargs: Any):
        if not self._generating or not url.endswith("/v1/completions"):
            return original(url, *args, **kwargs)
        body = kwargs["json"]
        keys = [tuple(p) for p in body["prompt"]]
        plan = self._plan(keys, keys)
        answer = {"choices": self._post_each(original, url, body, plan, body["n"])}
        self.reasons = finish_reasons(answer)
        return answer

    def _post_each(self, original: Callable, url: str, body: dict, plan: list[list[int]], n: int) -> list[dict]:
        """One request per entry of the plan, all at once; choices dealt out in the order of the prompts."""

        def send(number: int) -> list[dict]:
            rows = plan[number]
            own = body | {"prompt": [body["prompt"][rows[0]]], "n": n * len(rows)}
            if (seed := self._seed_of(number)) is not None:
                own["seed"] = seed
            return original(url, json=own)["choices"]

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
    `exp(-30)` are named. `ids` and `logprobs` have B rows, of completions and under the sampling distribution.
    """
    totals = [sum(x for x in row if x is not None) for row in logprobs[::num_generations]]
    return [g for g in identical_groups(ids, num_generations) if totals[g] * (num_generations - 1) < -30]
