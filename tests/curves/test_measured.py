import json
import shutil

import numpy as np
import pytest
from conftest import write_run

from workbench.curves.compare import another_seed
from workbench.curves.curve import Curve
from workbench.curves.documented import load_baseline
from workbench.curves.measured import group_table, measured_groups, run_curve
from workbench.errors import ParameterError, RunError
from workbench.runs.files import write_json
from workbench.runs.run import Run, set_status

RECIPE = {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 2, "num_generations": 8}


def rows(*rewards, start=1):
    return [{"step": n, "elapsed_s": n / 2, "reward": r} for n, r in enumerate(rewards, start)]


def test_units_of_trl_s_own_metrics_are_known(tmp_path):
    run = write_run(tmp_path, metrics=[{"step": 1, "reward": -1, "completions/mean_length": 9}])
    assert run_curve(run, "completions/mean_length").unit == "tokens"
    assert run_curve(run).unit == "as logged"


def test_a_run_without_metrics_is_refused(tmp_path):
    with pytest.raises(RunError, match="no metrics; the run logged no step"):
        run_curve(write_run(tmp_path))
    with pytest.raises(RunError, match=r"no reward; it has step, loss"):
        run_curve(write_run(tmp_path, "b", metrics=[{"step": 1, "loss": 0.1}]))


def test_unordered_steps_and_nan_are_refused_with_their_step(tmp_path):
    with pytest.raises(RunError, match="step 1 follows step 2; two logs were joined"):
        run_curve(write_run(tmp_path, metrics=rows(1, 2) + rows(3)))
    with pytest.raises(RunError, match="reward at step 2 is not finite"):
        run_curve(write_run(tmp_path, "b", metrics=rows(1, None, 3)))


def test_evaluations_are_read_where_they_are(tmp_path):
    run = write_run(tmp_path, metrics=[{"step": 1}, {"step": 2, "eval": 0.5}, {"step": 3}])
    assert run_curve(run, "eval", sparse=True).x.tolist() == [2]


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path):
    run = write_run(tmp_path, metrics=rows(1, 2, 3))
    path = run.path / "metrics.jsonl"
    path.write_text(path.read_text()[:-20])
    assert run_curve(run).y.tolist() == [1, 2]


LENGTH = {"name": "reward_len", "arguments": {"target": 20, "sign": -1}}
LENGTH |= {"unit": "characters from the target of 20", "lowest": None, "highest": 0.0}
UNKNOWN = {"name": "mine", "arguments": {}, "unit": None, "lowest": None, "highest": None}


def training(root, name, seed, rewards=(1, 2), inside="", reward_funcs=(UNKNOWN,), **recipe):
    run = write_run(root, name, params={"seed": seed})
    folder = run.path / inside
    folder.mkdir(exist_ok=True)
    recipe = RECIPE | {"seed": seed, "learning_rate": 1e-4} | recipe
    record = {"trainer": "GRPO", "recipe": recipe, "stops": {}, "overrides": {}, "reward_funcs": list(reward_funcs)}
    (folder / "recipe.json").write_text(json.dumps(record))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(*rewards)))
    return run


def test_groups_are_seeds_of_one_recipe_and_repeats_count_once(tmp_path):
    runs = [training(tmp_path, str(n), seed) for n, seed in enumerate((0, 1, 1))]
    runs += [training(tmp_path, "3", 0, learning_rate=3e-4), training(tmp_path, "4", 0, inside="stock 0")]
    groups, left_out = measured_groups(runs)
    assert {n: len(curves) for n, curves in groups.items()} == {"lr 0.0001": 2, "lr 0.0003": 1, "stock, lr 0.0001": 1}
    assert left_out == [f"{runs[2].path}: has the seed of an earlier one; it counts in the place of that training"]
    (runs[2].path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(-9.0)))
    assert measured_groups(runs)[0]["lr 0.0001"][1].y.tolist() == [-9.0]


def test_runs_of_other_parameters_are_no_seeds_of_one_experiment(tmp_path):
    """As of one's own notebook, whose record may not name the model or the data."""
    runs = [training(tmp_path, str(n), n) for n in range(3)]
    write_json(runs[2].path / "params.json", {"seed": 2, "model": "another"})
    groups, _ = measured_groups(runs)
    assert sorted(map(len, groups.values())) == [1, 2]


