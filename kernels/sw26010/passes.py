"""The passes of layers, optimizers and collectives, with what they compute in LDM."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel
from taihu.kernels.optim import SgdRule, sgd, sgd_momentum
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.streams import Pass, StreamPlan, execute_stream, plan_slabs, plan_stream

Values = NDArray[Any]

# Arithmetic counts instructions: an addition, a product and a fused pair take one each, a comparison with select two.
ADD: Final = Pass("add", reads=2, writes=1, arithmetic=1, flops=1)
COPY: Final = Pass("copy", reads=1, writes=1, arithmetic=0, flops=0)
RELU: Final = Pass("relu", reads=1, writes=1, arithmetic=1, flops=1)
RELU_GRADIENT: Final = Pass("relu gradient", reads=2, writes=1, arithmetic=2, flops=1)
ADD_BIAS: Final = Pass("bias", reads=1, writes=1, arithmetic=1, flops=1, columns=1)
COLUMN_SUMS: Final = Pass("column sums", reads=1, writes=0, arithmetic=1, flops=1, columns=1, sums=1)
MOMENTS: Final = Pass("moments", reads=1, writes=0, arithmetic=2, flops=3, columns=2, sums=2)
SCALE_SHIFT: Final = Pass("scale and shift", reads=1, writes=1, arithmetic=1, flops=2, columns=2)
GRADIENT_MOMENTS: Final = Pass("gradient moments", reads=2, writes=0, arithmetic=3, flops=4, columns=3, sums=2)
NORMALIZE_GRADIENT: Final = Pass("normalize gradient", reads=2, writes=1, arithmetic=2, flops=4, columns=3)
SGD: Final = Pass("sgd", reads=2, writes=1, arithmetic=3, flops=5)
SGD_MOMENTUM: Final = Pass("sgd with momentum", reads=3, writes=2, arithmetic=4, flops=7)


# A root and a quotient have no pipeline: we count 16 instructions of each.
_ROOT: Final = 16


def response_norm(size: int) -> tuple[Pass, Pass]:
    """Local response normalisation over `size` channels, forward and backward, with an exponent of two roots.

    Backward computes the sums of squares again.
    """
    forward = Pass("response norm", reads=1, writes=1, arithmetic=size + 4 + 3 * _ROOT, flops=size + 6)
    backward = Pass(
        "response norm gradient", reads=2, writes=1, arithmetic=2 * size + 8 + 4 * _ROOT, flops=2 * size + 12
    )
    return forward, backward


@kernel
def _add(a: Values, b: Values, total: Values) -> None:
    for i in range(a.shape[0]):
        for c in range(a.shape[1]):
            total[i, c] = a[i, c] + b[i, c]


@kernel
def _relu(x: Values, y: Values) -> None:
    zero = x.dtype.type(0)
    for i in range(x.shape[0]):
        for c in range(x.shape[1]):
            value = x[i, c]
            y[i, c] = zero if value < zero else value


@kernel
def _relu_gradient(y: Values, dy: Values, dx: Values) -> None:
    zero = dy.dtype.type(0)
    for i in range(y.shape[0]):
        for c in range(y.shape[1]):
            dx[i, c] = zero if y[i, c] <= zero else dy[i, c]


@kernel
def _moments(x: Values, mean: Values, sums: Values) -> None:
    """Add the sums of x - mean and of its square, in fp64."""
    for i in range(x.shape[0]):
        for c in range(x.shape[1]):
            value = np.float64(x[i, c]) - mean[c]
            sums[0, c] += value
            sums[1, c] += value * value


@kernel
def _gradient_moments(x: Values, dy: Values, mean: Values, sums: Values) -> None:
    """Add the sums of dy and of dy (x - mean), in fp64."""
    for i in range(x.shape[0]):
        for c in range(x.shape[1]):
            value = np.float64(dy[i, c])
            sums[0, c] += value
            sums[1, c] += value * (np.float64(x[i, c]) - mean[c])


@kernel
def _affine(x: Values, factor: Values, offset: Values, y: Values) -> None:
    for i in range(x.shape[0]):
        for c in range(x.shape[1]):
            y[i, c] = x[i, c] * factor[c] + offset[c]


@kernel
def _normalize_gradient(x: Values, dy: Values, factors: Values, dx: Values) -> None:
    for i in range(x.shape[0]):
        for c in range(x.shape[1]):
            dx[i, c] = dy[i, c] * factors[0, c] + x[i, c] * factors[1, c] + factors[2, c]


def _flat(array: Values) -> Values:
    return array.reshape(-1, 1)


def ring_add(a: Values, b: Values, total: Values, *, core_groups: int = 1) -> Ledger:
    """Total = a + b, elementwise, arrays of any one shape and type; `total` may be `a`."""
    plan = plan_stream(ADD, a.size, itemsize=a.itemsize, core_groups=core_groups)
    return execute_stream(plan, [_flat(a), _flat(b)], [_flat(total)], _add)


def relu(x: Values, y: Values, *, core_groups: int = 1) -> Ledger:
    """Rectify: y = max(x, 0), NaN stays."""
    plan = plan_stream(RELU, x.size, itemsize=x.itemsize, core_groups=core_groups)
    return execute_stream(plan, [_flat(x)], [_flat(y)], _relu)


def relu_gradient(y: Values, dy: Values, dx: Values, *, core_groups: int = 1) -> Ledger:
    """Pass the gradient on, dx = dy, where the rectified output `y` is positive, else 0."""
    plan = plan_stream(RELU_GRADIENT, y.size, itemsize=y.itemsize, core_groups=core_groups)
    return execute_stream(plan, [_flat(y), _flat(dy)], [_flat(dx)], _relu_gradient)


def sgd_update(
    parameters: Values, gradient: Values, buffer: Values | None, rule: SgdRule, *, core_groups: int = 1
) -> Ledger:
    """The update of `kernels.optim.sgd`, or `sgd_momentum` with a buffer; float32 (n,), in place but the gradient."""

    def plain(p: Values, g: Values, updated: Values) -> None:
        updated[...] = p
        sgd(updated.reshape(-1), g.reshape(-1), rule)

    def with_momentum(p: Values, g: Values, b: Values, updated: Values, moved: Values) -> None:
        updated[...], moved[...] = p, b
        sgd_momentum(updated.reshape(-1), g.reshape(-1), moved.reshape(-1), rule)

    p, g = _flat(parameters), _flat(gradient)
    task = SGD if buffer is None else SGD_MOMENTUM
    plan = plan_stream(task, parameters.size, itemsize=4, core_groups=core_groups)
    if buffer is None:
        return execute_stream(plan, [p, g], [p], plain)
    b = _flat(buffer)
    return execute_stream(plan, [p, g, b], [p, b], with_momentum)


def _by_slabs(task: Pass, x: Values, core_groups: int, make: Callable[[slice, StreamPlan], Ledger]) -> Ledger:
    """Make a pass over rows (M, C), slab by slab if they are long."""
    slabs = plan_slabs(task, *x.shape, itemsize=x.itemsize, core_groups=core_groups)
    ledgers = [make(columns, plan) for columns, plan in slabs]
    return reduce(Ledger.then, ledgers)


def add_bias(y: Values, bias: Values, *, core_groups: int = 1) -> Ledger:
    """Add `bias` (C,) to every row of `y` (M, C)."""
    one = np.ones_like(bias)

    def make(own: slice, plan: StreamPlan) -> Ledger:
        rows = y[:, own]
        return execute_stream(plan, [rows], [rows], lambda x, out: _affine(x, one[own], bias[own], out))

    return _by_slabs(ADD_BIAS, y, core_groups, make)


def column_sums(x: Values, sums: Values, *, core_groups: int = 1) -> Ledger:
    """Write the sums of the columns of `x` (M, C), added up in fp64, to `sums` (C,)."""
    totals = _moments_of(x, np.zeros(x.shape[1]), COLUMN_SUMS, core_groups)
    sums[...] = totals.sums[0]
    return totals.ledger


class _Moments(NamedTuple):
    sums: Values
    ledger: Ledger


def _moments_of(x: Values, origin: Values, task: Pass, core_groups: int) -> _Moments:
    sums = np.zeros((2, x.shape[1]))

    def make(own: slice, plan: StreamPlan) -> Ledger:
        part = np.zeros((2, own.stop - own.start))
        ledger = execute_stream(plan, [x[:, own]], [], lambda rows: _moments(rows, origin[own], part))
        sums[:, own] = part
        return ledger

    return _Moments(sums, _by_slabs(task, x, core_groups, make))


def batch_norm(  # noqa: PLR0917 - two activations, two parameters, two results
    x: Values, y: Values, scale: Values, shift: Values, epsilon: float, moments: Values, *, core_groups: int = 1
) -> Ledger:
    """Normalise the columns of `x` (M, C) by their own mean and variance, in two passes.

    Args:
        x: the input.
        y: written, like `x`.
        scale: (C,).
        shift: (C,).
        epsilon: added to the variance.
        moments: (2, C), float64, written: mean and biased variance.
        core_groups: 1 to 4.
    """
    # Sums of squares lose digits where the mean is large: they are taken around the first row.
    origin = x[0].astype(np.float64)
    sums, ledger = _moments_of(x, origin, MOMENTS, core_groups)
    mean, square = sums / len(x)
    moments[0], moments[1] = mean + origin, np.maximum(square - mean * mean, 0.0)
    factor = scale / np.sqrt(moments[1] + epsilon)
    offset = (shift - moments[0] * factor).astype(x.dtype)
    factor = factor.astype(x.dtype)

    def make(own: slice, plan: StreamPlan) -> Ledger:
        def affine(rows: Values, out: Values) -> None:
            _affine(rows, factor[own], offset[own], out)

        return execute_stream(plan, [x[:, own]], [y[:, own]], affine)

    return ledger.then(_by_slabs(SCALE_SHIFT, x, core_groups, make))


def batch_norm_gradient(  # noqa: PLR0917 - three activations, a parameter, two results, moments
    x: Values,
    dy: Values,
    dx: Values,
    scale: Values,
    moments: Values,
    epsilon: float,
    gradients: Values,
    *,
    core_groups: int = 1,
) -> Ledger:
    """The backward of `batch_norm`, in two passes.

    Args:
        x: the input (M, C).
        dy: gradient of the output, like `x`.
        dx: written, like `x`.
        scale: (C,).
        moments: (2, C), as `batch_norm` wrote them.
        epsilon: as given there.
        gradients: (2, C), written: those of scale and shift.
        core_groups: 1 to 4.
    """
    mean, variance = moments[0], moments[1]
    sums = np.zeros((2, x.shape[1]))

    def moments_of(own: slice, plan: StreamPlan) -> Ledger:
        part = np.zeros((2, own.stop - own.start))
        inputs = [x[:, own], dy[:, own]]
        ledger = execute_stream(plan, inputs, [], lambda a, b: _gradient_moments(a, b, mean[own], part))
        sums[:, own] = part
        return ledger

    ledger = _by_slabs(GRADIENT_MOMENTS, x, core_groups, moments_of)
    inverse = 1.0 / np.sqrt(variance + epsilon)
    gradients[0], gradients[1] = sums[1] * inverse, sums[0]
    factor = scale * inverse
    x_factor = -factor * inverse**2 * sums[1] / len(x)
    factors = np.stack((factor, x_factor, -factor * sums[0] / len(x) - x_factor * mean)).astype(x.dtype)

    def normalize(own: slice, plan: StreamPlan) -> Ledger:
        part = np.ascontiguousarray(factors[:, own])
        inputs, outputs = [x[:, own], dy[:, own]], [dx[:, own]]
        return execute_stream(plan, inputs, outputs, lambda a, b, out: _normalize_gradient(a, b, part, out))

    return ledger.then(_by_slabs(NORMALIZE_GRADIENT, x, core_groups, normalize))
