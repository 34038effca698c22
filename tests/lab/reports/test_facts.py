from conftest import write_run
from report_samples import result_row

from workbench.lab.reports import facts
from workbench.lab.reports.redact import Redactor
from workbench.runs.files import write_json
from workbench.runs.secrets import hide_tokens

TIMES = {"queued": 0, "running": 10.0, "done": 100.0}


def test_a_value_of_a_table_is_short():
    assert [facts.number(v) for v in (3.14159265, 3, True, None, "x")] == ["3.142", "3", "True", "None", "x"]
    assert len(facts.number("x" * 9000)) < 2100
    assert facts.shown({"a": ["hi", 1]}, str.upper) == {"A": ["HI", 1]}


def test_times_are_in_utc_and_a_run_that_ended_has_a_duration():
    told = facts.times({"state": "done", "times": TIMES | {"failed": "yesterday"}, "ran_s": 90.0})
    assert told["running"] == "1970-01-01 00:00:10 UTC"
    assert told["took"] == "90 s"
    assert "failed" not in told


def test_the_environment_is_one_line_each():
    env = {"packages": {"trl": "1.12.0", "torch": "2.13"}, "gpus": [], "git_commit": "", "argv": ["run", "a b"],
           "seed": None}  # fmt: skip
    assert facts.environment(env) == {"packages": "trl 1.12.0, torch 2.13", "argv": "run 'a b'"}


def test_progress_names_the_steps_and_the_last_numbers(tmp_path):
    run = write_run(tmp_path, metrics=[{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.23456}])
    write_json(run.path / "progress.json", {"step": 2, "max_steps": 9})
    assert facts.progress(run) == {"steps": "2 of 9", "last logged step": "2", "last logged loss": "1.235"}
    assert facts.progress(write_run(tmp_path, "2026-2")) == {}


def test_a_logs_end_is_shown_even_from_within_a_character(tmp_path):
    run = write_run(tmp_path)
    assert facts.log_tail(run, str) == ""
    (run.path / "log.txt").write_text("é" * 50_000 + "z", encoding="utf-8")
    tail = facts.log_tail(run, str)
    assert tail.endswith("éz")
    assert len(tail) <= 4000


def test_first_and_last_completions_have_the_columns_of_a_report(tmp_path):
    run = write_run(tmp_path, completions=[{"step": n, "completion": "x", "other": 1} for n in range(32)])
    rows, total, _ = facts.sample_completions(run)
    assert rows == [{"step": n, "completion": "x"} for n in (0, 1, 2, 3, 4, 27, 28, 29, 30, 31)]
    assert total == 32


def test_limits_are_sentences_about_this_run(tmp_path):
    run = write_run(tmp_path, state="failed", params={"model": "starter"})
    lines = facts.limits(run, run.status, {"results": [result_row("a", False)]}, {"git_commit": "abc"}, None)
    assert [line.split(":")[0] for line in lines] == ["The run failed", "Toy scale", "Failed"]
    assert "No environment was recorded" in facts.limits(run, run.status, {}, {}, None)[-1]


def test_what_was_not_run_is_grouped_by_its_reason():
    results = [result_row(name, None, "not run: no GPU") for name in "ab"]
    results += [result_row("c", None, "not run: no server", "A1"), result_row("d", None, "its interval holds 1")]
    assert facts.check_limits({"results": results}) == [
        "Not run (no GPU): “a”, “b”.",
        "Not run (no server): “c”.",
    ]


def test_what_differs_between_runs_is_told_from_what_they_share():
    assert facts.differing([{"a": 1, "b": 1}, {"a": 1, "b": 2, "c": 3}]) == ({"a": 1}, ["b", "c"])
    assert facts.differing([]) == ({}, [])


def test_a_secret_on_the_cut_of_a_log_is_not_shown_in_part(tmp_path):
    run = write_run(tmp_path)
    for characters in range(3970, 4010, 3):
        (run.path / "log.txt").write_text("x" * 9000 + " hf_" + "S3cret" * 6 + " " + "y" * characters)
        assert "S3cret" not in facts.log_tail(run, hide_tokens)


def test_colours_hide_no_host_and_no_path_of_a_log(tmp_path):
    run = write_run(tmp_path)
    (run.path / "log.txt").write_text("on \x1b[1mgpu\x1b[0m17: saved to \x1b[32m/scratch/\x1b[0malice/acme\n")
    shown = facts.log_tail(run, Redactor(hosts=["gpu17"]).text)
    assert "gpu17" not in shown and "alice" not in shown and "\x1b" not in shown