def test_recipes_that_differ_elsewhere_are_told_apart(tmp_path):
    groups, _ = measured_groups([training(tmp_path, "0", 0), training(tmp_path, "1", 0, beta=0.1)])
    assert list(groups) == ["lr 0.0001 (1)", "lr 0.0001 (2)"]


def test_having_a_sampling_seed_matters_and_its_value_does_not(tmp_path):
    kwargs = [{"generation_kwargs": {"seed": 1}}, {"generation_kwargs": {"seed": 2}}, {"generation_kwargs": {}}]
    kinds = [{"generation_seed": 1}, {"generation_seed": 2}, {}, *kwargs, {"data_seed": 1}, {"data_seed": 2}]
    runs = [training(tmp_path, str(n), n) for n in range(len(kinds))]
    for run, overrides in zip(runs, kinds, strict=True):
        path = run.path / "recipe.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"overrides": overrides}))
    groups, _ = measured_groups(runs)
    assert [len(curves) for curves in groups.values()] == [2, 1, 2, 1, 2]


def test_labels_keep_runs_apart_that_share_a_recipe(tmp_path):
    runs = [training(tmp_path, str(n), n % 2) for n in range(4)]
    groups, _ = measured_groups(runs, labels=["target=20"] * 2 + ["target=40"] * 2)
    assert {name: len(c) for name, c in groups.items()} == {"target=20, lr 0.0001": 2, "target=40, lr 0.0001": 2}


def test_what_is_left_out_is_said(tmp_path):
    failed = training(tmp_path, "0", 0)
    set_status(failed.path, "failed")
    runs = [failed, write_run(tmp_path, "1"), training(tmp_path, "2", 0, rewards=(1, None))]
    runs.append(training(tmp_path, "3", 0, reward_funcs=[LENGTH]))
    groups, left_out = measured_groups(runs)
    assert groups == {}
    assert [line.rpartition("/")[2].partition(": ")[0] for line in left_out[:2]] == ["0", "1"]
    assert "failed" in left_out[0]
    assert "logged no step" in left_out[1]
    assert "step 2 is not finite" in left_out[2]
    assert "lie outside (-inf, 0]" in left_out[3]


def test_a_rewards_unit_and_bounds_are_as_the_training_recorded(tmp_path):
    run = training(tmp_path, "0", 0, rewards=(-9, -2), reward_funcs=[LENGTH])
    found = run_curve(run)
    assert (found.unit, found.low, found.high) == ("characters from the target of 20", None, 0)
    with pytest.raises(ParameterError, match=r"lie outside \(-inf, 0\]"):
        run_curve(training(tmp_path, "1", 0, reward_funcs=[LENGTH]))


def test_a_weighted_reward_has_no_unit_but_its_function_has_one(tmp_path):
    run = training(tmp_path, "0", 0, rewards=(-9, -2), reward_funcs=[LENGTH])
    log = [row | {"rewards/reward_len/mean": 10 * row["reward"]} for row in rows(-9, -2)]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    record = json.loads((run.path / "recipe.json").read_text())
    for weights, unit in (([0.1], "as logged"), ([1.0], LENGTH["unit"])):
        (run.path / "recipe.json").write_text(json.dumps(record | {"overrides": {"reward_weights": weights}}))
        assert run_curve(run).unit == unit
        assert run_curve(run, "rewards/reward_len/mean").unit == LENGTH["unit"]


def test_several_or_unknown_reward_functions_are_not_compared(tmp_path):
    documented = load_baseline("w3ng-qwen2.5-1.5b-tldr-grpo").curve()
    for name, functions in {"two": [LENGTH, LENGTH], "unknown": [UNKNOWN], "none": []}.items():
        found = run_curve(training(tmp_path, name, 0, reward_funcs=functions))
        assert (found.unit, found.low, found.high) == ("as logged", None, None)
        assert "is in as logged, " in another_seed(documented, [found], tolerance=1).reason


