"""Maximum and average over windows of NHWC images; a window is clipped to the image."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel
from taihu.kernels.nn.pooling_tile import max_gradient_tile, max_tile
from taihu.kernels.nn.vectors import VECTOR_BYTES
from taihu.kernels.nn.window import Window, covered, tap


@kernel
def max_pool(  # noqa: PLR0917 - arrays, and the part of the work
    x: NDArray[Any], y: NDArray[Any], chosen: NDArray[Any], window: Window, first: int, last: int, lane: int
) -> None:
    """Take the maximum of every window of images `first` to `last` - 1; the first of equals wins, and NaN over all.

    Args:
        x: images, (B, H, W, C), C-contiguous.
        y: written, (B, OH, OW, C), C-contiguous; no window may lie wholly outside of the image.
        chosen: written, int32 like `y`: the position kh * size + kw of the maximum in its window.
        window: its padding lies outside of the image and counts for nothing.
        first: the first image.
        last: behind the last one.
        lane: not used.
    """
    height, width, channels = x.shape[1:]
    lanes = VECTOR_BYTES // x.itemsize
    whole = channels - channels % lanes
    x_flat, y_flat, chosen_flat = x.reshape(-1), y.reshape(-1), chosen.reshape(-1)
    for b in range(first, last):
        for oh in range(y.shape[1]):
            top, bottom = covered(oh, window, height)
            for ow in range(y.shape[2]):
                left, right = covered(ow, window, width)
                position = tap(oh, ow, top, left, window)
                begin = ((b * height + top) * width + left) * channels
                out = ((b * y.shape[1] + oh) * y.shape[2] + ow) * channels
                for c in range(0, whole, lanes):
                    max_tile(
                        x_flat, y_flat, chosen_flat, begin + c, width * channels, channels, bottom - top,
                        right - left, position, window.size, out + c,
                    )  # fmt: skip
                for c in range(whole, channels):
                    best, where = x[b, top, left, c], position
                    for ih in range(top, bottom):
                        for iw in range(left, right):
                            value = x[b, ih, iw, c]
                            if value > best or value != value:  # noqa: PLR0124 - true for NaN only
                                best = value
                                where = tap(oh, ow, ih, iw, window)
                    y[b, oh, ow, c] = best
                    chosen[b, oh, ow, c] = where


@kernel
def max_pool_gradient(  # noqa: PLR0917 - arrays, and the part of the work
    dy: NDArray[Any], chosen: NDArray[Any], dx: NDArray[Any], window: Window, first: int, last: int, lane: int
) -> None:
    """Add the gradient of every window to the input that was its maximum.

    Args:
        dy: (B, OH, OW, C), C-contiguous.
        chosen: int32 like `dy`, as `max_pool` wrote it.
        dx: overwritten, (B, H, W, C), C-contiguous.
        window: its padding lies outside of the image and counts for nothing.
        first: the first image.
        last: behind the last one.
        lane: not used.
    """
    size, stride, padding = window
    height, width, channels = dx.shape[1:]
    lanes = VECTOR_BYTES // dx.itemsize
    whole = channels - channels % lanes
    dx_flat, dy_flat, chosen_flat = dx.reshape(-1), dy.reshape(-1), chosen.reshape(-1)
    for b in range(first, last):
        dx[b] = 0
        for oh in range(dy.shape[1]):
            top, bottom = covered(oh, window, height)
            for ow in range(dy.shape[2]):
                left, right = covered(ow, window, width)
                position = tap(oh, ow, top, left, window)
                begin = ((b * height + top) * width + left) * channels
                out = ((b * dy.shape[1] + oh) * dy.shape[2] + ow) * channels
                for c in range(0, whole, lanes):
                    max_gradient_tile(
                        dx_flat, dy_flat, chosen_flat, begin + c, width * channels, channels, bottom - top,
                        right - left, position, size, out + c,
                    )  # fmt: skip
                for c in range(whole, channels):
                    where = chosen[b, oh, ow, c]
                    ih, iw = oh * stride - padding + where // size, ow * stride - padding + where % size
                    dx[b, ih, iw, c] += dy[b, oh, ow, c]


@kernel
def avg_pool(  # noqa: PLR0917 - arrays, and the part of the work
    x: NDArray[Any], y: NDArray[Any], window: Window, first: int, last: int, lane: int
) -> None:
    """Average every window of images `first` to `last` - 1 over its part inside of the image.

    Args:
        x: images, (B, H, W, C), C-contiguous.
        y: written, (B, OH, OW, C); no window may lie wholly outside of the image.
        window: its padding lies outside of the image and counts for nothing.
        first: the first image.
        last: behind the last one.
        lane: not used.
    """
    height, width, channels = x.shape[1:]
    for b in range(first, last):
        for oh in range(y.shape[1]):
            top, bottom = covered(oh, window, height)
            for ow in range(y.shape[2]):
                left, right = covered(ow, window, width)
                target = y[b, oh, ow]
                target[:] = 0
                for ih in range(top, bottom):
                    for iw in range(left, right):
                        source = x[b, ih, iw]
                        for c in range(channels):
                            target[c] += source[c]
                share = x.dtype.type(1) / x.dtype.type((bottom - top) * (right - left))
                for c in range(channels):
                    target[c] *= share


@kernel
def avg_pool_gradient(  # noqa: PLR0917 - arrays, and the part of the work
    dy: NDArray[Any], dx: NDArray[Any], window: Window, first: int, last: int, lane: int
) -> None:
    """Spread the gradient of every window evenly over its part inside of the image.

    Args:
        dy: (B, OH, OW, C), C-contiguous.
        dx: overwritten, (B, H, W, C), C-contiguous.
        window: its padding lies outside of the image and counts for nothing.
        first: the first image.
        last: behind the last one.
        lane: not used.
    """
    height, width, channels = dx.shape[1:]
    for b in range(first, last):
        dx[b] = 0
        for oh in range(dy.shape[1]):
            top, bottom = covered(oh, window, height)
            for ow in range(dy.shape[2]):
                left, right = covered(ow, window, width)
                gradient = dy[b, oh, ow]
                share = dy.dtype.type(1) / dy.dtype.type((bottom - top) * (right - left))
                for ih in range(top, bottom):
                    for iw in range(left, right):
                        target = dx[b, ih, iw]
                        for c in range(channels):
                            target[c] += gradient[c] * share
