"""An exchange that is open, and the layers of its layout that parameters are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from taihu.core.compression import CompressionState
from taihu.core.compression.coding import Coder
from taihu.core.model.layout import Layout
from taihu.torch.gradients.order import ORDER
from taihu.torch.steps.layer_rates import LayerRates
from taihu.torch.steps.layer_steps import LayerSteps
from taihu.torch.steps.live import LiveParameters
from taihu.worker.training.step_record import StepRecord


class LayerPlaces:
    """The layers of a layout, each a parameter.

    Args:
        parameters: that are exchanged, by number.
        order: numbers in the order of the layout.
        layout: of the exchange.

    Attributes:
        by_number: layers, by the numbers of parameters.
        by_id: layers, by the identities of parameters.
        ranges: elements of the arena, by the identities of parameters.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], order: Sequence[int], layout: Layout) -> None:
        self.order = tuple(order)
        self.by_number: Mapping[int, int] = {number: layer for layer, number in enumerate(order)}
        self.by_id: Mapping[int, int] = {id(parameters[number]): layer for layer, number in enumerate(order)}
        offsets = layout.offsets
        self.ranges: Mapping[int, slice] = {
            key: slice(offsets[layer], offsets[layer + 1]) for key, layer in self.by_id.items()
        }


@dataclass(frozen=True)
class Opened:
    """An exchange that is open.

    Attributes:
        steps: of its layers.
        places: of parameters in it.
        live: the parameters that are here, where they do not stay.
        rates: of its layers, where what is held back follows them.
        compression: the live state of compression; None where nothing is compressed.
    """

    steps: LayerSteps
    places: LayerPlaces
    live: LiveParameters | None
    rates: LayerRates | None
    compression: CompressionState | Coder | None

    def begin(self, record: StepRecord, rates: Sequence[float] | None) -> None:
        """A step begins; `rates` as `Executor.begin` takes them."""
        self.steps.begin(record, rates, None if self.rates is None else self.rates.now())

    def state(self) -> dict[str, NDArray[np.generic]]:
        """The live state of compression, and its `ORDER`; empty where nothing is compressed."""
        state = self.compression
        order = np.array(self.places.order, dtype=np.int64)
        return {} if state is None else {**state.arrays(), ORDER: order}
