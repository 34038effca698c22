"""The notebooks in a real JupyterLab, driven from the keyboard in a real Chromium."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import lab_browser
import pytest
from conftest import NOTEBOOKS, need

from workbench.curves.documented import as_baselines, list_baselines
from workbench.runs.files import read_json
from workbench.runs.run import list_runs

pytestmark = [pytest.mark.slow, pytest.mark.rare]  # test_make_lab.py opens a JupyterLab each day

OUTPUT = ".jp-OutputArea-output"


def copy_notebook(name: str, folder: Path, last: str = "", **parameters) -> str:
    """A copy with other parameters, cut behind the cell that holds `last`; returns its name."""
    (path,) = [p for p in NOTEBOOKS if p.stem.startswith(name)]
    notebook = json.loads(path.read_text(encoding="utf-8"))
    sources = ["".join(cell["source"]) for cell in notebook["cells"]]
    cut = next((n for n, source in enumerate(sources) if last and last in source), len(sources))
    notebook["cells"] = notebook["cells"][: cut + 1]
    for cell, source in zip(notebook["cells"], sources, strict=False):
        for parameter, value in parameters.items() if "parameters" in cell["metadata"].get("tags", []) else ():
            source, found = re.subn(rf"^({parameter}: \w+ = )\S+", rf"\g<1>{value!r}", source, flags=re.M)
            assert found == 1
            cell["source"] = source
    (folder / path.name).write_text(json.dumps(notebook))
    return path.name


@pytest.fixture(scope="module")
def folder(starter_folder, tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def lab(folder):
    need(find_spec("playwright"), "playwright")
    need(lab_browser.chromium(), "Chromium")
    with (
        lab_browser.served(folder, WORKBENCH_RUNS=str(folder / "runs")) as address,
        lab_browser.browsing(address) as lab,
    ):
        yield lab


def wait_for_state(lab, state: str, timeout: float = 120) -> None:
    lab.page.locator('[role="status"]', has_text=re.compile(rf"\b{state}:")).wait_for(timeout=timeout * 1000)


def press(lab, button: str) -> None:
    """Tab would get there too; focusing stands for it."""
    control = lab.page.get_by_role("button", name=button)  # its icon is part of the name
    control.focus()
    control.press("Enter")


def test_a_training_stops_by_button_and_continue_completes_it(lab, folder):
    lab.open(copy_notebook("05", folder, steps=24))
    lab.run_all()
    lab.page.locator(OUTPUT, has_text=re.compile(r"step [1-9]\d* of 24; .* s a step")).wait_for()
    press(lab, "Stop after this step")
    wait_for_state(lab, "interrupted")
    (run,) = list_runs(folder / "runs")
    status = run.status
    assert status["state"] == "interrupted"
    stopped_at = int(re.fullmatch(r"stopped after step (\d+) of 24: stopped by its button", status["error"])[1])
    assert 0 < stopped_at < 24
    assert read_json(run.path / f"checkpoints/checkpoint-{stopped_at}/complete.json", {})["step"] == stopped_at
    assert run.metrics["step"].tolist() == list(range(1, stopped_at + 1))
    cell = lab.page.locator(OUTPUT, has_text=f"TrainingStopped: {status['error']}")
    cell.wait_for()
    assert "Traceback" not in cell.inner_text()
    assert not (run.path / "result.json").exists()  # the cells below did not run

    press(lab, "Continue")
    wait_for_state(lab, "training")
    wait_for_state(lab, "trained")
    assert run.metrics["step"].tolist() == list(range(1, 25))
    assert run.completions.groupby("step").size().nunique() == 1
    assert run.status["state"] == "running"  # of this kernel, which has the notebook's other cells before it


def test_the_keyboard_changes_the_result_and_not_the_notebook(lab, folder):
    lab.open(copy_notebook("03", folder, last="padding_explorer("))
    lab.run_all()
    family = lab.page.get_by_label("model family")
    family.wait_for()
    image = lab.page.get_by_role("img", name=re.compile("left padding, float32"))
    assert image.get_attribute("alt").startswith("gpt2, ")
    cells = lab.page.locator(".jp-Cell").count()
    family.focus()
    for key in ("Space", "ArrowDown", "Enter"):
        lab.page.keyboard.press(key)
    lab.page.get_by_role("img", name=re.compile("^gpt_neo, left padding")).wait_for()
    assert lab.page.locator('[role="status"]', has_text="ready:").count() == 1
    assert lab.page.locator(".jp-Cell").count() == cells  # no key went to the notebook's shortcuts
    family.press("Tab")
    assert lab.page.evaluate("document.activeElement.labels[0].innerText") == "padding side"


def test_a_box_unticked_by_key_takes_a_documented_run_out(lab, folder):
    lab.open(copy_notebook("06", folder, last="run_comparer("))
    lab.run_all()
    wait_for_state(lab, "ready")
    drawn = lab.page.get_by_role("img", name="Measured and documented reward curves").last.get_attribute("alt")
    title = next(
        one.title for one in as_baselines(list_baselines()) if one.title in drawn
    )  # which are drawn depends on the runs
    lab.page.get_by_label(title).press("Space")
    lab.page.wait_for_function(
        "title => ![...document.querySelectorAll('.jupyter-widgets img')].some(i => i.alt.includes(title))", arg=title
    )
    wait_for_state(lab, "ready")


def test_nothing_outside_this_machine_is_asked_and_no_news_shown(lab):
    assert lab.foreign == []
    assert lab.page.get_by_text("javascript error").count() == 0
    assert lab.page.get_by_text("Jupyter news").count() == 0
