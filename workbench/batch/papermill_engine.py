"""papermill with its gaps closed: truthful cell states, a kernel with its own environment and folder, live events."""

import os
import sys
from pathlib import Path

import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError

from ..errors import TrainingStopped
from ..runs.tokens import hide_tokens, map_text


class Engine(NBClientEngine):
    """Reports cell starts and ends to `display`, and marks a cell failed when its kernel died or timed out.

    papermill itself leaves `completed` there.
    """

    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, *, env, kernel_cwd, display, start_timeout=60, **_):
        start, complete = nb_man.cell_start, nb_man.cell_complete

        def cell_start(cell, cell_index=None, **kwargs):
            display.cell_start(cell_index, len(nb_man.nb.cells))
            return start(cell, cell_index, **kwargs)

        def cell_complete(cell, cell_index=None, **kwargs):
            raised = sys.exc_info()[1] is not None  # papermill calls this in a `finally`
            result = complete(cell, cell_index, **kwargs)
            if raised:
                cell.metadata.papermill.update(status="failed", exception=True)
                nb_man.nb.metadata.papermill["exception"] = True
            display.cell_done(cell_index)
            return result

        nb_man.cell_start, nb_man.cell_complete = cell_start, cell_complete
        client = _Client(
            nb_man,
            kernel_name=kernel_name,
            startup_timeout=start_timeout,
            timeout=None,
            extra_arguments=_kernel_arguments(),
            stdout_file=display,
            stderr_file=display,
        )
        return client.execute(env=env, cwd=kernel_cwd)


class _Client(PapermillNotebookClient):
    """Hides access tokens in what a cell puts out, before the notebook is saved, which happens while the cell runs."""

    def process_message(self, msg, *arguments, **named):
        content = msg.get("content", {})
        for key in ("text", "evalue", "traceback"):
            if key in content:
                content[key] = map_text(content[key], hide_tokens)
        for mime, value in content.get("data", {}).items() if msg.get("msg_type") != "comm_open" else ():
            if not mime.startswith("image/") or mime == "image/svg+xml":
                content["data"][mime] = map_text(value, hide_tokens)
        return super().process_message(msg, *arguments, **named)


papermill_engines.register("workbench", Engine)


def _kernel_arguments() -> list[str]:
    arguments = ["--IPKernelApp.log_level=ERROR"]  # it warns of loopback TCP at every start
    if "SLURM_JOB_ID" in os.environ:
        arguments.append("--IPKernelApp.exec_lines=from workbench.batch.node import shield; shield(); del shield")
    return arguments


def execute(source: Path, output: Path, params: dict, *, env: dict, cwd: Path, display) -> tuple[str, str | None]:
    """Execute a notebook; returns the run's state and, unless `done`, the reason."""
    try:
        papermill.execute_notebook(
            source,
            output,
            params,
            engine_name="workbench",
            kernel_name="python3",
            progress_bar=False,
            env=env,
            display=display,
            kernel_cwd=str(cwd),  # papermill's own `cwd` would change this whole process's folder
        )
    except PapermillExecutionError as error:
        if error.ename == TrainingStopped.__name__:
            return "interrupted", error.evalue
        return "failed", f"cell {error.exec_count}: {error.ename}: {error.evalue}"
    except DeadKernelError:
        return "interrupted", "the kernel died (killed, or out of memory); see log.txt"
    except CellTimeoutError as error:
        return "failed", str(error)
    return "done", None
