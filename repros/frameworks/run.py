"""Ask the losses of other frameworks, as their wheels ship them, what the definitions of `workbench conform` answer.

    python -m repros.frameworks.run verl 0.9.1
    python -m repros.frameworks.run --all --out data/measured/conform.json

Each framework has an adapter in this folder: `functions(take)` names what each of its functions claims to be.
"""

import argparse
import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from repros.frameworks.wheels import Wheel, unzipped
from tools.record import publish
from workbench.conform import Case, NotOffered, Verdict, conform_report
from workbench.conform.questions import load_questions
from workbench.errors import ParameterError

OTHERS = (Verdict.OTHER, Verdict.WRONG, Verdict.NOT_OFFERED)
# Adapter -> the releases that `--all` asks, the newest first.
RELEASES = {
    "trl": ("1.16.0", "1.15.0"),
    "trl_async": ("1.16.0",),
    "trl_distillation": ("1.16.0",),
    "trl_async_distillation": ("1.16.0", "1.15.0"),
    "verl": ("0.9.1", "0.9.0"),
    "openrlhf": ("0.11.2", "0.11.1"),
    "skyrl": ("0.3.0", "0.2.0"),
    "areal": ("1.0.4",),
    "ms_swift": ("4.6.0", "4.5.3"),
    "unsloth": ("2026.10.9", "2026.9.9"),
}


def within(offers: set[str], function: Callable[[Case], Any]) -> Callable[[Case], Any]:
    """Ask a function only where it has all settings that a case needs."""

    def asked(case: Case) -> Any:
        if missing := sorted(case.needs - offers):
            raise NotOffered(f"no setting for {', '.join(missing)}")
        return function(case)

    return asked


def ask(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """What each function of a framework answers: definition -> the number of cases that are the same, and the others.

    Args:
        name: of the adapter.
        folder: the unzipped wheel.
    """
    adapter = importlib.import_module(f"repros.frameworks.{name}")
    answers = {}
    for definition, function in adapter.functions(Wheel(folder)).items():
        try:
            report = conform_report(within(adapter.OFFERS, function), definition, name)
        except ParameterError as error:  # no case has an answer
            if "raised" in str(error):
                raise
            reason = str(error).partition(" has an answer: ")[2]
            others = {case: {"verdict": str(Verdict.NOT_OFFERED), "says": reason} for case in cases_of(definition)}
            answers[definition] = {"same": 0, "others": others}
            continue
        same = len(report.of(Verdict.SAME))
        others = {result.case: _stored(result) for result in report.results if result.verdict != Verdict.SAME}
        answers[definition] = {"same": same, "others": others}
    return answers


def cases_of(definition: str) -> list[str]:
    """The names of the cases of a definition, the smallest first."""
    return [question.name for question in load_questions() if definition in question.expected]


def _stored(result: Any) -> dict[str, Any]:
    if result.verdict != Verdict.WRONG:
        return {"verdict": str(result.verdict), "says": result.says}
    kept = {
        key: value
        for key, value in dataclasses.asdict(result).items()
        if value not in (None, "") and key not in ("case", "place")
    }
    return {key: _rounded(value) if isinstance(value, float) else value for key, value in kept.items()}


def _rounded(number: float) -> float | str:
    return float(f"{number:.6g}") if np.isfinite(number) else str(number)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=RELEASES, help="of a framework")
    parser.add_argument("version", nargs="?", help="of its wheel; by default the newest that was asked")
    parser.add_argument("--all", action="store_true", help="all frameworks and releases")
    parser.add_argument("--out", type=Path, help="where the verdicts are stored; by default they are only printed")
    options = parser.parse_args(arguments)
    if options.all == bool(options.name):
        parser.error("give the name of a framework, or --all")
    wanted = [(name, version) for name, versions in RELEASES.items() for version in versions]
    if options.name:
        wanted = [(options.name, options.version or RELEASES[options.name][0])]
    frameworks: dict[str, dict[str, Any]] = {}
    for name, version in wanted:
        package = importlib.import_module(f"repros.frameworks.{name}").PACKAGE
        frameworks.setdefault(name, {})[version] = answers = ask(name, unzipped(package, version))
        for definition, answer in answers.items():
            print(f"{name} {version} {definition}: {_summary(answer)}", flush=True)
    if options.out:
        publish({"frameworks": frameworks}, options.out, quietly=True)


def _summary(answer: dict[str, Any]) -> str:
    others = answer["others"]
    verdicts = [str(cell["verdict"]) for cell in others.values()]
    lines = [", ".join([f"{answer['same']} same", *(f"{verdicts.count(verdict)} {verdict}" for verdict in OTHERS)])]
    for case, cell in others.items():
        if cell["verdict"] != Verdict.NOT_OFFERED:
            said = [f"{name} {cell[name]}" for name in ("value", "expected", "slope", "expected_slope") if name in cell]
            lines.append(f"    {cell['verdict']}: {case}: {cell.get('says', '')} {', '.join(said)}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
