import ast
import base64
import json
import re
import socket

import nbformat
import pandas as pd
import pytest
from conftest import NOTEBOOKS, ROOT, workbench
from matplotlib.figure import Figure

from tools.address import INSTALL
from tools.write_outputs import MOST_BYTES, code_hash, with_outputs, with_pictures
from workbench import length_reward, make_recipe
from workbench.curves import load_baseline
from workbench.curves.compare import SAME, another_seed
from workbench.curves.figures import DescribedFigure
from workbench.curves.measured import run_curve
from workbench.experiments import train
from workbench.lab.reports.notebook import Notebook
from workbench.runs.parameters import notebook_parameters
from workbench.runs.results import results_of
from workbench.runs.run import Run, list_runs

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path) -> list:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


@each_notebook
def test_a_notebook_is_valid_and_names_the_python3_kernel(path):
    nbformat.validate(read(path))
    assert read(path).metadata.kernelspec.name == "python3"  # a name of one machine would not be found elsewhere
    assert not {"widgets", "papermill"} & read(path).metadata.keys()


def test_the_first_screen_of_06_says_what_its_results_say():
    first, *rest = read(next(path for path in NOTEBOOKS if path.stem.startswith("06_"))).cells
    printed = " ".join(str(cell.get("outputs", "")) for cell in rest)
    assert "1 of 4 runs rises" in printed  # the outputs are looked at
    for sentence in re.findall(r"(?:\bOf \d|(?<=\. )\d |Equal )[^.]*\.", " ".join(first.source.split())):
        assert sentence in printed, sentence


@each_notebook
def test_its_outputs_are_those_of_its_code_and_name_no_machine(path):
    notebook = read(path)
    assert notebook.metadata.get("workbench", {}).get("outputs_of") == code_hash(notebook), "run `make notebooks`"
    assert path.stat().st_size <= MOST_BYTES
    for number, cell in enumerate(code_cells(path), 1):
        assert cell.execution_count == number
        for output in cell.outputs:
            assert output.output_type != "error"
            data = output.get("data", {})
            assert len(str(data.get("image/png", ""))) <= 200_000  # base64 of 150 kB
            texts = [str(value) for mime, value in data.items() if not mime.startswith("image/")]
            text = re.sub(r"base64,[A-Za-z0-9+/=]+", "", "".join(texts) + str(output.get("text", "")))
            rich = any(mime.startswith(("image/", "text/html", "text/markdown")) for mime in data)
            assert rich or len(text) <= 5000, f"cell {number} shows a wall of text"
            machine = re.search(r"(?<![\w.:/])/(home|root|tmp|work|check|Users|opt)/|[A-Z]:\\\\Users", text)
            assert not machine, text[:300]
            assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)


def test_outputs_of_other_code_are_noticed():
    notebook = read(NOTEBOOKS[0])
    before = code_hash(notebook)
    next(cell for cell in notebook.cells if cell.cell_type == "code").source += "\n1"
    assert code_hash(notebook) != before
    with pytest.raises(ValueError, match="other code cells"):
        with_outputs(notebook, read(NOTEBOOKS[0]))


@each_notebook
def test_each_parameter_has_the_help_that_list_shows(path):
    parameters = notebook_parameters(path)
    assert {"seed", "out_dir", "interactive"} <= parameters.keys()
    assert [name for name, parameter in parameters.items() if not parameter.help] == []


@each_notebook
def test_a_code_cell_is_short_without_def_class_or_named_lambda(path):
    for cell in code_cells(path):
        assert cell.source.strip() and len(cell.source.splitlines()) <= 20, cell.source
        for node in ast.walk(ast.parse(cell.source)):
            assert not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef), cell.source
            assert not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)), cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_no_text_names_a_claim_by_its_id(path):
    prose = "".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    assert re.findall(r"\bA\d\.\d\b", prose) == []


@pytest.mark.parametrize("path", NOTEBOOKS[:6], ids=lambda p: p.stem)
def test_results_are_made_of_numbers_and_arguments_are_keywords(path):
    for cell in code_cells(path):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Call):
                assert not any(k.arg is None and isinstance(k.value, ast.Dict) for k in node.keywords), cell.source
                sentence = node.args[0] if node.args and getattr(node.func, "id", "") == "Result" else None
                assert not isinstance(sentence, ast.JoinedStr), cell.source
            assert not (isinstance(node, ast.AugAssign) and isinstance(node.value, ast.JoinedStr)), cell.source


@pytest.mark.parametrize("number", ["00", "02", "04", "05"])
def test_a_notebook_begins_with_its_figure_and_folds_the_code(number):
    path = next(path for path in NOTEBOOKS if path.stem.startswith(number))
    cells = [cell for cell in code_cells(path) if INSTALL not in cell.metadata.get("tags", [])]
    first = cells[0]
    assert first.metadata == {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]}  # in JupyterLab, on the site


