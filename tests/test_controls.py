"""The recorded controls: of the models that are shipped, with the tolerance that their runs give, and right about real runs."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks import controls
from benchmarks.controls import as_judged
from tools.record import measured
from workbench.curves.compare import SAME, another_seed
from workbench.curves.documented import load_baseline
from workbench.experiments.toys.starter import SHIPPED
from workbench.experiments.train import training_record

STARTER, GPT2 = (load_baseline(f"workbench-{name}-docs-example") for name in ("starter", "starter-gpt2"))
METRICS = [(control, metric) for control in (STARTER, GPT2) for metric in control.recorded["tolerance"]]
each_metric = pytest.mark.parametrize("control, metric", METRICS, ids=lambda value: getattr(value, "name", value))


def process_of(training):
    """A training without what is no part of its process: seed, checkpoints, who recorded it."""
    recipe = {name: value for name, value in training["recipe"].items() if name not in ("seed", "save_steps")}
    return {name: value for name, value in training.items() if name != "source"} | {"recipe": recipe}


@pytest.mark.parametrize("name", ["starter", "starter-gpt2"])
def test_control_is_of_the_shipped_weights_and_of_its_recipe(name):
    arm, recorded = controls.control_arms()[name], load_baseline(f"workbench-{name}-docs-example").recorded
    assert recorded["weights_sha256"] in (SHIPPED / "manifest.json").read_text()
    made = training_record(arm.trainer.__name__, arm.recipe, reward_funcs=arm.reward_funcs, **arm.options)
    assert process_of(made) == process_of(recorded["training"])


@each_metric
def test_tolerance_follows_from_the_recorded_runs(control, metric):
    seeds = controls.fifths_of(control.curves_by_seed(metric), metric)
    made_anew = np.array(control.recorded["made_anew"][metric])
    stored = control.recorded["tolerance"][metric]
    assert controls.tolerance_for(metric, seeds, made_anew) == pytest.approx(stored, rel=0.03)


@each_metric
def test_recorded_seed_is_the_process_of_the_other_nine(control, metric):
    recorded = [as_judged(one, metric) for one in control.curves_by_seed(metric)]
    assert len(recorded) == control.seeds == 10
    for one in recorded:
        others = [other for other in recorded if other is not one]
        assert another_seed(one, others, tolerance=control.recorded["tolerance"][metric]).verdict == SAME


def test_damaged_trainers_are_seen_and_other_rounding_is_not():
    found = measured("control")
    older = found["older"]
    for one in older["rounding"].values():
        assert all(set(metric["verdicts"]) == {SAME} for metric in one["metrics"].values())
    seen = {name: {m for m, v in one["metrics"].items() if set(v["verdicts"]) == {"different"}}
            for name, one in older["damaged"].items()}  # fmt: skip
    assert seen["wrong sign"] == seen["rate x 0.1"] == {"reward"}
    assert seen["positions off"] == {"padding/max_difference"}
    assert all(one["simulated"]["0"]["different"] <= 0.05 for one in found["controls"].values())


@each_metric
def test_the_stored_error_rates_are_of_the_shipped_controls(control, metric):
    model = control.name.removeprefix("workbench-").removesuffix("-docs-example")
    assert measured("control")["controls"][f"{model}; {metric}"]["tolerance"] == control.recorded["tolerance"][metric]


@pytest.mark.rare
@pytest.mark.slow
def test_control_is_recorded_by_one_command(tmp_path, monkeypatch, starter_folder):
    arm = controls.control_arms()["starter"]
    arm = dataclasses.replace(arm, recipe=dataclasses.replace(arm.recipe, max_steps=8))
    monkeypatch.setattr(controls, "SEEDS", range(3))
    monkeypatch.setattr(controls, "control_arms", lambda: {"starter": arm})
    monkeypatch.setattr(controls, "other_starters", lambda *_: [str(starter_folder)] * 2)
    controls.main(["--trainings", str(tmp_path / "runs"), "--out", str(tmp_path)])
    (path,) = tmp_path.glob("*.json")
    assert len(list((tmp_path / "runs").rglob("metrics.jsonl"))) == 5
    assert json.loads(path.read_text())["curves"]["reward"]["by_seed"].keys() == {"0", "1", "2"}
    monkeypatch.setenv("WORKBENCH_BASELINES", str(tmp_path))
    made = load_baseline(path.stem)
    assert made.recorded["made_with"]
    for one in made.curves_by_seed():
        assert another_seed(one, made.curves_by_seed(), tolerance=made.recorded["tolerance"]["reward"]).verdict == SAME
