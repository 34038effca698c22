"""A run whose every text is hostile, and its report; Chromium."""

import shutil
from importlib.util import find_spec

import pytest
from conftest import need
from report_samples import hostile_run

from workbench.lab.reports import build_report


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    return hostile_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def hostile_page(hostile) -> str:
    return build_report(hostile).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser():
    need(find_spec("playwright"), "playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    need(path, "Chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
