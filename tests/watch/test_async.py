"""`check_step` and the watch on TRL's own AsyncGRPOTrainer: healthy updates, faults at their stage, a recorded training."""

import copy
import itertools
import json
from unittest import mock

import numpy as np
import pytest
import torch
from async_cases import AsyncGRPOTrainer, async_grpo_trainer, make, packing, samples
from conftest import daily
from step_cases import losing_a_gradient

from workbench import attach_watch, audit_run, check_step
from workbench.errors import ParameterError
from workbench.logs.completions import read_completions
from workbench.watch.attach import StepCheck

pytestmark = pytest.mark.slow
ONE = {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 8}
STALE = {"versions": (2, 1), "now": 2}

# Settings of the rows, and of the trainer.
HEALTHY = {
    "newest rows": ({}, ONE),
    "turns with a tool": ({"turns": 2}, ONE),
    "rows of two ages": (STALE, ONE | {"version": 2}),
    "too old rows are dropped": ({"groups": 3, "versions": (2, 0, 1), "now": 2}, ONE | {"version": 2, "max_staleness": 1}),
    "forked rows in a budget of tokens": ({"turns": 2, "fork": True}, ONE | {"token_budget": 120}),
    "equally many tokens in both": ({"tokens": (9,), "generations": 2}, {"per_device_train_batch_size": 1}),
    "bf16, another temperature": ({"temperature": 0.8}, ONE | {"temperature": 0.8, "bf16": True, "learning_rate": 1e-4}),
    "checkpointed, clipped on one side": (STALE, ONE | {"version": 2, "gradient_checkpointing": True, "epsilon_high": 0.4}),
}  # fmt: skip


def equal_lengths(rows):
    """The rows cut so that each trains equally many tokens."""
    count = min(int(row.completion_mask.sum()) for row in rows)
    cut = []
    for row in rows:
        end = len(row.input_ids) - int(row.completion_mask.sum()) + count
        parts = {name: getattr(row, name)[:end] for name in ("input_ids", "completion_mask", "old_log_probs")}
        cut.append(type(row)(**{name: getattr(row, name) for name in row.__dataclass_fields__} | parts))
    return cut


@pytest.mark.parametrize("name", daily(HEALTHY, "newest rows", "turns with a tool", "rows of two ages"))
def test_a_healthy_update_has_no_difference(name, tmp_path):
    of_rows, of_trainer = HEALTHY[name]
    rows = samples(**of_rows)
    if name == "equally many tokens in both":
        rows = equal_lengths(rows)
    report = check_step(make(tmp_path, **of_trainer), batch=rows)
    assert [stage.name for stage in report.stages if stage.verdict == "different"] == [], report
    unknown = {stage.name for stage in report.stages if stage.verdict == "cannot tell"}
    assert unknown <= {"ends", "rewards"}, report


def test_the_divisor_of_trl_is_named_with_its_factors(tmp_path):
    report = check_step(make(tmp_path), batch=samples())
    assert report.first.name == "loss" and "huggingface/trl#7206" in report.first.cause
    counts = [16, 33]
    tokens = f"({counts[0]}, {counts[1]})"
    assert tokens in report.first.cause and "its tokens count 1.53, 0.742 times" in report.first.cause


class TokenMean(AsyncGRPOTrainer):
    """With the patch of repros/patches/async_divisor.diff, in words of a subclass."""

    def get_batch_samples(self, *args):
        batches, _ = super().get_batch_samples(*args)
        return batches, sum(batch["global_n_tokens"][0] for batch in batches)

    def compute_loss(self, model, inputs, *args, num_items_in_batch=None, **kwargs):
        whole = inputs | {"global_n_tokens": num_items_in_batch[None] / self.current_gradient_accumulation_steps}
        return super().compute_loss(model, whole, *args, **kwargs)


def test_the_divisor_is_right_with_the_patch(tmp_path):
    report = check_step(make(tmp_path, cls=TokenMean), batch=samples())
    assert report["loss"].verdict == report["gradient"].verdict == "same", report


class TwiceTheLoss(AsyncGRPOTrainer):
    def compute_loss(self, *args, **kwargs):
        return 2 * super().compute_loss(*args, **kwargs)


