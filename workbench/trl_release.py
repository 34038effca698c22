"""Which releases of TRL the workbench takes, and another one for one notebook: TRL is pure Python, a folder on the path."""

import os
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .errors import MissingDependencyError, ParameterError
from .extras import install

OLDEST, NEWEST = "1.12.0", "1.16.0"  # the tests run on both; `make lanes` runs some on the releases between
LAST_WITH_PPO = "1.12.0"


def use_trl(release: str) -> None:
    """Import this release of TRL in place of the installed one, here and in the processes started from here.

    Call it before anything imports TRL. `make install` installs the last release with PPO, from which vLLM is hidden.

    Args:
        release: e.g. `1.12.0`.

    Raises:
        MissingDependencyError: the release is not installed; the message has the command that installs it.
        ParameterError: another release is already imported.

    Example:
        >>> use_trl("0.0.1")
        Traceback (most recent call last):
        workbench.errors.MissingDependencyError: trl 0.0.1 is not installed; run: python -m pip install --no-deps --target ...
    """
    if release == LAST_WITH_PPO and "vllm" not in sys.modules:  # which cannot import one after 0.27; PPO needs none
        sys.modules["vllm"] = None  # type: ignore[assignment]
    if _version() == release:
        return
    folder = Path(sys.prefix) / "lanes" / f"trl-{release}"
    if not (folder / "trl" / "__init__.py").is_file():
        command = f'python -m pip install --no-deps --target "{folder}" trl=={release}'
        raise MissingDependencyError(f"trl {release} is not installed; run: {command}")
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


def check_trl(found: str = "") -> None:
    """Raise for a TRL that is too old, and warn of one that is newer than the tests; empty for the installed one.

    Example:
        >>> check_trl("1.14.2")
        >>> check_trl("1.11.0")
        Traceback (most recent call last):
        workbench.errors.MissingDependencyError: trl 1.11.0: the workbench needs 1.12.0 to 1.16.0; run: pip install ...
    """
    if not (found := found or _version()):
        raise MissingDependencyError(f"workbench.training needs trl: {install('train')}", name="trl")
    if _minor(found) < _minor(OLDEST):
        above = ".".join(map(str, (_minor(NEWEST)[0], _minor(NEWEST)[1] + 1)))
        raise MissingDependencyError(
            f'trl {found}: the workbench needs {OLDEST} to {NEWEST}; run: pip install "trl>={OLDEST[:-2]},<{above}"'
        )
    if _minor(found) > _minor(NEWEST):
        warnings.warn(
            f"trl {found} is newer than {NEWEST}, the newest release that the tests run on: private parts of TRL may have "
            "changed. Before you trust a run, check that its `completions/clipped_ratio` and `stops/clipped_ratio` agree",
            stacklevel=3,
        )


def _minor(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
