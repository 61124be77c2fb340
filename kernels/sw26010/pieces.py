"""Computation of the CPEs on the units of `kernels.sw26010.windows`: numba kernels, and the tasks that run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel, kernel_part
from taihu.kernels.nn.window import Window, covered, tap
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.windows import WindowPlan, WindowTask, plan_windows

Values = NDArray[Any]
Places = NDArray[np.int64]
Bounds = tuple[int, int, int, int]


@kernel_part
def _positions(pixel: int, window: Window, positions: int) -> tuple[int, int]:
    """The positions whose windows cover a pixel."""
    low = -(-(pixel + window.padding - window.size + 1) // window.stride)
    return max(low, 0), min((pixel + window.padding) // window.stride + 1, positions)


@kernel_part
def _load(source: Values, lines: Values) -> int:
    """Copy parts of the lines of an image to the front of `lines`; returns how many elements."""
    for line in range(source.shape[0]):
        for pixel in range(source.shape[1]):
            for c in range(source.shape[2]):
                lines[line, pixel, c] = source[line, pixel, c]
    return int(source.size)


@kernel
def _im2col(x: Values, columns: Values, places: Places, bounds: Bounds, window: Window) -> tuple[int, int]:
    size, stride, padding = window
    first, last, low, high = bounds
    left = max(first * stride - padding, 0)
    right = max(left, min((last - 1) * stride - padding + size, x.shape[2]))
    lines = np.empty((size, right - left, high - low), x.dtype)
    read = written = 0
    for place in range(places.shape[0]):
        image, row = places[place, 0], places[place, 1]
        top, bottom = covered(row, window, x.shape[1])
        read += _load(x[image, top:bottom, left:right, low:high], lines)
        for column in range(first, last):
            for kh in range(size):
                line = row * stride - padding + kh - top
                for kw in range(size):
                    pixel = column * stride - padding + kw - left
                    target = columns[image, row, column, kh, kw]
                    for c in range(high - low):
                        inside = 0 <= line < bottom - top and 0 <= pixel < right - left
                        target[low + c] = lines[line, pixel, c] if inside else x.dtype.type(0)
                    written += high - low
    return read, written


@kernel
def _col2im(columns: Values, x: Values, places: Places, bounds: Bounds, window: Window) -> tuple[int, int]:
    size, stride, padding = window
    first, last, low, high = bounds
    left, right = _positions(first, window, columns.shape[2])[0], _positions(last - 1, window, columns.shape[2])[1]
    line = np.empty((max(right - left, 0), size, high - low), x.dtype)
    gradient = np.empty((last - first, high - low), x.dtype)
    read = written = 0
    for place in range(places.shape[0]):
        image, row = places[place, 0], places[place, 1]
        gradient[:] = 0
        top, bottom = _positions(row, window, columns.shape[1])
        for position in range(top, bottom):
            for column in range(left, right):
                windows = columns[image, position, column, row + padding - position * stride]
                for kw in range(size):
                    for c in range(low, high):
                        line[column - left, kw, c - low] = windows[kw, c]
                read += size * (high - low)
            for column in range(left, right):
                for kw in range(size):
                    pixel = column * stride - padding + kw - first
                    if 0 <= pixel < last - first:
                        for c in range(high - low):
                            gradient[pixel, c] += line[column - left, kw, c]
        for pixel in range(first, last):
            for c in range(low, high):
                x[image, row, pixel, c] = gradient[pixel - first, c - low]
        written += (last - first) * (high - low)
    return read, written


@kernel
def _pool(  # noqa: PLR0917 - three arrays, where, how
    x: Values, y: Values, chosen: Values, places: Places, bounds: Bounds, window: Window, maximum: bool
) -> tuple[int, int]:
    size = window.size
    first, last, low, high = bounds
    left, right = covered(first, window, x.shape[2])[0], covered(last - 1, window, x.shape[2])[1]
    lines = np.empty((size, right - left, high - low), x.dtype)
    read = written = 0
    for place in range(places.shape[0]):
        image, row = places[place, 0], places[place, 1]
        top, bottom = covered(row, window, x.shape[1])
        read += _load(x[image, top:bottom, left:right, low:high], lines)
        for column in range(first, last):
            begin, end = covered(column, window, x.shape[2])
            target = y[image, row, column]
            where = chosen[image, row, column]
            count = x.dtype.type((bottom - top) * (end - begin))
            for c in range(high - low):
                best = lines[0, begin - left, c]
                at = 0
                total = x.dtype.type(0)
                for line in range(bottom - top):
                    for pixel in range(begin - left, end - left):
                        value = lines[line, pixel, c]
                        total += value
                        if value > best or value != value:  # noqa: PLR0124 - true for NaN only
                            best = value
                            at = tap(row, column, line + top, pixel + left, window)
                        elif line == 0 and pixel == begin - left:
                            at = tap(row, column, top, begin, window)
                target[low + c] = best if maximum else total / count
                if maximum:
                    where[low + c] = at
            written += high - low
    return read, written


@kernel
def _pool_gradient(  # noqa: PLR0917 - three arrays, where, how
    dy: Values, chosen: Values, dx: Values, places: Places, bounds: Bounds, window: Window, maximum: bool
) -> tuple[int, int]:
    first, last, low, high = bounds
    left, right = _positions(first, window, dy.shape[2])[0], _positions(last - 1, window, dy.shape[2])[1]
    line = np.empty((max(right - left, 0), high - low), dy.dtype)
    gradient = np.empty((last - first, high - low), dx.dtype)
    read = written = 0
    for place in range(places.shape[0]):
        image, row = places[place, 0], places[place, 1]
        gradient[:] = 0
        top, bottom = _positions(row, window, dy.shape[1])
        for position in range(top, bottom):
            for column in range(left, right):
                for c in range(low, high):
                    line[column - left, c - low] = dy[image, position, column, c]
                read += high - low
            over, under = covered(position, window, dx.shape[1])
            for column in range(left, right):
                begin, end = covered(column, window, dx.shape[2])
                count = dy.dtype.type((under - over) * (end - begin))
                for pixel in range(max(begin, first), min(end, last)):
                    own = tap(position, column, row, pixel, window)
                    for c in range(high - low):
                        value = line[column - left, c]
                        if not maximum:
                            gradient[pixel - first, c] += value / count
                        elif chosen[image, position, column, low + c] == own:
                            gradient[pixel - first, c] += value
        for pixel in range(first, last):
            for c in range(low, high):
                dx[image, row, pixel, c] = gradient[pixel - first, c - low]
        written += (last - first) * (high - low)
    return read, written


def _execute(plan: WindowPlan, compute: Callable[[Places, Bounds], tuple[int, int]]) -> Ledger:
    ledgers = []
    for share in plan.shares():
        ledger = Ledger()
        for places, pixels, channels in plan.waves(share):
            bounds = (pixels.start, pixels.stop, channels.start, channels.stop)
            moved = compute(np.array(places, np.int64), bounds)
            plan.count(ledger, len(places), len(plan.reached(places[0][1])), pixels, channels, moved)
        ledgers.append(ledger)
    return plan.together(ledgers)


def _plan(task: WindowTask, images: Values, positions: Values, window: Window, core_groups: int) -> WindowPlan:
    batch, height, width, channels = images.shape
    sides = (positions.shape[1], positions.shape[2])
    return plan_windows(task, (batch, height, width, channels), sides, window, images.itemsize, core_groups)


def im2col(x: Values, columns: Values, window: Window, *, core_groups: int = 1) -> Ledger:
    """Write every window of `x` (B, H, W, C) to `columns` (B, OH, OW, K, K, C), zeros outside of the image."""
    plan = _plan("im2col", x, columns, window, core_groups)
    return _execute(plan, lambda places, bounds: _im2col(x, columns, places, bounds, window))


def col2im(columns: Values, x: Values, window: Window, *, core_groups: int = 1) -> Ledger:
    """Sum into every pixel of `x` what `im2col` would copy from it to `columns`."""
    plan = _plan("col2im", x, columns, window, core_groups)
    return _execute(plan, lambda places, bounds: _col2im(columns, x, places, bounds, window))


def pool(x: Values, y: Values, chosen: Values | None, window: Window, *, core_groups: int = 1) -> Ledger:
    """Maxima of windows clipped to the image, or averages without `chosen`.

    Args:
        x: (B, H, W, C).
        y: written, (B, OH, OW, C).
        chosen: written, int32 like `y`: the position kh * size + kw of the first maximum in its window.
        window: no window may lie outside of the image.
        core_groups: 1 to 4.
    """
    maximum = chosen is not None
    where = np.empty(y.shape, np.int32) if chosen is None else chosen
    plan = _plan("max" if maximum else "average", x, y, window, core_groups)
    return _execute(plan, lambda places, bounds: _pool(x, y, where, places, bounds, window, maximum))


def pool_gradient(dy: Values, chosen: Values | None, dx: Values, window: Window, *, core_groups: int = 1) -> Ledger:
    """The backward of `pool`: dx (B, H, W, C) from dy (B, OH, OW, C), and the positions of maxima or None."""
    maximum = chosen is not None
    where = np.empty(dy.shape, np.int32) if chosen is None else chosen
    plan = _plan("max gradient" if maximum else "average gradient", dx, dy, window, core_groups)
    return _execute(plan, lambda places, bounds: _pool_gradient(dy, where, dx, places, bounds, window, maximum))
