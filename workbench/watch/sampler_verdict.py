"""Is the engine that samples the policy that is trained? The log-probs of one fixed text under both answer it, step by step.

The trainer knows what the text's log-probs are now, were at earlier steps and are without adapters; whichever of these the
engine's equal names the cause. Two are the same only where an update is smaller than the noise: then it cannot tell. In bf16
an update may be smaller than the rounding of the weights: then an engine in sync stays at its old log-probs too.

| the engine's log-probs of the text | cause |
|---|---|
| equal those of n steps ago, and go on with the trainer's | synced late |
| stay those that it was loaded with | not synced |
| stay those of the model without adapters, although weights are sent | LoRA not merged |
| follow the trainer's, from the first probe on off by what rounding makes of them | lost precision |
| differ between a request that may read the prefix cache and one that may not | stale prefix cache |
| cannot be compared: its token ids of the text are others | other tokenizer or template |
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

IN_SYNC, CANNOT_TELL, UNKNOWN = "in sync", "cannot tell", "another policy"
NOT_SYNCED, LATE, LORA = "not synced", "synced late", "LoRA not merged"
PRECISION, CACHE, TOKENS = "lost precision", "stale prefix cache", "other tokenizer or template"
CAUSES = (NOT_SYNCED, LATE, LORA, PRECISION, CACHE, TOKENS, UNKNOWN)
# Mean |difference| of a log-prob (nats) that two implementations in one dtype may have. Between bf16 engines and trainers
# about 0.012 is reported (trl #4772).
ROUNDING_NATS = {"float32": 2e-4, "float16": 0.01, "bfloat16": 0.05}
_START, _BASE = "start", "base"  # weights that the engine may have other than those of a step
_CLEAR = 4.0  # standard errors between two candidates that count as different
_LEAST_NOISE = 1e-6  # nats, of fp32
# Weights from which the engine is no further than this, in rms differences of the last step in sync, count as one: an
# engine in bf16 may stay where it is when the trainer moves, and rounding varies from step to step, by up to 1.5 on the toys.
_ROUNDED = 2.0


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt((values**2).mean()))


@dataclasses.dataclass(frozen=True)
class Probe:
    """The fixed text of T + 1 tokens at one step, right after the engine's weights should have been synced.

    Attributes:
        step: optimizer steps so far.
        trainer, engine: (T,) log-probs of its tokens; the engine's of a request that reads no prefix cache.
        plain, fresh: (K,) largest log-probs of the token after the text, sorted, of a request that may read the prefix
            cache and of one that may not; None where the engine caches nothing.
        cached_tokens: how many tokens of the plain request came from the cache; None where the engine does not report it.
    """

    step: int
    trainer: np.ndarray
    engine: np.ndarray
    plain: np.ndarray | None = None
    fresh: np.ndarray | None = None
    cached_tokens: int | None = None

    @property
    def difference(self) -> float:
        """Mean |engine - trainer| of a token, nats."""
        return float(np.abs(self.engine - self.trainer).mean())

    @property
    def rms(self) -> float:
        """Root mean square of engine - trainer, nats."""
        return _rms(self.engine - self.trainer)

    @property
    def cache_difference(self) -> float:
        """Largest |plain - fresh|, nats; 0 where nothing is cached."""
        return 0.0 if self.plain is None or self.fresh is None else float(np.abs(self.plain - self.fresh).max())


@dataclasses.dataclass(frozen=True)
class SamplerVerdict:
    """What the probes say of the engine.

    Attributes:
        cause: `in sync`, `cannot tell` or one of `CAUSES`.
        decided: False where the next steps can decide, or the update is too small to be seen.
        steps_behind: age of the engine's weights in optimizer steps; None where it is not known.
        difference: mean |engine - trainer| of a token, nats.
        text: what was seen, and what to do.
    """

    cause: str
    decided: bool
    steps_behind: int | None
    difference: float
    text: str

    @property
    def fault(self) -> bool:
        """Whether the engine is shown to be another policy than the trainer's."""
        return self.cause in CAUSES


