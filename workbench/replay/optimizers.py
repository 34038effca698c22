"""One step of an optimizer, parameter by parameter: the weights and the state after it. No torch.

A function takes the weights of one parameter, its gradient and the optimizer's state of it, all before the step, and returns
weights and state after it. The state is empty before the first step. Its names, and those of the options, are those of the
optimizer. Arrays are float64, of the parameter's shape unless said. They may be torch tensors too, since the functions use
only what numpy and torch have in common, so a large model is computed where it lies.

Sources: Adam, https://arxiv.org/abs/1412.6980; AdamW, 1711.05101; AMSGrad, 1904.09237; momentum and Nesterov's form,
https://proceedings.mlr.press/v28/sutskever13.html, in the variant of `torch.optim.SGD`; Adafactor, 1804.04235.
"""

import math
from collections.abc import Mapping
from typing import Any

Array = Any  # numpy's or torch's, float64


def clip_factor(norm: float, max_grad_norm: float | None) -> float:
    """Return what a gradient is multiplied with so that its norm is at most `max_grad_norm`.

    Args:
        norm: of the gradient of all parameters together, 0 or more.
        max_grad_norm: as in TRL's config; None, 0 and numbers below 0 do not clip.

    Returns:
        Above 0, at most 1. The small number in the divisor is that of `torch.nn.utils.clip_grad_norm_`.

    Example:
        >>> clip_factor(0.5, 1.0), round(clip_factor(4.0, 1.0), 4), clip_factor(4.0, None)
        (1.0, 0.25, 1.0)
    """
    if not max_grad_norm or max_grad_norm < 0:
        return 1.0
    return min(1.0, max_grad_norm / (norm + 1e-6))


def adam_step(
    weight: Array,
    gradient: Array,
    state: Mapping[str, Any],
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    maximize: bool = False,
    decoupled_weight_decay: bool = False,
) -> tuple[Array, dict[str, Any]]:
    """Take one step of Adam, or with `decoupled_weight_decay` of AdamW.

    Args:
        weight: any shape.
        gradient: after clipping.
        state: `step` (steps before this one), `exp_avg`, `exp_avg_sq`, and with `amsgrad` `max_exp_avg_sq`.
        lr: the rate of this step.
        betas: how much of both averages stays, each from 0 to below 1.
        eps: is added to the root of the second average.
        weight_decay: of the weights (decoupled) or as part of the gradient (L2).
        amsgrad: divide by the largest second average so far.
        maximize: climb.
        decoupled_weight_decay: AdamW.

    Returns:
        Weights and state after the step.

    Example:
        >>> import numpy as np
        >>> weight, state = adam_step(np.array([1.0, 1.0]), np.array([0.3, -2.0]), {}, lr=0.1)
        >>> weight.round(6), state["step"], state["exp_avg"].round(6)
        (array([0.9, 1.1]), 1, array([ 0.03, -0.2 ]))
    """
    if maximize:
        gradient = -gradient
    if decoupled_weight_decay:
        weight = weight * (1 - lr * weight_decay)
    else:
        gradient = gradient + weight_decay * weight
    step = state.get("step", 0) + 1
    first = betas[0] * state.get("exp_avg", 0.0) + (1 - betas[0]) * gradient
    second = betas[1] * state.get("exp_avg_sq", 0.0) + (1 - betas[1]) * gradient**2
    after = {"step": step, "exp_avg": first, "exp_avg_sq": second}
    divisor = second
    if amsgrad:
        divisor = second.clip(min=state["max_exp_avg_sq"]) if "max_exp_avg_sq" in state else second
        after["max_exp_avg_sq"] = divisor
    root = (divisor / (1 - betas[1] ** step)) ** 0.5
    return weight - lr * first / (1 - betas[0] ** step) / (root + eps), after


