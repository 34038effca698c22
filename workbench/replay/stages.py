"""The stages of a step that need no model: each computed again from the stage before it, and compared with what was used."""

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import did_you_mean
from .grpo_math import (
    LOSS_TYPES,
    Loss,
    LossRow,
    group_advantages,
    grpo_loss,
    leave_one_out_advantages,
    logged_clip_ratios,
    logged_kl,
    loss_mask,
    normalized_advantages,
    rloo_loss,
    row_rewards,
    sampler_correction,
)
from .report import CheckedRow, Stage
from .rounding import (
    group_rounding,
    leave_one_out_rounding,
    mean_rounding,
    normalized_rounding,
    row_rounding,
    spread_rounding,
)
from .step import MicroRows, SampledRow, Step, Turn, all_loss_rows


@dataclass(frozen=True)
class Tolerance:
    """Up to where a difference is rounding, for a trainer that computes in one dtype."""

    mean: float  # of log-probs, nats a token
    largest: float
    cosine: float  # of gradients, at least
    norm: float  # their ratio of norms, from 1
    value: float  # of losses, advantages and weights, relative to their size


TOLERANCES = {
    # A random error that leaves the cosine at 0.9999 moves the norm by 1e-4.
    "float32": Tolerance(mean=1e-4, largest=0.01, cosine=0.9999, norm=0.001, value=1e-4),
    "bfloat16": Tolerance(mean=0.05, largest=1.0, cosine=0.95, norm=0.1, value=0.02),
    "float16": Tolerance(mean=0.01, largest=0.3, cosine=0.99, norm=0.05, value=0.005),
}
TOLERANCES["tf32"] = TOLERANCES["float16"]  # which has as many digits
_LOST = 1e-6  # by how much fp32 rounds a sum, relative to the sum of the magnitudes
SAME = 1e-5  # below this numbers are the same in fp32
# Where rounding may be larger than this share of the largest advantage (or of 1, if that is larger), a fault cannot be seen.
_BLIND = 0.1
_NO_ADVANTAGE = 1e-9  # the largest advantage, below which there is none
_MANY = 32  # tokens, of which log-probs agree by no chance
_A_KL = 1e-3  # nats a row, which half precision can hide
_ZERO_STD = 1e-8  # up to which TRL counts a standard deviation as 0
# Settings that a trainer copies from its args, and the stage that each decides.
SETTING_STAGES = {
    "temperature": "sampling",
    "top_p": "sampling",
    "top_k": "sampling",
    "min_p": "sampling",
    "repetition_penalty": "sampling",
    "max_completion_length": "ends",
    "mask_truncated_completions": "mask",
    "num_generations": "rewards",
    "reward_weights": "rewards",
    "scale_rewards": "advantages",
    "multi_objective_aggregation": "advantages",
    "normalize_advantages": "advantages",
    "reward_clip_range": "advantages",
    "num_iterations": "batches",
    "vllm_importance_sampling_correction": "loss",
    "vllm_importance_sampling_mode": "loss",
    "vllm_importance_sampling_clip_min": "loss",
    "vllm_importance_sampling_clip_max": "loss",
    "beta": "loss",
    "epsilon": "loss",
    "epsilon_high": "loss",
    "loss_type": "loss",
    "importance_sampling_level": "loss",
    "off_policy_mask_threshold": "loss",
    "top_entropy_quantile": "loss",
    "entropy_coef": "loss",
}
ALL_ONE = "all ratios are 1, nothing of the clip was met"


def tolerance_of(step: Step) -> Tolerance:
    return TOLERANCES.get(step.dtype, TOLERANCES["float32"])


def check_ends(step: Step, decode: Callable[[list[int]], str]) -> Stage:
    """Say whether the rows that TRL counts as cut are those that were, and no token stands behind an end."""
    rows = step.rows
    wrong = [i for i, row in enumerate(rows) if row.ended is not None and row.ended == row.cut_for_trl]
    if missed := [rows[i] for i in wrong if rows[i].ended]:
        last = Counter(row.ids[row.end - 1] for row in missed).most_common(3)
        tokens = ", ".join(f"{decode([token])!r} (id {token})" for token, _ in last)
        cause = f"{len(missed)} of {len(rows)} rows stopped at {tokens} and count as truncated: "
        cause += "TRL takes only EOS and pad for an end"
        return Stage("ends", "different", cause, len(wrong) / len(rows), places(wrong))
    if wrong:
        cause = f"{len(wrong)} of {len(rows)} completions were truncated, but count as ended: their last token is EOS or pad"
        return Stage("ends", "different", cause, len(wrong) / len(rows), places(wrong))
    if behind := [i for i, row in enumerate(rows) if row.end < len(row.ids)]:
        most = max(len(rows[i].ids) - rows[i].end for i in behind)
        cause = f"{len(behind)} rows keep up to {most} tokens behind their end"
        if any(rows[i].mask[rows[i].end :].any() for i in behind):
            cause += ", which the loss then trains"
        return Stage("ends", "different", cause, float(most), places(behind))
    if unknown := sum(row.ended is None for row in rows):
        return Stage("ends", "cannot tell", f"{unknown} completions ended before the limit, and nothing says why")
    ended = sum(bool(row.ended) for row in rows)
    return Stage(
        "ends", "same", f"{ended} of {len(rows)} rows ended{', the others were truncated' * (ended < len(rows))}"
    )


def sampled_tokens(turns: Sequence[Turn] | None, row: SampledRow) -> np.ndarray:
    """(T,), 1 for the tokens of a row that were sampled where they stand: behind the same tokens."""
    if not turns:
        return np.ones(len(row.ids))
    whole, first, found = row.prompt_ids + row.ids, len(row.prompt_ids), np.zeros(len(row.ids))
    for turn in turns:
        start, end = len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.ids)
        if turn.prompt_ids == whole[:start] and whole[start:end] == turn.ids[: len(whole) - start]:
            found[max(start - first, 0) : max(end - first, 0)] = 1
    return found


