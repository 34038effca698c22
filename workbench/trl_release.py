"""Another release of TRL for one notebook: TRL is pure Python, so a release is a folder on the path."""

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .errors import MissingDependencyError, ParameterError


def use_trl(release: str) -> None:
    """Import this release of TRL in place of the installed one, here and in the processes started from here.

    Call it before anything imports TRL. `make install` puts the last release with PPO in place.

    Args:
        release: e.g. `1.12.0`.

    Raises:
        MissingDependencyError: the release is not in place; the message has the command that puts it there.
        ParameterError: another release is already imported.

    Example:
        >>> use_trl("0.0.1")
        Traceback (most recent call last):
        workbench.errors.MissingDependencyError: trl 0.0.1 is not in place: python -m pip install --no-deps --target ...
    """
    if _version() == release:
        return
    folder = Path(sys.prefix) / "lanes" / f"trl-{release}"
    if not (folder / "trl" / "__init__.py").is_file():
        command = f'python -m pip install --no-deps --target "{folder}" trl=={release}'
        raise MissingDependencyError(f"trl {release} is not in place: {command}")
    if "trl" in sys.modules:
        raise ParameterError(
            f"use_trl({release!r}): trl {_version()} is already imported; restart the kernel and call it first"
        )
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def _version() -> str:
    try:
        return version("trl")
    except PackageNotFoundError:
        return ""
