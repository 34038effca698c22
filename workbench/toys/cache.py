"""Folders that are made once on this machine, and used only while they are what was made and nobody else could write them."""

import hashlib
import json
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from filelock import FileLock

from ..errors import ParameterError

_LIBRARIES = ("torch", "transformers", "trl", "accelerate", "tokenizers", "datasets")


def cache_root(cache_dir: str | os.PathLike | None = None) -> Path:
    """The folder of everything made: `cache_dir`, else `$WORKBENCH_CACHE`, else `~/.cache/workbench`."""
    root = Path(cache_dir or os.environ.get("WORKBENCH_CACHE") or Path.home() / ".cache" / "workbench")
    root.mkdir(parents=True, exist_ok=True)
    return root


def key_of(decides: dict) -> str:
    """16 hex digits of all that decides a trained model: `decides`, the libraries and the processor."""
    machine = {
        "libraries": {name: version(name) for name in _LIBRARIES},
        "cpu": [platform.machine(), torch.backends.cpu.get_cpu_capability()],
    }
    return hashlib.sha256(json.dumps(decides | machine, sort_keys=True).encode()).hexdigest()[:16]


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder, filled by `make` on first use.

    One whose files do not match the hashes written when it was finished, or that others may write to, is made again; of
    several processes that ask at once one makes it and the others wait.

    Args:
        folder: in `cache_root`, named after all that decides its content.
        make: gets a folder that does not exist, beside this one, and fills it.

    Raises:
        ParameterError: the folder belongs to another user.
    """
    if not _is_intact(folder):
        with FileLock(f"{folder}.lock"):
            if not _is_intact(folder):  # another process may have made it while this one waited
                _make(folder, make)
    return folder


def only_mine(path: Path) -> bool:
    """Whether nobody but this user and root can have changed a file of the cache: its hashes lie beside it."""
    about = path.lstat()
    return about.st_uid in (os.getuid(), 0) and not stat.S_ISLNK(about.st_mode) and not about.st_mode & 0o022


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    if os.path.lexists(folder) and folder.lstat().st_uid not in (os.getuid(), 0):
        raise ParameterError(
            f"{folder}: belongs to another user, who can change the model; set WORKBENCH_CACHE to a folder of your own"
        )
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "made"
        make(made)
        (made / "manifest.json").write_text(json.dumps(_file_hashes(made)))
        for path in (made, *made.iterdir()):
            path.chmod(path.stat().st_mode & ~0o022)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(made, folder)


def _file_hashes(folder: Path) -> dict[str, str]:
    files = (p for p in sorted(folder.iterdir()) if p.name != "manifest.json")
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def _is_intact(folder: Path) -> bool:
    try:
        untouched = all(only_mine(path) for path in (folder, *folder.iterdir()))
        return untouched and json.loads((folder / "manifest.json").read_text()) == _file_hashes(folder)
    except (OSError, ValueError):
        return False