def check_turns(step: Step) -> Stage | None:
    """Say whether the tokens in the loss are those that were sampled, where they stand; None where each row is one turn.

    A turn that continues the tokens before it is found in its row with its prompt. One that was decoded and encoded again is
    not, and leaves tokens in the loss that nobody sampled there.
    """
    if step.turns is None:
        return None
    if not step.turns:
        return Stage("turns", "cannot tell", "the rollout function samples in a way that check_step does not see")
    rows, foreign, unused = [], 0, 0
    for i, row in enumerate(step.rows):
        sampled = sampled_tokens(step.turns, row)
        wrong = int(((row.own > 0) & (sampled == 0)).sum())
        foreign, unused = foreign + wrong, unused + int(((row.own == 0) & (sampled > 0)).sum())
        rows += [i] * bool(wrong)
    if foreign:
        cause = (
            f"{foreign} tokens in {len(rows)} of {len(step.rows)} rows count in the loss, but were not sampled there: "
        )
        cause += "a turn was decoded and encoded again, a turn is of another row, or a tool wrote these tokens"
        if other := _other_prompts(step.turns, step.rows):
            cause = f"{other} of {len(step.rows)} completions were sampled behind another prompt: is it cut, or are pads read?"
        return Stage("turns", "different", cause, float(foreign), places(rows))
    said = f"{unused} sampled tokens are left out of the loss"
    if unused and step.settings.get("rollout_func"):
        return Stage("turns", "cannot tell", f"{said}: does the rollout function intend this?", float(unused))
    if unused:
        return Stage(
            "turns", "different", f"{said}: the mask of a turn is too short, or leaves them out", float(unused)
        )
    return Stage("turns", "same", f"{len(step.turns)} turns are in {len(step.rows)} rows as they were sampled")


def _other_prompts(turns: Sequence[Turn], rows: Sequence[SampledRow]) -> int:
    """The number of completions that are one turn, behind another prompt than their row has; 0 where a row has several."""
    if len(turns) != len(rows):
        return 0
    pairs = zip(turns, rows, strict=True)
    same = all(turn.ids[: len(row.ids)] == row.ids[: len(turn.ids)] for turn, row in pairs)
    return same * sum(turn.prompt_ids != row.prompt_ids for turn, row in zip(turns, rows, strict=True))


def check_mask(step: Step) -> Stage:
    """Say whether the tokens in the loss are those that ends, tools and `mask_truncated_completions` leave."""
    wrong, tokens = [], 0
    for i, row in enumerate(step.rows):
        ended = (not row.cut_for_trl) if row.ended is None else row.ended
        expected = loss_mask(len(row.ids), ended, step.settings.get("mask_truncated_completions", False), row.own)
        expected[row.end :] = 0
        used, behind = row.mask[: len(row.ids)], row.mask[len(row.ids) :]
        if behind.any() or (used != expected).any():
            wrong.append(i)
            tokens += int((used != expected).sum())
    if not wrong:
        return Stage("mask", "same", f"{int(sum(row.mask.sum() for row in step.rows))} tokens count")
    cause = f"{len(wrong)} of {len(step.rows)} rows have a mask that does not follow from their ends and tools"
    setting = step.settings.get("mask_truncated_completions", False)
    if kept := [i for i in wrong if setting and step.rows[i].ended is False and step.rows[i].mask.any()]:
        cause = f"{len(kept)} of {len(step.rows)} completions were truncated, but are in the loss, "
        cause += "though mask_truncated_completions is on"
    if left_out := [i for i in wrong if not step.rows[i].mask.any()]:
        cause = _why_left_out(step, [step.rows[i] for i in left_out])
    return Stage("mask", "different", cause, float(tokens), places(wrong))


def _why_left_out(step: Step, rows: Sequence[SampledRow]) -> str:
    """A sentence on completions that should be in the loss and of which no token is."""
    setting = step.settings.get("mask_truncated_completions", False)
    said = []
    for ended in (True, False, None):
        alike = [row for row in rows if row.ended is ended]
        if not alike:
            continue
        how = {True: "ended, but are", False: "were truncated and are", None: "are"}[ended]
        counted = sum(row.cut_for_trl for row in alike)
        if not setting:
            why = ", though mask_truncated_completions is off"
        elif counted == len(alike):
            why = ": mask_truncated_completions counts them as truncated"
        else:
            why = f", though TRL counts {len(alike) - counted} of them as ended"
        said.append(f"{len(alike)} of {len(step.rows)} completions {how} left out of the loss{why}")
    return "; ".join(said)


def check_rewards(step: Step) -> Stage:
    """Say whether groups are of one prompt, and each row has what the functions returned for it."""
    size, prompts = step.num_generations, step.prompts
    if len(prompts) % size == 0:
        groups = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        if mixed := [g for g, group in enumerate(groups) if any(prompt != group[0] for prompt in group)]:
            cause = f"groups {mixed[:5]} hold several prompts: rewards are compared across prompts"
            return Stage("rewards", "different", cause, where=f"{len(mixed)} groups")
    if step.returned is None:
        why = "the trainer does not call each function once for all rows"
        return Stage("rewards", "cannot tell", f"what each reward function returned is not known: {why}")
    if not step.rewards:
        return Stage("rewards", "cannot tell", "no rewards of this step were taken down")
    if step.judged_otherwise:
        what = " and ".join(step.judged_otherwise)
        unlike = sorted({row for rows in step.judged_otherwise.values() for row in rows})
        cause = f"the reward functions get other {what} than {len(unlike)} of {len(step.rows)} rows have"
        return Stage("rewards", "different", cause, where=places(unlike))
    used = np.concatenate([_own_rows(step, table) for table in step.rewards])
    if len(used) != len(step.returned):
        return Stage("rewards", "cannot tell", "the rewards of this process's rows are not known")
    wrong = ~np.isclose(used, step.returned, rtol=1e-5, atol=1e-6, equal_nan=True)
    if not wrong.any():
        if (infinite := _infinite(step, used)).any():
            names = dict(enumerate(step.settings.get("reward_func_names") or []))
            named = ", ".join(names.get(f, f"function {f}") for f in np.flatnonzero(infinite.any(axis=0)))
            rows = np.flatnonzero(infinite.any(axis=1))
            return Stage(
                "rewards", "different", f"{infinite.sum()} rewards are not finite: {named}", where=places(rows)
            )
        said = f"{used.shape[1]} functions, {len(used)} rows"
        if unlike := _copies_with_other_rewards(step, used):
            said += ": equal completions of one group have different rewards, so a function is random or mixes up rows"
            return Stage("rewards", "cannot tell", said, where=places(unlike))
        return Stage("rewards", "same", said)
    rows = np.flatnonzero(wrong.any(axis=1))
    cause = f"{len(rows)} of {len(used)} rows have another reward than the functions returned for them"
    for shift, neighbour in ((1, "before"), (-1, "after")):
        if np.allclose(np.roll(step.returned, shift, axis=0)[1:-1], used[1:-1], equal_nan=True):
            cause += f": each has that of the row {neighbour} it"
    return Stage("rewards", "different", cause, float(np.nanmax(np.abs(used - step.returned))), places(rows))


