"""An update rule and the optimizer state that it needs, for parameters that may lie anywhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels.clip import clip_values
from kernels.optim import AdamRule, SgdRule, adam, sgd, sgd_momentum, sgd_sparse
from taihu.schedule import learning_rate
from taihu.settings import OptimizerSettings

__all__ = ["OptimizerState"]

Values = NDArray[np.float32]


class OptimizerState:
    """The state of `elements` parameters. Disjoint ranges may be updated at the same time, in any order."""

    def __init__(self, settings: OptimizerSettings, elements: int) -> None:
        self._settings = settings
        self.arrays: dict[str, Values] = {
            name: np.zeros(elements, dtype=np.float32) for name in _state_names(settings)
        }
        """By name, each of shape (elements,): `momentum`, or `exp_avg` and `exp_avg_sq`."""

        # No state: where clipped gradients wait for their update.
        self._clipped: Values | None = None
        if settings.clip_value is not None:
            self._clipped = np.zeros(elements, dtype=np.float32)

    @property
    def state_bytes(self) -> int:
        """Bytes of all arrays, and of what clipping needs beside them."""
        clipped = 0 if self._clipped is None else self._clipped.nbytes
        return sum(array.nbytes for array in self.arrays.values()) + clipped

    def update(self, start: int, parameters: Values, gradient: Values, step: int, scale: float = 1.0) -> None:
        """Update `parameters`, shape (k,), fp32, in place; elements [start, start + k) of the state belong to them.

        Args:
            start: first element.
            parameters: contiguous.
            gradient: shape (k,), fp32.
            step: number of this step, counted from 1; it sets learning rate and bias correction.
            scale: multiplies the gradient first.
        """
        if self._clipped is not None and self._settings.clip_value is not None:
            clipped = self._clipped[start : start + len(parameters)]
            clip_values(gradient, float(scale), self._settings.clip_value, clipped)
            gradient, scale = clipped, 1.0
        own = {name: array[start : start + len(parameters)] for name, array in self.arrays.items()}
        if self._settings.name != "sgd":
            adam(parameters, gradient, own["exp_avg"], own["exp_avg_sq"], _adam_rule(self._settings, step, scale))
        elif self._settings.momentum:
            sgd_momentum(parameters, gradient, own["momentum"], _sgd_rule(self._settings, step, scale))
        else:
            sgd(parameters, gradient, _sgd_rule(self._settings, step, scale))

    def update_sparse(
        self, parameters: Values, indices: NDArray[np.int32], gradient: Values, step: int, scale: float
    ) -> None:
        """Update `parameters[indices]` by plain SGD; `indices`, shape (k,), are ascending and unique."""
        sgd_sparse(parameters, indices, gradient, _sgd_rule(self._settings, step, scale))

    def warm_up(self) -> None:
        """Compile the kernels that updates will use, or load them from the disk cache; changes nothing."""
        one = np.zeros(1, dtype=np.float32)
        OptimizerState(self._settings, 1).update(0, one.copy(), one, step=1)


def _state_names(settings: OptimizerSettings) -> tuple[str, ...]:
    if settings.name != "sgd":
        return ("exp_avg", "exp_avg_sq")
    return ("momentum",) if settings.momentum else ()


def _sgd_rule(settings: OptimizerSettings, step: int, scale: float) -> SgdRule:
    return SgdRule(
        scale=float(scale),
        learning_rate=learning_rate(settings, step),
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
    )


def _adam_rule(settings: OptimizerSettings, step: int, scale: float) -> AdamRule:
    decoupled = settings.name == "adamw"
    return AdamRule(
        scale=float(scale),
        learning_rate=learning_rate(settings, step),
        l2_decay=0.0 if decoupled else settings.weight_decay,
        decoupled_decay=settings.weight_decay if decoupled else 0.0,
        beta1=settings.beta1,
        beta2=settings.beta2,
        epsilon=settings.epsilon,
        step=step,
    )
