"""The geometry of square windows over an image."""

from __future__ import annotations

from typing import NamedTuple

from taihu.kernels.base.jit import kernel_part


class Window(NamedTuple):
    """Windows of `size` x `size` pixels; the first one starts `padding` pixels before the image."""

    size: int
    stride: int
    padding: int


@kernel_part
def covered(at: int, window: Window, side: int) -> tuple[int, int]:
    """The first pixel of an image's side in the window at a position, and the one behind the last."""
    begin = at * window.stride - window.padding
    low = max(begin, 0)
    return low, max(min(begin + window.size, side), low)


@kernel_part
def tap(row: int, column: int, line: int, pixel: int, window: Window) -> int:
    """The number kh * size + kw that a pixel of the image has in the window at (row, column)."""
    kh, kw = line - row * window.stride + window.padding, pixel - column * window.stride + window.padding
    return kh * window.size + kw
