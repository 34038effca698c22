"""What the completions microscope costs: writing the page of 100,000 completions, its size, opening and searching it.

    python benchmarks/microscope.py [--completions 100000] [--characters 400] [--out FILE.json]

Texts are made of random words, which compress worse than a model's. Opening is timed from the navigation to the first group
on the screen, in Chromium with the network off; medians of 5.
"""

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import pandas as pd

from workbench.reports.microscope import write_microscope
from workbench.runs.completions import append_table
from workbench.runs.environment import hardware
from workbench.runs.secrets import hide_tokens

GROUP, GROUPS = 8, 16  # completions of a prompt, prompts of a step


def record(folder: Path, completions: int, characters: int) -> None:
    """A run's completions by hand: rewards rise, the share that is cut off falls."""
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(20_000)]
    table: dict[str, list] = {
        name: [] for name in ("step", "prompt", "completion", "reward", "advantage", "finish_reason")
    }
    for n in range(completions):
        step = 1 + n // (GROUP * GROUPS)
        row = [step, f"Question {n // GROUP}: " + " ".join(chance.choices(words, k=20))]
        row += [" ".join(chance.choices(words, k=characters // 6)), chance.random() * step, chance.gauss(0, 1)]
        row += ["length" if chance.random() < 1 / step else "stop"]
        for values, value in zip(table.values(), row, strict=True):
            values.append(value)
    folder.mkdir(parents=True)
    frame = pd.DataFrame(table)
    frame["prompt"] = frame.groupby([frame.index // GROUP])["prompt"].transform("first")
    append_table(folder, frame)


def in_browser(page_file: Path) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    opened, searched = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(5):
            page = browser.new_context(offline=True).new_page()
            start = time.perf_counter()
            page.goto(page_file.as_uri())
            page.locator(".card").first.wait_for()
            opened.append(time.perf_counter() - start)
            start = time.perf_counter()
            page.fill("#filter-text", "zz")
            page.locator("#count", has_text=" groups of ").wait_for(timeout=120_000)
            searched.append(time.perf_counter() - start)
            page.close()
        browser.close()
    return {"open, s": statistics.median(opened), "search all texts, s": statistics.median(searched)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--completions", type=int, default=100_000)
    parser.add_argument("--characters", type=int, default=400)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        record(root, args.completions, args.characters)
        start = time.perf_counter()
        page = write_microscope(root, root / "microscope.html", "Completions", hide_tokens)
        found = {"write, s": time.perf_counter() - start, "page, MB": page.stat().st_size / 1e6}
        found |= in_browser(page) | ({"sampled": True} if "<strong>Sampled" in page.read_text() else {})
    print(json.dumps({k: v if v is True else round(v, 2) for k, v in found.items()}, indent=1))
    if args.out:
        args.out.write_text(json.dumps({"environment": hardware(), "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
