import os
import subprocess

import pytest

from workbench.batch import slurm_state
from workbench.batch.slurm_state import JobState, read_sacct, read_squeue, verdict
from workbench.errors import RunError
from workbench.runs.run import create_run
from workbench.runs.status import set_status

QUEUED = {"state": "queued", "owner": {"job": "9_1"}, "times": {"queued": 1.0}}
RUNNING = {"state": "running", "owner": {"job": "9_1"}, "times": {"queued": 1.0, "running": 2.0}}


@pytest.mark.parametrize(
    ("status", "job", "change"),
    [
        (QUEUED, JobState("PENDING", "Resources"), None),
        (QUEUED, JobState("RUNNING"), None),
        (RUNNING, JobState("COMPLETING"), None),
        (RUNNING, JobState("PENDING", "BeginTime"), ("queued", "requeued by Slurm (BeginTime)")),
        (RUNNING, JobState("CANCELLED", "", 143), ("interrupted", "Slurm: cancelled")),
        (RUNNING, JobState("OUT_OF_MEMORY"), ("interrupted", "Slurm: out of memory; give more with --mem")),
        (RUNNING, JobState("NODE_FAIL", nodes="n7"), ("interrupted", "Slurm: node lost (n7)")),
        (RUNNING, JobState("TIMEOUT"), ("interrupted", "Slurm: time limit")),
        (RUNNING, JobState("PREEMPTED"), ("interrupted", "Slurm: preempted")),
        (RUNNING, JobState("FAILED", "NonZeroExitCode", 137), ("interrupted", "Slurm: killed by signal 9")),
        (RUNNING, JobState("FAILED", "x", 3), ("interrupted", "Slurm: the job ended as FAILED (exit code 3)")),
        (RUNNING, JobState("COMPLETED"), ("interrupted", "Slurm: the job ended as COMPLETED (exit code 0)")),
        (RUNNING, JobState("FAILED", "JobLaunchFailure", 137), ("interrupted", "Slurm: killed by signal 9")),
        (
            QUEUED,
            JobState("FAILED", "JobLaunchFailure", 181),
            ("interrupted", "Slurm: failed to start (JobLaunchFailure)"),
        ),
        (QUEUED, JobState("FAILED", "x", 1), ("interrupted", "Slurm: failed to start (x, exit code 1)")),
        (RUNNING, None, ("interrupted", "Slurm no longer knows job 9_1")),
    ],
)
def test_every_end_of_a_job_has_its_reason(status, job, change):
    got = verdict(status, job)
    assert got == change or (got[0] == change[0] and got[1].startswith(change[1]))


def test_a_job_that_never_starts_is_reported_while_it_hangs_in_the_queue():
    for reason in ("launch failed requeued held", "DependencyNeverSatisfied"):
        state, error = verdict(QUEUED, JobState("PENDING", reason))
        assert (state, error) == ("interrupted", f"Slurm: failed to start ({reason}); its job 9_1 is held: scancel it")


SACCT = """\
9_0|COMPLETED|0:0|None|n1
9_1|CANCELLED by 1000|0:0|None|n1
9_2|FAILED|9:0|None|n2
10|FAILED|2:0|None|n1
11|FAILED|1:0|None|n1
12|FAILED|0:9|None|n1
13|FAILED|0:53|None|n2
14|NODE_FAIL|0:0|None|n2
15_[0,2-6:2%4]|CANCELLED by 1000|0:0|JobHeldUser|None assigned
slurm_load: error
"""  # of sacct 22.05


def test_the_accounting_database_is_read_where_there_is_one():
    states = read_sacct(SACCT)
    assert states["9_1"] == JobState("CANCELLED", "None", 0, "n1")
    assert {number: job.exit_code for number, job in states.items() if job.state == "FAILED"} == {
        "9_2": 137,  # its step was killed by signal 9
        "10": 130,
        "11": 1,
        "12": 137,  # its script was
        "13": 181,
    }
    assert verdict(QUEUED, states["13"]) == ("interrupted", "Slurm: failed to start (JobLaunchFailure)")
    assert verdict(RUNNING, states["14"]) == ("interrupted", "Slurm: node lost (n2)")
    assert [number for number, job in states.items() if job.reason == "JobHeldUser"] == ["15_0", "15_2", "15_4", "15_6"]


