"""`workbench new`: a notebook that runs at once."""

import ast
import json
import re
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest
from conftest import ROOT, call, need, until, workbench

from workbench.runs.files import read_json
from workbench.runs.run import list_runs


@pytest.fixture
def mine(capsys, tmp_path):
    assert call(capsys, "new", "mine", "--folder", tmp_path)[0] == 0
    return tmp_path / "mine.ipynb"


def run_of(mine, *parameters):
    """Its run, over which it has to succeed."""
    runs = mine.parent / "runs"
    process = workbench("run", mine, "-q", *(part for one in parameters for part in ("-p", one)), "--runs-dir", runs)
    assert process.returncode in (0, 1), process.stderr  # 1: a reward that falls, which a few steps may show
    (run,) = list_runs(runs)
    assert run.status["state"] == "done", run.status
    return run


@pytest.mark.parametrize("name", ['a "b"', "a\\b", "it's \U0001f600", "MY NAME"])
def test_a_new_notebook_of_any_name_opens_a_run_of_that_name(capsys, tmp_path, name):
    assert call(capsys, "new", name, "--folder", tmp_path)[0] == 0
    cells = json.loads((tmp_path / f"{name}.ipynb").read_text())["cells"]
    trees = [ast.parse("".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (opened,) = [call.args[0].value for call in calls if getattr(call.func, "id", "") == "open_run"]
    assert opened == name and "".join(cells[0]["source"]).startswith(f"# {name}\n")


def test_a_new_notebook_has_parameters_one_training_and_a_result(capsys, tmp_path):
    code, out, _ = call(capsys, "new", "mine", "--folder", tmp_path)
    assert code == 0 and str(tmp_path / "mine.ipynb") in out
    cells = json.loads((tmp_path / "mine.ipynb").read_text())["cells"]
    source = "\n".join("".join(cell["source"]) for cell in cells)
    assert "trainer.train(" in source and 'open_run("mine"' in source and "{{" not in source


@pytest.mark.parametrize("name", ["../mine", ".mine", "a/b", ""])
def test_a_name_that_cannot_name_a_folder_of_runs_is_refused(capsys, tmp_path, name):
    code, _, problem = call(capsys, "new", name, "--folder", tmp_path)
    assert code == 2 and "its name is also the name of a folder" in problem
    assert list(tmp_path.iterdir()) == []


def test_a_notebook_that_is_there_stays_as_it_is(capsys, tmp_path):
    (tmp_path / "mine.ipynb").write_text("my work")
    code, _, problem = call(capsys, "new", "mine", "--folder", tmp_path)
    assert code == 2 and "is there already" in problem
    assert (tmp_path / "mine.ipynb").read_text() == "my work"


def test_it_follows_the_rules_of_the_notebooks(mine):
    cells = json.loads(mine.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(len(source.splitlines()) <= 20 for source in sources)
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    assert not [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]


@pytest.mark.rare
@pytest.mark.slow
def test_it_runs_at_once_in_a_sweep(mine):
    runs = mine.parent / "runs"
    process = workbench("sweep", mine, "-p", "seed=1", "-p", "steps=3", "--runs-dir", runs)
    assert process.returncode == 0, process.stderr
    (run,) = list_runs(runs)
    assert (run.status["state"], run.params["seed"], len(run.metrics)) == ("done", 1, 3)
    assert "Figure: reward_len, step by step" in (run.path / "executed.ipynb").read_text()  # the reward's own name
    assert run.result["results"][0]["says"].startswith("The reward")


@pytest.mark.rare
@pytest.mark.slow
def test_after_ctrl_c_resume_goes_on_from_the_last_checkpoint(mine):
    runs = mine.parent / "runs"
    command = ["run", str(mine), "-q", "-p", "steps=40", "-p", "seed=1", "--runs-dir", str(runs)]
    process = subprocess.Popen([sys.executable, "-m", "workbench", *command], cwd=ROOT, stdout=subprocess.DEVNULL)
    until(lambda: list(runs.glob("*/*/checkpoints/*/complete.json")))
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    again = workbench(*command, "--resume")
    assert again.returncode == 0, again.stderr
    (run,) = list_runs(runs)
    assert run.metrics["step"].tolist() == list(range(1, 41))
    assert not list(run.path.glob("replaced-*"))  # no new training began


@pytest.fixture
def chat_model(starter_folder, tmp_path):
    """The starter with a chat template, as an instruct model has one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(starter_folder)
    tokenizer.chat_template = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}"
    for part in (tokenizer, AutoModelForCausalLM.from_pretrained(starter_folder)):
        part.save_pretrained(tmp_path / "chat")
    return tmp_path / "chat"


@pytest.mark.slow
def test_it_takes_a_chat_model_with_lora_a_stop_and_seeds(mine, chat_model):
    need(find_spec("peft"), "peft")
    run = run_of(mine, f"model={chat_model}", "lora=2", "stop=e", "seeds=2", "steps=4", "batch=16")
    for folder, seed in ((run.path, 0), (run.path / "seed-1", 1)):
        training = read_json(folder / "recipe.json", {})
        assert training["recipe"]["seed"] == seed and training["stops"]["stop"] == ["e"]
        assert (folder / "checkpoints" / "checkpoint-4" / "adapter_model.safetensors").is_file()
    assert "'role': 'user'" in (run.path / "executed.ipynb").read_text()  # its prompts are messages
    says = run.result["results"][0]["says"]
    assert re.search(r"rises by \S+ \(.* to .*\) from the first 2 to the last 2 of 4 steps; seeds: 2", says)


@pytest.mark.rare
@pytest.mark.slow
def test_it_samples_with_vllm(mine):
    need(find_spec("vllm"), "vLLM")
    run = run_of(mine, "backend=vllm", "steps=2", "stop=e")
    assert len(run.metrics) == 2 and "vllm/requests" in run.metrics
    assert run.completions["finish_reason"].eq("stop").any()


def test_a_new_notebook_takes_no_name_of_the_library(capsys, tmp_path):
    code, _, err = call(capsys, "new", "00_start_here", "--folder", tmp_path)
    assert code == 2 and "00_start_here: a notebook of the library has this name" in err
    assert not list(tmp_path.iterdir())


def test_a_parameter_in_the_place_of_a_notebook_is_explained(capsys):
    code, _, err = call(capsys, "run", "00_start_here", "steps=5")
    assert code == 2 and "a parameter is given as -p steps=5" in err
