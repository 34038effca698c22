import asyncio
import gc
from pathlib import Path

import nbformat
import pytest
from conftest import write_notebook

from workbench.lab.batch.execute import _execute_notebook, _Kernel, kernel_environment
from workbench.runs.text import printable

pytestmark = pytest.mark.slow


class Recorder:
    """A display that keeps what it is shown."""

    def __init__(self):
        self.events, self.text = [], ""

    def cell_start(self, index, total):
        self.events.append(("start", index, total))

    def cell_done(self, index):
        self.events.append(("done", index))

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def execute(folder: Path, cell: str) -> tuple[tuple[str, str | None], list[str], Recorder]:
    """State and error, the state of each code cell, and what was displayed of a notebook with this one cell."""
    path = write_notebook(folder / "in.ipynb", cell, parameters="seed: int = 0", setup="", save="print('last')")
    shown = Recorder()
    start = {"env": kernel_environment(0) | {"MINE": "1"}, "cwd": str(folder)}
    got = _execute_notebook(path, folder / "out.ipynb", {}, start, shown)
    cells = nbformat.read(folder / "out.ipynb", 4).cells
    return got, [c.metadata.papermill["status"] for c in cells if "papermill" in c.metadata], shown


def test_a_good_notebook_is_done_in_its_folder_showing_each_cell(tmp_path):
    got, states, shown = execute(tmp_path, "import os\nprint(os.getcwd(), os.environ['MINE'])")
    assert got == ("done", None)
    assert set(states) == {"completed"}
    assert f"{tmp_path} 1\n" in shown.text
    assert shown.events == [(what, n, 3)[: 3 if what == "start" else 2] for n in range(3) for what in ("start", "done")]


def test_a_cell_that_raises_is_failed_and_named_with_its_error(tmp_path):
    got, states, _ = execute(tmp_path, "1 / 0")
    assert got == ("failed", "cell 2: ZeroDivisionError: division by zero")
    assert states[-2:] == ["failed", "pending"]


def test_a_training_that_was_asked_to_stop_is_interrupted(tmp_path):
    stop = "from workbench.errors import TrainingStopped\nraise TrainingStopped('stopped after step 2')"
    assert execute(tmp_path, stop)[0] == ("interrupted", "stopped after step 2")


def test_a_killed_kernel_fails_its_cell_and_interrupts_its_run(tmp_path):
    (state, error), states, _ = execute(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert state == "interrupted"
    assert "kernel died" in error
    assert states[-2:] == ["failed", "pending"]


def test_ctrl_c_leaves_no_traceback_of_a_task(tmp_path, monkeypatch, caplog):
    clean = _Kernel.cleanup_resources

    async def slowly(self, **how):  # as on a busy machine: nbclient looks once a second whether the kernel lives
        await asyncio.sleep(2)
        await clean(self, **how)

    monkeypatch.setattr(_Kernel, "cleanup_resources", slowly)
    # Python loses an interrupt that comes while it runs a callback of C code: it is pressed again, as a user would.
    press = "import os, signal, time\nfor _ in range(4):\n    os.kill(os.getppid(), signal.SIGINT)\n    time.sleep(30)"
    with pytest.raises(KeyboardInterrupt):
        execute(tmp_path, press)
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_failed_cell_has_its_own_number_and_its_traceback(tmp_path):
    path = write_notebook(
        tmp_path / "in.ipynb", "print('first')", "{}['reward']", parameters="seed: int = 0", setup="", save=""
    )
    shown, start = Recorder(), {"env": kernel_environment(0), "cwd": str(tmp_path)}
    got = _execute_notebook(path, tmp_path / "out.ipynb", {"seed": 3}, start, shown)
    assert got == ("failed", "cell 3: KeyError: 'reward'")  # parameters, first, this one
    assert "Cell In[3]" in printable(shown.text) and "KeyError: 'reward'" in printable(shown.text)
