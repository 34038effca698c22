"""What a function can claim to be, and what the reference answers to a question under that name."""

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from ..errors import ParameterError, did_you_mean
from ..replay.distillation import divergence
from ..replay.grpo_math import (
    Loss,
    LossRow,
    LossSettings,
    group_advantages,
    grpo_loss,
    leave_one_out_advantages,
    normalized_advantages,
    rloo_loss,
    row_rewards,
    sampler_correction,
    token_weights,
)
from ..replay.published import dppo_loss, geometric_weight, kl_terms, reinforce_loss
from .case import Case

LENGTH = 8  # `max_completion_length` of all cases
_TABLES = ("logps", "old_logps", "ref_logps", "sampled_logps")


@dataclass(frozen=True)
class Definition:
    """A loss, or advantages: the settings that make it what it is."""

    settings: Mapping[str, Any]
    of_rewards: bool = False


@dataclass(frozen=True, eq=False)
class Question:
    """One step of R rows, or the rewards of N rows, before it is cut into the cases that a function gets.

    Attributes:
        name: unique.
        settings: those that are not the plain ones of the definition.
        arrays: by their names in `Case`.
        parts: processes, each a list of micro-batches, each a list of rows.
        expected: definition -> its answer.
    """

    name: str
    settings: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    parts: list[list[list[int]]]
    expected: Mapping[str, "Answer"]

    @property
    def size(self) -> tuple[int, int]:
        """Numbers in it and micro-batches, so that the smallest question comes first."""
        return self.arrays["mask" if "mask" in self.arrays else "rewards"].size, sum(map(len, self.parts))


@dataclass(frozen=True, eq=False)
class Answer:
    """A loss has a value and slopes (R, T), by each log-prob; advantages have numbers (N,) alone."""

    numbers: np.ndarray
    value: float | None = None

    @functools.cached_property
    def size(self) -> float:
        """That of the value or of all slopes, whichever is larger: what rounding is relative to."""
        return max(float(np.nansum(np.abs(self.numbers))), abs(self.value or 0.0))

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.numbers).all() and np.isfinite(self.value or 0.0))


DEFINITIONS = {
    "dapo": Definition({"loss_type": "dapo"}),
    "grpo": Definition({"loss_type": "grpo"}),
    "bnpo": Definition({"loss_type": "bnpo"}),
    "dr_grpo": Definition({"loss_type": "dr_grpo"}),
    "gspo": Definition({"loss_type": "grpo", "importance_sampling_level": "sequence"}),
    "luspo": Definition({"loss_type": "luspo", "importance_sampling_level": "sequence"}),
    "cispo": Definition({"loss_type": "cispo", "epsilon_high": 5.0}),
    "sapo": Definition({"loss_type": "sapo"}),
    "vespo": Definition({"loss_type": "vespo"}),
    "reinforce": Definition({"loss_type": "reinforce"}),
    "dual_clip": Definition({"loss_type": "dapo", "delta": 3.0}),
    "decoupled_ppo": Definition(
        {"loss_type": "dapo", "importance_sampling_mode": "token_truncate", "importance_sampling_clip_max": None}
    ),
    "icepop": Definition(
        {
            "loss_type": "dapo",
            "importance_sampling_mode": "token_mask",
            "importance_sampling_clip_min": 0.5,
            "importance_sampling_clip_max": 5.0,
        }
    ),
    "dppo": Definition({"loss_type": "dppo"}),
    "rloo": Definition({"loss_type": "rloo"}),
    "distillation": Definition({"loss_type": "dapo", "divergence_beta": 1.0}),
    "grpo_advantages": Definition({"advantages": "grpo"}, of_rewards=True),
    "rloo_advantages": Definition({"advantages": "rloo"}, of_rewards=True),
    "gdpo_advantages": Definition({"advantages": "gdpo"}, of_rewards=True),
    "weighted_rewards": Definition({"advantages": "sum"}, of_rewards=True),
}
_PLAIN = asdict(LossSettings(max_completion_length=LENGTH)) | {
    "kl_estimator": "k3",
    "divergence_beta": None,
    "importance_sampling_mode": None,
    "importance_sampling_clip_min": None,
    "importance_sampling_clip_max": 3.0,
    "scale_rewards": "group",
    "normalize_advantages": False,
    "reward_weights": None,
}


# What advantages differ in from one trainer to another, with what the reference does.
VARIED: dict[str, Any] = {"ddof": 1, "added": 1e-4, "alone": 0.0}


