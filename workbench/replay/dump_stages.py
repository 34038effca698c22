"""The stages of another framework's dump, as far as it holds them: each compared with another part of the same dump.

A dump has no settings. Where several published formulas would be right, the verdict names the one that gives the dump's
numbers; where none does, it is `cannot tell`, because a framework may compute advantages in its own way.
"""

import functools
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .dumps import Dump, DumpRow, load_dump
from .grpo_math import group_advantages
from .report import Stage, StepReport
from .rounding import mean_rounding
from .stages import SAME, TOLERANCES, moved_apart, places

NO_BASELINE = "the reward"  # the formula of a trainer that takes none off
_CLOSE = 1e-3  # of advantages, relative to their size
_CLOSE_HALF = 2.0**-7  # where they are in bfloat16: one rounding of the difference, one of the quotient
_BLIND = 0.1  # share of the differences of rewards: where float32 rounds them by more, a fault could hide in it
_SMALLEST = 1e-6  # that is added to a standard deviation
_IN_A_ROW = 3  # tokens whose probability is 1 in float32
_LONG = 8  # tokens of a row, or rows, below which a mean says little
_LOOKED_AT = 8  # odd rows of which a cause is sought
_MUCH = 0.3  # nats a token, of a row or a place
_MANY, _SLOPE = 500, 0.025  # tokens, and share of a log-prob; a temperature of 0.9 makes it 0.04
_Logps = tuple[np.ndarray, np.ndarray, np.ndarray]  # as `_both_logps` gives them
Formula = Callable[[np.ndarray], np.ndarray]  # of the rewards of a group, (G,) to (G,)


def replay_dump(path: str | os.PathLike) -> StepReport:
    """Judge what another framework has dumped of a step.

    Args:
        path: a file that `replay.dumps` names.

    Returns:
        The stages `ends`, `turns`, `mask`, `rewards`, `advantages`, `batches`, `mismatch`, `ratios`, `correction` and `loss`.
        A stage that the dump does not hold is `cannot tell`, and says what it lacks.

    Raises:
        RunError: the file is no such dump.
    """
    return report_of(load_dump(path))


def report_of(dump: Dump) -> StepReport:
    """The stages of a dump that has been read."""
    stages = [_ends(dump), _turns(dump), _mask(dump), _rewards(dump), _advantages(dump), _batches(dump)]
    stages += [_mismatch(dump), _ratios(dump), _correction(dump)]
    stages.append(_lacks(dump, "loss", "loss, and no log-probs that it was computed from"))
    worse = {stage.name: stage for stage in dump.contradictions}
    present = [worse.pop(stage.name, stage) for stage in stages if stage is not None]
    return StepReport(present, [])


def _lacks(dump: Dump, name: str, what: str) -> Stage:
    return Stage(name, "cannot tell", f"the dump holds no {what}")


def _ends(dump: Dump) -> Stage:
    """Rows that count as truncated, against what the sampler said."""
    both = [i for i, row in enumerate(dump.rows) if row.truncated is not None and row.ended is not None]
    if both:
        wrong = [i for i in both if dump.rows[i].truncated == dump.rows[i].ended]
        if wrong:
            cause = f"{len(wrong)} of {len(both)} rows count as truncated and ended, or as neither"
            return Stage("ends", "different", cause, len(wrong) / len(both), places(wrong))
        ended = sum(bool(dump.rows[i].ended) for i in both)
        return Stage("ends", "same", f"{ended} of {len(both)} rows ended, by the trainer and by the sampler")
    cut = [row.truncated if row.ended is None else not row.ended for row in dump.rows]
    if any(value is not None for value in cut):
        count = sum(bool(value) for value in cut)
        return Stage(
            "ends",
            "cannot tell",
            f"{count} of {len(cut)} rows count as truncated, and the dump says it in one place alone",
        )
    return _lacks(dump, "ends", "reason for which a completion ended")


def _turns(dump: Dump) -> Stage | None:
    """The tokens of the trainer, against those of the rollout; None where the dump has one of them."""
    if any(stage.name == "turns" for stage in dump.contradictions):
        return Stage("turns", "different")
    return Stage("turns", "same", dump.agreements["turns"]) if "turns" in dump.agreements else None


