"""The site is built without a warning. A page in no table of contents is a warning, and so is a link to nowhere."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import lab_browser
import pytest
from conftest import ROOT, need, write_notebook

DOCS = ROOT / "docs"
BUILT = {DOCS / "reference" / f"{name}.md" for name in ("api", "rules")}  # by `make docs`, not in the repository
TOOLS = Path(sys.prefix) / "lanes" / "docs"


def test_group_rewards_code_prints_what_it_says(capsys):
    page = (DOCS / "how-to" / "reward_is_flat.md").read_text(encoding="utf-8")
    (code,) = [code for code in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "pandas" in code]
    exec(compile(code, "reward_is_flat.md", "exec"), {})
    assert capsys.readouterr().out == "1.0\n" and "# 1.0:" in code


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built without a warning in a copy of the checkout that has two notebooks of the user's own."""
    need((TOOLS / "sphinx").is_dir(), "Sphinx: make .venv/lanes/docs")
    folder = tmp_path_factory.mktemp("site")
    checkout, site = folder / "checkout", folder / "site"
    generated = shutil.ignore_patterns(".*", "build", "__pycache__", "*.egg-info", *(path.name for path in BUILT))

    def left_out(folder: str, names: list[str]) -> set[str]:
        of_the_user = {"runs", "reports"} if Path(folder) == ROOT else set()
        return generated(folder, names) | of_the_user

    shutil.copytree(ROOT, checkout, ignore=left_out)
    for name in ("Untitled", "11_mine"):
        write_notebook(checkout / "notebooks" / f"{name}.ipynb", "1 + 1")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TOOLS), str(ROOT)])}
    options = ["-q", "-b", "html", "-W", "--keep-going", "-c", "docs", ".", str(site)]
    for program in ("tools.api", "tools.rules"):
        subprocess.run(
            [sys.executable, "-m", program], cwd=checkout, env=env | {"PYTHONPATH": str(checkout)}, check=True
        )
    command = [sys.executable, "-m", "sphinx", *options]
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return site


@pytest.mark.rare
@pytest.mark.slow
def test_site_is_built_next_to_a_notebook_of_ones_own(site):
    front = (site / "docs" / "index.html").read_text(encoding="utf-8")
    tutorial = (site / "notebooks" / "02_grpo_custom_stops.html").read_text(encoding="utf-8")
    assert "What you see, and why" in front
    assert not any((site / "notebooks" / f"{name}.html").exists() for name in ("Untitled", "11_mine"))
    assert "<img" in tutorial  # the stored outputs
    assert not re.search(r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//', front)  # it opens without a network
    symptoms = (site / "docs" / "how-to" / "symptoms.html").read_text(encoding="utf-8")
    assert symptoms.count('data-label="cause"') == symptoms.count("<tr") - 1 > 10  # what a phone shows above each cell
    audit = (site / "docs" / "reference" / "audit.html").read_text(encoding="utf-8")
    assert 'href="rules.html"' in audit and "check.py" not in audit  # a hosting page links to the source
    claims = (site / "docs" / "evidence" / "claims.html").read_text(encoding="utf-8")
    assert claims.count("<tr") > 49 and 'href="https://github.com/huggingface/trl/issues/2387"' in claims


@pytest.mark.rare
@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_no_line_of_code_on_the_site_is_cut(site, width):
    """Front and notebooks had lines whose end was out of sight; code and output are wrapped, a table in text scrolls."""
    need(find_spec("playwright"), "playwright")
    need(lab_browser.chromium(), "Chromium")
    with lab_browser.browsing("", viewport={"width": width, "height": 900}) as visit:
        for name in (
            "docs/index",
            "docs/how-to/check_a_step",
            "docs/start/your_own_notebook",
            "notebooks/00_start_here",
        ):
            visit.page.goto((site / f"{name}.html").as_uri())
            lines = visit.page.locator(".highlight pre")
            cut = lines.evaluate_all(
                "(all) => all.filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.innerText)"
            )
            assert lines.count() and cut == [], name
            assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


@pytest.mark.rare
@pytest.mark.slow
def test_the_site_leaves_out_the_install_cell(site):
    assert "this cell installs it" not in (site / "notebooks" / "00_start_here.html").read_text(encoding="utf-8")


TEXT_SIZES = """() => [...document.querySelectorAll("svg text")].map((e) => {
  const { a, b } = e.getScreenCTM(); return parseFloat(getComputedStyle(e).fontSize) * Math.hypot(a, b); })"""


@pytest.fixture(scope="module")
def phone():
    """A page in a window of 390 pixels."""
    need(find_spec("playwright"), "playwright")
    need(lab_browser.chromium(), "Chromium")
    with lab_browser.browsing("", viewport={"width": 390, "height": 844}) as visit:
        yield visit.page


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((DOCS / "images").glob("*.svg")), ids=lambda path: path.stem)
def test_a_drawing_can_be_read_on_a_phone(phone, path):
    """Panels side by side left labels of four pixels, on a screen of 390 pixels with margins of 16."""
    svg = path.read_text(encoding="utf-8").partition("<svg")[2]
    style = "<style>body { margin: 16px } svg { max-width: 100%; height: auto }</style>"
    phone.set_content(f"{style}<svg{svg}")
    sizes = phone.evaluate(TEXT_SIZES)
    assert sizes and min(sizes) >= 7
