"""The installation: the libraries of each extra, errors for missing ones, and the folders of data and notebooks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lazy_loader

from .errors import MissingDependencyError

EXTRAS = {
    "train": "accelerate datasets filelock gguf huggingface_hub pyarrow requests safetensors tokenizers torch transformers trl",
    "lab": "IPython ipykernel ipywidgets jupyter_client jupyterlab nbclient papermill traitlets",
    "vllm": "vllm",
    "peft": "peft",
    "tensorboard": "tensorboard",
}


def install(extra: str) -> str:
    """The command that installs an extra.

    >>> install("train")
    "pip install 'trl-workbench[train]'"
    """
    return f"pip install 'trl-workbench[{extra}]'"


def missing(what: str, module: str) -> MissingDependencyError | None:
    """The error for what needs a library that is not installed; None where no extra has the library.

    >>> missing("workbench.GRPOTrainer", "trl")
    MissingDependencyError("workbench.GRPOTrainer needs trl: pip install 'trl-workbench[train]'")
    """
    top = module.partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if top in modules.split()), None)
    return MissingDependencyError(f"{what} needs {top}: {install(extra)}") if extra else None


def attach_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose `__init__.pyi` lists names to load at first use."""
    load, names, every = lazy_loader.attach_stub(package, file)

    def __getattr__(name: str) -> Any:
        try:
            return load(name)
        except (ModuleNotFoundError, MissingDependencyError) as error:
            if needs := missing(f"{package}.{name}", error.name or ""):
                raise needs from error
            raise

    return __getattr__, names, every


def packaged(name: str) -> Path:
    """The folder `data` or `notebooks` of this installation: in the package, where a checkout has links to those at its root.

    >>> (packaged("data") / "claims.json").is_file()
    True
    """
    return (Path(__file__).parent / name).resolve()
