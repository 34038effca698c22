"""An installed wheel does what a checkout does: built, installed and used here from folders outside the checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import NOTEBOOKS, ROOT, need, write_notebook

from workbench.extras import packaged

pytestmark = pytest.mark.slow


def ran(*command, cwd: Path) -> str:
    """Standard output of a command that has to succeed and knows of the checkout neither by its folder nor by a variable."""
    outside = {k: v for k, v in os.environ.items() if k not in ("PYTEST_CURRENT_TEST", "WORKBENCH_NOTEBOOKS")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=outside, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    """`bin/` of a fresh environment with the wheel in it, which sees what is installed here but not the checkout.

    A folder named in a .pth file is searched, but .pth files in that folder, as the one of the checkout, are not read.
    """
    need(find_spec("setuptools"), "setuptools, to build without a network")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy: a build leaves build/ and *.egg-info behind, and takes what an older one left
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for name in ("workbench", "data", "notebooks"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    ran(*pip, "wheel", ".", "--no-deps", "--no-build-isolation", "-w", folder, cwd=source)
    ran(sys.executable, "-m", "venv", "--without-pip", "fresh", cwd=folder)
    fresh = folder / "fresh"
    ran(*pip, "--python", fresh / "bin/python", "install", "--no-deps", *folder.glob("*.whl"), cwd=folder)
    (site,) = fresh.glob("lib/python*/site-packages")
    here = sysconfig.get_paths()
    (site / "others.pth").write_text(f"{here['purelib']}\n{here['platlib']}\n")
    shutil.rmtree(source)
    return fresh / "bin"


def answer(programs: Path, cwd: Path, code: str):
    """What the wheel's python prints as JSON."""
    return json.loads(ran(programs / "python", "-c", code, cwd=cwd))


def test_the_wheel_is_imported_and_its_data_lies_in_it(programs, tmp_path):
    code = "import json, workbench; from workbench.extras import packaged;"
    code += "print(json.dumps([workbench.__file__, *map(str, map(packaged, ('data', 'notebooks')))]))"
    found = answer(programs, tmp_path, code)
    assert all(Path(path).is_relative_to(programs.parent) for path in found)


def test_it_carries_notebooks_baselines_and_claims_unchanged(programs, tmp_path):
    found = answer(
        programs,
        tmp_path,
        "import json; from workbench.extras import packaged;"
        "from workbench.curves.documented import list_baselines, load_baseline;"
        "baselines = [load_baseline(name).name for name in list_baselines()];"
        "notebooks = {p.name: p.read_text() for p in packaged('notebooks').iterdir()};"
        "from workbench import audit_run; bad = audit_run(packaged('data') / 'audit' / 'masked_stops').problems;"
        "claims = json.loads((packaged('data') / 'claims.json').read_text());"
        "print(json.dumps([baselines, claims, notebooks, bad]))",
    )
    baselines, claims, notebooks, bad = found
    assert bad[0] == "masked-stops", "the run that notebook 00 opens"
    assert baselines == sorted(p.stem for p in (ROOT / "data" / "baselines").glob("*.json"))
    assert claims == json.loads((ROOT / "data" / "claims.json").read_text())
    assert notebooks == {p.name: p.read_text() for p in NOTEBOOKS}


def test_it_carries_the_toys_and_pythons_licence_unchanged(programs, tmp_path):
    code = "import json; from workbench.experiments.toys.starter import SHIPPED, starter_model; starter_model();"
    files = "p.relative_to(SHIPPED).as_posix(): p.stat().st_size for p in SHIPPED.rglob('*') if p.is_file()"
    found = answer(programs, tmp_path, f"{code}print(json.dumps({{{files}}}))")
    data = ROOT / "workbench" / "experiments" / "toys" / "data"
    assert found == {p.relative_to(data).as_posix(): p.stat().st_size for p in data.rglob("*") if p.is_file()}


