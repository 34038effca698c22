import json
import shutil
import struct

import numpy as np
import pytest
from conftest import ROOT, write_run

from workbench.curves.baselines import (
    import_csv,
    import_metrics,
    import_tensorboard,
    import_trainer_state,
    list_baselines,
    load_baseline,
)
from workbench.curves.measured import measured_groups, run_curve
from workbench.curves.stats import share_at
from workbench.errors import ParameterError, RunError
from workbench.runs.run import Run
from workbench.runs.status import set_status

FOLDER = ROOT / "data" / "baselines"
EVENTS = ROOT / "tests" / "data" / "logs" / "events.out.tfevents"  # written by TensorBoard 2.20 itself
each_baseline = pytest.mark.parametrize("name", sorted(p.stem for p in FOLDER.glob("*.json")))


# --- documented ------------------------------------------------------------------------------------------------------


def test_every_documented_run_is_there():
    assert len(list_baselines()) >= 14
    assert set(list_baselines()) == {p.stem for p in FOLDER.glob("*.json")}


@each_baseline
def test_a_baseline_says_where_it_is_from_and_what_is_not_known(name):
    baseline = load_baseline(name)
    assert baseline.source
    assert baseline.unknown
    assert baseline.reward.keys() == {"name", "unit", "low", "high"}
    assert baseline.curves or baseline.figures
    assert all(f["from"] in ("published", "full log") and f["what"] for f in baseline.figures.values())


@each_baseline
def test_its_curves_are_short_in_order_and_inside_their_range(name):
    baseline = load_baseline(name)
    for metric in baseline.curves:
        curve = baseline.curve(metric)  # order and range are checked there
        assert 1 <= len(curve.x) <= 60
        assert np.isfinite(curve.y).all()
    if "reward" in baseline.curves:
        assert baseline.curve().unit == baseline.reward["unit"]


def test_the_known_figures_come_out():
    qwen3b, qwen4b = load_baseline("unsloth-qwen2.5-3b-gsm8k-grpo"), load_baseline("unsloth-qwen3-4b-math-grpo")
    assert qwen3b.figure("share_at_cap_first_125") == pytest.approx(0.57, abs=0.005)
    assert qwen4b.figure("first_20_steps") == pytest.approx(-2.8, abs=0.05)
    assert qwen4b.figure("last_20_steps") == pytest.approx(-3.4, abs=0.05)
    assert qwen4b.figure("change_low") < 0 < qwen4b.figure("change_high")
    late = load_baseline("verl-qwen2.5-0.5b-gsm8k-ppo-0.567").curve("eval_accuracy")
    late = late.y[late.x >= 199]
    assert (len(late), late.min(), late.max()) == (24, 0.538, 0.579)


def test_thinning_a_curve_would_have_lost_the_share_at_the_cap():
    qwen3b = load_baseline("unsloth-qwen2.5-3b-gsm8k-grpo")
    assert share_at(qwen3b.curve("completion_length").y, 200) < qwen3b.figure("share_at_cap") - 0.2


def test_an_unknown_name_gets_the_nearest_spelling():
    with pytest.raises(ParameterError, match=r"'unsloth-qwen3-4b-maths': did you mean 'unsloth-qwen3-4b-math-grpo'\?"):
        load_baseline("unsloth-qwen3-4b-maths")
    with pytest.raises(ParameterError, match=r"did you mean 'reward_std'\? there are reward, reward_std"):
        load_baseline("unsloth-qwen3-4b-math-grpo").curve("reward_sd")
    with pytest.raises(ParameterError, match="'peak': did you mean 'peak_step'"):
        load_baseline("trl-3406-qwen2-0.5b-tldr-grpo").figure("peak")
    with pytest.raises(ParameterError, match="has no curve 'reward': there are none"):
        load_baseline("trl-docs-qwen2-0.5b-tldr-grpo").curve()


