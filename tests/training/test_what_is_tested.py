"""The page of what is tested is written by the table of options and its tests.

PYTHONPATH=.venv/lanes/trl-1.12.0:. python tests/training/test_what_is_tested.py
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":  # as pytest sets it
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "helpers")]

import pytest
from configuration_table import PAGE, TABLE, TESTS, page, sheet, write
from trl_version import TRL

pytestmark = pytest.mark.slow  # they import all that trains

for name in sorted(path.stem for path in Path(__file__).parent.glob("test_configurations*.py")):
    importlib.import_module(f"training.{name}")


@pytest.mark.skipif(TRL[:2] != (1, 12), reason="the page is of the release with PPO: `make test-ppo` compares it")
def test_page_is_what_the_tests_say():
    assert PAGE.read_text(encoding="utf-8") == page()
    assert PAGE.with_suffix(".csv").read_text(encoding="utf-8") == sheet()


def test_each_cell_that_says_tested_or_refused_has_a_test():
    for test, *_ in TESTS:
        assert getattr(sys.modules[test.__module__], test.__name__) is test  # else another has taken its name
        assert test.__name__.startswith("test_") and not {m.name for m in test.pytestmark} & {"skip", "skipif", "xfail"}
    assert all(
        "GRPO" in row.tested() for row in TABLE.values() if row.needs
    )  # else a misspelt name says that TRL lacks it
    expected = {(name, kind) for name, row in TABLE.items() for kind in [*row.tested(), *row.refused]}
    assert {(name, kind) for _, name, kind, _ in TESTS} == expected


if __name__ == "__main__":
    write()
