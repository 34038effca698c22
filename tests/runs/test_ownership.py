"""One owner at a time, with real processes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import start_and_end_a_process, until, write_run

from workbench.errors import RunError
from workbench.runs import ownership
from workbench.runs.files import read_json, write_json
from workbench.runs.owner import boot, owner_lives, this_process
from workbench.runs.ownership import TOKEN_VARIABLE, kept, still_owned, take_run, taken_away, update_run
from workbench.runs.run import open_run, save_result
from workbench.runs.status import set_status
from workbench.runs.stop_request import run_is_lost


def owner_of(run) -> dict:
    return read_json(run.path / "status.json", {})["owner"]


def give_to(run, **owner):
    status = read_json(run.path / "status.json", {})
    write_json(run.path / "status.json", status | {"owner": status["owner"] | owner})


def _try(folder, at, taken):
    while time.time() < at:
        pass
    try:
        take_run(folder, "running")
        taken.put(os.getpid())
    except RunError:
        taken.put(0)
    time.sleep(2)  # the owner has to live while the others look


def test_of_many_processes_that_try_at_once_one_gets_the_run(tmp_path):
    run = write_run(tmp_path, state="interrupted")
    context = multiprocessing.get_context("fork")
    taken, at = context.Queue(), time.time() + 0.5
    tries = [context.Process(target=_try, args=(run.path, at, taken)) for _ in range(8)]
    for process in tries:
        process.start()
    winners = [pid for pid in (taken.get(timeout=60) for _ in tries) if pid]
    assert len(winners) == 1
    assert owner_of(run)["pid"] == winners[0]
    for process in tries:
        process.join()


def test_a_run_of_a_living_process_is_refused_by_name_and_taken_by_force(tmp_path):
    run = write_run(tmp_path, state="running")
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started = this_process()["started"]
    from workbench.runs.owner import _started

    give_to(run, pid=sleeper.pid, started=_started(sleeper.pid))
    assert started != _started(sleeper.pid)
    with pytest.raises(RunError, match=f"is running, owned by process {sleeper.pid} on host .*--force"):
        take_run(run.path, "running")
    before = owner_of(run)["token"]
    token = take_run(run.path, "running", force=True)
    assert token != before and still_owned(run.path, token)
    sleeper.kill()
    sleeper.wait()


def test_a_run_of_a_dead_process_is_free(tmp_path):
    run = write_run(tmp_path, state="running")
    give_to(run, pid=start_and_end_a_process())
    assert still_owned(run.path, take_run(run.path, "running"))


def test_whoever_takes_a_run_removes_what_a_killed_process_left_half_written(tmp_path):
    run = write_run(tmp_path, state="interrupted")
    (run.path / "arm").mkdir()
    left = [run.path / f".status.json.{'0a' * 16}", run.path / "arm" / f".progress.json.{'1b' * 16}"]
    other = [run.path / ".hidden", run.path / "arm" / f"status.json.{'0a' * 16}"]
    for path in (*left, *other):
        path.touch()
    take_run(run.path, "running")
    assert [path.exists() for path in (*left, *other)] == [False, False, True, True]


def test_a_run_is_handed_on_by_its_token_and_by_no_other(tmp_path):
    run = write_run(tmp_path, state="queued")
    token = take_run(run.path, "queued")
    assert take_run(run.path, "running", token=token) == token
    with pytest.raises(RunError, match="another process has taken this run"):
        take_run(run.path, "running", token="that of an owner before")


def test_an_owner_that_lost_its_run_writes_nothing_into_it(tmp_path):
    run = write_run(tmp_path, state="running")
    token = take_run(run.path, "running")
    update_run(run.path, token, "running", "waits")
    take_run(run.path, "running", force=True)
    with pytest.raises(RunError, match="nothing was recorded"):
        update_run(run.path, token, "done")
    assert run.status["state"] == "running"


def test_an_owner_that_lost_its_run_is_interrupted_within_a_beat(tmp_path, monkeypatch):
    monkeypatch.setattr(ownership, "HEARTBEAT_S", 0.05)
    run = write_run(tmp_path, state="running")
    token = take_run(run.path, "running")
    first = (run.path / "heartbeat").stat().st_mtime_ns
    with pytest.raises(KeyboardInterrupt), kept(run.path, token):
        until(lambda: (run.path / "heartbeat").stat().st_mtime_ns > first, "a beat")
        give_to(run, token="of another", pid=os.getppid())
        time.sleep(60)
    until(lambda: not _beating(run), "the heart to stop")


def _beating(run) -> bool:
    return any(thread.name == f"heartbeat of {run.path}" for thread in threading.enumerate())


def test_a_heart_stops_though_another_run_of_this_process_beats_on(tmp_path, monkeypatch):
    monkeypatch.setattr(ownership, "HEARTBEAT_S", 0.05)
    ended, going = (open_run("notebook", str(tmp_path / "notebook" / name), {"seed": 1}) for name in "12")
    save_result(ended, headline={"name": "n", "value": 1}, checks={}, numbers={})
    until(lambda: not _beating(ended), "the heart to stop")
    assert _beating(going)
    save_result(going, headline={"name": "n", "value": 1}, checks={}, numbers={})
    until(lambda: not _beating(going), "the heart to stop")


def test_a_set_up_cell_that_runs_twice_keeps_its_run(tmp_path, monkeypatch):
    monkeypatch.setattr(ownership, "HEARTBEAT_S", 0.05)
    run = open_run("notebook", str(tmp_path / "notebook" / "1"), {"seed": 1})
    token = owner_of(run)["token"]
    open_run("notebook", str(run.path), {"seed": 1})
    assert owner_of(run)["token"] == token
    save_result(run, headline={"name": "n", "value": 1}, checks={}, numbers={})
    until(lambda: not _beating(run), "the heart to stop")
    open_run("notebook", str(run.path), {"seed": 1})  # it ended; this is a new start
    assert owner_of(run)["token"] != token and run.status["state"] == "running"
    save_result(run, headline={"name": "n", "value": 1}, checks={}, numbers={})
    until(lambda: not _beating(run), "the heart to stop")


def test_a_run_that_this_process_ended_may_be_taken_by_another_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(ownership, "HEARTBEAT_S", 0.2)
    run = open_run("notebook", str(tmp_path / "notebook" / "1"), {"seed": 1})
    save_result(run, headline={"name": "n", "value": 1}, checks={}, numbers={})
    status = read_json(run.path / "status.json", {})  # before the heart has looked again
    write_json(run.path / "status.json", status | {"state": "running"})
    give_to(run, token="of another", pid=os.getppid())
    until(lambda: not _beating(run), "the heart to stop")  # and no KeyboardInterrupt


def test_a_kernel_of_a_runner_works_for_it_and_knows_when_the_run_is_lost(tmp_path, monkeypatch):
    run = write_run(tmp_path, state="running")
    token = take_run(run.path, "running")
    give_to(run, pid=os.getppid())  # the runner
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    assert open_run("notebook", str(run.path), {"seed": 1}).path == run.path
    assert owner_of(run)["pid"] == os.getppid() and not taken_away(run.path)
    (run.path / "arms" / "one").mkdir(parents=True)
    assert not run_is_lost(run.path / "arms" / "one")
    give_to(run, token="of another")
    assert taken_away(run.path) and run_is_lost(run.path / "arms" / "one")


def test_a_notebook_opened_by_hand_in_a_run_that_goes_on_elsewhere_is_refused(tmp_path):
    run = write_run(tmp_path, state="running")
    from workbench.runs.owner import _started

    give_to(run, pid=os.getppid(), started=_started(os.getppid()), boot=boot())
    with pytest.raises(RunError, match="is running, owned by process"):
        open_run("notebook", str(run.path), {"seed": 1})


def test_a_sleeping_owner_keeps_its_run_on_this_machine(tmp_path):
    run = write_run(tmp_path, state="running")
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    os.kill(sleeper.pid, signal.SIGSTOP)
    from workbench.runs.owner import _started

    give_to(run, pid=sleeper.pid, started=_started(sleeper.pid))
    assert run.status["state"] == "running"
    sleeper.kill()
    sleeper.wait()


def test_a_look_at_a_killed_run_takes_nothing_from_whoever_takes_it_then(tmp_path, monkeypatch):
    run = write_run(tmp_path)
    set_status(run.path, "running")
    give_to(run, pid=start_and_end_a_process(), started=1.0)
    alive, taken = owner_lives, []

    def taken_meanwhile(owner, folder):
        lives = alive(owner, folder)
        if not taken:
            taken.append("")
            taken[0] = take_run(run.path, "queued")
        return lives

    monkeypatch.setattr("workbench.runs.run.owner_lives", taken_meanwhile)
    assert run.status["state"] == "queued" and still_owned(run.path, taken[0])
    give_to(run, pid=start_and_end_a_process(), started=1.0)
    assert run.status["state"] == "interrupted"
