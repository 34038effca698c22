import subprocess
import sys
import warnings

import pytest

from workbench.errors import MissingDependencyError
from workbench.training.versions import NEWEST, OLDEST, check_trl


@pytest.mark.parametrize("found", [OLDEST, "1.12.1", "1.13.0", "1.14.2", NEWEST, "1.16.3", "1.16.0rc1"])
def test_a_release_between_the_tested_ones_is_taken_without_a_word(found):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_trl(found)


@pytest.mark.parametrize("found", ["0.24.0", "1.0.0", "1.11.0"])
def test_an_older_one_is_refused_with_the_range_to_install(found):
    with pytest.raises(MissingDependencyError, match=rf'trl {found}: .*pip install "trl>=1.12,<1.17"'):
        check_trl(found)


@pytest.mark.parametrize("found", ["1.17.0", "1.17.0.dev0", "2.0.0"])
def test_a_newer_one_is_named_in_a_warning(found):
    with pytest.warns(UserWarning, match=rf"trl {found} is newer than .* tested with \(1.16.0\)"):
        check_trl(found)


@pytest.mark.slow
def test_where_trl_has_no_ppo_the_other_trainers_work_and_ppo_says_which_release_to_take():
    code = """
import sys
sys.modules["trl.experimental.ppo"] = sys.modules["vllm"] = None
from workbench import GRPOTrainer, OnlineDPOTrainer, RLOOTrainer
from workbench.errors import MissingDependencyError
for name in ("PPOTrainer", "train_ppo"):
    try:
        getattr(__import__("workbench"), name)
    except MissingDependencyError as error:
        print(error)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = process.stdout.splitlines()
    assert len(lines) == 2 and all("has none, it left TRL with 1.13; pip install trl==1.12.0" in line for line in lines)
