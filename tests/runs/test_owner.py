import os
import socket
import subprocess
import sys
import time

import psutil
import pytest
from conftest import start_and_end_a_process, until

from workbench.runs import owner as owner_module
from workbench.runs.owner import PATIENCE_S, beat, boot, owner_lives, this_process, works_in


def me(**other) -> dict:
    return this_process() | other


def old(**other) -> dict:
    """As files of older versions name this process."""
    started = psutil.Process().create_time()
    return {"pid": os.getpid(), "started": started, "host": socket.gethostname()} | other


def test_this_process_lives_and_one_of_its_id_that_started_at_another_time_does_not():
    started = this_process()["started"]
    assert owner_lives(me())
    assert owner_lives(me(started=started + 1))
    assert not owner_lives(me(started=started - 60))
    assert not owner_lives(me(pid=start_and_end_a_process()))


def test_a_process_is_known_whatever_the_clock_was_set_to(monkeypatch):
    """The kernel counts a start from the boot; psutil adds the boot's time, which moves when the clock is set."""
    owner = me()
    from psutil import _pslinux

    booted = psutil.boot_time()
    monkeypatch.setattr(_pslinux, "boot_time", lambda: booted + 86_400)
    monkeypatch.setattr(psutil, "boot_time", lambda: booted + 86_400)
    monkeypatch.setattr(_pslinux, "BOOT_TIME", booted + 86_400, raising=False)
    assert owner_lives(owner)


def test_a_process_that_ended_and_was_not_waited_for_is_gone():
    process = subprocess.Popen([sys.executable, "-c", ""])
    started = psutil.Process(process.pid).create_time() - psutil.boot_time()
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, "a zombie")
    assert not owner_lives(me(pid=process.pid, started=started))
    process.wait()


def test_owners_in_files_of_older_versions_are_still_known():
    assert owner_lives(old())
    assert not owner_lives(old(started=1.0))
    since_boot = psutil.Process().create_time() - psutil.boot_time()
    assert owner_lives(old(started=str(round(since_boot * os.sysconf("SC_CLK_TCK")))))
    assert not owner_lives(old(started="1"))
    assert owner_lives(old(host="another"))  # cannot be seen from here


@pytest.mark.parametrize(
    "owner",
    [{}, {"started": 1.0}, {"pid": os.getpid()}, {"pid": 2**22 + 1, "started": 1.0}, {"pid": "1", "started": 1.0},
     {"pid": -1, "started": 0.0}, {"pid": 2**70, "started": 1.0}],
)  # fmt: skip
def test_an_owner_without_a_process_of_this_machine_is_gone(owner):
    assert not owner_lives({"host": socket.gethostname()} | owner)
    assert not owner_lives({"host": socket.gethostname(), "boot": boot()} | owner)


def test_an_owner_elsewhere_lives_while_it_shows_life_whatever_its_host_is_called(tmp_path):
    elsewhere = me(boot="another", pid=start_and_end_a_process())
    assert owner_lives(elsewhere)  # without its folder nothing speaks against it
    assert not owner_lives(elsewhere, tmp_path)
    beat(tmp_path)
    assert owner_lives(elsewhere, tmp_path)
    long_ago = time.time() - PATIENCE_S - 1
    os.utime(tmp_path / "heartbeat", (long_ago, long_ago))
    assert not owner_lives(elsewhere, tmp_path)
    assert owner_lives(elsewhere | {"job": "7"}, tmp_path)  # Slurm is asked instead


def test_where_there_is_no_boot_id_host_and_boot_time_stand_for_it(monkeypatch):
    def none(*_):
        raise FileNotFoundError

    monkeypatch.setattr(owner_module.Path, "read_text", none)
    boot.cache_clear()
    try:
        assert boot().startswith(socket.gethostname())
    finally:
        monkeypatch.undo()
        boot.cache_clear()


def test_a_process_works_in_a_run_while_it_has_one_of_its_files_open(tmp_path):
    run, other = tmp_path / "run", tmp_path / "run-2"
    for folder in (run, other):
        folder.mkdir()
    me = psutil.Process()
    assert not works_in(me, run)
    with (run / "log.txt").open("a"):
        assert works_in(me, run)
        assert not works_in(me, other)
        assert not works_in(psutil.Process(os.getppid()), run)


def test_a_process_of_another_user_does_not_work_in_my_run(tmp_path, monkeypatch):
    with (tmp_path / "log.txt").open("a"):
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        assert not works_in(psutil.Process(), tmp_path)
