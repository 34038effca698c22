"""Pages, and the text and results of notebooks, give the numbers that their sources have.

The test sees what `SUBJECTS` lists: a number in other words, in a picture or about another subject passes.
"""

import functools
import json
import re
from collections import Counter
from collections.abc import Callable

import pytest
from conftest import NOTEBOOKS, ROOT

import workbench
from benchmarks.documented_page import OWN
from workbench.audit.check import RULES
from workbench.audit.report import audit_run
from workbench.curves.documented import list_baselines, load_baseline, load_sources
from workbench.curves.place import RISES, UNCLEAR, trend
from workbench.trl_release import NEWEST, OLDEST

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
NAMES += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"]
N = rf"(\d[\d,]*(?:\.\d+)?(?:e-?\d+)?|{'|'.join(NAMES)})"
DEFECTS = json.loads((ROOT / "data" / "defects.json").read_text())["results"]
CORPUS = json.loads((ROOT / "tests" / "audit" / "corpus" / "manifest.json").read_text())


@functools.cache
def pages() -> dict[str, str]:
    """Name -> text; of a notebook its prose and the results that it printed."""
    paths = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "data/README.md", "CITATION.cff")]
    paths += sorted((ROOT / "docs").rglob("*.md"))
    found = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        prose = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        outputs = [out.get("data", {}) for cell in cells for out in cell.get("outputs", ())]
        results = ["".join(data.get("text/plain", "")) for data in outputs]
        found[path.name] = "\n".join(prose + [t for t in results if re.match("passed|failed|inconclusive", t)])
    return {name: " ".join(text.split()) for name, text in found.items()}


def number(text: str) -> float:
    return float(NAMES.index(text.lower())) if text.lower() in NAMES else float(text.replace(",", ""))


def found_in(place: str, pattern: str) -> float:
    """Return the number in a file of the checkout."""
    return number(re.search(pattern, (ROOT / place).read_text(encoding="utf-8"))[1])


def logged_as_truncated() -> float:
    (run,) = audit_run(ROOT / "data" / "audit" / "masked_stops").runs
    (finding,) = [f for f in run.findings if f.rule == "false-clipping"]
    return round(100 * finding.evidence["logged clipped ratio"])


@functools.cache
def verdicts_of_others() -> Counter:
    """Count the verdicts on the reward curves that others published."""
    own = {row["run"] for row in load_sources() if row["repository"] == OWN}
    runs = [load_baseline(name) for name in list_baselines() if name not in own]
    return Counter(trend(run.curve()).word for run in runs if "reward" in run.curves)


def minor(release: str) -> float:
    return float(release.rpartition(".")[0])


# How a number is written, with {n} in its place -> its value.
SUBJECTS: dict[str, Callable[[], float]] = {
    r"the {n} rules\b": lambda: len(RULES),
    r"{n} known defects": lambda: len(DEFECTS),
    r"{n} releases(?: from|, 1\.0\.0)": lambda: len({name for cells in DEFECTS.values() for name in cells}),
    rf"{{n}} (?:are still present|defects that are present) in (?:TRL )?{re.escape(NEWEST)}": lambda: sum(
        cells.get(NEWEST, {}).get("state") == "present" for cells in DEFECTS.values()
    ),
    r"TRL {n} to 1\.\d+": lambda: minor(OLDEST),
    r"TRL 1\.\d+ to {n}": lambda: minor(NEWEST),
    r"Python {n} or newer": lambda: found_in("pyproject.toml", r'requires-python = ">=([\d.]+)"'),
    r"{n} small real runs": lambda: len(CORPUS),
    r"documented numbers \({n} steps": lambda: found_in("notebooks/05_grpo_docs_example.ipynb", r"documented (\d+)\)"),
    r"of a toy, TRL logged that {n}% of the": logged_as_truncated,
    r"\bof {n} curves that others published": lambda: sum(verdicts_of_others().values()),
    r"curves that others published {n} are called rising": lambda: verdicts_of_others()[RISES],
    r"\b{n} of \d+ curves that others published are called rising": lambda: verdicts_of_others()[RISES],
    r"curves that others published \d+ are called rising[^;]*; {n} are inconclusive": lambda: verdicts_of_others()[
        UNCLEAR
    ],
}


def stated(pattern: str) -> dict[str, list[float]]:
    """Page -> the numbers that it gives."""
    found = {
        name: [number(m[1]) for m in re.finditer(pattern.replace("{n}", N), text, re.I)]
        for name, text in pages().items()
    }
    return {name: numbers for name, numbers in found.items() if numbers}


@pytest.mark.parametrize("pattern", SUBJECTS)
def test_pages_give_the_number_of_its_source(pattern):
    found = stated(pattern)
    assert {n for given in found.values() for n in given} == {float(SUBJECTS[pattern]())}, found


def test_version_is_the_same_everywhere():
    texts = pages()
    assert f"version: {workbench.__version__}" in texts["CITATION.cff"]
    assert f"## {workbench.__version__} " in texts["CHANGELOG.md"]