def _mask(dump: Dump) -> Stage:
    """The tokens in the loss, against those that were sampled."""
    masks = [row.mask for row in dump.rows if row.mask is not None]
    if len(masks) < len(dump.rows):
        return _lacks(dump, "mask", "mask of the tokens in the loss")
    if odd := [i for i, mask in enumerate(masks) if not np.isin(mask, (0, 1)).all()]:
        return Stage("mask", "different", "the mask has other values than 0 and 1", where=places(odd))
    counted = f"{int(sum(mask.sum() for mask in masks))} tokens of {len(masks)} rows count"
    owns = [row.own_mask for row in dump.rows if row.own_mask is not None]
    if len(owns) == len(masks):
        wrong = [i for i, (mask, own) in enumerate(zip(masks, owns, strict=True)) if not np.array_equal(mask, own)]
        if wrong:
            return Stage(
                "mask", "different", "the trainer has another mask than the rollout wrote", where=places(wrong)
            )
        return Stage("mask", "same", f"{counted}, as the rollout wrote it")
    outside = [i for i, row in enumerate(dump.rows) if _sampled_outside(row)]
    if outside:
        said = f"{counted}; {len(outside)} rows hold sampled tokens that do not, and nothing says why"
        return Stage("mask", "cannot tell", said, where=places(outside))
    if first := [i for i, row in enumerate(dump.rows) if row.group == () and masks[i].any()]:
        cause = f"{len(first)} rows have their very first token in the loss, for which no model has a probability"
        return Stage("mask", "different", f"{cause}: the prompt is trained", where=places(first))
    foreign = [i for i, row in enumerate(dump.rows) if _not_sampled(row)]
    if foreign:
        said = f"{counted}; {len(foreign)} rows have tokens in the loss to which the sampler gave no log-prob, or one of 0: "
        said += "those of a prompt or a tool are not for the loss"
        return Stage("mask", "cannot tell", said, where=places(foreign))
    starts = [_in_loss(row, row.sampled_logps)[:1] for row in dump.rows if row.trainer_logps is None]
    if len(starts) >= _LONG and all(len(each) and each[0] == 0 for each in starts):
        said = f"{counted}; the first of each row has a log-prob of exactly 0: is it the last token of a prompt?"
        return Stage("mask", "cannot tell", said)
    if all(row.sampled_logps is not None for row in dump.rows):
        return Stage("mask", "same", f"{counted}, and no other token has a log-prob of the sampler")
    return Stage("mask", "cannot tell", f"{counted}; the dump holds nothing to compare them with")


def _sampled_outside(row: DumpRow) -> bool:
    """True if the sampler gave a log-prob for a token that is not in the loss: one that it did not sample has 0."""
    if row.sampled_logps is None or row.mask is None or len(row.sampled_logps) != len(row.mask):
        return False
    return bool(((row.mask == 0) & (np.nan_to_num(row.sampled_logps) != 0)).any())


def _not_sampled(row: DumpRow) -> bool:
    """True if a token in the loss has no log-prob of the sampler, or 0 where the trainer's is another.

    Without the trainer's, several of 0 in a row: a sure token has it too, and seldom so many.
    """
    sampled, own = _in_loss(row, row.sampled_logps), _in_loss(row, row.trainer_logps)
    if len(own) == len(sampled):
        zeros = (sampled == 0) & (np.nan_to_num(own) < -TOLERANCES["bfloat16"].largest)
    else:
        zeros = np.convolve(sampled == 0, np.ones(_IN_A_ROW), "valid") >= _IN_A_ROW if len(sampled) else sampled
    return bool(np.isnan(sampled).any() or np.any(zeros))


