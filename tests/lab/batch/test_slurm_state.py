import errno
import os
import subprocess

import pytest
from conftest import call, write_run

from workbench.errors import RunError
from workbench.lab.batch import slurm_state
from workbench.lab.batch.slurm_state import JobState, read_states, verdict
from workbench.runs.run import create_run, set_status

QUEUED = {"state": "queued", "owner": {"job": "9_1"}, "times": {"queued": 1.0}}
RUNNING = {"state": "running", "owner": {"job": "9_1"}, "times": {"queued": 1.0, "running": 2.0}}
ENDED = QUEUED | {"error": "Slurm ended its job: stopped by Ctrl-C or SIGTERM"}
HELD = "Slurm: failed to start ("


@pytest.mark.parametrize(
    ("status", "job", "change"),
    [
        (QUEUED, JobState("PENDING", "Resources"), None),
        (QUEUED, JobState("RUNNING"), None),
        (RUNNING, JobState("COMPLETING"), None),
        (RUNNING, JobState("PENDING", "BeginTime"), ("queued", "requeued by Slurm (BeginTime)")),
        (
            ENDED,
            JobState("PENDING", "BeginTime"),
            ("queued", "requeued by Slurm (BeginTime), which had ended its job: the node"),
        ),
        (RUNNING, JobState("CANCELLED"), ("interrupted", "Slurm: CANCELLED")),
        (RUNNING, JobState("OUT_OF_MEMORY"), ("interrupted", "Slurm: OUT_OF_MEMORY; give more with --mem")),
        (RUNNING, JobState("NODE_FAIL", "None", "n7"), ("interrupted", "Slurm: NODE_FAIL of n7")),
        (RUNNING, JobState("TIMEOUT", "TimeLimit"), ("interrupted", "Slurm: TIMEOUT (TimeLimit)")),
        (RUNNING, JobState("FAILED", "RaisedSignal:9"), ("interrupted", "Slurm: FAILED (RaisedSignal:9)")),
        (QUEUED, JobState("FAILED", "JobLaunchFailure"), ("interrupted", "Slurm: FAILED (JobLaunchFailure)")),
        (RUNNING, None, ("interrupted", "Slurm no longer knows job 9_1")),
        (
            QUEUED,
            JobState("PENDING", "launch failed requeued held"),
            ("interrupted", f"{HELD}launch failed requeued held)"),
        ),
        (QUEUED, JobState("PENDING", "DependencyNeverSatisfied"), ("interrupted", f"{HELD}DependencyNeverSatisfied)")),
    ],
)
def test_verdict_of_each_state_has_its_reason(status, job, change):
    got = verdict(status, job)
    assert got == change or (got[0] == change[0] and got[1].startswith(change[1]))


def test_answers_of_squeue_and_sacct_are_read():
    text = "9_0|COMPLETED|None|n1\n9_1|CANCELLED by 1000|None|n1\n14|NODE_FAIL|None|n2\nslurm_load: error\n"
    states = read_states(text + "9_2|PENDING|(launch failed requeued held)|\n")
    assert list(states) == ["9_0", "9_1", "14", "9_2"]
    assert states["9_1"] == JobState("CANCELLED", "None", "n1")
    assert states["9_2"] == JobState("PENDING", "(launch failed requeued held)", "")
    assert verdict(RUNNING, states["14"]) == ("interrupted", "Slurm: NODE_FAIL of n2")


def test_forgotten_job_is_looked_up_in_accounting(monkeypatch):
    answers = {
        "squeue": subprocess.CompletedProcess([], 1, "", "slurm_load_jobs error: Invalid job id specified"),
        "sacct": subprocess.CompletedProcess([], 0, "9_1|NODE_FAIL|None|n1\n", ""),
    }
    monkeypatch.setattr(slurm_state, "slurm_command", lambda name, *_: answers[name])
    monkeypatch.setattr(slurm_state.shutil, "which", lambda name: name)
    assert slurm_state.ask_slurm({"9_1"}) == {"9_1": JobState("NODE_FAIL", "None", "n1")}
    answers["sacct"] = subprocess.CompletedProcess([], 1, "", "Slurm accounting storage is disabled")
    assert slurm_state.ask_slurm({"9_1"}) == {}


def test_silent_controller_changes_nothing_and_says_why(tmp_path, monkeypatch):
    run = create_run("by_hand", {}, tmp_path)
    before = set_status(run.path, "running", owner={"job": "9_1"})
    answer = subprocess.CompletedProcess([], 1, "", "squeue: error: Unable to contact slurm controller\n")
    monkeypatch.setattr(slurm_state, "slurm_command", lambda *_: answer)
    with pytest.raises(RunError, match="Slurm does not answer: Unable to contact slurm controller"):
        slurm_state.ask_slurm({"9_1"})
    with pytest.warns(UserWarning, match="Unable to contact slurm controller; runs are shown as last known"):
        slurm_state.refresh([run])
    assert run.status == before


def test_what_a_job_writes_while_slurm_answers_stays(tmp_path, monkeypatch):
    run = create_run("by_hand", {}, tmp_path)
    set_status(run.path, "running", owner={"job": "9_1"})

    def answer(jobs):
        set_status(run.path, "done", owner={"job": "9_1"})
        return {"9_1": JobState("FAILED", "NonZeroExitCode")}

    monkeypatch.setattr(slurm_state, "slurm_config", lambda: {"ClusterName": "a"})
    monkeypatch.setattr(slurm_state, "ask_slurm", answer)
    slurm_state.refresh([run])
    assert run.status["state"] == "done"


