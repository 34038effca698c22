"""The dumps of other frameworks, as rows of numbers: what each holds of a step, and nothing that it does not hold.

The schema of each was read in its writer:

- slime, commit 624b824: `slime/observability/train_data_utils.py` (`save_debug_train_data`, or `train_data/N.pt` of
  `--dump-details`) and `rollout_data_utils.py` (`rollout_data/N.pt`), with the fields of `slime/ray/rollout.py` and
  `slime/backends/megatron_utils/loss.py`.
- prime-rl, commit 559b447: `src/prime_rl/monitors/file.py` (`rollouts/step_N/KIND/SUBSET/traces.jsonl`, the records of
  verifiers, commit a60a606, `verifiers/v1/episode.py`, `trace.py`, `graph.py`) and `src/prime_rl/trainer/rl/token_export.py`
  (`token_exports/step_N/rank_R.jsonl`, with `enable_token_export`).
- NeMo-RL, commit 7ea279a: `nemo_rl/algorithms/grpo.py` and `log_batched_dict_as_jsonl` of `nemo_rl/utils/logger.py`
  (`train_data_stepN.jsonl`).
- verl, commit b178a3c: `_dump_generations` of `verl/trainer/ppo/ray_trainer.py` (`N.jsonl` in `trainer.rollout_data_dir`).
- AReaL, commit 4aef98d: `_dump_trajectory` of `areal/infra/workflow_executor.py` (`VERSION/TASK.jsonl` of
  `rollout.dump_to_file`); and `step_N.pt` of its pull request 1407, as the tests there write it.
"""

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError
from ..runs.files import json_lines
from .report import Stage
from .stages import places
from .torch_file import load_torch_file

SUFFIXES = (".pt", ".jsonl")
_EXPECTED = (
    "expected train_data/N.pt or rollout_data/N.pt of slime, traces.jsonl or token_exports/step_N/rank_R.jsonl of prime-rl, "
    "train_data_stepN.jsonl of NeMo-RL, N.jsonl of verl's rollout_data_dir, or step_N.pt or TASK.jsonl of AReaL"
)
_TRUNCATED = {"length": True, "truncated": True, "stop": False, "completed": False, "tool_calls": False}


@dataclass(frozen=True)
class DumpRow:
    """A completion of T tokens, as a dump has it. None: the dump does not hold it.

    Attributes:
        group: what the completions of one group have in common, such as their prompt.
        completion: its token ids or its text.
        truncated: as the trainer counted it.
        ended: by itself, as the sampler said.
        mask: (T,), of the tokens that the loss takes. The arrays of NeMo-RL, AReaL and token exports begin with the prompt.
        own_mask: (T,), of the tokens that were sampled, by another part of the dump.
        reward: that the advantages were computed from.
        scored: the reward, by another part of the dump.
        advantages: (T,).
        trainer_logps, sampled_logps: (T,), in nats, by the trainer before the update and by the sampler.
        derived: (T,) each, numbers that the framework computed from these log-probs.
    """

    group: Any = None
    completion: Any = None
    truncated: bool | None = None
    ended: bool | None = None
    mask: np.ndarray | None = None
    own_mask: np.ndarray | None = None
    reward: float | None = None
    scored: float | None = None
    advantages: np.ndarray | None = None
    trainer_logps: np.ndarray | None = None
    sampled_logps: np.ndarray | None = None
    derived: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Dump:
    """What a file holds of a step.

    Attributes:
        framework: that wrote it.
        number: of the step, as the framework counts; None: neither the file nor its name says so.
        rows: in the order of the file.
        contradictions: what two places of the dump say differently.
        agreements: what two places of the dump say alike, by the stage that it belongs to.
        size: bytes of the file.
    """

    framework: str
    number: int | None
    rows: Sequence[DumpRow]
    contradictions: Sequence[Stage] = ()
    agreements: Mapping[str, str] = field(default_factory=dict)
    size: int = 0


