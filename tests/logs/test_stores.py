"""One broken run as each tracker stores it: databases, folders, parquet and long tables; the audit names the same cause."""

import json
import sqlite3

import pandas as pd
import pytest
from conftest import ROOT

from workbench.audit.report import audit_run
from workbench.errors import RunError
from workbench.logs.read import read, read_logs

STATE = json.loads((ROOT / "data" / "audit" / "masked_stops" / "trainer_state.json").read_text())
ROWS = [
    {name: value for name, value in row.items() if isinstance(value, int | float)}
    for row in STATE["log_history"]
    if "loss" in row
]
VALUES = [(name, row["step"], value) for row in ROWS for name, value in row.items() if name != "step"]
MASKED = ["mask_truncated_completions=true"]


def trackio(folder, runs=("a",)):
    """The table that Trackio writes."""
    with sqlite3.connect(folder / "project.db") as base:
        base.execute(
            "create table metrics (id integer primary key, timestamp text, run_name text, step integer, metrics text)"
        )
        for run in runs:
            lines = [(run, r["step"], json.dumps({f"train/{k}": v for k, v in r.items() if k != "step"})) for r in ROWS]
            base.executemany("insert into metrics (run_name, step, metrics) values (?, ?, ?)", lines)
    base.close()
    return folder / "project.db"


def mlflow_database(folder):
    """The table that MLflow writes."""
    with sqlite3.connect(folder / "mlflow.db") as base:
        base.execute("create table metrics (key text, value real, timestamp int, run_uuid text, step int, is_nan int)")
        lines = [(name, value, 1, "ab" * 16, step, 0) for name, step, value in VALUES]
        base.executemany("insert into metrics values (?, ?, ?, ?, ?, ?)", lines)
    base.close()
    return folder / "mlflow.db"


def mlflow(folder):
    run = folder / "mlruns" / "0" / ("ab" * 16)
    for name, step, value in VALUES:
        path = run / "metrics" / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"1700000000000 {value} {step}\n")
    (run / "meta.yaml").write_text("run_id: abab\n")
    return folder / "mlruns"


def parquet(folder):
    pd.DataFrame(ROWS).to_parquet(folder / "metrics.parquet")
    return folder


def long_csv(folder):
    table = pd.DataFrame(VALUES, columns=["metricName", "step", "value"]).assign(experiment="run-1", timestamp=1)
    table.to_csv(folder / "export.csv", index=False)
    return folder / "export.csv"


def long_json(folder):
    rows = [{"metricName": f"train/{k}", "metricValue": str(v), "step": s, "epoch": None} for k, s, v in VALUES]
    (folder / "metrics.json").write_text(json.dumps(rows))
    return folder / "metrics.json"


@pytest.mark.parametrize("store", [trackio, long_csv, long_json], ids=lambda store: store.__name__)
def test_nan_in_a_store_is_said(store, tmp_path, monkeypatch):
    lost = float("nan") if store is not trackio else "NaN"  # Trackio writes strict JSON
    monkeypatch.setattr(f"{__name__}.ROWS", [row | {"loss": lost, "grad_norm": lost} for row in ROWS])
    monkeypatch.setattr(f"{__name__}.VALUES", [(k, s, lost if k in ("loss", "grad_norm") else v) for k, s, v in VALUES])
    assert audit_run(store(tmp_path)).runs[0].findings[0].title == "log-damage (not-finite)"


@pytest.mark.parametrize("counted", [True, False], ids=["summary at the last step", "without a step"])
def test_mlflow_loses_no_step(counted, tmp_path):
    run = tmp_path / "mlruns" / "0" / "abab"
    (run / "metrics").mkdir(parents=True)
    (run / "meta.yaml").write_text("run_id: abab\n")
    for name in ("loss", "reward"):
        lines = [f"{1700000000000 + n} 0.{n} {n if counted else 0}\n" for n in range(1, 10)]
        (run / "metrics" / name).write_text("".join(lines))
    if counted:
        (run / "metrics" / "train_runtime").write_text("1700000000100 12.5 9\n")
    assert read(tmp_path / "mlruns").metric("reward").tolist() == [n / 10 for n in range(1, 10)]


STORES = [trackio, mlflow_database, mlflow, parquet, long_csv, long_json]


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.__name__)
def test_a_run_in_a_store_is_read_as_from_its_own_log(store, tmp_path):
    here, plain = read(store(tmp_path)), read(ROOT / "data" / "audit" / "masked_stops" / "trainer_state.json")
    assert list(here.steps["step"]) == list(plain.steps["step"])
    for name in ("reward", "grad_norm", "clipped_ratio", "mean_length"):
        assert list(here.steps[name]) == pytest.approx(list(plain.steps[name])), name


@pytest.mark.parametrize("store", [trackio, mlflow], ids=lambda store: store.__name__)
def test_the_cause_is_found_in_a_store(store, tmp_path):
    assert audit_run(store(tmp_path), settings=MASKED).problems[0] == "masked-stops"


