"""The copies that turn a convolution over NHWC images into one matrix product, and back.

Output position (b, oh, ow) is one row of the column matrix; it holds the `size` x `size` x C window that starts at
input row `oh * stride - padding`, input column `ow * stride - padding`, zero outside of the image.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from kernels.jit import kernel
from kernels.nn.window import Window

__all__ = ["col2im", "im2col"]


@kernel
def im2col(x: NDArray[Any], columns: NDArray[Any], window: Window) -> None:
    """Write every window of `x` as one row of `columns`.

    Args:
        x: images, (B, H, W, C), C-contiguous.
        columns: written, (B * OH * OW, size * size * C), C-contiguous, where OH is
            (H + 2 * padding - size) // stride + 1, and OW likewise.
        window: its padding is a border of zeros.
    """
    size, stride, padding = window
    batch, height, width, channels = x.shape
    out_height = (height + 2 * padding - size) // stride + 1
    out_width = (width + 2 * padding - size) // stride + 1
    lines = x.reshape(batch * height, width * channels)
    span = size * channels
    row = 0
    for b in range(batch):
        for oh in range(out_height):
            for ow in range(out_width):
                patch = columns[row]
                row += 1
                left = ow * stride - padding
                # One line of a patch is contiguous in NHWC: it is copied as a whole, clipped to the image.
                low = max(0, -left) * channels
                high = max(min(size, width - left), 0) * channels
                for kh in range(size):
                    ih = oh * stride - padding + kh
                    target = patch[kh * span : (kh + 1) * span]
                    if ih < 0 or ih >= height or high <= low:
                        target[:] = 0
                        continue
                    source = lines[b * height + ih][left * channels + low : left * channels + high]
                    inside = target[low:high]
                    for c in range(low):
                        target[c] = 0
                    for c in range(high - low):
                        inside[c] = source[c]
                    for c in range(high, span):
                        target[c] = 0


@kernel
def col2im(columns: NDArray[Any], x: NDArray[Any], window: Window) -> None:
    """Sum into every pixel of `x` all entries of `columns` that `im2col` would copy from it.

    Args:
        columns: (B * OH * OW, size * size * C), C-contiguous.
        x: overwritten, (B, H, W, C), C-contiguous.
        window: its padding is a border of zeros.
    """
    size, stride, padding = window
    batch, height, width, channels = x.shape
    out_height = (height + 2 * padding - size) // stride + 1
    out_width = (width + 2 * padding - size) // stride + 1
    for b in range(batch):
        for ih in range(height):
            for iw in range(width):
                pixel = x[b, ih, iw]
                pixel[:] = 0
                for kh in range(size):
                    top = ih + padding - kh
                    oh = top // stride
                    if top < 0 or oh >= out_height or oh * stride != top:
                        continue
                    for kw in range(size):
                        left = iw + padding - kw
                        ow = left // stride
                        if left < 0 or ow >= out_width or ow * stride != left:
                            continue
                        position = (kh * size + kw) * channels
                        patch = columns[(b * out_height + oh) * out_width + ow]
                        source = patch[position : position + channels]
                        for c in range(channels):
                            pixel[c] += source[c]