def is_dump(path: Path) -> bool:
    """True for a file that may be a dump of another framework, by its name."""
    return path.suffix in SUFFIXES


def load_dump(path: str | os.PathLike) -> Dump:
    """Read the dump of another framework.

    Args:
        path: one of the files that the head of this module names.

    Raises:
        RunError: it is none of these, is damaged, or would have to be executed to be read.
    """
    path = Path(path)
    try:
        dump = _from_torch(path) if path.suffix == ".pt" else _from_lines(path)
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise RunError(
            f"{path}: a dump without what its writer puts there, or damaged ({error!r}); {_EXPECTED}"
        ) from None
    if not dump.rows:
        raise RunError(f"{path}: this dump of {dump.framework} holds no completion")
    return replace(dump, size=path.stat().st_size)


def _from_torch(path: Path) -> Dump:
    content = load_torch_file(path)
    if isinstance(content, dict) and "dp_shards" in content:
        return _slime_training(content, path)
    if isinstance(content, dict) and {"rollout_id", "samples"} <= content.keys():
        rows = [_slime_sample(sample) for sample in content["samples"]]
        return Dump("slime", _number(content["rollout_id"]), rows)
    if (
        isinstance(content, list)
        and content
        and all(isinstance(part, dict) and "input_ids" in part for part in content)
    ):
        return _areal_step(content, path)
    raise RunError(f"{path}: a file of torch.save, but none of these dumps; {_EXPECTED}")


def _from_lines(path: Path) -> Dump:
    records = [record for _, record in json_lines(path)]
    if not records:
        raise RunError(f"{path}: no record in it; {_EXPECTED}")
    names = records[0].keys()
    if "traces" in names:
        return _prime_episodes(records, path)
    if {"schema_version", "trainer_logprobs"} <= names:
        return _prime_tokens(records)
    if {"token_loss_mask", "sample_loss_mask"} <= names:
        return _nemo(records, path)
    if {"input", "output", "score"} <= names:
        rows = [DumpRow(row["input"], row["output"], reward=_float(row["score"])) for row in records]
        return Dump("verl", _number(records[0].get("step")), rows)
    if {"task_id", "sample_idx", "completion"} <= names:
        rows = [DumpRow(row["prompt"], row["completion"], reward=_float(row["reward"])) for row in records]
        return Dump("AReaL", _number(records[0].get("tail_version")), rows)
    raise RunError(f"{path}: its first line has {', '.join(sorted(map(str, names))[:8])}; {_EXPECTED}")


# --- slime ----------------------------------------------------------------------------------------------------------


def _slime_training(content: dict, path: Path) -> Dump:
    """Return what the actor consumed, with what the rollout wrote if `--dump-details` put it next to it."""
    if content.get("format_version") != 2:
        raise RunError(f"{path}: format_version {content.get('format_version')} of slime; 2 is read")
    raw = content.get("raw_reward")
    samples = content["samples"]
    rows = []
    for place, sample in enumerate(samples):
        length = int(sample["response_lengths"])
        tokens = _ints(sample["tokens"]) if "tokens" in sample else []
        position = sample.get("rollout_position", place)
        rows.append(
            DumpRow(
                group=tuple(tokens[: len(tokens) - length]) or None,
                completion=tuple(tokens[len(tokens) - length :]) or None,
                truncated=bool(sample["truncated"]) if "truncated" in sample else None,
                mask=_floats(sample.get("loss_masks")),
                reward=None if raw is None else _float(raw[position]),
                advantages=_floats(sample.get("advantages")),
                trainer_logps=_floats(sample.get("log_probs")),
                sampled_logps=_floats(sample.get("rollout_log_probs")),
            )
        )
    lengths = [int(sample["response_lengths"]) for sample in samples]
    contradictions = [*_other_lengths(rows, lengths), *_slime_divisors(samples, rows), *_slime_batches(content)]
    agreements = {"batches": "each sample is in one micro-batch"} if _scheduled(content) else {}
    dump = Dump("slime", _number(content["rollout_id"]), rows, contradictions, agreements)
    rollout = path.parent.parent / "rollout_data" / path.name
    if path.parent.name != "train_data" or not rollout.is_file():
        return dump
    by_position = [_slime_sample(sample) for sample in load_torch_file(rollout)["samples"]]
    pairs = [(row, by_position[sample["rollout_position"]]) for row, sample in zip(rows, samples, strict=True)]
    joined = [
        replace(row, group=other.group, ended=other.ended, own_mask=other.mask, scored=other.reward)
        for row, other in pairs
    ]
    moved = [
        i
        for i, (row, other) in enumerate(pairs)
        if None not in (row.completion, other.completion) and row.completion != other.completion
    ]
    if moved:
        cause = "the trainer has other tokens than the rollout wrote at the same position"
        contradictions.append(Stage("turns", "different", cause, float(len(moved)), places(moved)))
    else:
        agreements["turns"] = "the trainer has the tokens that the rollout wrote"
    return replace(dump, rows=joined, contradictions=contradictions, agreements=agreements)


