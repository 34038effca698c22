"""Notebooks whose kernel is killed while they train: resumed, they end as if nothing had happened."""

import json
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import need, workbench
from executed_notebook import assert_whole

from workbench.runs import list_runs
from workbench.runs.files import files_named, read_json
from workbench.runs.run import Run

pytestmark = pytest.mark.slow

# In the kernel alone: it kills itself once it has written a file of this name so many times. A training writes progress.json
# when it begins, after each step and when it ends, and complete.json into each checkpoint.
KILL = """\
import os, signal, sys
name, left = os.environ["KILLED_BY"], int(os.environ["KILLED_AT"])
replace = os.replace
def killing(source, target, **how):
    global left
    replace(source, target, **how)
    left -= os.path.basename(target) == name
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
if any("ipykernel" in word for word in sys.orig_argv):
    os.replace = killing
"""
# "eps" are episodes of PPO in a second. A watch measures the share of moved weights at the steps that leave time for it; the
# arms of notebook 10 measure it at each step.
TIMES = ["elapsed_s", "step_time", "eps"]
MEASURED_AT_TIMES = ["update/moved"]
MEASURED_AT_EACH_STEP = {"10_do_the_weights_move": ("arms/", "few_steps/")}
AFTER_A_STEP = "progress.json", 3  # the second step is trained, and the first one is logged
CHECKPOINT = "complete.json", 1

# Notebook -> its parameters, what it cannot run without, and when it is killed behind the first checkpoint. Where a training
# writes no checkpoint, that is behind its end: in the second training, or before the results.
TRAINING = {
    "00_start_here": ("steps=3", (), ("progress.json", 5)),
    "01_ppo_eos_stop": ("steps=5 seeds=1 response_length=32", (), ("progress.json", 10)),
    "02_grpo_custom_stops": ("steps=4 seeds=1 server=False", ("vllm",), ("progress.json", 9)),
    "03_position_ids_and_padding": ("steps=12 seeds=3 backend=transformers", (), CHECKPOINT),
    "04_duplicate_prompts": ("steps=4 seeds=1 server=False", ("vllm",), ("progress.json", 9)),
    "05_grpo_docs_example": ("steps=12 seeds=2", (), CHECKPOINT),
    "07_one_step_recomputed": ("", (), ("progress.json", 4)),
    "08_is_the_sampler_the_policy": ("steps=4 seeds=1 tokens=32", ("vllm",), ("progress.json", 57)),
    "10_do_the_weights_move": ("steps=4 seeds=1", (), ("progress.json", 9)),
}
RUN_HERE_ALONE = ("01", "02", "07", "08", "10")  # test_notebook_runs.py has the others
TOO_SHORT = {"01_ppo_eos_stop": ("The reward rises in every training",)}  # checks that only a longer training can pass
SAMPLED_BY_TRANSFORMERS = [name for name, (_, parts, _) in TRAINING.items() if "vllm" not in parts]


def run_notebook(notebook: str, parameters: str, root: Path, *options: str, env: Mapping | None = None):
    """The finished process, and the notebook's only run in `root`."""
    assigned = [part for parameter in parameters.split() for part in ("-p", parameter)]
    process = workbench("run", "-q", notebook, *assigned, "--runs-dir", root, *options, env=env, timeout=900)
    (run,) = list_runs(root)
    return process, run


def killed(notebook: str, parameters: str, when: tuple[str, int], folder: Path, *options: str) -> None:
    """Runs it, or resumes it, until its kernel has written the file of this name so many times."""
    (folder / "hook").mkdir(exist_ok=True)
    (folder / "hook" / "sitecustomize.py").write_text(KILL)
    path = os.pathsep.join([str(folder / "hook"), *filter(None, [os.environ.get("PYTHONPATH")])])
    killing = {"PYTHONPATH": path, "KILLED_BY": when[0], "KILLED_AT": str(when[1])}
    process, run = run_notebook(notebook, parameters, folder / "runs", *options, env=killing)
    assert run.status["state"] == "interrupted", f"{run.status}\n{process.stderr[-4000:]}"


def trainings(run: Run) -> dict[str, Run]:
    """Each training of a run by its folder in it."""
    folders = [path.parent for path in files_named(run.path, "metrics.jsonl")]
    return {folder.relative_to(run.path).as_posix(): Run(folder) for folder in folders}


def problems_of(run: Run) -> list[str]:
    """What each training of a resumed run lacks: its settings, or a step."""
    lacking = []
    for name, training in trainings(run).items():
        recipe = read_json(training.path / "recipe.json", {}).get("recipe", {})
        if "seed" not in recipe:
            lacking.append(f"{name}: no settings")
        steps = training.metrics["step"].tolist()
        if steps != list(range(1, recipe.get("max_steps", 0) + 1)):
            lacking.append(f"{name}: steps {steps}")
    states = [
        cell["metadata"]["papermill"]["status"]
        for cell in json.loads((run.path / "executed.ipynb").read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    if set(states) != {"completed"}:
        lacking.append(f"cells {states}")
    return lacking


def outcome(run: Run) -> dict:
    """What does not depend on time: settings and rows of each training, and the verdicts."""
    made: dict = {"verdicts": [(one["says"], one["holds"]) for one in run.result["results"]]}
    for name, training in trainings(run).items():
        at_each = name.startswith(MEASURED_AT_EACH_STEP.get(run.notebook, ()))
        at_times = [] if at_each else MEASURED_AT_TIMES
        metrics = training.metrics.drop(columns=TIMES + at_times, errors="ignore")
        recipe = read_json(training.path / "recipe.json", {})
        made[name] = {"settings": recipe, "metrics": metrics.to_csv(), "completions": training.completions.to_csv()}
    return made


@pytest.mark.rare
@pytest.mark.parametrize("notebook", TRAINING)
def test_notebooks_killed_twice_end_as_undisturbed_ones(notebook, tmp_path, starter_folder):
    """Killed before the first checkpoint, and, resumed, behind it or behind the end of a training."""
    parameters, parts, behind = TRAINING[notebook]
    for part in parts:
        need(find_spec(part), part)
    killed(notebook, parameters, AFTER_A_STEP, tmp_path)
    killed(notebook, parameters, behind, tmp_path, "--resume")
    process, run = run_notebook(notebook, parameters, tmp_path / "runs", "--resume")
    assert run.status["state"] == "done", f"{run.status}\n{process.stderr[-4000:]}"
    assert problems_of(run) == []
    assert list(run.path.rglob("replaced-*"))  # the record of the first step
    if notebook[:2] in RUN_HERE_ALONE:
        assert_whole(run, TOO_SHORT.get(notebook, ()))
    if notebook in SAMPLED_BY_TRANSFORMERS:  # vLLM's samples depend on its engine's history
        _, undisturbed = run_notebook(notebook, parameters, tmp_path / "undisturbed")
        assert trainings(run).keys() == trainings(undisturbed).keys()
        assert outcome(run) == outcome(undisturbed)
