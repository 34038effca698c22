import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "workbench"
HEAVY = {"transformers", "trl", "vllm", "torch", "matplotlib", "papermill", "datasets", "pandas", "numpy"}

# A room imports only rooms on lower floors.
FLOORS = {room: floor for floor, rooms in enumerate([
    ("errors",),
    ("extras",),
    ("generation", "consistency", "runs", "trl_release"),
    ("replay", "logs"),
    ("training", "curves", "conform"),
    ("audit", "reward"),
    ("watch",),
    ("experiments",),
    ("lab", "pytest_plugin"),
    ("cli",),
    ("__main__",),
]) for room in rooms}  # fmt: skip
FLOORS["__init__"] = FLOORS["generation"]  # the package itself loads no room: names are loaded when they are first used
WITHOUT_TORCH = ("replay", "conform", "logs", "curves", "audit", "reward", "runs")
# File -> why it imports another file of the package inside a function.
IMPORTS_LATER = {
    "cli.py": "a command loads the libraries of its own room alone",
    "experiments/recipes.py": "a model or data set is made only where a user names it",
    "lab/batch/data.py": "torch is loaded only for the plan of a run with a data set of its user's own",
    "lab/batch/node.py": "papermill is loaded in the process that executes a notebook",
    "lab/batch/run.py": "papermill is loaded in the process that executes a notebook",
    "lab/late_vllm.py": "it runs in the kernel when vLLM is imported, where most kernels import no vLLM",
    "lab/replay.py": "the runs are looked for only where no file is named",
    "lab/reports/run_page.py": "a microscope is written only for a run with completions",
    "pytest_plugin.py": "pytest loads it in each run of a project, and most use neither its fixture nor its option",
    "lab/widgets/padding_explorer.py": "the widget is shown without torch and computes when it is asked",
}


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


FILES = sorted(PACKAGE.rglob("*.py"))


def test_importing_the_package_loads_no_heavy_library():
    command = [sys.executable, "-X", "importtime", "-c", "import workbench"]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in log.splitlines()}
    assert "workbench" in loaded
    assert not loaded & HEAVY


def test_the_command_line_answers_without_a_heavy_library():
    code = "import sys, workbench.cli as c; c._parser(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not set(loaded) & HEAVY


def own_files(path: Path, functions: bool = True) -> set[Path]:
    """The files of the package that a file imports."""
    reached = set()
    for name in imports(path, functions):
        for module in (name, name.rpartition(".")[0]):
            file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
            if name.startswith("workbench.") and file in FILES:
                reached.add(file)
                break
    return reached - {path}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_rooms_on_lower_floors(path):
    room = unit_of(path)
    assert room in FLOORS, f"{room}: say in FLOORS where it stands"
    rooms = {name.split(".")[1] for name in imports(path) if name.startswith("workbench.")}
    above = {other for other in rooms - {room, "__version__"} if FLOORS[other] >= FLOORS[room]}
    assert not above, f"{path} imports {above}, on its own floor or above"


def test_files_import_each_other_in_no_circle():
    graphlib.TopologicalSorter(
        {path: own_files(path) for path in FILES}
    ).prepare()  # raises CycleError, which names them


def test_imports_inside_functions_have_a_reason():
    later = {str(p.relative_to(PACKAGE)) for p in FILES if own_files(p) - own_files(p, functions=False)}
    assert later == IMPORTS_LATER.keys()


def loaded_by(code: str) -> set[str]:
    command = [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.slow
def test_a_trainer_loads_nothing_that_looks_at_it():
    without_vllm = "import sys; sys.modules['vllm'] = None"  # which TRL imports where it can: longer than all else
    names = loaded_by(f"{without_vllm}; import workbench.training.grpo")
    rooms = {name.split(".")[1] for name in names if name.startswith("workbench.")}
    assert {room for room in rooms if FLOORS[room] >= FLOORS["training"]} == {"training"}


@pytest.mark.parametrize("room", WITHOUT_TORCH)
def test_the_base_is_imported_with_torch_blocked(room):
    names = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in FILES if unit_of(p) == room]
    block = "import sys; sys.modules.update(dict.fromkeys(['torch', 'transformers', 'trl', 'vllm', 'accelerate']))"
    assert set(names) <= loaded_by(f"{block}; import {', '.join(names)}") | {f"workbench.{room}.__init__"}


@pytest.mark.parametrize(
    "library, users",
    [("trl", "training watch experiments"), ("vllm", "training watch experiments generation")],
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
    "runs/results.py": "the published claims, of this installation",
    "runs/parameters.py": "the notebook that the user names",
    "lab/batch/notebooks.py": "the notebook that the user names",
    "lab/batch/code.py": "that notebook, and the user's own modules",
    "lab/batch/run.py": "the log, to write it",
    "lab/batch/slurm.py": "the template of a job",
    "lab/batch/gpus.py": "the locks of GPUs, which hold nothing",
    "lab/reports/page.py": "templates",
    "lab/reports/index.py": "the page it has just made",
}


def test_the_files_of_a_run_are_opened_in_one_place():
    folders = ("runs", "lab", "curves/measured.py")
    paths = [path for path in FILES if str(path.relative_to(PACKAGE)).startswith(folders)]
    found = {str(path.relative_to(PACKAGE)) for path in paths if OPENS.search(path.read_text())}
    assert found == OPENED_THERE.keys()
