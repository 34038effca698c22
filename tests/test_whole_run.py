"""The tests themselves: their names, their order, who shares vLLM, and what is skipped."""

import json
import os
import re
import subprocess
import sys

import pytest
import whole_run
from conftest import ROOT, daily, need


def test_the_name_of_a_test_has_at_most_60_characters():
    sources = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    names = [name for source in sources for name in re.findall(r"^ *(?:async )?def (test_\w+)", source, re.M)]
    assert names
    assert {name: len(name) for name in names if len(name) > 60} == {}


def test_all_that_starts_an_engine_or_asks_a_server_is_one_scope():
    users = ("experiments/test_sampling.py", "training/test_stopping.py", "training/test_sync_on_cpu.py")
    assert {whole_run.scope_of(f"tests/{file}") for file in users} == {"vLLM"}
    assert whole_run.scope_of("tests/runs/test_run.py") == "tests/runs/test_run.py"


def test_resumed_notebooks_are_spread_over_the_workers():
    assert whole_run.by_notebook("test_it[05_grpo_docs_example]") == "resumed 05"
    assert whole_run.by_notebook("test_it[07_one_step_recomputed]") == "resumed 07"
    assert (ROOT / whole_run.RESUMED).is_file()


def test_every_file_of_tests_has_its_seconds_and_none_is_gone():
    """A file without an entry starts as one of five seconds, and the longest no longer start first."""
    seconds = json.loads(whole_run.DURATIONS.read_text())
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert files - seconds.keys() == set(), f"measure a new file: pytest {whole_run.RECORD} FILE"
    assert [file for file in seconds if not (ROOT / file).is_file()] == []


def test_a_case_that_is_not_chosen_is_rare():
    first, second = daily([("a", 1), "b"], "b")
    assert first.values == ("a", 1) and [mark.name for mark in first.marks] == ["rare"]
    assert second.values == ("b",) and not second.marks
    with pytest.raises(AssertionError, match="no case"):
        daily(["a"], "b")


def test_a_missing_part_is_a_named_skip_and_with_ci_a_failure(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    need(True, "this")
    with pytest.raises(pytest.skip.Exception, match="needs Chromium"):
        need(None, "Chromium")
    monkeypatch.setenv("CI", "true")
    need(True, "this")
    with pytest.raises(pytest.fail.Exception, match="needs Chromium, and with CI=true nothing may be missing"):
        need(None, "Chromium")


def test_when_time_is_over_no_test_begins_and_all_are_named():
    """The two above, which need nothing, in a run of their own."""
    tests = ["tests/test_whole_run.py", "-k", "at_most_60 or one_scope", "-p", "no:cacheprovider"]
    for until, said in (("0", "2 tests not begun, their time was over: tests/test_whole_run.py"), ("inf", "2 passed")):
        run = [sys.executable, "-m", "pytest", "-q", *tests]
        process = subprocess.run(
            run, cwd=ROOT, env=os.environ | {"TESTS_BEGIN_UNTIL": until}, capture_output=True, text=True, timeout=300
        )
        assert process.returncode == 0 and said in process.stdout, process.stdout


# What is skipped for another cause than a missing part: a release of TRL or transformers, a GPU, a case without the subject.
FOR_ANOTHER_CAUSE = {
    "tests/conftest.py", "tests/test_benchmarks.py", "tests/helpers/ppo_parts.py", "tests/test_notebook_runs.py",
    "tests/test_frameworks.py", "tests/test_whole_run.py", "tests/helpers/whole_run.py",
    "tests/audit/test_corpus.py", "tests/experiments/instruments/test_attribution.py", "tests/experiments/test_recipes.py",
    "tests/training/test_sync_on_cpu.py",
    "tests/training/test_what_is_tested.py",
}  # fmt: skip


def test_no_test_skips_for_a_missing_part_on_its_own():
    skips = re.compile(r"importorskip|pytest\.skip\(|mark\.skip")
    found = {str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("*.py") if skips.search(p.read_text())}
    assert found <= FOR_ANOTHER_CAUSE
