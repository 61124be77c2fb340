"""Optimizer updates in one pass over a contiguous range, with PyTorch's formulas.

All arrays are contiguous fp32 of shape (n,), distinct in memory, and change in place except `gradient`; scalars are
given in double precision and rounded to fp32 once. `scale` multiplies the gradient first: 1 / workers turns a sum
into a mean without a pass of its own. Every element is computed alike wherever it lies, so that cutting a range into
parts changes no bit. The kernels allocate nothing and release the GIL.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel

Values = NDArray[np.float32]


class SgdRule(NamedTuple):
    """The scalars of one step of SGD; `weight_decay` is L2, added to the gradient."""

    scale: float
    learning_rate: float
    weight_decay: float
    momentum: float
    nesterov: bool


class AdamRule(NamedTuple):
    """The scalars of one step of Adam (`l2_decay`, in the gradient) or AdamW (`decoupled_decay`, outside it).

    `step` counts from 1.
    """

    scale: float
    learning_rate: float
    l2_decay: float
    decoupled_decay: float
    beta1: float
    beta2: float
    epsilon: float
    step: int


@kernel
def sgd(parameters: Values, gradient: Values, rule: SgdRule) -> None:
    """Plain SGD, whatever the rule's momentum: `p -= learning_rate * (scale * g + weight_decay * p)`."""
    scale = np.float32(rule.scale)
    rate = np.float32(rule.learning_rate)
    decay = np.float32(rule.weight_decay)
    for i in range(len(parameters)):
        p = parameters[i]
        parameters[i] = p - rate * (gradient[i] * scale + decay * p)


@kernel
def sgd_momentum(parameters: Values, gradient: Values, buffer: Values, rule: SgdRule) -> None:
    """SGD with momentum and no dampening, as `torch.optim.SGD`; `buffer` starts as zeros.

    `d = scale * g + weight_decay * p`, `b = momentum * b + d`, `p -= learning_rate * b`, or with Nesterov
    `p -= learning_rate * (d + momentum * b)`.
    """
    scale = np.float32(rule.scale)
    rate = np.float32(rule.learning_rate)
    decay = np.float32(rule.weight_decay)
    momentum = np.float32(rule.momentum)
    nesterov = rule.nesterov
    for i in range(len(parameters)):
        p = parameters[i]
        d = gradient[i] * scale + decay * p
        b = momentum * buffer[i] + d
        buffer[i] = b
        parameters[i] = p - rate * (d + momentum * b if nesterov else b)


@kernel
def adam(parameters: Values, gradient: Values, exp_avg: Values, exp_avg_sq: Values, rule: AdamRule) -> None:
    """Adam and AdamW, as `torch.optim.Adam` and `AdamW`; the averages m and v start as zeros.

    `d = scale * g + l2_decay * p`, `m += (1 - beta1) * (d - m)`, `v = beta2 * v + (1 - beta2) * d * d`,
    `p = (1 - learning_rate * decoupled_decay) * p - learning_rate * m' / (sqrt(v') + epsilon)` with the bias
    corrected averages `m' = m / (1 - beta1**step)` and `v' = v / (1 - beta2**step)`.
    """
    scale = np.float32(rule.scale)
    decay = np.float32(rule.l2_decay)
    keep = np.float32(1.0 - rule.learning_rate * rule.decoupled_decay)
    weight1 = np.float32(1.0 - rule.beta1)
    keep2 = np.float32(rule.beta2)
    weight2 = np.float32(1.0 - rule.beta2)
    rate = np.float32(rule.learning_rate / (1.0 - rule.beta1**rule.step))
    correction2 = np.float32(1.0 / np.sqrt(1.0 - rule.beta2**rule.step))
    epsilon = np.float32(rule.epsilon)
    for i in range(len(parameters)):
        p = parameters[i]
        d = gradient[i] * scale + decay * p
        m = exp_avg[i] + weight1 * (d - exp_avg[i])
        v = keep2 * exp_avg_sq[i] + weight2 * d * d
        exp_avg[i] = m
        exp_avg_sq[i] = v
        parameters[i] = keep * p - rate * (m / (np.sqrt(v) * correction2 + epsilon))