def test_runs_of_other_reward_functions_are_groups_of_their_own(tmp_path):
    other = LENGTH | {"arguments": {"target": 40, "sign": -1}, "unit": "characters from the target of 40"}
    runs = [training(tmp_path, str(n), n, (-2, -1), reward_funcs=[f]) for n, f in enumerate((LENGTH, LENGTH, other))]
    groups, _ = measured_groups(runs)
    assert [[c.unit[-2:] for c in curves] for curves in groups.values()] == [["20", "20"], ["40"]]


def test_the_group_table_has_an_interval_except_for_one_seed(tmp_path):
    runs = [training(tmp_path, str(seed), seed, rewards=range(seed, seed + 30)) for seed in range(5)]
    runs += [training(tmp_path, f"other {seed}", seed, rewards=range(seed, seed + 30)) for seed in range(3)]
    groups, _ = measured_groups(runs, labels=["a"] * 5 + ["b"] * 2 + ["c"])
    table = group_table(groups, np.random.default_rng(0)).set_index(["group"])
    a, b, c = (row for _, row in table.iterrows())
    assert a["low"] < a["result"] < a["high"]
    assert [row["interval"] for row in (a, b, c)] == ["95% bootstrap interval", "95% t interval", "no interval"]
    assert np.isnan(c["low"])
    assert table["n seeds"].tolist() == [5, 2, 1]


def test_the_result_is_of_the_last_20_steps_at_any_logging_rate():
    """One run, logged every step: 0.981; every 10 steps: 0.801."""
    steps = np.arange(1, 501)
    y = 1 / (1 + np.exp(-(steps - 250) / 60))
    groups = {"every step": [Curve("1", steps, y, "share")]}
    groups["every 10"] = [Curve("10", steps[9::10], y.reshape(-1, 10).mean(1), "share")]
    groups["every 50"] = [Curve("50", steps[49::50], y.reshape(-1, 50).mean(1), "share")]
    one, ten, fifty = group_table(groups, np.random.default_rng(0)).to_dict("records")
    assert one["result"] == pytest.approx(ten["result"], abs=1e-6) and (one["points"], ten["points"]) == (20, 2)
    assert fifty["points"] == 1 and fifty["result"] == pytest.approx(y[-50:].mean())


def test_a_seed_that_ended_early_is_out_of_the_result_and_named():
    """Seeds that reach 10, 10 and, at step 20 of 200, 1: the result was 6.5 (-6 to 19), of 3 seeds."""
    whole = [Curve(f"seed {n}", range(1, 201), np.linspace(0, 10, 200) + n / 10, "points") for n in range(2)]
    short = Curve("seed 2", range(1, 21), np.linspace(0, 1, 20), "points")
    (row,) = group_table({"a": [*whole, short]}, np.random.default_rng(0)).to_dict("records")
    assert (row["n seeds"], row["left out"]) == (2, "seed 2 ended at step 20 of 200 and is left out")
    assert row["result"] > 9


def test_trainings_of_seed_folders_without_a_recipe_count_each(tmp_path):
    run = write_run(tmp_path, "0")
    for seed in range(3):
        folder = run.path / f"seed-{seed}"
        folder.mkdir()
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(1, 2)))
    groups, left_out = measured_groups([run])
    assert ([len(curves) for curves in groups.values()], left_out) == ([3], [])


def test_a_copied_run_folder_reads_the_same_elsewhere(tmp_path):
    run = training(tmp_path / "here", "0", 3)
    shutil.copytree(run.path, tmp_path / "there")
    assert run_curve(Run(tmp_path / "there")).y.tolist() == run_curve(run).y.tolist()


def test_a_group_has_the_name_of_its_folder_without_the_seed(tmp_path):
    run = training(tmp_path, "0", 0)
    record = (run.path / "recipe.json").read_text()
    for folder in ("arms/target-200/seed-0", "arms/sign-of-TRL-0.14/seed-1", "stock 0"):
        (run.path / folder).mkdir(parents=True)
        (run.path / folder / "recipe.json").write_text(record)
        (run.path / folder / "metrics.jsonl").write_text(json.dumps(rows(1)[0]) + "\n")
    groups, _ = measured_groups([run])
    assert {name.removesuffix("lr 0.0001") for name in groups} == {"", "sign of TRL 0.14, ", "target 200, ", "stock, "}


