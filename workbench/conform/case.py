"""How a function is asked: one case of plain arrays, one answer.

The function gets what its parameters name, each a field of `Case` or a setting by the name that TRL's config gives it. A
parameter called `case` gets all. Two examples, which are whole adapters:

    @with_torch
    def policy_loss(logps, old_logps, advantages, mask, total_tokens, processes):  # float64 tensors; returns a scalar
        ratio = (logps - old_logps).masked_fill(mask == 0, 0).exp()
        loss = -torch.min(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
        return processes * (loss * mask).sum() / max(total_tokens, 1)

    def advantages(rewards, groups):  # NumPy arrays; returns one number a row
        ...

A loss that needs no torch returns `(value, slopes)`: a number, and its derivative by each log-prob, (R, T).

The parts that a step has are put together as data parallel training does: micro-batches of a process are added, processes
are averaged. A function that asks for nothing of the whole step (`total_tokens`, `total_rows`, `micro_batches`) is taken to be
a mean over its micro-batch, which its trainer divides by the number of micro-batches.
"""

import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

# What a function asks for if it knows of the step around its micro-batch.
_OF_STEP = {"case", "total_tokens", "total_rows", "step_mask", "micro_batches"}


class NotOffered(Exception):
    """Raise it in an adapter for a case that the function does not claim to handle."""


@dataclass(frozen=True, eq=False)
class Case:
    """One question: a micro-batch of R rows padded to T tokens for a loss, or N rewards for advantages.

    Attributes:
        name: of the case.
        settings: all of them, by TRL's names: `epsilon`, `beta`, `loss_type`, `max_completion_length` and so on. TRL's
            `vllm_importance_sampling_*` are without `vllm_`, `kl_estimator` is that of `replay.published.kl_terms`, and
            `divergence_beta` that of `replay.distillation.divergence`.
        needs: those of the settings that the plain loss does not have. A function that has no parameter for one of them is
            not asked: the case is `not offered`. One that takes `case` looks here, and raises `NotOffered`.
        logps: (R, T), of the policy, in nats. With `with_torch` a tensor that requires a gradient.
        old_logps, ref_logps, sampled_logps: (R, T), of the policy before the update, of the reference (or the teacher, for
            `distillation`), and the sampler's own.
            NaN where there is none: behind a row's end in some cases, or where the sampler gave none.
        advantages: (R,).
        mask: (R, T), 1 where a token counts in the loss.
        total_tokens: that count in the loss of the whole step: all micro-batches, all processes.
        total_rows: of the whole step, also those that are masked.
        step_mask: the mask of the whole step, (total_rows, T).
        step_rows: (R,), which rows of the step these are.
        micro_batches: that one process adds up for the step.
        processes: that share the step.
        rewards: (N,), or (N, F) for several reward functions; NaN for a row or a function without a reward.
        groups: (N,), the number of each row's group. Rows of a group follow each other.
        num_generations: rows of a group.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    logps: Any = None
    old_logps: Any = None
    ref_logps: Any = None
    sampled_logps: Any = None
    advantages: Any = None
    mask: Any = None
    total_tokens: float = 0.0
    total_rows: int = 0
    step_mask: Any = None
    step_rows: Any = None
    micro_batches: int = 1
    processes: int = 1
    rewards: Any = None
    groups: Any = None
    num_generations: int = 1


def call(function: Callable[..., Any], case: Case) -> Any:
    """Call a function with what its parameters name.

    Raises:
        NotOffered: if the case needs a setting for which the function has no parameter.
        TypeError: for a parameter that no case has.

    Example:
        >>> call(lambda rewards, groups: rewards * 2, Case("two rewards", rewards=np.array([1.0, 0.5])))
        array([2., 1.])
    """
    parameters = inspect.signature(function).parameters
    if "case" in parameters:
        return function(case=case)
    offers = {f.name: getattr(case, f.name) for f in fields(case)} | dict(case.settings)
    needs = case.needs - {"processes"} if _OF_STEP.isdisjoint(parameters) else case.needs
    if missing := sorted(needs - parameters.keys()):
        raise NotOffered(f"no parameter {', '.join(missing)}")
    positional = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = [p for p in parameters.values() if p.name in positional or p.kind == p.KEYWORD_ONLY]
    required = [p.name for p in named if p.default is p.empty]
    if unknown := [name for name in required if name not in offers]:
        raise TypeError(f"parameter {unknown[0]!r}: expected `case` or one of {', '.join(sorted(offers))}")
    if case.rewards is None and "rewards" in required:
        raise TypeError("a loss has no `rewards`: a function of these claims to be advantages, such as grpo_advantages")
    if case.logps is None and "logps" in required:
        raise TypeError("advantages have no `logps`: a function of these claims to be a loss, such as dapo")
    # By position as far as possible, as `jax.value_and_grad` wants it.
    first = list(itertools.takewhile(offers.__contains__, positional))
    others = {name: offers[name] for name in parameters if name in offers and name not in first}
    result = function(*(offers[name] for name in first), **others)
    if case.micro_batches > 1 and _OF_STEP.isdisjoint(parameters):
        return _divided(result, case.micro_batches)
    return result


def _divided(result: Any, micro_batches: int) -> Any:
    """A loss, a number with its slopes or a tensor, divided by the number of micro-batches."""
    if isinstance(result, tuple | list):
        return [part / micro_batches for part in map(np.asarray, result)]
    return result / micro_batches


def with_torch(function: Callable[..., Any]) -> Callable[[Case], Any]:
    """Give a function float64 tensors, and take its slopes by `backward`.

    Args:
        function: of parameters as in `call`; returns a scalar tensor, or for advantages a tensor of (N,).

    Returns:
        A function of one case that returns numbers.
    """

    def asked(case: Case) -> Any:
        import torch

        arrays = {f.name: getattr(case, f.name) for f in fields(case) if isinstance(getattr(case, f.name), np.ndarray)}
        tensors = {name: torch.tensor(array) for name, array in arrays.items()}
        if case.logps is None:
            return call(function, replace(case, **tensors)).detach().cpu().numpy()
        logps = tensors["logps"].requires_grad_()
        # No leaf: a function may change its log-probs in place, as it may those of a model.
        loss = call(function, replace(case, **tensors | {"logps": logps.clone()}))
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"returned {type(loss).__name__}: expected a scalar tensor, the loss alone")
        if loss.ndim:
            raise TypeError(f"returned a tensor of shape {tuple(loss.shape)}: expected a scalar")
        if loss.requires_grad:  # a batch without a token may give a constant
            loss.backward()
        slopes = np.zeros_like(case.logps) if logps.grad is None else logps.grad.cpu().numpy()
        return float(loss.detach()), slopes

    asked.__name__ = getattr(function, "__name__", type(function).__name__)
    asked.__doc__ = function.__doc__
    return asked
