import json
import os
import time

import pytest
from conftest import start_and_end_a_process, write_run

from workbench.errors import ParameterError
from workbench.runs import run as run_module
from workbench.runs.files import read_json, write_json
from workbench.runs.owner import PATIENCE_S, beat, owner_lives
from workbench.runs.status import owns, set_status, slurm_job


def own(path, **owner):
    """Put another owner into a run's status."""
    status = read_json(path / "status.json", {})
    write_json(path / "status.json", status | {"owner": status["owner"] | owner})


# --- the owner -----------------------------------------------------------------------------------------------------


def test_a_run_is_owned_by_the_process_that_its_status_names(tmp_path):
    run = write_run(tmp_path, state="running")
    assert owns(run.path)
    own(run.path, pid=os.getppid())
    assert not owns(run.path)
    assert not owns(tmp_path)


# --- the state -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["queued", "running"])
def test_a_run_whoseowner_lives_keeps_its_state(tmp_path, state):
    assert write_run(tmp_path, state=state).status["state"] == state


@pytest.mark.parametrize("state", ["queued", "running"])
def test_a_run_whose_owner_is_gone_reads_as_interrupted_and_stays_so(tmp_path, state):
    run = write_run(tmp_path, state=state)
    own(run.path, pid=start_and_end_a_process())
    assert run.status["state"] == "interrupted"
    on_disk = json.loads((run.path / "status.json").read_text())
    assert on_disk["state"] == "interrupted"
    assert "gone" in on_disk["error"]
    assert {state, "interrupted"} <= on_disk["times"].keys()


def test_a_later_process_with_the_same_id_is_not_the_owner(tmp_path):
    run = write_run(tmp_path, state="running")
    own(run.path, started=1.0)  # this very process id, another start time
    assert run.status["state"] == "interrupted"


def test_a_run_of_another_machine_is_running_while_it_shows_life_and_is_told_interrupted_after(tmp_path):
    run = write_run(tmp_path, state="running")
    own(run.path, pid=start_and_end_a_process(), host="another", boot="another")
    assert run.status["state"] == "running"
    long_ago = time.time() - 2 * PATIENCE_S
    os.utime(run.path / "status.json", (long_ago, long_ago))
    assert run.status["state"] == "interrupted"
    assert "no sign of life of its process on host another" in run.status["error"]
    assert read_json(run.path / "status.json", {})["state"] == "running"  # it may only be slow
    beat(run.path)
    assert run.status["state"] == "running"


@pytest.mark.parametrize("state", ["done", "failed", "interrupted"])
def test_a_run_that_ended_keeps_its_state_when_its_owner_is_gone(tmp_path, state):
    run = write_run(tmp_path, state=state)
    own(run.path, pid=start_and_end_a_process())
    assert run.status["state"] == state


def test_an_owner_that_ends_well_while_we_look_is_not_called_interrupted(tmp_path, monkeypatch):
    run = write_run(tmp_path, state="running")
    own(run.path, pid=start_and_end_a_process())
    lives = owner_lives

    def look(owner, folder):  # between our reading of the file and our look for the process, the owner finished
        answer = lives(owner, folder)
        set_status(run.path, "done")
        return answer

    monkeypatch.setattr(run_module, "owner_lives", look)
    assert run.status["state"] == "done"


def test_a_folder_without_status_reads_as_interrupted(tmp_path):
    run = write_run(tmp_path)
    (run.path / "status.json").unlink()
    assert run.status["state"] == "interrupted"


def test_an_unknown_state_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="queued, running, done, failed, interrupted"):
        set_status(tmp_path, "finished")


def test_a_status_keeps_the_time_of_each_state_and_hides_a_token_in_the_error(tmp_path):
    set_status(tmp_path, "running")
    status = set_status(tmp_path, "failed", "401 with HF_TOKEN=S3cretS3cret")
    assert list(status["times"]) == ["running", "failed"]
    assert status["error"] == "401 with HF_TOKEN=[token]"
    assert read_json(tmp_path / "status.json", {}) == status


@pytest.mark.parametrize(
    "variables, job",
    [
        ({}, None),
        ({"SLURM_JOB_ID": "12"}, "12"),
        ({"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3"}, "10_3"),
    ],
)
def test_a_process_knows_its_slurm_job(tmp_path, monkeypatch, variables, job):
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert slurm_job() == job
    set_status(tmp_path, "queued", owner={"job": "10_3", "log": "slurm.out"})
    assert set_status(tmp_path, "running")["owner"].get("log") == ("slurm.out" if job == "10_3" else None)