def test_a_user_adds_a_baseline_by_dropping_a_file_in(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_BASELINES", str(tmp_path))
    mine = json.loads((FOLDER / "w3ng-qwen2.5-1.5b-tldr-grpo.json").read_text())
    (tmp_path / "mine.json").write_text(json.dumps(mine | {"name": "mine", "title": "Mine"}))
    assert {"mine", "w3ng-qwen2.5-1.5b-tldr-grpo"} <= set(list_baselines())
    assert load_baseline("mine").curve().y[0] == -368.4


@pytest.mark.parametrize(
    "change, message",
    [({"colour": 1}, r"does not know \['colour'\]"), ({"name": "other"}, "its name is 'other'"),
     ({"curves": {"reward": {"points": []}}}, r"curve 'reward' lacks \['high', 'low', 'unit', 'x'\]")]
)  # fmt: skip
def test_an_odd_file_is_refused_with_what_is_odd(tmp_path, monkeypatch, change, message):
    monkeypatch.setenv("WORKBENCH_BASELINES", str(tmp_path))
    mine = json.loads((FOLDER / "w3ng-qwen2.5-1.5b-tldr-grpo.json").read_text()) | {"name": "mine"}
    (tmp_path / "mine.json").write_text(json.dumps(mine | change))
    with pytest.raises(ParameterError, match=message):
        load_baseline("mine")


def test_a_damaged_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_BASELINES", str(tmp_path))
    (tmp_path / "mine.json").write_text('{"name": ')
    with pytest.raises(RunError, match="not JSON"):
        load_baseline("mine")


# --- measured --------------------------------------------------------------------------------------------------------

RECIPE = {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 2, "num_generations": 8}


def rows(*rewards, start=1):
    return [{"step": n, "elapsed_s": n / 2, "reward": r} for n, r in enumerate(rewards, start)]


def test_a_curve_can_be_over_steps_seconds_or_prompts(tmp_path):
    run = write_run(tmp_path, metrics=rows(-3, -2, -1))
    (run.path / "recipe.json").write_text(json.dumps(RECIPE))
    assert run_curve(run).x.tolist() == [1, 2, 3]
    assert run_curve(run, axis="elapsed_s").x.tolist() == [0.5, 1, 1.5]
    assert run_curve(run, axis="prompts").x.tolist() == [8, 16, 24]


def test_units_of_trl_s_own_metrics_are_known_and_rewards_have_to_be_told(tmp_path):
    run = write_run(tmp_path, metrics=[{"step": 1, "reward": -1, "completions/mean_length": 9}])
    assert run_curve(run, "completions/mean_length").unit == "tokens"
    assert run_curve(run).unit == "as logged"
    assert run_curve(run, unit="characters", high=0).range == "(-inf, 0]"
    with pytest.raises(ParameterError, match=r"values from -1 to -1 lie outside \[0, 1\]"):
        run_curve(run, unit="share", low=0, high=1)


def test_a_run_without_metrics_is_refused(tmp_path):
    with pytest.raises(RunError, match="no metrics; the run logged no step"):
        run_curve(write_run(tmp_path))
    with pytest.raises(RunError, match=r"no reward; it has step, loss"):
        run_curve(write_run(tmp_path, "b", metrics=[{"step": 1, "loss": 0.1}]))
    with pytest.raises(RunError, match=r"recipe.json lacks .*use axis='step'"):
        run_curve(write_run(tmp_path, "c", metrics=rows(1)), axis="prompts")


def test_steps_out_of_order_and_values_that_are_not_finite_are_refused_with_their_step(tmp_path):
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


def training(root, name, seed, rewards=(1, 2), inside="", **recipe):
    run = write_run(root, name, params={"seed": seed})
    folder = run.path / inside
    folder.mkdir(exist_ok=True)
    (folder / "recipe.json").write_text(json.dumps(RECIPE | {"seed": seed, "learning_rate": 1e-4} | recipe))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(*rewards)))
    return run


def test_groups_are_the_seeds_of_one_recipe_and_a_repeated_seed_counts_once(tmp_path):
    runs = [training(tmp_path, str(n), seed) for n, seed in enumerate((0, 1, 1))]
    runs += [training(tmp_path, "3", 0, learning_rate=3e-4), training(tmp_path, "4", 0, inside="stock 0")]
    groups, left_out = measured_groups(runs)
    assert {name: len(curves) for name, curves in groups.items()} == {
        "lr 0.0001": 2,
        "lr 0.0003": 1,
        "stock, lr 0.0001": 1,
    }
    assert left_out == []


def test_recipes_that_differ_elsewhere_are_told_apart(tmp_path):
    groups, _ = measured_groups([training(tmp_path, "0", 0), training(tmp_path, "1", 0, beta=0.1)])
    assert list(groups) == ["lr 0.0001 (1)", "lr 0.0001 (2)"]


def test_labels_keep_runs_apart_that_share_a_recipe(tmp_path):
    runs = [training(tmp_path, str(n), n % 2) for n in range(4)]
    groups, _ = measured_groups(runs, labels=["target=20"] * 2 + ["target=40"] * 2)
    assert {name: len(c) for name, c in groups.items()} == {"target=20, lr 0.0001": 2, "target=40, lr 0.0001": 2}


