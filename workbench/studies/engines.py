"""Engines of vLLM that several trainers of one process share."""

import contextlib
import os
from unittest import mock

from ..training.engine import unhook
from ..training.late_vllm import cpu_engine
from ..training.rows import has_gpu

_engines: dict[str, object] = {}


def shared_engine(model: str, **kwargs):
    """An in-process vLLM engine for a model path, started once and kept for the life of the process.

    Later calls ignore `kwargs`. Weights are whatever was synced last: meant for trainers that sync before they sample.
    """
    if model not in _engines:
        if not has_gpu():  # the CPU build takes a large share of the memory unless told (GiB), and logs every step
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
            os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from vllm import LLM

        if not has_gpu():
            kwargs = {"gpu_memory_utilization": 0.2, "dtype": "float32", **cpu_engine(model), **kwargs}
        _engines[model] = LLM(model=model, **{"use_tqdm_on_load": False} | kwargs)
    unhook(_engines[model], "generate")  # of the trainer before
    return _engines[model]


@contextlib.contextmanager
def sharing_engines():
    """While open, colocated trainers of one model path share an engine, which takes 10 to 50 s to start on a CPU."""
    with mock.patch("trl.generation.vllm_generation.LLM", shared_engine):
        yield
