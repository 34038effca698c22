import dataclasses
import json

import numpy as np
import pytest
from conftest import ROOT

from benchmarks.verdicts import record_controls as control
from benchmarks.verdicts.record_controls import as_judged
from workbench.curves.compare import SAME, another_seed
from workbench.curves.documented import load_baseline
from workbench.experiments.arms import Arm
from workbench.experiments.recipes import make_recipe
from workbench.experiments.toys.starter import SHIPPED
from workbench.experiments.train import training_record
from workbench.training.rewards import length_reward


def record_of(arm, seed=0):
    recipe = control.with_recipe(arm, seed=seed).recipe
    return training_record(arm.trainer.__name__, recipe, reward_funcs=arm.reward_funcs, **arm.options)


def process_of(training):
    """A training without what is no part of its process: seed, checkpoints, who recorded it."""
    recipe = {name: value for name, value in training["recipe"].items() if name not in ("seed", "save_steps")}
    return {name: value for name, value in training.items() if name != "source"} | {"recipe": recipe}


def test_the_controls_were_recorded_on_the_weights_that_are_shipped():
    shipped = (SHIPPED / "manifest.json").read_text()
    for name in ("starter", "starter-gpt2"):
        assert load_baseline(f"workbench-{name}-docs-example").recorded["weights_sha256"] in shipped


def test_the_runs_of_two_notebooks_with_their_defaults_have_a_control():
    starter, gpt2 = (load_baseline(f"workbench-{name}-docs-example") for name in ("starter", "starter-gpt2"))
    recipe, reward = make_recipe("starter-gpt2", max_steps=50), length_reward(20)
    options = {"disable_dropout": True, "monitor_every": 5}
    explicit = Arm(recipe, reward, options=options)
    implicit = Arm(recipe, reward, options=options | {"explicit_positions": False})
    plain = training_record("GRPOTrainer", make_recipe("starter", seed=3), reward_funcs=length_reward(20))
    assert process_of(plain) == process_of(starter.recorded["training"])
    assert process_of(record_of(explicit)) == process_of(gpt2.recorded["training"])
    assert process_of(record_of(implicit)) != process_of(gpt2.recorded["training"])


def test_what_is_recorded_is_what_the_file_says():
    for name, arm in control.control_arms().items():
        recorded = load_baseline(f"workbench-{name}-docs-example").recorded["training"]
        assert process_of(record_of(arm)) == process_of(recorded)


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


STARTER, GPT2 = (load_baseline(f"workbench-{name}-docs-example") for name in ("starter", "starter-gpt2"))
PADDING = "padding/max_difference"
each_metric = pytest.mark.parametrize("control, metric", [(c, m) for c in (STARTER, GPT2) for m in c.recorded["tolerance"]],
                                      ids=lambda v: getattr(v, "name", v))  # fmt: skip


@each_metric
def test_every_recorded_seed_is_the_same_process_as_the_other_nine(control, metric):
    recorded = [as_judged(one, metric) for one in control.curves_by_seed(metric)]
    assert len(recorded) == control.seeds == 10
    for one in recorded:
        others = [other for other in recorded if other is not one]
        assert another_seed(one, others, tolerance=control.recorded["tolerance"][metric]).verdict == "same process"


def against(y, control=STARTER, metric="reward"):
    recorded = [as_judged(one, metric) for one in control.curves_by_seed(metric)]
    one = dataclasses.replace(control.curves_by_seed(metric)[0], label="mine", y=y)
    return another_seed(as_judged(one, metric), recorded, tolerance=control.recorded["tolerance"][metric]).verdict


def test_a_curve_that_learns_otherwise_is_different():
    x, mean = np.arange(1, 81), np.mean([one.y for one in STARTER.curves_by_seed()], axis=0)
    for y in (np.interp(x / 3, x, mean), mean[::-1], np.full(80, mean[0]), mean - 5):
        assert against(y) == "different"


def test_a_padding_error_that_the_reward_cannot_show_is_different_and_another_rounding_is_not():
    mean = np.mean([one.y for one in GPT2.curves_by_seed(PADDING)], axis=0)
    assert against(2 * mean, GPT2, PADDING) == "same process"
    assert against(mean + 0.5, GPT2, PADDING) == "different"


def test_the_recorded_benchmark_tells_every_damaged_trainer_by_the_metric_that_can_and_no_other_rounding():
    found = json.loads((ROOT / "data" / "measured" / "verdicts" / "control.json").read_text())
    for one in found["rounding"].values():
        assert all(set(metric["verdicts"]) == {"same process"} for metric in one["metrics"].values())
    told = {name: {m for m, v in one["metrics"].items() if set(v["verdicts"]) == {"different"}}
            for name, one in found["damaged"].items()}  # fmt: skip
    assert told["wrong sign"] == told["rate x 0.1"] == {"reward"}
    assert told["positions off"] == {PADDING}
    assert all(one["simulated"]["0"]["different"] <= 0.05 for one in found["controls"].values())


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
    made = load_baseline(path.stem)
    for one in made.curves_by_seed():
        assert another_seed(one, made.curves_by_seed(), tolerance=made.recorded["tolerance"]["reward"]).verdict == SAME
