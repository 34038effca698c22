import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "workbench"
HEAVY = {"transformers", "trl", "vllm", "torch", "matplotlib", "papermill", "datasets", "pandas", "numpy"}

# Folder or module -> those of this package that it may import: arrows point down, and there is no circle.
BASE = {"errors", "runs", "packaged"}
THIN = {"generation", "consistency"}
MAY_IMPORT = {
    "__init__": set(),
    "__main__": {"cli"},
    "errors": set(),
    "help_texts": set(),
    "packaged": set(),
    "doctor": {"errors"},
    "runs": {"errors"},
    "generation": {"errors"},
    "consistency": {"errors"},
    "toys": BASE | {"consistency"},
    "curves": BASE,
    "training": BASE | THIN | {"toys"},
    "studies": BASE | THIN | {"toys", "curves", "training"},
    "widgets": BASE | THIN | {"toys", "curves"},
    "audit": BASE | THIN | {"curves", "training"},
    "reports": BASE | {"curves"},
    "batch": BASE | {"reports"},
    "claims": BASE | {"batch"},
    "cli": BASE | {"help_texts", "doctor", "reports", "batch", "claims", "audit"},
}


def unit_of(path: Path) -> str:
    """`workbench/batch/local.py` -> `batch`, `workbench/errors.py` -> `errors`."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Absolute names of all modules a file imports, wherever in the file the import stands."""
    package = ["workbench", *path.relative_to(PACKAGE).parent.parts]
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


FILES = sorted(PACKAGE.rglob("*.py"))


def test_importing_the_package_loads_no_heavy_library():
    command = [sys.executable, "-X", "importtime", "-c", "import workbench"]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in log.splitlines()}
    assert "workbench" in loaded
    assert not loaded & HEAVY


def test_the_command_line_answers_without_loading_a_heavy_library():
    code = "import sys, workbench.cli as c; c._parser(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not set(loaded) & HEAVY


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_lower_layers(path):
    unit = unit_of(path)
    assert unit in MAY_IMPORT, f"{unit}: say in MAY_IMPORT which layer it belongs to"
    used = {name.split(".")[1] for name in imports(path) if name.startswith("workbench.")}
    assert used - {unit, "__version__"} <= MAY_IMPORT[unit]


@pytest.mark.parametrize("library, users", [("trl", "training studies toys"), ("vllm", "training studies generation")])
def test_only_these_folders_import(library, users):
    found = {unit_of(p) for p in FILES if any(n.split(".")[0] == library for n in imports(p))}
    assert found <= set(users.split())


OPENS = re.compile(
    r"\.read_text\(|\.read_bytes\(|(?<![\w])open\(|read_parquet\(|ParquetFile\(|json\.load\(|load_table\("
)
OPENED_THERE = {  # file -> what it opens
    "runs/files.py": "the files of a run",
    "runs/parts.py": "parts of completions, through runs/files.py",
    "runs/completions.py": "a file it has just made",
    "runs/owner.py": "/proc",
    "runs/environment.py": "/proc",
    "runs/parameters.py": "the notebook that the user names",
    "batch/local.py": "the log, to write it",
    "reports/html.py": "templates",
    "reports/index.py": "the page it has just made",
}


def test_the_files_of_a_run_are_opened_in_one_place_since_anyone_may_have_made_them():
    folders = ("runs", "batch", "reports", "widgets", "curves/measured.py")
    paths = [path for path in FILES if str(path.relative_to(PACKAGE)).startswith(folders)]
    found = {str(path.relative_to(PACKAGE)) for path in paths if OPENS.search(path.read_text())}
    assert found == OPENED_THERE.keys()


def test_the_rule_sees_imports_inside_functions_and_of_parent_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "batch").mkdir()
    path = tmp_path / "batch" / "bad.py"
    path.write_text("def f():\n    from ..recipes import Recipe\n    from . import engine\n    import trl\n")
    assert imports(path) == {"workbench.recipes.Recipe", "workbench.batch.engine", "trl"}
