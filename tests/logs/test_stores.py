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


def test_what_is_no_log_says_the_way_out(tmp_path):
    with sqlite3.connect(tmp_path / "other.db") as base:
        base.execute("create table users (name text)")
    base.close()
    pd.DataFrame({"prompt": ["p"], "completion": ["c"]}).to_parquet(tmp_path / "completions.parquet")
    (tmp_path / "run-1.wandb").write_bytes(b":W&B\x00")
    for name, says in (("other.db", "none of Trackio"), ("completions.parquet", "only"), ("run-1.wandb", "wandb sync")):
        with pytest.raises(RunError, match=says):
            read_logs(tmp_path / name)
