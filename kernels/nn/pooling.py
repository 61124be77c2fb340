"""Maximum and average over windows of NHWC images; a window is clipped to the image."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from kernels.jit import kernel
from kernels.nn.window import Window

__all__ = ["avg_pool", "avg_pool_gradient", "max_pool", "max_pool_gradient"]


@kernel
def max_pool(x: NDArray[Any], y: NDArray[Any], chosen: NDArray[Any], window: Window) -> None:
    """Take the maximum of every window; the first one wins among equals, and NaN wins over all.

    Args:
        x: images, (B, H, W, C), C-contiguous.
        y: written, (B, OH, OW, C); no window may lie wholly outside of the image.
        chosen: written, int32 like `y`: the position kh * size + kw of the maximum in its window.
        window: its padding lies outside of the image and counts for nothing.
    """
    size, stride, padding = window
    batch, height, width, channels = x.shape
    for b in range(batch):
        for oh in range(y.shape[1]):
            top = oh * stride - padding
            for ow in range(y.shape[2]):
                left = ow * stride - padding
                best = y[b, oh, ow]
                where = chosen[b, oh, ow]
                first = max(-top, 0) * size + max(-left, 0)
                source = x[b, max(top, 0), max(left, 0)]
                for c in range(channels):
                    best[c] = source[c]
                    where[c] = first
                for kh in range(max(-top, 0), min(size, height - top)):
                    for kw in range(max(-left, 0), min(size, width - left)):
                        source = x[b, top + kh, left + kw]
                        position = kh * size + kw
                        for c in range(channels):
                            value = source[c]
                            wins = (value > best[c]) | (value != value)  # noqa: PLR0124 - true for NaN only
                            best[c] = value if wins else best[c]
                            where[c] = position if wins else where[c]


@kernel
def max_pool_gradient(dy: NDArray[Any], chosen: NDArray[Any], dx: NDArray[Any], window: Window) -> None:
    """Add the gradient of every window to the input that was its maximum.

    Args:
        dy: (B, OH, OW, C), C-contiguous.
        chosen: int32 like `dy`, as `max_pool` wrote it.
        dx: overwritten, (B, H, W, C), C-contiguous.
        window: its padding lies outside of the image and counts for nothing.
    """
    size, stride, padding = window
    batch, height, width, channels = dx.shape
    zero = dx.dtype.type(0)
    dx[:] = zero
    for b in range(batch):
        for oh in range(dy.shape[1]):
            top = oh * stride - padding
            for ow in range(dy.shape[2]):
                left = ow * stride - padding
                gradient = dy[b, oh, ow]
                where = chosen[b, oh, ow]
                for kh in range(max(-top, 0), min(size, height - top)):
                    for kw in range(max(-left, 0), min(size, width - left)):
                        target = dx[b, top + kh, left + kw]
                        position = kh * size + kw
                        for c in range(channels):
                            value = gradient[c]
                            target[c] += value if where[c] == position else zero


@kernel
def avg_pool(x: NDArray[Any], y: NDArray[Any], window: Window) -> None:
    """Average every window over its part inside of the image.

    Args:
        x: images, (B, H, W, C), C-contiguous.
        y: written, (B, OH, OW, C); no window may lie wholly outside of the image.
        window: its padding lies outside of the image and counts for nothing.
    """
    size, stride, padding = window
    batch, height, width, channels = x.shape
    for b in range(batch):
        for oh in range(y.shape[1]):
            top, bottom = max(oh * stride - padding, 0), min(oh * stride - padding + size, height)
            for ow in range(y.shape[2]):
                left, right = max(ow * stride - padding, 0), min(ow * stride - padding + size, width)
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
def avg_pool_gradient(dy: NDArray[Any], dx: NDArray[Any], window: Window) -> None:
    """Spread the gradient of every window evenly over its part inside of the image.

    Args:
        dy: (B, OH, OW, C), C-contiguous.
        dx: overwritten, (B, H, W, C), C-contiguous.
        window: its padding lies outside of the image and counts for nothing.
    """
    size, stride, padding = window
    batch, height, width, channels = dx.shape
    dx[:] = 0
    for b in range(batch):
        for oh in range(dy.shape[1]):
            top, bottom = max(oh * stride - padding, 0), min(oh * stride - padding + size, height)
            for ow in range(dy.shape[2]):
                left, right = max(ow * stride - padding, 0), min(ow * stride - padding + size, width)
                gradient = dy[b, oh, ow]
                share = dy.dtype.type(1) / dy.dtype.type((bottom - top) * (right - left))
                for ih in range(top, bottom):
                    for iw in range(left, right):
                        target = dx[b, ih, iw]
                        for c in range(channels):
                            target[c] += gradient[c] * share
