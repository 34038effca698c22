"""How a whole run of the tests is spread over workers: the longest files first, and all that needs vLLM on one worker.

`pytest --record-durations ...` writes what each file took to tests/durations.json; the next run is ordered by it.
"""

import collections
import functools
import json
import os
import re
import time
from pathlib import Path

import pytest
from trl_version import HAS_PPO

ROOT = Path(__file__).parents[2]
DURATIONS = ROOT / "tests" / "durations.json"
NEW_FILE_S = 5.0  # a file that was never recorded
RECORD = "--record-durations"
RESUMED = "tests/test_resumed_notebooks.py"  # so long that each worker takes some of its notebooks


def pytest_addoption(parser) -> None:
    about = "write the seconds of each file that runs to tests/durations.json"
    parser.addoption(RECORD, action="store_true", help=about)


class DocstringsWithoutPPO:
    """Leaves out the docstrings of modules that rest on PPO, where the installed TRL has none; `make test-ppo` has them.

    Registered by itself: a conftest's own hook is not asked about folders next to its own.
    """

    def pytest_ignore_collect(self, collection_path):
        rests_on_ppo = collection_path.name == "ppo.py"
        return True if rests_on_ppo and not HAS_PPO and ROOT / "workbench" in collection_path.parents else None


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@functools.cache
def scope_of(file: str) -> str:
    """The files that go to a worker together: a file alone, but those that share the engines and the server of vLLM."""
    path = ROOT / file
    needs_vllm = file.startswith("tests/") and re.search(r"\b(on_vllm|vllm_server)\b", path.read_text())
    return "vLLM" if needs_vllm else file


def by_notebook(test: str) -> str:
    """Each notebook by itself: `resumed 05`."""
    return "resumed " + test.partition("[")[2][:2]


def longest_first(files: list[str], seconds: dict[str, float]) -> list[str]:
    """Files, each once, in the order in which they start: scopes by their seconds, and each scope's files together."""
    of_scope: dict[str, float] = collections.defaultdict(float)
    files = list(dict.fromkeys(files))
    for file in files:
        of_scope[scope_of(file)] += seconds.get(file, NEW_FILE_S)
    return sorted(files, key=lambda file: (-of_scope[scope_of(file)], scope_of(file), -seconds.get(file, NEW_FILE_S)))


def order(items: list) -> None:
    """A worker's tests, in place; without workers they stay as they are."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        seconds = json.loads(DURATIONS.read_text()) if DURATIONS.is_file() else {}
        order = longest_first([file_of(item.nodeid) for item in items], seconds)
        place = {file: n for n, file in enumerate(order)}
        items.sort(key=lambda item: place[file_of(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class ByScope(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, test = file_of(nodeid), nodeid.partition("::")[2]
            return by_notebook(test) if file == RESUMED else scope_of(file)

    config.option.loadscopereorder = False  # by the number of their tests
    return ByScope(config, log) if config.getvalue("dist") == "loadfile" else None


# --- a run that has to end -------------------------------------------------------------------------------------------

NOT_BEGUN = "not begun: the time of this run is over"


@pytest.hookimpl(tryfirst=True)  # before a test's own fixtures
def pytest_runtest_setup(item) -> None:
    """After TESTS_BEGIN_UNTIL, in seconds since 1970, nothing begins: a slow machine runs a part, and says which part."""
    if time.time() > float(os.environ.get("TESTS_BEGIN_UNTIL", "inf")):
        pytest.skip(NOT_BEGUN)


# --- what each file takes --------------------------------------------------------------------------------------------

SPENT: dict[str, float] = collections.defaultdict(float)  # file -> seconds


def pytest_runtest_logreport(report) -> None:
    SPENT[file_of(report.nodeid)] += report.duration


def pytest_terminal_summary(terminalreporter, config) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if not_begun := [report.nodeid for report in skipped if NOT_BEGUN in str(report.longrepr)]:
        files = dict.fromkeys(map(file_of, not_begun))
        terminalreporter.write_line(
            f"{len(not_begun)} tests not begun, their time was over: {', '.join(files)}", yellow=True
        )
    if not config.getoption(RECORD):
        return
    known = json.loads(DURATIONS.read_text()) if DURATIONS.is_file() else {}
    known |= {file: round(seconds, 1) for file, seconds in SPENT.items()}
    kept = {file: s for file, s in sorted(known.items()) if (ROOT / file).is_file()}
    DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")
    areas: dict[str, float] = collections.defaultdict(float)
    for file, seconds in SPENT.items():
        areas["/".join(Path(file).parts[:2])] += seconds
    for title, rows in {"area": areas, "file": SPENT}.items():
        terminalreporter.write_sep("=", f"seconds by {title}")
        for name, seconds in sorted(rows.items(), key=lambda row: -row[1])[:25]:
            terminalreporter.write_line(f"{seconds:8.1f}  {name}")
    terminalreporter.write_line(f"{sum(SPENT.values()):8.1f}  in all")
