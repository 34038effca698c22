"""Runs one notebook in one folder through papermill, in a kernel of its own, and says truly how it ended.

papermill ignores unknown parameters, does not check types, and saves `completed` for cells of a killed kernel; so
parameters are checked before and `status.json`, written here, is what counts.
"""

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import ParameterError, RunError
from ..runs.parameters import Parameter, check_parameters, notebook_parameters
from ..runs.run import SET_BY_RUNNER, Run, create_run, list_runs, load_run
from ..runs.status import set_status
from ..runs.stop_request import clear_stop
from .display import Display
from .gpus import hold


def notebooks_dir() -> Path:
    """`$WORKBENCH_NOTEBOOKS`, else `notebooks/` here, else the one beside the library's source."""
    given = os.environ.get("WORKBENCH_NOTEBOOKS")
    candidates = [Path(given)] if given else [Path("notebooks"), Path(__file__).parents[2] / "notebooks"]
    for path in candidates:
        if path.is_dir():
            return path.resolve()
    raise RunError(f"no notebooks folder ({', '.join(map(str, candidates))}); set WORKBENCH_NOTEBOOKS")


def find_notebook(name: str) -> Path:
    """The notebook called `name` (with or without `.ipynb`, or a path).

    Raises:
        ParameterError: names the notebooks there are.
    """
    path = Path(name if name.endswith(".ipynb") else f"{name}.ipynb")
    for candidate in (path, notebooks_dir() / path):
        if candidate.is_file():
            return candidate.resolve()
    there = ", ".join(p.stem for p in sorted(notebooks_dir().glob("*.ipynb")))
    raise ParameterError(f"notebook {name!r}: not found; there are {there}")


def prepare_run(notebook: str, params: Mapping, *, root: Path | None = None, resume: str | None = None) -> Run:
    """Check everything and make the run folder, or find the one to resume; starts nothing.

    Args:
        notebook: name or path.
        params: name -> value, strings allowed.
        root: folder of all runs; default `runs_root()`.
        resume: None for a new run; "" for the latest unfinished run of this notebook with these parameters; else a run
            id or folder.

    Raises:
        ParameterError: notebook or parameters are wrong.
        RunError: nothing to resume, or the run to resume is still going or done.
    """
    path, full, run = check_run(notebook, params, root=root, resume=resume)
    return run or create_run(path.stem, full, root)


def check_run(
    notebook: str, params: Mapping, *, root: Path | None = None, resume: str | None = None
) -> tuple[Path, dict, Run | None]:
    """As `prepare_run`, without making a folder: the notebook, all parameters, and the run to resume."""
    path = find_notebook(notebook)
    full = full_parameters(notebook_parameters(path), params)
    if resume is None:
        return path, full, None
    run = _find_resumable(path.stem, full, {name: full[name] for name in params}, root, resume)
    return path, run.params, run


def full_parameters(known: Mapping[str, Parameter], params: Mapping) -> dict:
    """What a run records: every parameter the runner does not set, as given or by default.

    Raises:
        ParameterError: an unknown name, a wrong value, or one that only the runner sets.
    """
    for name in SET_BY_RUNNER:
        if name in params:
            raise ParameterError(f"parameter {name!r} is set by the runner; choose the folder with --runs-dir")
    given = {name: _absolute(value) for name, value in check_parameters(known, params).items()}
    return {name: p.default for name, p in known.items() if name not in SET_BY_RUNNER} | given


def _absolute(value):
    """A relative path of something that exists, made absolute: the kernel works in the run's folder, not here."""
    here = isinstance(value, str) and ("/" in value or Path(value).suffix) and Path(value).exists()
    return os.path.abspath(value) if here else value


def _find_resumable(notebook: str, full: dict, given: dict, root: Path | None, resume: str) -> Run:
    mine = [r for r in list_runs(root) if r.notebook == notebook]
    if resume:
        found = [r for r in mine if r.id == resume] or [load_run(resume)]
        for name, value in given.items():
            if found[-1].params.get(name) != value:
                raise ParameterError(
                    f"parameter {name}={value!r}: the run to resume has {found[-1].params.get(name)!r}"
                )
    else:
        found = [r for r in mine if r.params == full and r.status["state"] in ("interrupted", "failed")]
        if not found:
            states = ", ".join(f"{r.id} ({r.status['state']})" for r in mine if r.params == full) or "none"
            raise RunError(f"nothing to resume: runs of {notebook} with these parameters: {states}")
    run = found[-1]
    if run.status["state"] in ("queued", "running", "done"):
        raise RunError(f"{run.path}: is {run.status['state']}; only an interrupted or failed run can be resumed")
    return run


def execute_run(
    run: Run,
    *,
    notebook: str | None = None,
    quiet: bool = False,
    gpus: int | None = None,
    ended: Callable[[str, str | None], tuple[str, str | None]] | None = None,
) -> str:
    """Execute a prepared run and return its final state, `done`, `failed` or `interrupted`.

    Ctrl-C or SIGTERM ends it as `interrupted`; checkpoints and everything recorded so far stay.
    A handler of SIGTERM that is set already is left in charge.

    Args:
        run: its folder.
        notebook: name or path; default the notebook of the run's name.
        quiet: show nothing, write `log.txt` only.
        gpus: how many to hold for it, queued until they are free; None takes one where there are any.
        ended: given the state and its reason, returns those to record: a scheduler may start the run again.
    """
    from . import papermill_engine

    source = find_notebook(notebook or run.notebook)
    (run.path / "result.json").unlink(missing_ok=True)
    clear_stop(run)
    executing = run.path / "executing.ipynb"
    params = run.params | {"out_dir": str(run.path), "interactive": False}
    environment = kernel_environment(run.params.get("seed", 0))
    with _sigterm_interrupts():
        try:
            with hold(gpus, lambda why: set_status(run.path, "queued", why)) as devices:
                set_status(run.path, "running")
                with Display(run, quiet=quiet) as display:
                    state, error = papermill_engine.execute(
                        source, executing, params, env=environment | devices, cwd=run.path, display=display
                    )
        except KeyboardInterrupt:
            state, error = "interrupted", "stopped by Ctrl-C or SIGTERM"
        except OSError as problem:  # above all a full disk
            state, error = "failed", f"{type(problem).__name__}: {problem}"
        except BaseException as problem:
            set_status(run.path, "failed", f"{type(problem).__name__}: {problem}")
            raise
    if state == "done" and not run.result:
        state, error = "failed", "the notebook ended before its last cell saved result.json"
    if executing.is_file():
        os.replace(executing, run.path / "executed.ipynb")
    if ended:
        state, error = ended(state, error)
    set_status(run.path, state, error)
    return state


def kernel_environment(seed: int) -> dict[str, str]:
    """The kernel's environment: what decides determinism has to be set before torch is imported.

    One thread unless `OMP_NUM_THREADS` says otherwise: the toy models are faster so and thread counts change weights.
    Every run gets a free `MASTER_PORT` (trl #3979: a fixed port lets runs on one machine collide).
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
    return {"OMP_NUM_THREADS": "1", **os.environ, **fixed, "PATH": path}


@contextlib.contextmanager
def _sigterm_interrupts():
    def interrupt(*_):
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread, which alone may set handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
