"""The learning rates by which a script's optimizers update the layers of an exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from taihu.torch.exchanged import Optimized

__all__ = ["LayerRates"]


class LayerRates:
    """The present rates of layers, each a parameter.

    Args:
        layers: by the identities of parameters.
        optimized: the optimizers.
    """

    def __init__(self, layers: Mapping[int, int], optimized: Sequence[Optimized]) -> None:
        self._layers = layers
        self._optimized = optimized
        # Of parameter groups, as they were seen at last.
        self._seen: list[float] = []
        self._rates = np.full(len(layers), -1.0)

    def now(self) -> NDArray[np.float64]:
        """Shape (layers,), -1 where no optimizer says; another array where one has changed."""
        groups = [group for each in self._optimized for group in each.groups()]
        # An optimizer of somebody's own need not have any; some begin without.
        seen = [-1.0 if (rate := group.get("lr")) is None else float(rate) for group in groups]
        if seen != self._seen:
            self._seen, self._rates = seen, np.full(len(self._layers), -1.0)
            for group, rate in zip(groups, seen, strict=True):
                places = [self._layers[id(p)] for p in group["params"] if id(p) in self._layers]
                self._rates[places] = rate
        return self._rates
