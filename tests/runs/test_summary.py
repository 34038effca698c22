import os
import time

import pytest
from conftest import write_run

from workbench.runs import lock
from workbench.runs.files import read_json, write_json
from workbench.runs.run import take_run
from workbench.runs.summary import RunSummary, latest_progress, steps_of


def test_the_step_shown_is_of_the_training_that_wrote_last(tmp_path):
    run = write_run(tmp_path)
    assert (latest_progress(run), steps_of(run)) == (None, "")
    (run.path / "second").mkdir()
    for folder, step, age in ((run.path, 9, 60), (run.path / "second", 3, 0), (run.path, 9, 60)):
        write_json(folder / "progress.json", {"step": step, "max_steps": 80})
        os.utime(folder / "progress.json", (time.time() - age,) * 2)
    assert steps_of(run) == "step 3/80"
    os.utime(run.path / "second" / "progress.json", (0, 0))
    os.utime(run.path / "progress.json", (0, 0))
    assert steps_of(run) == ""  # of an earlier go at this run


@pytest.mark.parametrize(
    ("state", "result", "line"),
    [
        ("done", {"headline": {"name": "reward", "value": -4.01234}}, "done, reward -4.012"),
        ("done", {"headline": {"name": "by", "value": "\x07"}}, r"done, by \x07"),
        ("done", {"results": [{"says": says, "holds": False} for says in "ab"]}, "done, 2 checks failed: a; b"),
        ("failed", {}, "failed"),
    ],
)
def test_the_outcome_of_a_run_is_one_line(tmp_path, state, result, line):
    assert RunSummary.of(write_run(tmp_path, state=state, result=result)).outcome == line


def test_a_check_that_was_not_run_has_not_failed(tmp_path):
    results = [{"says": "a", "holds": True}, {"says": "b", "holds": False}, {"says": "c", "why": "not run: no GPU"}]
    assert RunSummary.of(write_run(tmp_path, result={"results": results})).failed == ["b"]


def test_progress_shows_whatever_the_clocks_say(tmp_path):
    """A step may take hours, the clock may be put back, and a file server may have another."""
    run = write_run(tmp_path, state="running")
    write_json(run.path / "progress.json", {"step": 5, "max_steps": 80})
    os.utime(run.path / "progress.json", (time.time() - 3600,) * 2)
    assert steps_of(run) == "step 5/80"
    take_run(run.path, "running")
    assert steps_of(run) == ""
    assert read_json(run.path / "progress.json", {})["step"] == 5  # how far it came is still known
    write_json(run.path / "progress.json", {"step": 6, "max_steps": 80})
    assert steps_of(run) == "step 6/80"
    lock.let_go(run.path)
