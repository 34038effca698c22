"""Which notebook a name means: the user's own come before those that the library carries."""

import os
import shutil
from pathlib import Path

from ..errors import ParameterError, RunError
from ..packaged import packaged


def list_notebooks() -> dict[str, Path]:
    """Name -> file of each notebook that its name alone finds, sorted by name.

    Raises:
        RunError: `$WORKBENCH_NOTEBOOKS` is no folder.
    """
    found = {path.stem: path for folder in reversed(_folders()) for path in folder.glob("*.ipynb")}
    return dict(sorted(found.items()))


def _folders() -> list[Path]:
    """`$WORKBENCH_NOTEBOOKS`; without it `notebooks/` here, then the library's own."""
    given = os.environ.get("WORKBENCH_NOTEBOOKS")
    if given and not Path(given).is_dir():
        raise RunError(f"WORKBENCH_NOTEBOOKS={given}: no such folder; unset it or name a folder of notebooks")
    return [Path(given)] if given else [Path("notebooks"), packaged("notebooks")]


def find_notebook(name: str) -> Path:
    """The notebook called `name` (with or without `.ipynb`, or a path).

    A path comes first, then the notebooks of `$WORKBENCH_NOTEBOOKS`; without it those of `notebooks/` here, then the
    library's own.

    Raises:
        ParameterError: names the notebooks there are.
        RunError: `$WORKBENCH_NOTEBOOKS` is no folder.
    """
    path = Path(name if name.endswith(".ipynb") else f"{name}.ipynb")
    for candidate in (path, *(folder / path for folder in _folders())):
        if os.path.isfile(candidate):
            return candidate.resolve()
    raise ParameterError(f"notebook {name!r}: not found; there are {', '.join(list_notebooks())}")


def copy_notebooks(folder: Path) -> list[Path]:
    """Copy the library's notebooks into `folder`, made where it is absent, to be edited there.

    Raises:
        ParameterError: one of them is there already; nothing is copied then.
    """
    originals = sorted(packaged("notebooks").glob("*.ipynb"))
    if there := [path.name for path in originals if os.path.lexists(folder / path.name)]:
        raise ParameterError(f"{folder}: {', '.join(there)} there already; move them away or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copyfile(path, folder / path.name)) for path in originals]
