"""Runs one notebook in one folder through papermill, in a kernel of its own, and records how it really ended.

papermill saves `completed` for cells of a killed kernel, so `status.json`, written here, is what counts. It also ignores
unknown parameters and checks no types, so a run's parameters are checked when it is planned (`plan.py`).
"""

import collections
import contextlib
import functools
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import papermill
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError

from ...errors import NO_MEMORY, RunError, TrainingStopped, WorkbenchError
from ...runs import lock
from ...runs.files import move_aside
from ...runs.parameters import check_parameters, notebook_parameters
from ...runs.run import GOING, Run, record_execution, set_status, take_run
from ...runs.secrets import hide_tokens, map_text, stream_hider
from ...runs.stop_request import clear_stop, interruptible
from ..late_vllm import IMPORT_VLLM_LATE
from .audit import AUDIT, expected_findings, write_audit
from .code import check_unchanged, code_of, digest_of
from .display import Display
from .gpus import hold
from .notebooks import find_notebook

_MOST_PRINTED = 1_000_000  # characters of a cell that its notebook keeps; a report shows 20,000 of an output


def execute_run(
    run: Run,
    *,
    notebook: str | Path | None = None,
    quiet: bool = False,
    gpus: int | None = None,
    ended: Callable[[str, str | None], tuple[str, str | None]] | None = None,
    kernel: str | None = None,
    cwd: str | None = None,
    execution_timeout: float | None = None,
    code: Mapping[str, str] | None = None,
) -> str:
    """Execute a prepared run and return its final state, `done`, `failed` or `interrupted`.

    Ctrl-C or SIGTERM ends it as `interrupted` (see `interruptible`); checkpoints and everything recorded so far stay. GPUs
    are held for it, queued until they are free: `gpus` of them, None for one where there are any. `ended` is given the state
    and its reason and returns those to record: a scheduler may start the run again. `code` is what was planned
    (`code_files`): a run whose code has changed since fails.
    """
    try:
        source = find_notebook(str(notebook or run.notebook))
        known = notebook_parameters(source)
        expects = expected_findings(source)
        params = check_parameters(known, run.params)  # their names become code in the notebook
    except WorkbenchError as problem:
        if lock.holds(run.path):  # it was made, or handed on, to be executed now
            set_status(run.path, "failed", str(problem))
            lock.let_go(run.path)
        raise
    cwd = cwd or str(source.parent)
    take_run(run.path, "queued")
    try:
        clear_stop(run)
        executing = run.path / "executing.ipynb"
        executing.unlink(missing_ok=True)
        with interruptible():
            try:
                by_runner = {"out_dir": str(run.path), "interactive": False}
                params |= {name: value for name, value in by_runner.items() if name in known}
                number = lock.open_lock(run.path)
                waiting = functools.partial(set_status, run.path, "queued")
                with Display(run, quiet=quiet) as display, hold(gpus, waiting) as devices:
                    about = {"path": str(source), "kernel": kernel, "cwd": cwd}
                    check_unchanged(code or {})  # now: it may have waited for hours
                    about["code"] = digest_of(code) if code else code_of(source, cwd)
                    for name in ("result.json", AUDIT):
                        (run.path / name).unlink(missing_ok=True)
                    on_gpus = devices.get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
                    record_execution(run, about, on_gpus)
                    set_status(run.path, "running", gpus=on_gpus)
                    display.starting()
                    env = kernel_environment(params.get("seed")) | {lock.VARIABLE: str(number)}
                    start = {"env": env | devices, "cwd": cwd, "pass_fds": (number,)}
                    options = {"kernel": kernel, "timeout": execution_timeout}
                    state, error = _execute_notebook(source, executing, params, start, display, **options)
            except KeyboardInterrupt:
                state, error = "interrupted", "stopped by Ctrl-C or SIGTERM"
            except (OSError, MemoryError) as problem:  # above all a full disk
                says = str(problem) or NO_MEMORY  # Python's own MemoryError has no text
                state, error = "failed", f"{type(problem).__name__}: {says}"
            except RunError as problem:  # other code than was planned, or GPUs that cannot be asked for
                state, error = "failed", str(problem)
            except BaseException as problem:
                set_status(run.path, "failed", f"{type(problem).__name__}: {problem}")
                raise
        try:
            _ = run.result
        except RunError as problem:  # one of the notebook's own form
            os.replace(run.path / "result.json", run.path / "result.unreadable.json")
            state, error = "failed", f"{problem} (it is now result.unreadable.json)"
        try:
            if executing.is_file():
                if (run.path / "executed.ipynb").is_dir():
                    move_aside(run.path, ["executed.ipynb"], "executed.ipynb is a folder")
                os.replace(executing, run.path / "executed.ipynb")
        except OSError as problem:  # a file server that is away for a moment
            state, error = "failed", f"{type(problem).__name__}: {problem}"
        if ended:
            state, error = ended(state, error)
        if state not in GOING:  # else a scheduler starts the run again
            write_audit(run, expects)
        set_status(run.path, state, error)
    finally:
        lock.let_go(run.path)
    return state


