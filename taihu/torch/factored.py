"""Gradients of PyTorch's parameters that are exchanged as products of two thin matrices (PowerSGD)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from taihu.core.compression.low_rank import LowRank
from taihu.core.model.layout import Layout
from taihu.torch.gradients import GradientArena

__all__ = ["FactoredGradients"]


class FactoredGradients:
    """Gradients in an arena of their own, and their codes in the one that is exchanged; see `GradientArena`.

    Layers are those of the codes: the first ones are parameters, and late ones follow from what came back of these.

    Args:
        layout: of the parameters.
        parameters: in the layout's order.
        codes: the arena that is exchanged, shape (low_rank.layout.elements,), fp32; kept.
        low_rank: makes them.
    """

    def __init__(
        self,
        layout: Layout,
        parameters: Sequence[torch.nn.Parameter],
        codes: NDArray[np.float32],
        low_rank: LowRank,
    ) -> None:
        self._arena = np.zeros(layout.elements, dtype=np.float32)
        self._offsets = layout.offsets
        self._gradients = GradientArena(layout, parameters, self._arena)
        self._codes = codes
        self.state = low_rank
        self.sources = low_rank.sources

    @property
    def is_copied_by_devices(self) -> bool:
        """As of `GradientArena`."""
        return self._gradients.is_copied_by_devices

    def close(self) -> None:
        """Nothing is copied any more."""
        self._gradients.close()

    def begin(self, rates: NDArray[np.float64] | None) -> None:
        """A step begins, with the learning rates of parameters, if what is held back follows them."""
        if rates is not None:
            self.state.follow_rates(rates)

    def bind_one(self, index: int) -> None:
        """As of `GradientArena`."""
        self._gradients.bind_one(index)

    def take(self, index: int) -> None:
        """The gradient of parameter `index` is complete."""
        self._gradients.take(index)

    def is_there(self, index: int) -> bool:
        """Whether layer `index`, which was taken, may be sent; returns at once."""
        return self._is_late(index) or self._gradients.is_there(index)

    def wait(self, index: int) -> None:
        """Return when layer `index` may be sent."""
        if not self._is_late(index):
            self._gradients.wait(index)

    def gather(self, first: int, last: int) -> None:
        """Have the codes of layers `first` to `last`, all complete and of one kind, in their arena."""
        if self._is_late(first):
            return  # since they followed
        self._gradients.gather(first, last)
        for layer in range(first, last + 1):
            self.state.encode(layer, self._part(layer), self._codes)

    def follow(self, late: int) -> None:
        """Have the codes of a late layer, from 0, in their arena, where the mean of its source is."""
        self.state.follow(late, self._codes)

    def give(self, indices: Iterable[int], is_brought: Callable[[int], bool] = lambda _: True) -> None:
        """The arena has what came back for layers `indices`: have it in the gradients of their parameters."""
        own = [index for index in indices if not self._is_late(index)]
        for index in own:
            self.state.decode(index, self._codes, self._part(index))
        self._gradients.give(own, is_brought)

    def _is_late(self, layer: int) -> bool:
        return layer >= len(self._offsets) - 1

    def _part(self, layer: int) -> NDArray[np.float32]:
        return self._arena[self._offsets[layer] : self._offsets[layer + 1]]
