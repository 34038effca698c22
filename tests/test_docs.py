"""The site: every page has its place, two clicks from the front page; where Sphinx is, it is built without a warning."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import NOTEBOOKS, ROOT, need

DOCS = ROOT / "docs"
FRONT = DOCS / "index.md"
PAGES = {*DOCS.rglob("*.md"), *NOTEBOOKS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "data" / "README.md"}
TOOLS = Path(sys.prefix) / "lanes" / "docs"


def tree_of(page: Path) -> set[Path]:
    """The pages in the toctrees of a page."""
    entries = re.findall(r"^```\{toctree\}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line for text in entries for line in text.splitlines() if line and not line.startswith(":")]
    names = [re.sub(r"^.*<(.*)>$", r"\1", line) for line in lines]
    found = [there for name in names for end in (".md", ".ipynb") for there in page.parent.glob(f"{name}{end}")]
    assert len(found) >= len(names), f"{page.name}: an entry leads nowhere"
    return {path.resolve() for path in found}


def links_of(page: Path) -> set[Path]:
    if page.suffix != ".md":
        return set()
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    return {(page.parent / target).resolve() for target in targets} & PAGES


def test_every_page_is_in_one_table_of_contents():
    trees = [place for page in PAGES if page.suffix == ".md" for place in tree_of(page)]
    assert sorted(trees) == sorted(PAGES - {FRONT})


def test_every_page_is_two_clicks_from_the_front_page_also_where_no_table_of_contents_is_shown():
    one = links_of(FRONT)
    two = {there for page in one for there in links_of(page)}
    assert {FRONT} | one | two >= PAGES


def test_a_page_that_a_command_writes_names_the_command():
    commands = {"api": "docs/api.py", "cli": "docs/api.py", "rules": "docs/rules.py", "claims": "docs/claims.py"}
    commands |= {"defects": "repros/matrix.py", "error_rates": "benchmarks.verdicts.error_rates"}
    commands |= {"evidence": "benchmarks.real_weights.page", "attribution": "benchmarks.verdicts.attribution"}
    commands["what_is_tested"] = "tests/training/test_what_is_tested.py"
    commands |= {
        f"{path.parent.name}/{path.stem}": f"docs/{path.parent.name}.py" for path in DOCS.glob("[ar][pu]*/*.md")
    }
    for page, command in commands.items():
        assert command in (DOCS / f"{page}.md").read_text(encoding="utf-8"), page


def test_the_code_about_groups_of_equal_rewards_prints_what_it_says(capsys):
    page = (DOCS / "how_to" / "zero_std_is_0.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    exec(compile(code, "zero_std_is_0.md", "exec"), {})
    assert capsys.readouterr().out == "1.0\n" and "# 1.0:" in code


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    need((TOOLS / "sphinx").is_dir(), "Sphinx: make .venv/lanes/docs")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TOOLS), str(ROOT)])}
    options = ["-q", "-b", "html", "-W", "--keep-going", "-c", "docs", ".", str(tmp_path)]
    command = [sys.executable, "-m", "sphinx", *options]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    front = (tmp_path / "docs" / "index.html").read_text(encoding="utf-8")
    tutorial = (tmp_path / "notebooks" / "02_grpo_custom_stops.html").read_text(encoding="utf-8")
    assert "Am I affected?" in front
    assert "<img" in tutorial  # the stored outputs
    assert not re.search(r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//', front)  # it opens without a network
