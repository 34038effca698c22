"""Proof while it trains that vLLM samples from the policy that is trained: one fixed text, scored by both after a sync.

The cause of a difference is found by `sampler_verdict.py`; here trainer and engine are asked. The engine computes
the text once for its log-probs, always without its prefix cache, and once as any request, from the cache where it has it.
No random number is drawn: the training goes on as it would have gone without.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object, is_peft_model

from ..consistency.padding import pad_batch, token_logprobs
from ..consistency.positions import window
from ..errors import ParameterError, RunError, warn_user
from ..training.callback import LiveCallback, add_to_log, attach_first, say
from ..training.engine import generation_of, hook_generate, hook_requests, hook_sync
from ..training.rows import is_of_a_step, tokenizer_of
from .padding_monitor import prompts_of_all_lengths
from .probe_engines import EngineInProcess, EngineServer, encoded
from .sampler_verdict import (
    IN_SYNC,
    PRECISION,
    ROUNDING_NATS,
    TOKENS,
    UNKNOWN,
    Probe,
    SamplerVerdict,
    sampler_verdict,
    token_difference,
)

_FIRST = 3  # probes made whatever they cost: a cause shows after two updates
_KEPT = 16  # earlier steps whose log-probs are kept


class SamplerProbe(LiveCallback):
    """Compares engine and trainer after syncs, logs what it sees and warns once of each cause.

    Logs, with the trainer's metrics: `sampler/difference`, mean |engine - trainer| of a token's log-prob, nats;
    `sampler/steps_behind`, the age of the engine's weights, left out where it is not known; `sampler/cache_difference`, what
    the prefix cache changes of a log-prob, nats. The first three syncs are always probed, and so is the step after one whose
    verdict was open. `verdicts` has `(step, verdict)` of each probe.
    """

    name = "sampler's probe"

    def __init__(self, trainer: Any, every: int | None = None):
        super().__init__(trainer, every)
        generation = generation_of(trainer)
        in_process = generation.mode == "colocate"
        self._engine = self._connected(generation, in_process)
        self._prompts = _prompts(trainer)
        self.text = self._of_length()
        self.probes: deque[Probe] = deque(maxlen=_KEPT)
        self.verdicts: list[tuple[int, SamplerVerdict]] = []
        self._start = self._logprobs() if _weights_are_local(trainer) else None
        self._base: np.ndarray | None = None
        self._reference: Probe | None = None
        self._rounding: float | None = None
        self._syncs = 0
        self._count = 0  # of probes
        self._last_step = -1  # that was probed
        self._due = False
        self._warned: set[str] = set()
        self._numbers: dict[str, float] = {}
        self._hooks = [hook_sync(generation, self._around_sync), hook_generate(generation, self._around_generate)]
        if in_process:  # a probe comes before the engine may sleep again
            self._hooks.append(hook_requests(generation, self._around_engine))

    def _connected(self, generation: Any, in_process: bool) -> EngineInProcess | EngineServer | None:
        """The engine of this process, or on rank 0 the server."""
        engine: EngineInProcess | EngineServer | None = None
        failed: Exception | None = None
        try:
            if in_process:
                engine = EngineInProcess(generation.llm)
            elif self._trainer.accelerator.is_main_process:
                engine = EngineServer(generation)
        except Exception as error:  # raised below, in all processes
            failed = error
        if self._in_any_process(failed is not None):
            raise failed or RunError("another process cannot ask its engine")
        return engine

    def _in_any_process(self, flag: bool) -> bool:
        """True in every process if it is true in any: processes that share the weights have to score together."""
        return any(gather_object([flag])) if self._trainer.accelerator.num_processes > 1 else flag

    def _of_length(self) -> list[int]:
        """Prompts joined: a cache block of the engine and some tokens more."""
        sizes = [self._engine.length if self._engine else (0, 0)]
        if self._trainer.accelerator.num_processes > 1:
            sizes = broadcast_object_list(sizes)
        limits = [limit for limit in (*sizes[0], window(self._trainer.model)) if limit]
        ids = [i for row in self._prompts for i in row]
        return (ids * (min(limits) // len(ids) + 1))[: min(limits)]

    def _around_sync(self, original: Callable, *args: Any, **kwargs: Any):
        self._syncs += 1
        return original(*args, **kwargs)

    def _around_generate(self, original: Callable, *args: Any, **kwargs: Any):
        self._due = self._is_due()
        result = original(*args, **kwargs)
        self._probe_once()
        return result

    def _around_engine(self, original: Callable, *args: Any, **kwargs: Any):
        result = original(*args, **kwargs)
        self._probe_once()  # no probe is pending for calls outside the trainer
        return result

    def _is_due(self) -> bool:
        step = self._trainer.state.global_step
        due = step != self._last_step and self._may_take_time(step)
        if self._trainer.accelerator.num_processes > 1:
            due = broadcast_object_list([due])[0]
        self.on = not self._in_any_process(not self.on)
        return due and self.on

    def _may_take_time(self, step: int) -> bool:
        if self._count < _FIRST or self._suspicious():
            return True
        if self._every is not None:
            return step - self._last_step >= self._every
        return self.affordable(self.seconds / self._count)

    def _suspicious(self) -> bool:
        """Say whether the next step decides: another policy may be the trainer's of a step that was not probed, once."""
        causes = [verdict.cause for _, verdict in self.verdicts[-2:]]
        if causes[-1:] == [UNKNOWN]:
            return causes.count(UNKNOWN) == 1
        return bool(causes) and self.verdicts[-1][1].fault and not self.verdicts[-1][1].decided

    def _probe_once(self) -> None:
        if not self._due:
            return
        self._due, self._last_step = False, self._trainer.state.global_step
        self.guarded(self._compare)
        self._count += 1

    def _compare(self) -> None:
        step, trainer = self._trainer.state.global_step, self._logprobs()
        if is_peft_model(self._trainer.model) and self._base is None:
            with self._trainer.model.disable_adapter():
                self._base = self._logprobs()
        verdict: SamplerVerdict | None = None
        failed: Exception | None = None
        try:
            if self._engine is not None:
                verdict = self._probe_engine(self._engine, step, trainer)
        except Exception as error:  # raised below, after what all processes do together
            failed = error
        open_question = verdict is not None and verdict.cause == UNKNOWN
        if self._in_any_process(open_question and _dtype(self._trainer) == "float32"):
            self._rounding = self._bf16_error(trainer)
            verdict = self._verdict() if verdict is not None else None
        if failed is not None:
            raise failed
        if verdict is not None:
            self._accept(step, verdict)

    def _probe_engine(self, engine: Any, step: int, trainer: np.ndarray) -> SamplerVerdict:
        """The verdict with what the engine gives for the text."""
        self.probes.append(Probe(step, trainer, *engine.ask(self.text)))
        if self._count == 0:
            if step == 0:
                self._start = trainer  # what the engine was loaded with, as the training computes it
            self._compare_tokens(step, engine)
        return self._verdict()

    def _accept(self, step: int, verdict: SamplerVerdict) -> None:
        # What is the same policy but for rounding shows what rounding is; open questions wait until more has changed.
        if verdict.cause in (IN_SYNC, PRECISION):
            self._reference = self.probes[-1]
        self._report(step, verdict)
        self._numbers = {"sampler/difference": verdict.difference}
        self._numbers["sampler/cache_difference"] = self.probes[-1].cache_difference
        if verdict.steps_behind is not None:
            self._numbers["sampler/steps_behind"] = verdict.steps_behind

    def _verdict(self) -> SamplerVerdict:
        start = None if self._start is None else Probe(0, self._start, self._start)
        return sampler_verdict(
            list(self.probes),
            start=start,
            base=self._base if self._syncs else None,
            reference=self._reference,
            dtype=_dtype(self._trainer),
            rounding=self._rounding,
        )

    def _report(self, step: int, verdict: SamplerVerdict) -> None:
        self.verdicts.append((step, verdict))
        if verdict.fault and verdict.decided and verdict.cause not in self._warned:
            self._warned.add(verdict.cause)
            warn_user(f"vLLM at step {step}, {verdict.cause}: {verdict.text}")

    def _compare_tokens(self, step: int, engine: Any) -> None:
        if text := token_difference(encoded(tokenizer_of(self._trainer)), engine.encode()):
            text += ". Save tokenizer and model to one folder (save_policy) and start the engine from it."
            self._report(step, SamplerVerdict(TOKENS, True, None, self.probes[-1].difference, text))

    def _logprobs(self) -> np.ndarray:
        """(T,) of the text under the trainer's weights, at temperature 1; a text alone has no padding."""
        model = self._trainer.model
        batch = {name: x.to(self._trainer.accelerator.device) for name, x in pad_batch([self.text], 0).items()}
        return token_logprobs(model, batch, positions="implicit")[0].double().cpu().numpy()

    def _bf16_error(self, trainer: np.ndarray) -> float:
        """Mean |difference| that bf16 makes of the trainer's log-probs of the text."""
        with torch.autocast(self._trainer.accelerator.device.type, torch.bfloat16):
            rounded = self._logprobs()
        return float(np.abs(rounded - trainer).mean())

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any):
        if not is_of_a_step(logs):
            return
        add_to_log(self._numbers, logs, state)
        self._numbers = {}


