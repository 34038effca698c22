import os
import time

import pytest
from conftest import write_run

from workbench.runs.files import read_json, write_json
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


def test_a_training_whose_step_takes_hours_still_shows_and_one_of_an_earlier_start_does_not(tmp_path):
    run = write_run(tmp_path, state="running")
    for name, hours in (("before", 50.0), ("now", 5.0)):
        (run.path / name).mkdir()
        write_json(run.path / name / "progress.json", {"step": int(hours), "max_steps": 80})
        then = time.time() - 3600 * hours
        os.utime(run.path / name / "progress.json", (then, then))
    status = read_json(run.path / "status.json", {})
    started = status["times"] | {"running": time.time() - 3600 * 10}
    write_json(run.path / "status.json", status | {"times": started})
    assert steps_of(run) == "step 5/80"
    write_json(run.path / "status.json", status | {"times": status["times"]})  # started again a moment ago
    assert steps_of(run) == ""
