"""Another release of TRL in one process: the notebook on PPO."""

import subprocess
import sys

import pytest

from workbench import use_trl
from workbench.errors import MissingDependencyError
from workbench.trl_release import LAST_WITH_PPO


def in_a_process(code: str) -> str:
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return process.stdout + process.stderr


def test_a_release_that_is_not_in_place_is_named_with_the_command_that_puts_it_there():
    with pytest.raises(MissingDependencyError, match=r'trl 9\.9\.9 .* pip install --no-deps --target ".*trl-9\.9\.9"'):
        use_trl("9.9.9")


def test_what_is_imported_then_and_in_processes_started_then_is_that_release():
    code = (
        f"from workbench import use_trl; use_trl('{LAST_WITH_PPO}'); use_trl('{LAST_WITH_PPO}')\n"
        "import subprocess, sys; from importlib.metadata import version; print(version('trl'))\n"
        "look = 'import trl; print(trl.__version__)'\n"
        "subprocess.run([sys.executable, '-c', look])\n"
        "exec(look)"
    )
    assert in_a_process(code).split() == [LAST_WITH_PPO] * 3


def test_where_another_release_is_imported_already_it_says_to_restart(tmp_path):
    (tmp_path / "trl").mkdir()
    (tmp_path / "trl/__init__.py").write_text("")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import trl; from importlib import metadata\n"
    code += "from workbench import trl_release; trl_release._version = lambda: '0.1'\n"
    assert "restart the kernel" in in_a_process(code + f"trl_release.use_trl('{LAST_WITH_PPO}')")


@pytest.mark.slow
def test_ppo_is_imported_in_a_plain_script_whatever_vllm_is_there():
    code = f"from workbench import use_trl; use_trl('{LAST_WITH_PPO}')\nfrom workbench import PPOTrainer; print(PPOTrainer)"
    assert in_a_process(code).split() == ["<class", "'workbench.training.ppo.PPOTrainer'>"]
