"""Which notebook a name means, the user's own before those that the library carries; its kernel; making one."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

from ...errors import ParameterError, RunError, did_you_mean
from ...extras import packaged
from ...runs.parameters import check_notebook_name
from ...runs.text import one_line


def list_notebooks() -> dict[str, Path]:
    """Name -> file of each notebook that its name alone finds, sorted by name."""
    found = {path.stem: path for folder in reversed(_folders()) for path in folder.glob("*.ipynb")}
    return dict(sorted(found.items()))


def _folders() -> list[Path]:
    """`$WORKBENCH_NOTEBOOKS`; without it `notebooks/` here, then the library's own."""
    given = os.environ.get("WORKBENCH_NOTEBOOKS")
    if given and not Path(given).is_dir():
        raise RunError(f"WORKBENCH_NOTEBOOKS={given}: no such folder; unset it or name a folder of notebooks")
    return [Path(given)] if given else [Path("notebooks"), packaged("notebooks")]


def find_notebook(name: str) -> Path:
    """The notebook called `name`, with or without `.ipynb`: as a path, in one of `_folders`, or by its number alone."""
    path = Path(name if name.endswith(".ipynb") else f"{name}.ipynb")
    for candidate in (path, *(folder / path for folder in _folders())):
        if os.path.isfile(candidate):
            return candidate.resolve()
    numbered = [file for stem, file in list_notebooks().items() if name.isdigit() and stem.startswith(f"{name}_")]
    if len(numbered) == 1:
        return numbered[0].resolve()
    if os.path.exists(name):
        raise ParameterError(
            f"{name}: expected a notebook, a file ending in .ipynb; start a script with Python, and `workbench audit` reads "
            "what it leaves"
        )
    hint = f"; a parameter is given as -p {name}" if "=" in name else ""
    names = list_notebooks()
    raise ParameterError(f"notebook {name!r}: not found; {did_you_mean(name, names)}there are {', '.join(names)}{hint}")


def metadata_of(notebook: Path) -> dict:
    """Return what a notebook's file says of the whole notebook, such as its kernel."""
    about = json.loads(notebook.read_text(encoding="utf-8")).get("metadata", {})
    objects = ("kernelspec", "language_info", "workbench")
    if not isinstance(about, dict) or not all(isinstance(about.get(name, {}), dict) for name in objects):
        shown = {name: about.get(name) for name in objects} if isinstance(about, dict) else about
        raise ParameterError(
            f"{notebook}: metadata {repr(shown)[:200]}: expected an object, and in it objects or nothing as "
            f"{', '.join(objects)}; open the notebook in JupyterLab, choose its kernel and save it"
        )
    return about


def check_kernel(notebook: Path, kernel: str | None) -> None:
    """Refuse a kernel that Jupyter does not know, and one, or a notebook, of another language than Python."""
    if kernel:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

        manager = KernelSpecManager()
        try:
            language = manager.get_kernel_spec(kernel).language
        except NoSuchKernel:
            known = ", ".join(sorted(manager.find_kernel_specs()))
            raise ParameterError(f"--kernel {kernel}: Jupyter has no such kernel; it has {known}") from None
    else:
        about = metadata_of(notebook)
        spec = about.get("kernelspec", {})
        name = str(spec.get("name", "python3"))
        language = spec.get("language") or about.get("language_info", {}).get("name")
        if not language and not re.fullmatch(r"python\d?|ipython", name):
            raise ParameterError(
                f"{notebook}: its kernel is {name}, of which the file does not say the language; only Python notebooks run "
                f"here. If it is one, -k python3 runs it in Jupyter's Python, and -k {name} in its own kernel"
            )
        language = language or "python"
        if name not in ("python", "python3") and language == "python":
            print(one_line(f"{notebook.name}: runs in this Python; -k {name} takes its own kernel"), file=sys.stderr)
    if language.lower() not in ("python", "ipython"):
        raise ParameterError(
            f"{notebook}: the kernel {kernel or name} is of {language}; only Python notebooks run here"
        )


def copy_notebooks(folder: Path) -> list[Path]:
    """Copy the library's notebooks into `folder`, made where it is absent, to be edited there."""
    originals = sorted(packaged("notebooks").glob("*.ipynb"))
    if there := [path.name for path in originals if os.path.lexists(folder / path.name)]:
        raise ParameterError(f"{folder}: {', '.join(there)} there already; move them away or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copyfile(path, folder / path.name)) for path in originals]


def write_notebook(name: str, folder: Path) -> Path:
    """Write a small notebook to start one's own from, `<name>.ipynb` in a folder that is made where it is missing."""
    name = name.removesuffix(".ipynb")
    check_notebook_name(name)
    path = folder / f"{name}.ipynb"
    if name in (shipped := {path.stem for path in packaged("notebooks").glob("*.ipynb")}):
        raise ParameterError(
            f"{name}: a notebook of the library has this name; choose another than {', '.join(sorted(shipped))}"
        )
    if path.exists():
        raise ParameterError(f"{path}: is there already; choose another name, or delete it")
    text = (packaged("data") / "new_notebook.ipynb").read_text(encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    quoted = json.dumps(name, ensure_ascii=False)  # as Python writes it too
    text = re.sub(r'\\"NAME\\"|NAME', lambda m: json.dumps(name if m[0] == "NAME" else quoted)[1:-1], text)
    path.write_text(text, encoding="utf-8")
    return path