def _slime_sample(sample: Mapping[str, Any]) -> DumpRow:
    """A sample of slime's rollout."""
    length = int(sample["response_length"])
    tokens = _ints(sample["tokens"])
    status = sample.get("status")
    cut = _TRUNCATED.get(str(status))
    mask = np.ones(length) if sample.get("loss_mask") is None else _floats(sample["loss_mask"])
    if sample.get("remove_sample"):
        mask = np.zeros(length)
    group = sample.get("group_index")
    return DumpRow(
        group=tuple(tokens[: len(tokens) - length]) if group is None else group,
        completion=tuple(tokens[len(tokens) - length :]),
        ended=None if cut is None else not cut,
        mask=mask,
        reward=_float(sample.get("reward")),
        sampled_logps=_floats(sample.get("rollout_log_probs")),
    )


def _slime_divisors(samples: Sequence[Mapping], rows: Sequence[DumpRow]) -> list[Stage]:
    """The tokens by which a rollout's loss is divided, against the masks of its samples."""
    masks = [row.mask for row in rows if row.mask is not None]
    held = all({"rollout_mask_sums", "rollout_ids"} <= sample.keys() for sample in samples)
    if not held or len(masks) < len(rows):
        return []
    sums: dict[int, float] = defaultdict(float)
    for sample, mask in zip(samples, masks, strict=True):
        sums[int(sample["rollout_ids"])] += float(mask.sum())
    pairs = [(float(sample["rollout_mask_sums"]), sums[int(sample["rollout_ids"])]) for sample in samples]
    wrong = [i for i, (used, expected) in enumerate(pairs) if used != expected]
    if not wrong:
        return []
    used, expected = pairs[wrong[0]]
    cause = f"rollout_mask_sums, by which the loss is divided, is {used:g} where the masks add up to {expected:g}"
    return [Stage("loss", "different", cause, where=places(wrong))]


def _scheduled(content: Mapping) -> bool:
    shards = content["dp_shards"]
    return bool(shards) and all(shard.get("micro_batch_indices") for shard in shards)


def _slime_batches(content: Mapping) -> list[Stage]:
    """The micro-batches of each process, against its samples."""
    if not _scheduled(content):
        return []
    stages = []
    for shard in content["dp_shards"]:
        used = Counter(_leaves(shard["micro_batch_indices"]))
        rank = shard["data_parallel_rank"]
        count = sum(sample["data_parallel_rank"] == rank for sample in content["samples"])
        wrong = [i for i in range(max([count, *(i + 1 for i in used)])) if used[i] != 1]
        if wrong:
            cause = f"process {rank}: sample {wrong[0]} is in {used[wrong[0]]} micro-batches"
            stages.append(Stage("batches", "different", cause, float(len(wrong))))
    return stages


