import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, call, daily, until, workbench, write_notebook, write_run

from workbench.errors import MissingDependencyError, ParameterError, RunError
from workbench.lab.batch import run as batch
from workbench.lab.batch import slurm
from workbench.lab.batch.plan import Entry, plan_run, plan_sweep, plan_text
from workbench.lab.batch.slurm import SlurmOptions
from workbench.lab.reports.sweep import build_sweep_report
from workbench.runs.run import list_runs


@pytest.fixture
def plan(tmp_path):
    """Three runs of a notebook; no folder is made yet."""
    path = write_notebook(tmp_path / "by_hand.ipynb")
    return plan_sweep(str(path), {"seed": "0..2"}, tmp_path / "runs")


def client(folder: Path, monkeypatch, **scripts: str) -> None:
    """Leaves these commands alone on PATH, each a shell script."""
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


REFUSES = "echo 'sinfo: error: Unable to contact slurm controller' >&2; exit 1"
ANSWERS = {"srun": "", "sinfo": "echo 'low*'", "sbatch": ""}


# --- on this machine -------------------------------------------------------------------------------------------------


def test_less_than_one_job_and_more_gpus_than_exist_are_refused(monkeypatch, plan, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    batch.check_here(1, 1)
    with pytest.raises(ParameterError, match="jobs=0: expected at least 1"):
        batch.check_here(0, None)
    with pytest.raises(ParameterError, match="gpus=2: "):
        batch.execute_here(plan, gpus=2)
    assert list_runs(tmp_path / "runs") == []


@pytest.mark.slow
def test_notebooks_run_side_by_side_with_ports_of_their_own(here, tmp_path):
    save = 'save_result(run, [Result("it ran", True)], {"port": int(os.environ["MASTER_PORT"]), "cwd": os.getcwd()})'
    good = [write_notebook(tmp_path / f"good{n}.ipynb", "import os", save=save) for n in range(2)]
    bad = write_notebook(tmp_path / "bad.ipynb", "print('before'); 1 / 0")
    arguments = [bad, *good, "--jobs", "3", "--runs-dir", tmp_path / "runs"]
    plan = here("run", *arguments, "--dry-run")
    assert re.findall("^run .*", plan.stdout, re.M) == ["run    bad", "run    good0", "run    good1"]
    assert list_runs(tmp_path / "runs") == []
    process = workbench("run", *arguments)
    assert process.returncode == 1
    assert "bad: failed: cell 3: ZeroDivisionError: division by zero" in process.stderr
    assert "good0: done, port " in process.stderr
    assert "2 of 3 runs are done" in process.stdout
    runs = {run.notebook: run for run in list_runs(tmp_path / "runs")}
    log = here("logs", runs["bad"].path).stdout
    assert "before" in log
    assert log.endswith(
        f"report {runs.pop('bad').path / 'report.html'}\nnothing to audit: the run recorded no training\n"
    )
    numbers = [run.result["numbers"] for run in runs.values()]
    assert numbers[0]["port"] != numbers[1]["port"] and [n["cwd"] for n in numbers] == [str(tmp_path)] * 2
    assert all((run.path / "report.html").is_file() for run in runs.values())


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


@pytest.mark.slow
def test_runs_of_a_batch_get_gpus_and_no_two_ever_share_one(tmp_path):
    path = write_notebook(tmp_path / "hand_made.ipynb", WHEN)
    environment = {"CUDA_VISIBLE_DEVICES": "7,8", "WORKBENCH_CACHE": str(tmp_path)}
    arguments = ["sweep", path, "-p", "seed=0..3", "--jobs", "3", "--runs-dir", tmp_path / "runs"]
    process = workbench(*arguments, env=environment)
    assert process.returncode == 0, process.stderr
    runs = gpus_held(tmp_path / "runs")
    assert len(runs) == 4
    assert {r["gpu"] for r in runs} <= {"7", "8"}
    pairs = [(a, b) for n, a in enumerate(runs) for b in runs[n + 1 :] if a["gpu"] == b["gpu"]]
    assert not any(overlap(a, b) for a, b in pairs)


@pytest.mark.slow
def test_two_gpus_of_a_run_go_together_and_three_are_refused(here, tmp_path, monkeypatch):
    path = write_notebook(tmp_path / "hand_made.ipynb", WHEN)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,8")
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    arguments = ["sweep", path, "-p", "seed=0..1", "--jobs", "2", "--runs-dir", tmp_path / "runs", "--gpus"]
    refused = here(*arguments, "3")
    assert refused.returncode == 2
    assert "gpus=3: each run asks for 3, visible here: 2 (7, 8)" in refused.stderr
    assert list_runs(tmp_path / "runs") == []
    assert workbench(*arguments, "2").returncode == 0
    first, second = gpus_held(tmp_path / "runs")
    assert first["gpu"] == second["gpu"] == "7,8"
    assert not overlap(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("how", daily([signal.SIGINT, signal.SIGKILL], signal.SIGKILL))
def test_nothing_is_left_behind_by_failures_ctrl_c_or_a_kill(here, tmp_path, how):
    """No kernel, no listening port, no temporary file: of a failed run, a finished one, and one that was cut."""
    scratch = Path(tempfile.mkdtemp())  # short: sockets lie in it
    cell = "import time\nassert seed, 'seed 0 fails'\nif seed > 1:\n    (run.path / 'started').touch(); time.sleep(600)"
    path = write_notebook(tmp_path / "hand_made.ipynb", cell)
    command = [sys.executable, "-m", "workbench", "sweep", str(path), "-p", "seed=0..3", "--jobs", "2"]
    command += ["--runs-dir", str(tmp_path / "runs")]
    runtime = {"TMPDIR": str(scratch), "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    runner = subprocess.Popen(command, cwd=ROOT, env=os.environ | runtime)
    until(lambda: len(list((tmp_path / "runs").glob("*/*/started"))) == 2, "two runs that have started")
    below = psutil.Process(runner.pid).children(recursive=True)
    assert any("ipykernel" in " ".join(p.cmdline()) for p in below)
    runner.send_signal(how)
    if how is signal.SIGKILL:  # the sweep cannot end its runs; each is ended by `workbench cancel`
        runner.wait(60)
        going = [r.id for r in list_runs(tmp_path / "runs") if r.status["state"] == "running"]
        assert len(going) == 2
        for run in list_runs(tmp_path / "runs"):
            if run.status["state"] == "running":
                assert here("cancel", run.path).returncode == 0
    else:
        assert runner.wait(60) == 130
    assert psutil.wait_procs(below, timeout=30)[1] == []
    states = {r.params["seed"]: r.status["state"] for r in list_runs(tmp_path / "runs")}
    assert states == {0: "failed", 1: "done", 2: "interrupted", 3: "interrupted"}
    left = [p for folder in (scratch, tmp_path / "runtime") for p in folder.rglob("*") if p.is_file()]
    assert left == []
    assert not Path(tempfile.gettempdir(), "executing.ipynb").exists()


@pytest.mark.slow
def test_a_run_that_cannot_start_is_named_and_the_others_go_on(tmp_path, monkeypatch):
    path = write_notebook(tmp_path / "by_hand.ipynb")
    plan = plan_sweep(str(path), {"seed": "0..2"}, tmp_path / "runs")
    monkeypatch.setattr(plan[1], "prepare", lambda state: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    batch.execute_here(plan)
    assert [entry.state for entry in plan] == ["done", "not started", "done"]
    assert plan[1].problem == "not started: [Errno 30] Read-only file system"
    assert batch.tally(plan).startswith("2 of 3 runs are done, with no failed check and no problem in the audit")


BREAKS = """\
from pathlib import Path
Path("broken.ipynb").write_text('{"cells": [')
Path("edited.ipynb").write_text(Path("edited.ipynb").read_text().replace("VERSION-1", "VERSION-2"))"""


@pytest.mark.slow
def test_notebooks_broken_or_edited_meanwhile_stop_no_other_run(tmp_path):
    """The first run writes into the notebooks of the next two, as an editor does."""
    first = write_notebook(tmp_path / "first.ipynb", BREAKS)
    plan = plan_sweep(str(first), {"seed": "0"}, tmp_path / "runs")
    for name in ("broken", "edited", "last"):
        path = write_notebook(tmp_path / f"{name}.ipynb", "print('VERSION-1')")
        plan += plan_sweep(str(path), {"seed": "0"}, tmp_path / "runs")
    batch.execute_here(plan)
    assert [entry.state for entry in plan] == ["done", "not started", "not started", "done"]
    assert plan[1].problem.startswith(f"not started: {tmp_path / 'broken.ipynb'}: not a notebook of format 4")
    assert "has changed since the run was planned" in plan[2].problem
    page = build_sweep_report("first", {"seed": "0"}, plan, tmp_path / "reports").read_text()
    assert "not a notebook of format 4" in page and "has changed since the run was planned" in page


PLANTED = "import pathlib; pathlib.Path(__file__).with_name('PWNED').touch()"
COMMAND = "from workbench.cli import main\nif __name__ == '__main__':\n    raise SystemExit(main())"  # as pip makes it


@pytest.mark.slow
def test_a_sweep_imports_nothing_from_the_folder_it_starts_in(tmp_path):
    (tmp_path / "here").mkdir()
    for name in ("pandas", "socket", "selectors", "helpers"):
        (tmp_path / "here" / f"{name}.py").write_text(PLANTED)
    path = write_notebook(tmp_path / "there" / "by_hand.ipynb", "import helpers\nassert helpers.value == 7")
    (tmp_path / "there" / "helpers.py").write_text("value = 7")
    (tmp_path / "workbench").write_text(COMMAND)
    command = [sys.executable, tmp_path / "workbench", "sweep", path, "-p", "seed=0", "--runs-dir", tmp_path / "runs"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.run(command, cwd=tmp_path / "here", env=env, capture_output=True, text=True)
    assert "1 of 1 runs are done" in process.stdout, process.stderr
    assert not (tmp_path / "here" / "PWNED").exists()


# --- a plan ----------------------------------------------------------------------------------------------------------


def test_a_plan_shows_the_folders_to_go_on_in_and_none_if_done(plan, tmp_path):
    runs = [write_run(tmp_path / "runs", f"2026-{n}", notebook="by_hand") for n in range(2)]
    plan[2].action = "skip"
    assert f"folder      {tmp_path}/runs/by_hand/TIME\n" in plan_text(plan, None)
    for entry, run in zip(plan, runs, strict=False):
        entry.action, entry.run = "resume", run
    assert f"folder      {tmp_path}/runs/by_hand\n" in plan_text(plan, None)
    plan[1].action = "skip"
    assert f"folder      {runs[0].path}\n" in plan_text(plan, None)
    plan[0].action = "skip"
    assert plan_text(plan, None).count("\n") == 3


@pytest.mark.parametrize(
    ("params", "hint"),
    [
        ({"model": "starter", "dataset": "starter"}, ""),
        ({"model": "Qwen/a", "dataset": "starter"}, "with the toy data, dataset='starter': give your own"),
        ({"model": "Qwen/a", "dataset": "mine.jsonl"}, ""),
        ({"dataset": "starter"}, ""),
    ],
)
def test_a_plan_hints_at_a_toys_data_set_with_another_model(plan, params, hint):
    plan[0].params = params
    text = plan_text(plan[:1], 2, on_slurm=True)
    assert "GPUs        2 for each run, from Slurm\n" in text
    assert ("\n       hint " in text) == bool(hint)
    assert hint in text


# --- on Slurm: what can be shown and checked without one -------------------------------------------------------------


NOBODY = "--executor slurm: no sbatch and srun on PATH; start it on a Slurm login node"
SILENT = "Slurm does not answer: Unable to contact slurm controller"
ABSENT = [({}, MissingDependencyError, NOBODY), (ANSWERS | {"sinfo": REFUSES}, RunError, SILENT)]


@pytest.mark.parametrize(("scripts", "error", "reason"), ABSENT)
def test_without_slurm_a_preview_works_and_a_submission_does_not(monkeypatch, plan, tmp_path, scripts, error, reason):
    client(tmp_path / "bin", monkeypatch, **scripts)
    shown, unchecked = batch.preview_on_slurm(plan, SlurmOptions())
    assert "#SBATCH --array=0-2%3" in shown
    assert unchecked == reason
    with pytest.raises(error, match=reason):
        batch.execute_on_slurm(plan, SlurmOptions())
    assert not (tmp_path / "runs").exists()


def test_a_preview_asks_slurm_and_what_slurm_refuses_is_refused(monkeypatch, plan, tmp_path):
    client(tmp_path / "bin", monkeypatch, **ANSWERS)
    assert batch.preview_on_slurm(plan, SlurmOptions())[1] == ""
    with pytest.raises(ParameterError, match="partition='gpu': not on this cluster; there are low"):
        batch.preview_on_slurm(plan, SlurmOptions(partition="gpu"))
    client(tmp_path / "refuses", monkeypatch, **ANSWERS | {"sbatch": "echo 'sbatch: error: no' >&2; exit 1"})
    with pytest.raises(ParameterError, match="Slurm refuses such a job: no"):
        batch.preview_on_slurm(plan, SlurmOptions())


def test_a_preview_has_an_array_a_notebook_and_none_of_done_runs(plan, tmp_path):
    other = plan_run(str(write_notebook(tmp_path / "other.ipynb")), {}, root=tmp_path / "runs")
    plan[0].action = "skip"
    scripts, _ = batch.preview_on_slurm([*plan, other], SlurmOptions())
    assert scripts.count("#!/bin/bash") == 2
    assert scripts.count("--array=") == 1
    assert "--array=0-1%2" in scripts
    assert str(tmp_path / "runs" / ".slurm") in scripts


@pytest.mark.parametrize(("scripts", "reason"), [*((scripts, reason) for scripts, _, reason in ABSENT), (ANSWERS, "")])
def test_a_dry_run_prints_plan_script_and_what_is_unchecked(monkeypatch, tmp_path, capsys, scripts, reason):
    path = write_notebook(tmp_path / "by_hand.ipynb")
    client(tmp_path / "bin", monkeypatch, **scripts)
    arguments = ["sweep", path, "-p", "seed=0..1", "--runs-dir", tmp_path / "runs", "--executor", "slurm", "--dry-run"]
    code, out, err = call(capsys, *arguments)
    assert (code, err) == (0, reason and f"not checked: {reason}\n")
    assert out.startswith("run    seed=0\nrun    seed=1\n       folder ")
    assert "       GPUs        none for each run, from Slurm\n#!/bin/bash\n" in out
    assert "#SBATCH --array=0-1%2" in out
    for wrong in (["--time", "x"], ["--mem", "much"], ["--jobs", "0"], ["--sbatch", "nodes=2"]):
        code, out, err = call(capsys, *arguments, *wrong)
        assert (code, out) == (2, "")
        assert "not checked" not in err
    assert not (tmp_path / "runs").exists()


def test_jobs_refused_by_slurm_leave_failed_runs_with_its_reason(monkeypatch, plan, tmp_path):
    def refuse(*_):
        raise RunError("Slurm refused 3 jobs: no")

    monkeypatch.setattr(slurm, "check_slurm", lambda *_: None)
    monkeypatch.setattr(slurm, "submit", refuse)
    with pytest.raises(RunError, match="refused 3 jobs"):
        batch.execute_on_slurm(plan, SlurmOptions())
    statuses = [run.status for run in list_runs(tmp_path / "runs")]
    assert [(s["state"], s["error"]) for s in statuses] == [("failed", "not submitted: Slurm refused 3 jobs: no")] * 3


# --- what came out ---------------------------------------------------------------------------------------------------


def test_only_a_done_run_whose_checks_hold_has_succeeded(tmp_path):
    good = {"results": [{"says": "a", "holds": True}, {"says": "b", "why": "not run: no GPU"}]}
    runs = [
        write_run(tmp_path, "1", result=good),
        write_run(tmp_path, "2", result={"results": [{"says": "a", "holds": False}]}),
        write_run(tmp_path, "3", state="failed", result=good),
        None,
    ]
    assert [batch.succeeded(run) for run in runs] == [True, False, False, False]
    entries = [Entry({}, {}, "run", run) for run in runs]
    assert batch.tally(entries).startswith(
        "0 of 4 runs are done, with no failed check and no problem in the audit; audit: 3 not audited"
    )


def test_the_finish_of_a_run_is_its_outcome_and_its_report(tmp_path):
    run = write_run(tmp_path, "1", result={"headline": {"name": "reward", "value": -4.0}})
    assert batch.finish(run) == (
        f"05_grpo_docs_example 1: done, reward -4\nreport {run.path / 'report.html'}\nnot audited"
    )
    assert (run.path / "report.html").is_file()
