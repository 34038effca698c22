import errno
import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import write_notebook, write_run

from workbench.errors import ParameterError, RunError
from workbench.runs import lock
from workbench.runs import run as run_module
from workbench.runs.files import read_json, write_json
from workbench.runs.results import Result, save_result
from workbench.runs.run import (
    create_run,
    list_runs,
    load_run,
    open_run,
    record_execution,
    runs_root,
    set_status,
    slurm_job,
    take_run,
)

MODELS = [("starter", True), ("search", True), ("Qwen/Qwen2-0.5B-Instruct", False), (None, False)]


@pytest.mark.parametrize("model, toy", MODELS)
def test_a_run_of_an_embedded_model_is_a_toy(tmp_path, model, toy):
    assert write_run(tmp_path, params={"model": model}).toy is toy


# --- making and finding --------------------------------------------------------------------------------------------


def test_new_run_has_a_folder_of_its_own(tmp_path):
    first, second = (create_run("nb", {"seed": 3}, tmp_path) for _ in range(2))
    assert first.path != second.path
    assert (first.notebook, first.params, first.status["state"]) == ("nb", {"seed": 3}, "queued")


def test_machine_is_looked_at_once_a_run(tmp_path, monkeypatch):
    looks = []
    monkeypatch.setattr(run_module, "environment", lambda seed: looks.append(seed) or {"seed": seed, "packages": {}})
    run = create_run("nb", {"seed": 3}, tmp_path)
    record_execution(run, {"code": "1"})
    monkeypatch.setattr(run_module.lock, "works_for_runner", lambda folder: True)
    opened = open_run("nb", str(run.path), {"seed": 3})
    assert looks == [3] and opened.env["seed"] == 3
    assert {"trl", "torch"} <= opened.env["packages"].keys()  # as the kernel imports them


def test_runs_made_in_the_same_second_have_ids_in_their_order(tmp_path, monkeypatch):
    clock = itertools.count(1_700_000_000 * 10**9, 900_000)  # a little less than a millisecond further at each look
    monkeypatch.setattr(time, "time_ns", lambda: next(clock))
    made = [create_run(notebook, {}, tmp_path) for notebook in "abacabaabbcc"]
    assert [run.id for run in made[:3]] == ["20231114-221320", "20231114-221320-000", "20231114-221320-001"]
    assert [run.id for run in made] == sorted(run.id for run in made)
    assert list_runs(tmp_path) == made


def test_older_ids_of_a_second_are_listed_by_their_numbers(tmp_path):
    made = [write_run(tmp_path, f"20261121-120000{n}") for n in ("", "-2", "-10")]
    assert list_runs(tmp_path) == made


def test_runs_are_listed_oldest_first_without_other_folders(tmp_path):
    later = write_run(tmp_path, "2026-2")
    earlier = write_run(tmp_path, "2026-1", notebook="00_start_here")
    (tmp_path / "00_start_here" / "notes").mkdir()
    assert list_runs(tmp_path) == [earlier, later]
    assert list_runs(tmp_path / "nowhere") == []


