"""Update rules, the arithmetic of `taihu.core.traits.optimizers`, and the optimizer state that they need.

A rule updates a range of parameters anywhere; a shard has those of an arena's part (ZeRO).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError, FrameError, ModelError
from taihu.core.job.schedule import learning_rate, steady_from
from taihu.core.settings import OptimizerSettings
from taihu.kernels import optim
from taihu.kernels.clip import clip_values
from taihu.kernels.optim import AdamRule, SgdRule
from taihu.kernels.selection.scatter import sgd_sparse

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


class OptimizerState:
    """The state of `elements` parameters. Disjoint ranges may be updated at the same time, in any order.

    Args:
        settings: the update rule and its schedule.
        elements: number of parameters.
        arrays: that it lies in, by name, where other rules update other ranges of the same parameters; kept.
    """

    def __init__(
        self, settings: OptimizerSettings, elements: int, arrays: Mapping[str, Values] | None = None
    ) -> None:
        self._settings = settings
        self._rule: Update = resolve_name(settings.rule.update)
        given = {} if arrays is None else arrays
        self.arrays: dict[str, Values] = {
            name: given[name] if name in given else np.zeros(elements, dtype=np.float32) for name in settings.state
        }
        """By name, each of shape (elements,): `momentum`, or `exp_avg` and `exp_avg_sq`."""

        # Of steps from the first to the second.
        self._constants = 0, 0.0, Constants(0.0, 0.0)
        # No state: where clipped gradients wait for their update.
        self._clipped: Values | None = None
        if settings.clip_value is not None:
            self._clipped = np.zeros(elements, dtype=np.float32)

    @property
    def state_bytes(self) -> int:
        """Bytes of all arrays, and of what clipping needs beside them."""
        clipped = 0 if self._clipped is None else self._clipped.nbytes
        return sum(array.nbytes for array in self.arrays.values()) + clipped

    def update(  # noqa: PLR0917 - what one update takes
        self,
        start: int,
        parameters: Values,
        gradient: Values,
        step: int,
        scale: float = 1.0,
        constants: Constants | None = None,
    ) -> None:
        """Update `parameters`, shape (k,), fp32, in place; elements [start, start + k) of the state belong to them.

        Args:
            start: first element.
            parameters: contiguous.
            gradient: shape (k,), fp32.
            step: number of this step, counted from 1; it sets learning rate and bias correction.
            scale: multiplies the gradient first.
            constants: of these parameters, by default those of the settings.
        """
        if constants is None:
            first, last, constants = self._constants
            if not first <= step <= last:
                constants = self._constants_of(step)
        if self._clipped is not None and self._settings.clip_value is not None:
            clipped = self._clipped[start : start + len(parameters)]
            clip_values(gradient, float(scale), self._settings.clip_value, clipped)
            gradient, scale = clipped, 1.0
        own = {}
        for name, array in self.arrays.items():
            own[name] = array[start : start + len(parameters)]
        self._rule(self._settings, Moment(step, float(scale), constants), parameters, gradient, own)

    def update_sparse(
        self, parameters: Values, indices: NDArray[np.int32], gradient: Values, step: int, scale: float
    ) -> None:
        """Update `parameters[indices]` by plain SGD; `indices`, shape (k,), are ascending and unique."""
        first, last, constants = self._constants
        if not first <= step <= last:
            constants = self._constants_of(step)
        sgd_sparse(parameters, indices, gradient, sgd_rule(self._settings, Moment(step, float(scale), constants)))

    def warm_up(self) -> None:
        """Compile the kernels that updates will use, or load them from the disk cache; changes nothing."""
        one = np.zeros(1, dtype=np.float32)
        OptimizerShard(self._settings, one.copy()).update(0, 1, one, step=1)

    def _constants_of(self, step: int) -> Constants:
        """The constants of a step, kept for its other ranges, and for all steps behind it where they stay."""
        constants = Constants(learning_rate(self._settings, step), self._settings.weight_decay)
        self._constants = step, math.inf if step >= steady_from(self._settings) else step, constants
        return constants


class OptimizerShard:
    """Updates `parameters` in place and owns the optimizer state that belongs to them.

    Disjoint ranges may be updated at the same time from different threads, in any order: how the arena is cut into
    ranges changes no bit of the result. ZeRO's optimizer state partition, docs/methods.md section 5.

    Args:
        settings: the update rule and its schedule.
        parameters: shape (n,), fp32, contiguous and writable; kept, not copied.

    Raises:
        ModelError: `parameters` is not such an array.
    """

    def __init__(self, settings: OptimizerSettings, parameters: Values) -> None:
        flags = parameters.flags
        if parameters.ndim != 1 or parameters.dtype != np.float32 or not (flags.c_contiguous and flags.writeable):
            raise ModelError(
                f"parameters of an optimizer shard: got {parameters.dtype}{list(parameters.shape)}; "
                "expected one contiguous, writable float32 dimension"
            )
        self._settings = settings
        self._parameters = parameters
        self._state = OptimizerState(settings, len(parameters))

    @property
    def parameters(self) -> Values:
        """The parameters, shape (n,)."""
        return self._parameters

    @property
    def state_bytes(self) -> int:
        """Bytes of optimizer state, without the parameters."""
        return self._state.state_bytes

    def update(self, start: int, stop: int, gradient: Values, step: int, scale: float = 1.0) -> None:
        """Update elements [start, stop); every element must be updated exactly once in every step.

        Args:
            start: first element.
            stop: one past the last element.
            gradient: shape (stop - start,), fp32.
            step: number of this step, counted from 1; it sets learning rate and bias correction.
            scale: multiplies the gradient first; 1 / workers when `gradient` is a sum.

        Raises:
            FrameError: the range is outside the shard, `gradient` is not fp32 of its length, or the step is below 1.
                Nothing was changed.
        """
        elements = len(self._parameters)
        if not 0 <= start <= stop <= elements:
            raise FrameError(f"update of elements [{start}, {stop}): outside the shard of {elements} elements")
        if gradient.shape != (stop - start,) or gradient.dtype != np.float32:
            raise FrameError(
                f"gradient of elements [{start}, {stop}): got {gradient.dtype}{list(gradient.shape)}, "
                f"expected float32[{stop - start}]"
            )
        if step < 1:
            raise FrameError(f"update of elements [{start}, {stop}) at step {step}: steps count from 1")
        self._state.update(start, self._parameters[start:stop], gradient, step, scale)

    def update_sparse(self, indices: NDArray[np.int32], gradient: Values, step: int, scale: float = 1.0) -> None:
        """Update the elements at `indices` only, by plain SGD.

        Args:
            indices: shape (k,), int32, ascending and unique.
            gradient: shape (k,), fp32.
            step: as in `update`.
            scale: as in `update`.

        Raises:
            ConfigError: the optimizer is another one, which would change every element.
        """
        if self._state.arrays or self._settings.weight_decay:
            raise ConfigError(
                f"optimizer '{self._settings.name}' with state or weight decay changes every parameter; "
                "set compression.downlink = 'dense'"
            )
        self._state.update_sparse(self._parameters, indices, gradient, step, scale)

    def state(self) -> dict[str, Values]:
        """Live views of the state by name, each of shape (n,): `momentum`, or `exp_avg` and `exp_avg_sq`."""
        return dict(self._state.arrays)

    def warm_up(self) -> None:
        """Compile the kernels that updates will use, or load them from the disk cache; changes nothing."""
        self._state.warm_up()