def sampler_verdict(
    probes: Sequence[Probe],
    *,
    start: Probe | None = None,
    base: np.ndarray | None = None,
    reference: Probe | None = None,
    dtype: str = "float32",
    rounding: float | None = None,
) -> SamplerVerdict:
    """The verdict on the engine at the last of some probes.

    Args:
        probes: in the order of their steps, at least one.
        start: the trainer's log-probs of the weights that the engine was loaded with; `start.engine` is not used.
        base: (T,) the trainer's log-probs without its adapters; None without LoRA, and where no weights were sent at all.
        reference: a probe at which both were the same policy: its difference, rounding, is taken off the later ones.
        dtype: that the trainer computes in.
        rounding: mean |difference| (nats) that computing in bfloat16 makes of the trainer's log-probs of this text now;
            None where it was not measured.

    Example: an engine that has the weights of the step before. One update moved a log-prob by 0.3, the next one by 0.1.
        >>> text = np.linspace(-3, -1, 50)
        >>> first = Probe(0, text, text)
        >>> second = Probe(1, text + 0.3, text)
        >>> verdict = sampler_verdict([first, second], start=first)
        >>> verdict.cause, verdict.decided, verdict.steps_behind
        ('not synced', False, 1)
        >>> verdict = sampler_verdict([first, second, Probe(2, text + 0.4, text + 0.3)], start=first)
        >>> verdict.cause, verdict.decided, verdict.steps_behind
        ('synced late', True, 1)
    """
    now, before = probes[-1], probes[:-1]
    if diverged := _no_numbers(now):
        return diverged
    if stale := _stale_cache(now, before, dtype):
        return stale
    engine = now.engine - (reference.engine - reference.trainer if reference else 0)
    candidates: dict[int | str, np.ndarray] = {probe.step: probe.trainer for probe in probes}
    if start is not None:
        candidates[_START] = start.trainer
    if base is not None:
        candidates[_BASE] = base
    best, possible, noise = _closest(engine, candidates, prefer=now.step)
    # As far from every candidate, the engine is none of them.
    strange = (
        reference and noise > 2 * _ROUNDED * max(reference.rms, _LEAST_NOISE) and now.difference > ROUNDING_NATS[dtype]
    )
    rounded = _ROUNDED * reference.rms if reference else 0.0
    possible |= {p.step for p in probes if _rms(now.engine - p.trainer) <= rounded}
    if now.step in possible or strange:
        return _in_step(now, before, possible, max(noise, rounded), dtype, rounding, reference)
    origin = start.step if start is not None else probes[0].step
    return _stale_weights(now, before, best, possible, origin)


def _closest(engine: np.ndarray, candidates: Mapping, prefer) -> tuple[int | str, set, float]:
    """The candidate nearest to the engine, those that the noise cannot distinguish from it, and that noise.

    Between two candidates only the line from one to the other counts: the engine's place on it, 0 at one and 1 at the
    other, has a standard error of noise / distance.
    """
    best = min(candidates, key=lambda name: (float(((engine - candidates[name]) ** 2).sum()), name != prefer))
    residual = engine - candidates[best]
    noise = max(_rms(residual), _LEAST_NOISE)
    possible = set()
    for name, logprobs in candidates.items():
        gap = candidates[best] - logprobs
        distance = float(np.sqrt((gap**2).sum()))
        place = float((engine - logprobs) @ gap) / distance**2 if distance else 0.5
        if (place - 0.5) * distance < _CLEAR * noise:
            possible.add(name)
    return best, possible, noise


def _no_numbers(now: Probe) -> SamplerVerdict | None:
    """The verdict where log-probs are NaN or infinite; None where all are numbers."""
    trainer, engine = (int((~np.isfinite(logprobs)).sum()) for logprobs in (now.trainer, now.engine))
    if not trainer and not engine:
        return None
    text = f"of {len(now.trainer)} log-probs, {trainer} of the trainer and {engine} of the engine are not finite: "
    if trainer:
        text += "the training has diverged, so the engine cannot be judged."
        return SamplerVerdict(CANNOT_TELL, False, None, now.difference, text)
    return SamplerVerdict(UNKNOWN, True, None, now.difference, text + "the engine overflows, the trainer does not.")


def _stale_cache(now: Probe, before: Sequence[Probe], dtype: str) -> SamplerVerdict | None:
    """The verdict on a prefix cache that outlived its weights; None where there is none to be seen."""
    if not before:
        return None
    of_engine, of_trainer = (
        float(np.abs(x).mean()) for x in (now.engine - before[-1].engine, now.trainer - before[-1].trainer)
    )
    if of_engine <= max(0.01 * of_trainer, 10 * _LEAST_NOISE):  # but for rounding: what is cached has these weights
        return None
    apart = now.cache_difference
    if not now.cached_tokens and apart <= 10 * ROUNDING_NATS[dtype]:
        return None
    read = f"a request read {now.cached_tokens} tokens from it" if now.cached_tokens else "a request read it"
    text = (
        f"the engine's prefix cache holds states of earlier weights: {read} after the weights had changed, and its "
        f"next token's log-prob differs by {apart:.2g} from that of a request without the cache. Call reset_prefix_cache "
        "after each sync."
    )
    return SamplerVerdict(CACHE, True, None, now.difference, text)


