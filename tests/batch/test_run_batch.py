import sys
from pathlib import Path

import pytest
from conftest import call, workbench, write_notebook, write_run

from workbench.batch import run_batch, slurm
from workbench.batch.slurm import SlurmOptions
from workbench.batch.sweep import Entry, plan_run, plan_sweep
from workbench.errors import MissingDependencyError, ParameterError, RunError
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


def test_less_than_one_job_at_a_time_and_more_gpus_than_there_are_are_refused(monkeypatch, plan, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    run_batch.check_here(1, 1)
    with pytest.raises(ParameterError, match="jobs=0: expected at least 1"):
        run_batch.check_here(0, None)
    with pytest.raises(ParameterError, match="gpus=2: "):
        run_batch.execute_here(plan, gpus=2)
    assert list_runs(tmp_path / "runs") == []


@pytest.mark.slow
def test_several_notebooks_run_side_by_side_and_the_outcome_of_each_is_shown(tmp_path):
    good = write_notebook(tmp_path / "good.ipynb")
    bad = write_notebook(tmp_path / "bad.ipynb", "print('before'); 1 / 0")
    arguments = [bad, good, "--jobs", "2", "--runs-dir", tmp_path / "runs"]
    plan = workbench("run", *arguments, "--dry-run")
    assert [line for line in plan.stdout.splitlines() if line.startswith("run ")] == ["run    bad", "run    good"]
    assert list_runs(tmp_path / "runs") == []
    process = workbench("run", *arguments)
    assert process.returncode == 1
    assert "bad: failed: cell 4: ZeroDivisionError: division by zero" in process.stderr
    assert "good: done, steps 3" in process.stderr
    assert "1 of 2 runs are done" in process.stdout
    failed = next(r for r in list_runs(tmp_path / "runs") if r.notebook == "bad")
    log = workbench("logs", failed.path).stdout
    assert "before" in log
    assert log.endswith(f"report {failed.path / 'report.html'}\n")
    assert all((run.path / "report.html").is_file() for run in list_runs(tmp_path / "runs"))


# --- a plan ----------------------------------------------------------------------------------------------------------


def test_a_plan_shows_the_folders_that_runs_go_on_in_and_nothing_where_all_is_done(plan, tmp_path):
    runs = [write_run(tmp_path / "runs", f"2026-{n}", notebook="by_hand") for n in range(2)]
    plan[2].action = "skip"
    assert f"folder      {tmp_path}/runs/by_hand/TIME\n" in run_batch.plan_text(plan, None)
    for entry, run in zip(plan, runs, strict=False):
        entry.action, entry.run = "resume", run
    assert f"folder      {tmp_path}/runs/by_hand\n" in run_batch.plan_text(plan, None)
    plan[1].action = "skip"
    assert f"folder      {runs[0].path}\n" in run_batch.plan_text(plan, None)
    plan[0].action = "skip"
    assert run_batch.plan_text(plan, None).count("\n") == 3


@pytest.mark.parametrize(
    ("params", "hint"),
    [
        ({"model": "starter", "dataset": "starter"}, ""),
        ({"model": "Qwen/a", "dataset": "starter"}, "dataset='starter' is still the toy's"),
        ({"model": "Qwen/a", "dataset": "mine.jsonl"}, ""),
        ({"dataset": "starter"}, ""),
    ],
)
def test_a_plan_hints_at_the_data_set_of_a_toy_beside_another_model(plan, params, hint):
    plan[0].params = params
    text = run_batch.plan_text(plan[:1], 2, on_slurm=True)
    assert "GPUs        2 for each run, from Slurm\n" in text
    assert ("\n       hint " in text) == bool(hint)
    assert hint in text


# --- on Slurm: what can be shown and checked without one -------------------------------------------------------------


def test_a_preview_without_a_client_has_the_script_and_says_that_nothing_was_checked(monkeypatch, plan, tmp_path):
    client(tmp_path / "bin", monkeypatch)
    scripts, unchecked = run_batch.preview_on_slurm(plan, SlurmOptions())
    assert "#SBATCH --array=0-2%3" in scripts
    assert unchecked == "--executor slurm: no sbatch and srun on PATH; start it on a Slurm login node"
    with pytest.raises(MissingDependencyError, match="no sbatch and srun on PATH"):
        run_batch.execute_on_slurm(plan, SlurmOptions())
    assert not (tmp_path / "runs").exists()


def test_a_preview_where_slurm_does_not_answer_has_the_script_and_the_reason(monkeypatch, plan, tmp_path):
    client(tmp_path / "bin", monkeypatch, **ANSWERS | {"sinfo": REFUSES})
    scripts, unchecked = run_batch.preview_on_slurm(plan, SlurmOptions())
    assert "#SBATCH --array=0-2%3" in scripts
    assert unchecked == "Slurm does not answer: Unable to contact slurm controller"
    with pytest.raises(RunError, match="Slurm does not answer"):
        run_batch.execute_on_slurm(plan, SlurmOptions())
    assert not (tmp_path / "runs").exists()


def test_a_preview_without_submitit_has_no_script_and_says_so(monkeypatch, plan, tmp_path):
    client(tmp_path / "bin", monkeypatch)
    monkeypatch.setitem(sys.modules, "submitit", None)
    reason = "--executor slurm needs submitit: pip install submitit"
    assert run_batch.preview_on_slurm(plan, SlurmOptions()) == ("", reason)


def test_a_preview_that_slurm_agrees_to_leaves_nothing_unchecked_and_what_it_refuses_is_refused(
    monkeypatch, plan, tmp_path
):
    client(tmp_path / "bin", monkeypatch, **ANSWERS)
    assert run_batch.preview_on_slurm(plan, SlurmOptions())[1] == ""
    with pytest.raises(ParameterError, match="partition='gpu': not on this cluster; there are low"):
        run_batch.preview_on_slurm(plan, SlurmOptions(partition="gpu"))
    client(tmp_path / "refuses", monkeypatch, **ANSWERS | {"sbatch": "echo 'sbatch: error: no' >&2; exit 1"})
    with pytest.raises(ParameterError, match="Slurm refuses such a job: no"):
        run_batch.preview_on_slurm(plan, SlurmOptions())


def test_a_preview_has_an_array_for_each_notebook_and_none_for_what_is_done(plan, tmp_path):
    other = plan_run(str(write_notebook(tmp_path / "other.ipynb")), {}, root=tmp_path / "runs")
    plan[0].action = "skip"
    scripts, _ = run_batch.preview_on_slurm([*plan, other], SlurmOptions())
    assert scripts.count("#!/bin/bash") == 2
    assert scripts.count("--array=") == 1
    assert "--array=0-1%2" in scripts
    assert str(tmp_path / "runs" / ".slurm") in scripts


@pytest.mark.parametrize(
    ("scripts", "line"),
    [
        (None, "not checked: --executor slurm: no sbatch and srun on PATH; start it on a Slurm login node\n"),
        (ANSWERS | {"sinfo": REFUSES}, "not checked: Slurm does not answer: Unable to contact slurm controller\n"),
        (ANSWERS, ""),
    ],
)
def test_a_dry_run_prints_plan_and_script_and_says_what_slurm_was_not_asked(
    monkeypatch, tmp_path, capsys, scripts, line
):
    path = write_notebook(tmp_path / "by_hand.ipynb")
    client(tmp_path / "bin", monkeypatch, **(scripts or {}))
    arguments = ["sweep", path, "-p", "seed=0..1", "--runs-dir", tmp_path / "runs", "--executor", "slurm", "--dry-run"]
    code, out, err = call(capsys, *arguments)
    assert (code, err) == (0, line)
    assert out.startswith("run    seed=0\nrun    seed=1\n       folder ")
    assert "       GPUs        none for each run, from Slurm\n#!/bin/bash\n" in out
    assert "#SBATCH --array=0-1%2" in out
    for wrong in (["--time", "0"], ["--jobs", "0"], ["--sbatch", "nodes=2"]):
        code, out, err = call(capsys, *arguments, *wrong)
        assert (code, out) == (2, "")
        assert "not checked" not in err
    assert not (tmp_path / "runs").exists()


def test_jobs_that_slurm_refuses_leave_failed_runs_with_its_reason(monkeypatch, plan, tmp_path):
    def refuse(*_):
        raise RunError("Slurm refused 3 jobs: no")

    monkeypatch.setattr(slurm, "check_slurm", lambda *_: None)
    monkeypatch.setattr(slurm, "submit", refuse)
    with pytest.raises(RunError, match="refused 3 jobs"):
        run_batch.execute_on_slurm(plan, SlurmOptions())
    statuses = [run.status for run in list_runs(tmp_path / "runs")]
    assert [(s["state"], s["error"]) for s in statuses] == [("failed", "not submitted: Slurm refused 3 jobs: no")] * 3


# --- what came out ---------------------------------------------------------------------------------------------------


def test_only_a_run_that_is_done_and_whose_checks_hold_has_succeeded(tmp_path):
    good = {"headline": None, "checks": {"a": True, "b": "not run: no GPU"}}
    runs = [
        write_run(tmp_path, "1", result=good),
        write_run(tmp_path, "2", result={"headline": None, "checks": {"a": False}}),
        write_run(tmp_path, "3", state="failed", result=good),
        None,
    ]
    assert [run_batch.succeeded(run) for run in runs] == [True, False, False, False]
    entries = [Entry({}, {}, "run", run) for run in runs]
    assert run_batch.tally(entries) == "1 of 4 runs are done and their checks hold"


def test_the_finish_of_a_run_is_its_outcome_and_its_report(tmp_path):
    run = write_run(tmp_path, "1", result={"headline": {"name": "reward", "value": -4.0}, "checks": {}})
    assert run_batch.finish(run) == f"05_grpo_docs_example 1: done, reward -4\nreport {run.path / 'report.html'}"
    assert (run.path / "report.html").is_file()
