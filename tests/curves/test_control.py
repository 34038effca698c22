import dataclasses
import json
import re
import sys

import numpy as np
import pytest
from conftest import ROOT

from workbench.curves.baselines import load_baseline
from workbench.curves.control import (
    as_judged,
    control_check,
    control_metrics,
    control_verdicts,
    fifths,
    judge,
    judge_metric,
    list_controls,
    why_not_control,
)
from workbench.curves.curve import Curve
from workbench.errors import ParameterError
from workbench.runs.run import Run

CONTROLS = list_controls()
STARTER = load_baseline("workbench-starter-docs-example")
GPT2 = load_baseline("workbench-starter-gpt2-docs-example")
PADDING = "padding/max_difference"
each_metric = pytest.mark.parametrize("control, metric", [(c, m) for c in CONTROLS for m in control_metrics(c)],
                                      ids=lambda v: getattr(v, "name", v))  # fmt: skip


def left_out(control, metric, n):
    """The verdict on one recorded seed by the others."""
    seeds = [as_judged(curve, metric) for curve in control.curves_by_seed(metric)]
    return judge(seeds.pop(n), seeds, tolerance=control.recorded["tolerance"][metric]).verdict


def mean_curve(control, metric="reward"):
    """The recorded mean as a curve of the control's own unit and steps."""
    seeds = control.curves_by_seed(metric)
    return dataclasses.replace(seeds[0], label="mine", y=np.mean([one.y for one in seeds], axis=0))


# --- the recorded controls -------------------------------------------------------------------------------------------


def test_the_controls_are_the_two_starters_and_what_they_judge_is_the_reward_and_the_padding_monitor():
    assert {control.name: control_metrics(control) for control in CONTROLS} == {
        STARTER.name: ["reward"],
        GPT2.name: ["reward", PADDING],
    }


@each_metric
def test_the_drawn_curve_is_the_mean_of_ten_seeds(control, metric):
    seeds = control.curves_by_seed(metric)
    assert len(seeds) == control.seeds == 10
    assert control.curve(metric).y == pytest.approx(np.mean([one.y for one in seeds], axis=0), rel=1e-3, abs=1e-9)


@each_metric
def test_every_recorded_seed_agrees_with_the_other_nine(control, metric):
    assert [left_out(control, metric, n) for n in range(10)] == ["agrees"] * 10


@each_metric
def test_the_tolerance_is_what_the_simulation_makes_of_the_runs_on_starters_made_anew(control, metric):
    from workbench.studies.control import tolerance_for

    seeds = np.stack([fifths(as_judged(curve, metric)) for curve in control.curves_by_seed(metric)])
    made_anew, stored = np.array(control.recorded["made_anew"][metric]), control.recorded["tolerance"][metric]
    assert tolerance_for(metric, seeds, made_anew) == pytest.approx(stored, rel=0.03)
    assert (stored > np.abs(made_anew - seeds.mean(axis=0))).all()  # all of them agree


def test_what_identifies_the_runs_stands_in_the_file():
    for control in CONTROLS:
        assert control.recorded["training"]["recipe"]["model"] in ("starter", "starter-gpt2")
        assert {"python", "packages", "corpus_sha256", "weights_sha256", "cpu", "threads"} <= control.recorded.keys()


# --- judging ---------------------------------------------------------------------------------------------------------


def test_a_curve_that_learns_otherwise_differs():
    mean = mean_curve(STARTER)
    slow = np.interp(mean.x / 3, mean.x, mean.y)
    for y in (slow, np.minimum(0, mean.y[::-1]), np.full(80, mean.y[0]), mean.y - 5):
        found = judge_metric(dataclasses.replace(mean, y=y), STARTER)
        assert found.verdict == "differs"
        assert "the mean of 10 seeds; another seed would lie within" in found.reason


def test_a_padding_error_that_the_reward_cannot_show_is_told_and_another_rounding_is_not():
    mean = mean_curve(GPT2, PADDING)
    assert judge_metric(dataclasses.replace(mean, y=2 * mean.y), GPT2, PADDING).verdict == "agrees"
    assert judge_metric(dataclasses.replace(mean, y=mean.y + 0.5), GPT2, PADDING).verdict == "differs"


def test_beyond_the_tolerance_but_within_what_another_seed_would_show_is_undecided():
    rise = np.linspace(-30, -4, 10)
    recorded = [Curve(f"seed {n}", range(10), rise + 3 * n, "characters") for n in range(5)]
    found = judge(Curve("mine", range(10), rise + 12, "characters"), recorded, tolerance=1)
    assert re.match(
        r"undecided: fifth \d of 5 is 6 above the mean of 5 seeds; the tolerance is 1 .*, but another", str(found)
    )