def _rewards(dump: Dump) -> Stage:
    """The rewards of the trainer, against what the rollout wrote, or those of equal completions."""
    rewards = [row.reward for row in dump.rows]
    if all(reward is None for reward in rewards):
        return _lacks(dump, "rewards", "reward")
    both = [i for i, row in enumerate(dump.rows) if row.reward is not None and row.scored is not None]
    used, scored = (np.array([getattr(dump.rows[i], name) for i in both], dtype=float) for name in ("reward", "scored"))
    wrong = [both[k] for k in np.flatnonzero(~np.isclose(used, scored, rtol=1e-5, atol=1e-6))]
    if wrong:
        cause = f"{len(wrong)} of {len(both)} rows have another reward than the rollout wrote for them"
        return Stage("rewards", "different", cause, where=places(wrong))
    said = f"{sum(reward is not None for reward in rewards)} of {len(rewards)} rows have a reward"
    first: dict[tuple, float | None] = {}
    unlike = []
    for i, row in enumerate(dump.rows):
        if row.completion and first.setdefault((row.group, row.completion), row.reward) != row.reward:
            unlike.append(i)
    if unlike:
        said += ": equal completions of one group have different rewards, so a function is random or mixes up rows"
        return Stage("rewards", "cannot tell", said, where=places(unlike))
    if len(both) == len(rewards):
        return Stage("rewards", "same", f"{said}, as the rollout wrote it")
    return Stage("rewards", "cannot tell", f"{said}; the dump holds no second place to compare it with")


# --- advantages -----------------------------------------------------------------------------------------------------


def formulas() -> Mapping[str, Formula]:
    """The published ways from the rewards of a group to its advantages: name -> function, (G,) to (G,).

    Example:
        >>> formulas()["reward minus the mean of the group"](np.array([1.0, 0.0]))
        array([ 0.5, -0.5])
    """
    named: dict[str, Formula] = {"reward minus the mean of the group": lambda r: group_advantages(r, len(r), "none")}
    for small, text in ((_SMALLEST, ""), (1e-4, ", plus 0.0001")):
        for freedom, of in ((1, "n - 1"), (0, "n")):
            name = f"reward minus the mean of the group, over its standard deviation (of {of}{text})"
            named[name] = functools.partial(_scaled, freedom=freedom, small=small)
    named["reward minus the mean of the others"] = lambda r: r - _others(r)
    named["reward minus the mean of the others, over their standard deviation"] = _scaled_by_others
    named["reward minus the mean of the group, over that mean"] = _over_the_mean
    named[NO_BASELINE] = lambda r: r
    return named


def _scaled(rewards: np.ndarray, freedom: int, small: float) -> np.ndarray:
    spread = rewards.std(ddof=freedom) if len(rewards) > freedom else 0.0
    return (rewards - rewards.mean()) / (spread + small)


def _over_the_mean(rewards: np.ndarray) -> np.ndarray:
    """MaxRL's; a group without a reward above 0 has 0."""
    return (rewards - rewards.mean()) / rewards.mean() if rewards.mean() > 0 else np.zeros(len(rewards))


def _others(rewards: np.ndarray) -> np.ndarray:
    count = len(rewards) - 1
    return (rewards.sum() - rewards) / count if count else rewards


def _scaled_by_others(rewards: np.ndarray) -> np.ndarray:
    """NeMo-RL's default; a completion whose others have equal rewards is not scaled."""
    if len(rewards) < 3:
        return rewards - _others(rewards)
    spreads = np.array([np.delete(rewards, i).std(ddof=1) for i in range(len(rewards))])
    centred = rewards - _others(rewards)
    return np.where(spreads > 0, centred / (spreads + 1e-6), centred)


def _advantages(dump: Dump) -> Stage:
    """The advantages, against each formula that is published."""
    if all(row.advantages is None for row in dump.rows):
        return _lacks(dump, "advantages", "advantages")
    if any(row.advantages is None for row in dump.rows):
        return _lacks(dump, "advantages", "advantages of some completions")
    if any(row.reward is None for row in dump.rows):
        return _lacks(dump, "advantages", "reward of each completion, from which advantages follow")
    if any(row.group is None for row in dump.rows):
        return _lacks(dump, "advantages", "prompt or group of each completion")
    if infinite := [i for i, row in enumerate(dump.rows) if not np.isfinite(_in_loss(row, row.advantages)).all()]:
        return Stage("advantages", "different", "an advantage is not finite", where=places(infinite))
    own = [value for value in map(_one, dump.rows) if value is not None]
    if len(own) < len(dump.rows):
        return Stage("advantages", "cannot tell", "the tokens of a completion have advantages of their own")
    used, rewards = np.array(own), np.array([row.reward for row in dump.rows], dtype=float)
    if np.isnan(used).all():
        return Stage(
            "advantages", "cannot tell", "the dump holds no token in the loss, whose advantage could be compared"
        )
    groups: dict[object, list[int]] = defaultdict(list)
    for i, row in enumerate(dump.rows):
        groups[row.group].append(i)
    stage = compared_with_formulas(rewards, used, list(groups.values()))
    if stage.verdict in ("same", "rounding") or not np.isnan(used).any():
        return stage
    # A framework may have left out the rewards of the rows that the loss leaves out.
    known = [[i for i in rows if not np.isnan(used[i])] for rows in groups.values()]
    without = compared_with_formulas(rewards, used, [rows for rows in known if rows])
    return without if without.verdict == "same" else stage