def _leaves(nested: Any) -> list[int]:
    if not isinstance(nested, list | tuple | np.ndarray):
        return [int(nested)]
    return [leaf for part in nested for leaf in _leaves(part)]


# --- prime-rl -------------------------------------------------------------------------------------------------------


def _prime_episodes(records: Sequence[Mapping], path: Path) -> Dump:
    """The traces of episodes: one row a trace, of the tokens that its nodes add."""
    rows, lengths = [], []
    for episode in records:
        group = episode.get("group") or {}
        for trace in episode["traces"]:
            if not trace["agent"].get("trainable", True):
                continue
            nodes = trace["nodes"]
            lengths.append(sum(len(node.get("token_ids", [])) for node in nodes))
            rows.append(_prime_row(trace, group.get("id")))
    number = re.search(r"step_(\d+)", str(path.parent))
    return Dump("prime-rl", int(number[1]) if number else None, rows, _other_lengths(rows, lengths))


def _prime_row(trace: Mapping, group: Any) -> DumpRow:
    nodes = trace["nodes"]
    tokens = [token for node in nodes for token in node.get("token_ids", [])]
    mask = np.array([float(kept) for node in nodes for kept in node.get("mask", [])])
    calls = [call for call in trace.get("calls", []) if not call.get("error")]
    cut = _TRUNCATED.get(str(calls[-1].get("finish_reason"))) if calls else None
    rewards = [reward for reward in trace.get("rewards", {}).values() if reward]
    scores = [float(reward["score"]) * float(reward.get("weight", 1.0)) for reward in rewards]
    return DumpRow(
        group=group,
        completion=tuple(token for token, kept in zip(tokens, mask, strict=False) if kept),
        ended=None if cut is None else not cut,
        mask=mask,
        reward=sum(scores) if scores else None,
        advantages=_spread(nodes, "advantages", mask),
        sampled_logps=_spread(nodes, "logprobs", mask),
    )


def _spread(nodes: Sequence[Mapping], name: str, mask: np.ndarray) -> np.ndarray | None:
    """(T,) of numbers that nodes have for their sampled tokens alone; None where they have none."""
    if all(node.get(name) is None for node in nodes):
        return None
    values = [float(value) for node in nodes for value in node.get(name) or []]
    tokens = np.zeros(len(mask))
    if len(values) != int(mask.sum()):
        raise ValueError(f"{len(values)} {name} for {int(mask.sum())} sampled tokens")
    tokens[mask > 0] = values
    return tokens


def _prime_tokens(records: Sequence[Mapping]) -> Dump:
    """The sequences of a process's micro-batches, each with prompt and padding."""
    if records[0]["schema_version"] != 1:
        raise ValueError(f"schema_version {records[0]['schema_version']} of a token export, 1 is read")
    derived = ("log_importance_ratio", "importance_ratio", "mismatch_kl", "prob_delta", "is_masked")
    rows, lengths = [], []
    for record in records:
        lengths.append(len(record["token_ids"]))
        numbers = {name: _floats(record.get(name)) for name in derived}
        weights = _floats(record.get("rl_weights"))
        mask = _array(record["loss_mask"])
        for name, values in numbers.items():
            if values is not None and len(values) != len(mask):
                raise ValueError(f"{len(values)} numbers in {name} for {len(mask)} tokens")
        if weights is not None and np.isfinite(weights).all():
            mask = mask * (weights != 0)
        rows.append(
            DumpRow(
                completion=tuple(token for token, kept in zip(record["token_ids"], mask, strict=True) if kept),
                mask=mask,
                advantages=_floats(record["advantages"]),
                trainer_logps=_floats(record["trainer_logprobs"]),
                sampled_logps=_floats(record["inference_logprobs"]),
                derived={
                    name: value for name, value in numbers.items() if value is not None and not np.isnan(value).all()
                },
            )
        )
    return Dump("prime-rl", _number(records[0]["step"]), rows, _other_lengths(rows, lengths))


# --- NeMo-RL, AReaL -------------------------------------------------------------------------------------------------


