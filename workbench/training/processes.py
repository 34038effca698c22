"""How several processes check a step together, also where FSDP2 gives each of them only a part of the weights."""

import contextlib
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from ..errors import ParameterError, RunError


class StepNotChecked(RunError):
    """A step that no process checks, since one of them cannot."""


def check_engine(trainer: Any, name: str) -> None:
    """Refuse a trainer whose engine cannot run a step that is none of the training; `name` is what was called.

    Raises:
        ParameterError: the trainer uses DeepSpeed, FSDP's first version or tensor parallelism, or torch is too old for FSDP2.
    """
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if trainer.is_deepspeed_enabled:
        problem = "DeepSpeed takes the optimizer's step in the backward pass, so a check would train"
    elif trainer.is_fsdp_enabled and getattr(plugin, "fsdp_version", 1) == 1:
        problem = "FSDP version 1 keeps the weights in parts (fsdp_version: 2 can be checked)"
    elif trainer.is_fsdp_enabled and not hasattr(FSDPModule, "reset_iter_state"):
        problem = f"torch {torch.__version__} cannot leave a pass of FSDP that failed; 2.13 can"
    elif not is_sharded(trainer.model) and any(isinstance(p, DTensor) for p in trainer.model.parameters()):
        problem = "the weights are split by tensor parallelism"
    else:
        return
    raise ParameterError(
        f"{name}: {problem}. Call check_step in one process: run the script with python in place of accelerate launch"
    )


def check_placed(trainer: Any) -> None:
    """Refuse a model that FSDP has not put on its device yet.

    Raises:
        RunError: it is elsewhere.
    """
    placed, device = next(trainer.model.parameters()).device.type, trainer.accelerator.device.type
    if trainer.is_fsdp_enabled and not is_sharded(trainer.model) and placed != device:
        raise RunError(
            f"check_step: the model is on {placed}, and FSDP puts it on {device} in train(). Before train(), call "
            "attach_watch(trainer, check_every=100), which checks the first step and every 100th"
        )


def is_sharded(model: Any) -> bool:
    """Say whether FSDP2 holds weights of a model in parts."""
    return isinstance(model, torch.nn.Module) and any(isinstance(module, FSDPModule) for module in model.modules())


def held_parameters(model: torch.nn.Module) -> list[torch.Tensor]:
    """The parameters as their optimizer has them: FSDP2 leaves some whole behind a forward pass without gradients."""
    groups = [group for part in model.modules() if isinstance(part, FSDPModule) for group in _groups_of(part)]
    params = [each for group in groups for each in group.fsdp_params if hasattr(each, "_unsharded_param")]
    parts = {id(each._unsharded_param): each.sharded_param for each in params}
    return [parts.get(id(parameter), parameter) for parameter in model.parameters()]


@contextlib.contextmanager
def ending_failed_passes(trainer: Any) -> Iterator[None]:
    """Bring FSDP2 out of a forward or backward pass that fails inside the block: else it averages no later gradient."""
    try:
        yield
    except BaseException:
        for model in _models_of(trainer):
            if isinstance(model, FSDPModule):
                model.reset_iter_state()
        raise


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this process holds, in its memory: all of it where no other process has a part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def share_of(tensor: torch.Tensor, processes: int) -> float:
    """The share of a tensor's part that counts in a sum over processes: 1 over the number of those that hold the same part."""
    if not isinstance(tensor, DTensor):
        return 1 / processes
    kinds = zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    return 1 / math.prod(size for placement, size in kinds if placement.is_replicate())


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the parts of all processes, which all come here."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


_WAIT = 30.0  # seconds
_FAILURES = itertools.count()  # all processes count alike: where one fails alone, it ends

# Attributes of FSDP2's groups of parameters while their weights are whole: neither is freed again, nor are gradients sent.
_WHILE_WHOLE = {
    "post_forward_mesh_info": None,
    "reshard_after_backward": False,
    "reduce_grads": False,
    "all_reduce_grads": False,
}


@contextlib.contextmanager
def whole_weights(trainer: Any) -> Iterator[None]:
    """Inside the block each process has all weights that FSDP2 holds in parts, and gradients of its own rows.

    All processes enter it. Inside none waits for another, so each may score as many rows as it has.
    """
    parts = [part for model in _models_of(trainer) for part in model.modules() if isinstance(part, FSDPModule)]
    for part in parts:
        part.unshard()
    groups = [group for part in parts for group in _groups_of(part)]
    before = [(group, {name: getattr(group, name) for name in _WHILE_WHOLE}) for group in groups]
    # A gradient that would be sent in another dtype is kept elsewhere than in `grad`.
    before += [(each, {"reduce_dtype": each.reduce_dtype}) for group in groups for each in group.fsdp_params]
    for each, attributes in before:
        for name in attributes:
            setattr(each, name, _WHILE_WHOLE.get(name))
    try:
        with ending_failed_passes(trainer):
            yield
    finally:
        for part in parts:
            part.reshard()
        for each, attributes in before:
            for name, value in attributes.items():
                setattr(each, name, value)


def _models_of(trainer: Any) -> list[torch.nn.Module]:
    models = [trainer.model, *(getattr(trainer, name, None) for name in ("ref_model", "teacher_model"))]
    return [model for model in models if isinstance(model, torch.nn.Module)]


def _groups_of(part: Any) -> list:
    """FSDP2's groups of parameters of a module."""
    return part._get_fsdp_state()._fsdp_param_groups


@contextlib.contextmanager
def nothing_cast(model: torch.nn.Module) -> Iterator[None]:
    """Inside the block FSDP2 gives the modules of a model what they are given, in whatever dtype."""
    states = [part._get_fsdp_state() for part in model.modules() if isinstance(part, FSDPModule)]
    before = [state._mp_policy for state in states]
    try:
        for state in states:
            state._mp_policy = MixedPrecisionPolicy()
        yield
    finally:
        for state, policy in zip(states, before, strict=True):
            state._mp_policy = policy


def sum_over_processes(values: Sequence[float]) -> list[float]:
    """The sum of each number over the processes, which all come here."""
    return np.sum(gather_object([list(values)]), axis=0).tolist()


def average_gradients(model: torch.nn.Module) -> None:
    """Put the mean over the processes, which all come here, in the place of each gradient; none counts as zeros."""
    for parameter in (p for p in model.parameters() if p.requires_grad):
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.distributed.all_reduce(parameter.grad)
        parameter.grad /= torch.distributed.get_world_size()


def all_failed() -> bool:
    """Say whether all processes come here within half a minute; no collective is needed, which would wait."""
    store = torch.distributed.distributed_c10d._get_default_store()
    name, until = f"workbench: failure {next(_FAILURES)}", time.monotonic() + _WAIT
    store.add(name, 1)
    while store.add(name, 0) < torch.distributed.get_world_size():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


@contextlib.contextmanager
def failing_together(are_several: bool) -> Iterator[None]:
    """Raise in each process if one fails inside the block: the others would wait for it behind it, for ever.

    Raises:
        StepNotChecked: what failed in this process, or that another one did.
    """
    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        if not are_several:
            raise
        failed = error
    if are_several and any(gather_object([failed is not None])):
        said = (
            f"{type(failed).__name__}: {failed}" if failed else "another process cannot check this step, and says why"
        )
        raise StepNotChecked(said) from failed
