"""Two-dimensional convolution as matrix products over blocks of samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np

from kernels.nn.convolution import col2im, im2col
from kernels.nn.elementwise import add_bias, column_sums
from kernels.nn.window import Window
from taihu.errors import ModelError
from taihu.layout import TensorSpec
from worker.engine.layer import Array, ParameterLayer, Run, Shape, fill_normal, shape_error

__all__ = ["Conv2d"]

# The column matrix of a block of samples stays in the second-level cache between im2col and the product.
_COLUMN_BYTES = 1 << 21


class Conv2d(ParameterLayer):
    """Cross-correlation of NHWC images with `filters` square kernels; weight (size, size, C / groups, filters).

    Args:
        filters: number of output channels.
        kernel: height and width of a kernel.
        stride: distance of two windows.
        padding: width of the border of zeros; "same" keeps ceil(input / stride) positions, for odd kernels.
        bias: whether every filter has a bias.
        groups: cut input and output channels into this many independent convolutions.
    """

    output_is_free = True
    gradient_is_free = True

    def __init__(
        self,
        filters: int,
        kernel: int,
        stride: int = 1,
        padding: int | Literal["same"] = 0,
        *,
        bias: bool = True,
        groups: int = 1,
    ) -> None:
        super().__init__()
        border = 0 if padding == "same" else padding
        if min(filters, kernel, stride, groups) < 1 or border < 0 or filters % groups:
            raise ModelError(
                "Conv2d: expected positive filters, kernel and stride, padding of at least 0 and groups that divide "
                f"the filters, seen filters={filters}, kernel={kernel}, stride={stride}, padding={padding}, "
                f"groups={groups}"
            )
        if padding == "same" and kernel % 2 == 0:
            raise ModelError(
                f'Conv2d: padding="same" needs an odd kernel, seen {kernel}; give the padding as a number'
            )
        self._window = Window(kernel, stride, (kernel - 1) // 2 if padding == "same" else padding)
        self._filters, self._groups = filters, groups
        self._has_bias = bias
        self._input = np.empty(0)
        self._output_shape: Shape = ()

    @property
    def kind(self) -> str:
        """`conv`."""
        return "conv"

    def build(self, name: str, input_shape: Shape) -> Shape:
        """(H, W, C) -> (OH, OW, filters)."""
        self.name = name
        if len(input_shape) != 3:
            raise shape_error(name, "(height, width, channels)", input_shape, "a convolution comes before Flatten")
        height, width, channels = input_shape
        size, stride, padding = self._window
        least = size - 2 * padding
        if min(height, width) < least:
            expected = f"at least {least} x {least} pixels for a {size} x {size} kernel"
            raise shape_error(name, expected, input_shape, "use a smaller kernel or stride, or more padding")
        if channels % self._groups:
            expected = f"channels divisible by groups={self._groups}"
            raise shape_error(name, expected, input_shape, "change groups or the filters of the layer before")
        weight = TensorSpec("weight", (size, size, channels // self._groups, self._filters))
        bias = (TensorSpec("bias", (self._filters,)),) if self._has_bias else ()
        self.tensors = (weight, *bias)
        positions = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
        self._output_shape = (*positions, self._filters)
        return self._output_shape

    def fill(self, generator: np.random.Generator) -> None:
        """He initialisation (He et al. 2015, section 2.2) for a rectifier behind the layer; zero bias."""
        weight = self.parameters["weight"]
        fill_normal(weight, generator, math.sqrt(2.0 / math.prod(weight.shape[:3])))
        if self._has_bias:
            self.parameters["bias"][...] = 0

    def compute(self, x: Array, run: Run) -> Array:
        """Multiply the columns of every block with the weight."""
        self._input = x
        y = self.workspace.take("output", (len(x), *self._output_shape), x.dtype)
        weight, rows = self._matrix(self.parameters["weight"]), _rows(y)
        for group in range(self._groups):
            x_group = self._channels_of(x, group, run)
            filters = self._filters_of(group)
            for samples, positions in self._blocks(x_group):
                columns = self._columns(x_group[samples], run)
                np.matmul(columns, weight[:, filters], out=rows[positions, filters])
        if self._has_bias:
            add_bias(rows, self.parameters["bias"])
        return y

    def differentiate(self, dy: Array, run: Run) -> Array:
        """Per group: dW = columns^T dy, summed over the blocks in order, and dx = col2im(dy W^T)."""
        x = self._input
        if self._has_bias:
            sums = run.scratch.take("sums", (self._filters,), np.float64)
            column_sums(_rows(dy), sums)
            self.gradients["bias"][...] = sums
        dx = self.workspace.take("input_gradient", x.shape, x.dtype) if self.needs_input_gradient else x[:0]
        for group in range(self._groups):
            self._differentiate_group(group, dy, dx, run)
        return dx

    def _differentiate_group(self, group: int, dy: Array, dx: Array, run: Run) -> None:
        x = self._channels_of(self._input, group, run)
        filters = self._filters_of(group)
        weight = self._matrix(self.parameters["weight"])[:, filters]
        weight_gradient = self._matrix(self.gradients["weight"])[:, filters]
        dx_group = dx if self._groups == 1 else run.scratch.take("group_gradient", x.shape, x.dtype)
        for block, (samples, positions) in enumerate(self._blocks(x)):
            dy_block = _rows(dy)[positions, filters]
            columns = self._columns(x[samples], run)
            if block == 0:
                np.matmul(columns.T, dy_block, out=weight_gradient)
            else:
                part = run.scratch.take("weight_gradient", weight_gradient.shape, x.dtype)
                weight_gradient += np.matmul(columns.T, dy_block, out=part)
            if self.needs_input_gradient:
                self._input_gradient(dy_block, weight, dx_group[samples], run)
        if self.needs_input_gradient and self._groups > 1:
            dx[..., self._slice_of(group, dx.shape[-1])] = dx_group

    def _input_gradient(self, dy: Array, weight: Array, dx: Array, run: Run) -> None:
        if self._is_pointwise:
            np.matmul(dy, weight.T, out=_rows(dx))
            return
        # The columns of this block have served the weight gradient: their memory is warm and free.
        columns = run.scratch.take("columns", (len(dy), len(weight)), dy.dtype)
        np.matmul(dy, weight.T, out=columns)
        col2im(columns, dx, self._window)

    def _columns(self, x: Array, run: Run) -> Array:
        if self._is_pointwise:
            return _rows(x)
        positions = len(x) * math.prod(self._output_shape[:2])
        columns = run.scratch.take("columns", (positions, self._window.size**2 * x.shape[-1]), x.dtype)
        im2col(x, columns, self._window)
        return columns

    def _blocks(self, x: Array) -> Iterator[tuple[slice, slice]]:
        """Cut the batch into blocks of samples: ranges of samples and of rows of the output."""
        positions = math.prod(self._output_shape[:2])
        sample_bytes = positions * self._window.size**2 * x.shape[-1] * x.itemsize
        block = len(x) if self._is_pointwise else max(1, _COLUMN_BYTES // sample_bytes)
        for first in range(0, len(x), block):
            last = min(first + block, len(x))
            yield slice(first, last), slice(first * positions, last * positions)

    def _channels_of(self, x: Array, group: int, run: Run) -> Array:
        if self._groups == 1:
            return x
        part = x[..., self._slice_of(group, x.shape[-1])]
        copy = run.scratch.take("group_input", part.shape, x.dtype)
        np.copyto(copy, part)
        return copy

    def _filters_of(self, group: int) -> slice:
        return self._slice_of(group, self._filters)

    def _slice_of(self, group: int, channels: int) -> slice:
        size = channels // self._groups
        return slice(group * size, (group + 1) * size)

    @property
    def _is_pointwise(self) -> bool:
        return self._window == (1, 1, 0)

    def _matrix(self, weight: Array) -> Array:
        return weight.reshape(-1, self._filters)


def _rows(activation: Array) -> Array:
    return activation.reshape(-1, activation.shape[-1])
