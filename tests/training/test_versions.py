import os
import subprocess
import sys
import warnings
from importlib.machinery import ModuleSpec

import pytest
from trl_version import HAS_PPO

from workbench.errors import MissingDependencyError
from workbench.experiments import recipes
from workbench.trl_release import NEWEST, OLDEST, check_trl


@pytest.mark.parametrize("found", [OLDEST, "1.12.1", "1.13.0", "1.14.2", NEWEST, "1.16.3", "1.16.0rc1"])
def test_a_release_between_the_tested_ones_gives_no_warning(found):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_trl(found)


@pytest.mark.parametrize("found", ["0.24.0", "1.0.0", "1.11.0"])
def test_an_older_one_is_refused_with_the_range_to_install(found):
    with pytest.raises(MissingDependencyError, match=rf'trl {found}: .*pip install "trl>=1.12,<1.17"'):
        check_trl(found)


@pytest.mark.parametrize("found", ["1.17.0", "1.17.0.dev0", "2.0.0"])
def test_a_newer_one_is_named_in_a_warning(found):
    with pytest.warns(UserWarning, match=rf"trl {found} is newer than 1.16.0, the newest release"):
        check_trl(found)


@pytest.mark.rare
@pytest.mark.slow
def test_all_is_imported_and_a_missing_ppo_names_its_release():
    # TRL 1.12 cannot import a vLLM after 0.27.1.
    code = """
from workbench.lab.late_vllm import import_vllm_late
import_vllm_late()
from workbench import *
GRPOTrainer, RLOOTrainer
print("PPOTrainer" in globals())
try:
    print(getattr(__import__("workbench"), "PPOTrainer"))
except Exception as error:
    print(type(error).__name__, error)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported, line = process.stdout.splitlines()
    assert imported == str(HAS_PPO)
    says = "has no PPO, which TRL removed in 1.13; call workbench.use_trl('1.12.0') first"
    if not HAS_PPO:
        assert line.startswith("MissingDependencyError") and says in line


# What each leaves on the disk, and what an engine that starts meets there.
NO_LIBRARY = "raise OSError('libcudart.so.13: cannot open shared object file')"
HALF_INSTALLED = {
    "a library that does not load": (NO_LIBRARY, "libcudart.so.13"),
    "a package cut short": ("__version__ = '0.27.1'", "has no attribute 'LLM'"),
}


@pytest.mark.rare
@pytest.mark.slow
@pytest.mark.parametrize("case", HALF_INSTALLED)
def test_half_installed_vllm_is_named_when_an_engine_starts(tmp_path, case):
    source, reason = HALF_INSTALLED[case]
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text(source)
    # Else transformers imports it, to find out its version.
    (tmp_path / "vllm-0.27.1.dist-info").mkdir()
    (tmp_path / "vllm-0.27.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.27.1\n")
    code = """
import workbench
from workbench.errors import MissingDependencyError
from workbench.lab.late_vllm import import_vllm_late
import_vllm_late()
workbench.GRPOTrainer
from trl.generation import vllm_generation
try:
    vllm_generation.LLM("a model")
except MissingDependencyError as error:
    print(error)
"""
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert "cannot import vllm.LLM of the vLLM that is installed" in process.stdout
    assert reason in process.stdout


def test_an_empty_folder_named_vllm_is_no_vllm(monkeypatch):
    monkeypatch.setattr(recipes, "find_spec", lambda name: ModuleSpec(name, None))
    with pytest.raises(MissingDependencyError, match="vLLM is not installed"):
        recipes.vllm_fields(recipes.make_recipe(model="starter", backend="vllm"))