def attach_sampler_probe(trainer: Any, *, every: int | None = None) -> SamplerProbe | None:
    """Attach a `SamplerProbe` to a trainer, stock or the workbench's; None where it does not sample with vLLM.

    A trainer has at most one probe: a second call returns the first probe. It runs before all other callbacks, so that
    everything that writes logs gets its numbers.

    Args:
        trainer: TRL's GRPO or RLOO trainer, or a subclass; attach the probe before `train()`.
        every: optimizer steps between two probes; None: as often as 1% of the training's time allows.

    Raises:
        ParameterError: `every` below 1.
    """
    if not getattr(trainer.args, "use_vllm", False):
        return None
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, SamplerProbe):
            return callback
    try:
        probe = SamplerProbe(trainer, every)
    except ParameterError:
        raise
    except Exception as error:  # a trainer or engine of a kind not known here is still to train
        say(f"the sampler is not probed, the training goes on: {type(error).__name__}: {str(error)[:300]}")
        return None
    attach_first(trainer, probe)
    return probe


def _dtype(trainer: Any) -> str:
    """Return what the trainer's forward passes compute in."""
    if trainer.args.bf16 or trainer.args.fp16:
        return "bfloat16" if trainer.args.bf16 else "float16"
    own = str(next(trainer.model.parameters()).dtype).removeprefix("torch.")
    return own if own in ROUNDING_NATS else "bfloat16"


def _weights_are_local(trainer: Any) -> bool:
    """Say whether the model can be scored before `train()`: not where its weights are spread over processes."""
    return trainer.accelerator.distributed_type.value in ("NO", "MULTI_CPU", "MULTI_GPU")


def _prompts(trainer: Any) -> list[list[int]]:
    """Token ids of some prompts of the training, or of a sentence where they cannot be read."""
    try:
        return prompts_of_all_lengths(trainer)
    except Exception:  # no data set, rows of a form of their own
        return [tokenizer_of(trainer).encode("What is asked here, and what is a good answer to it?")]
