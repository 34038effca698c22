"""Notebooks from top to bottom, in the order of a user, with small parameters where the defaults take minutes.

A broken cell fails here. Checks that only a longer training can pass are named; every other one has to hold. The notebooks
that are not here run in test_resumed_notebooks.py, which asks the same of them.
"""

from importlib.util import find_spec

import pytest
from conftest import NOTEBOOKS, need, workbench
from executed_notebook import assert_whole
from test_resumed_notebooks import RUN_HERE_ALONE

from workbench.runs import list_runs

pytestmark = pytest.mark.slow

# Notebook -> its parameters here, and the checks that so short a training need not pass.
SMALL = {
    "00_start_here": ("steps=3", ()),
    "03_position_ids_and_padding": ("steps=10 seeds=3", ()),
    # Of eight completions all are the same by chance once in thousands of seeds, of two in one of five.
    "04_duplicate_prompts": ("num_generations=8 server=False steps=2 seeds=1", ()),
    "05_grpo_docs_example": ("steps=4 seeds=1 comparisons=True", ("The sign of TRL 0.14 makes text longer",)),
    "06_curves_against_baselines": ("", ()),
    "09_what_does_your_reward_reward": ("steps=3 seeds=1", ()),
}
# Run before each commit: the start. The others take up to three minutes each.
DAILY = ("00",)
CASES = [pytest.param(name, marks=[] if name[:2] in DAILY else pytest.mark.rare) for name in SMALL]


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("notebooks") / "runs"


@pytest.mark.parametrize("notebook", CASES)
def test_a_notebook_runs_from_top_to_bottom(notebook, runs_dir, starter_folder):
    if notebook[:2] == "04":
        need(find_spec("vllm"), "vLLM")
    parameters, too_short = SMALL[notebook]
    assigned = [part for parameter in parameters.split() for part in ("-p", parameter)]
    process = workbench("run", "-q", notebook, *assigned, "--runs-dir", runs_dir, timeout=600)
    (run,) = [run for run in list_runs(runs_dir) if run.notebook == notebook]
    assert run.status["state"] == "done", f"{run.status}\n{process.stdout[-2000:]}\n{process.stderr[-4000:]}"
    assert_whole(run, too_short)


def test_every_notebook_is_run():
    assert [path.stem[:2] for path in NOTEBOOKS] == sorted([*(name[:2] for name in SMALL), *RUN_HERE_ALONE])
