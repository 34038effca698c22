"""A digest of the code that a run uses: its notebook, the user's own modules and scripts. They are read, not executed."""

import ast
import contextlib
import functools
import hashlib
import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ...errors import RunError
from ...runs.parameters import COMPUTED, notebook_cells, parse_cell, parse_parameters

# Functions, and what IPython makes of `%run`, `!python` and `%%bash`, that take the name of a file with code.
_TAKE_SCRIPTS = {"exec", "run_path", "run_line_magic", "run_cell_magic", "system", "getoutput"}
_TAKE_SCRIPTS |= {"run", "Popen", "call", "check_call", "check_output"}
_SCRIPTS = (".py", ".ipy", ".ipynb")
_NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
_PYTHON = os.path.dirname(os.path.realpath(os.__file__))


def code_of(notebook: Path, cwd: str | None = None) -> str:
    """A digest of the code that a notebook runs: see `code_files`."""
    return digest_of(code_files(notebook, cwd))


def digest_of(files: Mapping[str, str]) -> str:
    """One digest of what `code_files` returned; it is the same for a copy of the files in another folder."""
    return _digest(sorted(f"{os.path.basename(path)} {digest}" for path, digest in files.items()))


def code_files(notebook: Path, cwd: str | None = None) -> dict[str, str]:
    """The files with the code that a notebook runs when its kernel works in `cwd`, None for the notebook's folder.

    Of the notebook the cells count, its parameters cell without the values that `params.json` has. So do the modules that they
    import and the files that `%run`, `%load` or `exec(open(...))` names, with what these use in turn. What is installed, the
    workbench, files that the code writes itself, and names that are made while the notebook runs do not count.

    Returns:
        Path -> digest of what counts of that file; the notebook first.
    """
    cwd = cwd or str(notebook.parent)
    folders = list(dict.fromkeys([str(notebook.parent), cwd]))
    found, waiting = {notebook}, [notebook]
    written: set[Path] = set()
    importlib.invalidate_caches()  # a module may have been written a moment ago
    while waiting:
        new = _files_used(_sources(waiting.pop(), notebook), folders, cwd, written) - found
        found |= new
        waiting += sorted(new)
    others = sorted(found - written - {notebook})
    return {str(path): _digest(_sources(path, notebook)) for path in (notebook, *others)}


def check_unchanged(files: Mapping[str, str]) -> None:
    """Refuse code that has changed since `code_files`; a file that cannot be seen here, as on a node, is left out."""
    seen = {Path(path): digest for path, digest in files.items() if os.path.isfile(path)}
    notebook = Path(next(iter(files), ""))
    changed = [str(path) for path, digest in seen.items() if _digest(_sources(path, notebook)) != digest]
    if changed:
        raise RunError(
            f"{', '.join(changed)}: has changed since the run was planned; start the command again to run the changed code"
        )


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode(errors="replace")).hexdigest()[:16]


def _sources(path: Path, notebook: Path) -> list[str]:
    """Return what counts of a file that the run of a notebook uses: the code of each cell, or the whole text."""
    if path.suffix != ".ipynb":
        with contextlib.suppress(OSError):
            return [path.read_text(encoding="utf-8", errors="replace")]
        return []
    code = [cell for cell in notebook_cells(path) if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in code]
    tagged = [n for n, cell in enumerate(code) if "parameters" in cell["metadata"].get("tags", [])]
    for n in tagged[:1] if path == notebook else ():  # no run records the parameters of another notebook
        sources[n] = _without_literals(sources[n])
    return sources


def _without_literals(source: str) -> str:
    """The statements of a parameters cell, without the literals that `params.json` has and no other statement reads."""
    tree, magics = parse_cell(source)
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    recorded = {name for name, p in parse_parameters(source).items() if p.default != COMPUTED} - read
    kept = magics
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if name in recorded:
                continue
        kept.append(ast.get_source_segment(source, node) or "")
    return "\n".join(kept)


def _parsed(source: str) -> ast.Module:
    """The tree of a source, IPython's magics made calls; an empty one where it is not Python."""
    try:
        return ast.parse(source)
    except _NOT_PYTHON:
        from IPython.core.inputtransformer2 import TransformerManager  # loads all of IPython

        try:
            return ast.parse(TransformerManager().transform_cell(source))
        except _NOT_PYTHON:
            return ast.Module([], [])


