import ast
import re
import subprocess
import sys

import nbformat
import pytest
from conftest import NOTEBOOKS, workbench

from workbench.runs.results import results_of
from workbench.runs.run import list_runs

# The order of DESIGN.md; a notebook may leave sections out.
SECTIONS = [
    "Question",
    "Parameters",
    "Setup",
    "Toy",
    "Reproduce",
    "Measure",
    "Fix",
    "Verify",
    "On this stack",
    "Findings",
    "In your own code",
]
STORIES = [path for path in NOTEBOOKS if path.stem[:2] in ("01", "02", "03", "04", "05", "06", "07")]
FIRST = [("seed", "int", 0), ("out_dir", "str", ""), ("interactive", "bool", True)]

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def tagged(path, tag):
    return [cell for cell in code_cells(path) if tag in cell.metadata.get("tags", [])]


def test_there_are_notebooks():
    assert {"00_start_here", "05_grpo_docs_example"} <= {path.stem for path in NOTEBOOKS}


@each_notebook
def test_a_notebook_is_valid_and_names_the_python3_kernel(path):
    nbformat.validate(read(path))
    assert read(path).metadata.kernelspec.name == "python3"  # a name of one machine would not be found elsewhere
    assert not {"widgets", "papermill"} & read(path).metadata.keys()


@each_notebook
def test_outputs_and_counts_are_stripped(path):
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code_cells(path))


@each_notebook
def test_the_one_parameters_cell_starts_with_seed_out_dir_and_interactive(path):
    (cell,) = tagged(path, "parameters")
    lines = ast.parse(cell.source).body
    assert all(isinstance(line, ast.AnnAssign) for line in lines)
    named = [(line.target.id, line.annotation.id, ast.literal_eval(line.value)) for line in lines]
    assert named[:3] == FIRST
    assert all("#" in line for line in cell.source.splitlines()), "every parameter has its help"


@each_notebook
def test_there_is_no_def_class_or_lambda_assigned_to_a_name(path):
    for cell in code_cells(path):
        for node in ast.walk(ast.parse(cell.source)):
            assert not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef), cell.source
            assert not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)), cell.source


@each_notebook
def test_no_code_cell_is_longer_than_20_lines_or_empty(path):
    for cell in code_cells(path):
        assert 1 <= len(cell.source.splitlines()) <= 20, cell.source
        assert cell.source.strip()


@each_notebook
def test_sections_come_in_the_common_order(path):
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    headings = [h.partition(":")[0].strip() for h in re.findall(r"^## (.+)$", text, re.M)]
    assert headings == [section for section in SECTIONS if section in headings]
    assert {"Question", "Parameters", "Setup", "Verify", "Findings"} <= set(headings)
    assert len(re.findall(r"^# ", text, re.M)) == 1


@each_notebook
def test_it_has_a_cell_of_checks_and_its_last_cell_saves_the_result(path):
    assert tagged(path, "check")
    last = read(path).cells[-1]
    assert last.cell_type == "code"
    assert "save_result(" in last.source


# --- notebooks that tell of a published problem -----------------------------------------------------------------------

each_story = pytest.mark.parametrize("path", STORIES, ids=lambda p: p.stem)


@each_story
def test_the_first_screen_says_what_was_reported_and_what_is_true_today_and_draws_a_picture(path):
    first, picture = read(path).cells[:2]
    assert re.search(r"\*\*Reported\*\*.*\]\(https://github.com/\w+/\w+/(issues|pull)/\d+\)", first.source, re.S)
    assert "**Today**" in first.source and len(first.source.splitlines()) <= 14
    assert picture.cell_type == "code" and re.search(r"show_\w+\(|^picture$", picture.source, re.M)


@each_story
def test_one_figure_is_the_main_one_and_the_result_has_its_finding_as_a_sentence(path):
    assert len(tagged(path, "main")) == 1
    assert "finding=" in read(path).cells[-1].source


@each_story
def test_no_number_of_a_finding_is_typed(path):
    texts = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    (findings,) = [text for text in texts if text.startswith("## Findings")]
    assert findings == "## Findings"
    assert any("show_findings(found)" in cell.source for cell in code_cells(path))


@each_story
def test_it_ends_with_what_to_do_in_one_s_own_code(path):
    *_, advice, last = read(path).cells
    assert advice.source.startswith("## In your own code\n") and last.cell_type == "code"
    (block,) = re.findall(r"^```python\n(.*?)^```$", advice.source, re.M | re.S)
    lines = [line for line in block.splitlines() if line]
    assert lines[0].startswith("from workbench import ") and len(lines) <= 4


@each_notebook
def test_every_name_is_imported_or_assigned_and_every_import_used(path):
    command = [sys.executable, "-m", "ruff", "check", "--select", "F,E9", "--quiet", str(path)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout


# --- executed ------------------------------------------------------------------------------------------------------


def held(run) -> dict:
    """Checks that did not pass, but for those against controls that were recorded on other weights than are shipped."""
    other = "not run: not comparable: other weights"
    return {
        n: found for n, found in run.result["checks"].items() if found is not True and not str(found).startswith(other)
    }


@pytest.mark.slow
def test_the_documented_example_rises_from_below_minus_20_to_above_minus_6(example_run):
    run, process = example_run
    assert process.returncode == 0, process.stderr
    assert run.status["state"] == "done"
    assert set(held(run).values()) == {"not run: comparisons=False"}  # all others hold
    assert run.result["numbers"]["first"] < -20
    assert -6 < run.result["headline"]["value"] <= 0
    assert len(run.metrics) == 80


@pytest.mark.slow
def test_the_output_of_training_comes_while_it_trains(example_run):
    """The log has the notebook's own lines, on stderr as well as in the run's folder."""
    run, process = example_run
    lines = re.findall(r"^step \d+/80 .*reward", (run.path / "log.txt").read_text(), re.M)
    assert len(lines) == 10
    assert lines[0] in process.stderr


@pytest.mark.slow
def test_curves_against_baselines_works_without_any_run_and_says_so(tmp_path):
    process = workbench("run", "06_curves_against_baselines", "--runs-dir", tmp_path)
    assert process.returncode == 0, process.stderr
    (run,) = list_runs(tmp_path)
    skipped = {r.reason for r in results_of(run.result) if r.verdict != "passed"}
    assert skipped == {"no finished runs of 05_grpo_docs_example"}
    assert run.result["numbers"]["measured groups"] == 0
    assert run.result["numbers"]["Qwen2.5-3B, share at cap"] == pytest.approx(0.57, abs=0.005)


@pytest.mark.slow
def test_curves_against_baselines_draws_the_measured_runs(example_run, tmp_path):
    runs_dir = example_run[0].path.parents[1]
    process = workbench("run", "06_curves_against_baselines", "-p", f"runs_dir={runs_dir}", "--runs-dir", tmp_path)
    assert process.returncode == 0, process.stderr
    (run,) = list_runs(tmp_path)
    assert {r.verdict for r in results_of(run.result)} <= {"passed", "skipped"}
    assert run.result["numbers"]["measured groups"] >= 1
