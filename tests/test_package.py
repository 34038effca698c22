import ast
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "workbench"
HEAVY = {"transformers", "trl", "vllm", "torch", "matplotlib", "papermill", "datasets", "pandas", "numpy"}

# Room -> the rooms that it may import, which stand on lower floors. There is no circle.
BASE = "errors extras packaged runs"
LIBRARY = "generation consistency training"
MAY_IMPORT = {unit: set(allowed.split()) for unit, allowed in {
    "__init__": "extras", "__main__": "cli", "errors": "", "extras": "errors", "packaged": "", "trl_release": "errors extras",
    "runs": "errors extras packaged", "generation": "errors extras", "consistency": "errors extras",
    "logs": BASE,
    "training": f"{BASE} trl_release generation consistency",
    "diagnostics": f"{BASE} {LIBRARY}",
    "curves": f"{BASE} logs",
    "experiments": f"{BASE} {LIBRARY} trl_release diagnostics curves logs",
    "audit": f"{BASE} {LIBRARY} diagnostics logs curves",
    "lab": f"{BASE} {LIBRARY} diagnostics experiments logs curves",
    "cli": f"{BASE} lab audit",
}.items()}  # fmt: skip


def unit_of(path: Path) -> str:
    """`workbench/lab/batch/run.py` -> `lab`, `workbench/errors.py` -> `errors`."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def imports(path: Path, functions: bool = True) -> set[str]:
    """Absolute names of all modules a file imports, and of the names in them; without `functions` what loading it imports."""
    package = ["workbench", *path.relative_to(PACKAGE).parent.parts]
    names, tree = set(), ast.parse(path.read_text())
    bodies = [] if functions else [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    later = {node for body in bodies for node in ast.walk(body)}
    for node in set(ast.walk(tree)) - later:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


# A trainer attaches the sampler's proof and the recorder of steps by local imports, and loads them only where they are used.
UPWARDS = {
    "training/grpo.py": {"diagnostics"},
    "training/recording.py": {"diagnostics"},
}
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


def test_a_module_imports_only_lower_layers():
    for path in FILES:
        unit = unit_of(path)
        assert unit in MAY_IMPORT, f"{unit}: say in MAY_IMPORT which layer it belongs to"
        used = {name.split(".")[1] for name in imports(path) if name.startswith("workbench.")}
        allowed = MAY_IMPORT[unit] | UPWARDS.get(str(path.relative_to(PACKAGE)), set())
        assert used - {unit, "__version__"} <= allowed, path


def closure(module: str, seen: set[str] | None = None) -> set[str]:
    """The modules of the package that importing this one loads: what stands inside functions is not loaded."""
    seen = set() if seen is None else seen
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if module in seen or not path.is_file():
        return seen
    seen.add(module)
    if parent := module.rpartition(".")[0]:
        closure(parent, seen)
    for name in imports(path, functions=False):
        closure(name, seen)
        closure(name.rpartition(".")[0], seen)
    return seen


@pytest.mark.parametrize(
    "module, most",
    [("training.grpo", 2350), ("training.rows", 1100), ("generation.preflight", 600)],
)
def test_a_part_of_the_library_loads_few_lines(module, most):
    loaded = {name: lines_in(name) for name in closure(f"workbench.{module}") if name.startswith("workbench.")}
    assert sum(loaded.values()) <= most, sorted(loaded.items(), key=lambda row: -row[1])


def lines_in(module: str) -> int:
    path = ROOT.joinpath(*module.split("."))
    return len((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text().splitlines())


LIBRARY_LINES = 3350


def test_the_library_is_read_in_an_evening():
    files = [path for folder in ("generation", "consistency", "training") for path in (PACKAGE / folder).glob("*.py")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= LIBRARY_LINES


CORE_FOLDERS = ("generation", "consistency", "training", "experiments")


def parameters(path: Path) -> list[tuple[str, ast.arg]]:
    """The parameters of all functions in a file, without `self` and `cls`, each with the name of its function."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    every = [(f.name, arg) for f in functions for arg in ast.walk(f.args) if isinstance(arg, ast.arg)]
    return [(name, arg) for name, arg in every if arg.arg not in ("self", "cls")]


@pytest.mark.parametrize("folder", CORE_FOLDERS)
def test_parameters_have_types(folder):
    known = [(path.name, *about) for path in (PACKAGE / folder).glob("*.py") for about in parameters(path)]
    without = [f"{file}: {name}({arg.arg})" for file, name, arg in known if arg.annotation is None]
    assert len(without) <= 0.1 * len(known), without


def test_types_are_checked_without_exceptions_for_a_folder():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert {f"workbench.{folder}" for folder in CORE_FOLDERS} <= set(settings["packages"])
    ours = [part for part in settings["overrides"] if any(name.startswith("workbench.") for name in part["module"])]
    assert not any("disable_error_code" in part for part in ours), ours


@pytest.mark.parametrize(
    "library, users",
    [("trl", "training diagnostics experiments"), ("vllm", "training diagnostics experiments generation")],
)
def test_only_these_folders_import(library, users):
    found = {unit_of(p) for p in FILES if any(n.split(".")[0] == library for n in imports(p))}
    assert found <= set(users.split())


OPENS = re.compile(r"\.read_(text|bytes)\(|(?<!\w)open\(|read_parquet\(|ParquetFile\(|json\.load\(|load_table\(")
OPENED_THERE = {  # file -> what it opens
    "runs/files.py": "the files of a run",
    "runs/completions.py": "those of completions, through runs/files.py",
    "runs/lock.py": "the lock, which holds nothing",
    "runs/environment.py": "/proc",
    "runs/claims.py": "the published claims, of this installation",
    "runs/fingerprint.py": "the modules that a reward function of the user's imports",
    "runs/parameters.py": "the notebook that the user names",
    "lab/batch/notebooks.py": "the notebook that the user names",
    "lab/batch/code.py": "that notebook, and the user's own modules",
    "lab/batch/run.py": "the log, to write it",
    "lab/batch/slurm.py": "the template of a job",
    "lab/batch/gpus.py": "the locks of GPUs, which hold nothing",
    "lab/reports/page.py": "templates",
    "lab/reports/index.py": "the page it has just made",
}


def test_the_files_of_a_run_are_opened_in_one_place_since_anyone_may_have_made_them():
    folders = ("runs", "lab", "curves/measured.py")
    paths = [path for path in FILES if str(path.relative_to(PACKAGE)).startswith(folders)]
    found = {str(path.relative_to(PACKAGE)) for path in paths if OPENS.search(path.read_text())}
    assert found == OPENED_THERE.keys()


def test_the_rule_sees_imports_inside_functions_and_of_parent_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "lab").mkdir()
    path = tmp_path / "lab" / "bad.py"
    path.write_text("def f():\n    from ..experiments import Recipe\n    from . import engine\n    import trl\n")
    assert imports(path) == {"workbench.experiments.Recipe", "workbench.lab.engine", "trl"}
