"""The stages of a step that trains on packed rows, as TRL's AsyncGRPOTrainer does: where a row lies, what it sees, what counts.

A queue gives rows of L tokens. The trainer packs the rows of a micro-batch into P positions. Rows that begin with the same
tokens share these positions, so the packed rows are a tree. The positions lie in segments; a segment sees a path of positions
that ends with its own. The loss has M terms. Each is taken at one position, for the token that follows there in one row.
Source: `trl/experimental/async_grpo/packing.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .grpo_math import Loss
from .report import Stage
from .stages import check_loss, compared, of_logged, places, tolerance_of
from .step import Step

_SMALL = 1e-8  # what the rollout worker adds to a standard deviation
_MANY = 5  # faults that a cause lists
NO_LABEL = -100  # of a position whose log-prob is not taken


@dataclass(frozen=True)
class QueuedRow:
    """One row as the rollout worker queued it. Several rows of one conversation share its group and its reward."""

    ids: np.ndarray  # (L,)
    mask: np.ndarray  # (L,), 1 for the tokens that train
    old_logps: np.ndarray  # (L,), the server's
    advantage: float
    group: int
    staleness: int  # weight updates between its sampling and its training
    reward: float | None = None
    reward_std: float | None = None  # of its group


@dataclass(frozen=True)
class Packed:
    """One micro-batch as the loss took it, of S segments."""

    rows: Sequence[QueuedRow]
    lost: int  # rows that were taken from the queue and are nowhere
    ids: np.ndarray  # (P,)
    positions: np.ndarray  # (P,), as the model counts them
    labels: np.ndarray  # (P,), the token whose log-prob is taken there
    segment_starts: np.ndarray  # (S + 1,), into the positions
    path_starts: np.ndarray  # (S + 1,), into `paths`
    paths: np.ndarray  # the positions that each segment sees, one path after the other
    term_positions: np.ndarray  # (M,)
    term_rows: np.ndarray  # (M,), the row of each term
    old_logps: np.ndarray  # (M,)
    advantages: np.ndarray  # (M,)
    logps: np.ndarray | None  # (M,), the trainer's; None where its loss does not use the model's own


def term_places(packed: Packed) -> np.ndarray:
    """Find the place of each term's token in its row: as many tokens as its position sees.

    Returns:
        (M,), from 1 on.

    Example: one row of four tokens, of which the last two train.
        >>> row = QueuedRow(np.array([7, 8, 9, 5]), np.array([0, 0, 1, 1]), np.zeros(4), 1.0, group=0, staleness=0)
        >>> chain, ends = np.arange(4), np.array([0, 4])
        >>> labels = np.array([-100, 9, 5, -100])
        >>> terms = np.array([1, 2]), np.array([0, 0]), np.zeros(2), np.ones(2)
        >>> term_places(Packed([row], 0, row.ids, chain, labels, ends, ends, chain, *terms, None))
        array([2, 3])
    """
    segments = np.searchsorted(packed.segment_starts, packed.term_positions, side="right") - 1
    behind = packed.segment_starts[segments + 1] - packed.term_positions - 1
    return np.diff(packed.path_starts)[segments] - behind


def check_packing(batches: Sequence[Packed], max_staleness: int) -> Stage:
    """Check that each row trains once, sees its own tokens alone at its own positions, and predicts its own next tokens."""
    faults = list[str]()
    rows = 0
    for packed in batches:
        rows += len(packed.rows)
        if packed.lost:
            faults.append(f"{packed.lost} rows of the queue are in no micro-batch")
        if stale := [row.staleness for row in packed.rows if row.staleness > max_staleness]:
            faults.append(f"{len(stale)} rows are {max(stale)} updates old, but max_staleness is {max_staleness}")
        faults += _faults_of_rows(packed)
    if faults:
        more = "; ..." if len(faults) > _MANY else ""
        return Stage("batches", "different", "; ".join(faults[:_MANY]) + more, float(len(faults)))
    raw, packed_tokens = sum(len(r.ids) for b in batches for r in b.rows), sum(len(b.ids) for b in batches)
    said = f"{rows} rows in {len(batches)} micro-batches, {raw} tokens packed into {packed_tokens} positions"
    return Stage("batches", "same", said)


def _faults_of_rows(packed: Packed) -> list[str]:
    if len(packed.term_rows) and packed.term_rows.max() >= len(packed.rows):
        return ["the loss has terms of rows that did not come from the queue"]
    found, lengths = list[str](), term_places(packed)
    for number, row in enumerate(packed.rows):
        own = packed.term_rows == number
        terms, seen = packed.term_positions[own], lengths[own]
        path = _deepest_path(packed, terms)
        if len(path) > len(row.ids) or not np.array_equal(packed.ids[path], row.ids[: len(path)]):
            found.append(f"row {number} sees tokens that are not its own")
        elif not np.array_equal(packed.positions[path], np.arange(len(path))):
            first = packed.positions[path][:3].tolist()
            found.append(f"row {number} is at positions {first}..., expected [0, 1, 2]...")
        elif (seen >= len(row.ids)).any() or _mislabelled(packed.labels[terms], row.ids[seen]):
            found.append(f"row {number} predicts tokens that do not follow there")
    return found


def _mislabelled(labels: np.ndarray, following: np.ndarray) -> bool:
    """True where a label is not the token that follows. A position without a label is a matter of the mask."""
    return bool(((labels != following) & (labels != NO_LABEL)).any())


def _deepest_path(packed: Packed, terms: np.ndarray) -> np.ndarray:
    """The positions that the last term of a row sees; a position twice where two segments of the row disagree."""
    longest = np.zeros(0, dtype=int)
    paths = []
    for segment in np.unique(np.searchsorted(packed.segment_starts, terms, side="right") - 1):
        path = packed.paths[packed.path_starts[segment] : packed.path_starts[segment + 1]]
        last = terms[(terms >= packed.segment_starts[segment]) & (terms < packed.segment_starts[segment + 1])].max()
        paths.append(path[: len(path) - (packed.segment_starts[segment + 1] - last - 1)])
    for path in sorted(paths, key=len):
        if not np.array_equal(path[: len(longest)], longest):
            return np.concatenate([path, path])
        longest = path
    return longest


def check_packed_mask(batches: Sequence[Packed]) -> Stage:
    """Check that the terms of the loss are the tokens that each row marks for training, each once."""
    wrong, tokens, first = 0, 0, 0
    names = list[int]()
    for packed in batches:
        lengths = term_places(packed)
        for number, row in enumerate(packed.rows):
            used = np.bincount(np.clip(lengths[packed.term_rows == number], 0, len(row.ids)), minlength=len(row.ids))
            expected = row.mask.astype(int)
            expected[0] = 0  # no token stands before it
            if not np.array_equal(used[: len(row.ids)], expected) or used[len(row.ids) :].any():
                names.append(first + number)
                wrong += int(np.abs(used[: len(row.ids)] - expected).sum())
            tokens += int(expected.sum())
        first += len(packed.rows)
    if not names:
        return Stage("mask", "same", f"{tokens} tokens count; the worker marks which of them the server sampled")
    cause = f"{len(names)} of {first} rows train other tokens than those that the worker marked"
    return Stage("mask", "different", cause, float(wrong), places(names))


def check_queued_advantages(step: Step, batches: Sequence[Packed]) -> Stage:
    """Check that each token has its row's advantage, and that the advantages of a group follow from its rewards."""
    step = replace(step, dtype="float32")  # advantages are in float32 whatever dtype the model computes in
    used = np.concatenate([packed.advantages for packed in batches])
    own = np.concatenate([_of_rows(packed, [row.advantage for row in packed.rows]) for packed in batches])
    stage = compared("advantages", step, used, own, "tokens have another advantage than their row in the queue")
    if stage.verdict == "different":
        return stage
    groups: dict[int, list[QueuedRow]] = {}
    for row in (row for packed in batches for row in packed.rows):
        if row.reward is not None and row.reward_std is not None:
            groups.setdefault(row.group, []).append(row)
    several = {group: rows for group, rows in groups.items() if len(rows) > 1}
    if not several:
        cause = "each token has its row's advantage; no two rows of a group say their rewards"
        return Stage("advantages", "cannot tell", cause)
    wrong = [group for group, rows in several.items() if _spread_of_means(rows) > tolerance_of(step).value]
    if wrong:
        cause = f"the advantages of {len(wrong)} of {len(several)} groups do not follow from their rewards"
        return Stage("advantages", "different", cause, where=f"groups {wrong[:5]}")
    said = f"{len(several)} groups"
    size = step.settings["num_generations"]
    whole = [rows for rows in several.values() if len(rows) == size and _are_conversations(rows)]
    if not whole:
        return Stage(
            "advantages", stage.verdict, f"{said}; none is whole here, so their means are not known", stage.largest
        )
    off = [rows for rows in whole if _off_mean(rows) > tolerance_of(step).value]
    fits = [rows for rows in off if _off_deviation(rows) <= tolerance_of(step).value]
    names = places([rows[0].group for rows in fits or off], "groups")
    if fits:
        cause = f"{len(fits)} of {len(whole)} groups have another baseline than the mean of their rewards"
        return Stage("advantages", "different", cause, where=names)
    if off:
        cause = f"{len(off)} of {len(whole)} groups have another mean and deviation than the rewards of their rows here"
        return Stage("advantages", "cannot tell", cause, where=names)
    return Stage("advantages", stage.verdict, said, stage.largest)


