"""No two pages contradict each other on a number.

Every number of these subjects is collected from README, docs and the text and results of notebooks. It is compared with its
source, or, where no file holds it, with the other pages. The test sees what `SUBJECTS` lists and nothing else: a number in
other words, in a picture or about another subject passes.
"""

import ast
import functools
import json
import re
import tomllib
from collections.abc import Callable

import pytest
from conftest import NOTEBOOKS, ROOT

import workbench
from workbench.audit.check import RULES
from workbench.audit.report import audit_run
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


def releases() -> float:
    return len({release for cells in DEFECTS.values() for release in cells})


def still_present() -> float:
    return sum(cells.get(NEWEST, {}).get("state") == "present" for cells in DEFECTS.values())


def documented_steps() -> float:
    (path,) = [path for path in NOTEBOOKS if path.stem.startswith("05_")]
    return number(re.search(r"documented (\d+)\)", path.read_text(encoding="utf-8"))[1])


def logged_as_truncated() -> float:

    (run,) = audit_run(ROOT / "data" / "audit" / "masked_stops").runs
    (finding,) = [f for f in run.findings if f.rule == "false-clipping"]
    return round(100 * finding.evidence["logged clipped ratio"])


def core_limit() -> float:
    source = (ROOT / "tests" / "test_package.py").read_text()
    return number(re.search(r"LIBRARY_LINES = (\d+)", source)[1])


def top_names() -> float:
    tree = ast.parse((ROOT / "workbench" / "__init__.pyi").read_text())
    return len(next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)))


def python_release() -> float:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    return float(asked.removeprefix(">="))


def minor(release: str) -> float:
    return float(release.rpartition(".")[0])


# Subject -> how it is written, with {n} for the number, and its value; None where only the pages are compared.
SUBJECTS: dict[str, tuple[str, Callable[[], float] | None]] = {
    "rules of the audit": (r"the {n} rules\b", lambda: len(RULES)),
    "known defects": (r"{n} known defects", lambda: len(DEFECTS)),
    "releases of TRL that were tried": (r"{n} releases(?: from|, 1\.0\.0)", releases),
    "defects in the newest TRL": (
        rf"{{n}} (?:are still present|defects that are present) in (?:TRL )?{re.escape(NEWEST)}", still_present),
    "oldest TRL": (r"TRL {n} to 1\.\d+", lambda: minor(OLDEST)),
    "newest TRL": (r"TRL 1\.\d+ to {n}", lambda: minor(NEWEST)),
    "Python": (r"Python {n} or newer", python_release),
    "names at the top": (r"has {n} names\b", top_names),
    "lines of the core": (r"at most {n} lines: stops", core_limit),
    "notebooks": (r"library and {n} notebooks", lambda: len(NOTEBOOKS)),
    "runs made for the audit": (r"{n} small real runs", lambda: len(CORPUS)),
    "faults among them": (r"runs of stock TRL .*?: {n} faults", None),
    "parameters of the toy": (r"{n} (?:M|million)(?:-| )parameters?", None),
    "steps of the documented example": (r"documented numbers \({n} steps", documented_steps),
    "completions of the bundled run that TRL logged as truncated": (r"TRL logged that {n}% of its", logged_as_truncated),
    "largest difference, clean steps of the starter": (
        r"{n} nats(?: at most<br>`| \(`)python -m benchmarks\.cost\.sampler_probe", None),
    "largest difference, clean steps of gemma": (r"(?:clean: |differs by ){n} nats at most", None),
    "reward with masking, stock TRL": (r"stock TRL [\d.]+ ends at a reward of {n} and", None),
    "reward with masking, workbench": (r"ends at a reward of [\d.]+ and the workbench at {n},", None),
}  # fmt: skip
ON_ONE_PAGE = {"names at the top", "lines of the core", "notebooks", "runs made for the audit", "faults among them",
               "known defects"}  # fmt: skip
OTHER_MODELS = {268.0}  # million parameters: gemma-3-270m


def stated(subject: str) -> dict[str, list[float]]:
    """Page -> the numbers that it gives for a subject."""
    pattern = re.compile(SUBJECTS[subject][0].replace("{n}", N), re.I)
    found = {name: [number(m[1]) for m in pattern.finditer(text)] for name, text in pages().items()}
    return {name: numbers for name, numbers in found.items() if numbers}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_all_pages_give_the_same_number(subject):
    found, source = stated(subject), SUBJECTS[subject][1]
    numbers = {n for given in found.values() for n in given} - OTHER_MODELS
    assert len(numbers) == 1, f"{subject}: {found}"
    if source is not None:
        assert numbers == {float(source())}, f"{subject}: {found}"
    compared = len(found) > 1 or source is not None or subject in ON_ONE_PAGE
    assert compared, f"{subject}: on {list(found)} alone"


def test_the_version_is_the_same_everywhere():
    texts = pages()
    assert f"version: {workbench.__version__}" in texts["CITATION.cff"]
    assert f"## {workbench.__version__} " in texts["CHANGELOG.md"]


def test_a_contradiction_is_found(monkeypatch):
    texts = {"a": "Each of the 24 rules has a page.", "b": "the 23 rules"}
    monkeypatch.setitem(globals(), "pages", lambda: texts)
    with pytest.raises(AssertionError, match="rules of the audit"):
        test_all_pages_give_the_same_number("rules of the audit")
