"""TRL's own tests of GRPO and RLOO, on TRL's trainers and on the workbench's, compared test by test.

    python -m benchmarks.trl_tests FOLDER [--commit COMMIT] [--stand-ins] [--out FILE.json]

FOLDER is a git repository of TRL, with a work tree or bare. The tests of COMMIT (its HEAD) run on the installed TRL: neither
TRL's sdist nor its wheel has them. They load tiny models by name from the hub, or from a cache in `HF_HOME`.
`--stand-ins` makes such models and prompts here, and uses no hub. A test that passes on TRL's trainers has to pass on ours.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import trl

from tools.record import ROOT, parser, publish, run_main, table
from workbench.errors import RunError

FILES = "test_rloo_trainer", "test_grpo_trainer"
WHOSE, STAND_INS = "WORKBENCH_TRL_TESTS", "WORKBENCH_TRL_STAND_INS"
# What a failure's message begins with or holds -> the reason that the page gives. The first that matches.
REASONS = {
    r"couldn't connect|offline|no stand-in|Can't load|valid model identifier": "loads a model or data set that is not here",
    r"liger": "asks for the Liger kernel, which is not installed",
    # Ids of a larger vocabulary, 17 rows, and weights that hardly ever sample EOS.
    r"index out of range|assert 72 == 48|Parameter .* has changed|== 0\.0 ± 1\.0e-12": "depends on the hub's model or data set",
    r"'ref' not in": "asks for no adapter of a reference, which later releases of TRL have",
    r"no attribute 'eos_token_ids'|DID NOT RAISE|assert not True": "asks for private names or errors of another release of TRL",
}


def is_available(name: str) -> Callable[[], bool]:
    """Return TRL's `is_x_available` for tests whose TRL had it and the installed one has not."""
    if package := re.fullmatch(r"is_(\w+)_available", name):
        return lambda: importlib.util.find_spec(package[1]) is not None
    raise AttributeError(name)


def pytest_configure() -> None:
    """As a plugin: where tests import TRL's trainers they get ours; with stand-ins, where they load data too."""
    importlib.import_module("trl.import_utils").__getattr__ = is_available
    if os.environ.get(WHOSE) == "ours":
        from workbench.training.grpo import GRPOTrainer, RLOOTrainer

        trl.GRPOTrainer, trl.RLOOTrainer = GRPOTrainer, RLOOTrainer
    if os.environ.get(STAND_INS):
        import datasets

        from benchmarks.trl_stand_ins import load_dataset

        datasets.load_dataset = load_dataset


