"""All notebooks from top to bottom, in the order of a user, with small parameters where the defaults take minutes.

A broken cell fails here. Checks that only a longer training can pass are named; every other one has to hold.
"""

import json
import re
from importlib.util import find_spec

import pytest
from conftest import need, workbench

from workbench.runs import list_runs
from workbench.runs.results import results_of
from workbench.runs.summary import RunSummary

pytestmark = pytest.mark.slow

# Notebook -> its parameters here, and the checks that so short a training need not pass.
SMALL = {
    "00_start_here": ("steps=3", ()),
    "01_ppo_eos_stop": ("steps=5 seeds=1 response_length=32", ("The reward rises in every training",)),
    "02_grpo_custom_stops": ("steps=3 seeds=1 server=False", ()),
    "03_position_ids_and_padding": ("steps=10 seeds=3", ()),
    # Of eight completions all are the same by chance once in thousands of seeds, of two in one of five.
    "04_duplicate_prompts": ("num_generations=8 server=False steps=2 seeds=1", ()),
    "05_grpo_docs_example": ("steps=4 seeds=1 comparisons=True", ("The sign of TRL 0.14 makes text longer",)),
    "06_curves_against_baselines": ("", ()),
    "07_one_step_recomputed": ("", ()),
    "08_who_moved_the_ratio": ("steps=4 seeds=1 tokens=32", ()),
    "09_is_the_sampler_the_policy": ("steps=4 seeds=1", ()),
    "10_do_the_weights_move": ("steps=3 seeds=1", ()),
    "11_what_does_your_reward_reward": ("steps=3 seeds=1", ()),
}
# Notebook -> what it cannot run without.
PARTS = {"02": ["vllm"], "04": ["vllm"], "08": ["vllm"], "09": ["vllm", "peft"], "10": ["peft"]}


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("notebooks") / "runs"


@pytest.mark.parametrize("notebook", SMALL)
def test_a_notebook_runs_from_top_to_bottom_and_what_can_hold_at_this_size_holds(notebook, runs_dir, starter_folder):
    for part in PARTS.get(notebook[:2], ()):
        need(find_spec(part), part)
    parameters, too_short = SMALL[notebook]
    assigned = [part for parameter in parameters.split() for part in ("-p", parameter)]
    process = workbench("run", "-q", notebook, *assigned, "--runs-dir", runs_dir, timeout=600)
    (run,) = [run for run in list_runs(runs_dir) if run.notebook == notebook]
    assert run.status["state"] == "done", f"{run.status}\n{process.stdout[-2000:]}\n{process.stderr[-4000:]}"
    results = results_of(run.result)
    assert len(results) >= 3 and run.result["headline"]["value"] is not None
    assert [says for says in RunSummary.of(run).failed if not says.startswith(too_short)] == []
    assert noise(run) == []
    assert re.search(r"\d", results[0].says)


def noise(run) -> list[str]:
    """What a notebook puts out that is no result: warnings, progress bars, more than a dozen lines of log from one cell."""
    outputs = [
        o for cell in json.loads((run.path / "executed.ipynb").read_text())["cells"] for o in cell.get("outputs", [])
    ]
    streams = [(o["name"], "".join(o["text"])) for o in outputs if o["output_type"] == "stream"]
    bars = ["".join(o["data"]["text/plain"]) for o in outputs if "widget-view" in str(o.get("data", {}).keys())]
    watch = r"workbench: watching, recorded in .*\n"  # the one line with which `attach_watch` begins
    noisy = ((name == "stderr" and not re.fullmatch(watch, text)) or text.count("\n") > 24 for name, text in streams)
    return bars + [text for (_, text), loud in zip(streams, noisy, strict=True) if loud]


def test_every_notebook_is_run():
    from conftest import NOTEBOOKS

    assert [path.stem for path in NOTEBOOKS] == list(SMALL)