def _in_loss(row: DumpRow, numbers: np.ndarray | None) -> np.ndarray:
    """The numbers of the tokens that count; none where a dump has none, or for other tokens."""
    if numbers is None or row.mask is None or len(numbers) != len(row.mask):
        return np.zeros(0)
    return numbers[row.mask > 0]


def _one(row: DumpRow) -> float | None:
    """The advantage of a completion; NaN where no token counts, None where its tokens have several."""
    if row.advantages is None or row.mask is None or len(row.mask) != len(row.advantages):
        return None
    counted = row.advantages[row.mask > 0]
    if not len(counted):
        return np.nan
    return float(counted[0]) if np.allclose(counted, counted[0], rtol=1e-4, atol=1e-6) else None


def compared_with_formulas(rewards: np.ndarray, used: np.ndarray, groups: Sequence[Sequence[int]]) -> Stage:
    """Judge the advantages of a step.

    Args:
        rewards, used: (N,), with the advantages of the dump; NaN where it holds none.
        groups: the rows of each.

    Returns:
        `same` or `rounding` where one formula gives all groups; `different` where it gives most of them, or gives all from the
        rewards of the neighbours, or with the other sign; else `cannot tell`, also where no baseline is taken off in a group.

    Example:
        >>> rewards, used = np.array([1.0, 0.0, 2.0, 0.0]), np.array([0.5, -0.5, 1.0, -1.0])
        >>> compared_with_formulas(rewards, used, [[0, 1], [2, 3]]).verdict
        'same'
        >>> compared_with_formulas(rewards, -used, [[0, 1], [2, 3]]).cause
        'the negative of: reward minus the mean of the group'
    """
    telling = [rows for rows in groups if np.ptp(rewards[list(rows)]) > 0]
    if not telling and not np.abs(used[~np.isnan(used)]).max(initial=0.0) > SAME:
        return Stage("advantages", "same", "the rewards of each group are equal, and all advantages are 0")
    if telling and all(_lost(own) > _BLIND * np.ptp(own) for own in (rewards[list(rows)] for rows in telling)):
        cause = f"float32 has too few digits for rewards of up to {np.abs(rewards).max():.3g} that differ so little"
        return Stage("advantages", "cannot tell", cause)
    fits = {name: [rows for rows in groups if _fits(name, rewards, used, rows)] for name in formulas()}
    name = max(fits, key=lambda each: (len(fits[each]), -list(fits).index(each)))
    wrong = [rows for rows in groups if rows not in fits[name]]
    if not wrong and name == NO_BASELINE and any(len(rows) > 1 for rows in telling):
        cause = f"{name}: no baseline is taken off within a group. REINFORCE may want that, GRPO and RLOO do not"
        return Stage("advantages", "cannot tell", cause)
    if not wrong:
        equal = used[[i for rows in groups if rows not in telling for i in rows]]
        noise = float(np.abs(equal[~np.isnan(equal)]).max(initial=0.0))
        if "deviation" not in name or noise <= SAME:
            return Stage("advantages", "same", name)
        cause = f"{name}; float32 leaves up to {noise:.2g} in groups of equal rewards"
        return Stage("advantages", "rounding", cause, noise)
    for text, changed, factor in _CHANGES:
        for formula in formulas():
            if telling and all(_fits(formula, changed(rewards), factor * used, rows) for rows in groups):
                return Stage("advantages", "different", f"{text}{formula}")
    largest, usual = max(map(len, groups)), float(np.median([len(group) for group in groups]))
    rows = [i for group in wrong for i in group]
    if any(len(group) < largest for group in wrong):
        cause = f"{len(wrong)} groups have fewer rows here than the others, so a part of them is elsewhere"
        return Stage("advantages", "cannot tell", cause, where=places(rows))
    if all(len(group) > usual for group in wrong):
        cause = f"{len(wrong)} groups have more rows than the others, as of a prompt that stands in the batch twice"
        return Stage("advantages", "cannot tell", cause, where=places(rows))
    if sum(group in fits[name] for group in telling) * 2 >= len(telling) > 1:
        cause = f"{len(groups) - len(wrong)} of {len(groups)} groups are {name}; the others are not"
        return Stage("advantages", "different", cause, where=places(rows))
    return Stage(
        "advantages",
        "cannot tell",
        f"none of {len(fits)} published formulas gives them, and the dump holds no settings",
    )


