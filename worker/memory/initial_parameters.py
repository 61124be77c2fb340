"""The job's initial parameters, made layer by layer for a worker that has no room for all of them at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

from taihu.core.model.layout import Layout
from taihu.core.planner.partition import FrameSpec
from taihu.worker.memory.pages import Pages


class InitialParameters:
    """Fills the pages of a frame before it is sent; frames come in the order of their offsets.

    `initialize(i)` writes the parameters of layer i, the same bits every time.
    """

    def __init__(self, layout: Layout, pages: Pages, initialize: Callable[[int], None]) -> None:
        self._offsets = layout.offsets
        self._pages = pages
        self._initialize = initialize
        self._made = range(0)

    def prepare(self, frame: FrameSpec) -> None:
        """Make the layers of `frame`, and give back those before them."""
        first = bisect_right(self._offsets, frame.pieces[0].start) - 1
        last = bisect_right(self._offsets, frame.pieces[-1].stop - 1) - 1
        for layer in range(first, last + 1):
            if layer not in self._made:
                self._initialize(layer)
        made, self._made = self._made, range(first, last + 1)
        self._release(set(made).difference(self._made))

    def close(self) -> None:
        """Give everything back."""
        made, self._made = self._made, range(0)
        self._release(made)

    def _release(self, layers: Iterable[int]) -> None:
        for layer in layers:
            self._pages.release(self._offsets[layer], self._offsets[layer + 1])