def _are_conversations(rows: Sequence[QueuedRow]) -> bool:
    """Say whether each row is a conversation of its own, with its reward: a later row begins with more than its prompt."""
    prompts = {tuple(row.ids[: int(np.argmax(row.mask > 0))]) for row in rows}
    known = all(row.reward is not None and row.reward_std is not None and not math.isnan(row.reward) for row in rows)
    return len(prompts) == 1 and known


def _off_mean(rows: Sequence[QueuedRow]) -> float:
    """By how much the mean that the advantages of a whole group give is off that of its rewards."""
    rewards = np.array([row.reward for row in rows], dtype=float)
    spreads = np.array([row.reward_std for row in rows], dtype=float)
    implied = rewards - np.array([row.advantage for row in rows]) * (spreads + _SMALL)
    return float(np.abs(implied - rewards.mean()).max()) / max(1.0, float(np.abs(rewards).max()))


def _off_deviation(rows: Sequence[QueuedRow]) -> float:
    """By how much the deviation that the rows of a whole group say is off that of its rewards."""
    spread = float(np.array([row.reward for row in rows], dtype=float).std())
    return max(abs(spread - float(row.reward_std or 0.0)) for row in rows) / max(1.0, spread)


def _spread_of_means(rows: Sequence[QueuedRow]) -> float:
    """The largest difference between the means of a group that its rows give by a = (r - mean) / (std + 1e-8)."""
    unscored = [row.advantage for row in rows if row.reward is None or math.isnan(row.reward)]
    means = [
        row.reward - row.advantage * (row.reward_std + _SMALL)
        for row in rows
        if row.reward is not None and row.reward_std is not None and not math.isnan(row.reward)
    ]
    scale = max([1.0, *(abs(mean) for mean in means)])
    spread = (max(means) - min(means)) / scale if means else 0.0
    return max([spread, *(abs(advantage) for advantage in unscored)])