def _infinite(step: Step, rewards: np.ndarray) -> np.ndarray:
    """(N, F), 1 where a reward is infinite and nothing clips it: its group has no mean."""
    limits = step.settings.get("reward_clip_range")
    return np.isinf(np.clip(rewards, *limits) if limits else rewards)


def _own_rows(step: Step, table: np.ndarray) -> np.ndarray:
    """The rows of this process, (N / processes, F), in the rewards of a generation as TRL gathers them, (N, F)."""
    count = len(table) // step.processes
    return table[step.rank * count : (step.rank + 1) * count]


def _copies_with_other_rewards(step: Step, rewards: np.ndarray) -> list[int]:
    """The rows whose tokens are those of an earlier row of their group, but not the rewards.

    One call of a reward function shows no more of whether its rewards belong to their rows.
    """
    first: dict[tuple, int] = {}
    rows = []
    for i, row in enumerate(step.rows):
        if any(token < 0 for token in row.ids):
            continue  # a file hides the tokens of a step that has a secret
        other = first.setdefault((i // step.num_generations, *row.prompt_ids, None, *row.ids), i)
        if not np.allclose(rewards[i], rewards[other], equal_nan=True):
            rows.append(i)
    return rows


def check_advantages(step: Step, kl: np.ndarray | None = None) -> Stage:
    """Say whether advantages follow from the rewards.

    Args:
        kl: (N,), of each row from the reference, which RLOO with `beta` takes off its reward; None: not known.
    """
    if not _has_kl_in_rewards(step) or step.kl is None:
        return _compared_advantages(step, kl)
    if np.isnan(step.kl).any():
        return _without_kl(step, _compared_advantages(step, kl), kl)
    # With the trainer's own numbers half precision hides nothing of what it makes of them.
    by_own = _compared_advantages(dataclasses.replace(step, dtype="float32"), step.kl)
    if by_own.verdict == "different":
        return dataclasses.replace(by_own, cause=_why_other_kl(step) or by_own.cause)
    by_alone = by_own if kl is None else _compared_advantages(step, kl)
    if by_alone.verdict == "different":
        return by_alone
    if by_own.verdict not in ("same", "rounding") or np.abs(step.kl).max(initial=0.0) > SAME:
        return by_own
    said = "the KL from the reference is 0 in this step, so that its sign and beta are not seen"
    if kl is not None and (most := float(np.abs(kl).max(initial=0.0))) > _A_KL:
        said = f"the KL in the rewards is 0, and up to {most:.2g} where each row is scored alone: is the reference the policy?"
        return dataclasses.replace(by_own, verdict="cannot tell", cause=said)
    return dataclasses.replace(by_own, cause="; ".join(filter(None, [by_own.cause, said])))


def _without_kl(step: Step, stage: Stage, kl: np.ndarray | None) -> Stage:
    """The stage of a trainer that scores no reference while it makes the rewards, though `beta` is not 0."""
    plain = dataclasses.replace(step, settings=step.settings | {"beta": 0.0}, dtype="float32")
    without = _compared_advantages(plain)
    # A method of one's own may have scored it elsewhere: then they fit with the KL, too.
    moved = (
        kl is not None and _compared_advantages(dataclasses.replace(step, dtype="float32"), kl).verdict == "different"
    )
    said = f"beta={step.settings['beta']:g}, and the reference is not scored for the rewards"
    if without.verdict in ("same", "rounding"):
        verdict = "different" if moved else "cannot tell"
        return dataclasses.replace(without, verdict=verdict, cause=f"{said}: no KL is taken off them")
    if stage.verdict == "different":
        return stage
    return dataclasses.replace(stage, verdict="cannot tell", cause="; ".join(filter(None, [said, stage.cause])))


def _why_other_kl(step: Step) -> str:
    """Words for advantages that follow from another multiple of the KL; empty where none of these gives them."""
    for times, words in ((0.0, "no KL is taken off the rewards"), (-1.0, "the KL is added to the rewards")):
        other = dataclasses.replace(step, dtype="float32", kl=None)
        if _compared_advantages(other, times * np.asarray(step.kl)).verdict in ("same", "rounding"):
            return f"{words}, where beta={step.settings['beta']:g} takes it off"
    return ""


def _compared_advantages(step: Step, kl: np.ndarray | None = None) -> Stage:
    """As `check_advantages`, with one KL."""
    alone = step.processes > 1 and _has_kl_in_rewards(step)  # the KL of other processes' rows is not known
    if alone and step.settings["normalize_advantages"]:
        cause = "advantages are normalized over all processes, and the KL in the rewards of the others is not known"
        return Stage("advantages", "cannot tell", cause)
    if _has_kl_in_rewards(step) and kl is None:
        return Stage("advantages", "cannot tell", "the KL penalty in the reward is not known here")
    if uneven := [len(table) for table in step.rewards if len(table) % step.num_generations]:
        cause = f"{uneven[0]} rows are no whole number of groups of {step.num_generations} (num_generations)"
        return Stage("advantages", "cannot tell", cause)
    if len(step.rewards) != len(step.advantages):
        return Stage("advantages", "cannot tell", "the rewards of this step are not known")
    if any(_infinite(step, table).any() for table in step.rewards):
        return Stage("advantages", "cannot tell", "a reward is not finite, and its group has no mean")
    used = advantage_of_rows(step)
    if used is None:
        cause = "the trainer gives each token an advantage of its own, and the definition gives one to each completion"
        return Stage("advantages", "cannot tell", cause)
    expected, roundings, first = [], [], 0
    for table, own in zip(step.rewards, step.advantages, strict=True):
        kept = slice(step.rank * len(own), (step.rank + 1) * len(own))
        if alone:
            table, kept = _own_rows(step, table), slice(None)
            if len(table) % step.num_generations:
                cause = "a group's rows are in several processes, and the KL in the rewards of the others is not known"
                return Stage("advantages", "cannot tell", cause)
        # It has a number for each row of each table.
        of_table = None if kl is None else kl[first : first + len(table)]
        first += len(table)
        expected.append(_advantages(step, table, of_table)[kept])
        roundings.append(_advantage_rounding(step, table, of_table)[kept])
    cause = "the definition gives other advantages for these rewards"
    if not _has_kl_in_rewards(step):  # they are of fp32 whatever the model computes in, and small ones are no rounding
        step = dataclasses.replace(step, dtype="float32")
    stage = compared("advantages", step, used, np.concatenate(expected), cause, _size(step, np.concatenate(expected)))
    if stage.verdict == "rounding" and _has_kl_in_rewards(step):
        return _by_kl(step, stage, np.concatenate(expected))
    if stage.verdict != "different":
        return stage
    return _explained(step, stage, used, np.concatenate(expected), np.concatenate(roundings))


def _has_kl_in_rewards(step: Step) -> bool:
    return step.kind == "RLOO" and bool(step.settings["beta"])


def _size(step: Step, expected: np.ndarray) -> float:
    """What a difference of advantages is compared with: the largest one; a KL in them has an error of its own."""
    size = float(np.abs(expected).max(initial=0.0))
    return max(1.0, size) if _has_kl_in_rewards(step) else max(_NO_ADVANTAGE, size)


def _by_kl(step: Step, stage: Stage, expected: np.ndarray) -> Stage:
    """The stage of advantages with a KL in them; not known where they are off by as much as they are large."""
    size = float(np.abs(expected).max())
    if (stage.largest or 0.0) < size / 2:
        return stage
    cause = f"advantages of up to {size:.2g} are as small as what {step.dtype} can make of the KL in the rewards"
    return dataclasses.replace(stage, verdict="cannot tell", cause=cause)


def _explained(step: Step, stage: Stage, used: np.ndarray, expected: np.ndarray, rounding: np.ndarray) -> Stage:
    """The stage of advantages that differ, unless the rounding of their rewards in fp32 explains it."""
    scale, difference = _size(step, expected), np.abs(used - expected)
    if not (difference <= tolerance_of(step).value * scale + rounding).all():
        return stage
    if difference.max() <= SAME:
        return dataclasses.replace(stage, verdict="same", cause="", where="")
    size = max(float(np.nanmax(np.abs(table))) for table in step.rewards)
    if rounding.max() <= _BLIND * max(1.0, scale):
        cause = (
            f"fp32 rounds the means of rewards of up to {size:.3g}: advantages are off by up to {difference.max():.2g}"
        )
        if (noise := (np.abs(expected) < 1e-12) & (used != 0)).any():
            cause += f"; {noise.sum()} rows that should have none train with it"
        return Stage("advantages", "rounding", cause, stage.largest)
    cause = (
        f"fp32 has too few digits for rewards of up to {size:.3g} that differ so little: advantages are off by up to"
    )
    cause += f" {difference.max():.2g}, which its rounding explains; take a constant off the rewards"
    return Stage("advantages", "cannot tell", cause, stage.largest, stage.where)


def advantage_of_rows(step: Step) -> np.ndarray | None:
    """(N,), the advantage of each sampled row; None where the tokens of a row have different ones."""
    if all(table.ndim == 1 for table in step.advantages):
        return np.concatenate(step.advantages)
    values = []
    tokens = (each for table in step.advantages for each in table)
    for advantages, row in zip(tokens, step.rows, strict=True):
        counted = advantages[row.mask[: len(advantages)] > 0]
        if len(counted) and not np.array_equal(counted, np.full(len(counted), counted[0]), equal_nan=True):
            return None
        values.append(counted[0] if len(counted) else advantages[0])
    return np.array(values)


def _advantages(step: Step, table: np.ndarray, kl: np.ndarray | None) -> np.ndarray:
    s, size = step.settings, step.num_generations
    if s.get("multi_objective_aggregation") == "normalize_then_sum":
        return normalized_advantages(table, size, s["reward_weights"])
    if step.kind == "GRPO":
        return group_advantages(row_rewards(table, s["reward_weights"]), size, s["scale_rewards"])
    return leave_one_out_advantages(_rloo_rewards(step, table, kl), size, s["normalize_advantages"])


def _rloo_rewards(step: Step, table: np.ndarray, kl: np.ndarray | None) -> np.ndarray:
    """Sum the rewards of each row, (N,), clip them, and take the KL penalty off."""
    s = step.settings
    rewards = row_rewards(table, s["reward_weights"])
    if s["reward_clip_range"]:
        rewards = np.clip(rewards, *s["reward_clip_range"])
    return rewards - s["beta"] * kl if s["beta"] else rewards


def _advantage_rounding(step: Step, table: np.ndarray, kl: np.ndarray | None) -> np.ndarray:
    """(N,): by how much rounding in fp32 can move what `_advantages` gives."""
    s, size = step.settings, step.num_generations
    if s.get("multi_objective_aggregation") == "normalize_then_sum":
        return normalized_rounding(table, s["reward_weights"], size)
    if step.kind == "GRPO":
        return group_rounding(table, s["reward_weights"], size, s["scale_rewards"])
    rewards, off = _rloo_rewards(step, table, kl), row_rounding(table, s["reward_weights"])
    return leave_one_out_rounding(rewards, off, size, s["normalize_advantages"])


def check_correction(step: Step) -> Stage | None:
    """Say whether the weights of a sampler that is not quite the policy follow from the log-probs; None without them."""
    rows = [r for r in all_loss_rows(step) if r.correction is not None and r.sampled_logps is not None and len(r.mask)]
    if not rows:
        return None
    mode = step.settings["vllm_importance_sampling_mode"]
    low, high = (step.settings.get(f"vllm_importance_sampling_clip_{end}") for end in ("min", "max"))
    expected = [sampler_correction(r.old_logps, r.sampled_logps, r.mask, mode, low, high) for r in rows]
    used = [r.correction[: len(e)] for r, e in zip(rows, expected, strict=True)]
    cause = f"{mode} gives other weights for these log-probs"
    return compared("correction", step, np.concatenate(used), np.concatenate(expected), cause, unit="weights")


def losses_of(step: Step) -> list[Loss | None]:
    """Return what each micro-batch's rows give by the definition; None where that is not known here."""
    accumulation = step.settings["gradient_accumulation_steps"]
    window = step.settings.get("steps_per_generation") or accumulation
    share = 1 / (step.processes * window)
    counted = _counted_tokens(step, accumulation, window)
    found: list[Loss | None] = []
    for number, micro in enumerate(step.micro_batches):
        unknown = _needs_other_entropies(step, micro) or _without_definition(step)
        if any(row.logps is None for row in micro.rows) or unknown:
            found.append(None)
        elif step.kind == "RLOO":
            settings = step.loss_settings()
            found.append(rloo_loss(micro.rows, settings.epsilon, epsilon_high=settings.epsilon_high))
        else:
            items = counted[number // window] if counted else micro.items
            settings = step.loss_settings()
            if micro.entropy_coef is not None:
                settings = dataclasses.replace(settings, entropy_coef=micro.entropy_coef)
            found.append(grpo_loss(micro.rows, settings, accumulation, items, share, micro.entropy_threshold))
    return found


def _needs_other_entropies(step: Step, micro: MicroRows) -> bool:
    """Say whether the loss takes a quantile of entropies of which other processes have a part that is not known."""
    of_all = step.kind == "GRPO" and step.processes > 1 and step.settings.get("top_entropy_quantile", 1.0) < 1
    return of_all and micro.entropy_threshold is None


def _without_definition(step: Step) -> str:
    """The `loss_type` of a trainer that is not TRL's, which has no definition here; empty where there is one."""
    name = step.loss_settings().loss_type
    return name if step.kind == "GRPO" and name not in LOSS_TYPES else ""


def _counted_tokens(step: Step, accumulation: int, window: int) -> list[float]:
    """Tokens in the loss of each generation of an update, counted again; none where other processes' tokens are not known."""
    if len(step.advantages) != max(1, accumulation / window):
        return []
    if step.processes > 1 or step.tokens:
        return list(step.tokens)
    tokens = np.array([row.mask.sum() for row in step.rows])
    return [float(part.sum()) for part in np.split(tokens, np.cumsum([len(a) for a in step.advantages])[:-1])]


def check_ratios(step: Step) -> Stage | None:
    """Say whether the log-probs of the first update are those of the sampling policy; None where the loss has no older ones.

    Without an update in between every ratio is 1, up to rounding, and such ratios do not show what the loss makes of others.
    """
    rows = [r for r in all_loss_rows(step) if r.logps is not None and r.mask.any()]
    scored = rows
    rows = [r for r in rows if r.old_logps is not None or r.old_sum is not None]
    if scored and not rows and step.reused:
        cause = (
            "an update lies between the sampling and this loss, which gets no old log-probs: it takes every ratio for 1"
        )
        return Stage("ratios", "different", cause)
    if not rows:
        return None
    differences = np.concatenate([_log_ratios(row) for row in rows])
    said = f"ratios of {math.exp(differences.min()):.4g} to {math.exp(differences.max()):.4g}"
    limits = tolerance_of(step)
    mean, largest = float(np.abs(differences).mean()), float(np.abs(differences).max())
    shifted = _why_shifted([row for row in rows if row.old_logps is not None])
    if step.reused and shifted:
        return Stage("ratios", "cannot tell", f"{said}, of which the loss is computed; {shifted}", largest)
    if step.reused and largest:
        return Stage("ratios", "same", f"{said}, of which the loss is computed", largest)
    if step.reused:
        cause = "every ratio is exactly 1, though an update lies between the sampling and this loss: did the weights move, or"
        return Stage("ratios", "cannot tell", f"{cause} are the old log-probs those of now?", largest)
    if mean <= limits.mean and largest <= limits.largest:
        return Stage("ratios", "cannot tell", ALL_ONE, largest)
    if step.reused is None and _may_be_reused(step):
        said += "; the file does not say whether an update lies between the two scorings of a row"
        cause = f"{said} (`reused`: true or false)"
        return Stage("ratios", "cannot tell", "; ".join(filter(None, [cause, shifted])), largest)
    cause = f"{said}, but no update lies between the two scorings of a row: {shifted or 'the trainer scores it in two ways'}"
    return Stage("ratios", "different", cause, largest)


def _may_be_reused(step: Step) -> bool:
    """Say whether the completions may have been in an earlier update, by settings and rows.

    The file of a trainer that is not TRL's may not say how many updates a generation has.
    """
    s = step.settings
    if sum(len(micro.rows) for micro in step.micro_batches) < len(step.rows):
        return True
    return (s.get("num_iterations") or 2) > 1 or (s.get("steps_per_generation") or 1) > s["gradient_accumulation_steps"]


def _why_shifted(rows: Sequence[LossRow]) -> str:
    """Words for old log-probs that are much nearer to those of a neighbouring token than to their own; else empty."""
    if not rows:
        return ""
    in_place = float(np.nanmean(np.abs(np.concatenate([(row.logps - row.old_logps)[row.mask > 0] for row in rows]))))
    for shift, neighbour in ((-1, "before"), (1, "after")):
        moved = np.concatenate([moved_apart(row.logps, row.old_logps, row.mask, shift) for row in rows])
        if len(moved) >= _MANY and np.abs(moved).mean() < in_place / 2:
            near = (
                f"{np.abs(moved).mean():.2g} nats from those of the token {neighbour} it, {in_place:.2g} from its own"
            )
            return f"each old log-prob is about {near}: are they shifted by a token?"
    return ""


def moved_apart(own: np.ndarray, other: np.ndarray, mask: np.ndarray, shift: int) -> np.ndarray:
    """Differences of log-probs (T,) in the loss, if the others are those of the token `shift` places later.

    Example:
        >>> moved_apart(np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 9.0]), np.ones(3), 1)
        array([0., 0.])
    """
    first, second = (slice(1, None), slice(None, -1)) if shift > 0 else (slice(None, -1), slice(1, None))
    both = (mask[first] > 0) & (mask[second] > 0)
    apart = (own[first] - other[second])[both]
    return apart[np.isfinite(apart)]


def _log_ratios(row: LossRow) -> np.ndarray:
    """(T,) of a row's tokens, or of RLOO's rows (1,): the mean of the tokens."""
    if row.old_sum is None:
        return row.logps - row.old_logps
    return ((row.logps * row.mask).sum(keepdims=True) - row.old_sum) / row.mask.sum()


def check_loss(step: Step, losses: Sequence[Loss | None]) -> Stage:
    """Say whether each micro-batch's loss is that of its rows."""
    known = [loss for loss in losses if loss is not None]
    if unknown := _without_definition(step):
        hint = did_you_mean(unknown.lower(), LOSS_TYPES)
        cause = f"loss_type {unknown!r} has no definition here: {hint}the known ones are {', '.join(LOSS_TYPES)}"
        return Stage("loss", "cannot tell", cause)
    if not known or len(known) < len(losses):
        cause = "the trainer computes its loss elsewhere (Liger, or a method of its own)"
        if any(_needs_other_entropies(step, micro) for micro in step.micro_batches):
            cause = (
                "top_entropy_quantile is of the entropies of all processes, and those of the others are not known here"
            )
        return Stage("loss", "cannot tell", cause)
    used, expected = np.array([micro.loss for micro in step.micro_batches]), np.array([loss.value for loss in known])
    router = np.array(step.router_losses) if len(step.router_losses) else np.zeros(len(used))
    used = used - router
    cause = f"loss_type {step.settings.get('loss_type', 'rloo')!r} gives another loss for these rows"
    size = size_of_losses(known)
    if np.abs(expected).max() > SAME * size:  # losses that are rounding say nothing of a factor
        times = float(used @ expected / (expected @ expected))
        if np.abs(used - times * expected).max() < 1e-3 * np.abs(times * expected).max() and abs(times - 1) > 0.005:
            cause += f": {times:.3g} times as much"
    if not router.any() and _scored_in_float32(step):
        step = dataclasses.replace(step, dtype="float32")
    stage = compared("loss", step, used, expected, cause, size, "micro-batches")
    said = [stage.cause]
    if router.any():
        said.append(f"without the auxiliary loss of the router, which adds {router.sum() / len(router):.3g}")
    if step.settings.get("loss_type") == "cispo" and (limit := _upper_limit(step)) < 1:
        of_all = f"cispo limits every ratio to epsilon_high={limit:g}, also one of 1, so that none weighs a token"
        said.append(f"{of_all}: TRL's default is of the other losses, 5 is usual here")
    if step.settings.get("use_adaptive_entropy"):
        said.append("how entropy_coef adapts from step to step is not checked")
    return dataclasses.replace(stage, cause=", ".join(filter(None, said)))


def size_of_losses(losses: Sequence[Loss]) -> float:
    """The size that a difference of losses is compared with: the sum of the magnitudes of the tokens of a row."""
    slopes = (float(np.abs(each).sum()) for loss in losses for each in loss.slopes)
    return max([1e-9, *(loss.flat for loss in losses), *slopes])


def seen_by_value(losses: Sequence[Loss | None], stage: Stage) -> Stage:
    """The stage of a loss of which the value alone is known; not known where it is 0 whatever the sign, factor and divisor.

    Advantages of a whole group add up to 0, and so does their loss where each ratio is 1 and each row weighs the same.
    """
    known = [loss for loss in losses if loss is not None]
    if stage.verdict not in ("same", "rounding") or not known:
        return stage
    if max(abs(loss.value) for loss in known) > SAME * size_of_losses(known):
        return stage
    if not any(np.any(each) for loss in known for each in loss.slopes):
        return stage
    cause = "the loss of these rows is 0 with any sign, factor or divisor, since their advantages add up to 0: "
    cause += "keep a step after an update, or whose micro-batches hold parts of a group"
    return dataclasses.replace(stage, verdict="cannot tell", cause=cause)


def _upper_limit(step: Step) -> float:
    """The upper limit of ratios, by the settings."""
    s = step.loss_settings()
    return float(s.epsilon if s.epsilon_high is None else s.epsilon_high)


def _scored_in_float32(step: Step) -> bool:
    """Say whether a model in half precision gave log-probs of more digits: what is made of them is then in float32."""
    if step.kind == "Distillation":  # whose loss is of logits
        return False
    rows = list(all_loss_rows(step))
    tables = [[getattr(row, name) for row in rows if getattr(row, name) is not None] for name in ("logps", "entropies")]
    return all(_has_more_digits(np.concatenate(table)) for table in tables if table)


def _has_more_digits(numbers: np.ndarray) -> bool:
    """Say whether numbers have more binary digits than float16 and bfloat16."""
    return bool((np.asarray(numbers, dtype=np.float32).view(np.uint32) & 0x1FFF).any())


def check_metrics(step: Step, losses: Sequence[Loss | None]) -> Stage | None:
    """Say whether what is logged of rewards, ends and loss is so, of several processes the rewards; None if nothing is known.

    `losses` are as `losses_of` gives them.
    """
    if not step.metrics:
        return None
    expected, roundings = _logged_of_generation(step) if len(step.rewards) == 1 else ({}, {})
    # Other processes have a part in what a loss logs.
    by_loss = _logged_of_loss(step, losses[-1] if losses else None) if step.processes == 1 else {}
    if "loss" in step.metrics and step.processes == 1:  # which RLOO divides afterwards
        divisor = step.settings["gradient_accumulation_steps"] if step.kind == "RLOO" else 1
        by_loss["loss"] = sum(micro.loss for micro in step.micro_batches) / divisor
    # TRL 1.12 takes the mean of entropies in the dtype of the weights, which rounds it.
    limits = {"entropy": tolerance_of(step).value}
    if not expected and not by_loss:
        return None
    stage = of_logged(step.metrics, expected | by_loss, limits, roundings)
    return _logged_earlier(step, losses, limits) or stage if stage.verdict == "same" else stage


def _logged_earlier(step: Step, losses: Sequence[Loss | None], limits: Mapping[str, float]) -> Stage | None:
    """The stage of metrics where the loss of a micro-batch before the last logs another number than it has; None elsewhere."""
    if step.processes > 1 or len(step.logged) != len(losses):
        return None
    for number, (micro, metrics, loss) in enumerate(zip(step.micro_batches, step.logged, losses, strict=True)):
        alone = dataclasses.replace(step, micro_batches=[micro], metrics=metrics)
        stage = of_logged(metrics, _logged_of_loss(alone, loss), limits)
        if stage.verdict == "different":
            return dataclasses.replace(stage, cause=f"micro-batch {number}: {stage.cause}")
    return None


def _logged_of_generation(step: Step) -> tuple[dict[str, float], dict[str, float]]:
    """Return the numbers that a generation logs, and by how much fp32 may round each."""
    rewards = row_rewards(step.rewards[0], step.settings["reward_weights"])
    off = row_rounding(step.rewards[0], step.settings["reward_weights"])
    expected = {"reward": float(np.nanmean(rewards))}
    roundings = {"reward": float(mean_rounding(rewards)[0] + off.mean())}
    if step.kl is not None and step.processes == 1 and not np.isnan(step.kl).any():
        tokens = max(1.0, float(sum(row.mask.sum() for row in step.rows)))
        expected["kl"] = float(step.kl.sum()) / tokens
        roundings["kl"] = tolerance_of(step).value * float(np.abs(step.kl).sum()) / tokens
    spread = {"reward_std": (rewards, off)}
    names = step.settings.get("reward_func_names") or []
    for name, column in zip(names, step.rewards[0].T, strict=False):
        if names.count(name) == 1 and not np.isnan(column).all():
            expected[f"rewards/{name}/mean"] = float(np.nanmean(column))
            roundings[f"rewards/{name}/mean"] = float(mean_rounding(column)[0])
            spread[f"rewards/{name}/std"] = column, np.zeros_like(column)
    for name, (values, rounding) in spread.items():
        if (~np.isnan(values)).sum() > 1 and not np.isinf(values).any():
            expected[name] = float(np.nanstd(values, ddof=1))
            roundings[name] = float(spread_rounding(values, rounding)[0])
    limits = step.settings["reward_clip_range"] if step.kind == "RLOO" else None
    # RLOO compares groups with the KL penalty in the rewards.
    penalized = step.kind == "RLOO" and step.settings["beta"]
    if not penalized and len(rewards) % step.num_generations == 0:
        groups = (np.clip(rewards, *limits) if limits else rewards).reshape(-1, step.num_generations)
        if ((~np.isnan(groups)).sum(axis=1) > 1).all():  # one value has no standard deviation
            low, high = _share_without_std(groups, off.reshape(groups.shape))
            expected["frac_reward_zero_std"] = float(np.clip(step.metrics.get("frac_reward_zero_std", low), low, high))
    if step.processes == 1 and step.rows and all(row.ended is not None for row in step.rows):
        expected["completions/clipped_ratio"] = float(np.mean([not row.ended for row in step.rows]))
        if all(row.own.all() for row in step.rows):
            expected |= logged_lengths(step)
            ended = [float(row.own.sum()) for row in step.rows if row.ended] or [0.0]
            found = {"mean": float(np.mean(ended)), "min": min(ended), "max": max(ended)}
            expected |= {f"completions/{name}_terminated_length": value for name, value in found.items()}
    return expected, roundings


def logged_lengths(step: Step) -> dict[str, float]:
    """The mean, least and largest number of tokens that the policy wrote in a completion, by the names of the log."""
    lengths = [float(row.own.sum()) for row in step.rows]
    found = {"mean": float(np.mean(lengths)), "min": min(lengths), "max": max(lengths)}
    return {f"completions/{name}_length": value for name, value in found.items()}


def _logged_of_loss(step: Step, loss: Loss | None) -> dict[str, float]:
    """Return the numbers that the loss of the last micro-batch logs."""
    expected = {}
    last = step.micro_batches[-1].rows if step.micro_batches else []
    tokens = sum(float(row.mask.sum()) for row in last)
    if tokens and all(row.entropies is not None for row in last):
        expected["entropy"] = sum(float((row.entropies * row.mask).sum()) for row in last) / tokens
    if tokens and step.kind == "GRPO" and all(row.ref_logps is not None and row.logps is not None for row in last):
        expected["kl"] = logged_kl(last, step.loss_settings()) / tokens
    return expected | _clipped_of_loss(step, last, loss)


def _clipped_of_loss(step: Step, rows: Sequence[LossRow], loss: Loss | None) -> dict[str, float]:
    """The clip ratios of a micro-batch: as they were logged where rounding may decide which ratios are beyond a limit."""
    s = step.loss_settings()
    high = s.epsilon if s.epsilon_high is None else s.epsilon_high
    names: dict[str, str] = {}  # where they are not `clip_ratio/*`
    if s.loss_type == "gmpo":
        limits = math.exp(-s.epsilon), math.exp(high)
    elif step.kind == "RLOO" or s.loss_type in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo"):
        limits = 1 - s.epsilon, 1 + high
    elif s.loss_type == "cispo":
        limits, names = (-math.inf, high), {"high_mean": "cispo_clip_ratio"}
    else:
        return {}
    if loss is None or all(len(row.mask) < 2 for row in rows):
        return {}
    # A sum of many log-probs has fewer digits.
    off = tolerance_of(step).value + np.array([_LOST * np.abs(row.logps * row.mask).sum() for row in rows])
    ratios = loss.ratios if s.delta is None else [np.minimum(ratio, s.delta) for ratio in loss.ratios]
    least, most = (logged_clip_ratios(rows, ratios, *limits, sign * off) for sign in (-1, 1))
    expected = {}
    for part in least:
        name = names.get(part, f"clip_ratio/{part}")
        if name in step.metrics and math.isfinite(step.metrics[name]):
            expected[name] = float(np.clip(step.metrics[name], least[part], most[part]))
    return expected


def _share_without_std(groups: np.ndarray, off: np.ndarray) -> tuple[float, float]:
    """The least and the largest share of the groups (P, G) whose standard deviation is 0 for TRL, as fp32 may round it.

    Args:
        off: (P, G), by how much each reward is off already.
    """
    rounding = spread_rounding(groups, off)[:, 0]
    std = np.nanstd(groups, axis=1, ddof=1)
    return float((std + rounding <= _ZERO_STD).mean()), float((std - rounding <= _ZERO_STD).mean())


def of_logged(
    metrics: Mapping[str, float],
    expected: Mapping[str, float],
    limits: Mapping[str, float] | None = None,
    roundings: Mapping[str, float] | None = None,
) -> Stage:
    """Say whether the numbers that are expected are those that were logged.

    Args:
        limits: relative, of those that are rounded.
        roundings: what else a number may be off by.
    """
    logged, limits, roundings = {n: float(metrics[n]) for n in expected if n in metrics}, limits or {}, roundings or {}
    allowed = {n: limits.get(n, 1e-4) * max(1, abs(value)) + roundings.get(n, 0.0) for n, value in logged.items()}
    wrong = {name: value for name, value in logged.items() if not _is_near(value, expected[name], allowed[name])}
    if not wrong:
        shown = {name: value for name, value in logged.items() if not name.startswith("clip_ratio/") or value}
        return Stage("metrics", "same", ", ".join(f"{name} {value:.3g}" for name, value in shown.items()))
    said = "; ".join(f"{name} is logged as {value:.3g}, but is {expected[name]:.3g}" for name, value in wrong.items())
    return Stage("metrics", "different", said, max(abs(value - expected[name]) for name, value in wrong.items()))


def _is_near(value: float, expected: float, allowed: float) -> bool:
    """Say whether a number is the expected one; one that is not finite has to be the same."""
    if math.isfinite(value) and math.isfinite(expected):
        return abs(value - expected) <= allowed
    return value == expected or (math.isnan(value) and math.isnan(expected))


def stages_of_rows(step: Step, decode: Callable[[list[int]], str], kl: np.ndarray | None = None) -> list[Stage | None]:
    """The stages from the sampled tokens to the advantages; `kl` as `check_advantages` takes it."""
    ends, turns, mask = check_ends(step, decode), check_turns(step), check_mask(step)
    return [ends, turns, mask, check_rewards(step), check_advantages(step, kl)]


def stages_of_loss(step: Step, losses: Sequence[Loss | None]) -> tuple[Stage | None, Stage | None, Stage]:
    """The stages from the ratios to the loss, which is the last."""
    return check_ratios(step), check_correction(step), check_loss(step, losses)


def with_deviations(step: Step, stages: Sequence[Stage | None]) -> list[Stage]:
    """Name the settings that the trainer does not take from its args, each at the stage that it decides.

    Before the first update the trainer was made so, which is a difference. Later a callback may have changed it.
    """
    said: dict[str, list[str]] = {}
    for name, (of_args, of_trainer) in step.deviations.items():
        stage = "advantages" if name == "beta" and step.kind == "RLOO" else SETTING_STAGES.get(name, "sampling")
        if name in SETTING_STAGES:
            why = f"args.{name} is {of_args}, the trainer has {of_trainer}"
        else:  # no field of the config
            given = f"no {name}" if of_args is None else f"{name}={of_args}"
            why = f"generation_kwargs has {given}, the sampler has {of_trainer}"
        said.setdefault(stage, []).append(why)
    present = [stage for stage in stages if stage]
    for name in said.keys() - {stage.name for stage in present}:
        present.insert(0, Stage(name, "cannot tell"))  # a kept step has no `sampling`
    return [_deviating(step, stage, said[stage.name]) if stage.name in said else stage for stage in present]


def _deviating(step: Step, stage: Stage, causes: Sequence[str]) -> Stage:
    cause = ", ".join(causes)
    if step.begun:
        cause += " (a callback may have changed it)"
    cause = "; ".join(part for part in (cause, stage.cause) if part)
    verdict = "different" if stage.verdict == "different" or not step.begun else "cannot tell"
    return dataclasses.replace(stage, verdict=verdict, cause=cause)


def compared(
    name: str,
    step: Step,
    used: np.ndarray,
    expected: np.ndarray,
    cause: str,
    size: float | None = None,
    unit: str = "rows",
) -> Stage:
    """A stage of numbers that are computed in fp32, whatever the model computes in; `unit` is what there is one for each of."""
    if not np.isfinite(used).all():
        return Stage(name, "different", "a number is not finite", math.inf)
    scale = max(1.0, float(np.abs(expected).max(initial=0.0))) if size is None else size
    difference, allowed = np.abs(used - expected), tolerance_of(step).value * scale
    largest = float(difference.max(initial=0.0))
    if largest <= allowed:
        return Stage(name, "same" if largest <= SAME * scale else "rounding", "", largest)
    return Stage(name, "different", cause, largest, places(np.flatnonzero(~(difference <= allowed)), unit))


def places(rows: Sequence[int] | np.ndarray, unit: str = "rows") -> str:
    """The first of many rows, in words."""
    return f"{unit} {', '.join(str(i) for i in list(rows)[:5])}" + (", ..." if len(rows) > 5 else "")


def without_pads(ids: Sequence[int], pad: int | None) -> tuple[int, ...]:
    """Token ids up to the last that is no pad."""
    end = len(ids)
    while end and ids[end - 1] == pad:
        end -= 1
    return tuple(ids[:end])


def checked_rows(
    step: Step,
    losses: Sequence[Loss | None],
    decode: Callable[[list[int]], str],
    alone: Callable[[list[int], list[int]], np.ndarray] = lambda prompt, ids: np.full(len(ids), np.nan),
) -> list[CheckedRow]:
    """The completions of a step in the order of their generation, for its report; `alone` gives the log-probs of one alone.

    The loss takes them shuffled, and the stages number them as they were generated.
    """
    number_of = _numbers(step)
    found = []
    for micro, loss in zip(step.micro_batches, losses, strict=True):
        for i, (row, prompt, ids) in enumerate(zip(micro.rows, micro.prompt_ids, micro.ids, strict=True)):
            if row.logps is None or loss is None:
                continue
            ratios = np.broadcast_to(loss.ratios[i], len(ids))
            numbers = row.mask, row.advantage, row.logps, alone(prompt, ids), ratios, loss.slopes[i]
            number = None if micro.completion_ids is None else number_of(prompt, micro.completion_ids[i])
            if not ids and micro.completion_ids is not None and np.ndim(row.advantage) == 0:  # the loss leaves it out
                ids = list(without_pads(micro.completion_ids[i], step.pad_token_id))
                none, unknown = np.zeros(len(ids)), np.full(len(ids), np.nan)
                numbers = none, row.advantage, unknown, unknown, unknown, none
            texts = [decode([token]) for token in ids]
            found.append(CheckedRow(prompt, ids, texts, *numbers, prompt=decode(prompt), number=number))
    return sorted(found, key=lambda row: math.inf if row.number is None else row.number)


def _numbers(step: Step) -> Callable[[list[int], list[int]], int | None]:
    """A function that finds the generated row of a prompt and a completion; equal ones get its numbers in turn."""
    rows = defaultdict(list)
    for number, row in enumerate(step.rows):
        rows[tuple(row.prompt_ids), without_pads(row.ids, step.pad_token_id)].append(number)
    turns = {text: itertools.cycle(numbers) for text, numbers in rows.items()}

    def number_of(prompt: list[int], ids: list[int]) -> int | None:
        return next(turns.get((tuple(prompt), without_pads(ids, step.pad_token_id)), iter(())), None)

    return number_of
