"""Stock GRPO on vLLM whose sampler is not quite the policy: other log-probs, weights that come late, in part or never."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from ...training.engine import generation_of, hook_sync
from ...training.sync_on_cpu import reload_colocated
from ...watch.sampler_probe import attach_sampler_probe
from ..arms import ObservedGRPOTrainer
from ..vllm_server import shared_engine


@contextlib.contextmanager
def logprobs_of(llm: Any, mode: str) -> Iterator[None]:
    """While open, an engine of vLLM in this process gives the log-probs of another `logprobs_mode` than it was started with.

    `processed_logprobs`, which TRL asks for, are of what was sampled from; `raw_logprobs`, vLLM's default, are before
    temperature, top-k and top-p.
    """
    sampler = llm.llm_engine.model_executor.driver_worker.model_runner.sampler
    with contextlib.ExitStack() as stack:
        # The second model runner, vLLM's default where Triton is, has one part in the place of two.
        for part in filter(None, (sampler, getattr(sampler, "topk_topp_sampler", None))):
            stack.enter_context(mock.patch.object(part, "logprobs_mode", mode))
        yield


def engine_in(dtype: str, path: str) -> Any:
    """An engine of a model in another dtype, kept as `shared_engine` does, with the log-probs that TRL takes."""
    return shared_engine(path, dtype=dtype, max_model_len=256, logprobs_mode="processed_logprobs")


class RatioGRPOTrainer(ObservedGRPOTrainer):
    """Stock GRPO that logs what its importance-sampling correction does, which TRL's own metrics leave out.

    Logs, of the rows of a step: `ratio/masked`, the share whose weight the correction sets to 0, and `ratio/weight`, the mean
    weight that is left. The engine is asked for the log-probs that TRL takes, whatever it was started with.
    """

    logprobs_mode = "processed_logprobs"

    def _generate(self, prompts: list):
        with logprobs_of(self.vllm_generation.llm, self.logprobs_mode):
            return super()._generate(prompts)

    def _generate_and_score_completions(self, inputs: list):
        output = super()._generate_and_score_completions(inputs)
        if (ratio := output.get("importance_sampling_ratio")) is not None:
            metrics = self._metrics["train" if self.model.training else "eval"]
            metrics["ratio/masked"].append(float((ratio == 0).float().mean()))
            metrics["ratio/weight"].append(float(ratio.mean()))
        return output


class RawLogprobsGRPOTrainer(RatioGRPOTrainer):
    """The same with the log-probs that `vllm serve` gives by default: before temperature, top-k and top-p."""

    logprobs_mode = "raw_logprobs"


class FaultyGRPOTrainer(RatioGRPOTrainer):
    """Stock GRPO with the sampler's proof attached. A child says what the engine gets in place of the policy."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._start = self._weights()
        hook_sync(generation_of(self), self._sync)
        attach_sampler_probe(self, every=1)

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    def _sent(self) -> dict[str, torch.Tensor]:
        return {}

    def _sync(self, original: Callable[[], None]) -> None:
        own = self._weights()
        self.model.load_state_dict(self._sent(), strict=False)
        original()
        self.model.load_state_dict(own, strict=False)


class ReloadedGRPOTrainer(FaultyGRPOTrainer):
    """Its engine loads the model that it was started with again after each sync, as some do when they wake up."""

    def _sync(self, original: Callable[[], None]) -> None:
        original()
        reload_colocated(self.vllm_generation.llm, self._start.items())


class UnmergedGRPOTrainer(FaultyGRPOTrainer):
    """With LoRA: what is synced leaves the adapter out."""

    def _sent(self) -> dict[str, torch.Tensor]:
        return {name: torch.zeros_like(value) for name, value in self._start.items() if "lora_B" in name}


class StaleCacheGRPOTrainer(FaultyGRPOTrainer):
    """Its engine keeps its prefix cache at each sync but the first: prompts that begin alike read states of old weights."""

    _first = True

    def _sync(self, original: Callable[[], None]) -> None:
        kept = mock.patch.object(self.vllm_generation.llm, "reset_prefix_cache", lambda *_, **__: None)
        with contextlib.nullcontext() if self._first else kept:
            original()
        self._first = False


def late_by(updates: int | None) -> type[FaultyGRPOTrainer]:
    """Stock GRPO whose engine samples with the weights of so many updates ago.

    0 is in time, None is never: the engine keeps the weights of the first sync.

    Example:
        >>> late_by(2).__name__, late_by(None).__name__
        ('LateBy2', 'NeverSynced')
    """
    name = "NeverSynced" if updates is None else f"LateBy{updates}"
    return type(name, (_LateGRPOTrainer,), {"updates": updates, "__doc__": late_by.__doc__})


class _LateGRPOTrainer(FaultyGRPOTrainer):
    updates: int | None = 0

    def _sent(self) -> dict[str, torch.Tensor]:
        if self.updates is None:
            return self._start
        self._last = [*getattr(self, "_last", ()), self._weights()][-self.updates - 1 :]
        return self._last[0]