def _nemo(records: Sequence[Mapping], path: Path) -> Dump:
    """Padded rows of prompt and completion, each value in a list of one."""
    rows, padded = [], []
    for i, record in enumerate(records):
        one = {
            name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in record.items()
        }
        length, tokens = int(one["input_lengths"]), one["token_ids"]
        own = _array(one["token_loss_mask"])
        first = int(np.argmax(own > 0)) if own.any() else length
        if own[length:].any():
            padded.append(i)
        reward = one.get("filtered_rewards", one.get("rewards"))
        rows.append(
            DumpRow(
                group=tuple(tokens[:first]),
                completion=tuple(tokens[first:length]),
                mask=own[:length] * float(one["sample_loss_mask"]),
                reward=_float(reward),
                advantages=_array(one["advantages"])[:length],
                trainer_logps=_array(one["prev_logprobs"])[:length],
                sampled_logps=_array(one["generation_logprobs"])[:length],
            )
        )
    stages = [Stage("mask", "different", "the mask counts padding behind input_lengths", where=places(padded))]
    number = re.search(r"step(\d+)", path.stem)
    return Dump("NeMo-RL", int(number[1]) if number else None, rows, stages if padded else [])


def _areal_step(content: Sequence[Mapping], path: Path) -> Dump:
    """Trajectories of a rollout batch, each a few padded rows."""
    rows: list[DumpRow] = []
    padded: list[int] = []
    for part in content:
        for i in range(len(part["input_ids"])):
            ids = _array(part["input_ids"][i])
            there = _array(part["attention_mask"][i] if "attention_mask" in part else np.ones(len(ids))) > 0
            tokens = _ints(ids[there])
            whole = _floats(part["loss_mask"][i]) if "loss_mask" in part else None
            mask = None if whole is None else whole[there]
            first = int(np.argmax(mask > 0)) if mask is not None and mask.any() else None
            if whole is not None and whole[~there].any():
                padded.append(len(rows))
            rows.append(
                DumpRow(
                    group=None if first is None else tuple(tokens[:first]),
                    completion=None if first is None else tuple(tokens[first:]),
                    mask=mask,
                    reward=_float(part["rewards"][i]) if "rewards" in part else None,
                    sampled_logps=_array(part["logprobs"][i])[there] if "logprobs" in part else None,
                )
            )
    stages = [Stage("mask", "different", "the mask counts padding outside of attention_mask", where=places(padded))]
    number = re.search(r"step_(\d+)", path.stem)
    return Dump("AReaL", int(number[1]) if number else None, rows, stages if padded else [])


# --- values ---------------------------------------------------------------------------------------------------------


def _other_lengths(rows: Sequence[DumpRow], lengths: Sequence[int]) -> list[Stage]:
    """The arrays of rows that are not as long as their tokens."""
    stages = []
    for name, stage in (
        ("mask", "mask"),
        ("advantages", "advantages"),
        ("trainer_logps", "ratios"),
        ("sampled_logps", "mismatch"),
    ):
        arrays = [getattr(row, name) for row in rows]
        wrong = [i for i, array in enumerate(arrays) if array is not None and len(array) != lengths[i]]
        if wrong:
            cause = f"{len(arrays[wrong[0]])} numbers for the {lengths[wrong[0]]} tokens of a completion"
            stages.append(Stage(stage, "different", cause, where=places(wrong)))
    return stages


def _array(values: Any) -> np.ndarray:
    """Numbers, null as NaN."""
    return np.array(values, dtype=float)


def _floats(values: Any) -> np.ndarray | None:
    return None if values is None else np.atleast_1d(_array(values))


def _ints(values: Any) -> list[int]:
    return [int(value) for value in values]


def _float(value: Any) -> float | None:
    """A number; None where a dump has none, or several by name."""
    if value is None or isinstance(value, Mapping | str):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _number(value: Any) -> int | None:
    return None if value is None else int(value)