def test_a_number_that_is_no_seed_is_part_of_a_name(tmp_path):
    run = training(tmp_path, "0", 42)
    for folder, reward in (("mu-1", 1), ("mu-2", 2)):
        (run.path / folder).mkdir()
        shutil.copy(run.path / "recipe.json", run.path / folder)
        (run.path / folder / "metrics.jsonl").write_text(json.dumps(rows(reward)[0]) + "\n")
    (run.path / "recipe.json").unlink()
    (run.path / "metrics.jsonl").unlink()
    groups, left_out = measured_groups([run])
    assert ([one.y[0] for (one,) in groups.values()], left_out) == ([1, 2], [])


def test_a_damaged_run_hides_no_others(tmp_path):
    runs = [training(tmp_path, str(n), n) for n in range(2)]
    (runs[0].path / "status.json").write_text('{"state": "lost"}')
    groups, left_out = measured_groups(runs)
    assert (len(groups), len(left_out)) == (1, 1) and "lost" in left_out[0]


def test_a_metric_named_as_an_evaluations_hides_no_step(tmp_path):
    lines = [row | {"eval_words": 3.0} for row in rows(0.1, 0.2, 0.3)]
    assert run_curve(write_run(tmp_path, "own", metrics=lines)).y.tolist() == [0.1, 0.2, 0.3]
    lines.insert(2, {"step": 2, "eval_reward": 0.9, "eval_runtime": 1.0})
    assert run_curve(write_run(tmp_path, "both", metrics=lines)).y.tolist() == [0.1, 0.2, 0.3]


def test_lines_of_reused_completions_are_no_gap_a_lost_reward_is(tmp_path):
    made, again = {"reward": 0.5, "completions/mean_length": 7.0}, {"loss": 0.1}
    lines = [{"step": n, **(made if n % 2 else again)} for n in range(1, 7)]
    run = write_run(tmp_path, metrics=lines)
    assert run_curve(run).x.tolist() == run_curve(run, "completions/mean_length").x.tolist() == [1, 3, 5]
    assert run_curve(run, "loss", sparse=True).x.tolist() == [2, 4, 6]
    lines[2] = {"step": 3, "reward": None, "completions/mean_length": 7.0}
    with pytest.raises(RunError, match="reward at step 3 is not finite"):
        run_curve(write_run(tmp_path, "lost", metrics=lines))


def test_a_float32_mean_at_its_bound_lies_within_it(tmp_path):
    bounds = {"lowest": -0.2, "highest": 1.1}
    run = training(tmp_path, "0", 0, rewards=(1.100000023841858, -0.20000000298), reward_funcs=[LENGTH | bounds])
    assert run_curve(run).y.tolist() == [1.1, -0.2]
    with pytest.raises(ParameterError, match="lie outside"):
        run_curve(training(tmp_path, "1", 0, rewards=(1.1001, 0.0), reward_funcs=[LENGTH | bounds]))


def test_lines_of_evaluations_leave_the_curve_whole(tmp_path):
    lines = [{"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2}, {"step": 2, "eval_reward": 0.5, "reward": 0.2}]
    run = write_run(tmp_path, metrics=lines)
    assert run_curve(run).y.tolist() == [0.1, 0.2] and run_curve(run, "eval_reward", sparse=True).y.tolist() == [0.5]


def test_folders_named_by_a_setting_are_no_seeds_of_each_other(tmp_path):
    """`epsilon-0.1` and `epsilon-0.2` were seeds 1 and 2 of a group `epsilon 0`."""
    run = write_run(tmp_path, "0")
    for name in ("epsilon-0.1", "epsilon-0.2", "lr-1e-4", "lr-1e-5", "seed.1", "seed.2"):
        (run.path / name).mkdir()
        (run.path / name / "metrics.jsonl").write_text(json.dumps(rows(1)[0]) + "\n")
    groups, left_out = measured_groups([run])
    assert {name: len(curves) for name, curves in groups.items()} == {
        "epsilon 0.1": 1, "epsilon 0.2": 1, "lr 1e 4": 1, "lr 1e 5": 1, "run": 2,
    }  # fmt: skip
    assert left_out == []
