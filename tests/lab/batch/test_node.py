import errno
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import until, write_run

from workbench.lab.batch import node
from workbench.lab.batch.node import Notice, run_on_node, why_ended
from workbench.runs.run import set_status
from workbench.runs.stop_request import request_stop, stop_request


@pytest.fixture
def job_9(monkeypatch):
    """This process as the Slurm job 9, with its signal handlers put back afterwards."""
    numbers = (signal.SIGINT, *node.NOTICES)
    before = [signal.getsignal(number) for number in numbers]
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


# --- before the notebook starts --------------------------------------------------------------------------------------


def test_a_job_leaves_runs_of_another_job_or_of_none_alone(job_9, tmp_path, monkeypatch):
    run = write_run(tmp_path)
    status = set_status(run.path, "queued", owner={"job": "10"})
    with pytest.raises(SystemExit, match="belongs to job 10; this is job 9"):
        run_on_node(str(run.path), "none.ipynb", 1, {})
    assert run.status == status
    set_status(run.path, "queued", owner={"pid": os.getpid()})
    monkeypatch.setattr(node, "_SUBMITTER_WAIT_S", 0.1)
    with pytest.raises(SystemExit, match="names no job"):
        run_on_node(str(run.path), "none.ipynb", 1, {})


def test_a_job_that_was_queued_again_too_often_does_not_start(job_9, tmp_path, monkeypatch):
    run = write_run(tmp_path)
    set_status(run.path, "queued", owner={"job": "9"})
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    with pytest.raises(SystemExit) as ended:
        run_on_node(str(run.path), "none.ipynb", 2, {})
    assert ended.value.code == 130
    assert run.status["error"] == "Slurm queued it again 3 times; --requeues allows 2"


# --- Slurm's notice --------------------------------------------------------------------------------------------------

TRAINS = {"JobState": "RUNNING", "PreemptTime": "None"}
NO_MORE = "and no requeue is left (--requeues)"


@pytest.mark.parametrize(
    ("number", "fields", "may_requeue", "recorded"),
    [
        (signal.SIGUSR2, TRAINS, True, ("queued", "requeued after time limit: step 2")),
        (signal.SIGUSR2, TRAINS, False, ("interrupted", f"Slurm: time limit, {NO_MORE}: step 2")),
        (signal.SIGTERM, TRAINS | {"PreemptTime": "1"}, True, ("queued", "requeued after preemption: step 2")),
        (signal.SIGTERM, TRAINS, True, ("queued", "Slurm ended its job: step 2")),
    ],
)
def test_a_notice_asks_to_stop_and_says_what_becomes_of_the_run(
    job_9, tmp_path, monkeypatch, number, fields, may_requeue, recorded
):
    run = write_run(tmp_path, state="running")
    monkeypatch.setattr(node, "_job_fields", lambda: fields | {"EndTime": str(int(time.time()) + 600)})
    notice = Notice(run, may_requeue)
    os.kill(os.getpid(), number)
    assert until(lambda: stop_request(run.path)).startswith("Slurm ends this job: ")
    assert notice.ended("interrupted", "step 2") == recorded
    assert notice.requeue == ("requeued" in recorded[1])
    assert notice.ended("done", None) == ("done", None)


def test_a_request_to_stop_that_a_full_disk_refuses_is_repeated(job_9, tmp_path, monkeypatch):
    run, asked = write_run(tmp_path, state="running"), []

    def once_full(run, reason):
        asked.append(reason)
        if len(asked) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        request_stop(run, reason)

    monkeypatch.setattr(node, "request_stop", once_full)
    monkeypatch.setattr(node, "_job_fields", lambda: TRAINS | {"EndTime": str(int(time.time()) + 600)})
    notice = Notice(run, may_requeue=True)
    os.kill(os.getpid(), signal.SIGUSR2)
    until(lambda: stop_request(run.path), seconds=30)
    notice.ended("interrupted", "step 2")
    assert len(asked) == 2


def test_without_a_notice_a_run_ends_as_it_did(job_9, tmp_path):
    notice = Notice(write_run(tmp_path), may_requeue=True)
    assert notice.ended("failed", "cell 3") == ("failed", "cell 3")
    assert not notice.requeue


def test_a_notebook_that_outlasts_the_grace_is_interrupted(job_9, tmp_path, monkeypatch):
    run = write_run(tmp_path, state="running")
    monkeypatch.setattr(node, "_job_fields", lambda: {"JobState": "COMPLETING"})
    notice = Notice(run, may_requeue=True)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    assert notice.ended("interrupted", "Ctrl-C") == ("queued", "Slurm ended its job: Ctrl-C")
    assert not notice.requeue


def test_a_refused_requeue_interrupts_the_run_with_the_reason(job_9, tmp_path, monkeypatch):
    run = write_run(tmp_path)
    set_status(run.path, "queued", "requeued after time limit: step 2", owner={"job": "9"})
    answers = {
        "requeue": subprocess.CompletedProcess([], 1, "", "slurm_requeue error: Requested operation is disabled\n"),
        "show": subprocess.CompletedProcess([], 0, "JobId=9 JobState=RUNNING EndTime=99", ""),
    }
    monkeypatch.setattr(node, "slurm_command", lambda _, what, *rest, timeout: answers[what])
    node._requeue(run)
    assert run.status["state"] == "interrupted"
    assert "step 2; but Slurm refused to requeue it: " in run.status["error"]
    assert run.status["error"].endswith("Requested operation is disabled; go on with --resume")


@pytest.mark.parametrize(
    ("job", "number", "expected"),
    [
        ({"JobState": "RUNNING", "EndTime": "1300", "PreemptTime": "None"}, signal.SIGUSR2, ("time limit", 1290)),
        ({"JobState": "RUNNING", "EndTime": "1030", "PreemptTime": "1000"}, signal.SIGTERM, ("preemption", 1020)),
        ({"JobState": "RUNNING", "EndTime": "1006", "PreemptTime": "999"}, signal.SIGTERM, ("preemption", 1004)),
        ({"JobState": "RUNNING", "EndTime": "1300", "PreemptTime": "None"}, signal.SIGTERM, ("", 1290)),
        ({"JobState": "COMPLETING", "EndTime": "1000"}, signal.SIGTERM, ("", 1000)),
        ({}, signal.SIGUSR2, ("time limit", 1020)),
    ],
)
def test_the_cause_of_a_notice_says_how_long_a_run_may_go_on(job, number, expected):
    assert why_ended(job, number, 1000.0) == expected


SHIELDED = """
import multiprocessing, os, signal, time
from workbench.lab.batch.node import shield
shield()
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
worker.start()
for number in (signal.SIGTERM, signal.SIGUSR2):
    os.kill(os.getpid(), number)
worker.terminate()
worker.join()
print("alive,", worker.exitcode)
"""


def test_a_kernel_outlives_the_notice_and_its_workers_still_end():
    process = subprocess.run([sys.executable, "-c", SHIELDED], capture_output=True, text=True, timeout=90)
    assert process.stdout == "alive, -15\n"
