"""Writes every page, CSV and figure that is made of data/measured/ and data/baselines/: `python -m benchmarks.pages`.

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
    every_place,
    evidence,
    false_alarms,
    frameworks,
    gpu,
    hacked_rewards,
    pads_in_the_loss,
    public_logs,
    recorded_rewards,
    reward_report,
    reward_trials,
    rule_rates,
    trl_tests,
)
from tools.record import ROOT, csv_next_to_page, made_section, made_with, measured
from workbench.runs.files import write_text

DOCS = ROOT / "docs"
EVIDENCE = DOCS / "evidence"
PAGES: dict[str, Callable[[], Iterable[str]]] = {
    "baselines.md": documented_page.page,
    "documented_verdicts.md": documented_verdicts.page,
    "error_rates.md": error_rates.page,
    "false_alarms.md": lambda: [
        *false_alarms.page(),
        *rule_rates.page(),
        *reward_report.page(),
        *hacked_rewards.page(),
        *recorded_rewards.page(),
        *reward_trials.page(),
        *made_section(
            [
                *false_alarms.provenance(),
                *rule_rates.provenance(),
                *reward_report.provenance(),
                *hacked_rewards.provenance(),
                *recorded_rewards.provenance(),
                *reward_trials.provenance(),
            ]
        ),
    ],
    "attribution.md": attribution.page,
    "conform.md": frameworks.page,
    "check_step_grid.md": check_step_grid.page,
    "gpu.md": gpu.page,
    "real_weights.md": evidence.page,
}
# The tables that a page does not hold itself: files next to the pages of docs/evidence.
CSVS: dict[str, Callable[[], str]] = {
    "attribution.csv": attribution.cases_csv,
    "audit_corpus.csv": audit.faults_csv,
    "baselines.csv": documented_page.runs_csv,
    "baselines_copies.csv": documented_page.copies_csv,
    "check_step_grid.csv": check_step_grid.settings_csv,
    "conform.csv": frameworks.cases_csv,
    "costs.csv": evidence.costs_csv,
    "documented_place.csv": documented_verdicts.place_csv,
    "documented_trend.csv": documented_verdicts.trend_csv,
    "error_rates.csv": error_rates.seeds_csv,
    "error_rates_change.csv": error_rates.changes_csv,
    "error_rates_controls.csv": error_rates.trainings_csv,
    "false_alarms.csv": false_alarms.trainings_csv,
    "claims_real.csv": evidence.claims_csv,
    "gemma.csv": evidence.gemma_csv,
    "gemma_stops.csv": evidence.gemma_stops_csv,
    "gpu.csv": gpu.settings_csv,
    "named_faults.csv": check_step_grid.named_csv,
    "hacked_rewards.csv": hacked_rewards.trainings_csv,
    "placebos.csv": hacked_rewards.placebos_csv,
    "planted_faults.csv": check_step_grid.faults_csv,
    "public_logs.csv": public_logs.logs_csv,
    "recorded_rewards.csv": recorded_rewards.runs_csv,
    "reward_report.csv": reward_report.rates_csv,
    "reward_trials.csv": reward_trials.functions_csv,
    "smollm2.csv": evidence.smollm2_csv,
    "smollm2_gains.csv": evidence.gains_csv,
}
PARTS: dict[str, Callable[[], Iterable[str]]] = {
    "audit": audit.page,
    "audit costs": audit.costs_table,
    "every_place": every_place.page,
    "corpus made": lambda: made_section(audit.provenance())[:-1],
    "public logs made": lambda: made_section(public_logs.provenance())[:-1],
    "held back": lambda: [f"- {public_logs.held_back()}."],
    "public_logs": public_logs.page,
    "costs": lambda: csv_next_to_page("costs.csv"),
    "watch": lambda: _cost("watch"),
    "sampler probe": lambda: _cost("sampler probe"),
    "trl tests": lambda: trl_tests.page(measured("trl_tests")),
    "sampler_faults": lambda: [f"({made_with(measured('real_weights/sampler_faults'))})"],
}
_PART = re.compile(r"(<!-- measured: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def _cost(what: str) -> list[str]:
    row = measured("cost")["rows"][f"{what}; starter"]
    return [f"On the starter: {row['says']}", f"({made_with(row)})."]


def pages() -> dict[Path, str]:
    """Make the text of each page and of each CSV that shows what was measured."""
    found = {EVIDENCE / name: make() for name, make in CSVS.items()}
    for path in sorted({*DOCS.rglob("*.md"), *(EVIDENCE / name for name in PAGES)}):
        if path.parent == EVIDENCE and path.name in PAGES:
            up = "../" * (len(path.relative_to(ROOT).parts) - 1)
            found[path] = "\n".join(PAGES[path.name]()).replace("](../data/", f"]({up}data/")
        elif "<!-- measured: " in (text := path.read_text(encoding="utf-8")):
            found[path] = _PART.sub(lambda m: m[1] + "\n".join([*PARTS[m[2]](), ""]) + m[3], text)
    return found


def main() -> None:
    for path, text in pages().items():
        write_text(path, text)
    write_text(DOCS / "images" / "real_weights.svg", evidence.figure().svg())
    write_text(DOCS / "images" / "pads_in_the_loss.svg", pads_in_the_loss.figure(measured("pads_in_the_loss")).svg())
    write_text(DOCS / "images" / "dose.svg", dose.figure(measured("dose")).svg())


if __name__ == "__main__":
    main()
