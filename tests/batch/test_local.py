import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, until, workbench, write_notebook

from workbench.runs.run import list_runs

pytestmark = pytest.mark.slow

WHEN = """\
import json, os, time
began = time.time()
time.sleep(0.7)
held = {"gpu": os.environ.get("CUDA_VISIBLE_DEVICES"), "began": began, "ended": time.time()}
(run.path / "when.json").write_text(json.dumps(held))"""


def gpus_held(root) -> list[dict]:
    return [json.loads((run.path / "when.json").read_text()) for run in list_runs(root)]


def overlap(a: dict, b: dict) -> bool:
    return a["began"] < b["ended"] and b["began"] < a["ended"]


def test_runs_of_a_batch_are_handed_gpus_and_no_two_ever_share_one(tmp_path):
    path = write_notebook(tmp_path / "hand_made.ipynb", WHEN)
    environment = {"CUDA_VISIBLE_DEVICES": "7,8", "WORKBENCH_CACHE": str(tmp_path)}
    arguments = ["sweep", path, "-p", "seed=0..5", "--jobs", "3", "--runs-dir", tmp_path / "runs"]
    process = workbench(*arguments, env=environment)
    assert process.returncode == 0, process.stderr
    runs = gpus_held(tmp_path / "runs")
    assert len(runs) == 6
    assert {r["gpu"] for r in runs} <= {"7", "8"}
    pairs = [(a, b) for n, a in enumerate(runs) for b in runs[n + 1 :] if a["gpu"] == b["gpu"]]
    assert not any(overlap(a, b) for a, b in pairs)


def test_two_gpus_for_each_run_are_handed_out_together_and_three_are_refused(tmp_path):
    path = write_notebook(tmp_path / "hand_made.ipynb", WHEN)
    environment = {"CUDA_VISIBLE_DEVICES": "7,8", "WORKBENCH_CACHE": str(tmp_path)}
    arguments = ["sweep", path, "-p", "seed=0..1", "--jobs", "2", "--runs-dir", tmp_path / "runs", "--gpus"]
    refused = workbench(*arguments, "3", env=environment)
    assert refused.returncode == 2
    assert "gpus=3: 3 asked for each run, visible here: 2 (7, 8)" in refused.stderr
    assert list_runs(tmp_path / "runs") == []
    assert workbench(*arguments, "2", env=environment).returncode == 0
    first, second = gpus_held(tmp_path / "runs")
    assert first["gpu"] == second["gpu"] == "7,8"
    assert not overlap(first, second)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind_by_failures_ctrl_c_or_a_kill(tmp_path, how):
    """No kernel, no listening port, no temporary file: of a failed run, a finished one, and one that was cut."""
    scratch = tmp_path / ("a temporary folder with a path too long for a socket " * 2).strip()
    scratch.mkdir()
    cell = "import time\nassert seed, 'seed 0 fails'\nif seed > 1:\n    (run.path / 'started').touch(); time.sleep(600)"
    path = write_notebook(tmp_path / "hand_made.ipynb", cell)
    command = [sys.executable, "-m", "workbench", "sweep", str(path), "-p", "seed=0..3", "--jobs", "2"]
    command += ["--runs-dir", str(tmp_path / "runs")]
    runtime = {"TMPDIR": str(scratch), "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    runner = subprocess.Popen(command, cwd=ROOT, env=os.environ | runtime, stderr=subprocess.DEVNULL)
    until(lambda: len(list((tmp_path / "runs").glob("*/*/started"))) == 2)
    below = psutil.Process(runner.pid).children(recursive=True)
    assert any("ipykernel" in " ".join(p.cmdline()) for p in below)
    runner.send_signal(how)
    if how is signal.SIGKILL:  # the sweep cannot end its runs; each is ended by `workbench cancel`
        runner.wait(60)
        going = [r.id for r in list_runs(tmp_path / "runs") if r.status["state"] == "running"]
        assert len(going) == 2
        for run in list_runs(tmp_path / "runs"):
            if run.status["state"] == "running":
                assert workbench("cancel", run.path).returncode == 0
    else:
        assert runner.wait(60) == 130
    assert psutil.wait_procs(below, timeout=30)[1] == []
    states = {r.params["seed"]: r.status["state"] for r in list_runs(tmp_path / "runs")}
    assert states == {0: "failed", 1: "done", 2: "interrupted", 3: "interrupted"}
    left = [p for folder in (scratch, tmp_path / "runtime") for p in folder.rglob("*") if p.is_file()]
    assert left == []
    assert not Path(tempfile.gettempdir(), "executing.ipynb").exists()