def kernel_environment(seed: object = None) -> dict[str, str]:
    """The kernel's environment: what decides determinism has to be set before torch is imported.

    One thread unless `OMP_NUM_THREADS` says otherwise: the toy models are faster so and thread counts change weights.
    Every run gets a free `MASTER_PORT` (trl #3979: a fixed port lets runs on one machine collide). Of the C++ libraries'
    log lines, which would stand among a report's results, only errors are shown.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fixed = {
        "PYTHONHASHSEED": str(seed % 2**32 if isinstance(seed, int) else 0),
        "PYTHONSAFEPATH": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",  # the release with PPO is pinned
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ, **fixed, "PATH": path}


# --- papermill with its gaps closed: truthful cell states, a kernel with its own environment and folder, live events ---


class Engine(NBClientEngine):
    """Reports cell starts and ends to `display`, and marks a cell failed when its kernel died or timed out.

    papermill itself leaves `completed` there.
    """

    @classmethod
    def execute_managed_notebook(
        cls, nb_man, kernel_name, *, start, display, timeout, ours, folders, start_timeout, **_
    ):
        begin, complete = nb_man.cell_start, nb_man.cell_complete

        def cell_start(cell, cell_index=None, **kwargs):
            display.cell_start(cell_index, len(nb_man.nb.cells))
            return begin(cell, cell_index, **kwargs)

        def cell_complete(cell, cell_index=None, **kwargs):
            raised = sys.exc_info()[1] is not None  # papermill calls this in a `finally`
            result = complete(cell, cell_index, **kwargs)
            if raised:
                cell.metadata.papermill.update(status="failed", exception=True)
                nb_man.nb.metadata.papermill["exception"] = True
            display.cell_done(cell_index)
            return result

        nb_man.cell_start, nb_man.cell_complete = cell_start, cell_complete
        options = {
            "kernel_name": kernel_name,
            "startup_timeout": start_timeout,
            "iopub_timeout": start_timeout,  # 4 seconds by default: a cell's last output may take longer on a busy node
            "timeout": timeout,
            "kernel_manager_class": _Kernel if ours else AsyncKernelManager,
            "extra_arguments": _kernel_arguments(folders, ours),
            "stdout_file": display,
            "stderr_file": display,
        }
        # Jupyter picks free ports before its kernel binds them: of runs that start together another may take one first.
        attempts = 3
        while True:
            attempts -= 1
            lines: collections.deque[str] = collections.deque(maxlen=40)
            try:
                with keeping(lines) as stream:
                    return _Client(nb_man, **options).execute(**start, stdout=stream, stderr=stream)
            except RuntimeError as error:  # DeadKernelError is one
                if "died before replying" not in str(error) or not attempts:
                    if lines:
                        display.write(f"the kernel's last lines:\n{hide_tokens(''.join(lines))}")
                    raise


@contextlib.contextmanager
def keeping(lines: collections.deque[str]) -> Iterator[int]:
    """A file descriptor for what a kernel and its children write, of which the last lines are kept.

    The kernel sends all of it to its client too, which hides secrets; only what it says while it starts or dies is here alone.
    """
    read, write = os.pipe()

    def drain() -> None:
        with os.fdopen(read, errors="replace") as file:
            lines.extend(file)

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    try:
        yield write
    finally:
        os.close(write)
        thread.join(timeout=1)  # a child that outlives the kernel holds the other end


class _Client(PapermillNotebookClient):
    """Hides secrets in what a cell puts out, before the notebook is saved, which happens while the cell runs.

    Cells have the numbers that they have for the user: papermill's own cell of parameters is not counted.
    """

    _interrupted = False

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self._streams: dict[str, Callable[[str], str]] = collections.defaultdict(stream_hider)

    def execute_cell(self, cell, cell_index, **how):
        try:
            injected = "injected-parameters" in cell.metadata.get("tags", [])
            return super().execute_cell(cell, cell_index, store_history=not injected, **how)
        except KeyboardInterrupt:
            self._interrupted = True
            raise

    async def _async_check_alive(self):
        """Ctrl-C ends the kernel, of which a task of nbclient that nobody awaits would print a traceback."""
        if not self._interrupted:
            await super()._async_check_alive()

    _streamed = (-1, 0)  # the cell that printed last, and how many characters

    def output(self, outs, msg, display_id, cell_index):
        """Write what a cell prints into the log, whole; the notebook keeps what a page can read."""
        out = super().output(outs, msg, display_id, cell_index)
        if out is not None and out.output_type == "stream":
            super().log_output_message(out)
            cell, before = self._streamed
            before = before if cell == cell_index and len(outs) > 1 else 0  # else the cell has cleared its output
            self._streamed = (cell_index, before + len(out.text))
            if before >= _MOST_PRINTED:
                outs.pop()
            elif len(out.text) > (room := _MOST_PRINTED - before):
                note = f"[what the cell printed after {_MOST_PRINTED:,} characters is in log.txt]"
                out.text = f"{out.text[:room]}\n{note}\n"
        return out

    def log_output_message(self, output):
        """Nothing: `output` has written it."""

    def process_message(self, msg, *arguments, **named):
        content = msg.get("content", {})
        if msg.get("msg_type") == "stream":
            content["text"] = self._streams[content["name"]](content["text"])
        for key in ("evalue", "traceback"):
            if key in content:
                content[key] = map_text(content[key], hide_tokens)
        data = content.get("data", {})
        if "comm_id" in content:
            self._hide_in_widget(content["comm_id"], data.get("state", {}))
        else:
            for mime, value in data.items():
                if not mime.startswith("image/") or mime == "image/svg+xml":
                    data[mime] = map_text(value, hide_tokens)
        return super().process_message(msg, *arguments, **named)

    def _hide_in_widget(self, comm: str, state: dict) -> None:
        """In the values of a widget; names with an underscore hold its code."""
        hidden = map_text({**self.widget_state.get(comm, {}), **state}, hide_tokens)
        state.update({key: hidden.get(key) for key in state if not key.startswith("_")})


papermill_engines.register("workbench", Engine)


class _Kernel(AsyncKernelManager):
    """A kernel of this very Python: what Jupyter calls `python3` on a machine may be another's."""

    _OURS = KernelSpec(
        argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        language="python",
        display_name="Python 3",
    )
    kernel_spec = property(lambda self: self._OURS)


