"""Commands that pages show exist: subcommands and options of `workbench`, targets of make, modules, files of tests."""

import argparse
import importlib.util
import re
import shlex

import pytest
from conftest import ROOT

from workbench.cli import _parser

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "data/README.md")]
PAGES += [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "repros" / "upstream").glob("*.md"))]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
(COMMANDS,) = [a.choices for a in _parser()._actions if isinstance(a, argparse._SubParsersAction)]


def commands(text: str) -> list[list[str]]:
    """Return the words of each command: lines of blocks, and code within a sentence that has an argument."""
    text = re.sub(r"\\\n\s*", "", text)
    lines = [line.strip() for line in re.findall(r"^ {4}(.*)$|^(?:\$ )(.*)$", text, re.M) for line in line]
    lines += re.findall(r"(?<!`)`([^`\n]+ [^`\n]+)`(?!`)", text)
    starts = r"(\$ |\.venv/bin/|[A-Z_]+=\S+ )*(?=(workbench|make|python|pytest) )"
    found = [re.split(r"  | \||;| &", re.sub(starts, "", line, count=1))[0] for line in lines if re.match(starts, line)]
    return [shlex.split(line, comments=True) for line in found if line.count("'") % 2 == 0 and line.count('"') % 2 == 0]


def unknown(words: list[str]) -> str | None:
    """Return what a command names and the checkout does not have; None where all is known."""
    program, first, *rest = words
    if program == "workbench":
        if first not in COMMANDS:
            return first
        known = COMMANDS[first]._option_string_actions
        options = [word.partition("=")[0] for word in rest if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", word)]
        return next((option for option in options if option not in known), None)
    if program == "make":
        return next((word for word in [first, *rest] if re.fullmatch(r"[a-z-]+", word) and word not in TARGETS), None)
    if first == "-m":
        return None if rest[0].isupper() or rest[0].endswith("NAME") or importlib.util.find_spec(rest[0]) else rest[0]
    paths = [word for word in [first, *rest] if re.fullmatch(r"(tests|benchmarks|repros|tools|examples)/\S+\.py", word)]
    return next((path for path in paths if "FILE" not in path and not (ROOT / path).is_file()), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_of_a_page_exist(page):
    found = commands(page.read_text(encoding="utf-8"))
    assert [" ".join(words) for words in found if len(words) > 1 and unknown(words)] == []


def test_an_option_that_is_gone_is_found():
    text = "    workbench run 05 -p steps=80 -y '{a: 1}'\n\nUse `make gone`, or `workbench list 05`.\n"
    assert [unknown(words) for words in commands(text)] == ["-y", "gone", None]
