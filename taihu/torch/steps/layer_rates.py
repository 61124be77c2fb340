"""The learning rates by which a script's optimizers update the layers of an exchange."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.torch.gradients.exchanged import Optimized


def rates_by_id(groups: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """The learning rates of an optimizer's parameters by their identity, -1 where a group has none."""
    return {id(parameter): _rate_of(group) for group in groups for parameter in group["params"]}


def _rate_of(group: Mapping[str, Any]) -> float:
    # An optimizer of somebody's own need not have any; some begin without.
    return -1.0 if (rate := group.get("lr")) is None else float(rate)


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
        seen = [_rate_of(group) for group in groups]
        if seen != self._seen:
            self._seen, self._rates = seen, np.full(len(self._layers), -1.0)
            known = rates_by_id(groups)
            for key, layer in self._layers.items():
                self._rates[layer] = known.get(key, -1.0)
        return self._rates
