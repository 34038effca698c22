import ast
import doctest
import re

import pytest
from conftest import ROOT

import workbench

PAGE = ROOT / "docs" / "api.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def listed_names() -> list[str]:
    """All names of the stub; without PPO in TRL `workbench.__all__` leaves out two."""
    tree = ast.parse((ROOT / "workbench" / "__init__.pyi").read_text())
    (listed,) = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)]
    return sorted(listed)


def test_the_page_names_the_whole_face_each_with_a_sentence_and_an_example():
    entries = re.findall(r"^### (\w+)\n(.+)\n\n((?:    .*\n)+)", PAGE.read_text(encoding="utf-8"), re.M)
    assert sorted(name for name, _, _ in entries) == listed_names()
    for name, sentence, example in entries:
        assert sentence.endswith("."), name
        assert ">>> " in example, name


@pytest.mark.slow  # imports TRL, and vLLM with it
def test_every_name_is_loaded_when_it_is_used_and_listed_before():
    assert set(workbench.__all__) <= set(dir(workbench))
    for name in workbench.__all__:
        assert getattr(workbench, name).__name__ == name


def test_the_stub_lists_what_it_imports():
    tree = ast.parse((ROOT / "workbench" / "__init__.pyi").read_text())
    imported = [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(imported) == listed_names()
    assert set(listed_names()) - set(workbench.__all__) <= {"PPOTrainer", "train_ppo"}


@pytest.mark.slow
def test_the_examples_of_the_page_give_what_it_says(starter_folder):
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, optionflags=FLAGS, encoding="utf-8")
    assert failed == 0 and tried > 50