def sgd_step(
    weight: Array,
    gradient: Array,
    state: Mapping[str, Any],
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
) -> tuple[Array, dict[str, Any]]:
    """Take one step of SGD as `torch.optim.SGD` does.

    Args:
        weight: any shape.
        gradient: after clipping.
        state: with `momentum` the `momentum_buffer`; None or missing before the first step, which is not dampened.
        lr: the rate of this step.
        momentum: how much of the buffer stays.
        dampening: how much of the gradient does not enter the buffer.
        weight_decay: as part of the gradient (L2).
        nesterov: step along the gradient plus `momentum` times the buffer.
        maximize: climb.

    Returns:
        Weights and state after the step.

    Example:
        >>> import numpy as np
        >>> weight, state = sgd_step(np.array([1.0]), np.array([2.0]), {}, lr=0.1, momentum=0.5)
        >>> weight, state = sgd_step(weight, np.array([2.0]), state, lr=0.1, momentum=0.5)
        >>> weight.round(6), state["momentum_buffer"]
        (array([0.5]), array([3.]))
    """
    if maximize:
        gradient = -gradient
    gradient = gradient + weight_decay * weight
    if not momentum:
        return weight - lr * gradient, {}
    buffer = state.get("momentum_buffer")
    buffer = gradient if buffer is None else momentum * buffer + (1 - dampening) * gradient
    direction = gradient + momentum * buffer if nesterov else buffer
    return weight - lr * direction, {"momentum_buffer": buffer}


def adafactor_step(
    weight: Array,
    gradient: Array,
    state: Mapping[str, Any],
    *,
    lr: float | None,
    eps: tuple[float, float] = (1e-30, 1e-3),
    clip_threshold: float = 1.0,
    decay_rate: float = -0.8,
    beta1: float | None = None,
    weight_decay: float = 0.0,
    scale_parameter: bool = True,
    relative_step: bool = True,
    warmup_init: bool = False,
) -> tuple[Array, dict[str, Any]]:
    """Take one step of Adafactor as `transformers.Adafactor` does.

    Args:
        weight: (..., R, C), or (R,), whose second average is not factored.
        gradient: after clipping.
        state: `step` (steps before this one), `exp_avg_sq_row` (..., R) and `exp_avg_sq_col` (..., C), or `exp_avg_sq` (R,),
            and with `beta1` `exp_avg`.
        lr: the rate of this step; None with `relative_step`.
        eps: is added to the squared gradient; the least scale of a parameter.
        clip_threshold: the largest root mean square of an update.
        decay_rate: the second average keeps 1 - step ** decay_rate.
        beta1: how much of the average of updates stays; None: there is none.
        weight_decay: of the weights (decoupled).
        scale_parameter: multiply the rate with the root mean square of the weights.
        relative_step: the rate is the inverse root of the step, at most 0.01.
        warmup_init: with `relative_step` at most 1e-6 times the step.

    Returns:
        Weights and state after the step.

    Example:
        >>> import numpy as np
        >>> options = {"lr": 0.1, "scale_parameter": False, "relative_step": False}
        >>> weight, state = adafactor_step(np.ones((2, 2)), np.array([[3.0, -3.0], [3.0, 3.0]]), {}, **options)
        >>> weight.round(6).tolist(), state["exp_avg_sq_row"]
        ([[0.9, 1.1], [0.9, 0.9]], array([9., 9.]))
    """
    step = state.get("step", 0) + 1
    if relative_step:
        lr = min(1e-6 * step if warmup_init else 1e-2, 1 / math.sqrt(step))
    assert lr is not None
    if scale_parameter:
        lr = lr * max(eps[1], float((weight**2).mean() ** 0.5))
    decay = 1 - step**decay_rate
    square = gradient**2 + eps[0]
    after: dict[str, Any] = {"step": step}
    if len(weight.shape) >= 2:
        rows = decay * state.get("exp_avg_sq_row", 0.0) + (1 - decay) * square.mean(-1)
        columns = decay * state.get("exp_avg_sq_col", 0.0) + (1 - decay) * square.mean(-2)
        after |= {"exp_avg_sq_row": rows, "exp_avg_sq_col": columns}
        shares = rows / rows.mean(-1)[..., None]
        update = gradient / (shares**0.5)[..., None] / (columns**0.5)[..., None, :]
    else:
        after["exp_avg_sq"] = decay * state.get("exp_avg_sq", 0.0) + (1 - decay) * square
        update = gradient / after["exp_avg_sq"] ** 0.5
    update = update * lr / max(1.0, float((update**2).mean() ** 0.5) / clip_threshold)
    if beta1 is not None:
        update = beta1 * state.get("exp_avg", 0.0) + (1 - beta1) * update
        after["exp_avg"] = update
    return weight * (1 - weight_decay * lr) - update, after
