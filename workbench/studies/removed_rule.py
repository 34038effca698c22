"""The rule that broke equal prompts, beside the one that replaced it, and put back into TRL (notebook 04, article A3)."""

import contextlib
import inspect
import itertools
import textwrap
from collections.abc import Sequence
from unittest import mock

import pandas as pd
import trl
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration

from ..errors import RunError
from ..recipes.recipes import load_prompts
from ..toys.search_task import CLOSE
from ..training.groups import check_groups
from .duplicate_prompts import equal_prompt_batch, make_trainer, score_batch


def unique_prompts(prompts: Sequence) -> list:
    """TRL's removed rule, `list(dict.fromkeys(prompts))`, kept to reproduce the shape error (trl #3045, claim A3.1).

    Example:
        >>> unique_prompts(["a", "a", "a", "a"])  # two groups of two, and one prompt left
        ['a']
    """
    return list(dict.fromkeys(prompts))


def strided_prompts(prompts: Sequence, num_generations: int) -> list:
    """Every `num_generations`-th prompt: one per group, in order, equal prompts included (claim A3.4).

    Args:
        prompts: B = P x G prompts, each G times in a row.
        num_generations: G.

    Returns:
        P prompts.

    Raises:
        GroupError: B is no multiple of G, or a group holds more than one prompt.

    Example:
        >>> strided_prompts(["a", "a", "a", "a"], 2)
        ['a', 'a']
    """
    check_groups(prompts, num_generations)
    return list(prompts[::num_generations])


def with_removed_rule():
    """While open, TRL's server branch takes the set of the prompts where it takes every G-th: the bug of A3, put back.

    Raises:
        RunError: this TRL has no such line any more.
    """
    source = textwrap.dedent(inspect.getsource(VLLMGeneration.generate))
    stride, rule = "all_prompts[::num_generations]", "[list(p) for p in dict.fromkeys(map(tuple, all_prompts))]"
    if stride not in source:
        raise RunError(
            f"TRL {trl.__version__}: VLLMGeneration.generate has no {stride}; the old rule cannot be put back"
        )
    found: dict = {}
    exec(source.replace(stride, rule), vars(vllm_generation), found)
    return mock.patch.object(VLLMGeneration, "generate", found["generate"])


def removed_rule_table(path: str, *, num_generations: int, url: str | None) -> pd.DataFrame:
    """Two groups through stock GRPO, with the removed rule back in TRL and with today's, on each back end (A3.1 to A3.4).

    Args:
        path: of the search task's model.
        num_generations: G.
        url: of a vLLM server of that model; None leaves it out.

    Returns:
        A row per back end, rule and pair of prompts: `prompts` and `completions` of the batch, and the `error` of TRL's own
        scoring, empty where there was none.
    """
    data, rows = load_prompts("search").to_list(), []
    places = {"transformers": {"vllm": False}}
    if url:
        places["vLLM server"] = {"vllm": True, "url": url, "generation_kwargs": {"stop": [CLOSE]}}
    cases = itertools.product(places.items(), ("removed", "every G-th"), (("equal", 1.0), ("different", 0.0)))
    for (place, how), rule, (pair, equal) in cases:
        batch = equal_prompt_batch(data, 2, num_generations, equal)
        trainer = make_trainer(trl.GRPOTrainer, path, len(batch), **how)
        with with_removed_rule() if rule == "removed" else contextlib.nullcontext():
            completions, error = _sampled_and_scored(trainer, batch, num_generations)
        facts = {"prompts": len(batch), "completions": completions, "error": error}
        rows.append({"back end": place, "rule": rule, "two prompts": pair, **facts})
    return pd.DataFrame(rows)


def _sampled_and_scored(trainer, batch: list[dict], num_generations: int) -> tuple[int, str]:
    """How many completions came back for a batch, and the error that TRL's scoring ended in."""
    sampled, generate, error = [], trainer._generate_single_turn, ""

    def watched(*args, **kwargs):
        sampled.append(generate(*args, **kwargs))
        return sampled[-1]

    trainer._generate_single_turn = watched
    try:
        score_batch(trainer, batch, num_generations)
    except Exception as wrong:  # whatever TRL raises here is what is being looked at
        error = f"{type(wrong).__name__}: {str(wrong).splitlines()[0]}"
    return len(sampled[-1][0]) if sampled else 0, error