@pytest.mark.parametrize(
    "change, reason",
    [({"unit": "tokens"}, "mine is in tokens"), ({"low": -100.0}, r"ranges over \[-100, 0\]"),
     ({"x": np.arange(1, 41), "y": np.full(40, -5.0)}, "40 points up to step 40, the control 80 points up to step 80"),
     ({"y": np.full(80, np.nan)}, "mine: not finite at step 1")],
)  # fmt: skip
def test_what_cannot_be_compared_is_not_judged(change, reason):
    found = judge_metric(dataclasses.replace(mean_curve(STARTER), **change), STARTER)
    assert found.verdict == "cannot compare"
    assert re.search(reason, found.reason)


def test_too_few_seeds_or_no_tolerance_are_errors():
    seeds = STARTER.curves_by_seed()
    with pytest.raises(ParameterError, match="2 recorded seeds: expected 3 or more"):
        judge(seeds[0], seeds[1:3], tolerance=1)
    with pytest.raises(ParameterError, match="tolerance=0: expected more than 0 characters"):
        judge(seeds[0], seeds[1:], tolerance=0)


# --- runs ------------------------------------------------------------------------------------------------------------


def made_up_run(folder, rewards, seed=7, **recipe):
    """A run's folder as the control's recipe would leave it."""
    training = json.loads(json.dumps(STARTER.recorded["training"]))
    training["recipe"] |= {"seed": seed, **recipe}
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps(training))
    lines = [json.dumps({"step": n, "reward": value}) for n, value in enumerate(rewards, start=1)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return Run(folder)


def test_trainings_of_the_control_s_recipe_are_judged_wherever_they_lie_in_a_run_and_others_are_not(tmp_path):
    good = STARTER.curves_by_seed()[0].y
    run = made_up_run(tmp_path / "05_example" / "one", good)
    made_up_run(run.path / "arms" / "tuned" / "seed-3", good[::-1], seed=3, save_steps=80)
    made_up_run(run.path / "arms" / "rate" / "seed-0", good, learning_rate=1e-6)
    table = control_verdicts([run])
    assert table[["run", "training", "seed", "metric", "verdict"]].to_numpy().tolist() == [
        ["05_example/one", "", 7, "reward", "agrees"],
        ["05_example/one", "arms/tuned/seed-3", 3, "reward", "differs"],
    ]
    assert control_check(table) is False
    assert control_check(table[:1]) is True


def test_a_run_that_is_not_whole_cannot_be_judged_and_the_check_says_so(tmp_path):
    table = control_verdicts([made_up_run(tmp_path / "05_example" / "one", [-20.0] * 30)])
    assert control_check(table).startswith("not run: cannot compare: 05_example, seed 7 has 30 points up to step 30")
    (tmp_path / "05_example" / "one" / "metrics.jsonl").unlink()
    assert "no metrics; the run logged no step" in control_verdicts([Run(tmp_path / "05_example" / "one")])["reason"][0]
    assert control_check(control_verdicts([Run(tmp_path)])[:0]).startswith("not run: no training here")


def test_another_recipe_is_named_by_its_difference():
    training = json.loads(json.dumps(STARTER.recorded["training"]))
    assert why_not_control(training, STARTER) == ""
    training["recipe"] |= {"seed": 4, "learning_rate": 1e-6}
    assert why_not_control(training, STARTER) == "recipe.learning_rate is 1e-06, of the control 0.0003"


# --- the benchmark ---------------------------------------------------------------------------------------------------


def test_the_recorded_benchmark_tells_every_damaged_trainer_by_the_metric_that_can_and_no_other_rounding():
    found = json.loads((ROOT / "data" / "benchmarks" / "control.json").read_text())
    for one in found["rounding"].values():
        assert all(set(metric["verdicts"]) == {"agrees"} for metric in one["metrics"].values())
    assert all(found["rounding"]["AVX2, starter made with it"]["parts at step"])  # they are other runs indeed
    told = {name: {m for m, v in one["metrics"].items() if set(v["verdicts"]) == {"differs"}}
            for name, one in found["damaged"].items()}  # fmt: skip
    assert told["wrong sign"] == told["rate x 0.1"] == {"reward"}
    assert told["positions off"] == {PADDING}
    assert all(one["simulated"]["0"]["differs"] <= 0.01 for one in found["controls"].values())


def test_the_simulation_can_be_repeated():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from control import simulated

    assert simulated(STARTER, "reward", 0.0, 50)["agrees"] > 0.9
    assert simulated(STARTER, "reward", 8.0, 50)["differs"] == 1
