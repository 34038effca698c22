"""The cost of sampling without a stop, before any training: the same prompts, with EOS as the stop and without one."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from transformers import AutoModelForCausalLM, AutoTokenizer

from ...curves.stats import Interval
from ...errors import ParameterError
from ...generation.stops import StopRule, StopSpec
from ..sampling import Sampling, TransformersSampler, generate
from .ppo_learning import ratio_of

ROWS = 16  # completions of a batch, as of an update of notebook 01
ARMS = {"no stop": StopSpec.never(), "stop at EOS": StopSpec()}


def count_eos(rows: Sequence[Sequence[int]], eos_ids: Collection[int]) -> dict[str, int]:
    """Count what lies behind the first EOS in completions that were sampled without a stop.

    Args:
        rows: token ids of each completion.
        eos_ids: every EOS id of the model.

    Returns:
        `tokens` of all completions; `after EOS`, of these the ones behind a completion's first EOS; `with EOS`, how many
        completions have one; `longest`, the tokens of the longest completion up to its EOS.

    Example:
        >>> count_eos([[7, 8, 2, 9, 2], [7, 8, 9, 9, 9], [2, 7, 7, 7, 7]], {2})
        {'tokens': 15, 'after EOS': 6, 'with EOS': 2, 'longest': 5}
    """
    lengths = [len(row) for row in rows]
    ends = [next((n for n, one in enumerate(row, 1) if one in eos_ids), 0) for row in rows]
    kept = [end or length for end, length in zip(ends, lengths, strict=True)]
    return {
        "tokens": sum(lengths),
        "after EOS": sum(lengths) - sum(kept),
        "with EOS": sum(end > 0 for end in ends),
        "longest": max(kept, default=0),
    }


def sampled_twice(
    model: str, prompts: Sequence[str | Sequence[Mapping]], limit: int, *, temperature: float = 0.7, seed: int = 0
) -> Iterator[dict[str, float]]:
    """Sample each batch of 16 prompts twice with the same seed, without a stop and with EOS as the stop; count what it takes.

    The batches are the same in both arms. A completion is then the same up to its EOS, because each row of a batch draws at
    each position, whether it has ended or not. The arm that begins alternates, as seconds depend on what ran before.

    Args:
        model: folder or hub id of a causal language model.
        prompts: texts, or messages for the chat template; at least one.
        limit: token limit of a completion, at least 1.
        temperature: 0.7 is the default of TRL's `PPOConfig`.
        seed: of the first batch; the next batches have the next numbers.

    Yields:
        For each batch the counts of `count_eos`, `completions`, `same up to EOS` (completions that are equal in both arms up
        to EOS), and for each arm its `passes` (forward passes of the model) and `seconds`.

    Raises:
        ParameterError: no prompts, or a tokenizer and generation config without an EOS.
    """
    if not prompts or isinstance(prompts, str):
        raise ParameterError(f"prompts={prompts!r}: expected a list of at least one prompt")
    tokenizer = AutoTokenizer.from_pretrained(model)
    policy = AutoModelForCausalLM.from_pretrained(model).eval()
    eos_ids = StopRule(StopSpec(), tokenizer, policy.generation_config).eos_ids
    sampler = TransformersSampler(policy, tokenizer)
    passes: list[int] = []
    policy.register_forward_hook(lambda *_: passes.append(1))
    generate(sampler, prompts[:1], sampling=Sampling(2, temperature))  # the first call of a model takes longer
    for number, start in enumerate(range(0, len(prompts), ROWS)):
        sampling = Sampling(limit, temperature, seed=seed + number)
        rows, batch = {}, {}
        for arm in list(ARMS) if number % 2 == 0 else list(ARMS)[::-1]:
            passes.clear()
            began = time.perf_counter()
            rollouts = generate(sampler, prompts[start : start + ROWS], stops=ARMS[arm], sampling=sampling)
            batch[f"seconds, {arm}"] = time.perf_counter() - began
            batch[f"passes, {arm}"] = len(passes)
            rows[arm] = [rollout.completion_ids for rollout in rollouts]
        pairs = zip(rows["no stop"], rows["stop at EOS"], strict=True)
        same = sum(free[: len(ended)] == ended for free, ended in pairs)
        counts = count_eos(rows["no stop"], eos_ids)
        yield counts | {"completions": len(rows["no stop"]), "same up to EOS": same} | batch


def ratio_of_arms(batches: pd.DataFrame, what: str, rng: np.random.Generator) -> Interval:
    """Divide the `passes` or `seconds` without a stop by those with one: geometric mean over batches, with its interval."""
    return ratio_of(batches[f"{what}, no stop"], batches[f"{what}, stop at EOS"], rng)
