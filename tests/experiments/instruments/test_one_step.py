"""The divisor that TRL had up to 1.8.0, put back into the installed TRL, is the one that the scripts saw on 1.8.0."""

import json
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import trl
from conftest import ROOT
from step_cases import BASE, length

from workbench.experiments.instruments.one_step import OldDivisorGRPOTrainer, draw_tokens
from workbench.experiments.recipes import load_prompts, resolve_model
from workbench.watch.check_step import check_step


def trainer_of(folder, cls=trl.GRPOTrainer, **fields):
    args = trl.GRPOConfig(output_dir=str(folder), **BASE | fields)
    return cls(resolve_model("starter"), length, args, train_dataset=load_prompts("starter"))


def norm_of(trainer) -> float:
    trainer.train()
    return trainer.state.log_history[0]["grad_norm"]


@pytest.mark.slow
@pytest.mark.parametrize("accumulated", [2, 4, 8])
def test_scale_of_an_update_is_what_the_script_saw_on_1_8_0(accumulated, tmp_path):
    says = json.loads((ROOT / "data/defects.json").read_text())["results"]["loss_scale_window"]["1.8.0"]["says"]
    seen = float(re.search(rf"([\d.]+) with {accumulated} batches", says)[1])
    fields = {"gradient_accumulation_steps": accumulated, "steps_per_generation": 4, "learning_rate": 0.0}
    fields |= {"max_steps": 1, "logging_steps": 1}
    old, new = (norm_of(trainer_of(tmp_path, cls, **fields)) for cls in (OldDivisorGRPOTrainer, trl.GRPOTrainer))
    assert old / new == pytest.approx(seen, rel=1e-3)


@pytest.mark.slow
def test_masked_tokens_are_in_the_old_divisor(tmp_path):
    fields = {"mask_truncated_completions": True, "max_completion_length": 16, "learning_rate": 0.0}
    report = check_step(trainer_of(tmp_path, OldDivisorGRPOTrainer, **fields))
    kept = sum(row.mask.sum() for row in report.rows)
    plain = check_step(trainer_of(tmp_path, **fields | {"mask_truncated_completions": False}))
    share = kept / sum(len(row.completion_ids) for row in plain.rows)
    assert 0.01 < share < 0.99  # else nothing is shown
    assert report.first.name == "loss" and f"{share:.3g} times as much" in report.first.cause


@pytest.mark.slow
@pytest.mark.parametrize("per_generation, accumulated, times", [(1, 4, "4"), (4, 4, ""), (4, 2, "0.5")])
def test_check_step_finds_the_old_divisor_in_each_window(per_generation, accumulated, times, tmp_path):
    fields = {"steps_per_generation": per_generation, "gradient_accumulation_steps": accumulated}
    fields |= {"per_device_train_batch_size": 4, "max_completion_length": 32}
    first = check_step(trainer_of(tmp_path, OldDivisorGRPOTrainer, **fields)).first
    assert f": {times} times as much" in first.cause if times else first is None
    assert check_step(trainer_of(tmp_path, **fields)).first is None


def test_tokens_are_drawn_where_they_stand():
    _, ax = plt.subplots()
    image = draw_tokens(
        ax, [["a", " b"], [" "]], [np.array([0.0, 1.0]), np.array([])], ["0", "1"], cmap="gray", vmin=0, vmax=1
    )
    assert [(text.get_position(), text.get_text()) for text in ax.texts] == [
        ((0, 0), "a"),
        ((1, 0), "b"),
        ((0, 1), " "),
    ]
    assert image.get_array().mask.tolist() == [[False, False], [True, True]]
    assert [text.get_color() for text in ax.texts] == ["white", "#222222", "#222222"]
    plt.close()
