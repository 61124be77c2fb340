"""One worker's columns of the layers that are spread: their memory, their first values, and their way to worker 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from taihu.allreduce.parts.mesh import Transfer
from taihu.core.base.errors import ConfigError
from taihu.core.model.layout import TensorSpec
from taihu.core.planner.partition import all_bounds
from taihu.worker.engine.base.layer import Array, row_blocks
from taihu.worker.engine.layers.dense import Linear
from taihu.worker.fc.stage import FcWeights
from taihu.worker.fc.tail import Mover


@dataclass(frozen=True)
class _Shard:
    """One layer, its columns by rank, and where its part lies in this rank's arena."""

    layer: Linear
    columns: tuple[int, ...]
    offset: int

    def own(self, rank: int) -> slice:
        return slice(self.columns[rank], self.columns[rank + 1])

    def width(self, rank: int) -> int:
        return self.columns[rank + 1] - self.columns[rank]

    def elements(self, rank: int) -> int:
        return sum(tensor.elements // tensor.shape[-1] for tensor in self.layer.tensors) * self.width(rank)


class Shards:
    """The columns of `layers` that rank `rank` of `size` has, and room for a part of one layer's gradient at a time.

    Nobody else has them. A part is of `gradient_bytes`, or of a row.

    Attributes:
        values: the parameters, shape (elements,), of `dtype`.

    Raises:
        ConfigError: a layer has fewer columns than there are ranks.
    """

    def __init__(
        self, layers: Sequence[Linear], *, rank: int, size: int, gradient_bytes: int, dtype: DTypeLike
    ) -> None:
        self._rank, self._size = rank, size
        self._shards: dict[str, _Shard] = {}
        offset = 0
        for layer in layers:
            shard = self._shards[layer.name] = _Shard(
                layer, split_columns(layer.name, layer.tensors[0].shape[1], size), offset
            )
            offset += shard.elements(rank)
        self.values: Array = np.zeros(offset, dtype=dtype)
        self._gradient_bytes = gradient_bytes
        # Of a part of one layer at a time, which is updated before the next one's gradient is computed.
        room = max((self._rows_at_once(shard) * shard.width(rank) for shard in self._shards.values()), default=0)
        self._gradient: Array = np.zeros(room, dtype=dtype)

    def __contains__(self, name: str) -> bool:
        """Whether the layer of this name is spread."""
        return name in self._shards

    @property
    def names(self) -> tuple[str, ...]:
        """Of the layers, in forward order."""
        return tuple(self._shards)

    def columns(self, name: str) -> tuple[int, ...]:
        """The bounds of every rank's columns of a layer."""
        return self._shards[name].columns

    def offset(self, name: str) -> int:
        """The first of `values` that is of a layer."""
        return self._shards[name].offset

    def parts(self) -> Iterator[tuple[Linear, range]]:
        """Each layer, in the order of `values`, and this rank's columns, which lie there row by row."""
        for shard in self._shards.values():
            own = shard.own(self._rank)
            yield shard.layer, range(own.start, own.stop)

    def weights(self, name: str) -> FcWeights:
        """Views of a layer's columns; all layers' gradients lie in the same memory, but for the biases'."""
        shard = self._shards[name]
        weight, *rest = self._own_tensors(shard)
        rows = self._rows_at_once(shard)
        gradient = self._gradient[: rows * weight.shape[1]].reshape(rows, -1)
        if not rest:
            return FcWeights(weight, None, gradient, None)
        return FcWeights(weight, rest[0], gradient, np.empty_like(rest[0]))

    def initialize(self, seed: int) -> None:
        """Write the columns of what `Model.initialize` would write; no layer is made whole."""
        for shard in self._shards.values():
            layer = shard.layer
            names = (tensor.name for tensor in layer.tensors)
            layer.parameters = dict(zip(names, self._own_tensors(shard), strict=True))
            layer.initialize_columns(seed, shard.own(self._rank))
            layer.parameters.clear()

    def collect(self, name: str, mover: Mover) -> Iterator[Array]:
        """Yield a whole layer on rank 0, some rows of a tensor at a time, in order; all ranks take as much.

        On others that are views of what they sent.
        """
        shard = self._shards[name]
        for own in self._own_tensors(shard):
            columns = own.reshape(-1, own.shape[-1])
            for rows in row_blocks((len(columns), shard.columns[-1])):
                yield self._to_first(shard, columns[rows], mover)

    def _to_first(self, shard: _Shard, own: Array, mover: Mover) -> Array:
        """Bring all ranks' columns of some rows to rank 0; returns them there, elsewhere `own`."""
        empty: list[list[Array]] = [[] for _ in range(self._size)]
        if self._rank:
            mover.start("collect", Transfer([[own.reshape(-1)], *empty[1:]], empty))()
            return own
        whole = np.empty((len(own), shard.columns[-1]), dtype=own.dtype)
        whole[:, shard.own(0)] = own
        receives: list[list[Array]] = [[], *(list(whole[:, shard.own(rank)]) for rank in range(1, self._size))]
        mover.start("collect", Transfer(empty, receives))()
        return whole

    def _own_tensors(self, shard: _Shard) -> list[Array]:
        """Views of this rank's part of the layer's tensors, in order."""
        views, offset = [], shard.offset
        for tensor in shard.layer.tensors:
            own = TensorSpec(tensor.name, (*tensor.shape[:-1], shard.width(self._rank)))
            views.append(self.values[offset : offset + own.elements].reshape(own.shape))
            offset += own.elements
        return views

    def _rows_at_once(self, shard: _Shard) -> int:
        inputs = shard.layer.tensors[0].shape[0]
        row_bytes = shard.width(self._rank) * self.values.itemsize
        return min(inputs, max(1, self._gradient_bytes // row_bytes))


def split_columns(name: str, units: int, size: int) -> tuple[int, ...]:
    """The bounds of each rank's columns of a layer of `units` outputs.

    Raises:
        ConfigError: there are fewer than ranks.
    """
    if size > units:
        raise ConfigError(
            f"layer {name}: {units} outputs cannot be split over {size} workers; use at most {units} "
            "workers, or leave the layer to the exchange"
        )
    return all_bounds(units, size)
