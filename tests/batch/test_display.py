import os
import time

import pytest
from conftest import write_run

from workbench.batch.display import Display, SweepProgress, failed_checks, latest_progress, outcome, steps_of
from workbench.batch.sweep import Entry
from workbench.runs.files import read_json, write_json


def test_the_notebook_s_output_goes_to_the_log_and_to_stderr_without_tokens_or_control_characters(tmp_path, capsys):
    run = write_run(tmp_path)
    secret = "hf_" + "aB3dE5" * 6
    with Display(run) as display:
        display.cell_start(0, 2)
        display.write(f"\x1b[31mred\x1b[0m \x07 {secret}\n")
        display.flush()
        assert (run.path / "log.txt").read_text() == "\x1b[31mred\x1b[0m \x07 [token]\n"
        display.cell_done(0)
    assert capsys.readouterr().err == "red \\x07 [token]\n"
    with Display(run, quiet=True) as display:
        display.write("more\n")
    assert capsys.readouterr() == ("", "")
    assert (run.path / "log.txt").read_text().endswith("[token]\nmore\n")


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


def test_a_batch_without_a_terminal_gets_a_line_as_each_run_ends_which_counts_those_done_before(tmp_path, capsys):
    result = {"headline": {"name": "reward", "value": -4.0}, "checks": {}}
    runs = [write_run(tmp_path, str(n), result=result) for n in range(2)]
    entries = [Entry({"seed": n}, {}, action, runs[n]) for n, action in enumerate(("skip", "run"))]
    with SweepProgress(entries) as progress:
        progress.show(entries[1:])
        progress.finished(entries[1])
    assert capsys.readouterr().err == "[2/2] seed=1: done, reward -4\n"


@pytest.mark.parametrize(
    ("state", "result", "line"),
    [
        ("done", {"headline": {"name": "reward", "value": -4.01234}, "checks": {"a": True}}, "done, reward -4.012"),
        ("done", {"headline": {"name": "by", "value": "\x07"}, "checks": {}}, r"done, by \x07"),
        ("done", {"headline": None, "checks": {"a": False, "b": False}}, "done, 2 checks fail: a; b"),
        ("failed", {}, "failed"),
    ],
)
def test_the_outcome_of_a_run_is_one_line(tmp_path, state, result, line):
    assert outcome(write_run(tmp_path, state=state, result=result)) == line


def test_a_check_that_was_not_run_has_not_failed(tmp_path):
    checks = {"a": True, "b": False, "c": "not run: no GPU"}
    assert failed_checks(write_run(tmp_path, result={"headline": None, "checks": checks})) == ["b"]


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
