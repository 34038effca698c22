"""An update of an AsyncGRPOTrainer as plain numbers: an `AsyncRecord` without its tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..replay.grpo_math import LossRow
from ..replay.packed import Packed, QueuedRow, term_places
from ..replay.step import MicroRows, SampledRow, Step
from .record_async import AsyncRecord, PackedBatch, TakenRow
from .rows import policy_of
from .step_numbers import coarsest_dtype, deviations_of


def packed_batches(record: AsyncRecord) -> list[Packed]:
    """The micro-batches of an update, as its losses took them."""
    return [_packed(batch) for batch in record.packed]


def _packed(batch: PackedBatch) -> Packed:
    inputs, there = batch.inputs, batch.inputs["attention_mask"].bool()
    is_term = inputs["token_index"] >= 0
    positions = _numbers(inputs["token_index"][is_term])
    tree = {
        name: _numbers(inputs[name][inputs[name] >= 0])
        for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")
    }
    return Packed(
        rows=[_queued(row) for row in batch.rows],
        lost=batch.lost,
        ids=_numbers(inputs["input_ids"][there]),
        positions=_numbers(inputs["position_ids"][there]),
        labels=_numbers(inputs["shift_labels"][there]),
        segment_starts=tree["tree_cu_seqlens_q"],
        path_starts=tree["tree_cu_seqlens_k"],
        paths=tree["tree_kv_index"],
        term_positions=positions,
        term_rows=_numbers(inputs["segment_id"][is_term]),
        old_logps=_numbers(inputs["old_log_probs"][is_term], float),
        advantages=_numbers(inputs["advantages"][is_term], float),
        logps=None if batch.logps is None else _numbers(batch.logps, float)[positions],
    )


def _numbers(table: Any, kind: type = int) -> np.ndarray:
    return table.detach().double().numpy(force=True).astype(kind)


def _queued(taken: TakenRow) -> QueuedRow:
    sample, metrics = taken.sample, taken.sample.metrics
    return QueuedRow(
        ids=np.asarray(sample.input_ids, dtype=int),
        mask=np.asarray(sample.completion_mask, dtype=float),
        old_logps=np.asarray(sample.old_log_probs, dtype=float),
        advantage=float(sample.advantage),
        group=int(sample.group_id),
        staleness=taken.staleness,
        reward=metrics.get("reward"),
        reward_std=metrics.get("reward_std"),
    )


def async_step_of(trainer: Any, record: AsyncRecord, batches: Sequence[Packed]) -> Step:
    """The update as the stages of GRPO take it: a row is a completion behind a prompt, its mask the terms that the loss has.

    The loss is DAPO's, a mean over the tokens of the update. Only rows of the newest weights count as sampled by the policy.
    """
    args = trainer.args
    # Between two syncs the trainer's weights move on, and the server's do not.
    synced = trainer.state.global_step % args.weight_sync_steps == 0
    rows, micro_batches = list[SampledRow](), list[MicroRows]()
    scored = not trainer.aux_loss_enabled  # a loss of the router is added elsewhere
    for packed, batch in zip(batches, record.packed, strict=True):
        micro = MicroRows([], [], [], None, batch.loss)
        for number, row in enumerate(packed.rows):
            start = first_trained(row)
            is_new = synced and row.staleness == 0
            loss_row = _loss_row(packed, number, start, is_new, scored)
            micro.rows.append(loss_row)
            micro.prompt_ids.append(row.ids[:start].tolist())
            micro.ids.append(row.ids[start:].tolist())
            sampled = row.mask[start:] if is_new else np.zeros(len(row.ids) - start)
            ids = row.ids[start:].tolist()
            rows.append(SampledRow(row.ids[:start].tolist(), ids, sampled, None, len(ids), False, loss_row.mask))
        micro_batches.append(micro)
    accumulation = len(batches)
    deviations, begun = deviations_of(trainer), trainer.state.global_step > 0
    settings = vars(args) | {
        "loss_type": "dapo",
        "gradient_accumulation_steps": accumulation,  # fewer at the end of a training
        "steps_per_generation": accumulation,
    }
    if begun:  # a callback may have changed the trainer, which then does what it should
        settings |= {name: of_trainer for name, (_, of_trainer) in deviations.items()}
    return Step(
        kind="AsyncGRPO",
        dtype="bfloat16" if args.bf16 else "float16" if args.fp16 else coarsest_dtype(policy_of(trainer)),
        processes=1,
        rank=0,
        settings=settings,
        rows=rows,
        prompts=[],
        rewards=[],
        returned=None,
        advantages=[np.array([row.advantage for packed in batches for row in packed.rows])],
        micro_batches=micro_batches,
        metrics=_metrics(record),
        deviations=deviations,
        begun=begun,
    )


def first_trained(row: QueuedRow) -> int:
    """Return where the completion of a row begins: at its first token that trains."""
    trained = np.flatnonzero(row.mask)
    return max(1, int(trained[0])) if len(trained) else 1


def _metrics(record: AsyncRecord) -> dict[str, float]:
    """Means over the micro-batches of the update; the data loader has already packed the first of the next one."""
    count = len(record.packed)
    own = {name: values[:count] for name, values in record.metrics.items()}
    return {name: float(np.mean(values)) for name, values in own.items() if _are_numbers(values)}


def _are_numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, float | int) for value in values)


def _loss_row(packed: Packed, number: int, start: int, is_new: bool, scored: bool) -> LossRow:
    """A row with what the loss has of its terms; 0 where it has none."""
    length = len(packed.rows[number].ids) - start
    places = term_places(packed)
    own = np.flatnonzero((packed.term_rows == number) & (places >= start) & (places < start + length))
    spots = places[own] - start
    mask, old, logps = np.zeros(length), np.zeros(length), np.zeros(length)
    sampled, advantage = np.full(length, np.nan), np.zeros(length)
    mask[spots], old[spots], advantage[spots] = 1.0, packed.old_logps[own], packed.advantages[own]
    if packed.logps is not None:
        logps[spots] = packed.logps[own]
    if is_new:
        sampled[spots] = packed.rows[number].old_logps[places[own]]
    known = logps if scored and packed.logps is not None else None
    one = float(advantage[spots[0]]) if len(spots) else 0.0
    uniform = bool((advantage[spots] == one).all())
    return LossRow(known, one if uniform else advantage, mask, old, sampled_logps=sampled)  # type: ignore[arg-type]