_CHANGES: tuple[tuple[str, Callable[[np.ndarray], np.ndarray], float], ...] = (
    ("the negative of: ", lambda rewards: rewards, -1.0),
    ("each row has that of the row before it: ", lambda rewards: np.roll(rewards, 1), 1.0),
    ("each row has that of the row after it: ", lambda rewards: np.roll(rewards, -1), 1.0),
)


def _fits(name: str, rewards: np.ndarray, used: np.ndarray, rows: Sequence[int]) -> bool:
    """True if a formula gives the advantages of a group, as far as float32 has digits for them."""
    own = rewards[list(rows)]
    expected, lost, spread = formulas()[name](own), _lost(own), float(np.ptp(own))
    largest, apart = float(np.abs(expected).max()), np.abs(used[list(rows)] - expected)
    close = _CLOSE_HALF if _in_bfloat16(used) else _CLOSE
    if spread:
        allowed = largest * (close + lost / spread)
    else:  # what float32 leaves of equal rewards is divided by no more than what is added to their deviation
        allowed = largest * close + (lost / _SMALLEST if "deviation" in name else lost)
    return bool((apart[~np.isnan(apart)] <= allowed).all())


def _in_bfloat16(numbers: np.ndarray) -> bool:
    """True if each number has no more digits than bfloat16."""
    numbers = numbers[~np.isnan(numbers)]
    short = np.ascontiguousarray(numbers, dtype=np.float32)
    return bool((short == numbers).all() and not (short.view(np.uint32) & 0xFFFF).any())


def _lost(rewards: np.ndarray) -> float:
    """Bound what float32 loses of rewards and their mean."""
    return float(mean_rounding(rewards)[0] + np.abs(rewards - rewards.astype(np.float32)).max())


# --- log-probs ------------------------------------------------------------------------------------------------------


def _batches(dump: Dump) -> Stage:
    if "batches" in dump.agreements:
        return Stage("batches", "same", dump.agreements["batches"])
    return _lacks(dump, "batches", "micro-batches")


def _mismatch(dump: Dump) -> Stage:
    """The sampler's log-probs, against the trainer's before the update."""
    rows = [arrays for arrays in map(_both_logps, dump.rows) if arrays is not None]
    if len(rows) < len(dump.rows):
        return _lacks(dump, "mismatch", "log-probs of both the trainer and the sampler")
    odd = [
        i
        for i, row in enumerate(dump.rows)
        if not np.isfinite(_in_loss(row, row.trainer_logps)).all() or np.isinf(_in_loss(row, row.sampled_logps)).any()
    ]
    if odd:
        cause = "a token in the loss has no finite log-prob"
        return Stage("mismatch", "different", cause, where=places(odd))
    apart = np.concatenate([(own - sampled)[mask > 0] for own, sampled, mask in rows])
    apart = apart[np.isfinite(apart)]
    if not len(apart):
        return Stage("mismatch", "cannot tell", "no token in the loss has both log-probs")
    mean, largest = float(np.abs(apart).mean()), float(np.abs(apart).max())
    said = f"{mean:.3g} nats a token between trainer and sampler"
    if largest <= SAME:
        return Stage("mismatch", "same", said, largest)
    for shift, way in ((1, "earlier"), (-1, "later")):
        moved = np.concatenate([moved_apart(*arrays, shift) for arrays in rows])
        if len(moved) > 1 and np.abs(moved).mean() <= TOLERANCES["bfloat16"].mean < mean:
            cause = f"{said}: the sampler's log-probs stand one token {way} than the trainer's"
            return Stage("mismatch", "different", cause, largest)
    if found := _odd_rows(rows) or _odd_place(rows) or _as_of_a_temperature(rows):
        verdict, cause, where = found
        return Stage("mismatch", verdict, f"{said}: {cause}", largest, where)
    if mean <= TOLERANCES["bfloat16"].mean:
        return Stage("mismatch", "rounding", said, largest)
    cause = f"{said}: the weights are newer than those that sampled, or one of the two scores in another way"
    return Stage("mismatch", "cannot tell", cause, largest)


