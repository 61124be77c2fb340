"""Maximum, average and global average pooling of NHWC images."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from taihu.core.base.errors import ModelError
from taihu.kernels.nn.pooling import avg_pool, avg_pool_gradient, max_pool, max_pool_gradient
from taihu.kernels.nn.window import Window
from taihu.worker.engine.base.layer import Array, Layer, Run, Shape, shape_error
from taihu.worker.engine.base.team import Team


class _Pool2d(Layer):
    """Windows over an image.

    Args:
        kernel: height and width of a window.
        stride: distance of two windows; the kernel when not given.
        padding: width of the border, smaller than the kernel.
        ceil_mode: add a last window that reaches over the edge when the stride does not divide the image (Caffe).
    """

    output_is_free = True
    gradient_is_free = True

    def __init__(self, kernel: int, stride: int | None = None, padding: int = 0, *, ceil_mode: bool = False) -> None:
        super().__init__()
        self._kernel, self._stride, self._padding = kernel, kernel if stride is None else stride, padding
        self._ceil_mode = ceil_mode
        self._window = Window(self._kernel, self._stride, self._padding)
        if min(kernel, self._window.stride) < 1 or not 0 <= padding < kernel:
            raise ModelError(
                f"{type(self).__name__}: expected kernel and stride of at least 1 and a padding of 0 to kernel - 1, "
                f"seen kernel={kernel}, stride={stride}, padding={padding}"
            )
        self._input_shape: Shape = ()
        self._output_shape: Shape = ()

    @property
    def kind(self) -> str:
        """`pool`."""
        return "pool"

    @property
    def window(self) -> Window:
        """Size, stride and padding."""
        return self._window

    @property
    def ceil_mode(self) -> bool:
        """Whether the last window may reach over the edge."""
        return self._ceil_mode

    def build(self, name: str, input_shape: Shape) -> Shape:
        """(H, W, C) -> (OH, OW, C)."""
        self.name = name
        if len(input_shape) != 3:
            raise shape_error(name, "(height, width, channels)", input_shape, "pooling comes before Flatten")
        least = self._window.size - 2 * self._window.padding
        if min(input_shape[:2]) < least:
            expected = f"at least {least} x {least} pixels"
            raise shape_error(name, expected, input_shape, "use a smaller kernel or fewer pooling layers")
        height, width, channels = input_shape
        self._input_shape = input_shape
        self._output_shape = (self._positions(height), self._positions(width), channels)
        return self._output_shape

    def _positions(self, side: int) -> int:
        size, stride, padding = self._window
        room = side + 2 * padding - size
        positions = (-(-room // stride) if self._ceil_mode else room // stride) + 1
        # As in Caffe, the last window must start inside of the image or its leading border.
        return positions - 1 if (positions - 1) * stride >= side + padding else positions

    def forward(self, x: Array, run: Run) -> Array:
        """Pool every window."""
        y = self.workspace.take("output", (len(x), *self._output_shape), x.dtype)
        self._pool(x, y, run.team)
        return y

    def backward(self, dy: Array, run: Run) -> Array:
        """Give every window's gradient back to its inputs."""
        dx = self.workspace.take("input_gradient", (len(dy), *self._input_shape), dy.dtype)
        self._spread(dy, dx, run.team)
        return dx

    @abstractmethod
    def _pool(self, x: Array, y: Array, team: Team) -> None: ...

    @abstractmethod
    def _spread(self, dy: Array, dx: Array, team: Team) -> None: ...


class MaxPool2d(_Pool2d):
    """The maximum of every window; the gradient goes to the first of equal ones."""

    def _pool(self, x: Array, y: Array, team: Team) -> None:
        self._chosen = self.workspace.take("chosen", y.shape, np.int32)
        team.run(max_pool, len(x), x, y, self._chosen, self._window)

    def _spread(self, dy: Array, dx: Array, team: Team) -> None:
        team.run(max_pool_gradient, len(dy), dy, self._chosen, dx, self._window)


class AvgPool2d(_Pool2d):
    """The average of every window over its part inside of the image."""

    def _pool(self, x: Array, y: Array, team: Team) -> None:
        team.run(avg_pool, len(x), x, y, self._window)

    def _spread(self, dy: Array, dx: Array, team: Team) -> None:
        team.run(avg_pool_gradient, len(dy), dy, dx, self._window)


class GlobalAvgPool(Layer):
    """The average of every channel over the whole image: (H, W, C) -> (C,)."""

    output_is_free = True
    gradient_is_free = True

    def __init__(self) -> None:
        super().__init__()
        self._input_shape: Shape = ()

    @property
    def kind(self) -> str:
        """`pool`."""
        return "pool"

    def build(self, name: str, input_shape: Shape) -> Shape:
        """(H, W, C) -> (C,)."""
        self.name = name
        if len(input_shape) != 3:
            raise shape_error(name, "(height, width, channels)", input_shape, "pooling comes before Flatten")
        self._input_shape = input_shape
        return (input_shape[2],)

    def forward(self, x: Array, run: Run) -> Array:
        """Average over height and width."""
        y = self.workspace.take("output", (len(x), x.shape[-1]), x.dtype)
        np.mean(x, axis=(1, 2), out=y)
        return y

    def backward(self, dy: Array, run: Run) -> Array:
        """Spread the gradient evenly."""
        height, width, _ = self._input_shape
        dx = self.workspace.take("input_gradient", (len(dy), *self._input_shape), dy.dtype)
        np.multiply(dy[:, None, None, :], dy.dtype.type(1 / (height * width)), out=dx)
        return dx
