"""Other formulas by name, so that a difference is recognised by computing it: choices that trainers make, and known faults."""

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .definitions import DEFINITIONS


@dataclass(frozen=True, eq=False)
class Alternative:
    """Another formula: `changes` of the settings with which the reference computes it."""

    formula: str
    changes: Mapping[str, Any]
    choice: bool = True  # False: nobody means it

    @property
    def option(self) -> str:
        """The settings with which the definition is this formula."""
        return ", ".join(f"{name}={value!r}" for name, value in self.changes.items())


_OF_EACH_MICRO_BATCH = Alternative(
    "divisor: the tokens of each micro-batch", {"loss_type": "bnpo"}, choice=False
)  # a token of a short micro-batch counts more
_CLIPS_AND_MEANS = (
    Alternative("dual clip: with a negative advantage a ratio counts 3 at most", {"delta": 3.0}),
    Alternative("dual clip: with a negative advantage a ratio counts 10 at most", {"delta": 10.0}),
    Alternative("clip-higher: the upper limit is 1.28", {"epsilon_high": 0.28}),
    Alternative("the limits of GSPO's paper", {"epsilon": 3e-4, "epsilon_high": 4e-4}),
    Alternative("divisor: the tokens of the step", {"loss_type": "dapo"}),
    Alternative("divisor: the tokens of each row, then the rows", {"loss_type": "grpo"}),
    Alternative("divisor: a constant, rows * max_completion_length", {"loss_type": "dr_grpo"}),
    Alternative("divisor: the rows alone", {"loss_type": "luspo"}),
    Alternative("one ratio a row, the mean of its tokens' log-ratios", {"importance_sampling_level": "sequence"}),
    Alternative("one ratio a row, the product of its tokens'", {"loss_type": "rloo"}),
    Alternative("one ratio a token", {"importance_sampling_level": "token"}),
)
_OTHERS = (
    Alternative("the log-prob in place of the ratio", {"loss_type": "reinforce"}),
    Alternative("the KL term is k1, the log-ratio", {"kl_estimator": "k1"}),
    Alternative("the KL term is k2, half the square of the log-ratio", {"kl_estimator": "k2"}),
    Alternative("the KL term is k1 with the slope of k2", {"kl_estimator": "k1+"}),
    Alternative("the KL term is k3 with the slope of k2", {"kl_estimator": "k3+"}),
    Alternative("the KL term is weighted with the ratio", {"use_bias_correction_kl": True}),
    _OF_EACH_MICRO_BATCH,
    Alternative("no clip", {"epsilon": math.inf, "epsilon_high": math.inf, "delta": None}, choice=False),
    Alternative("no KL term", {"beta": 0.0}, choice=False),
    Alternative("no correction of the sampler", {"importance_sampling_mode": None}, choice=False),
)
_OF_DISTILLATION = (
    Alternative("KL(teacher || policy), forward", {"divergence_beta": 0.0}),
    Alternative("half of the KL from the mean of policy and teacher, each", {"divergence_beta": 0.5}),
    _OF_EACH_MICRO_BATCH,
)
_OF_REWARDS = (
    Alternative("the deviation of a population, which divides by n", {"ddof": 0}),
    Alternative("1e-6 or less added to the deviation", {"added": 1e-6}),
    Alternative("a group of one has its reward as advantage", {"alone": 1.0}),
    Alternative("no division by the deviation", {"scale_rewards": "none"}),
    Alternative("the deviation of the whole batch", {"scale_rewards": "batch"}),
    Alternative("the mean of the others of the group, no deviation", {"advantages": "rloo"}),
    Alternative("the mean of the whole group, and the deviation", {"advantages": "grpo"}),
)


@functools.cache
def alternatives_of(name: str) -> tuple[Alternative, ...]:
    """The alternatives to a definition: each alone, then two choices together.

    Example:
        >>> alternatives_of("dapo")[0].option
        'delta=3.0'
    """
    of_rewards = DEFINITIONS[name].of_rewards
    if of_rewards and DEFINITIONS[name].settings["advantages"] not in ("grpo", "rloo"):
        return ()  # rewards of several functions: none of these formulas takes them
    if "divergence_beta" in DEFINITIONS[name].settings:
        divisors = [one for one in _CLIPS_AND_MEANS if one.formula.startswith("divisor: ")]
        return (*divisors, *_OF_DISTILLATION)
    choices = _OF_REWARDS if of_rewards else _CLIPS_AND_MEANS
    pairs = [
        Alternative(f"{one.formula}; {other.formula}", {**one.changes, **other.changes})
        for one, other in itertools.combinations(choices, 2)
        if one.changes.keys().isdisjoint(other.changes)
    ]
    return (*choices, *([] if of_rewards else _OTHERS), *pairs)
