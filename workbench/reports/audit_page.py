"""The page of `workbench audit --html`: as self-contained and inert as the reports of runs."""

from collections.abc import Sequence
from pathlib import Path

from ..runs.tokens import hide_tokens, map_text
from . import facts
from .html import render, write_page


def write_audit(path: Path, runs: Sequence[dict]) -> Path:
    """Write the audits of runs as one page.

    Args:
        path: of the page.
        runs: as `workbench audit --json` prints them, each with `ranges`: rule -> its steps in words.
    """
    shown = [_shown(map_text(run, hide_tokens)) for run in runs]
    return write_page(path, render("audit.html.j2", title="Audit", runs=shown))


def _shown(run: dict) -> dict:
    findings = run["findings"]
    found = [f | {"where": run["ranges"].get(f["rule"], ""), "numbers": _numbers(f)} for f in findings]
    by_verdict = {v: [f for f in found if f["verdict"] == v] for v in ("found", "undecidable", "not found")}
    absent = [f["rule"] for f in by_verdict["not found"]]
    return run | {"found": by_verdict["found"], "open": by_verdict["undecidable"], "not_found": absent}


def _numbers(finding: dict) -> dict[str, str]:
    """Evidence and cost, each as a text; of a list or an object its parts."""
    return {name: _as_text(value) for name, value in (finding["evidence"] | finding["cost"]).items()}


def _as_text(value) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_as_text(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_as_text, value))
    return str(facts.number(value))
