"""Every page that a command writes is what the command writes now, where it needs no model."""

import json
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
        defects, releases = (next(DOCS.rglob(f"{page}.md")) for page in ("defects", "step_releases"))
        return {defects: made["page"](results), releases: made["step_page"](steps, results)}
    if command == "rules":
        return {DOCS / "reference" / "rules.md": program(command)["page"]()}
    return {DOCS / place: text for place, text in program(command)["pages"]().items()}


@pytest.mark.parametrize(
    "command", ["api", "benchmarks.pages", "matrix", pytest.param("rules", marks=pytest.mark.slow)]
)
def test_generated_pages_are_up_to_date(command):
    pages = pages_of(command)
    stale = [str(path.relative_to(ROOT)) for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    assert pages and stale == [], f"written by {command}"


def test_pages_name_the_command_that_writes_them():
    names = {path: "benchmarks.pages" for path in DOCS.rglob("*.md") if path.name in measured_pages.PAGES}
    names |= {next(DOCS.rglob(f"{page}.md")): command for page, command in WRITTEN_BY.items()}
    assert [path.name for path, command in names.items() if command not in path.read_text(encoding="utf-8")] == []
    assert len(names) == len(measured_pages.PAGES) + len(WRITTEN_BY)


WRITTEN_BY = {
    "api": "tools.api",
    "cli": "tools.api",
    "rules": "tools.rules",
    "claims": "tools.claims",
    "defects": "repros/matrix.py",
    "step_releases": "repros/matrix.py",
}
WRITTEN_BY |= {"what_is_tested": "tests/training/test_what_is_tested.py"}


@pytest.mark.parametrize("path", sorted(MEASURED.rglob("*.json")), ids=lambda path: path.stem)
def test_results_hold_commit_versions_and_date(path):
    found = json.loads(path.read_text(encoding="utf-8"))
    if path.name == "claims.json":  # sentences about the results next to it
        return
    for one in found.get("rows", {}).values() or found.get("trainings") or [found]:
        here = one.get("environment") or one.get("made") or one["settings"]["environment"]
        text = made_with({"environment": here, "stored_in": one.get("stored_in", {})})
        assert all(word in text for word in ("TRL 1.", "transformers 5.", "vLLM", "torch", "workbench 0.", "2026-"))
        assert "commit " in text or "stored in " in text
