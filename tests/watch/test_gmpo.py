"""TRL's GMPOTrainer, whose loss is not one of GRPO's: healthy settings at each update, and faults of its own."""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import daily
from datasets import Dataset
from step_cases import BASE, PROMPTS, length, vowels
from trl.experimental import gmpo

from workbench.experiments.recipes import resolve_model
from workbench.replay.grpo_math import LossRow, LossSettings, gmpo_loss
from workbench.watch.attach import StepCheck
from workbench.watch.check_step import check_step

pytestmark = pytest.mark.slow

OFTEN: dict[str, Any] = {"num_iterations": 2, "learning_rate": 1e-2, "max_steps": 4, "disable_tqdm": True}


def make(folder, cls=gmpo.GMPOTrainer, **fields):
    args = gmpo.GMPOConfig(str(folder), **(BASE | fields))
    data = Dataset.from_dict({"prompt": PROMPTS})
    return cls(resolve_model("starter"), [length, vowels], args=args, train_dataset=data)


SETTINGS: dict[str, dict[str, Any]] = {
    "one update": {},
    "two updates": OFTEN,
    "a KL, micro-batches": OFTEN | {"beta": 0.1, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4},
    "tokens of high entropy": OFTEN | {"top_entropy_quantile": 0.5, "epsilon_high": 0.1, "delta": 1.05},
    "masked": OFTEN
    | {"mask_truncated_completions": True, "loss_type": "grpo", "importance_sampling_level": "sequence"},
}


@pytest.mark.parametrize("name", daily(SETTINGS, "one update", "a KL, micro-batches"))
def test_trls_gmpo_is_the_same_at_each_update(name, tmp_path):
    trainer = make(tmp_path, **SETTINGS[name] | {"max_steps": 4})
    reports = {0: check_step(trainer)}
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    reports |= check.reports
    assert {step: report.first for step, report in reports.items()} == dict.fromkeys(range(5)), reports
    unread = {"delta", "importance_sampling_level"} & SETTINGS[name].keys()
    assert reports[0]["loss"].verdict == ("cannot tell" if unread else "same"), reports[0]
    assert all(f"does not read {field}=" in reports[0]["loss"].cause for field in unread), reports[0]


class Unclipped(gmpo.GMPOTrainer):
    def _compute_loss(self, model, inputs):
        self.epsilon_low = self.epsilon_high = 1e9
        return super()._compute_loss(model, inputs)


class ArithmeticMean(gmpo.GMPOTrainer):
    """Takes the mean of the ratios for the mean of their logs."""

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        there = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        tokens = inputs["completion_ids"].shape[1]
        logps, *_ = self._get_per_token_logps_and_entropies(model, ids, there, tokens, compute_entropy=True)
        old, mask = inputs["old_per_token_logps"], inputs["completion_mask"]
        ratios = (logps - old).clamp(-self.epsilon_low, self.epsilon_high).exp()
        return -((ratios * mask).sum(1) / mask.sum(1) * inputs["advantages"]).mean()


FAULTS = {Unclipped: "as without a clip", ArithmeticMean: "the loss is off by"}


@pytest.mark.parametrize("cls", FAULTS)
def test_a_fault_that_ratios_of_1_hide_is_named(cls, tmp_path):
    first = check_step(make(tmp_path, cls, num_iterations=2)).first
    assert first is not None and first.name == "loss" and FAULTS[cls] in first.cause, first


def test_slopes_are_central_differences_of_the_value():
    rng, step = np.random.default_rng(0), 1e-6
    settings = LossSettings(loss_type="gmpo", epsilon=0.4, epsilon_high=0.2, beta=0.1)
    for _ in range(20):
        rows = []
        for tokens in (4, 1, 5):
            logps = -rng.exponential(1.0, tokens)
            old, reference = (logps + rng.normal(0, 0.4, tokens) for _ in range(2))
            mask = (np.arange(tokens) != 1).astype(float)
            rows.append(LossRow(logps, rng.normal(), mask, old, reference))
        slopes = gmpo_loss(rows, settings, 2).slopes
        for row, slope in zip(rows, slopes, strict=True):
            for token in range(len(slope)):
                values = []
                for sign in (1, -1):
                    row.logps[token] += sign * step
                    values.append(gmpo_loss(rows, settings, 2).value)
                    row.logps[token] -= sign * step
                assert slope[token] == pytest.approx((values[0] - values[1]) / (2 * step), abs=1e-6)
