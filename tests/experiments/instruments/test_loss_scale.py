"""The divisor that TRL had up to 1.8.0, put back into the installed TRL, is the one that the scripts saw on 1.8.0."""

import dataclasses
import json
import re

import pytest
from conftest import ROOT

from workbench.experiments.arms import Arm, ObservedGRPOTrainer, train_arms
from workbench.experiments.instruments.loss_scale import OldDivisorGRPOTrainer, contains_reward, token_mean_loss
from workbench.experiments.recipes import Recipe

SMALL = Recipe(
    "search", "search", max_steps=2, num_generations=4, per_device_train_batch_size=8, max_completion_length=9
)
STILL = {"learning_rate": 0.0, "save_strategy": "no"}


def old_over_new(folder, recipe, **options) -> tuple[list[float], list]:
    """The gradient norm with the old divisor over that with today's, for each step, and the two runs."""
    arms = {
        trainer.__name__: Arm(recipe, contains_reward("answer"), trainer, options=STILL | options)
        for trainer in (ObservedGRPOTrainer, OldDivisorGRPOTrainer)
    }
    new, old = (runs[0] for runs in train_arms(arms, out_dir=folder, seeds=[3]).values())
    return (old.metrics["grad_norm"] / new.metrics["grad_norm"]).tolist(), [new, old]


@pytest.mark.slow
@pytest.mark.parametrize("accumulated", [2, 4, 8])
def test_the_scale_of_an_update_is_what_the_script_saw_on_1_8_0(accumulated, tmp_path):
    says = json.loads((ROOT / "data/defects.json").read_text())["results"]["loss_scale_window"]["1.8.0"]["says"]
    seen = float(re.search(rf"([\d.]+) with {accumulated} batches", says)[1])
    recipe = dataclasses.replace(SMALL, gradient_accumulation_steps=accumulated)
    assert old_over_new(tmp_path, recipe, steps_per_generation=4)[0] == pytest.approx([seen] * 2, rel=1e-3)


@pytest.mark.slow
def test_masked_tokens_are_in_the_old_divisor_and_the_loss_is_that_of_the_kept_ones(tmp_path):
    scales, (new, _) = old_over_new(tmp_path, SMALL, mask_truncated_completions=True)
    rows = new.completions
    kept = rows["completion_tokens"].where(rows["trl_finish_reason"] == "stop", 0).groupby(rows["step"]).sum()
    share = kept / rows.groupby("step")["completion_tokens"].sum()
    assert share.between(0.01, 0.99).any()  # else nothing is shown
    assert scales == pytest.approx(share.tolist(), rel=1e-3)


@pytest.mark.slow
def test_the_value_of_the_default_loss_is_minus_the_mean_advantage_of_a_token(tmp_path):
    arm = Arm(SMALL, contains_reward("answer"), ObservedGRPOTrainer, options={"save_strategy": "no"})
    (run,) = train_arms({"a": arm}, out_dir=tmp_path, seeds=[3])["a"]
    logged = pytest.approx(run.metrics["loss"].tolist(), abs=2e-4)  # TRL rounds
    assert token_mean_loss(run.completions).tolist() == logged
    shorter = run.completions.assign(completion_tokens=run.completions["completion_tokens"][::-1].to_numpy())
    assert token_mean_loss(shorter).tolist() != logged
