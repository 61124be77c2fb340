"""NumPy oracles: the plain meaning of every kernel, to test against. They return new arrays and change none.

`sum_in_rank_order` is met bit for bit. The optimizers are computed in the precision of their inputs, without fused
multiply-adds; the kernels differ from them by the rounding of single operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.optim import AdamRule, SgdRule

Values = NDArray[np.floating]


def sum_in_rank_order(frames: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The sum of `frames` (each (n,), fp32), from left to right."""
    total = frames[0].copy()
    for frame in frames[1:]:
        total = total + frame
    return total


def all_finite(values: NDArray[np.float32]) -> bool:
    """Whether no value is infinite or NaN."""
    return bool(np.isfinite(values).all())


def sgd(parameters: Values, gradient: Values, buffer: Values, rule: SgdRule) -> tuple[Values, Values]:
    """New parameters and momentum buffer of `torch.optim.SGD`; momentum 0 is plain SGD."""
    d = gradient * rule.scale + rule.weight_decay * parameters
    b = rule.momentum * buffer + d
    return parameters - rule.learning_rate * (d + rule.momentum * b if rule.nesterov else b), b


def adam(
    parameters: Values, gradient: Values, exp_avg: Values, exp_avg_sq: Values, rule: AdamRule
) -> tuple[Values, Values, Values]:
    """New parameters and averages of `torch.optim.Adam` (`l2_decay`) and `AdamW` (`decoupled_decay`)."""
    d = gradient * rule.scale + rule.l2_decay * parameters
    m = exp_avg + (1 - rule.beta1) * (d - exp_avg)
    v = rule.beta2 * exp_avg_sq + (1 - rule.beta2) * d * d
    m_hat, v_hat = m / (1 - rule.beta1**rule.step), v / (1 - rule.beta2**rule.step)
    decayed = parameters * (1 - rule.learning_rate * rule.decoupled_decay)
    return decayed - rule.learning_rate * m_hat / (np.sqrt(v_hat) + rule.epsilon), m, v