def _kernel_arguments(folders: list[str], ours: bool) -> list[str]:
    """Modules come from these folders, and from none that the notebook later works in, such as its run's."""
    first = f"__import__('sys').path[:0] = {folders!r}; exec({lock.KEEP_LOCK!r}, {{}})"
    if ours:  # another Python may not have the package
        first += f"; {IMPORT_VLLM_LATE}"
    if "SLURM_JOB_ID" in os.environ:
        first += "; from workbench.lab.batch.node import shield; shield(); del shield"
    # Its own log is on the terminal: loopback TCP at every start, tracebacks of a kernel that is ended.
    return ["--IPKernelApp.log_level=CRITICAL", "--IPKernelApp.ignore_cwd=True", f"--IPKernelApp.exec_lines={first}"]


def _execute_notebook(
    source: Path,
    output: Path,
    params: dict,
    start: dict,
    display: Display,
    *,
    kernel: str | None = None,
    timeout: float | None = None,
) -> tuple[str, str | None]:
    """The state that a notebook ends in and, unless `done`, the reason; `start`: how its kernel's process is made."""
    try:
        executed = papermill.execute_notebook(
            *(str(path).replace("{", "{{").replace("}", "}}") for path in (source, output)),  # papermill formats them
            params,
            engine_name="workbench",
            start_timeout=300,  # seconds: on a busy node, or one that reads Python from the network, 60 are few
            kernel_name=kernel or "python3",
            language="python",
            progress_bar=False,
            start=start,
            display=display,
            timeout=timeout,
            ours=not kernel,
            folders=list(dict.fromkeys([str(source.parent), start["cwd"]])),
        )
    except PapermillExecutionError as error:
        if error.ename == TrainingStopped.__name__:
            return "interrupted", error.evalue
        display.write("\n".join([*error.traceback, ""]))
        return "failed", f"cell {error.exec_count}: {error.ename}: {error.evalue}"
    except DeadKernelError:
        return "interrupted", "the kernel died (killed, or out of memory); see log.txt"
    except CellTimeoutError as error:
        return "failed", str(error)
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    if any(cell.metadata.papermill["status"] == "pending" for cell in code):  # `sys.exit(0)`
        return "failed", "the notebook ended before its last cell"
    return "done", None