def test_runs_of_one_notebook_and_those_behind_links_are_listed(tmp_path):
    run = write_run(tmp_path / "runs", "2026-1", notebook="00_start_here")
    moved = write_run(tmp_path / "archive", "2026-0", notebook="00_start_here")
    (tmp_path / "runs" / "00_start_here" / "2026-0").symlink_to(moved.path)
    (tmp_path / "runs" / "README").write_text("no notebook")
    (tmp_path / "root").symlink_to(tmp_path / "runs")
    assert list_runs(tmp_path / "root") == list_runs(tmp_path / "root", "00_start_here") == [moved, run]
    assert list_runs(tmp_path / "root", "01_none") == []


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "/tmp/a", "a\x1b[31m", "a\n", "index.html"])
def test_a_name_that_would_put_a_run_elsewhere_makes_no_folder(tmp_path, name):
    with pytest.raises(ParameterError, match="its name is also the name of a folder"):
        create_run(name, {}, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_jobs_log_is_believed_only_where_the_workbench_puts_it(tmp_path):
    run = write_run(tmp_path / "runs", "2026-1")
    jobs = tmp_path / "runs" / ".slurm" / "2026"
    jobs.mkdir(parents=True)
    (tmp_path / "private").write_text("secret")
    (jobs / "link.err").symlink_to(tmp_path / "private")
    (jobs / "9.err").write_text("of the job")
    status = read_json(run.path / "status.json", {})
    for log, kept in ((tmp_path / "private", False), (jobs / "link.err", False), (jobs / "9.err", True),
                      (jobs / "../../../private", False), ("../private", False)):  # fmt: skip
        write_json(run.path / "status.json", status | {"owner": {"job": "9", "log": str(log)}})
        assert run.status["owner"]["log"] == (str(log) if kept else None)


def test_a_folder_that_is_no_run_or_has_no_metrics_says_so(tmp_path):
    with pytest.raises(RunError, match="not a run folder"):
        load_run(tmp_path)
    with pytest.raises(RunError, match="logged no step"):
        _ = write_run(tmp_path).metrics
    (tmp_path / "recorded").mkdir()
    write_json(tmp_path / "recorded" / "recipe.json", {"recipe": {}})  # of a trainer's `record_dir`
    assert load_run(tmp_path / "recorded").params == {} and load_run(tmp_path / "recorded").completions.empty


def test_runs_lie_next_to_the_notebooks_from_there_or_the_top(tmp_path, monkeypatch):
    monkeypatch.delenv("WORKBENCH_RUNS", raising=False)
    (tmp_path / "notebooks").mkdir()
    for folder in (tmp_path, tmp_path / "notebooks"):
        monkeypatch.chdir(folder)
        assert runs_root() == tmp_path / "runs"
    monkeypatch.setenv("WORKBENCH_RUNS", "/elsewhere")
    assert str(runs_root()) == "/elsewhere"


@pytest.mark.parametrize("given", ["", "new"])
def test_a_notebook_without_a_runner_owns_its_run_and_ends_it(tmp_path, monkeypatch, given):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
    run = open_run("nb", given and str(tmp_path / given), {"seed": 1})
    assert (run.params, run.status["state"]) == ({"seed": 1}, "running")
    save_result(run, [Result("it ran", True)])
    assert run.status["state"] == "done"


def test_a_run_taken_without_a_runner_has_the_parameters_of_now(tmp_path, monkeypatch):
    """A real model was reported as a toy, because the folder's first execution was of one."""
    run = create_run("nb", {"model": "starter", "seed": 1, "interactive": False}, tmp_path)
    opened = open_run("nb", str(run.path), {"model": "starter", "seed": 1})
    assert opened.toy and opened.params == {"model": "starter", "seed": 1, "interactive": False}  # the same: as it was
    save_result(opened, [Result("it ran", True)])
    with monkeypatch.context() as patched:
        patched.setattr(run_module.lock, "works_for_runner", lambda folder: True)
        assert open_run("nb", str(run.path), {"model": "my/model", "seed": 1}).toy  # what the runner wrote counts
    opened = open_run("nb", str(run.path), {"model": "my/model", "seed": 1})
    assert not opened.toy and opened.params == {"model": "my/model", "seed": 1}
    lock.let_go(run.path)


def test_a_folder_counts_as_a_run_only_once_its_status_is_there(tmp_path, monkeypatch):
    seen, plain = [], write_json

    def looking(path, value, **how):
        plain(path, value)
        seen.extend(r.status["state"] for r in list_runs(tmp_path))

    monkeypatch.setattr(run_module, "write_json", looking)
    create_run("by_hand", {}, tmp_path)
    open_run("by_hand", str(tmp_path / "by_hand" / "given"), {})
    assert {"queued", "running"} <= set(seen) and "interrupted" not in seen


def test_a_token_among_the_parameters_is_not_written(tmp_path, monkeypatch):
    """A runner refuses it; in JupyterLab nobody was asked."""
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
    given = {"model": "hf_" + "AbCd1234" * 3, "server": "http://me:s3cr3tz9@host", "seed": 3, "out": tmp_path / "x"}
    expected = {"model": "[token]", "server": "http://[token]@host", "seed": 3, "out": str(tmp_path / "x")}
    for out_dir in ("", str(tmp_path / "here")):
        assert open_run("hand_made", out_dir, given).params == expected


def test_ids_are_in_order_of_making_whatever_the_time_zone(tmp_path, monkeypatch):
    made = []
    for zone in ("Europe/Berlin", "UTC"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        made.append(create_run("nb", {}, tmp_path))
    monkeypatch.undo()
    time.tzset()
    assert list_runs(tmp_path) == made


# --- states -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["done", "failed", "interrupted"])
def test_an_ended_run_keeps_its_state_or_reads_as_interrupted(tmp_path, state):
    run = write_run(tmp_path, state=state)
    assert run.status["state"] == state
    (run.path / "status.json").unlink()
    assert run.status["state"] == "interrupted"


def test_a_run_whose_status_a_power_cut_emptied_resumes(tmp_path):
    run = write_run(tmp_path, state="failed")
    (run.path / "status.json").write_bytes(b"")
    assert run.status["state"] == "interrupted"
    take_run(run.path, "running")
    assert run.status["state"] == "running"
    lock.let_go(run.path)


def test_a_run_with_a_link_where_a_training_writes_is_not_taken(tmp_path):
    run = write_run(tmp_path, state="failed")
    (tmp_path / "private").mkdir()
    (run.path / "checkpoints").symlink_to(tmp_path / "private")
    with pytest.raises(RunError, match="checkpoints: this is a link, and a training would write where it leads"):
        take_run(run.path, "running")
    assert run.status["state"] == "failed" and not lock.holds(run.path)


def test_a_run_that_ends_on_a_full_disk_says_why(tmp_path, monkeypatch):
    run = write_run(tmp_path, state="running")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    set_status(run.path, "failed", "OSError: No space left on device")
    lock.let_go(run.path)
    assert (run.status["state"], run.status["error"]) == ("failed", "OSError: No space left on device")
    with pytest.raises(OSError, match="No space left"):
        set_status(tmp_path, "queued")


def test_an_unknown_state_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="queued, running, done, failed, interrupted"):
        set_status(tmp_path, "finished")


def test_a_status_keeps_the_time_of_each_state(tmp_path):
    set_status(tmp_path, "running")
    status = set_status(tmp_path, "failed", "401")
    assert list(status["times"]) == ["running", "failed"] and status["error"] == "401"
    assert read_json(tmp_path / "status.json", {}) == status


ARRAY = {"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.mark.parametrize("variables, job", [({}, None), ({"SLURM_JOB_ID": "12"}, "12"), (ARRAY, "10_3")])
def test_a_process_knows_its_slurm_job(tmp_path, monkeypatch, variables, job):
    for name in ARRAY:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert slurm_job() == job
    submitted = {"job": "10_3", "log": "slurm.out", "cluster": "a"}
    set_status(tmp_path, "queued", owner=submitted)
    owner = set_status(tmp_path, "running")["owner"]
    assert {name: owner[name] for name in submitted if name in owner} == (submitted if job == "10_3" else {})


def test_a_run_took_the_time_of_all_its_executions(tmp_path, monkeypatch):
    from workbench.runs.summary import duration

    states = ("queued", "running", "interrupted", "queued", "running", "done")
    for state, when in zip(states, (0, 10, 40, 90, 100, 105), strict=True):
        status = set_status(tmp_path, state, when=float(when))
    assert duration(status) == 35.0
    assert duration({"state": "queued", "times": {}}) is None


def test_a_killed_run_took_the_time_to_the_last_file_it_wrote(tmp_path):
    """Also where its lock is gone, which is made anew to look, and where a link leads nowhere."""
    run = write_run(tmp_path, state="running")
    lock.let_go(run.path)
    (run.path / lock.LOCK).unlink()
    (run.path / "cleared").symlink_to(tmp_path / "nowhere")
    set_status(run.path, "running", when=1_000_000.0)
    for path in run.path.iterdir():
        os.utime(path, (1_000_060.0, 1_000_060.0), follow_symlinks=False)
    assert run.status["state"] == "interrupted" and read_json(run.path / "status.json", {})["ran_s"] == 60.0


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_run_that_cannot_be_made_whole_leaves_no_folder(tmp_path, monkeypatch, error):
    def fails(path, value, **_):
        raise error

    monkeypatch.setattr(run_module, "write_json", fails)
    with pytest.raises(type(error)):
        create_run("nb", {}, tmp_path)
    assert list(tmp_path.rglob("*")) == [tmp_path / "nb"]


KILLED = """\
import os, signal, sys
from pathlib import Path
from workbench.runs import run
run.set_status = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
run.create_run("nb", {}, Path(sys.argv[1]))"""


def test_what_a_kill_left_of_a_new_run_is_removed_by_a_later_one(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    (left,) = (tmp_path / "nb").iterdir()
    (left / f".params.json.{'0' * 32}").touch()  # the kill came while it was being written
    kept = [tmp_path / "nb" / name for name in ("notes", "20261121-120000", "20261121-120001")]
    for path in kept:
        path.mkdir()
    (kept[1] / "mine.txt").touch()
    for path in (left, *kept[:2]):
        os.utime(path, (0, 0))  # long ago; the last one is being made
    run = create_run("nb", {}, tmp_path)
    assert sorted((tmp_path / "nb").iterdir()) == sorted([*kept, run.path])


@pytest.mark.parametrize(
    "given, message",
    [
        ({"steps": -1}, "parameter steps=-1: expected int in 1..1000"),
        ({"steps": "ten"}, "parameter steps='ten': expected int in 1..1000"),
        ({"seed": -5}, "parameter seed=-5: expected int in 0..1000000"),
    ],
)
def test_a_value_edited_in_jupyterlab_is_checked(given, message, tmp_path, monkeypatch):
    """A runner has checked what it is given; here nobody has."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match=re.escape(message)):
        open_run("00_start_here", "", given)
    assert not list((tmp_path / "runs").glob("*/*"))


def test_values_are_held_against_the_notebook_beside_the_kernel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_notebook(tmp_path / "mine.ipynb", parameters="rate: float = 0.1  # of learning; 0..1")
    with pytest.raises(ParameterError, match=r"parameter rate=2.0: expected float in 0..1"):
        open_run("mine", "", {"rate": 2.0})
    assert open_run("mine", "", {"rate": 0.5, "of_the_user": 7}).params == {"rate": 0.5, "of_the_user": 7}


def test_a_run_that_its_kernel_leaves_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left, again = open_run("by_hand", "", {}), open_run("by_hand", "", {})
    assert (left.status["state"], again.status["state"]) == ("interrupted", "running")
    assert "another run of the notebook" in left.status["error"]
    with lock.only_training(again.path / "arms"):  # in a thread
        assert open_run("by_hand", "", {}) and again.status["state"] == "running"


def test_an_out_dir_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"out_dir=.*file/run.*: cannot be made"):
        open_run("by_hand", str(tmp_path / "file" / "run"), {})


def test_a_file_in_place_of_the_runs_is_named(tmp_path, monkeypatch):
    (tmp_path / "runs").write_text("")
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    with pytest.raises(RunError, match=r"runs.*: a file, or a link that leads nowhere, .* WORKBENCH_RUNS"):
        create_run("by_hand", {})


def test_a_link_that_leads_nowhere_in_place_of_the_runs_is_named(tmp_path):
    """As scratch storage leaves it that was cleared; looking for a free name went on for ever."""
    (tmp_path / "runs").symlink_to(tmp_path / "cleared")
    with pytest.raises(RunError, match=r"runs: a file, or a link that leads nowhere, .* --runs-dir"):
        create_run("nb", {}, tmp_path / "runs")


def test_an_execution_that_a_full_disk_cut_short_hides_no_other(tmp_path):
    run = write_run(tmp_path)
    (run.path / "executions.jsonl").write_text('{"time": 1, "notebook": {"path": "\u00fc')
    for code in ("first", "second"):
        record_execution(run, {"code": code})
    assert [done["notebook"]["code"] for done in run.executions] == ["first", "second"]
