"""What reports cost: building one, opening it in Chromium, an index of many runs sorted and filtered, markup that is
slow to parse, redacting a megabyte.

    python benchmarks/reports.py [--runs 1000] [--out FILE.json]

Runs are made by hand in a temporary folder; medians of 5, page loads with the network off.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from conftest import write_run
from report_samples import METRICS, RESULT, hostile_run, write_notebook_of

from workbench.reports import build_index, build_report
from workbench.reports.clean import clean_html
from workbench.reports.redact import Redactor
from workbench.runs.environment import hardware

PIECES = [
    "x",
    "hf_",
    "/a",
    '"/',
    "a.",
    "sk-",
    "eyJ",
    "TOKEN_",
    "1.",
    "f:",
    "http://",
    "a@",
    "-",
    " ",
    "\\",
    "-----BEGIN PRIVATE KEY-----",
]

MARKUP = ["<a ", "<div>", "<div><b>", "<b x=#><p>", "<table>x<b x=#>", "<p><b x=#></p>"]  # what parsers dislike


def seconds(call, repeats: int = 5) -> float:
    took = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def many_runs(root: Path, count: int) -> list:
    runs = []
    for n in range(count):
        run = write_run(root, f"2026-{n:04}", result=RESULT, metrics=METRICS, params={"seed": n, "model": "starter"})
        if runs:
            shutil.copy(runs[0].path / "executed.ipynb", run.path)
        else:
            write_notebook_of(run, ["a", "b"])
        runs.append(run)
    return runs


def long_notebook(root: Path):
    run = write_run(root / "long")
    cells = [{"cell_type": "code", "source": "x = 1\n" * 3000, "outputs": [], "metadata": {}}] * 2000
    (run.path / "executed.ipynb").write_text(json.dumps({"cells": cells}))
    return run


def in_browser(report: Path, index: Path) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        found = {
            "open a report": seconds(lambda: page.goto(report.as_uri())),
            "open the index": seconds(lambda: page.goto(index.as_uri())),
        }
        heads = page.locator("th button")
        found["sort the index"] = seconds(lambda: (heads.nth(4).click(), page.evaluate("document.body.offsetHeight")))
        words = iter(["2026-00", "seed=7", "done 9", "starter", "x y"])
        found["filter the index"] = seconds(
            lambda: (page.fill("#filter-text", next(words)), page.evaluate("document.body.offsetHeight"))
        )
        browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        hostile = hostile_run(root / "hostile")
        build_report(hostile)  # warm-up: imports
        runs = many_runs(root / "runs", args.runs)
        found = {"build a report of hostile text": seconds(lambda: build_report(hostile))}
        found["build a report"] = seconds(lambda: build_report(runs[0]))
        bare = [write_run(root / "bare", f"2026-{n:04}", result=RESULT) for n in range(args.runs)]
        found[f"reports and index of {args.runs} bare runs"] = seconds(lambda: build_index(bare, root / "bare-out"), 1)
        found[f"reports and index of {args.runs} runs with notebooks"] = seconds(
            lambda: build_index(runs, root / "out"), 1
        )
        found["build a report of 2,000 code cells"] = seconds(lambda: build_report(long_notebook(root)), 1)
        found |= in_browser(hostile.path / "report.html", root / "out" / "index.html")
    redact = Redactor(("a-host",), ("a-user",)).text
    for piece in MARKUP:
        source = "".join(piece.replace("#", str(n)) for n in range(100_000 // len(piece)))
        found[f"clean 100 kB of {piece}"] = seconds(lambda source=source: clean_html(source), 1)
    found["redact the worst megabyte"] = max(
        seconds(lambda piece=piece: redact(piece * (1_000_000 // len(piece))), 1) for piece in PIECES
    )
    print(json.dumps({k: round(v, 3) for k, v in found.items()}, indent=1))
    if args.out:
        args.out.write_text(json.dumps({"environment": hardware(), "seconds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
