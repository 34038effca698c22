"""Runs one notebook in one folder through papermill, in a kernel of its own, and records how it really ended.

papermill saves `completed` for cells of a killed kernel, so `status.json`, written here, is what counts. It also ignores
unknown parameters and checks no types, so a run's parameters are checked when it is planned (`sweep.py`).
"""

import contextlib
import functools
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import RunError
from ..runs.ownership import TOKEN_VARIABLE, kept, still_owned, take_run, update_run
from ..runs.parameters import check_parameters, notebook_parameters
from ..runs.run import Run
from ..runs.stop_request import clear_stop
from .display import Display
from .gpus import hold
from .notebooks import find_notebook


def execute_run(
    run: Run,
    *,
    notebook: str | Path | None = None,
    quiet: bool = False,
    gpus: int | None = None,
    token: str = "",
    force: bool = False,
    ended: Callable[[str, str | None], tuple[str, str | None]] | None = None,
) -> str:
    """Execute a prepared run and return its final state, `done`, `failed` or `interrupted`.

    Ctrl-C or SIGTERM ends it as `interrupted` (see `interruptible`); checkpoints and everything recorded so far stay.

    Args:
        run: its folder.
        notebook: name or path; default the notebook of the run's name.
        quiet: show nothing, write `log.txt` only.
        gpus: how many to hold for it, queued until they are free; None takes one where there are any.
        token: of the process that prepared the run and hands it on.
        force: execute it although another process owns it; see `take_run`.
        ended: given the state and its reason, returns those to record: a scheduler may start the run again.

    Raises:
        ParameterError: `params.json` holds what the notebook does not take.
        RunError: another process owns the run, or has taken it meanwhile; nothing in it is touched then.
    """
    source = find_notebook(str(notebook or run.notebook))
    params = check_parameters(notebook_parameters(source), run.params)  # their names become code in the notebook
    token = take_run(run.path, "queued", token=token, force=force)
    (run.path / "result.json").unlink(missing_ok=True)
    clear_stop(run)
    executing = run.path / "executing.ipynb"
    executing.unlink(missing_ok=True)
    with interruptible(), kept(run.path, token):
        try:
            state, error = _execute_in_kernel(run, source, executing, params, quiet, gpus, token)
        except KeyboardInterrupt:
            state, error = "interrupted", "stopped by Ctrl-C or SIGTERM"
        except OSError as problem:  # above all a full disk
            state, error = "failed", f"{type(problem).__name__}: {problem}"
        except BaseException as problem:
            update_run(run.path, token, "failed", f"{type(problem).__name__}: {problem}")
            raise
    if state == "done" and (missing := _missing_result(run)):
        state, error = "failed", missing
    if executing.is_file() and still_owned(run.path, token):
        os.replace(executing, run.path / "executed.ipynb")
    if ended:
        state, error = ended(state, error)
    update_run(run.path, token, state, error)
    return state


def _missing_result(run: Run) -> str:
    """Why a notebook that ended has no result; empty where it has one. One of the notebook's own form is put aside."""
    try:
        return "" if run.result else "the notebook ended before its last cell saved result.json"
    except RunError as problem:
        os.replace(run.path / "result.json", run.path / "result.unreadable.json")
        return f"{problem} (it is now result.unreadable.json)"


def _execute_in_kernel(
    run: Run, source: Path, output: Path, params: dict, quiet: bool, gpus: int | None, token: str
) -> tuple[str, str | None]:
    from . import papermill_engine

    environment = kernel_environment(params.get("seed", 0)) | {TOKEN_VARIABLE: token}
    params = params | {"out_dir": str(run.path), "interactive": False}
    waiting = functools.partial(update_run, run.path, token, "queued")
    with Display(run, quiet=quiet) as display, hold(gpus, waiting) as devices:
        update_run(run.path, token, "running")
        return papermill_engine.execute(
            source, output, params, env=environment | devices, cwd=run.path, display=display
        )


def kernel_environment(seed: int) -> dict[str, str]:
    """The kernel's environment: what decides determinism has to be set before torch is imported.

    One thread unless `OMP_NUM_THREADS` says otherwise: the toy models are faster so and thread counts change weights.
    Every run gets a free `MASTER_PORT` (trl #3979: a fixed port lets runs on one machine collide). Of the C++ libraries'
    log lines, which would stand among a report's results, only errors are shown.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fixed = {
        "PYTHONHASHSEED": str(seed % 2**32),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ, **fixed, "PATH": path}


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and a closed terminal act as Ctrl-C does, so that no child outlives its parent unseen.

    A signal that is handled or ignored already (as SIGHUP is by `nohup`) stays so. Outside the main thread, which alone may
    set handlers, nothing is changed.
    """

    def interrupt(*_):
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if main and signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
