"""`update/moved` on real trainings of the starter."""

import pytest
import torch
import trl
from accelerate.state import AcceleratorState
from conftest import daily
from peft import LoraConfig

from workbench.audit.report import audit_run
from workbench.experiments.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.training.rewards import length_reward
from workbench.watch.attach import attach_watch
from workbench.watch.update_share import UpdateShare

pytestmark = pytest.mark.slow

LORA = {"peft_config": LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")}


def stock(folder, dtype="bfloat16", more=None, steps=2, **fields):
    recipe = make_recipe("starter", max_steps=steps, per_device_train_batch_size=8, max_completion_length=8)
    options = {"save_strategy": "no", "model_init_kwargs": {"dtype": dtype}} | fields
    args = grpo_config(recipe, folder, **options)
    data = load_prompts("starter").select(range(64))
    return trl.GRPOTrainer(resolve_model("starter"), length_reward(), args, train_dataset=data, **(more or {}))


def logged(trainer):
    trainer.train()
    return [line.get("update/moved") for line in trainer.state.log_history if "reward" in line]


@pytest.mark.parametrize("rate", daily([1e-6, 1e-5], 1e-6))
def test_fp32_and_adapters_move_and_bf16_does_not(rate, tmp_path):
    shares = {}
    for name, dtype, more in (("fp32", "float32", {}), ("bf16", "bfloat16", {}), ("LoRA", "bfloat16", LORA)):
        trainer = stock(tmp_path / name, dtype, more, learning_rate=rate)
        trainer.add_callback(UpdateShare(every=1))
        shares[name] = logged(trainer)
    assert min(*shares["fp32"], *shares["LoRA"]) > 0.9
    assert max(shares["bf16"]) < 0.2


def test_it_is_measured_at_optimizer_steps_and_changes_nothing(tmp_path):
    fields = {"gradient_accumulation_steps": 2, "logging_steps": 2, "learning_rate": 1e-5, "steps": 4}
    plain = stock(tmp_path / "a", **fields)
    assert logged(plain) == [None, None]
    watched, share = stock(tmp_path / "b", **fields), UpdateShare(every=1)
    watched.add_callback(share)
    counts = []
    original = share._count
    share._count = lambda: (original(), counts.append(len(share._counts)))
    watched.train()
    assert counts == [1, 2, 1, 2]  # of the steps of a line
    equal = [torch.equal(a, b) for a, b in zip(plain.model.parameters(), watched.model.parameters(), strict=True)]
    assert all(equal)


def test_nothing_is_said_of_a_rate_of_0_and_of_sharded_weights(tmp_path, monkeypatch):
    idle = stock(tmp_path / "idle", learning_rate=0.0)
    idle.add_callback(UpdateShare(every=1))
    assert logged(idle) == [None, None]
    sharded = stock(tmp_path / "sharded")
    monkeypatch.setitem(AcceleratorState._shared_state, "fsdp_plugin", object())
    share = UpdateShare()
    share.on_train_begin(sharded.args, sharded.state, sharded.control)
    assert not share.on


def test_watch_and_audit_name_the_lost_updates(tmp_path):
    trainer = stock(tmp_path, steps=3, learning_rate=1e-6)
    with pytest.warns(UserWarning, match="by rounding"):
        watch = attach_watch(trainer, every=1)
    trainer.train()
    findings = {finding.rule: finding for finding in audit_run(watch.recorder.record_dir).runs[0].findings}
    lost = findings["lost-updates"]
    assert (lost.verdict, lost.severity) == ("found", "warning")
    assert "at a learning rate of 1e-06" in lost.says and lost.evidence["dtype of the saved model"] == "bfloat16"
