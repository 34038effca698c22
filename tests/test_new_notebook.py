"""`workbench new`: a notebook that runs at once."""

import json

import pytest
from conftest import call, workbench

from workbench.runs.run import list_runs


def test_it_is_a_notebook_with_parameters_one_training_and_a_result(capsys, tmp_path):
    code, out, _ = call(capsys, "new", "mine", "--folder", tmp_path)
    assert code == 0 and str(tmp_path / "mine.ipynb") in out
    cells = json.loads((tmp_path / "mine.ipynb").read_text())["cells"]
    source = "\n".join("".join(cell["source"]) for cell in cells)
    assert "trainer.train()" in source and 'open_run("mine"' in source and "{{" not in source


@pytest.mark.parametrize("name", ["../mine", ".mine", "a/b", ""])
def test_a_name_that_cannot_name_a_folder_of_runs_is_refused(capsys, tmp_path, name):
    code, _, problem = call(capsys, "new", name, "--folder", tmp_path)
    assert code == 2 and "it names the folder of its runs" in problem
    assert list(tmp_path.iterdir()) == []


def test_a_notebook_that_is_there_stays_as_it_is(capsys, tmp_path):
    (tmp_path / "mine.ipynb").write_text("my work")
    code, _, problem = call(capsys, "new", "mine", "--folder", tmp_path)
    assert code == 2 and "is there already" in problem
    assert (tmp_path / "mine.ipynb").read_text() == "my work"


@pytest.mark.slow
def test_it_runs_at_once_and_over_seeds(tmp_path):
    assert workbench("new", "mine", "--folder", tmp_path).returncode == 0
    path = tmp_path / "mine.ipynb"
    process = workbench("sweep", path, "-p", "seed=0,1", "-p", "steps=3", "--runs-dir", tmp_path / "runs")
    assert process.returncode == 0, process.stderr
    runs = list_runs(tmp_path / "runs")
    assert [run.status["state"] for run in runs] == ["done", "done"]
    assert all(len(run.metrics) == 3 and run.result["results"][0]["says"].startswith("The reward") for run in runs)