def test_a_run_submitted_without_a_cluster_name_is_asked_about(tmp_path, monkeypatch):
    run = create_run("by_hand", {}, tmp_path)
    set_status(run.path, "running", owner={"job": "9", "cluster": None})
    monkeypatch.setattr(slurm_state, "slurm_config", lambda: {"ClusterName": "a"})
    monkeypatch.setattr(slurm_state, "ask_slurm", lambda jobs: {"9": JobState("OUT_OF_MEMORY")})
    slurm_state.refresh([run])
    assert run.status["error"].startswith("Slurm: OUT_OF_MEMORY")


def test_run_with_a_known_job_lives_without_its_process(tmp_path, monkeypatch):
    run = create_run("by_hand", {}, tmp_path)
    set_status(run.path, "queued", owner={"job": "12_3", "log": "x.err", "pid": 2**22 + 1, "host": os.uname().nodename})
    assert run.status["state"] == "queued"
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    owner = set_status(run.path, "running")["owner"]  # on the node
    assert (owner["job"], owner["log"], owner["pid"]) == ("12_3", "x.err", os.getpid())
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "4")
    assert "job" not in set_status(run.path, "running")["owner"]  # started again by hand


def test_command_that_fails_says_why_and_raises_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    absent = slurm_state.slurm_command("squeue")
    assert absent.returncode
    assert "No such file" in slurm_state.error_summary(absent.stderr)
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "squeue").chmod(0o755)
    assert "timed out" in slurm_state.slurm_command("squeue", timeout=0.2).stderr
    assert slurm_state.error_summary("") == "no reason given"


@pytest.mark.parametrize(("command", "format"), [("sbatch", ""), ("squeue", "%s")])
def test_command_within_a_job_forgets_that_job(monkeypatch, tmp_path, command, format):
    (tmp_path / command).write_text("#!/bin/sh\necho $SLURM_CONF,$SLURM_JOB_ID,$SLURM_TIME_FORMAT")
    (tmp_path / command).chmod(0o755)
    for name, value in {"PATH": str(tmp_path), "SLURM_CONF": "here", "SLURM_JOB_ID": "9"}.items():
        monkeypatch.setenv(name, value)
    assert slurm_state.slurm_command(command).stdout == f"here,,{format}\n"


def test_run_without_a_job_is_not_asked_about(tmp_path, monkeypatch):
    run = create_run("by_hand", {}, tmp_path)
    monkeypatch.setattr(slurm_state, "ask_slurm", None)
    slurm_state.refresh([run])
    with pytest.raises(RunError, match="is no Slurm job"):
        slurm_state.cancel_job(run)


def test_job_that_cannot_be_cancelled_has_the_reason(tmp_path, monkeypatch):
    run = create_run("by_hand", {}, tmp_path)
    log = tmp_path / ".slurm" / "2026" / "9_1.log"
    set_status(run.path, "running", owner={"job": "9_1", "log": str(log)})
    answers = {
        "scontrol": subprocess.CompletedProcess([], 0, f"JobId=9 StdErr={log} StdIn=/dev/null", ""),
        "scancel": subprocess.CompletedProcess([], 1, "", "scancel: error: Kill job error: Access denied\n"),
    }
    monkeypatch.setattr(slurm_state, "slurm_command", lambda name, *_: answers[name])
    with pytest.raises(RunError, match="job 9_1 was not cancelled: Kill job error: Access denied"):
        slurm_state.cancel_job(run)
    answers["scontrol"] = subprocess.CompletedProcess([], 0, "JobId=9 StdErr=/home/other/9.err StdIn=/dev/null", "")
    with pytest.raises(RunError, match=r"job 9_1 here does not write into .*; it is left alone"):
        slurm_state.cancel_job(run)


def test_job_of_another_cluster_is_shown_as_last_known(monkeypatch, tmp_path):
    run = write_run(tmp_path, notebook="n")
    set_status(run.path, "running", owner={"job": "7", "cluster": "there"})
    monkeypatch.setattr(slurm_state, "slurm_config", lambda: {"ClusterName": "here"})
    monkeypatch.setattr(slurm_state, "ask_slurm", lambda jobs: 1 / 0)
    with pytest.warns(UserWarning, match="is a job of cluster there, this is here; shown as last known"):
        slurm_state.refresh([run])
    assert run.status["state"] == "running"


def test_a_job_s_run_that_cannot_be_written_hides_no_other(tmp_path, monkeypatch, capsys):
    """As in the folder of another user, or on a full disk."""
    runs = [write_run(tmp_path, f"2026-{n}") for n in range(2)]
    for n, run in enumerate(runs):
        set_status(run.path, "running", owner={"job": f"9_{n}"})

    def once_denied(path, *change, **how):
        if path == runs[0].path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return set_status(path, *change, **how)

    monkeypatch.setattr(slurm_state, "set_status", once_denied)
    monkeypatch.setattr(slurm_state, "slurm_config", dict)
    monkeypatch.setattr(slurm_state, "ask_slurm", lambda jobs: dict.fromkeys(jobs, JobState("TIMEOUT")))
    with pytest.warns(UserWarning, match="Permission denied.*2026-0'; runs are shown as last known"):
        _, out, _ = call(capsys, "status", "--runs-dir", tmp_path)
    assert " 2026-0: running" in out and " 2026-1: interrupted: Slurm: TIMEOUT" in out
