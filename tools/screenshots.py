"""Make docs/images/*.png from the real thing: `make screenshots`, about eight minutes, or some with runs that are there:

    export PYTHONPATH=tests:tests/helpers
    python -m tools.screenshots --runs FOLDER                # one of notebook 02, one of 05
    python -m tools.screenshots padding_explorer             # those of the explorers need no run

The report of notebook 02 and its completions as one opens them, and each widget in JupyterLab, driven in Chromium as
tests/lab/widgets/test_lab.py does.
"""

import argparse
import re
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path

import lab_browser
from conftest import workbench, write_notebook  # also sets an offline environment for all that is started here
from lab.widgets.test_lab import press, wait_for_state
from PIL import Image

from workbench.lab.reports import build_index
from workbench.runs import list_runs

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
LIMIT = 200_000  # bytes; these are in git
EXPLORERS = ("stop_explorer", "padding_explorer")
OF_RUNS = ("training_view", "run_comparer", "report", "microscope")
STOPS = """\
from transformers import AutoModelForCausalLM, AutoTokenizer
from workbench import StopSpec, load_prompts
from workbench.experiments.sampling import TransformersSampler
from workbench.experiments.recipes import resolve_model
from workbench.experiments.train import quiet_libraries
from workbench.lab.widgets import stop_explorer

quiet_libraries()
path = resolve_model("search")
engine = TransformersSampler(AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path))
prompt = load_prompts("search")[0]["prompt"]
stop_explorer({"transformers": engine}, prompt=prompt, stops=StopSpec(stop=("</search>",)), limit=24)"""
PADDING = "from workbench.lab.widgets import padding_explorer\npadding_explorer()"
TRAINING = """\
from functools import partial
from workbench import length_reward, make_recipe
from workbench.experiments import train
from workbench.runs.run import create_run
from workbench.lab.widgets import train_live

run = create_run("05_grpo_docs_example", {"seed": 0}, state="running")
training = partial(train, make_recipe("starter", max_steps=300), reward_funcs=length_reward(20), record_dir=run.path)
trainer = await train_live(run, training)"""
COMPARER = """\
from workbench.curves import load_baseline
from workbench.runs import list_runs
from workbench.lab.widgets import run_comparer

runs = [run for run in list_runs(None, "05_grpo_docs_example") if run.status["state"] == "done"]
documented = [load_baseline(name) for name in ("w3ng-qwen2.5-1.5b-tldr-grpo", "workbench-starter-docs-example")]
run_comparer(runs, documented, tolerance=5.0)"""


def shoot(name: str, element, height: int = 10_000) -> None:
    """A picture of an element, of at most some pixels from its top, refused when it is too large for git."""
    if element.get_by_text("javascript error").count():
        raise SystemExit(f"{name}: a part of it could not be drawn")
    path = IMAGES / f"{name}.png"
    element.screenshot(path=path)
    image = Image.open(path).convert("RGB")
    image = image.crop((0, 0, image.width, min(height, image.height)))
    image.quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}  {size / 1000:.0f} kB", flush=True)
    if size > LIMIT:
        raise SystemExit(f"{path}: {size} bytes, expected at most {LIMIT}")


def show(lab, folder: Path, name: str, source: str):
    """Run `source` in a notebook of its own; returns its widget."""
    write_notebook(folder / f"{name}.ipynb", source, parameters="", setup="", save="")
    lab.open(f"{name}.ipynb")
    lab.run_all()
    widget = lab.page.locator(".jp-OutputArea-output > .jupyter-widgets")
    widget.wait_for()
    return widget


def shoot_widgets(lab, folder: Path, names: Collection[str]) -> None:
    for name, source in {"stop_explorer": STOPS, "padding_explorer": PADDING}.items():
        if name in names:
            widget = show(lab, folder, name, source)
            wait_for_state(lab, "ready")
            shoot(name, widget)

    if "training_view" in names:
        widget = show(lab, folder, "training_view", TRAINING)
        widget.get_by_text(re.compile(r"step ([4-9]\d|\d{3}) of 300")).wait_for()
        press(lab, "Stop after this step")
        wait_for_state(lab, "interrupted")
        shoot("training_view", widget)

    if "run_comparer" in names:
        widget = show(lab, folder, "run_comparer", COMPARER)
        wait_for_state(lab, "ready")
        shoot("run_comparer", widget, height=1220)  # down to the figure's caption


def shoot_report(page, path: Path) -> None:
    """Its first screen."""
    page.set_viewport_size({"width": 1280, "height": 1160})
    page.goto(path.as_uri())
    shoot("report", page)


def shoot_microscope(page, path: Path) -> None:
    """The completions of 02: the table of its trainings, rewards by step, and what is wrong with them."""
    page.goto(path.as_uri())
    page.locator(".card").first.wait_for()
    page.set_viewport_size({"width": 1150, "height": 1120})
    shoot("microscope", page)


def make_runs(runs: Path) -> None:
    for name in ("05_grpo_docs_example", "02_grpo_custom_stops"):
        done = workbench("run", name, "-q", "--runs-dir", runs, timeout=1800)
        if list_runs(runs, name)[-1].status["state"] != "done":
            raise SystemExit(f"{name} failed, so no picture was made:\n{done.stdout}{done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pictures = (*EXPLORERS, *OF_RUNS)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(pictures)}; default all")
    parser.add_argument("--runs", type=Path, help="folder with a run of notebook 02 and one of 05; default makes them")
    args = parser.parse_args()
    if others := set(args.names) - set(pictures):
        parser.error(f"{', '.join(sorted(others))}: expected names of {', '.join(pictures)}")
    names = args.names or pictures
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        runs = folder / "runs"
        if args.runs:
            shutil.copytree(args.runs, runs)
        elif set(names) & set(OF_RUNS):
            make_runs(runs)
        with (
            lab_browser.served(folder, WORKBENCH_RUNS=str(runs)) as address,
            lab_browser.browsing(address, viewport={"width": 1150, "height": 1800}) as lab,
        ):
            shoot_widgets(lab, folder, names)
            if {"report", "microscope"} & set(names):
                build_index(list_runs(runs), folder / "reports")
                (report,) = (folder / "reports").glob("02_*/*[0-9].html")
            if "report" in names:
                shoot_report(lab.page, report)
            if "microscope" in names:
                shoot_microscope(lab.page, report.with_name(f"{report.stem}-microscope.html"))


if __name__ == "__main__":
    main()