def check_old_logps(step: Step, batches: Sequence[Packed]) -> Stage:
    """Check that the ratios are taken against the log-probs with which the server sampled."""
    used = np.concatenate([packed.old_logps for packed in batches])
    own = np.concatenate([_at_terms(packed, [row.old_logps for row in packed.rows]) for packed in batches])
    ages = [row.staleness for packed in batches for row in packed.rows]
    if not len(used):
        return Stage("ratios", "cannot tell", "no token is in the loss")
    wrong = ~np.isclose(used, own, rtol=1e-5, atol=1e-6)
    if wrong.any():
        cause = f"{int(wrong.sum())} of {len(used)} tokens have other old log-probs than the server gave them"
        return Stage("ratios", "different", cause, float(np.abs(used - own).max()))
    if any(packed.logps is None for packed in batches):
        return Stage("ratios", "cannot tell", "the log-probs of the trainer are not known")
    logps = np.concatenate([packed.logps for packed in batches if packed.logps is not None])
    low, high = np.exp((logps - used).min()), np.exp((logps - used).max())
    said = f"ratios of {low:.4g} to {high:.4g}; rows are {min(ages)} to {max(ages)} updates old"
    return Stage("ratios", "same", said, float(np.abs(logps - used).max()))


def check_update_loss(step: Step, losses: Sequence[Loss | None], batches: Sequence[Packed]) -> Stage:
    """Check that the micro-batches' losses add up to the mean over the tokens of the update."""
    stage = check_loss(step, losses)
    counts = np.array([len(packed.term_rows) for packed in batches], dtype=float)
    if stage.verdict != "different" or not counts.all():
        return stage
    factors = counts.sum() / counts / len(counts)
    used = np.array([micro.loss for micro in step.micro_batches])
    own = np.array([loss.value for loss in losses if loss is not None]) * factors
    if np.abs(used - own).max() > 1e-3 * np.abs(own).max():
        return stage
    times = ", ".join(f"{factor:.3g}" for factor in factors)
    tokens = ", ".join(f"{count:.0f}" for count in counts)
    cause = (
        f"each micro-batch is divided by its own tokens ({tokens}) and by their number, and not by the tokens of the update "
        f"(huggingface/trl#7206): its tokens count {times} times"
    )
    return Stage("loss", "different", cause, stage.largest, stage.where)


