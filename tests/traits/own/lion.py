"""Lion (Chen et al. 2023, algorithm 2): the sign of an interpolated momentum, with decoupled weight decay."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from taihu.core.optimization.rules import Moment
from taihu.core.settings import OptimizerSettings
from taihu.core.traits.optimizers import Optimizer

Values = NDArray[np.float32]

OPTIMIZER = Optimizer(
    "lion", reads=("beta1", "beta2"), state=("exp_avg",), update=f"{__name__}:update", learning_rate=1e-4
)


def update(
    settings: OptimizerSettings, moment: Moment, parameters: Values, gradient: Values, state: Mapping[str, Values]
) -> None:
    """One step over a range of parameters, in place."""
    average, scaled = state["exp_avg"], gradient * np.float32(moment.scale)
    rate, decay = moment.constants
    direction = np.sign(settings.beta1 * average + (1 - settings.beta1) * scaled)
    parameters -= (rate * (direction + decay * parameters)).astype(np.float32)
    average *= np.float32(settings.beta2)
    average += np.float32(1 - settings.beta2) * scaled