class IgnoresOldLogps(AsyncGRPOTrainer):
    """Takes every ratio for 1, whatever the weights were that sampled."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        metrics, self._metrics = self._metrics, copy.deepcopy(self._metrics)
        heard = []
        handle = model.register_forward_hook(lambda _, __, output: heard.append(output.log_probs.detach().flatten()))
        super().compute_loss(model, inputs, *args, **kwargs)
        handle.remove()
        self._metrics = metrics
        own = heard[0][inputs["token_index"].clamp(min=0)]
        return super().compute_loss(model, inputs | {"old_log_probs": own}, *args, **kwargs)


class TakesOldRows(AsyncGRPOTrainer):
    def get_train_dataloader(self):
        loader = super().get_train_dataloader()
        self._rollout_dataset.max_staleness = 99
        return loader


class EverySecond(async_grpo_trainer.RolloutQueueDataset):
    def __iter__(self):
        return itertools.islice(super().__iter__(), 0, None, 2)


class LosesRows(AsyncGRPOTrainer):
    def get_train_dataloader(self):
        with mock.patch.object(async_grpo_trainer, "RolloutQueueDataset", EverySecond):
            return super().get_train_dataloader()


class OtherMetric(AsyncGRPOTrainer):
    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        self._metrics["train"]["ratio"][-1] += 0.5
        return loss


class ClipRatiosExchanged(AsyncGRPOTrainer):
    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        low, high = (self._metrics["train"][f"clip_ratio/{part}_mean"] for part in ("low", "high"))
        low[-1], high[-1] = high[-1], low[-1]
        return loss


def changed(name, change):
    """A fault in how TRL packs a row: `change` of one of its tensors."""

    def pack(original, row):
        packed = original(row)
        return packed | {name: change(packed)}

    return pack


go_on = changed("position_ids", lambda p: torch.arange(len(p["input_ids"])))
own_labels = changed("shift_labels", lambda p: torch.where(p["shift_labels"] >= 0, p["input_ids"], -100))


def shifted_mask(original, row):
    row.samples = [sample | {"completion_mask": np.roll(sample["completion_mask"], -1)} for sample in row.samples]
    return original(row)


def all_before(packed):
    """Every segment sees all positions before its end, those of other rows too."""
    ends = packed["tree_cu_seqlens_q"][1:].tolist()
    return torch.cat([torch.arange(end) for end in ends])


def all_before_ends(packed):
    ends = packed["tree_cu_seqlens_q"][1:].cumsum(0)
    return torch.cat([torch.zeros(1, dtype=torch.int32), ends.int()])


def no_boundaries(original, row):
    packed = original(row)
    return packed | {"tree_kv_index": all_before(packed), "tree_cu_seqlens_k": all_before_ends(packed)}


# Name -> what packs, options of the trainer and the rows, the stage, and words of its cause.
FAULTS = {
    "positions that go on": (go_on, {}, {}, "batches", "is at positions"),
    "no boundaries": (no_boundaries, {}, {}, "batches", "sees tokens that are not its own"),
    "labels of the token itself": (own_labels, {}, {}, "batches", "do not follow"),
    "shifted mask": (shifted_mask, {}, {}, "mask", "other tokens than those that the worker marked"),
    "zero old log-probs": (changed("old_log_probs", lambda p: 0 * p["old_log_probs"]), {}, {}, "ratios", "other old log-probs"),
    "larger advantages": (changed("advantages", lambda p: 1.5 * p["advantages"]), {}, {}, "advantages", "another advantage"),
    "twice the loss": (None, {"cls": TwiceTheLoss}, {}, "loss", "2 times as much"),
    "old log-probs ignored": (None, {"cls": IgnoresOldLogps, "version": 2}, STALE, "loss", "gives another loss"),
    "old rows": (None, {"cls": TakesOldRows, "version": 2, "max_staleness": 0}, STALE, "batches", "max_staleness is 0"),
    "lost rows": (None, {"cls": LosesRows}, {}, "batches", "rows of the queue are in no micro-batch"),
    "sampled colder": (None, {}, {"temperature": 0.4, "generations": 8}, "sampling", "likelier"),
    "lost gradient": (None, {"cls": losing_a_gradient(AsyncGRPOTrainer)}, {}, "gradient", "layers.0."),
    "metric": (None, {"cls": OtherMetric}, {}, "metrics", "ratio is logged as 1.5"),
    "clip ratios": (None, {"cls": ClipRatiosExchanged, "version": 2, "epsilon": 0.01}, STALE, "metrics", "low_mean is logged"),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    daily(
        FAULTS,
        "positions that go on",
        "shifted mask",
        "larger advantages",
        "old log-probs ignored",
        "old rows",
        "lost gradient",
        "metric",
    ),
)
def test_a_fault_is_named_at_its_stage(name, tmp_path, monkeypatch):
    fault, options, of_rows, stage, cause = FAULTS[name]
    if fault is not None:
        original = packing.TreeRow.pack
        monkeypatch.setattr(packing.TreeRow, "pack", lambda row: fault(original, row))
    rows = samples(**of_rows)
    trainer = make(tmp_path, **ONE | {"per_device_train_batch_size": len(rows)} | options)
    first = check_step(trainer, batch=rows).first
    assert first is not None and first.name == stage and cause in first.cause, first


def test_advantages_that_do_not_follow_from_rewards_are_named(tmp_path):
    rows = samples()
    for row in rows[:4]:
        row.advantage = float(row.metrics["reward"])
    first = check_step(make(tmp_path, **ONE), batch=rows).first
    assert first.name == "advantages" and "1 of 2 groups" in first.cause, first


def test_a_check_leaves_the_trainer_as_it_was(tmp_path):
    trainer = make(tmp_path, **ONE)
    weights = [p.detach().clone() for p in trainer.model.parameters()]
    state, attributes = torch.random.get_rng_state(), dict(vars(trainer))
    rows = samples()
    before = copy.deepcopy([row.input_ids for row in rows])
    torch.random.set_rng_state(state)
    check_step(trainer, batch=rows)
    assert all(map(torch.equal, weights, trainer.model.parameters()))
    assert vars(trainer) == attributes and torch.equal(torch.random.get_rng_state(), state)
    assert trainer.args.token_budget == 0 and not trainer._trained_groups
    assert all(np.array_equal(*pair) for pair in zip(before, [row.input_ids for row in rows], strict=True))
    assert trainer.model.config._attn_implementation == packing.TREE_ATTENTION


def test_rows_that_fill_no_update_are_refused(tmp_path):
    with pytest.raises(ParameterError, match="gets its rows from a server while it trains"):
        check_step(make(tmp_path))
    trainer = make(tmp_path, version=9, max_staleness=2)
    with pytest.raises(ParameterError, match="fill no update"):
        check_step(trainer, batch=samples())


def test_a_watched_training_is_checked_and_recorded(tmp_path):
    rows = samples(groups=4)
    plain, watched = (make(tmp_path / name, rows=2 * rows, max_steps=2, logging_steps=1) for name in ("a", "b"))
    record = tmp_path / "record"
    watch = attach_watch(watched, record)
    check = StepCheck(watched, 1)
    plain.train()
    watched.train()
    assert watch.on and check.on and [*check.reports] == [1, 2]
    for report in check.reports.values():
        different = {stage.name for stage in report.stages if stage.verdict == "different"}
        assert different <= {"loss", "gradient"}, report  # of the divisor, which is TRL's
        assert "7206" in report["loss"].cause
    assert all(map(torch.equal, plain.model.parameters(), watched.model.parameters()))
    lines = [json.loads(line) for line in (record / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and "ratio" in lines[0] and "update/moved" in lines[0]
    table, _ = read_completions(record)
    assert len(table) == 16 and sorted(table["group"].unique()) == [0, 1, 2, 3]
    audit = audit_run(record)
    assert audit.problems == [] and audit.runs[0].steps == 2


def test_steps_of_an_async_trainer_are_not_kept_in_files(tmp_path):
    with pytest.raises(ParameterError, match="this trainer is AsyncGRPO; check_every"):
        attach_watch(make(tmp_path), record_steps=1)
