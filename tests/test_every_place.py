"""The harness that fails each call of a run once, and a few of its places; `benchmarks.every_place` itself tries them all."""

import errno
import itertools
import json
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

from benchmarks.every_place import FAULTS, Faults, Scenario, all_over, cases_of, forked, spread
from benchmarks.stub_slurm import REFUSED, StubSlurm
from workbench.runs.files import append_rows, open_lines, write_json

WRITES = ["open", "write", "rename"]  # of a small file


def outcome(folder, place, fault, durable=False):
    """How a process ends that writes `a.json`, with the fault at that place, and what it leaves."""
    faults = Faults(folder, place, fault)

    def call():
        faults.install()
        try:
            write_json(folder / "a.json", {"a": 1}, durable=durable)
        except OSError as error:
            return error.errno
        return 0

    code = forked(call, folder.parent / "said")
    return code, sorted(path.name.partition(".json")[0] for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def test_calls_are_counted_and_those_elsewhere_left_alone(folder):
    assert outcome(folder, 0, "", durable=True) == (0, ["a"])
    calls = (folder.parent / "runs.calls").read_text().splitlines()
    assert [call.partition(" ")[0] for call in calls] == ["open", "write", "sync", "rename", "sync"]
    assert calls[3] == "rename a.json"


@pytest.mark.parametrize("place", range(1, len(WRITES) + 1), ids=WRITES)
@pytest.mark.parametrize("fault", ["EIO", "kill"])
def test_a_fault_at_each_place_of_a_write_leaves_the_old_file(folder, place, fault):
    write_json(folder / "a.json", {"old": 1})
    code, left = outcome(folder, place, fault)
    assert code == (errno.EIO if fault == "EIO" else -signal.SIGKILL)
    assert left == (["a"] if fault == "EIO" or place == 1 else [".a", "a"])
    assert json.loads((folder / "a.json").read_text()) == {"old": 1}


def test_a_torn_write_leaves_half_a_line(folder):
    faults = Faults(folder, 2, "torn")

    def call():
        faults.install()
        with open_lines(folder / "rows.jsonl") as file:
            append_rows(file, [{"step": 1}])
        return 0

    assert forked(call, folder.parent / "said") == -signal.SIGKILL
    assert (folder / "rows.jsonl").read_text() == '{"step'


def test_memory_that_runs_out_is_a_memory_error(folder):
    faults = Faults(folder, 2, "memory")

    def call():
        faults.install()
        try:
            write_json(folder / "a.json", {"a": 1})
        except MemoryError:
            return 7
        return 0

    assert forked(call, folder.parent / "said") == 7
    assert list(folder.iterdir()) == []


# --- places that are tried --------------------------------------------------------------------------------------------


def test_a_spread_has_each_fault_in_each_scenario_and_call():
    scenarios = [Scenario("run", list), Scenario("sweep", list)]
    cases = [
        case for one in scenarios for case in cases_of(one, ["open a", "write a", "lock b", "sync a", "rename a"] * 9)
    ]
    chosen = spread(cases)
    for of in ("scenario", "kind"):
        assert {(getattr(case, of), case.fault) for case in chosen} == {
            (getattr(case, of), case.fault) for case in cases
        }
    assert len(chosen) < 30 and chosen == spread(cases)
    assert len({case.number for case in chosen}) > 10


def test_a_beginning_of_the_places_is_spread_over_all():
    order = all_over(range(200))
    assert sorted(order) == [*range(200)]
    first = sorted(order[:20])
    assert max(after - before for before, after in itertools.pairwise([0, *first, 200])) <= 20


@pytest.mark.rare
def test_after_a_fault_at_a_few_places_all_is_as_undisturbed(tmp_path):
    command = [sys.executable, "-m", "benchmarks.every_place", "--spread", "--out", tmp_path / "tried.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (tmp_path / "tried.json").exists(), done.stderr[-3000:]
    result = json.loads((tmp_path / "tried.json").read_text())
    assert result["problems"] == []
    assert {row["call"] for row in result["counts"]} == {*FAULTS}
    assert {row["fault"] for row in result["counts"]} == {fault for faults in FAULTS.values() for fault in faults}


# --- the stand-in for Slurm -------------------------------------------------------------------------------------------


@pytest.fixture
def jobs(folder):
    """Submits two jobs of runs that are not there, which fail; returns the commands, and sets how the next call fails."""
    faults = []
    cluster = StubSlurm(folder / "jobs", lambda name: faults.pop() if faults else "", forked)
    write_json(folder / "tasks.json", {"runs": ["no run", "none"], "notebook": "a.ipynb", "requeues": 0, "how": {}})
    return cluster, faults, ("sbatch", "--parsable", str(folder / "job.sbatch"))


def test_a_job_waits_once_and_has_then_ended(jobs, folder):
    cluster, _, submit = jobs
    assert (cluster.command(*submit).stdout, cluster.command(*submit).stdout) == ("1\n", "2\n")
    waiting = cluster.command("squeue").stdout
    assert [line.split("|")[:2] for line in waiting.splitlines()] == [
        [name, "PENDING"] for name in ("1_0", "1_1", "2_0", "2_1")
    ]
    asked = cluster.command("squeue")
    assert (asked.returncode, asked.stdout) == (1, "") and "Invalid job id" in asked.stderr
    assert cluster.command("sacct").stdout.splitlines()[0] == "1_0|FAILED|None|n1"
    assert "no run" in (folder / "1_0.log").read_text().splitlines()[-1]


def test_a_submission_whose_answer_is_lost_is_one(jobs):
    cluster, faults, submit = jobs
    faults[:] = ["refused"]
    assert cluster.command(*submit).stderr == REFUSED
    assert cluster.command("squeue").stdout == ""
    faults[:] = ["lost"]
    assert (cluster.command(*submit).returncode, cluster.command("squeue").stdout.count("PENDING")) == (1, 2)
