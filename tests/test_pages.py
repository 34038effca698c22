"""Every page that a command writes is what the command writes now, where it needs no model."""

import csv
import json
import re
import runpy

import pytest
from conftest import ROOT

from benchmarks import pages as measured_pages
from tools.record import MEASURED, made_with

DOCS = ROOT / "docs"


def program(name: str) -> dict:
    """Load a program that writes pages, from the folder that it is in."""
    paths = (ROOT / folder / f"{name}.py" for folder in ("tools", "repros"))
    return runpy.run_path(str(next(path for path in paths if path.is_file())))


def pages_of(command: str) -> dict:
    if command == "benchmarks.pages":
        return measured_pages.pages()
    if command == "matrix":
        results = json.loads((ROOT / "data" / "defects.json").read_text())
        made, steps = program(command), json.loads((ROOT / "data" / "step_releases.json").read_text())
        defects, releases = DOCS / "evidence" / "defects.md", DOCS / "evidence" / "step_releases.md"
        pages = {defects: made["page"](results), releases: made["step_page"](steps, results)}
        sheets = {defects: made["defects_csv"](results), releases: made["step_csv"](steps)}
        return pages | {page.with_suffix(".csv"): text for page, text in sheets.items()}
    return {DOCS / "reference" / "cli.md": program(command)["cli_page"]()}


@pytest.mark.parametrize("command", ["api", "benchmarks.pages", "matrix"])
def test_generated_pages_are_up_to_date(command):
    pages = pages_of(command)
    stale = [str(path.relative_to(ROOT)) for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    assert pages and stale == [], f"written by {command}"


@pytest.mark.slow
def test_page_of_rules_has_a_section_for_each():
    from workbench.audit.check import RULES
    from workbench.audit.rule import Rule

    rules = program("rules")
    page = rules["page"]()
    assert re.findall(r"^## (.+)$", page, re.M) == [rule.name for rule in RULES]
    assert page.count("**When it is wrong.**") == len(RULES)
    with pytest.raises(LookupError, match="prose: no log shows it; add one to MADE_UP"):
        rules["section"](Rule(prose))


@pytest.mark.parametrize("path", sorted(MEASURED.rglob("*.json")), ids=lambda path: path.stem)
def test_results_hold_commit_versions_and_date(path):
    found = json.loads(path.read_text(encoding="utf-8"))
    if path.name == "claims.json":  # sentences about the results next to it
        return
    for one in found.get("rows", {}).values() or found.get("trainings") or [found]:
        here = one.get("environment") or one.get("made") or one["settings"]["environment"]
        text = made_with({"environment": here, "stored_in": one.get("stored_in", {})})
        words = ["TRL 1.", "transformers 5.", "torch", "workbench 0.", "2026-"]
        assert all(word in text for word in words)
        assert "vLLM" in text or path.name == "gpu.json"  # that machine has none
        assert "commit " in text or "stored in " in text


def prose(text: str) -> str:
    """Return a page without its tables, code, directives and comments."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", text, flags=re.M | re.S)
    return "\n".join(line for line in text.splitlines() if not line.startswith(("|", "    ")))


# The pages that are in the repository; the others are built for the site.
COMMITTED = [path for path in DOCS.rglob("*.md") if path.name not in ("api.md", "rules.md")]


def test_docs_have_at_most_30000_words():
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in COMMITTED) <= 30_000


def test_changelog_has_at_most_300_words_until_a_release():
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split()) <= 300


@pytest.mark.parametrize("path", sorted((DOCS / "evidence").glob("*.md")), ids=lambda path: path.stem)
def test_a_page_of_evidence_has_at_most_600_words_of_prose(path):
    assert len(prose(path.read_text(encoding="utf-8")).split()) <= 600


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_longer_table_is_a_csv_next_to_its_page(path):
    text = path.read_text(encoding="utf-8")
    assert max((block.count("\n") - 2 for block in re.findall(r"(?:^\|.*\n)+", text, re.M)), default=0) <= 40
    shown = re.findall(r"^```\{csv-table\}\n:file: (.+)$", text, re.M)
    assert shown == re.findall(r"\[(\w+\.csv)\]\(\1\)", text)
    for name in shown:
        with (path.parent / name).open(encoding="utf-8", newline="") as file:
            head, *rows = csv.reader(file)
        assert rows and {len(row) for row in rows} == {len(head)}, name


def test_every_csv_is_shown_by_one_page():
    shown = [path.parent / name for path in COMMITTED for name in re.findall(r"^:file: (.+)$", path.read_text(), re.M)]
    assert sorted(shown) == sorted(DOCS.rglob("*.csv"))