def test_runs_of_one_database_are_apart(tmp_path):
    assert [log.name.rpartition(": ")[2] for log in read_logs(trackio(tmp_path, ("a", "b")))] == ["run a", "run b"]


MADE = ROOT / "tests" / "logs" / "stores"  # by each tracker itself, see make.py there
JOURNALS = [MADE / "run-stopped.wandb", MADE / "run-stopped.swanlab"]


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.suffix)
def test_a_file_that_a_tracker_has_not_sent_is_read(path):
    here = read(path).steps
    assert list(here["step"]) == list(range(1, 21))
    for name, of_state in (
        ("reward", "reward"),
        ("grad_norm", "grad_norm"),
        ("mean_length", "completions/mean_length"),
    ):
        assert list(here[name]) == pytest.approx([row[of_state] for row in ROWS[:20]]), name


def test_settings_and_odd_values_of_a_wandb_run_are_read():
    log = read(JOURNALS[0])
    named = ("num_generations", "max_completion_length", "mask_truncated_completions", "settings_from")
    assert [log.facts[name] for name in named] == [8, 8, True, "W&B's config"]
    assert log.raw("critic/odd").isna().all() and len(log.raw("critic/odd")) == 20
    assert list(log.raw("nested.depth")) == list(range(1, 21))
    assert log.damage == ("critic/odd is no finite number in any step",)


def test_the_folder_of_a_tracker_is_one_run_with_its_settings(tmp_path):
    folder = tmp_path / "wandb" / "offline-run-1"
    (folder / "files").mkdir(parents=True)
    (folder / "run-1.wandb").write_bytes(JOURNALS[0].read_bytes())
    (folder / "files" / "output.log").write_text(
        "\n".join(f"{{'loss': 0.1, 'reward': {n}, 'epoch': 1}}" for n in range(9))
    )
    other = tmp_path / "swanlog" / "run-2"
    (other / "files").mkdir(parents=True)
    (other / "run-2.swanlab").write_bytes(JOURNALS[1].read_bytes())
    (other / "files" / "config.yaml").write_text("mask_truncated_completions:\n  desc: ''\n  sort: 0\n  value: true\n")
    report = audit_run(tmp_path)
    assert [(run.run.removeprefix(f"{tmp_path}/"), run.kind) for run in report.runs] == [
        ("swanlog/run-2", "SwanLab"),
        ("wandb/offline-run-1", "W&B"),
    ]
    assert [run.problems[0] for run in report.runs] == ["masked-stops", "masked-stops"]


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.suffix)
def test_a_file_that_a_kill_cut_short_is_read_up_to_there(path, tmp_path):
    whole = path.read_bytes()
    for size in (len(whole) // 2, len(whole) * 3 // 4):
        (tmp_path / path.name).write_bytes(whole[:size])
        log = read(tmp_path / path.name)
        assert 5 < len(log.steps) < 20
        assert not [sentence for sentence in log.damage if "damaged" in sentence]


def test_a_damaged_block_is_left_out_and_named(tmp_path):
    data = bytearray(JOURNALS[0].read_bytes())
    data[5000] ^= 255
    (tmp_path / "run.wandb").write_bytes(data)
    log = read(tmp_path / "run.wandb")
    assert 5 < len(log.steps) < 20
    assert any("1 block of 32 KB is damaged" in sentence for sentence in log.damage)


def test_a_tracker_without_numbers_says_the_way_out(tmp_path):
    start = JOURNALS[1].read_bytes()
    for name, data, says in (
        ("old.swanlab", start[:6] + b"\1" + start[7:], "version 1 of SwanLab's file; expected 2"),
        ("empty.swanlab", start[:7], "no number"),
        ("cut.swanlab", b":SWL", "version none"),
        ("none.wandb", b"a text", "wandb sync"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(RunError, match=says):
            read(tmp_path / name)


def test_what_is_no_log_says_the_way_out(tmp_path):
    with sqlite3.connect(tmp_path / "other.db") as base:
        base.execute("create table users (name text)")
    base.close()
    pd.DataFrame({"prompt": ["p"], "completion": ["c"]}).to_parquet(tmp_path / "completions.parquet")
    (tmp_path / "run-1.wandb").write_bytes(b":W&B\x00")
    for name, says in (("other.db", "none of Trackio"), ("completions.parquet", "only"), ("run-1.wandb", "wandb sync")):
        with pytest.raises(RunError, match=says):
            read_logs(tmp_path / name)


def test_trackios_own_count_of_lines_is_no_step(tmp_path):
    """transformers gives Trackio the step among the metrics alone."""
    with sqlite3.connect(tmp_path / "project.db") as base:
        base.execute(
            "create table metrics (id integer primary key, timestamp text, run_name text, step integer, metrics text)"
        )
        for line in range(5):
            row = json.dumps({"train/reward": 0.1 * line, "train/global_step": 10 * (line + 1)})
            base.execute("insert into metrics (run_name, step, metrics) values ('a', ?, ?)", (line, row))
    log = read(tmp_path / "project.db")
    assert log.steps["step"].tolist() == [10, 20, 30, 40, 50] and not log.each_step
