"""The wheels of frameworks: downloaded by name, unzipped, and read function by function; nothing of theirs is installed.

A function is executed from its own source with what its module would have imported; the decorators of functions are left out,
apart from `torch.no_grad`. Registries, Ray and compilation are in decorators and imports alone.
"""

import ast
import collections
import copy
import dataclasses
import functools
import math
import subprocess
import sys
import tempfile
import typing
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).with_name("wheels")  # ignored by git
_NO_GRAD = "torch.no_grad()"
_IMPORTED: dict[str, Any] = {
    **vars(typing),
    "torch": torch,
    "nn": torch.nn,
    "F": torch.nn.functional,
    "Tensor": torch.Tensor,
    "np": np,
    "math": math,
    "functools": functools,
    "defaultdict": collections.defaultdict,
    "dataclass": dataclasses.dataclass,
    "field": dataclasses.field,
}


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


@dataclasses.dataclass(frozen=True)
class Wheel:
    """An unzipped wheel."""

    folder: Path

    def take(self, path: str, *names: str, **given: Any) -> SimpleNamespace:
        """Execute functions, classes and constants of a file, without the rest of the file.

        Args:
            path: of the file in the wheel.
            names: of what is taken, `Class.method` for a method; a function finds the others of the same call.
            given: what the file would have imported.

        Raises:
            LookupError: if the file has no such name.
        """
        scope = _IMPORTED | given
        for name in names:
            node = self._definition(path, name)
            if isinstance(node, ast.FunctionDef):
                node = copy.copy(node)  # the tree of the file stays whole for the next call
                node.decorator_list = [one for one in node.decorator_list if ast.unparse(one) == _NO_GRAD]
            self._execute([node], path, scope)
        return SimpleNamespace(**{name.rpartition(".")[2]: scope[name.rpartition(".")[2]] for name in names})

    def has(self, path: str, name: str) -> bool:
        """True if a file of the wheel has a function, class or constant."""
        return _node(self._tree(path).body, name.split(".")) is not None

    def lines(self, path: str, name: str, first: str, last: str, **given: Any) -> Callable[..., SimpleNamespace]:
        """Make a function of a part of a longer one: it takes what the part reads, and gives all variables after it.

        Args:
            path, given: as in `take`.
            name: of the longer function.
            first, last: how the first and the last statement begin, as `ast.unparse` writes them.

        Raises:
            LookupError: if there are no such statements in one block.
        """
        for block in _blocks(self._definition(path, name)):
            texts = [ast.unparse(node) for node in block]
            starts = [number for number, text in enumerate(texts) if text.startswith(first)]
            ends = [number for number, text in enumerate(texts) if text.startswith(last)]
            if starts and ends:
                return functools.partial(self._variables, block[starts[0] : ends[-1] + 1], path, given)
        raise LookupError(f"{self.folder.name}: {name} in {path} has no lines from {first!r} to {last!r}")

    def _variables(self, nodes: list[ast.stmt], path: str, given: dict[str, Any], /, **read: Any) -> SimpleNamespace:
        scope = _IMPORTED | given | read
        self._execute(nodes, path, scope)
        return SimpleNamespace(**scope)

    def _execute(self, nodes: list[ast.stmt], path: str, scope: dict[str, Any]) -> None:
        future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
        module = ast.fix_missing_locations(ast.Module([future, *nodes], []))
        exec(compile(module, str(self.folder / path), "exec"), scope)

    def _tree(self, path: str) -> ast.Module:
        return _parsed((self.folder / path).read_text(encoding="utf-8"))

    def _definition(self, path: str, name: str) -> ast.stmt:
        node = _node(self._tree(path).body, name.split("."))
        if node is None:
            raise LookupError(f"{self.folder.name}: {path} has no {name}")
        return node


@functools.lru_cache(maxsize=50)
def _parsed(text: str) -> ast.Module:
    """The tree of a file's text. An adapter takes ten functions from one file, and parsing took most of its time."""
    return ast.parse(text)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements in a node, the outer ones first."""
    for inner in ast.walk(node):
        for part in ("body", "orelse"):
            if isinstance(block := getattr(inner, part, None), list):
                yield block


def _node(body: list[ast.stmt], names: list[str]) -> ast.stmt | None:
    """The definition or assignment with a dotted name."""
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        if names[0] in [getattr(target, "id", getattr(target, "name", None)) for target in targets]:
            return _node(node.body, names[1:]) if len(names) > 1 and isinstance(node, ast.ClassDef) else node
    return None
