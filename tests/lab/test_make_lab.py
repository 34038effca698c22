"""`make lab` in a real Chromium, on a copy of what a reader opens there."""

import shutil
import sys
from importlib.util import find_spec

import lab_browser
import pytest
from conftest import ROOT, need, workbench, write_notebook

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("notebooks", "docs", "requirements"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "Makefile", folder)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "runs" / "05").mkdir(parents=True)
    assert workbench("new", "mine", "--folder", folder).returncode == 0
    return folder


@pytest.fixture(scope="module")
def lab(checkout):
    need(find_spec("playwright"), "playwright")
    need(lab_browser.chromium(), "Chromium")
    with (
        lab_browser.served(checkout, makefile=True, OMP_NUM_THREADS="") as address,
        lab_browser.browsing(address) as lab,
    ):
        yield lab


def tab(lab, name: str):
    return lab.page.get_by_role("tab", name=name)


def test_it_opens_notebook_00_with_the_whole_checkout_at_hand(lab):
    lab.page.goto(f"{lab.address}/?token={lab_browser.TOKEN}")
    lab.page.get_by_role("heading", name="00 Start here").wait_for()
    lab.page.get_by_role("button", name="File Browser Root").or_(lab.page.locator(".jp-BreadCrumbs-home")).first.click()
    for name in ("docs", "notebooks", "runs", "mine.ipynb"):
        lab.page.locator(".jp-DirListing-itemText", has_text=name).first.wait_for()


def test_a_link_of_a_notebook_opens_the_page_as_a_reader_sees_it(lab):
    lab.page.get_by_role("link", name="What you see, and why").click()
    lab.page.locator(".jp-MarkdownViewer").get_by_role("heading", name="What you see, and why").wait_for()
    lab.page.locator(".jp-MarkdownViewer").get_by_role("link", name="07").first.click()
    lab.page.get_by_role("heading", name="07 ").first.wait_for()


def changed_and_saved(lab, notebook: str) -> None:
    """Write a line at the end of the first cell that holds code, and press the keys of File > Save."""
    lab.open(notebook)
    cell = lab.page.locator(".jp-CodeCell .cm-content").last
    cell.click()
    cell.press("Control+End")
    lab.page.keyboard.type("\n1")
    lab.page.keyboard.press("Control+S")


def test_a_notebook_of_the_checkout_is_changed_by_no_save(lab, checkout):
    path = checkout / "notebooks" / "00_start_here.ipynb"
    before = path.read_bytes()
    changed_and_saved(lab, "notebooks/00_start_here.ipynb")
    lab.page.get_by_text("00_start_here.ipynb is read-only").first.wait_for()
    assert path.read_bytes() == before


def test_a_notebook_of_ones_own_is_saved(lab, checkout):
    path = checkout / "mine.ipynb"
    before = path.read_bytes()
    changed_and_saved(lab, "mine.ipynb")
    lab.page.wait_for_function("document.title.includes('mine') && !document.querySelector('.jp-mod-dirty')")
    assert path.read_bytes() != before


def test_a_kernel_has_one_thread_as_a_run_has(lab, checkout):
    code = "import os, torch\nprint('threads', os.environ['OMP_NUM_THREADS'], torch.get_num_threads())"
    write_notebook(checkout / "threads.ipynb", code, parameters="", setup="", save="")
    lab.open("threads.ipynb")
    lab.run_all()
    lab.page.locator(".jp-OutputArea-output", has_text="threads 1 1").wait_for()
