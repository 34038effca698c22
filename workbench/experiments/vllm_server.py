"""vLLM for notebooks and tests: a server for as long as a `with` block, and engines that trainers of one process share."""

import contextlib
import dataclasses
import gc
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from ..errors import RunError
from ..training.engine import unhook
from ..training.rows import has_gpu
from ..training.sync_on_cpu import TiedHeads, cpu_engine

_PATIENCE_S = 300  # until it answers; 60 to 120 are usual on a CPU


@contextlib.contextmanager
def serve(model: str) -> Iterator[str]:
    """Start `vllm` for a model folder or hub id on a free port of the loopback interface; yields its URL, ends it at the end.

    Its development mode is on, because weights are reloaded through it where there is no CUDA: nothing but this machine
    may reach it. A server that ends, or does not answer in time, is a RunError with the end of its log.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    model = str(Path(model).resolve()) if Path(model).is_dir() else model  # the server runs in a folder of its own
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--max-model-len", "256"]
    command += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]  # as TRL's engines give them
    env = os.environ | {"VLLM_SERVER_DEV_MODE": "1"}
    if not has_gpu():
        # The CPU build insists on finding this share of memory free. The variable spares a process, which loads vLLM once more.
        engine = {"dtype": "float32", "gpu_memory_utilization": 0.2, **cpu_engine(model)}
        command += [f"--{name.replace('_', '-')}" + f"={value}" * (value is not True) for name, value in engine.items()]
        command += ["--worker-extension-cls", f"{TiedHeads.__module__}.{TiedHeads.__name__}"]
        env |= {"VLLM_CPU_KVCACHE_SPACE": env.get("VLLM_CPU_KVCACHE_SPACE", "1"), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with log.open("w") as out:
            server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env, cwd=folder)
        try:
            _wait_until_ready(server, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            _end(server)


def _end(server: subprocess.Popen) -> None:
    """End a server and what it has started: an engine that hangs outlives it otherwise."""
    try:
        started = psutil.Process(server.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    server.terminate()
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _listens(pid: int, port: int) -> bool:
    """Say whether a process, or one that it started, accepts connections at a port."""
    try:
        process = psutil.Process(pid)
        open_ports = [c for p in (process, *process.children(recursive=True)) for c in p.net_connections(kind="tcp")]
    except psutil.Error:
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in open_ports)


def _wait_until_ready(server: subprocess.Popen, url: str, log: Path) -> None:
    end, port = time.monotonic() + _PATIENCE_S, int(url.rpartition(":")[2])
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RunError(f"the vLLM server ended with exit code {server.returncode}:\n{log.read_text()[-3000:]}")
        # Another server may have taken the port in between, and would answer: it has to be ours that listens.
        if _listens(server.pid, port):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/health", timeout=2)
                return
        time.sleep(1)
    raise RunError(f"the vLLM server did not answer within {_PATIENCE_S} s; its log:\n{log.read_text()[-3000:]}")


# Model path -> its engines, each with what it was started with.
_engines: dict[str, list[tuple[dict, Any]]] = {}
# How much an engine takes at a time, and not what comes out of it: trainings with other batches share one.
_OF_CAPACITY = {"max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "num_gpu_blocks_override"}
_OF_CAPACITY |= {"use_tqdm_on_load"}
# What TRL asks for at each start; in one process it is what vLLM takes by itself.
_OF_TRL = {"model_impl": "vllm", "distributed_executor_backend": "external_launcher"}


def shared_engine(model: str, **kwargs):
    """An in-process vLLM engine for a model path, kept for the life of the process.

    A later call gets it too, unless it asks for something that the engine has not, such as another `max_model_len` or `dtype`:
    then another engine is started next to it. How much an engine takes at a time is not compared. Weights are whatever was
    synced last: meant for trainers that sync before they sample.
    """
    if not has_gpu():  # the CPU build takes a large share of the memory by default (GiB), and logs every step
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    kwargs = {"dtype": "auto" if has_gpu() else "float32"} | kwargs  # compared: who asks for none gets no coarser one
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    usual = {field.name: field.default for field in dataclasses.fields(EngineArgs)} | _OF_TRL
    asked = {name: value for name, value in kwargs.items() if name not in _OF_CAPACITY}
    kept = _engines.setdefault(model, [])
    fitting = (one for has, one in kept if all((usual | has).get(name) == value for name, value in asked.items()))
    engine = next(fitting, None)
    if engine is None:
        _keep_process_groups()
        if not has_gpu():
            small = {"gpu_memory_utilization": 0.2}
            if 0 < (kwargs.get("max_model_len") or 0) <= 1024:
                # 64 blocks hold 32 sequences of 256 tokens; what the variable asks for, a GiB, would be filled with zeros.
                small["num_gpu_blocks_override"] = 64
            kwargs = {**small, **cpu_engine(model), **kwargs}
        engine = LLM(model=model, **{"use_tqdm_on_load": False} | kwargs)
        kept.append((kwargs, engine))
        gc.unfreeze()  # vLLM freezes all objects, so that the trainer that asked, and its model, would never be collected
    unhook(engine, "generate")  # the trainer that used it last may have left a hook
    return engine


def _keep_process_groups() -> None:
    """Let no engine's end take the process groups with it, which are those of all engines of a process.

    From vLLM 0.31 on an engine that is collected destroys them, and the others die with "pipeline model parallel group is
    not initialized".
    """
    from vllm.v1.engine import core

    core.cleanup_dist_env_and_memory = lambda *args, **kwargs: None


@contextlib.contextmanager
def sharing_engines():
    """While open, colocated trainers of one model path share an engine, which takes 10 to 50 s to start on a CPU."""
    with mock.patch("trl.generation.vllm_generation.LLM", shared_engine):
        try:
            yield
        except KeyboardInterrupt:
            _engines.clear()  # one whose weight sync was cut cannot be synced again
            raise
