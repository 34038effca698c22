"""TRL's own tests of GRPO, RLOO and OnlineDPO, on TRL's trainers and on the workbench's, compared test by test.

    python -m benchmarks.trl_tests FOLDER [--out FILE.json]

FOLDER is a checkout of TRL, of about the installed release. Its tests load tiny models by name from the hub, or from a cache in
`HF_HOME`. A test that passes on TRL's trainers has to pass on ours.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import trl

from benchmarks.record import ROOT, parser, publish, run_main
from workbench.errors import RunError

FILES = "test_grpo_trainer", "test_rloo_trainer", "experimental/test_online_dpo_trainer"
WHOSE = "WORKBENCH_TRL_TESTS"


def pytest_configure() -> None:
    """As a plugin: where tests import TRL's trainers they get ours."""
    if os.environ.get(WHOSE) == "ours":
        import trl.experimental.online_dpo
        from workbench.training.online_dpo import OnlineDPOTrainer

        from workbench.training.grpo import GRPOTrainer, RLOOTrainer

        trl.GRPOTrainer, trl.RLOOTrainer = GRPOTrainer, RLOOTrainer
        trl.experimental.online_dpo.OnlineDPOTrainer = OnlineDPOTrainer


def outcomes(report: Path) -> dict[str, str]:
    """Test -> `passed`, `failed` or `skipped`, of a JUnit report."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {part.tag for part in case} & {"failure", "error", "skipped"}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if kinds else "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = kind
    return found


def compare(stock: dict[str, str], ours: dict[str, str]) -> dict:
    """Counts, and the names of tests that fail on both and of those that differ.

    Example:
        >>> compare({"a": "passed", "b": "failed", "c": "passed"}, {"a": "passed", "b": "failed", "c": "failed"})
        {'tests': 3, 'passed': [2, 1], 'skipped': 0, 'fail on both': ['b'], 'differ': ['c: passed, failed']}
    """
    return {
        "tests": len(stock),
        "passed": [list(kinds.values()).count("passed") for kinds in (stock, ours)],
        "skipped": list(stock.values()).count("skipped"),
        "fail on both": [name for name, kind in stock.items() if kind == ours.get(name) == "failed"],
        "differ": [f"{name}: {kind}, {ours.get(name)}" for name, kind in stock.items() if ours.get(name) != kind],
    }


def run(folder: Path, file: str, whose: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.trl_tests"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), WHOSE: whose}
        subprocess.run([*command, f"tests/{file}.py", f"--junitxml={report}"], cwd=folder, env=environment)
        if not report.is_file():
            raise RunError(f"{folder}: pytest wrote no report for {file}; expected a checkout of TRL")
        return outcomes(report)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("folder", type=Path, help="checkout of TRL")
    args = options.parse_args()
    tests = (args.folder / "VERSION").read_text().strip()
    result: dict = {"trl": trl.__version__, "tests of": tests, "parts": {}}
    for file in FILES:
        result["parts"][file] = compare(*(run(args.folder, file, whose) for whose in ("stock", "ours")))
        publish(result, args.out)


if __name__ == "__main__":
    run_main(main)