def test_what_is_left_out_is_said(tmp_path):
    failed = training(tmp_path, "0", 0)
    set_status(failed.path, "failed")
    runs = [failed, write_run(tmp_path, "1"), training(tmp_path, "2", 0, rewards=(1, None)), training(tmp_path, "3", 0)]
    groups, left_out = measured_groups(runs, unit="characters", high=0)
    assert groups == {}
    assert [line.rpartition("/")[2].partition(": ")[0] for line in left_out[:2]] == ["0", "1"]
    assert "failed" in left_out[0]
    assert "logged no step" in left_out[1]
    assert "step 2 is not finite" in left_out[2]
    assert "lie outside (-inf, 0]" in left_out[3]


# --- imports ---------------------------------------------------------------------------------------------------------


def test_metrics_and_csv_come_as_tables_with_a_step(tmp_path):
    run = write_run(tmp_path, metrics=rows(1, 2))
    assert import_metrics(run.path / "metrics.jsonl")["reward"].tolist() == [1, 2]
    (tmp_path / "log.csv").write_text("iteration,reward\n1,0.5\n2,0.7\n")
    assert import_csv(tmp_path / "log.csv", step="iteration")["step"].tolist() == [1, 2]
    with pytest.raises(RunError, match="no column 'step'; it has iteration, reward"):
        import_csv(tmp_path / "log.csv")
    with pytest.raises(RunError, match="no such file"):
        import_csv(tmp_path / "none.csv")


def test_a_trainer_state_gives_a_row_a_step_without_the_closing_summary(tmp_path):
    path = tmp_path / "trainer_state.json"
    history = [{"step": 1, "reward": 1.0}, {"step": 2, "reward": 2.0}, {"step": 2, "eval_loss": 0.5},
               {"step": 2, "train_runtime": 9.0}]  # fmt: skip
    path.write_text(json.dumps({"log_history": history}))
    table = import_trainer_state(path)
    assert table["step"].tolist() == [1, 2]
    assert table["eval_loss"].tolist()[1] == 0.5
    assert "train_runtime" not in table
    path.write_text("{}")
    with pytest.raises(RunError, match="no log_history"):
        import_trainer_state(path)


def test_a_file_that_tensorboard_wrote_is_read():
    table = import_tensorboard(EVENTS)
    assert table["step"].tolist() == [1, 2, 3, 4, 5]
    assert table["train/reward"].tolist() == [-22.5, -20, -17.5, -15, -12.5]
    assert table["train/completions/mean_length"].tolist() == [14.5, 15.5, 16.5, 17.5, 18.5]
    assert table["new style"].dropna().tolist() == [0.25]  # TensorFlow 2 writes tensors of one number
    assert np.diff(table["elapsed_s"]) == pytest.approx(0.5, abs=0.01)


def record(payload: bytes) -> bytes:
    return struct.pack("<Q", len(payload)) + b"crc." + payload + b"crc."


def event(step: int, tag: bytes, value: float) -> bytes:
    """An event with a step above 127, so that its varint takes two bytes."""
    item = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(item)]) + item
    number = bytes([step & 127 | 128, step >> 7])
    return b"\x09" + struct.pack("<d", 100.0 + step) + b"\x10" + number + b"\x2a" + bytes([len(summary)]) + summary


def test_a_hand_written_event_file_is_read_and_a_cut_record_left_out(tmp_path):
    path = tmp_path / "events"
    whole = record(event(200, b"reward", -1.5)) + record(event(300, b"reward", -1.25))
    path.write_bytes(whole)
    assert import_tensorboard(path)["step"].tolist() == [200, 300]
    path.write_bytes(whole[:-9])
    table = import_tensorboard(path)
    assert (table["step"].tolist(), table["reward"].tolist()) == ([200], [-1.5])


@pytest.mark.parametrize("content", [b"", b"step,reward\n1,2\n" * 10, b"\x00" * 64, record(b"\xff\xff\xff")])
def test_what_is_no_event_file_is_refused(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(RunError, match=r"not a TensorBoard event file|no scalars"):
        import_tensorboard(tmp_path / "x")


def test_a_copied_run_folder_reads_the_same_elsewhere(tmp_path):
    run = training(tmp_path / "here", "0", 3)
    shutil.copytree(run.path, tmp_path / "there")
    assert run_curve(Run(tmp_path / "there")).y.tolist() == run_curve(run).y.tolist()