def _nodes(source: str) -> Iterator[ast.AST]:
    """Every node of a source, and of the code that a magic such as `%time` or `%%capture` is given."""
    for node in ast.walk(_parsed(source)):
        yield node
        match node:
            case ast.Call(
                func=ast.Attribute(attr="run_line_magic" | "run_cell_magic"), args=[*_, ast.Constant(value=str(body))]
            ):
                yield from _nodes(body)


def _files_used(sources: Sequence[str], folders: list[str], cwd: str, written: set[Path]) -> set[Path]:
    """The user's own files that these sources import or read as code.

    What they add to `sys.path` is added to `folders`, and the files that they write to `written`.
    """
    modules, files = set(), set()
    for node in (node for source in sources for node in _nodes(source)):
        match node:
            case ast.Import(names=names):
                modules |= {alias.name.partition(".")[0] for alias in names}
            case ast.ImportFrom(module=str(module), level=0):
                modules.add(module.partition(".")[0])
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="path"), attr="append" | "insert" | "extend")):
                folders += [added for text in _texts(node) if os.path.isdir(added := os.path.join(cwd, text))]
            case ast.Call():
                written |= {Path(cwd, name).resolve() for name in _names_written(node)}
                files |= {Path(cwd, name) for name in _scripts_named(node)}
    found = {path.resolve() for path in files if os.path.isfile(path)}
    return found.union(*(_module_files(name, tuple(folders)) for name in modules))


def _texts(call: ast.Call) -> list[str]:
    """The literal texts among a call's arguments, and in them."""
    values = [getattr(node, "value", None) for part in call.args for node in ast.walk(part)]
    return [value for value in values if isinstance(value, str) and "\0" not in value]


def _scripts_named(call: ast.Call) -> set[str]:
    """The names of files with code that a call may be given; `%run helpers` means helpers.py."""
    function = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if function not in _TAKE_SCRIPTS:
        return set()
    texts = _texts(call)
    names = {word.strip("\"'") for text in texts for word in (text, *text.split())}
    if function == "exec":
        return names
    if function == "run_line_magic" and texts[:1] in (["run"], ["load"]):
        names |= {f"{name}.py" for name in names}
    return {name for name in names if name.endswith(_SCRIPTS)}


def _names_written(call: ast.Call) -> list[str]:
    """The names of files that a call writes: `%%writefile NAME`, `open(NAME, "w")`, `Path(NAME).write_text(...)`."""
    match call:
        case ast.Call(func=ast.Attribute(attr="run_cell_magic"), args=[ast.Constant(value="writefile" | "file"), *_]):
            return " ".join(_texts(call)[1:2]).split()
        case ast.Call(func=ast.Name(id="open")) if set("wax") & {*"".join(_texts(call)[1:])}:
            return _texts(call)[:1]
        case ast.Call(func=ast.Attribute(value=ast.Call() as path, attr="write_text" | "write_bytes")):
            return _texts(path)
    return []


def _module_files(name: str, folders: tuple[str, ...]) -> set[Path]:
    """The files of a module, of a package all, that is the user's own."""
    if name == __name__.partition(".")[0]:
        return set()
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = os.getcwd()  # where the command was started, from which no kernel imports
    path = [*folders, *filter(None, given), *(folder for folder in sys.path if folder not in ("", here))]
    spec = next(filter(None, (finder.find_spec(name, path) for finder in sys.meta_path)), None)
    places = list(spec.submodule_search_locations or []) if spec else []
    if spec and spec.origin and spec.has_location and not places:
        places = [spec.origin]
    own = [
        Path(place) for place in places if os.path.dirname(place) in folders or not _installed(os.path.dirname(place))
    ]
    files = {file for place in own for file in (place.rglob("*.py") if place.is_dir() else [place])}
    return {file.resolve() for file in files if file.suffix == ".py" and file.is_file()}


@functools.cache
def _installed(folder: str) -> bool:
    """Say whether a folder of the path holds what was installed, or Python's own modules."""
    named = Path(folder).name in ("site-packages", "dist-packages") or os.path.realpath(folder) == _PYTHON
    return named or any(Path(folder).glob("*.dist-info"))