@each_notebook
def test_a_relative_link_is_plain_text_in_a_report(path):
    """A report is one file that is sent to others, who do not have the checkout."""
    report = Notebook(str)
    report.read(json.loads(path.read_text(encoding="utf-8")))
    html = "".join(str(block) for section in report.sections for block in section.blocks)
    assert not re.findall(r'href="(?!https?://)[^"]*"', html)
    assert "../docs" not in re.sub(r"<code>.*?</code>|<pre.*?</pre>", "", html, flags=re.S)


# --- executed ------------------------------------------------------------------------------------------------------


@pytest.mark.rare
@pytest.mark.slow
def test_the_documented_example_rises_as_the_recorded_seeds_do(starter_folder, tmp_path):
    train(make_recipe("starter", seed=1), reward_funcs=length_reward(), record_dir=tmp_path)
    run = Run(tmp_path)
    rewards = run.metrics["reward"]
    assert len(rewards) == 80 and rewards.head(3).mean() < -20 and -6 < rewards.tail(20).mean() <= 0
    control = load_baseline("workbench-starter-docs-example")
    tolerance = control.recorded["tolerance"]["reward"]
    assert another_seed(run_curve(run), control.curves_by_seed(), tolerance=tolerance).verdict == SAME


@pytest.mark.rare
@pytest.mark.slow
def test_the_output_of_training_comes_while_it_trains(example_run):
    """The log has the notebook's own lines, on stderr as well as in the run's folder."""
    run, process = example_run
    assert process.returncode == 0, process.stderr
    lines = re.findall(r"^step \d+/8 .*reward", (run.path / "log.txt").read_text(), re.M)
    assert len(lines) == 8
    assert lines[0] in process.stderr


@pytest.mark.slow
@pytest.mark.rare
def test_curves_against_baselines_works_without_runs_and_says_so(tmp_path):
    process = workbench("run", "06_curves_against_baselines", "--runs-dir", tmp_path)
    assert process.returncode == 0, process.stderr
    (run,) = list_runs(tmp_path)
    assert {r.verdict for r in results_of(run.result)} == {"passed"}
    assert run.result["numbers"]["documented"] >= 60 and run.result["numbers"]["placed"] == 1


@pytest.mark.rare
@pytest.mark.slow
def test_notebook_06_places_a_log_and_names_what_it_cannot_use(here, example_run, tmp_path):
    log = ROOT / "tests" / "data" / "documented" / "imjonezz-llama3.1-8b-gsm8k-grpo.csv"
    (tmp_path / "damaged.json").write_text('{"log_history": [')
    chosen = f"run={log};{example_run[0].path};{tmp_path / 'damaged.json'}"
    command = ["-p", chosen, "-p", "like=unsloth-llama3.1-8b-gsm8k-grpo", "--runs-dir", tmp_path / "runs"]
    process = here("run", "06_curves_against_baselines", *command)
    assert process.returncode == 0, process.stderr
    (run,) = list_runs(tmp_path / "runs")
    outputs = [output for cell in code_cells(run.path / "executed.ipynb") for output in cell.outputs]
    column = "same numbers as the documented run"
    (cell,) = [html for o in outputs if column in (html := str(o.get("data", {}).get("text/html", "")))]
    assert "inside the spread" in cell and "(IMJONEZZ)" in cell and "not JSON" in cell


def test_a_figure_is_written_as_picture_then_caption_and_data():
    table = pd.DataFrame({"x": [1]})
    figure = DescribedFigure(Figure(), alt='"a" rises', table=table, caption="One seed.")
    html = f"<p>before</p>{figure._repr_html_()}<p>after</p>"
    shown = nbformat.v4.new_output("display_data", {"text/html": html, "text/plain": repr(figure)})
    before, picture, after = with_pictures(shown)
    assert before.data["text/html"] == "<p>before</p>"
    assert set(picture.data) == {"image/png", "text/plain"} and picture.data["text/plain"] == 'Figure: "a" rises'
    assert base64.b64decode(picture.data["image/png"]).startswith(b"\x89PNG")
    assert "<img" not in after.data["text/html"] and after.data["text/html"].startswith("<p>One seed.</p>")
    assert after.data["text/html"].endswith("<p>after</p>") and after.data["text/plain"] == "One seed. after"
    plain = nbformat.v4.new_output("display_data", {"text/plain": "4"})
    assert with_pictures(plain) == [plain]
    shown.data["text/html"] = f'<div class="foreign">{html}</div>'  # as redacted pages have it
    assert with_pictures(shown) == [before, picture, after]


def test_every_stored_output_closes_the_elements_it_opens():
    """A viewer writes outputs into one page: an element that stays open takes in what follows, or hides it."""
    for path in NOTEBOOKS:
        for cell in code_cells(path):
            for output in cell.outputs:
                html = output.get("data", {}).get("text/html", "")
                for name in ("div", "table", "figure", "details"):
                    assert len(re.findall(rf"<{name}\b", html)) == html.count(f"</{name}>"), (
                        path.name,
                        name,
                        html[:200],
                    )