_OTHERWISE = {
    "ppo": "PPO's clip is in dapo, grpo, bnpo and dr_grpo, which differ in the divisor; ",
    "gmpo": "no case has GMPO; ",
}  # names that stand for several definitions, or for none


def definition_of(name: str) -> Definition:
    """A definition by its name.

    Raises:
        ParameterError: for another name.
    """
    if name not in DEFINITIONS:
        hint = _OTHERWISE.get(name.lower()) or did_you_mean(name, DEFINITIONS)
        raise ParameterError(f"definition {name!r} (--as): {hint}expected one of {', '.join(DEFINITIONS)}")
    return DEFINITIONS[name]


def settings_of(name: str, question: Question) -> dict[str, Any]:
    """All settings under which a function that claims to be `name` is asked."""
    return _PLAIN | dict(DEFINITIONS[name].settings) | dict(question.settings)


def cases_of(name: str, question: Question) -> list[tuple[list[int], Case]]:
    """The cases that a function gets, one for each micro-batch of each process, with the rows of each."""
    settings = settings_of(name, question)
    plain = _PLAIN | dict(DEFINITIONS[name].settings)
    needs = frozenset(key for key, value in question.settings.items() if value != plain[key])
    if len(question.parts) > 1:
        needs |= {"processes"}
    arrays = question.arrays
    if "rewards" in arrays:
        group = int(arrays["num_generations"])
        groups = np.arange(len(arrays["rewards"])) // group
        case = Case(
            question.name, settings, needs, rewards=arrays["rewards"].copy(), groups=groups, num_generations=group
        )
        return [(list(range(len(groups))), case)]
    mask, cases = arrays["mask"], []
    for micro_batches in question.parts:
        for rows in micro_batches:
            case = Case(
                question.name,
                settings,
                needs,
                logps=arrays["logps"][rows],
                old_logps=arrays["old_logps"][rows],
                ref_logps=arrays["ref_logps"][rows],
                sampled_logps=arrays["sampled_logps"][rows],
                advantages=arrays["advantages"][rows],
                mask=mask[rows],
                total_tokens=float(mask.sum()),
                total_rows=len(mask),
                step_mask=mask.copy(),
                step_rows=np.array(rows),
                micro_batches=len(micro_batches),
                processes=len(question.parts),
            )
            cases.append((rows, case))
    return cases


def answer_of(name: str, question: Question, changes: Mapping[str, Any] | None = None) -> Answer:
    """Return what the reference answers.

    Args:
        name: of the definition.
        question: of that kind.
        changes: settings in which another definition differs from this one.
    """
    settings = settings_of(name, question) | dict(changes or {})
    if "rewards" in question.arrays:
        group = int(question.arrays["num_generations"])
        return Answer(_advantages(question.arrays["rewards"], group, settings))
    mask = question.arrays["mask"]
    correction = tuple(settings[f"importance_sampling_{what}"] for what in ("mode", "clip_min", "clip_max"))
    rows = _rows(question, *correction)
    slopes, value = np.zeros_like(mask), 0.0
    for micro_batches in question.parts:
        share = 1 / len(question.parts) / len(micro_batches)
        for numbers in micro_batches:
            batch = [rows[number] for number in numbers]
            loss = _loss(batch, settings, len(micro_batches), float(mask.sum()), share)
            value += loss.value / len(question.parts)
            slopes[numbers] = np.array(loss.slopes) / len(question.parts)
    return Answer(slopes + 0.0, value + 0.0)  # no negative zeros


@functools.lru_cache(maxsize=500)
def _rows(question: Question, mode: str | None, low: float | None, high: float | None) -> list[LossRow]:
    """The rows of a step. What the mask leaves out is 0 everywhere, so that it has no part in the answer."""
    rows = []
    for i, mask in enumerate(question.arrays["mask"]):
        logps, old, ref, sampled = (np.where(mask > 0, question.arrays[table][i], 0.0) for table in _TABLES)
        weights: np.ndarray | None = None
        if mode == "geometric_mask":
            weights = geometric_weight(old, sampled, mask, low or 0.0, np.inf if high is None else high)
        elif mode:
            weights = sampler_correction(old, sampled, mask, mode, low, high)
        rows.append(LossRow(logps, float(question.arrays["advantages"][i]), mask, old, ref, sampled, weights))
    return rows