def _odd_rows(rows: Sequence[_Logps]) -> tuple[str, str, str] | None:
    """Verdict, cause and place of rows that are much further apart than the usual one; None where there are none."""
    means = np.array([_mean_apart(*row) for row in rows])
    long = np.array([(mask > 0).sum() >= _LONG for _, _, mask in rows])
    if not long.any():
        return None
    usual = float(np.median(means[long]))
    odd = [int(i) for i in np.flatnonzero(long & (means > max(_MUCH, 10 * usual)))]
    if not odd or len(odd) * 2 > long.sum():
        return None
    said = f"{np.mean(means[odd]):.3g} in {len(odd)} rows, {usual:.3g} in the usual one"
    alike: dict[bytes, list[int]] = defaultdict(list)
    for i, (_, _, mask) in enumerate(rows):
        alike[np.asarray(mask, dtype=float).tobytes()].append(i)
    for i in odd[:_LOOKED_AT]:
        own, sampled, mask = rows[i]
        within = float(np.nanstd(sampled[mask > 0])) / 10  # two rows of sure tokens are near each other, too
        for shift, way in ((1, "earlier"), (-1, "later")):
            moved = moved_apart(own, sampled, mask, shift)
            if len(moved) and np.abs(moved).mean() <= TOLERANCES["bfloat16"].mean:
                return "different", f"{said}; in row {i} the sampler's stand one token {way}", places(odd)
        for other in alike[np.asarray(mask, dtype=float).tobytes()]:
            if other != i and _mean_apart(rows[other][0], sampled, mask) <= min(2 * usual + SAME, within):
                return "different", f"{said}; row {i} has those of row {other}", places(odd)
    return "cannot tell", f"{said}: were they sampled with older weights, or scored behind other tokens?", places(odd)


def _odd_place(rows: Sequence[_Logps]) -> tuple[str, str, str] | None:
    """As `_odd_rows`, of the first or last token of each row, where they are much further apart than the others."""
    ends = [(own - sampled)[mask > 0] for own, sampled, mask in rows]
    ends = [np.abs(each[np.isfinite(each)]) for each in ends]
    ends = [each for each in ends if len(each) >= _LONG]
    if len(ends) < _LONG:
        return None
    inner = float(np.concatenate([each[1:-1] for each in ends]).mean())
    for place, name in ((0, "first"), (-1, "last")):
        mean = float(np.mean([each[place] for each in ends]))
        if mean > max(_MUCH, 10 * inner):
            cause = f"{mean:.3g} for the {name} token of each row, {inner:.3g} for others: is it scored behind the same tokens?"
            return "cannot tell", cause, ""
    return None


def _as_of_a_temperature(rows: Sequence[_Logps]) -> tuple[str, str, str] | None:
    """As `_odd_rows`, of a difference that is a share of the log-prob, as of another temperature; rounding is none."""
    own, sampled = (np.concatenate([row[k][row[2] > 0] for row in rows]) for k in (0, 1))
    known = np.isfinite(own) & np.isfinite(sampled)
    x, y = ((own + sampled) / 2)[known], (own - sampled)[known]
    x = x - x.mean()
    if len(x) < _MANY or not (x @ x):
        return None
    slope = float(x @ y / (x @ x))
    error = float(np.sqrt(x**2 @ (y - y.mean() - slope * x) ** 2) / (x @ x))
    if abs(slope) < max(_SLOPE, 6 * error):
        return None
    cause = f"the difference is {abs(slope):.0%} of a log-prob, as if one of the two divided by another temperature"
    return "cannot tell", cause, ""


