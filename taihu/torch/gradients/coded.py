"""Gradients of PyTorch's parameters that are exchanged as codes, as PowerSGD's thin matrices are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from taihu.core.compression.coding import Coder
from taihu.core.model.layout import Layout
from taihu.torch.gradients.gradients import GradientArena


@dataclass(frozen=True)
class Codes:
    """The codes of a step.

    Attributes:
        coder: of this worker.
        arena: that is exchanged, shape (coder.layout.elements,), fp32.
    """

    coder: Coder
    arena: NDArray[np.float32]

    @property
    def sources(self) -> Sequence[int]:
        """Of each late layer, whose codes follow from what came back, the layer that it follows."""
        return self.coder.sources

    def follow(self, late: int) -> None:
        """Have the codes of a late layer, from 0, in the arena, where the mean of its source is."""
        self.coder.follow(late, self.arena)


class CodedGradients:
    """Gradients in an arena of their own, of which codes are exchanged; see `GradientArena`.

    Layers are those of the codes: the first ones are parameters, and late ones follow from what came back of these.

    Args:
        layout: of the parameters.
        parameters: in the layout's order.
        codes: of them.
    """

    def __init__(self, layout: Layout, parameters: Sequence[torch.nn.Parameter], codes: Codes) -> None:
        self._arena = np.zeros(layout.elements, dtype=np.float32)
        self._offsets = layout.offsets
        self._gradients = GradientArena(layout, parameters, self._arena)
        self._codes = codes

    @property
    def is_copied_by_devices(self) -> bool:
        """As of `GradientArena`."""
        return self._gradients.is_copied_by_devices

    def close(self) -> None:
        """Nothing is copied any more."""
        self._gradients.close()

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
            self._codes.coder.encode(layer, self._part(layer), self._codes.arena)

    def give(self, indices: Iterable[int], is_brought: Callable[[int], bool] = lambda _: True) -> None:
        """The arena has what came back for layers `indices`: have it in the gradients of their parameters."""
        own = [index for index in indices if not self._is_late(index)]
        for index in own:
            self._codes.coder.decode(index, self._codes.arena, self._part(index))
        self._gradients.give(own, is_brought)

    def _is_late(self, layer: int) -> bool:
        return layer >= len(self._offsets) - 1

    def _part(self, layer: int) -> NDArray[np.float32]:
        return self._arena[self._offsets[layer] : self._offsets[layer + 1]]
