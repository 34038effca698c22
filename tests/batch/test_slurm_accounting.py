"""What a real `sacct` says of jobs that the controller has forgotten: a private cluster with its database of jobs."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
import slurm_cluster
from conftest import need, until, write_notebook

from workbench.batch import slurm
from workbench.batch.slurm import SlurmOptions
from workbench.batch.slurm_state import ask_slurm, cancel_job, refresh
from workbench.runs.run import create_run

from .test_slurm import CELLS, WAIT, job, running


@pytest.fixture
def cluster():
    """A running cluster that keeps accounts and forgets a job within half a minute of its end."""
    lacking = slurm_cluster.missing(accounting=True)
    need(not lacking, f"Slurm and its accounting (lacks {', '.join(lacking)}; see .ci/run)")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: sockets lie in it
    with slurm_cluster.cluster(folder, accounting=True):
        yield folder
    shutil.rmtree(folder)


def remembered() -> str:
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i %T"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_one_look_shows_how_jobs_ended_that_the_controller_has_forgotten(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cells = ["pass", WAIT, WAIT]
    path = write_notebook(tmp_path / "by_hand.ipynb", "exec(cells[seed])", setup=CELLS.format(cells=cells))
    runs = [create_run("by_hand", {"seed": n, "steps": 3}, tmp_path / "runs") for n in range(5)]
    slurm.submit(runs[:3], path, SlurmOptions(mem=2, time=5))
    slurm.submit(runs[3:], path, SlurmOptions(mem=2, time=5, extra={"hold": ""}))
    done, cancelled, killed, *never_ran = runs
    for run in (cancelled, killed):
        running(run)
    until(lambda: done.status["state"] == "done", "the first run")
    cancel_job(cancelled)
    subprocess.run(["scancel", job(never_ran[0]).partition("_")[0]], check=True)  # one record for both
    os.kill(killed.status["owner"]["pid"], signal.SIGKILL)
    until(lambda: not remembered(), "the controller to forget all jobs")
    jobs = {job(run) for run in runs}
    until(lambda: not {"PENDING", "RUNNING"} & {answer.state for answer in ask_slurm(jobs).values()}, "the last record")
    states = ask_slurm(jobs)
    assert [(states[job(run)].state, states[job(run)].exit_code) for run in runs] == [
        ("COMPLETED", 0),
        ("CANCELLED", 0),
        ("FAILED", 137),
        ("CANCELLED", 0),
        ("CANCELLED", 0),
    ]
    refresh(runs)
    assert [(run.status["state"], run.status["error"]) for run in runs] == [
        ("done", None),
        ("interrupted", "Slurm: cancelled"),
        ("interrupted", "Slurm: killed by signal 9"),
        ("interrupted", "Slurm: cancelled"),
        ("interrupted", "Slurm: cancelled"),
    ]