def _in_step(now: Probe, before, possible: set, noise: float, dtype: str, rounding, reference) -> SamplerVerdict:
    """The verdict where no earlier weights fit better than the trainer's: in sync, cannot tell, or off by more than noise."""
    size = f"mean |difference| {now.difference:.2g} nats a token"
    most = ROUNDING_NATS[dtype]
    far = now.difference > most
    since_start = not before or (reference is not None and reference.difference > most)  # as lost precision is
    rounded = since_start and dtype == "float32" and rounding is not None and now.difference <= 2 * rounding
    if far and not rounded:
        text = (
            f"the engine is another policy than the trainer's: {size}, more than {dtype} explains, and the weights of no step "
            "that was probed fit better. "
        )
        if reference is None:
            text += "The cause is open: weights from elsewhere or reloaded in part (a tied head stays), another architecture, "
            text += "or lower precision."
        else:
            text += f"At step {reference.step} they were one policy: since then some weights did not arrive (norms, a layer, a "
            text += "tied head), or an update arrived twice or not at all. Compare the engine's parameters with the trainer's."
        return SamplerVerdict(UNKNOWN, True, None, now.difference, text)
    changed = [p for p in before if (p.trainer != now.trainer).any()]
    if changed and changed[-1].step in possible:
        since = next(p for p in changed if p.step in possible)
        text = (
            f"{size}; since step {since.step} the log-probs moved by {np.abs(now.trainer - since.trainer).mean():.2g}, too "
            f"little compared with a noise of {noise:.2g} from rounding to tell whether the engine has these updates."
        )
        return SamplerVerdict(CANNOT_TELL, False, None, now.difference, text)
    if far:
        text = (
            f"the engine follows the trainer in lower precision: {size}, {now.difference / rounding:.2g} times what "
            "bfloat16 makes of the trainer's own. On a server set --dtype float32; in process TRL has no option for it."
        )
        return SamplerVerdict(PRECISION, True, 0, now.difference, text)
    return SamplerVerdict(IN_SYNC, True, 0, now.difference, f"engine and trainer are one policy: {size}.")


def _stale_weights(now: Probe, before: Sequence[Probe], best: int | str, possible: set, origin: int) -> SamplerVerdict:
    """The verdict where other weights than the trainer's fit the engine."""
    old = now.step - (best if isinstance(best, int) else origin)
    size = f"mean |difference| {now.difference:.2g} nats a token"
    early = bool(before) and all(p.step in possible for p in before)  # a warm-up's first update changes nothing
    tail = ", or is one sync late; the next sync decides" if early else ""
    if _BASE in possible:
        text = f"the engine has the model without its adapters ({size}): LoRA is not merged into what is synced{tail}."
        return SamplerVerdict(LORA, not early, old, now.difference, text)
    if _START in possible or best == origin:
        text = f"{old} steps on, the engine still has the weights that it was loaded with ({size}): no sync has reached it, "
        text += f"or each is later than that{tail}."
        return SamplerVerdict(NOT_SYNCED, not early, old, now.difference, text)
    text = f"the engine has the weights of step {best}, {old} behind the trainer ({size}): synced late."
    return SamplerVerdict(LATE, True, old, now.difference, text)


def token_difference(trainer: Mapping[str, Sequence[int]], engine: Mapping[str, Sequence[int]]) -> str:
    """Return how token ids of what both have encoded (`text`, `conversation`) differ; empty where they do not.

    Example:
        >>> token_difference({"text": [5, 6, 7]}, {"text": [5, 6, 7]})
        ''
        >>> token_difference({"text": [5, 6, 7]}, {"text": [5, 9, 9, 7]})
        'the text is 3 tokens to the trainer and 4 to the engine; token 1 is 6 to the one and 9 to the other'
    """
    for name in trainer.keys() & engine.keys():
        ours, theirs = list(trainer[name]), list(engine[name])
        if ours == theirs:
            continue
        places = (n for n, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1])
        at = next(places, min(len(ours), len(theirs)))
        a, b = (ids[at] if at < len(ids) else "none" for ids in (ours, theirs))
        return (
            f"the {name} is {len(ours)} tokens to the trainer and {len(theirs)} to the engine; token {at} is {a} to the one "
            f"and {b} to the other"
        )
    return ""
