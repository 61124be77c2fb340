"""Update rules over a range of parameters: the arithmetic of `taihu.core.traits.optimizers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.core.settings import OptimizerSettings
from taihu.kernels import optim
from taihu.kernels.optim import AdamRule, SgdRule

Values = NDArray[np.float32]
State = Mapping[str, Values]


class Constants(NamedTuple):
    """Constants of a range of parameters in a step; `weight_decay` as the update rule takes it."""

    learning_rate: float
    weight_decay: float


class Moment(NamedTuple):
    """The moment of an update: the step, from 1, what the gradient is multiplied by first, and the constants."""

    step: int
    scale: float
    constants: Constants


class Update(Protocol):
    """An update rule; disjoint ranges may be updated at the same time from different threads."""

    def __call__(
        self, settings: OptimizerSettings, moment: Moment, parameters: Values, gradient: Values, state: State
    ) -> None:
        """Update a range of parameters in place.

        Args:
            settings: of the job.
            moment: step, scale and constants.
            parameters: shape (k,), fp32; changed.
            gradient: shape (k,), fp32; read.
            state: the arrays of the rule by name, each of shape (k,), fp32; changed.
        """
        ...


def sgd(settings: OptimizerSettings, moment: Moment, parameters: Values, gradient: Values, state: State) -> None:
    """SGD, with momentum where the settings have one."""
    if settings.momentum:
        optim.sgd_momentum(parameters, gradient, state["momentum"], sgd_rule(settings, moment))
    else:
        optim.sgd(parameters, gradient, sgd_rule(settings, moment))


def adam(settings: OptimizerSettings, moment: Moment, parameters: Values, gradient: Values, state: State) -> None:
    """Adam, whose weight decay is an L2 penalty."""
    rule = _adam_rule(settings, moment, l2=moment.constants.weight_decay, decoupled=0.0)
    optim.adam(parameters, gradient, state["exp_avg"], state["exp_avg_sq"], rule)


def adamw(settings: OptimizerSettings, moment: Moment, parameters: Values, gradient: Values, state: State) -> None:
    """AdamW, whose weight decay is of the parameters themselves."""
    rule = _adam_rule(settings, moment, l2=0.0, decoupled=moment.constants.weight_decay)
    optim.adam(parameters, gradient, state["exp_avg"], state["exp_avg_sq"], rule)


def sgd_rule(settings: OptimizerSettings, moment: Moment) -> SgdRule:
    """The constants of SGD's kernels."""
    return SgdRule(
        scale=moment.scale,
        learning_rate=moment.constants.learning_rate,
        weight_decay=moment.constants.weight_decay,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
    )


def _adam_rule(settings: OptimizerSettings, moment: Moment, *, l2: float, decoupled: float) -> AdamRule:
    return AdamRule(
        scale=moment.scale,
        learning_rate=moment.constants.learning_rate,
        l2_decay=l2,
        decoupled_decay=decoupled,
        beta1=settings.beta1,
        beta2=settings.beta2,
        epsilon=settings.epsilon,
        step=moment.step,
    )