def check_packed_metrics(step: Step, batches: Sequence[Packed]) -> Stage | None:
    """Compare logged ratios, rewards and tokens with the means over micro-batches. None where nothing is logged."""
    settings = step.loss_settings()
    high = settings.epsilon if settings.epsilon_high is None else settings.epsilon_high
    expected: dict[str, list[float]] = {}
    for packed in batches:
        rewards = [row.reward for row in packed.rows if row.reward is not None and not math.isnan(row.reward)]
        if rewards:
            expected.setdefault("reward", []).append(float(np.mean(rewards)))
        tokens = float(np.mean([row.mask.sum() for row in packed.rows])) if packed.rows else 0.0
        expected.setdefault("sample/trained_tokens_mean", []).append(tokens)
        if packed.logps is None or not len(packed.logps):
            continue
        ratio, a = np.exp(packed.logps - packed.old_logps), packed.advantages
        low_clipped, high_clipped = (ratio < 1 - settings.epsilon) & (a < 0), (ratio > 1 + high) & (a > 0)
        expected.setdefault("ratio", []).append(float(ratio.mean()))
        expected.setdefault("kl", []).append(float((ratio - 1 - np.log(ratio)).mean()))
        for part, beyond in (("low", low_clipped), ("high", high_clipped), ("region", low_clipped | high_clipped)):
            expected.setdefault(f"clip_ratio/{part}_mean", []).append(float(beyond.mean()))
    means = {name: float(np.mean(values)) for name, values in expected.items() if name in step.metrics}
    return of_logged(step.metrics, means) if means else None


def _of_rows(packed: Packed, values: Sequence[float]) -> np.ndarray:
    """(M,), the value of each term's row; NaN for a row that is not known."""
    table = np.full(max([len(values), *(packed.term_rows + 1)]), np.nan)
    table[: len(values)] = values
    return table[packed.term_rows]


def _at_terms(packed: Packed, tables: Sequence[np.ndarray]) -> np.ndarray:
    """(M,), what the tables of the rows, (L,) each, have at the terms' tokens; NaN where there is none."""
    found = np.full(len(packed.term_rows), np.nan)
    lengths = term_places(packed)
    for number, table in enumerate(tables):
        own = np.flatnonzero((packed.term_rows == number) & (lengths < len(table)))
        found[own] = table[lengths[own]]
    return found
