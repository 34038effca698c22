"""The base install, without any library of an extra: what works there, and what each other thing says."""

import json
import subprocess
import sys
import tomllib

import pytest
from conftest import ROOT

from workbench.extras import EXTRAS

# All that no base install has is not found, neither as a module nor as a distribution.
HIDE = """
import importlib.machinery, importlib.metadata

hidden = {hidden!r}
find, version = importlib.machinery.PathFinder.find_spec, importlib.metadata.version

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in hidden else find(name, path, target)

def version_of(name):
    if name.replace("-", "_") in hidden:
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)

importlib.machinery.PathFinder.find_spec, importlib.metadata.version = find_spec, version_of
"""
HIDDEN = {module for modules in EXTRAS.values() for module in modules.split()}
AUDITED = [path for path in sorted((ROOT / "data" / "audit").iterdir()) if path.suffix != ".md"]


def in_base(code: str, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", HIDE.format(hidden=HIDDEN) + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize("arguments", [AUDITED, ["--json", AUDITED[0]]], ids=["all", "json"])
def test_audit_of_a_bundled_log_is_the_same_in_the_base(here, arguments):
    code = "import sys; from workbench.cli import main; sys.exit(main(sys.argv[1:]))"
    base, whole = in_base(code, "audit", *map(str, arguments)), here("audit", *arguments)
    assert (base.returncode, base.stdout, base.stderr) == (whole.returncode, whole.stdout, whole.stderr)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("import workbench; workbench.GRPOTrainer", "workbench.GRPOTrainer needs trl: pip install 'trl-workbench[train]'"),
        ("import workbench; workbench.padding_report", "padding_report needs torch: pip install 'trl-workbench[train]'"),
        ("from workbench.consistency import mismatch_report", "needs torch: pip install 'trl-workbench[train]'"),
        ("import workbench.lab.widgets", "needs ipywidgets, IPython: pip install 'trl-workbench[lab]'"),
        ("from workbench.audit.report import audit_run; audit_run('data/audit/stop_string', model='owner/model')",
         "needs huggingface_hub: pip install 'trl-workbench[train]'"),
    ],
)  # fmt: skip
def test_name_of_an_extra_says_which(statement, says):
    done = in_base(f"{statement}\n")
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith("workbench.errors.MissingDependencyError") and says in error


def test_command_of_an_extra_says_which():
    done = in_base("import sys; from workbench.cli import main; sys.exit(main(['run', '00_start_here']))")
    assert (done.returncode, done.stdout) == (2, "")
    assert "running a notebook needs papermill, ipykernel: pip install 'trl-workbench[lab]'" in done.stderr


def test_pages_and_lists_work_in_the_base(tmp_path):
    for arguments in (["list"], ["status", "--runs-dir", str(tmp_path)], ["doctor"]):
        done = in_base("import sys; from workbench.cli import main; main(sys.argv[1:])", *arguments)
        assert "Traceback" not in done.stderr, (arguments, done.stderr)


def test_table_of_extras_is_that_of_the_project():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    code = "import importlib.metadata as m, json; print(json.dumps(m.packages_distributions()))"
    names = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    for extra, modules in EXTRAS.items():
        asked = " ".join(extras[extra]).lower()
        for module in modules.split():
            assert any(name.lower().replace("_", "-") in asked for name in [*names.get(module, []), module]), (
                extra,
                module,
            )
