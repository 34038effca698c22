"""`check_step` on real PPO trainers: nothing is said of healthy ones, and each fault is found at its stage."""

import copy

import numpy as np
import pytest
import torch
from ppo_cases import EOS, LINES, SETTINGS, healthy, length, make, with_line
from ppo_parts import PPOTrainer, StockPPO

from workbench.audit.live import attach_watch
from workbench.diagnostics import check_step
from workbench.errors import ParameterError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", healthy())
def test_a_healthy_ppo_step_has_no_difference(name, tmp_path):
    report = check_step(make(tmp_path, **healthy()[name]))
    assert [stage.name for stage in report.stages if stage.verdict in ("different", "cannot tell")] == [], report
    assert len(report.stages) == 14


@pytest.mark.parametrize("name", LINES)
def test_a_fault_in_ppo_is_found_at_its_stage(name, tmp_path):
    old, new, stage, cause, *fields = LINES[name]
    first = check_step(make(tmp_path, with_line(old, new), **EOS, **(fields[0] if fields else {}))).first
    assert first is not None and first.name == stage and cause in first.cause, first


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_ppo_that_does_not_hold_is_named(name, tmp_path):
    options, stage, cause = SETTINGS[name]
    found = check_step(make(tmp_path, **options))[stage]
    assert found.verdict == "different" and cause in found.cause, found


def test_metrics_of_ppo_count_empty_places(tmp_path):
    """With mini-batches TRL averages over places that no micro-batch fills."""
    stage = check_step(make(tmp_path, **EOS, gradient_accumulation_steps=2, num_mini_batches=2))["metrics"]
    assert stage.verdict == "different" and "val/ratio is logged as 0.5" in stage.cause


def test_ppo_without_gradient_clipping_is_said(tmp_path):
    update = check_step(make(tmp_path, **EOS, max_grad_norm=0.01))["update"]
    assert update.verdict == "same" and "TRL's PPO does not clip: max_grad_norm=0.01" in update.cause


def state_of(trainer) -> list:
    numbers = [p.detach().clone() for p in trainer.model.parameters()]
    states = trainer.optimizer.state_dict()["state"]
    numbers += [copy.deepcopy(value) for key in sorted(states) for value in states[key].values()]
    return [*numbers, torch.random.get_rng_state(), torch.tensor(np.random.get_state()[1].astype(int))]


def modes_of(trainer) -> list[bool]:
    return [module.training for module in trainer.model.modules()]


@pytest.mark.parametrize("rows", [64, 8])
@pytest.mark.parametrize("options", [EOS, {"cls": "ours", "reward_funcs": length}, EOS | {"num_ppo_epochs": 1}])
def test_a_check_leaves_a_ppo_trainer_as_it_was(options, rows, tmp_path):
    options = {**options, "rows": rows, "total_episodes": 24}
    options |= {"cls": PPOTrainer} if options.get("cls") else {}
    checked, other = make(tmp_path / "a", **options), make(tmp_path / "b", **options)
    before, attributes, modes = state_of(checked), dict(vars(checked)), modes_of(checked)
    check_step(checked)
    assert all(map(torch.equal, before, state_of(checked))) and vars(checked) == attributes
    assert modes == modes_of(checked) and all(p.grad is None for p in checked.model.parameters())
    for trainer in (checked, other):
        torch.manual_seed(0)
        np.random.seed(0)
        trainer.train()
    assert all(map(torch.equal, checked.model.parameters(), other.model.parameters()))
    assert checked.state.log_history[-1]["objective/scores"] == other.state.log_history[-1]["objective/scores"]
    before = state_of(checked)
    check_step(checked)  # after training, too
    assert len(before) == len(state_of(checked)) and all(map(torch.equal, before, state_of(checked)))


def broken(**_):
    raise ZeroDivisionError("in the reward")


def test_a_check_changes_nothing_when_ppo_raises(tmp_path):
    trainer = make(tmp_path, PPOTrainer, reward_funcs=broken)
    before, attributes = state_of(trainer), dict(vars(trainer))
    with pytest.raises(ZeroDivisionError, match="in the reward"):
        check_step(trainer)
    assert all(map(torch.equal, before, state_of(trainer))) and vars(trainer) == attributes
    assert trainer.args.missing_eos_penalty is None and "backward" not in vars(trainer.accelerator)


class OtherNames(StockPPO):
    def train(self):
        self.log({"objective/scores": 0.0})


def test_what_cannot_be_checked_of_ppo_is_refused(tmp_path):
    trainer = make(tmp_path, rows=7, total_episodes=8)
    with pytest.raises(ParameterError, match="train_dataset has fewer rows than the 8 that an update of PPO takes"):
        check_step(trainer)
    rows = [trainer.train_dataset[i] for i in range(7)]
    with pytest.raises(ParameterError, match="batch has 7 rows, expected 8, which an update of PPO takes"):
        check_step(trainer, batch=rows)
    with pytest.raises(ParameterError, match=r"OtherNames\.train is not TRL's: its variables have other names"):
        check_step(make(tmp_path, OtherNames))
    with pytest.raises(ParameterError, match="PPOTrainer: expected TRL's GRPOTrainer or RLOOTrainer"):
        attach_watch(trainer, check_every=2)
    trainer.is_fsdp_enabled = True
    with pytest.raises(ParameterError, match="DeepSpeed or FSDP holds in parts"):
        check_step(trainer)


@pytest.mark.parametrize("options", [EOS, {"cls": "ours", "reward_funcs": length}])
def test_a_batch_for_ppo_is_the_one_that_is_checked(options, tmp_path):
    options = {**options} | ({"cls": PPOTrainer} if options.get("cls") else {})
    trainer = make(tmp_path, **options)
    rows = [trainer.train_dataset[i] for i in (3, 1, 4, 1, 5, 9, 2, 6)]
    report = check_step(trainer, batch=rows)
    assert report.first is None
    assert sorted(row.prompt_ids for row in report.rows) == sorted(row["input_ids"] for row in rows)


def test_tokens_and_page_show_each_token_of_ppo(tmp_path):
    report = check_step(make(tmp_path, **EOS))
    tables = [report.tokens(row) for row in range(len(report.rows))]
    assert len(tables) == 8 and sum(table["gradient"].abs().sum() for table in tables) == pytest.approx(1)
    assert (tables[0]["logp"] - tables[0]["logp_alone"]).abs().max() < 1e-4
    assert {"advantage", "ratio", "reward", "value", "return"} <= {*tables[0].columns}
    assert report._repr_html_().count("<span") == sum(map(len, tables))
