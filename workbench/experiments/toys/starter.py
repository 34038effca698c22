"""The embedded default, shipped with the package: real text and tiny models that write its form. Nothing is trained for it.

Text: first sentences of docstrings in Python's standard library. A prompt is a module and a signature and ends in `TL;DR:`
(the form of the documented TL;DR data set); the completion is the docstring's first sentence. The models have learned the
form of the task, which leaves GRPO something to improve. `python -m tools.make_toys` makes all of it again.

Everything here is toy scale: it supports a mechanism, never a number about a real model.
"""

import functools
import gzip
import hashlib
import json
import os
from pathlib import Path

from ...errors import ParameterError

SHIPPED = Path(__file__).parent / "data"
CORPUS = "corpus.json.gz"
EOS, PAD = "<|im_end|>", "<|endoftext|>"
ARCHITECTURES = ("qwen2", "gpt2")


def starter_model(architecture: str = "qwen2") -> Path:
    """Folder of the starter model and its tokenizer: 2 layers, 0.65 M parameters, computed in fp32.

    The architecture is `qwen2` (rotary positions) or `gpt2` (learned positions: sensitive to padding).
    """
    if architecture not in ARCHITECTURES:
        raise ParameterError(f"architecture={architecture!r}: expected one of {', '.join(ARCHITECTURES)}")
    return toy(f"starter-{architecture}")


def starter_corpus() -> list[dict[str, str]]:
    """The embedded text: 5,897 rows `{"prompt": "textwrap\\ndef dedent(text)\\nTL;DR:", "completion": " Remove ..."}`."""
    return corpus(toy(CORPUS).parent)


def corpus(folder: Path) -> list[dict[str, str]]:
    """The text in a folder of toys."""
    return json.loads(gzip.decompress((folder / CORPUS).read_bytes()))


def toy(name: str) -> Path:
    """A file or folder of the toys, checked against their manifest: of `$WORKBENCH_TOYS`, else of this package."""
    root = _root()
    _check(root, name)
    return root / name


def toy_hash(name: str) -> str:
    """The sha256 of a file of the toys as the manifest has it, 64 hex digits."""
    return _manifest(_root())["files"][name]


def _root() -> Path:
    return Path(os.environ.get("WORKBENCH_TOYS") or SHIPPED).resolve()


@functools.cache  # the files are hashed once a process: 10 ms a model
def _check(root: Path, name: str) -> None:
    wanted = {
        file: sha for file, sha in _manifest(root)["files"].items() if file == name or file.startswith(f"{name}/")
    }
    if not wanted:
        raise ParameterError(f"{root / 'manifest.json'}: names no file of {name}; {_what_to_do(root)}")
    for file, sha256 in wanted.items():
        path = root / file
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no such file"
        if found != sha256:
            raise ParameterError(f"{path}: expected sha256 {sha256}, found {found}; {_what_to_do(root)}")


def _manifest(root: Path) -> dict:
    try:
        return json.loads((root / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        raise ParameterError(f"{root / 'manifest.json'}: cannot be read ({error}); {_what_to_do(root)}") from error


def _what_to_do(root: Path) -> str:
    if root == SHIPPED.resolve():
        return "install the package again"
    return "WORKBENCH_TOYS has to be a folder made by `python -m tools.make_toys --out FOLDER`, or unset"
