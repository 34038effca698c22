"""vLLM next to a trainer: weight sync where there is no CUDA.

On a machine without CUDA TRL 1.12.0's own sync cannot work. In process, vLLM's CPU backend repacks linear weights after
loading, so `load_weights` finds parameters without `weight_loader` (AttributeError); vLLM's layerwise reload restores the
loadable layout first. With a server, TRL's sync is NCCL only; there a checkpoint on disk is reloaded, which needs the
server's `VLLM_SERVER_DEV_MODE=1`, a folder both can read, and for a head tied to the embedding `TiedHeads` in its workers
(`vllm_server.serve` has all three). On CUDA TRL's own sync is used, unchanged.
"""

import contextlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.request import Request, urlopen

from ..errors import RunError, warn_user
from .engine import generation_of, hook_sync
from .rows import has_gpu


def install_cpu_sync(trainer: Any, folder: str | Path) -> None:
    """Give a trainer, or TRL's `VLLMGeneration`, a weight sync that works without CUDA; on CUDA do nothing.

    A server's checkpoints are exchanged in the folder, which the server has to be able to read.
    """
    if has_gpu():
        return
    generation = generation_of(trainer)
    exchange = Path(folder).resolve() / "vllm-weights"

    def sync(stock: Callable) -> None:
        if generation.mode == "colocate":
            reload_colocated(generation.llm, generation._iter_named_params())
        elif not generation.accelerator.is_main_process:  # which alone has a client; the others' parts are gathered
            for _ in generation._iter_named_params():
                pass
        else:
            reload_server(generation.vllm_client, generation._iter_named_params(), generation.model.config, exchange)

    hook_sync(generation, sync)


def reload_colocated(llm: Any, named_params: Iterable) -> None:
    """Load `(name, tensor)` pairs into an in-process vLLM engine and drop its cached prefixes."""
    runner = llm.llm_engine.model_executor.driver_worker.model_runner
    runner.reload_weights(weights_iterator=named_params)
    repack_heads(runner.get_model())
    llm.reset_prefix_cache()


def repack_heads(model: Any) -> None:
    """Pack the heads of a vLLM model again.

    One that is tied to the embedding (GPT-2, Llama; from vLLM 0.31 on Qwen too) is not reloaded itself, and the CPU backend
    multiplies by a packed copy: it would sample with the head of the start.
    """
    for module in model.modules():
        if type(module).__name__ == "ParallelLMHead":
            module.quant_method.process_weights_after_loading(module)


class TiedHeads:
    """What a server's workers need on a CPU: `vllm serve --worker-extension-cls workbench.training.sync_on_cpu.TiedHeads`."""

    def repack_tied_heads(self) -> None:
        repack_heads(self.get_model())  # type: ignore[attr-defined]  # of vLLM's worker, which takes this class as a base


def reload_server(client: Any, named_params: Iterable, config: Any, folder: Path) -> None:
    """Write `(name, tensor)` pairs as a checkpoint, have the server load it, and drop its cached prefixes."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    # Copies: LoRA's weights are merged only while they are read.
    weights = {name: tensor.detach().clone().contiguous() for name, tensor in named_params}
    save_file(weights, folder / "model.safetensors")
    config.save_pretrained(folder)
    call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    try:
        client.session.post(f"{client.base_url}/collective_rpc", json=call).raise_for_status()
        packed = not getattr(config, "tie_word_embeddings", False) or _repacked_by(client.base_url)
        client.session.post(f"{client.base_url}/reset_prefix_cache").raise_for_status()
    except OSError as error:
        raise RunError(
            f"the vLLM server at {client.base_url} did not reload the weights ({error}). Without CUDA, start it with "
            f"VLLM_SERVER_DEV_MODE=1, where it can read {folder}"
        ) from error
    if not packed:
        warn_user(
            f"the vLLM server at {client.base_url} may sample with the head of its start: it does not reload a head that is "
            f"tied to the embedding. Start it with --worker-extension-cls {__name__}.{TiedHeads.__name__}"
        )


def _repacked_by(url: str) -> bool:
    """Say whether a server has packed its heads again. One request: TRL's session would retry for seconds."""
    body = json.dumps({"method": TiedHeads.repack_tied_heads.__name__}).encode()
    request = Request(f"{url}/collective_rpc", body, {"Content-Type": "application/json"})
    try:
        with urlopen(request):
            return True
    except OSError:  # no answer, or one that is no success
        return False


def cpu_engine(model: str) -> dict[str, int]:
    """Options of an engine where there is no GPU: no graph, which takes longer to compile than it saves, and for small weights
    a small cache: 512 blocks, which 256 sequences of 256 tokens fill. vLLM writes zeros into all of it."""
    if has_gpu():
        return {}
    size = sum(file.stat().st_size for file in Path(model).glob("model*.safetensors"))
    return {"enforce_eager": True} | ({"num_gpu_blocks_override": 512} if 0 < size < 2**24 else {})


@contextlib.contextmanager
def building_on_cpu(args: Any):
    """While TRL builds a trainer without CUDA: its engine gets `cpu_engine`'s options, its client makes no NCCL group.

    `init_communicator` would raise. The modules are as before once the trainer is built.
    """
    if args is None or not args.use_vllm or has_gpu():
        yield
        return
    from trl.generation import vllm_client, vllm_generation

    make = vllm_generation.LLM

    def make_on_cpu(*positional: Any, **options: Any):
        return make(*positional, **(cpu_engine(str(options.get("model", ""))) | options))

    with (
        mock.patch.object(vllm_generation, "LLM", make_on_cpu),
        mock.patch.object(vllm_client.VLLMClient, "init_communicator", lambda self, device=0: None),
    ):
        yield