def test_a_job_that_left_slurm_s_memory_is_looked_up_in_accounting(monkeypatch):
    answers = {
        "squeue": subprocess.CompletedProcess([], 1, "", "slurm_load_jobs error: Invalid job id specified"),
        "sacct": subprocess.CompletedProcess([], 0, "9_1|NODE_FAIL|0:0|None|n1\n", ""),
    }
    monkeypatch.setattr(slurm_state, "slurm_command", lambda name, *_: answers[name])
    monkeypatch.setattr(slurm_state.shutil, "which", lambda name: name)
    assert slurm_state.ask_slurm({"9_1"}) == {"9_1": JobState("NODE_FAIL", "None", 0, "n1")}
    answers["sacct"] = subprocess.CompletedProcess([], 1, "", "Slurm accounting storage is disabled")
    assert slurm_state.ask_slurm({"9_1"}) == {}


def test_a_controller_that_does_not_answer_changes_nothing(tmp_path, monkeypatch):
    run = create_run("by_hand", {}, tmp_path)
    before = set_status(run.path, "running", owner={"job": "9_1"})
    answer = subprocess.CompletedProcess([], 1, "", "squeue: error: Unable to contact slurm controller\n")
    monkeypatch.setattr(slurm_state, "slurm_command", lambda *_: answer)
    with pytest.warns(UserWarning, match="Unable to contact slurm controller; runs are shown as last known"):
        slurm_state.refresh([run])
    assert run.status == before


def test_wait_statuses_of_squeue_become_exit_codes():
    line = "{:40}{:40}{:80}{:20}{:200}\n".format
    text = line("9_1", "FAILED", "NonZeroExitCode", "35072", "n1") + line("9_2", "CANCELLED", "None", "15", "n1")
    assert [job.exit_code for job in read_squeue(text).values()] == [137, 143]


def test_a_run_whose_job_is_known_lives_whatever_its_process_id_says(tmp_path, monkeypatch):
    run = create_run("by_hand", {}, tmp_path)
    set_status(run.path, "queued", owner={"job": "12_3", "log": "x.err", "pid": 2**22 + 1, "host": os.uname().nodename})
    assert run.status["state"] == "queued"
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    owner = set_status(run.path, "running")["owner"]  # on the node
    assert (owner["job"], owner["log"], owner["pid"]) == ("12_3", "x.err", os.getpid())
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "4")
    assert "job" not in set_status(run.path, "running")["owner"]  # started again by hand


def test_a_command_that_fails_hangs_or_is_not_there_says_why_and_raises_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    absent = slurm_state.slurm_command("squeue")
    assert absent.returncode
    assert "No such file" in slurm_state.error_summary(absent.stderr)
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "squeue").chmod(0o755)
    assert "timed out" in slurm_state.slurm_command("squeue", timeout=0.2).stderr
    assert slurm_state.error_summary("") == "no reason given"


def test_slurm_that_does_not_answer_is_an_error_with_its_reason(monkeypatch):
    answer = subprocess.CompletedProcess([], 1, "", "squeue: error: Unable to contact slurm controller\n")
    monkeypatch.setattr(slurm_state, "slurm_command", lambda *_: answer)
    with pytest.raises(RunError, match="Slurm does not answer: Unable to contact slurm controller"):
        slurm_state.ask_slurm({"9_1"})


def test_a_run_without_a_job_is_not_asked_about_and_cannot_be_cancelled_on_slurm(tmp_path, monkeypatch):
    run = create_run("by_hand", {}, tmp_path)
    monkeypatch.setattr(slurm_state, "ask_slurm", None)
    slurm_state.refresh([run])
    with pytest.raises(RunError, match="is no Slurm job"):
        slurm_state.cancel_job(run)


def test_a_job_that_slurm_does_not_cancel_is_named_with_the_reason(tmp_path, monkeypatch):
    run = create_run("by_hand", {}, tmp_path)
    set_status(run.path, "running", owner={"job": "9_1"})
    answer = subprocess.CompletedProcess([], 1, "", "scancel: error: Kill job error on job id 9_1: Access denied\n")
    monkeypatch.setattr(slurm_state, "slurm_command", lambda *_: answer)
    with pytest.raises(RunError, match="job 9_1 was not cancelled: Kill job error on job id 9_1: Access denied"):
        slurm_state.cancel_job(run)
