"""Several notebooks on this machine, each as a `workbench run` process of its own."""

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..errors import ParameterError


def run_many(commands: Sequence[Sequence[str]], *, jobs: int = 1, runs_dir: Path | None = None) -> int:
    """Run `workbench run <arguments>` for each entry, at most `jobs` at a time.

    A process that fails does not stop the others. On Ctrl-C every child gets the signal too, as part of the terminal's
    process group, and ends its run as `interrupted`.

    Returns:
        0 when all runs are done, else the first exit code that is not 0.
    """
    if jobs < 1:
        raise ParameterError(f"jobs={jobs}: expected at least 1")
    where = ["--runs-dir", str(runs_dir)] if runs_dir else []

    def one(arguments: Sequence[str]) -> int:
        return subprocess.run([sys.executable, "-m", "workbench", "run", *arguments, *where]).returncode

    with ThreadPoolExecutor(jobs) as pool:
        codes = list(pool.map(one, commands))
    return next((code for code in codes if code), 0)