def _mean_apart(own: np.ndarray, sampled: np.ndarray, mask: np.ndarray) -> float:
    apart = np.abs(own - sampled)[mask > 0]
    apart = apart[np.isfinite(apart)]
    return float(apart.mean()) if len(apart) else 0.0


def _both_logps(row: DumpRow) -> _Logps | None:
    """(T,) each: the trainer's log-probs, the sampler's, and the mask; None where one is missing or of another length."""
    if row.trainer_logps is None or row.sampled_logps is None or row.mask is None:
        return None
    arrays = row.trainer_logps, row.sampled_logps, row.mask
    return arrays if len({len(array) for array in arrays}) == 1 else None


_OF_LOGPS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "log_importance_ratio": lambda own, sampled: own - sampled,
    "importance_ratio": lambda own, sampled: np.exp(own - sampled),
    "mismatch_kl": lambda own, sampled: np.expm1(own - sampled) - (own - sampled),
    "prob_delta": lambda own, sampled: np.exp(own) - np.exp(sampled),
}


def _ratios(dump: Dump) -> Stage:
    """Ratios that the framework computed, against the log-probs that it had."""
    names = [name for name in _OF_LOGPS if any(name in row.derived for row in dump.rows)]
    if not names:
        return _lacks(dump, "ratios", "ratios, and no log-probs of the loss")
    largest, wrong = 0.0, set()
    for i, row in enumerate(dump.rows):
        arrays = _both_logps(row)
        if arrays is None:
            return Stage("ratios", "cannot tell", "the dump holds no log-probs of some rows")
        own, sampled, mask = arrays
        for name in names:
            if name not in row.derived:
                continue
            expected = _OF_LOGPS[name](own, sampled)[mask > 0]
            used = row.derived[name][mask > 0]
            finite = np.isfinite(expected) & np.isfinite(used)
            apart = np.abs(used - expected)[finite]
            # A framework subtracts log-probs in float32, where a ratio near 1 has 1e-6 of rounding.
            allowed = TOLERANCES["float32"].value * np.maximum(1.0, np.abs(expected[finite]))
            largest = max(largest, float(apart.max(initial=0.0)))
            if (apart > allowed).any():
                wrong.add(i)
    if wrong:
        cause = f"{', '.join(names)} are not those of the log-probs next to them"
        return Stage("ratios", "different", cause, largest, places(sorted(wrong)))
    return Stage("ratios", "same", f"{', '.join(names)} follow from the log-probs, to {largest:.1g}", largest)


def _correction(dump: Dump) -> Stage:
    """Tokens that prime-rl leaves out of the loss: a limit on how far a probability moved must explain them."""
    rows = [
        row for row in dump.rows if {"is_masked", "prob_delta"} <= row.derived.keys() and row.advantages is not None
    ]
    if not rows or len(rows) < len(dump.rows):
        return _lacks(dump, "correction", "weights or masks of an off-policy correction")
    said = []
    for sign, word in ((1.0, "positive"), (-1.0, "negative")):
        moved, masked = [], []
        for row in rows:
            counted = (np.asarray(row.mask) > 0) & (sign * np.asarray(row.advantages) > 0)
            moved.append(sign * row.derived["prob_delta"][counted])
            masked.append(row.derived["is_masked"][counted] > 0)
        moves, out = np.concatenate(moved), np.concatenate(masked)
        inside, outside = moves[~out].max(initial=-1.0), moves[out].min(initial=2.0)
        if out.any() and (inside > outside or outside <= 0):
            cause = f"at {word} advantage a token that moved by {outside:.3g} is left out, "
            cause += f"and one that moved by {inside:.3g} is not"
            return Stage("correction", "different", cause)
        if out.any():
            said.append(f"{out.sum()} tokens of {word} advantage are left out, from {outside:.3g} on")
    return Stage("correction", "same", "; ".join(said) or "no token is left out")