def _loss(rows: list[LossRow], settings: Mapping[str, Any], accumulation: int, items: float, share: float) -> Loss:
    """The loss of one micro-batch."""
    kind = settings["loss_type"]
    if kind == "rloo":
        return rloo_loss(rows, settings["epsilon"], accumulation, settings["epsilon_high"])
    if kind == "reinforce":
        return reinforce_loss(rows, average=float(accumulation))
    if kind == "dppo":
        divisor = max(items, 1.0) * share * accumulation
        return dppo_loss(rows, settings["epsilon"], settings["epsilon"], average=divisor / len(rows))
    own = LossSettings(**{f.name: settings[f.name] for f in fields(LossSettings)})
    if settings["divergence_beta"] is not None:
        return _distilled(rows, token_weights(rows, own, accumulation, items, share), settings["divergence_beta"])
    if settings["kl_estimator"] == "k3" or not own.beta:
        return grpo_loss(rows, own, accumulation, items, share)
    loss = grpo_loss(rows, replace(own, beta=0.0), accumulation, items, share)
    value, slopes = loss.value, []
    weights = token_weights(rows, own, accumulation, items, share)
    for row, weight, slope in zip(rows, weights, loss.slopes, strict=True):
        kl, by_logp = kl_terms(row.logps, row.ref_logps, settings["kl_estimator"])
        value += own.beta * float((weight * kl).sum())
        slopes.append(slope + own.beta * weight * by_logp)
    return Loss(value, slopes, loss.ratios)


def _distilled(rows: list[LossRow], weights: list[np.ndarray], beta: float) -> Loss:
    """The divergence from a teacher, `ref_logps`, over two outcomes: the sampled token, and all others together."""
    value, slopes = 0.0, []
    for row, weight in zip(rows, weights, strict=True):
        counts = row.mask > 0
        policy, teacher = _two_outcomes(row.logps[counts]), _two_outcomes(row.ref_logps[counts])
        tokens, by_logits = divergence(policy, teacher, beta)
        slope = np.zeros_like(weight)
        # If the log-prob moves by 1, the logit of the token against that of the others moves by 1 / (1 - p).
        slope[counts] = weight[counts] * by_logits[:, 0] / -np.expm1(row.logps[counts])
        value += float((weight[counts] * tokens).sum())
        slopes.append(slope)
    return Loss(value, slopes, [])


def _two_outcomes(logps: np.ndarray) -> np.ndarray:
    """(T, 2): the log-prob of each token, and that of all others."""
    return np.stack([logps, np.log(-np.expm1(logps))], axis=-1)


def _advantages(rewards: np.ndarray, group: int, settings: Mapping[str, Any]) -> np.ndarray:
    """The advantages (N,), or for `sum` the rewards."""
    kind = settings["advantages"]
    varied = not settings.keys().isdisjoint(VARIED) and not settings["normalize_advantages"]
    if varied and kind in ("grpo", "rloo"):
        return _varied_advantages(
            rewards.reshape(-1, group), kind, settings["scale_rewards"], **VARIED | _own(settings)
        )
    if kind == "rloo":
        return leave_one_out_advantages(rewards, group, settings["normalize_advantages"])
    if kind == "gdpo":
        return normalized_advantages(rewards, group, settings["reward_weights"])
    if kind == "sum":
        return row_rewards(rewards, settings["reward_weights"])
    return group_advantages(rewards, group, settings["scale_rewards"])


def _own(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in VARIED if name in settings}


def _varied_advantages(
    groups: np.ndarray, kind: str, scale: str, *, ddof: int, added: float, alone: float
) -> np.ndarray:
    """The advantages of groups (P, G), with another deviation, and `alone` times the reward in a group of one."""
    present = ~np.isnan(groups)
    count = present.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        centred = groups - np.nansum(groups, axis=1, keepdims=True) / count
        if kind == "rloo":
            advantages = centred * count / (count - 1)
        elif scale == "none":
            advantages = centred
        else:
            squares, total = np.nansum(centred**2, axis=1, keepdims=True), count
            if scale == "batch":
                every = groups[present]
                squares, total = ((every - every.mean()) ** 2).sum(), len(every)
            advantages = centred / (np.sqrt(squares / (total - ddof)) + added)
    if groups.shape[1] == 1:
        advantages = alone * groups
    return np.nan_to_num(advantages.ravel(), nan=0.0, posinf=0.0, neginf=0.0)
