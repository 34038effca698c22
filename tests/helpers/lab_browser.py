"""A real JupyterLab in a real Chromium, driven as a user would; for tests and `tools.screenshots`."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOKEN = "of-this-test"
LOOPBACK = re.compile(r"(http|ws)://127\.0\.0\.1[:/]|data:|blob:|about:")


def chromium() -> str | None:
    """Path of the browser, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextlib.contextmanager
def served(folder: Path, *, makefile: bool = False, **environment: str):
    """JupyterLab on `folder`, with the settings of `make lab`, or by the Makefile there; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--no-browser", f"--port={port}", "--port-retries=0", f"--IdentityProvider.token={TOKEN}"]
    command = [sys.executable, "-m", "jupyter", "lab", "--allow-root", f"--ServerApp.root_dir={folder}", *options]
    if makefile:
        command = ["make", "--old-file=.venv/installed", "lab", f"LAB_ARGS={' '.join(options)}"]
    own = folder / ".jupyter"  # neither settings nor workspaces of whoever runs this
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    homes = {name: str(own / name) for name in names}
    homes |= {"JUPYTERLAB_SETTINGS_DIR": str(own / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(own / "workspaces")}
    homes |= {"JUPYTER_PREFER_ENV_PATH": "1", "JUPYTER_PLATFORM_DIRS": "1"}
    homes["JUPYTER_CONFIG_PATH"] = homes["JUPYTER_PATH"] = str(ROOT / "requirements" / "jupyter")
    with (folder / "jupyter.log").open("w") as log:
        env = os.environ | homes | environment
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_until_up(address, process, folder / "jupyter.log")
        yield address
    finally:
        _end(process, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            _end(process, signal.SIGKILL)


def _end(process, number: int) -> None:
    """Signal the server and what has started it: `make` ends before its program does."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _wait_until_up(address: str, process, log: Path, timeout: float = 60) -> None:
    end = time.monotonic() + timeout
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{address}/api?token={TOKEN}", timeout=5)
            return
        time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


class Lab:
    """A browser page on a JupyterLab.

    Attributes:
        page: of playwright.
        foreign: addresses asked for outside this machine.
        errors: of scripts in the page.
    """

    def __init__(self, page, address: str):
        self.page, self.address = page, address
        self.foreign, self.errors = [], []
        page.on("request", lambda r: None if LOOPBACK.match(r.url) else self.foreign.append(r.url))
        page.on("websocket", lambda w: None if LOOPBACK.match(w.url) else self.foreign.append(w.url))
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.set_default_timeout(240_000)

    def open(self, notebook: str) -> None:
        """Open a notebook alone and wait until its kernel is idle: pressed earlier, Run All would ask for a kernel."""
        self.page.goto(f"{self.address}/doc/tree/{notebook}?token={TOKEN}&reset")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.page.wait_for_function("document.querySelector('#jp-main-statusbar')?.innerText.includes('| Idle')")

    def run_all(self) -> None:
        """Run > Run All Cells."""
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()

    def shut_down(self) -> None:
        """Kernel > Shut Down Kernel."""
        self.page.get_by_role("menuitem", name="Kernel", exact=True).click()
        self.page.get_by_role("menuitem", name="Shut Down Kernel", exact=True).click()


@contextlib.contextmanager
def browsing(address: str, **options):
    """Chromium on a JupyterLab; yields a `Lab`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield Lab(browser.new_page(**{"viewport": {"width": 1300, "height": 1100}} | options), address)
        finally:
            browser.close()
