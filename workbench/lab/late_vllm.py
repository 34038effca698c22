"""TRL imports vLLM wherever it is installed, 8 s for a process that samples with transformers. In the lab's kernels it is
imported on first use.

While TRL's modules that name it are loaded, `vllm` is a stand-in whose names import the real one when they are called. A TRL
that is imported already is left as it is. No trainer does this: it is for kernels that the lab starts, and for the tests.
"""

import importlib
import logging
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType

from ..errors import MissingDependencyError

# A statement for a kernel's start: it leaves no name behind.
IMPORT_VLLM_LATE = "__import__('workbench.lab.late_vllm', fromlist=['']).import_vllm_late()"
_OF_TRL = ("generation.vllm_generation", "generation.vllm_client")


def import_vllm_late() -> None:
    """From now on TRL's import does not import vLLM; calling it again changes nothing."""
    if not any(isinstance(finder, _TRLFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TRLFinder())
        # vLLM 0.31 looks at every attribute of every module when it is loaded, also at a deprecated one of torch.
        warnings.filterwarnings("ignore", "`torch.distributed.reduce_op` is deprecated", FutureWarning)
        # Its build for CPUs warns of a Triton that it does not need, before it configures its logging.
        logging.getLogger("vllm.triton_utils.importing").setLevel(logging.ERROR)


class _Late:
    """A function or class of vLLM that is imported at its first call or attribute access."""

    def __init__(self, module: str, name: str):
        self._module, self._name = module, name

    def __call__(self, *args, **kwargs):
        if self._name == "LLM":
            from ..training.sync_on_cpu import cpu_engine  # loads torch: not at a kernel's start

            kwargs = cpu_engine(kwargs.get("model", "")) | kwargs
        return self._real()(*args, **kwargs)

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._real(), name)

    def _real(self):
        try:
            return getattr(importlib.import_module(self._module), self._name)
        except Exception as error:  # a library that does not load is an OSError, one for another torch a RuntimeError
            raise MissingDependencyError(
                f"trl {version('trl')} cannot import {self._module}.{self._name} of the vLLM that is installed ({error}): it "
                "is incomplete or not one of this TRL's releases. Install one that fits; backend='transformers' needs none"
            ) from error


class _StandIn(ModuleType):
    __path__ = ()  # type: ignore[assignment]  # a package: any part of it can be imported

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Late(self.__name__, name)


class _StandInFinder(MetaPathFinder, Loader):
    """Finds every module of vLLM as a stand-in."""

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name.startswith("vllm.") else None

    def create_module(self, spec):
        return _StandIn(spec.name)

    def exec_module(self, module):
        pass


class _Loader(SourceFileLoader):
    """Loads a module of TRL with the stand-in in vLLM's place, unless vLLM is loaded or absent."""

    def exec_module(self, module):
        if "vllm" in sys.modules or not (spec := find_spec("vllm")):
            return super().exec_module(module)
        sys.modules["vllm"] = _StandIn("vllm")
        sys.modules["vllm"].__spec__ = spec  # by which TRL and others ask whether it is installed
        sys.meta_path.insert(0, finder := _StandInFinder())
        try:
            super().exec_module(module)
        finally:
            sys.meta_path.remove(finder)
            for name in [name for name, loaded in sys.modules.items() if isinstance(loaded, _StandIn)]:
                del sys.modules[name]


class _TRLFinder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name in [f"trl.{part}" for part in _OF_TRL] else None
        if spec and spec.origin:
            spec.loader = _Loader(name, spec.origin)
        return spec
