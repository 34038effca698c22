import ast

import pytest

from tools.mutants import MUTANTS, ROOT, chosen


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mutant_changes_one_place_that_is_there(mutant):
    changed = mutant.source()
    assert changed != (ROOT / "workbench" / mutant.file).read_text()
    if mutant.file.endswith(".py"):
        ast.parse(changed)
    assert all((ROOT / test.partition("::")[0]).is_file() for test in mutant.tests)


def test_mutants_are_chosen_by_a_word_of_their_name():
    assert [mutant.name for mutant in chosen(["flushed"])] == ["rows are not flushed"]
    assert chosen([]) == MUTANTS
