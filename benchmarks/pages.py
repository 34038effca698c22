"""Writes every page and figure that is made of data/measured/ and data/baselines/: `python -m benchmarks.pages`.

A hand-written page has its measured parts between `<!-- measured: NAME -->` and `<!-- end -->`; `PARTS` says what a name is.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import (
    attribution,
    audit,
    check_step_grid,
    documented_page,
    documented_verdicts,
    dose,
    error_rates,
    evidence,
    false_alarms,
    public_logs,
    rule_rates,
    trl_tests,
)
from tools.record import ROOT, made_with, measured, table
from workbench.runs.files import write_text

DOCS = ROOT / "docs"
PAGES: dict[str, Callable[[], Iterable[str]]] = {
    "baselines.md": documented_page.page,
    "documented_verdicts.md": documented_verdicts.page,
    "error_rates.md": lambda: [*error_rates.page(), "", *_section(attribution.page())],
    "false_alarms.md": lambda: [*false_alarms.page(), *rule_rates.page(), "", *_section(check_step_grid.page())],
    "real_weights.md": evidence.page,
}
PARTS: dict[str, Callable[[], Iterable[str]]] = {
    "audit": audit.page,
    "held back": lambda: [f"- {public_logs.held_back()}."],
    "public_logs": public_logs.page,
    "costs": lambda: table(["what", "model", "measured", "made with"], evidence.costs()),
    "watch": lambda: _cost("watch"),
    "sampler probe": lambda: _cost("sampler probe"),
    "trl tests": lambda: trl_tests.page(measured("trl_tests")),
    "sampler_faults": lambda: [f"({made_with(measured('real_weights/sampler_faults'))})"],
}
_PART = re.compile(r"(<!-- measured: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def _section(lines: Iterable[str]) -> list[str]:
    """Lower each heading of a page by one level, so that it is a section of another page."""
    return [f"#{line}" if line.startswith("#") else line for line in lines]


def _cost(what: str) -> list[str]:
    row = measured("cost")["rows"][f"{what}; starter"]
    return [f"On the starter: {row['says']}", f"({made_with(row)})."]


def pages() -> dict[Path, str]:
    """Make the text of each page that shows what was measured."""
    found = {}
    for path in sorted(DOCS.rglob("*.md")):
        if path.name in PAGES:
            up = "../" * (len(path.relative_to(ROOT).parts) - 1)
            found[path] = "\n".join(PAGES[path.name]()).replace("](../data/", f"]({up}data/")
        elif "<!-- measured: " in (text := path.read_text(encoding="utf-8")):
            found[path] = _PART.sub(lambda m: m[1] + "\n".join([*PARTS[m[2]](), ""]) + m[3], text)
    return found


def main() -> None:
    for path, text in pages().items():
        write_text(path, text)
    write_text(DOCS / "images" / "real_weights.svg", evidence.figure().svg())
    write_text(DOCS / "images" / "dose.svg", dose.figure(measured("dose")).svg())


if __name__ == "__main__":
    main()
