import ast
import re

import pytest
from conftest import ROOT

import workbench
from tools.api import pages

PARTS = (
    "audit",
    "conform",
    "consistency",
    "curves",
    "generation",
    "experiments",
    "logs",
    "replay",
    "reward",
    "runs",
    "watch",
)
STUBS = [ROOT / "workbench" / "__init__.pyi", *(ROOT / "workbench" / part / "__init__.pyi" for part in PARTS)]


def listed_names(stub=STUBS[0]) -> list[str]:
    """All names of a stub; without PPO in TRL `workbench.__all__` leaves its trainer out."""
    (listed,) = [ast.literal_eval(n.value) for n in ast.parse(stub.read_text()).body if isinstance(n, ast.Assign)]
    return sorted(listed)


def test_the_top_has_about_twenty_names():
    assert len(listed_names()) <= 22
    assert set(listed_names()) - set(workbench.__all__) <= {"PPOTrainer"}


@pytest.mark.parametrize("stub", STUBS, ids=lambda p: p.parent.name)
def test_the_stub_lists_what_it_imports(stub):
    nodes = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom) and node.module]
    assert sorted(alias.name for node in nodes for alias in node.names) == listed_names(stub)


@pytest.mark.slow  # imports TRL, and vLLM with it
def test_every_name_is_loaded_when_it_is_used_and_listed_before():
    from importlib import import_module

    assert set(workbench.__all__) <= set(dir(workbench))
    for stub in STUBS:
        part = import_module(".".join(stub.parent.relative_to(ROOT).parts))
        for name in listed_names(stub):
            if name == "PPOTrainer" and "PPOTrainer" not in workbench.__all__:
                continue
            assert getattr(part, name).__name__ == name


@pytest.mark.slow
def test_a_function_is_found_behind_a_module_of_the_same_name():
    import workbench.consistency.padding_report  # noqa: F401
    from workbench.consistency import padding_report

    assert callable(padding_report)


def test_reference_lists_the_names_at_the_top():
    assert set(re.findall(r"^## (\w+)$", pages()["reference/api.md"], re.M)) == set(listed_names())
