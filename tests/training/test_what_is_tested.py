"""The page of what is tested is written by the tests of configurations.

PYTHONPATH=.venv/lanes/trl-1.12.0 python tests/training/test_what_is_tested.py > docs/evidence/what_is_tested.md
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":  # as pytest sets it
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "helpers")]

import pytest
from configuration_runs import CONFIGS
from configuration_table import ABSENT, CELLS, CONFIGURATIONS, TESTS, TRAINERS, options_of, page
from conftest import ROOT
from trainers import STOCK
from trl_version import TRL

pytestmark = pytest.mark.slow  # they import all that trains

PAGE = ROOT / "docs" / "evidence" / "what_is_tested.md"
FILES = sorted(path.stem for path in Path(__file__).parent.glob("test_configurations*.py"))
for name in FILES:
    importlib.import_module(f"training.{name}")


@pytest.mark.skipif(TRL[:2] != (1, 12), reason="the page is of the release with PPO: `make test-ppo` compares it")
def test_the_page_is_what_the_tests_say():
    assert PAGE.read_text(encoding="utf-8") == page()


def test_no_cell_is_left_open():
    assert [f"{name}, {kind}" for name in CONFIGURATIONS for kind in TRAINERS if (name, kind) not in CELLS] == []


def test_each_cell_that_says_tested_or_refused_has_a_test_that_pytest_runs_for_it():
    shown = set()
    for name, tests in TESTS.items():
        for test in tests:
            assert getattr(sys.modules[test.__module__], test.__name__) is test  # else another has taken its name
            assert test.__name__.startswith("test_") and test.__module__.rpartition(".")[2] in FILES
            assert not {mark.name for mark in test.pytestmark} & {"skip", "skipif", "xfail"}
            arguments = [mark.args for mark in test.pytestmark if mark.name == "parametrize"]
            shown |= {(name, kind) for kind in TRAINERS for _, values in arguments if mentions(values, name, kind)}
    assert shown == {cell for cell, text in CELLS.items() if text == "tested" or text.startswith("refused: ")}


def mentions(values, name: str, kind: str) -> bool:
    """Whether a test runs for a trainer: as `kind`, as `(kind, message)`, or as `(configuration, kind)`."""
    alone = (kind, (name, kind))
    return any(value in alone or (isinstance(value, tuple) and value[:1] == (kind,)) for value in values)


def test_every_option_that_the_page_says_trl_lacks_is_lacking():
    assert ABSENT
    for name, kind, option in ABSENT:
        assert option not in options_of(STOCK[kind], CONFIGS[kind]), f"{name}: {kind} has {option} now"


if __name__ == "__main__":
    sys.stdout.write(page())
