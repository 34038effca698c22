"""The scripts of repros/ stand alone, each has its patch, and docs/evidence/defects.md says what they were seen to say."""

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from conftest import need

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("matrix", ROOT / "repros/matrix.py")
matrix = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(matrix)

NAMES = matrix.repros()
DATA = json.loads((ROOT / "data/defects.json").read_text())
THEIRS = {"trl", "vllm", "peft", "torch", "transformers", "datasets", "tokenizers", "tiny", "engine"}
every_repro = pytest.mark.parametrize("name", NAMES)


def imported(path: Path) -> set[str]:
    """The packages that a script imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "repros").glob("*.py")), ids=lambda p: p.stem)
def test_nothing_of_ours_is_imported(path):
    assert imported(path) <= THEIRS | sys.stdlib_module_names


@every_repro
def test_a_repro_says_cause_harm_and_patch(name):
    assert re.search(r"^Cause: .*^Harm: .*^Patch", matrix.docstring(name), re.MULTILINE | re.DOTALL)


@every_repro
def test_a_repro_has_a_patch_that_was_seen_to_fix_it(name):
    tried = DATA["patched"][name][matrix.base(name)]
    assert tried["state"] == "fixed"
    assert DATA["results"][name][matrix.base(name)]["state"] == "present"


@every_repro
def test_results_are_of_the_present_code_on_six_releases_or_more(name):
    cells = DATA["results"][name]
    assert len(cells) >= 6
    assert {cell["code"] for cell in cells.values()} == {matrix.digest(name)}


def test_only_neighbouring_releases_are_one_stretch():
    cells = {
        name: {"state": state} for name, state in {"1.0.0": "present", "1.2.0": "present", "1.11.0": "present"}.items()
    }
    releases = ["1.0.0", "1.2.0", "1.10.0", "1.11.0"]
    assert matrix.stretches(cells, releases, "present") == "1.0.0 to 1.2.0, 1.11.0"
    assert matrix.stretches(cells, releases, "fixed") == ""


def test_a_step_shows_each_defect_or_the_page_says_why_not():
    steps = json.loads((ROOT / "data/step_releases.json").read_text())["results"]
    assert {*matrix.SHOWN, *matrix.NOT_SHOWN} == {*NAMES} and not matrix.SHOWN.keys() & matrix.NOT_SHOWN.keys()
    for name, (setting, stage) in matrix.SHOWN.items():
        for release, cells in steps.items():
            if (cell := cells.get(setting, {"state": "cannot run"}))["state"] != "cannot run":
                found = (cell["state"], cell["stage"]) == ("different", stage)
                assert found == (DATA["results"][name][release]["state"] == "present"), (name, release)


@pytest.mark.rare
@pytest.mark.slow
def test_a_repro_that_cannot_import_trl_could_not_run(tmp_path):
    (tmp_path / "trl").mkdir()
    (tmp_path / "trl/__init__.py").write_text("raise RuntimeError('half of a TRL')")
    made = matrix.run("empty_completion", tmp_path, "1.2.3")
    assert made["state"] == "cannot run"
    assert "half of a TRL" in made["says"]


@pytest.mark.slow
def test_the_installed_trl_is_as_the_table_says():
    release, folder = version("trl"), Path(importlib.util.find_spec("trl").origin).parents[1]
    known = DATA["results"]["hidden_stop_token"].get(release)
    need(known, f"TRL {release} in the table: python repros/matrix.py --trl {release}")
    made = matrix.run("hidden_stop_token", folder, release)
    assert (made["state"], made["says"]) == (known["state"], known["says"])


@pytest.mark.rare
@pytest.mark.slow
@pytest.mark.parametrize("state", ["present", "fixed"])
def test_with_the_patch_of_trl_finish_reasons_say_what_was_cut(state, tmp_path):
    """The patch that would make `EndedRow` unnecessary; no defect of a release, so it has no row in the table."""
    release = matrix.base("finish_reasons")
    folders = [ROOT / f".venv/lanes/trl-{release}", Path(importlib.util.find_spec("trl").origin).parents[1]]
    found = [folder for folder in folders if list(folder.glob(f"trl-{release}.dist-info"))]
    need(found, f"TRL {release}")
    for name in ("trl", f"trl-{release}.dist-info"):
        shutil.copytree(found[0] / name, tmp_path / name)
    if state == "fixed":
        diff = (ROOT / "repros/patches/finish_reasons.diff").read_text()
        subprocess.run(["patch", "-p1", "--fuzz=0"], cwd=tmp_path, input=diff, text=True, check=True)
    assert matrix.run("finish_reasons", tmp_path, release)["state"] == state
