"""The reference of each optimizer against the optimizer itself, step by step in float64."""

import itertools

import numpy as np
import pytest
import torch
from transformers import Adafactor

from workbench.replay.optimizers import adafactor_step, adam_step, clip_factor, sgd_step

SHAPES = [(6, 5), (7,), (2, 3, 4)]
STEPS = 5


def largest_difference(cls, rule, options):
    """Between both after each of several steps, of weights and state; the rate changes with each step."""
    generator = torch.Generator().manual_seed(3)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in SHAPES]
    weights = [p.detach().numpy().copy() for p in parameters]
    states = [dict[str, object]() for _ in SHAPES]
    optimizer, largest = cls(parameters, **options), 0.0
    for step in range(STEPS):
        (group,) = optimizer.param_groups
        if group["lr"] is not None:
            group["lr"] = options["lr"] / (1 + step)
        for i, parameter in enumerate(parameters):
            parameter.grad = torch.randn(SHAPES[i], generator=generator, dtype=torch.float64)
            arguments = options | {"lr": group["lr"]}
            weights[i], states[i] = rule(weights[i], parameter.grad.numpy(), states[i], **arguments)
        optimizer.step()
        for i, parameter in enumerate(parameters):
            largest = max(largest, np.abs(parameter.detach().numpy() - weights[i]).max())
            for name, value in states[i].items():
                largest = max(largest, np.abs(np.asarray(optimizer.state[parameter][name]) - value).max())
    return largest


ADAM = list(itertools.product([0.0, 0.1], [False, True], [False, True]))


@pytest.mark.parametrize("decay, amsgrad, maximize", ADAM)
def test_a_step_of_adam_is_that_of_torch(decay, amsgrad, maximize):
    options = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": decay}
    options |= {"amsgrad": amsgrad, "maximize": maximize}
    assert largest_difference(torch.optim.Adam, adam_step, options) < 1e-12


@pytest.mark.parametrize("decay, amsgrad, maximize", ADAM)
def test_a_step_of_adamw_is_that_of_torch(decay, amsgrad, maximize):
    options = {"lr": 0.1, "weight_decay": decay, "amsgrad": amsgrad, "maximize": maximize}

    def rule(*arguments, **given):
        return adam_step(*arguments, **given, decoupled_weight_decay=True)

    assert largest_difference(torch.optim.AdamW, rule, options) < 1e-12


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1, "maximize": True},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.5, "maximize": True},
    ],
)
def test_a_step_of_sgd_is_that_of_torch(options):
    assert largest_difference(torch.optim.SGD, sgd_step, {"lr": 0.1} | options) < 1e-12


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.1, "scale_parameter": False, "relative_step": False},
        {"lr": 0.1, "relative_step": False, "weight_decay": 0.1, "clip_threshold": 0.5},
        {"lr": 0.1, "relative_step": False, "beta1": 0.9, "decay_rate": -0.5, "eps": (1e-2, 1e-1)},
        {"lr": None},
        {"lr": None, "warmup_init": True, "weight_decay": 0.1},
    ],
)
def test_a_step_of_adafactor_is_that_of_transformers(options):
    assert largest_difference(Adafactor, adafactor_step, options) < 1e-12


@pytest.mark.parametrize("limit", [None, 0, 0.1, 1.0, 100.0])
def test_a_gradient_is_clipped_as_torch_clips_it(limit):
    gradient = torch.arange(4.0, dtype=torch.float64)
    parameter = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    parameter.grad = gradient.clone()
    norm = float(torch.nn.utils.clip_grad_norm_([parameter], limit or float("inf")))
    assert torch.allclose(gradient * clip_factor(norm, limit), parameter.grad, rtol=1e-12)


def test_tensors_of_torch_give_the_numbers_of_arrays():
    weight, gradient = np.linspace(-1, 1, 6).reshape(2, 3), np.linspace(2, -3, 6).reshape(2, 3)
    for rule, options in ((adam_step, {"amsgrad": True}), (sgd_step, {"momentum": 0.9})):
        arrays, tensors = (weight, {}), (torch.tensor(weight), {})
        for _ in range(3):
            arrays = rule(arrays[0], gradient, arrays[1], lr=0.1, **options)
            tensors = rule(tensors[0], torch.tensor(gradient), tensors[1], lr=0.1, **options)
        assert np.abs(arrays[0] - tensors[0].numpy()).max() < 1e-15
    options = {"lr": 0.1, "relative_step": False}
    as_tensor, _ = adafactor_step(torch.tensor(weight), torch.tensor(gradient), {}, **options)
    assert np.abs(adafactor_step(weight, gradient, {}, **options)[0] - as_tensor.numpy()).max() < 1e-15
