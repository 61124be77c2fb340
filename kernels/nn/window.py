"""The geometry of square windows over an image."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Window"]


class Window(NamedTuple):
    """Windows of `size` x `size` pixels; the first one starts `padding` pixels before the image."""

    size: int
    stride: int
    padding: int
