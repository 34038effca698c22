"""Dumps of one small step, each written by the framework's own code, for the tests of `workbench replay`.

    python -m repros.frameworks.dumps slime CHECKOUT --out tests/replay/dumps

CHECKOUT is the repository, or an unzipped wheel. Its writers are executed on a CPU; nothing of theirs is copied.
verifiers' records of prime-rl are made by their documented schema: their classes need a renderer of every model.
"""

import argparse
import asyncio
import atexit
import enum
import json
import math
import os
from argparse import Namespace
from collections import UserDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch

from repros.frameworks.wheels import Wheel

PROMPTS = ([11, 12, 13], [11, 14])
REWARDS = (1.0, 0.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.0)
LENGTHS = (4, 3, 6, 5, 2, 6, 4, 3)
TOOL = (2, 2)  # a token of a tool: row, place
EOS = 2
LIMIT = 6  # tokens of a completion


def sampled_rows() -> list[dict[str, Any]]:
    """Two groups of four completions: ids, mask, log-probs of sampler and trainer, reward."""
    rng = np.random.default_rng(7)
    rows = []
    for i, (reward, length) in enumerate(zip(REWARDS, LENGTHS, strict=True)):
        ids = rng.integers(20, 90, length).tolist()
        mask = [1] * length
        sampled = rng.uniform(-2.0, -0.1, length)
        trained = sampled + rng.normal(0, 0.01, length)
        if length < LIMIT:
            ids[-1] = EOS
        if i == TOOL[0]:
            mask[TOOL[1]], sampled[TOOL[1]] = 0, 0.0
        rows.append(
            {"prompt": PROMPTS[i // 4], "ids": ids, "mask": mask, "reward": reward, "cut": length == LIMIT}
            | {"sampled": sampled.round(4).tolist(), "trained": trained.round(4).tolist()}
        )
    return rows


def slime(repository: Wheel, out: Path) -> None:
    """`rollout_data/3.pt` and `train_data/3.pt`, of two data parallel processes."""
    types = repository.take("slime/utils/types.py", "Sample", Enum=enum.Enum)
    given = {"Path": Path, "logger": SimpleNamespace(info=print, warning=print), "Sample": types.Sample}
    file = "slime/observability/rollout_data_utils.py"
    names = (
        "_ROLLOUT_DATA_TENSOR_DTYPES",
        "_cpu_tensor",
        "tensorize_rollout_data_for_training",
        "save_debug_rollout_data",
    )
    rollout = repository.take(file, *names, **given)
    names = ("_LAYOUT_FIELDS", "_WHOLE_BATCH_FIELDS", "_is_per_sample", "_build_dump_payload")
    training = repository.take("slime/observability/train_data_utils.py", *names, **given)
    manager = repository.take("slime/ray/rollout.py", "RolloutManager._post_process_rewards", **given)
    args = Namespace(advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=True)
    args.n_samples_per_prompt, args.rollout_batch_size, args.reward_key = 4, 2, None
    rows, samples = sampled_rows(), []
    for i, row in enumerate(rows):
        sample = types.Sample(group_index=i // 4, index=i, prompt="", tokens=row["prompt"] + row["ids"])
        sample.response_length, sample.reward, sample.loss_mask = len(row["ids"]), row["reward"], row["mask"]
        sample.rollout_log_probs = row["sampled"]
        sample.status = types.Sample.Status.TRUNCATED if row["cut"] else types.Sample.Status.COMPLETED
        samples.append(sample)
    rollout.save_debug_rollout_data(str(out / "rollout_data/{rollout_id}.pt"), samples, rollout_id=3, evaluation=False)
    self = SimpleNamespace(custom_reward_post_process_func=None, args=args)
    raw, rewards = manager._post_process_rewards(self, samples)
    shards = []
    for rank, partition in enumerate(([0, 2, 4, 6], [1, 3, 5, 7])):
        data: dict[str, Any] = {"partition": partition, "raw_reward": raw, "num_microbatches": [2]}
        data |= {"micro_batch_indices": [[0, 1], [2, 3]], "global_batch_sizes": [8]}
        columns = {"tokens": [s.tokens for s in samples], "response_lengths": [s.response_length for s in samples]}
        columns |= {"rewards": rewards, "truncated": [int(row["cut"]) for row in rows], "rollout_ids": list(range(8))}
        columns |= {"loss_masks": [s.loss_mask for s in samples], "sample_indices": [s.index for s in samples]}
        columns |= {"rollout_mask_sums": [sum(s.loss_mask) for s in samples]}
        columns |= {"rollout_log_probs": [s.rollout_log_probs for s in samples]}
        data |= {name: [column[i] for i in partition] for name, column in columns.items()}
        rollout.tensorize_rollout_data_for_training(data)
        data["log_probs"] = [torch.tensor(rows[i]["trained"]) for i in partition]
        data["advantages"] = [torch.full((LENGTHS[i],), rewards[i]) for i in partition]
        shards.append({"rank": rank, "data_parallel_rank": rank, "rollout_data": data})
    path = out / "train_data/3.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(training._build_dump_payload(shards, rollout_id=3, writer_rank=0), path)


def prime_rl(repository: Wheel, out: Path) -> None:
    """`token_exports/step_3/rank_0.jsonl`, and the traces of the episodes that it was trained on."""

    class DefaultLossConfig(SimpleNamespace):
        pass

    loss = repository.take("src/prime_rl/trainer/rl/loss.py", "compute_importance_ratio_and_mismatch_kl")
    given = {"math": math, "json": json, "Path": Path, "Mapping": Mapping, "Sequence": Sequence, "atexit": atexit}
    names = (
        "_compute_export_tensors",
        "_tensor_to_ints",
        "_tensor_to_bools",
        "_tensor_to_floats",
        "_json_float",
        "_slice_columns",
    )
    names += (
        "_optional_tensor_to_floats",
        "_optional_tensor_to_bools",
        "_check_lengths",
        "_trim_padding",
        "_first_non_empty",
    )
    names += ("SCHEMA_VERSION", "_export_columns", "TokenExporter")
    given |= {"DefaultLossConfig": DefaultLossConfig} | vars(loss)
    exporter = repository.take("src/prime_rl/trainer/rl/token_export.py", *names, **given).TokenExporter(out, 0)
    rows = sampled_rows()
    advantages = (np.array(REWARDS).reshape(2, 4) - np.array(REWARDS).reshape(2, 4).mean(1, keepdims=True)).ravel()
    config = DefaultLossConfig(dppo_mask_high=0.004, dppo_mask_low=0.004)
    for micro_step, numbers in enumerate(([0, 1, 2, 3], [4, 5, 6, 7])):
        lengths = [len(rows[i]["prompt"]) + LENGTHS[i] for i in numbers]
        tables = {
            name: []
            for name in ("input_ids", "position_ids", "loss_mask", "advantages", "inference_logprobs", "logprobs")
        }
        for i, length in zip(numbers, lengths, strict=True):
            row, before = rows[i], [0] * len(rows[i]["prompt"])
            tables["input_ids"] += row["prompt"] + row["ids"]
            tables["position_ids"] += range(length)
            tables["loss_mask"] += before + row["mask"]
            tables["advantages"] += [advantages[i]] * length
            tables["inference_logprobs"] += before + row["sampled"]
            tables["logprobs"] += before + row["trained"]
        batch = {name: torch.tensor(values)[None] for name, values in tables.items()}
        batch["loss_mask"], batch["env_names"] = batch["loss_mask"].bool(), ["sums"] * sum(lengths)
        batch["inference_logprobs"], batch["advantages"] = (
            batch["inference_logprobs"].float(),
            batch["advantages"].float(),
        )
        output = {"logprobs": batch["logprobs"].float(), "entropy": torch.zeros(1, sum(lengths))}
        exporter.export(3, micro_step, batch, output, lengths, config)
    path = out / "rollouts/step_3/train/effective/traces.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(_episode(i, row, advantages[i])) + "\n" for i, row in enumerate(rows)))


def _episode(number: int, row: Mapping, advantage: float) -> dict[str, Any]:
    """An episode of one trace, as `Episode.to_record` of verifiers writes it, without what says nothing of the step."""
    counted = [value for value, kept in zip(row["sampled"], row["mask"], strict=True) if kept]
    prompt = {
        "message": {"role": "user", "content": ""},
        "sampled": False,
        "token_ids": row["prompt"],
        "mask": [False] * len(row["prompt"]),
    }
    answer = {"parent": 0, "message": {"role": "assistant", "content": ""}, "sampled": True, "token_ids": row["ids"]}
    answer |= {
        "mask": [bool(kept) for kept in row["mask"]],
        "logprobs": counted,
        "advantages": [advantage] * len(counted),
    }
    call = {"node": 1, "finish_reason": "length" if row["cut"] else "stop"}
    trace = {"version": 1, "agent": {"name": "agent", "trainable": True}, "nodes": [prompt, answer], "calls": [call]}
    trace |= {"rewards": {"right": {"score": row["reward"], "weight": 1.0}}, "is_completed": True, "ok": True}
    return {
        "id": f"episode-{number}",
        "env": {"id": "sums"},
        "group": {"id": f"group-{number // 4}"},
        "ok": True,
        "traces": [trace],
    }


def nemo_rl(repository: Wheel, out: Path) -> None:
    """`train_data_step3.jsonl`, with the default estimator of advantages."""
    given: dict[str, Any] = {"UserDict": UserDict, "PackedTensor": SimpleNamespace, "DictT": TypeVar("DictT")}
    batched = repository.take("nemo_rl/distributed/batched_data_dict.py", "BatchedDataDict", "SlicedDataDict", **given)
    utils = repository.take("nemo_rl/algorithms/utils.py", "calculate_baseline_and_std_per_prompt")
    estimator = repository.take("nemo_rl/algorithms/advantage_estimator.py", "GRPOAdvantageEstimator", **vars(utils))
    given = {"BatchedDataDict": batched.BatchedDataDict, "os": os, "json": json}
    write = repository.take(
        "nemo_rl/utils/logger.py", "Logger.log_batched_dict_as_jsonl", **given
    ).log_batched_dict_as_jsonl
    rows = sampled_rows()
    longest = max(len(row["prompt"]) + len(row["ids"]) for row in rows)

    def padded(values: Sequence, name: str) -> list:
        return [
            before + row[name] + [0] * (longest - len(before + row[name]))
            for before, row in zip(values, rows, strict=True)
        ]

    nothing = [[0] * len(row["prompt"]) for row in rows]
    prompts = torch.tensor([row["prompt"] + [0] * (3 - len(row["prompt"])) for row in rows])
    settings = SimpleNamespace(use_leave_one_out_baseline=True, normalize_rewards=True)
    rewards, mask = torch.tensor(REWARDS), torch.tensor(padded(nothing, "mask"))
    advantages = estimator.GRPOAdvantageEstimator(settings, None).compute_advantage(prompts, rewards, mask)
    log = {"content": [["", ""] for _ in rows], "rewards": rewards.tolist()}
    log |= {"input_lengths": [len(row["prompt"]) + len(row["ids"]) for row in rows]}
    log |= {"token_ids": padded([row["prompt"] for row in rows], "ids"), "token_loss_mask": mask.tolist()}
    log |= {"sample_loss_mask": [1.0] * 8, "advantages": advantages.tolist()}
    log |= {"generation_logprobs": padded(nothing, "sampled"), "prev_logprobs": padded(nothing, "trained")}
    out.mkdir(parents=True, exist_ok=True)
    write(SimpleNamespace(base_log_dir=str(out)), log, "train_data_step3.jsonl")


def verl(repository: Wheel, out: Path) -> None:
    """`3.jsonl` of `trainer.rollout_data_dir`."""
    given = {"os": os, "json": json}
    write = repository.take(
        "verl/trainer/ppo/ray_trainer.py", "RayPPOTrainer._dump_generations", **given
    )._dump_generations
    rows = sampled_rows()
    texts = [" ".join(map(str, row["prompt"])) for row in rows], [" ".join(map(str, row["ids"])) for row in rows]
    out.mkdir(parents=True, exist_ok=True)
    write(SimpleNamespace(global_steps=3), *texts, ["5"] * 8, list(REWARDS), {"acc": list(REWARDS)}, str(out))


def areal(repository: Wheel, out: Path) -> None:
    """`3/0.jsonl` of `rollout.dump_to_file`, and `step_000003.pt` with the fields that the pull request's tests have."""
    batches = [_areal_batch(sampled_rows()[:4]), _areal_batch(sampled_rows()[4:])]
    out.mkdir(parents=True, exist_ok=True)
    torch.save(batches, out / "step_000003.pt")
    given = {
        "os": os,
        "json": json,
        "aiofiles": SimpleNamespace(open=_Lines, os=SimpleNamespace(makedirs=_make_folder)),
    }
    file = "areal/infra/workflow_executor.py"
    dump = repository.take(file, "WorkflowExecutor._dump_trajectory", **given)._dump_trajectory
    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: " ".join(map(str, ids)))
    self = SimpleNamespace(_get_dump_dir=lambda _: str(out), _get_tokenizer=lambda: tokenizer)
    for task, batch in enumerate(batches):
        versions = torch.full(batch["input_ids"].shape, 3)
        asyncio.run(dump(self, batch | {"versions": versions}, task, False))


async def _make_folder(path: str, exist_ok: bool) -> None:
    os.makedirs(path, exist_ok=exist_ok)


class _Lines:
    """The part of `aiofiles.open` that the writer uses."""

    def __init__(self, path: str, mode: str) -> None:
        self.path, self.lines = Path(path), []

    async def __aenter__(self) -> "_Lines":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.path.write_text("".join(self.lines), encoding="utf-8")

    async def write(self, text: str) -> None:
        self.lines.append(text)


def _areal_batch(rows: Sequence[Mapping]) -> dict[str, torch.Tensor]:
    """Rows padded on the right."""
    length = max(len(row["prompt"]) + len(row["ids"]) for row in rows)

    def table(first: str | int, name: str) -> torch.Tensor:
        lines = [
            (row["prompt"] if first == "prompt" else [first] * len(row["prompt"])) + list(row[name]) for row in rows
        ]
        return torch.tensor([line + [0] * (length - len(line)) for line in lines])

    ones = [{**row, "ones": [1] * len(row["ids"])} for row in rows]
    lines = [[1] * (len(row["prompt"]) + len(row["ones"])) for row in ones]
    attention = torch.tensor([line + [0] * (length - len(line)) for line in lines])
    tables = {"input_ids": table("prompt", "ids"), "loss_mask": table(0, "mask"), "logprobs": table(0.0, "sampled")}
    return tables | {"attention_mask": attention, "rewards": torch.tensor([row["reward"] for row in rows])}


WRITERS = {"slime": slime, "prime-rl": prime_rl, "NeMo-RL": nemo_rl, "verl": verl, "AReaL": areal}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=WRITERS, help="of a framework")
    parser.add_argument("folder", type=Path, help="its repository, or its unzipped wheel")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder; the dumps go to one in it with the framework's name"
    )
    options = parser.parse_args(arguments)
    WRITERS[options.name](Wheel(options.folder), options.out / options.name)


if __name__ == "__main__":
    main()
