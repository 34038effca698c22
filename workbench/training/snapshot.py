"""Copies of what a step changes in place, put back into the very objects that hold it, bit for bit and in their own dtypes."""

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from .processes import own_part

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Snapshot:
    """The tensors, arrays, containers and random generators that some objects hold, copied to the host.

    Containers are followed into each other, optimizers into their attributes; an object of another kind is not looked into.
    Weights that are copied elsewhere are named in `others`.
    """

    def __init__(self, values: Iterable[Any], others: Iterable[torch.Tensor] = ()):
        self._others = {id(tensor) for tensor in others}
        self._seen: dict[int, Any] = {}  # the objects too, so that no id is given twice
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []
        for value in values:
            self._note(value)

    def _note(self, value: Any) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._seen or id(value) in self._others:
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            self._tensors[id(value)] = own_part(value), host_copy(own_part(value))
        elif isinstance(value, np.ndarray):
            self._arrays.append((value, value.copy()))
        elif isinstance(value, torch.Generator):
            self._generators.append((value, value.get_state()))
        elif isinstance(value, torch.optim.Optimizer):
            self._note(vars(value))
        elif isinstance(value, dict):
            self._containers.append((value, dict(value)))
            for each in value.values():
                self._note(each)
        elif isinstance(value, list | set | deque):
            self._containers.append((value, list(value)))
            for each in value:
                self._note(each)
        elif isinstance(value, tuple):
            for each in value:
                self._note(each)

    def copy_of(self, value: Any) -> Any:
        """The copy of a tensor that was noted; any other value as it is."""
        noted = self._tensors.get(id(value))
        return value if noted is None else noted[1]

    def restore(self) -> None:
        """Put everything back."""
        for container, content in self._containers:
            container.clear()
            if isinstance(container, list | deque):
                container.extend(content)
            else:
                container.update(content)
        with torch.no_grad():
            for tensor, copied in self._tensors.values():
                tensor.copy_(copied)
        for array, copied in self._arrays:
            array[...] = copied
        for generator, state in self._generators:
            generator.set_state(state)


def host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in the host's memory, so that the accelerator's holds no second one; a quantized one stays where it is."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return tensor.detach().to("cpu", copy=True)
    return tensor.detach().clone()


def sums_of(tensors: Iterable[torch.Tensor]) -> list[float]:
    """The sum of each tensor, such as a weight, or of this process's part of it: another where the tensor is another.

    Example:
        >>> sums_of(torch.nn.LayerNorm(3).parameters())
        [3.0, 0.0]
    """
    sums = []
    for tensor in tensors:
        exact = torch.float32 if tensor.device.type == "mps" else torch.float64  # which Apple's GPUs lack
        values = own_part(tensor.detach())
        if values.is_floating_point() and values.element_size() == 1:
            values = values.float()  # torch has no sum of float8
        sums.append(float(values.sum(dtype=exact)))
    return sums


@contextlib.contextmanager
def modules_restored(trainer: Any) -> Iterator[None]:
    """Restore buffers, modes and plain attributes, such as counters, of a trainer's models: policy, reference, rewards."""
    others = [getattr(trainer, name, None) for name in ("ref_model", "teacher_model")]
    named = [trainer.model, *others, *(getattr(trainer, "reward_funcs", None) or [])]
    modules = [module for model in named if isinstance(model, torch.nn.Module) for module in model.modules()]
    buffers = Snapshot(module._buffers for module in modules)
    plain = [{name: value for name, value in vars(m).items() if isinstance(value, _PLAIN)} for m in modules]
    try:
        yield
    finally:
        buffers.restore()
        for module, attributes in zip(modules, plain, strict=True):
            vars(module).update(attributes)
