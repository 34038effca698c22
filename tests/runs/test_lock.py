"""One process executes a run at a time, with real processes."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest
from conftest import until, write_run

from workbench.errors import RunError
from workbench.runs import lock
from workbench.runs.files import read_json, write_json
from workbench.runs.results import Result, save_result
from workbench.runs.run import open_run, set_status, take_run, what_is_unknown

TAKE = """\
import sys, time
from pathlib import Path
from workbench.errors import RunError
from workbench.runs.run import take_run
try:
    take_run(Path(sys.argv[1]), "running")
except RunError as error:
    sys.exit(str(error))
{then}
print("taken", flush=True)
time.sleep(600)"""


KERNEL = """\
import sys; from workbench import Result, open_run, save_result
run = open_run('nb', sys.argv[1], {'seed': 9})
save_result(run, [Result('it ran', True)])
print('taken', flush=True); sys.stdin.read()"""


def taker(run, then: str = "") -> subprocess.Popen:
    """A process that takes a run and keeps it, or ends with the reason why not."""
    command = [sys.executable, "-c", TAKE.format(then=then), str(run.path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def taken(process) -> bool:
    return process.stdout.readline().strip() == "taken"


def end(*processes) -> None:
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path, state="interrupted")


def unsupported(*_):
    raise OSError(errno.ENOTSUP, "Operation not supported")


def says(run, **about) -> None:
    """Make its status say something else."""
    write_json(run.path / "status.json", read_json(run.path / "status.json", {}) | about)


@pytest.mark.slow
def test_of_many_processes_that_try_at_once_one_gets_the_run(run):
    tries = [taker(run) for _ in range(5)]
    winners = [process for process in tries if taken(process)]
    assert len(winners) == 1
    assert run.status["owner"]["pid"] == winners[0].pid
    assert all("holds its lock" in process.communicate()[1] for process in tries if process not in winners)
    end(*winners)


@pytest.mark.slow
def test_a_paused_process_keeps_its_run_a_killed_one_frees_it(run):
    process = taker(run)
    assert taken(process)
    process.send_signal(signal.SIGSTOP)
    assert run.status["state"] == "running"
    with pytest.raises(RunError, match=f"process {process.pid} on host .* holds its lock; cancel that first"):
        take_run(run.path, "running")
    with pytest.raises(RunError, match="holds its lock"):
        take_run(run.path, "running", force=True)  # what can be seen to live is never overridden
    end(process)
    take_run(run.path, "running")
    assert run.status["owner"]["pid"] == os.getpid()
    lock.let_go(run.path)


STARTS = "import subprocess; print(subprocess.Popen(['sleep', '600'], close_fds=False).pid, flush=True)"
FORKS = "import os\npid = os.fork()\nif not pid: time.sleep(600)\nprint(pid, flush=True)"


@pytest.mark.parametrize("then", [STARTS, FORKS])
def test_what_a_run_has_started_does_not_keep_its_lock(run, then):
    process = taker(run, then)
    child = int(process.stdout.readline())
    assert taken(process)
    process.kill()
    process.wait()
    until(lambda: run.status["state"] == "interrupted")  # a process forked this instant has yet to close its copy
    os.kill(child, signal.SIGKILL)
    process.communicate()


def test_a_kernel_that_outlives_its_runner_keeps_others_away(run):
    """The runner is this process, which closes its own lock as the system does for one that is killed."""
    take_run(run.path, "running")
    number = lock.open_lock(run.path)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | {"text": True, "pass_fds": [number]}
    env = os.environ | {lock.VARIABLE: str(number)}
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL, str(run.path)], env=env, **pipes)
    assert taken(kernel)
    assert run.params["seed"] == 1  # the runner's, not written anew
    assert read_json(run.path / "status.json", {})["state"] == "running"
    lock.let_go(run.path)
    assert run.status["state"] == "running"
    with pytest.raises(RunError, match="holds its lock"):
        take_run(run.path, "running")
    end(kernel)
    assert run.status["state"] == "interrupted"


def test_a_variable_left_by_another_run_gives_no_right_to_this(run, tmp_path, monkeypatch):
    other = write_run(tmp_path, "other", state="running")
    monkeypatch.setenv(lock.VARIABLE, str(lock.open_lock(other.path)))
    process = taker(run)
    assert taken(process)
    with pytest.raises(RunError, match="holds its lock"):
        open_run("nb", str(run.path), {"seed": 1})
    end(process)


def test_readers_keep_nobody_from_taking_a_run(run):
    set_status(run.path, "running", owner={"pid": 1, "host": "elsewhere"})
    look = "import sys\nfrom pathlib import Path\nfrom workbench.runs.run import Run\nprint('taken', flush=True)\n"
    command = [sys.executable, "-c", look + "while True: Run(Path(sys.argv[1])).status", str(run.path)]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert all(map(taken, readers))
    for _ in range(20):
        take_run(run.path, "running", force=True)
        lock.let_go(run.path)
    end(*readers)


# --- what cannot be known ---------------------------------------------------------------------------------------------


def test_a_run_of_another_host_is_taken_by_force_alone(run):
    says(run, state="running", owner={"pid": 7, "host": "far"})
    text = "running on far, as its status says; cannot be checked from here"
    assert (run.status["state"], run.status["error"]) == ("running", text)
    assert read_json(run.path / "status.json", {})["error"] is None
    with pytest.raises(RunError, match=f"is {text}; if that has ended, take it with --force"):
        take_run(run.path, "running")
    take_run(run.path, "running", force=True)
    assert run.status["owner"]["pid"] == os.getpid()
    lock.let_go(run.path)


def test_without_file_locks_a_status_is_believed_and_runs_work(run, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", unsupported)
    take_run(run.path, "running")
    assert lock.holds(run.path) and run.status["error"] is None
    lock.let_go(run.path)
    assert run.status["state"] == "running"
    assert "cannot be checked from here" in what_is_unknown(run.status)
    with pytest.raises(RunError, match="cannot be checked from here; if that has ended, take it with --force"):
        take_run(run.path, "running")
    take_run(run.path, "running", force=True)
    lock.let_go(run.path)


def test_a_run_that_a_job_executes_is_not_taken_but_by_force(run):
    says(run, state="queued", owner={"job": "9_1"})
    assert run.status["state"] == "queued"
    with pytest.raises(RunError, match="is queued as job 9_1; if that has ended, take it with --force"):
        take_run(run.path, "running")
    take_run(run.path, "running", force=True)
    lock.let_go(run.path)


def test_a_folder_of_version_0_1_is_read(run):
    old = {"pid": 1, "started": "12", "host": os.uname().nodename, "boot": "b n", "token": "0f"}
    says(run, state="running", owner=old, times={"queued": 1.0, "running": 2.0})
    assert run.status["state"] == "interrupted"
    take_run(run.path, "running")
    lock.let_go(run.path)


# --- alone in a folder ----------------------------------------------------------------------------------------------


HOLDS = """\
import sys, time
from pathlib import Path
from workbench.runs import lock
with lock.alone_in(Path(sys.argv[1])):
    print("taken", flush=True)
    time.sleep(600)"""


def test_a_folder_whose_lock_another_process_keeps_is_refused(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert taken(other)
    with pytest.raises(RunError, match=r"another process has held its run.lock"), lock.alone_in(tmp_path, wait=0.1):
        pytest.fail("two processes are alone")
    end(other)
    with lock.alone_in(tmp_path, wait=0.1):
        assert lock.holds(tmp_path)
    assert not lock.holds(tmp_path)


def test_without_locks_a_file_keeps_others_out_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", unsupported)
    with lock.alone_in(tmp_path):
        with lock.alone_in(tmp_path):  # the same process once more
            pass
        lock.let_go(tmp_path)  # now it is as another process
        with pytest.raises(RunError, match="one was killed: remove that file"), lock.alone_in(tmp_path, wait=0.1):
            pytest.fail("two processes are alone")
    with lock.alone_in(tmp_path, wait=0.1):
        pass


# --- around it ------------------------------------------------------------------------------------------------------


def test_taking_a_run_removes_what_was_left_half_written(run):
    (run.path / "arm").mkdir()
    left = [run.path / f".status.json.{'0a' * 16}", run.path / "arm" / f".progress.json.{'1b' * 16}"]
    other = [run.path / ".hidden", run.path / "arm" / f"status.json.{'0a' * 16}"]
    for path in (*left, *other):
        path.touch()
    take_run(run.path, "running")
    assert [path.exists() for path in (*left, *other)] == [False, False, True, True]
    lock.let_go(run.path)


def test_a_repeated_set_up_cell_keeps_its_run_unless_it_ended(tmp_path):
    run = open_run("notebook", str(tmp_path / "notebook" / "1"), {"seed": 1})
    open_run("notebook", str(run.path), {"seed": 1})
    save_result(run, [Result("it ran", True)])
    assert not lock.holds(run.path)
    open_run("notebook", str(run.path), {"seed": 1})
    assert run.status["state"] == "running" and lock.holds(run.path)
    lock.let_go(run.path)


def test_a_link_in_the_place_of_the_lock_is_not_followed(run, tmp_path):
    (run.path / lock.LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        take_run(run.path, "running")
    assert not (tmp_path / "elsewhere").exists()


def test_a_run_without_its_process_reads_and_stays_interrupted(tmp_path):
    for state in ("queued", "running"):
        run = write_run(tmp_path, state, state=state)
        assert run.status["state"] == state
        lock.let_go(run.path)
        assert run.status["state"] == "interrupted"
        on_disk = json.loads((run.path / "status.json").read_text())
        assert on_disk["state"] == "interrupted" and "gone" in on_disk["error"]
        assert {state, "interrupted"} <= on_disk["times"].keys()


def test_an_interruption_has_the_time_of_the_runs_last_write(run):
    says(run, state="running", times={"running": 1000.0}, ran_s=50.0)
    for path in run.path.iterdir():
        os.utime(path, (1060.0, 1060.0))
    (run.path / lock.LOCK).touch()
    os.utime(run.path / lock.LOCK, (1000.0, 1000.0))
    assert run.status["times"]["interrupted"] == 1060.0
    assert run.status["ran_s"] == 110.0


def test_run_in_a_folder_of_another_user_is_refused_as_such(tmp_path):
    """In a process of its own, which gives up the rights of the superuser where the tests have them."""
    write_run(tmp_path, "2026-1", state="interrupted").path.chmod(0o755)
    script = "import os, sys\nfrom workbench.runs.run import list_runs, take_run\nos.getuid() or os.setuid(65534)\n"
    script += "(run,) = list_runs(sys.argv[1])\ntake_run(run.path, 'running')"
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    for folder in tmp_path.rglob("*/"):
        folder.chmod(0o555)
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith("PermissionError: [Errno 13] Permission denied"), done.stderr


def test_a_full_disk_is_the_reason_where_a_lock_cannot_be_made(tmp_path, monkeypatch):
    plain = os.open

    def full(path, flags, *mode):
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return plain(path, flags, *mode)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="No space left"):
        lock.hold(tmp_path)
    with lock.looked_at(tmp_path) as free:
        assert free