def outcomes(report: Path) -> dict[str, tuple[str, str]]:
    """Test -> `passed`, `failed` or `skipped`, and the first line of its message, of a JUnit report."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        said = {part.tag: (part.get("message") or "").partition("\n")[0] for part in case}
        bad, left_out = said.keys() & {"failure", "error"}, said.keys() & {"skipped"}
        kind = "failed" if bad else "skipped" if left_out else "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = kind, next((said[tag] for tag in bad | left_out), "")
    return found


def reason(message: str) -> str:
    """Return why a test failed, in words or as its message.

    Example:
        >>> reason("OSError: We couldn't connect to 'https://huggingface.co' to load the files")
        'loads a model or data set that is not here'
        >>> reason("AttributeError: 'types.SimpleNamespace' object has no attribute 'steps'")
        "AttributeError: 'types.SimpleNamespace' object has no attribute 'steps'"
    """
    return next((why for found, why in REASONS.items() if re.search(found, message)), message[:160])


def compare(stock: dict[str, tuple[str, str]], ours: dict[str, tuple[str, str]]) -> dict:
    """Count tests by what they did on both, and name those that failed or differ.

    Example:
        >>> stock = {"a": ("passed", ""), "b": ("failed", "E: x"), "c": ("passed", ""), "d": ("skipped", "no GPU")}
        >>> compare(stock, stock | {"c": ("failed", "E: y")})
        ... # doctest: +NORMALIZE_WHITESPACE
        {'tests': 4, 'passed on both': 1, 'failed on both': {'E: x': ['b']}, 'skipped': {'no GPU': 1},
         'passed on stock alone': ['c: E: y'], 'passed on ours alone': [], 'other': []}
    """
    both: dict[str, list[str]] = {}
    skipped: Counter[str] = Counter()
    alone: dict[str, list[str]] = {"stock": [], "ours": [], "other": []}
    passed = 0
    for name in stock | ours:
        (theirs, said), (own, own_said) = stock.get(name, ("missing", "")), ours.get(name, ("missing", ""))
        if theirs == own == "passed":
            passed += 1
        elif theirs == own == "failed":
            both.setdefault(reason(said), []).append(name)
        elif theirs == own:
            skipped[said] += 1
        elif "passed" in (theirs, own):
            alone["stock" if theirs == "passed" else "ours"].append(f"{name}: {own_said or said}")
        else:
            alone["other"].append(f"{name}: {theirs}, {own}")
    return {
        "tests": len(stock),
        "passed on both": passed,
        "failed on both": both,
        "skipped": dict(skipped),
        "passed on stock alone": alone["stock"],
        "passed on ours alone": alone["ours"],
        "other": alone["other"],
    }


def git(folder: Path, *words: str) -> bytes:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True)
    if done.returncode:
        raise RunError(f"{folder}: git {words[0]}: {done.stderr.decode().strip()}; expected a git repository of TRL")
    return done.stdout


def run(checkout: Path, report: Path, file: str, whose: str, **more: str) -> None:
    """Run the tests of one file on the trainers of `whose`, unless their report is there."""
    if report.is_file():
        return
    made = checkout / report.name
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "benchmarks.trl_tests", f"--junitxml={made}"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | more | {"PYTHONPATH": path, WHOSE: whose}
    subprocess.run([*command, f"tests/{file}.py"], cwd=checkout, env=environment)
    if not made.is_file():
        raise RunError(f"{checkout}: pytest wrote no report for {file}")
    shutil.copyfile(made, report)


def page(result: dict) -> list[str]:
    """Make the lines that docs/evidence/real_weights.md shows."""
    parts, commit = result["parts"], result["tests of"]

    def total(key: str) -> int:
        found = [part[key] for part in parts.values()]
        return sum(len(one) if isinstance(one, list) else one for one in found)

    groups: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for part in parts.values():
        groups.update({why: len(names) for why, names in part["failed on both"].items()})
        skipped.update(part["skipped"])
    alone = [line for part in parts.values() for line in part["passed on stock alone"]]
    left_out = ", ".join(f"`{file}.py`" for file in FILES if file not in parts)
    stand_ins = "with stand-ins for the hub's tiny models" if result["stand-ins"] else "with the hub's tiny models"
    rows = [
        ["passed on both", str(total("passed on both"))],
        ["failed on both", str(sum(groups.values()))],
        ["skipped", str(sum(skipped.values()))],
        ["passed on TRL's trainers alone", str(len(alone))],
        ["passed on ours alone", str(total("passed on ours alone"))],
    ]
    return [
        f"{total('tests')} of TRL's own tests ({', '.join(f'`{file}.py`' for file in parts)}), on TRL {result['trl']},",
        f"{stand_ins}. The tests are of",
        f"[{commit['commit'][:7]}](https://github.com/huggingface/trl/tree/{commit['commit']}) of {commit['date']}, version",
        f"{commit['version']}: releases have no tests.",
        *([f"Not run here: {left_out}."] if left_out else []),
        "",
        *table(["outcome", "tests"], rows),
        "",
        "`data/measured/trl_tests.json` has the reasons.",
        *(["", "Passed on TRL's trainers alone:", "", *(f"- {line}" for line in alone)] if alone else []),
    ]


def main() -> None:
    options = parser(__doc__, commit="HEAD", jobs=1, files=FILES)
    options.add_argument("folder", type=Path, help="git repository of TRL")
    options.add_argument("--stand-ins", action="store_true", help="make models and prompts here, use no hub")
    options.add_argument("--reports", type=Path, help="folder of pytest's reports; those that are there are taken")
    args = options.parse_args()
    commit, date = git(args.folder, "log", "-1", "--format=%H %cs", args.commit).decode().split()
    archive = git(args.folder, "archive", commit, "tests", "VERSION")
    with tempfile.TemporaryDirectory() as scratch:
        checkout, more = Path(scratch), {}
        reports = (args.reports or checkout / "reports").absolute()
        reports.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-x", "-C", scratch], input=archive, check=True)
        version = (checkout / "VERSION").read_text().strip()
        if args.stand_ins:
            from benchmarks.trl_stand_ins import write_models

            write_models(checkout / "cache")
            more = {"HF_HOME": str(checkout / "cache"), "HF_HUB_OFFLINE": "1", STAND_INS: "1"}
        with ThreadPoolExecutor(args.jobs) as pool:
            keys = [(file, whose) for file in args.files for whose in ("stock", "ours")]
            runs = {key: reports / f"{commit[:7]}-{trl.__version__}-{'-'.join(key)}.xml" for key in keys}
            list(pool.map(lambda key: run(checkout, runs[key], *key, **more), runs))
        parts = {file: compare(*(outcomes(runs[file, whose]) for whose in ("stock", "ours"))) for file in args.files}
    tests = {"commit": commit, "date": date, "version": version}
    publish({"trl": trl.__version__, "tests of": tests, "stand-ins": args.stand_ins, "parts": parts}, args.out)


if __name__ == "__main__":
    run_main(main)