@pytest.mark.rare
def test_a_loss_of_ones_own_is_asked_in_an_empty_folder(programs, tmp_path):
    loss = """
import numpy as np


def grpo_loss(logps, old_logps, advantages, mask):
    ratio, a = np.exp(np.where(mask > 0, logps - old_logps, 0)), advantages[:, None]
    plain, limited = ratio * a, np.clip(ratio, 0.8, 1.2) * a
    weight = mask / DIVISOR
    return -(np.minimum(plain, limited) * weight).sum(), -np.where(plain <= limited, plain, 0) * weight
"""
    wrong, right = "np.maximum(mask.sum(), 1)", "np.maximum(mask.sum(1, keepdims=True), 1) / len(mask)"
    (tmp_path / "wrong.py").write_text(loss.replace("DIVISOR", wrong))
    (tmp_path / "right.py").write_text(loss.replace("DIVISOR", right))
    pytest_command = (programs / "python", "-m", "pytest", "-p", "no:cacheprovider")
    for module, code, said, tests in (
        ("right", 0, "0 of 19 cases wrong", "19 passed, 20 skipped"),
        ("wrong", 1, "divisor: the tokens of each micro-batch", "11 failed, 8 passed, 20 skipped"),
    ):
        asked = [programs / "workbench", "conform", f"{module}:grpo_loss", "--as", "grpo"]
        tested = [*pytest_command, "--conform", f"{module}:grpo_loss", "--conform-as", "grpo"]
        for command, text in ((asked, said), (tested, tests)):
            done = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
            assert done.returncode == code and text in done.stdout, done.stdout + done.stderr


@pytest.mark.rare
def test_list_run_and_report_work_and_write_in_any_folder(programs, tmp_path):
    listing = ran(programs / "workbench", "list", cwd=tmp_path)
    assert {path.stem for path in NOTEBOOKS} <= set(listing.splitlines())
    ran(programs / "workbench", "run", "-q", "00_start_here", "-p", "steps=3", cwd=tmp_path)
    ran(programs / "workbench", "report", cwd=tmp_path)
    (run,) = (tmp_path / "runs" / "00_start_here").iterdir()
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["reports", "runs"]
    assert (tmp_path / "reports" / "index.html").is_file()


@pytest.mark.rare
def test_a_sweep_over_a_notebook_of_ones_own_works_in_any_folder(programs, tmp_path):
    write_notebook(tmp_path / "notebooks" / "mine.ipynb", "import workbench; print(workbench.__file__)")
    ran(programs / "workbench", "sweep", "mine", "-p", "steps=1,2", cwd=tmp_path)
    logs = [path.read_text() for path in (tmp_path / "runs" / "mine").glob("*/log.txt")]
    assert len(logs) == 2
    assert all(str(programs.parent) in log for log in logs)


@pytest.mark.rare
def test_a_notebook_copied_out_comes_before_the_wheels_own(programs, tmp_path):
    ran(programs / "workbench", "notebooks", cwd=tmp_path)
    copy = tmp_path / "notebooks" / "00_start_here.ipynb"
    assert copy.read_text() == (packaged("notebooks") / copy.name).read_text()
    copy.write_text(copy.read_text().replace("steps: int = 10 ", "steps: int = 7 "))
    assert "steps = 7 " in ran(programs / "workbench", "list", "00_start_here", cwd=tmp_path)


@pytest.mark.rare
def test_a_wheel_in_a_users_repository_names_no_commit(programs, tmp_path):
    git = ("git", "-c", "user.name=user", "-c", "user.email=user@localhost")
    ran(*git, "init", "--quiet", programs.parent, cwd=tmp_path)
    ran(*git, "commit", "--quiet", "--allow-empty", "-m", "theirs", cwd=programs.parent)
    code = "import json; from workbench.runs.environment import environment; print(json.dumps(environment()))"
    assert not answer(programs, tmp_path, code)["git_commit"]
