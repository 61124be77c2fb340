"""Blocks in turn: of every layer one of eight parts goes, another one in each step, and the rest waits."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError
from taihu.core.compression.state import lowered
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.settings import CompressionSettings
from taihu.core.traits.methods import Method

METHOD = Method("blocks", selects=False, unit="layer", codes=f"{__name__}:coder")
COUNT = 8

Values = NDArray[np.float32]


class Blocks:
    """Codes are the present block of each layer, which is the same on all workers."""

    sources = ()

    def __init__(self, layout: Layout) -> None:
        self._layers = [slice(*bounds) for bounds in pairwise(layout.offsets)]
        self._sizes = [-(-(layer.stop - layer.start) // COUNT) for layer in self._layers]
        self._held = np.zeros(layout.elements, dtype=np.float32)
        self._turns = np.zeros(len(self._layers), dtype=np.int64)
        self._rates = np.full(len(self._layers), -1.0)
        self.layout = Layout(
            tuple(
                LayerSpec(each.name, (TensorSpec("block", (size,)),), each.kind)
                for each, size in zip(layout.layers, self._sizes, strict=True)
            )
        )

    def follow_rates(self, rates: NDArray[np.float64]) -> None:
        for layer, factor in zip(self._layers, lowered(self._rates, rates), strict=True):
            self._held[layer] *= factor
        self._rates[:] = rates

    def encode(self, layer: int, gradient: Values, codes: Values) -> None:
        self._turns[layer] += 1
        held, own = self._held[self._layers[layer]], codes[self._place(layer)]
        held += gradient
        block = self._block(layer)
        own[:] = 0.0
        own[: len(held[block])] = held[block]
        held[block] = 0.0
        held[~np.isfinite(held)] = 0.0
        if not np.isfinite(gradient).all():
            own[0] = np.nan  # all workers hear of it, whichever block it is in

    def follow(self, late: int, codes: Values) -> None:
        raise NotImplementedError("no layer is late")

    def decode(self, layer: int, codes: Values, gradient: Values) -> None:
        block, own = self._block(layer), codes[self._place(layer)]
        gradient[:] = 0.0 if np.isfinite(own).all() else np.nan
        gradient[block] = own[: len(gradient[block])]

    def arrays(self) -> dict[str, NDArray[Any]]:
        own = {"turns": self._turns, "rates": self._rates}
        return {"residual": self._held, "velocity": self._held[:0], **own}

    def resume(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        if len(arrays["residual"]) != len(self._held):
            raise ConfigError(f"{len(arrays['residual'])} values were held back, expected {len(self._held)}")
        for name, array in self.arrays().items():
            if len(arrays.get(name, ())):
                np.copyto(array, arrays[name])

    def _block(self, layer: int) -> slice:
        first = int(self._turns[layer]) % COUNT * self._sizes[layer]
        return slice(first, first + self._sizes[layer])

    def _place(self, layer: int) -> slice:
        return slice(*self.layout.offsets[layer : layer + 2])


def coder(layout: Layout, settings: CompressionSettings, seed: int) -> Blocks:
    """The coder of one worker."""
    return Blocks(layout)
