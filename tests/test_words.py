"""Plain English: no page, notebook, message or docstring has a word that readers stumbled over. Sentences it cannot judge."""

import ast
import json
import re

import pytest
from conftest import NOTEBOOKS, ROOT

# The word, and what to write instead. "truncated", "completion" and the like are also used for other things, so no test asks.
BANNED = {
    r"beside": "with, next to, in addition to",
    r"mend(s|ed)?|healed": "fixed, repaired",
    r"in vain": "wasted",
    r"told|tells": "shows, says, prints, logs, reports",
    r"(defects?|it|each) lives|lives in \d": "present",
    r"the house": "the project",
    r"said once": "defined once",
    r"anew": "again",
    r"theirs": "name the owner",
    r"as if cut off|tak(e|es|en|ing) for cut": "counted as truncated",
    r"not so:": "say what is",
    r"we would be wrong": "Hypothesis",
    r"from workbench import \*": "import the names",
    r"pip install [\"'`]?workbench": "the checkout: the index has another project under this name",
}
PATTERN = re.compile("|".join(rf"(?:\b|^)(?:{words})(?:\b|$)" for words in BANNED), re.I)
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "AGENTS.md")]
PAGES += [ROOT / "data/README.md", ROOT / "repros/notes.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
TEMPLATES = sorted(p for p in (ROOT / "workbench").rglob("templates/*") if p.is_file())
CODE = sorted((ROOT / "workbench").rglob("*.py"))


def banned(text: str) -> list[str]:
    """The banned words of a text, each with its surroundings. What a program printed, in double backticks, is left alone."""
    text = re.sub(r"``[^`]+``", "", text)
    return [text[max(0, m.start() - 30) : m.end() + 30].replace("\n", " ") for m in PATTERN.finditer(text)]


@pytest.mark.parametrize("path", [*PAGES, *TEMPLATES], ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_has_no_banned_word(path):
    assert banned(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_text_of_a_notebook_has_no_banned_word(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    prose = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    assert [found for text in prose if (found := banned(text))] == []


def test_no_message_and_no_docstring_has_a_banned_word():
    found = []
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found += [f"{path.relative_to(ROOT)}:{node.lineno}: {text}" for text in banned(node.value)]
    assert found == []


def test_the_words_are_found_where_they_stand():
    assert len(banned("It tells. A defect lives in 1.16; `pip install workbench[lab]`; mended, in vain.")) == 5
    assert banned("The besides of amends; ``alone and beside a longer prompt``; pip install . in the checkout") == []
