import json
import sys

import numpy as np
import pytest
from conftest import ROOT

from workbench.curves.compare import control_verdicts, why_not_control
from workbench.curves.documented import load_baseline
from workbench.recipes.recipes import make_recipe
from workbench.recipes.train import training_record
from workbench.runs.run import Run
from workbench.studies.arms import Arm
from workbench.training.rewards import length_reward

sys.path.append(str(ROOT / "benchmarks" / "verdicts"))
import record_controls as control


def record_of(arm, seed=0):
    recipe = control.with_recipe(arm, seed=seed).recipe
    return training_record(arm.trainer.__name__, recipe, reward_funcs=arm.reward_funcs, **arm.options)


def test_the_runs_of_two_notebooks_with_their_defaults_have_a_control():
    starter, gpt2 = (load_baseline(f"workbench-{name}-docs-example") for name in ("starter", "starter-gpt2"))
    recipe, reward = make_recipe("starter-gpt2", max_steps=50), length_reward(20)
    options = {"disable_dropout": True, "monitor_every": 5}
    explicit = Arm(recipe, reward, options=options)
    implicit = Arm(recipe, reward, options=options | {"explicit_positions": False})
    plain = training_record("GRPOTrainer", make_recipe("starter", seed=3), reward_funcs=length_reward(20))
    assert why_not_control(plain, starter) == ""
    assert why_not_control(record_of(explicit), gpt2) == ""
    assert why_not_control(record_of(implicit), gpt2) == "overrides.explicit_positions is False, of the control None"


def test_what_is_recorded_is_what_the_file_says():
    for name, arm in control.control_arms().items():
        assert why_not_control(record_of(arm), load_baseline(f"workbench-{name}-docs-example")) == ""


def test_the_tolerance_grows_with_the_distance_of_starters_made_anew_and_holds_another_seed():
    seeds = np.random.default_rng(0).normal(size=(10, 5))
    near, far = (control.tolerance_for("reward", seeds, seeds[:6] + distance) for distance in (0, 5))
    assert min(far) > 5 and max(near) < min(far)
    assert min(control.tolerance_for("padding/max_difference", seeds / 1e6, seeds[:6] / 1e6)) == 1  # decade


def test_the_tolerances_in_the_files_are_what_the_simulation_makes_of_the_runs_on_starters_made_anew():
    for name in ("starter", "starter-gpt2"):
        baseline = load_baseline(f"workbench-{name}-docs-example")
        for metric, stored in baseline.recorded["tolerance"].items():
            seeds = control.fifths_of(baseline.curves_by_seed(metric), metric)
            made_anew = np.array(baseline.recorded["made_anew"][metric])
            assert control.tolerance_for(metric, seeds, made_anew) == pytest.approx(stored, rel=0.03)


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.jsonl")}


@pytest.mark.slow
def test_a_control_is_recorded_by_one_command_and_judges_runs_of_its_recipe(tmp_path, monkeypatch, starter_folder):
    arm = control.with_recipe(control.control_arms()["starter"], max_steps=8)
    monkeypatch.setattr(control, "SEEDS", range(3))
    monkeypatch.setattr(control, "control_arms", lambda: {"starter": arm})
    monkeypatch.setattr(control, "other_starters", lambda *_: [str(starter_folder)] * 2)
    asked = ["--trainings", str(tmp_path / "runs"), "--out", str(tmp_path)]
    control.main(asked)
    (path,) = tmp_path.glob("*.json")
    written, trained = path.read_text(), stamps(tmp_path / "runs")
    assert len(trained) == 5
    control.main(asked)  # nothing is trained again
    assert (path.read_text(), stamps(tmp_path / "runs")) == (written, trained)
    assert json.loads(path.read_text())["curves"]["reward"]["by_seed"].keys() == {"0", "1", "2"}
    monkeypatch.setenv("WORKBENCH_BASELINES", str(tmp_path))
    verdicts = control_verdicts([Run(tmp_path / "runs")], [load_baseline(path.stem)])
    assert verdicts[["seed", "metric", "verdict"]].to_numpy().tolist() == [
        [n, "reward", "same process"] for n in range(3)
    ]
