"""Memory of the fully connected end of a network that is spread over workers, for a batch of any size."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import numpy as np

from taihu.core.planner.partition import all_bounds
from taihu.worker.engine import Layer, Linear, ReLU
from taihu.worker.fc.own_inputs import InputsKept
from taihu.worker.fc.passes import Pass, Scheme, plan_passes
from taihu.worker.fc.stage import FcWeights, Stage, TailMemory

_DTYPE: Final = np.dtype(np.float32)


class TailFootprint:
    """Bytes of activations behind the layers that run as always, of the last rank, which has the most columns.

    Args:
        chain: the layers of that end: `Model.chain` from its first fully connected one on.
        sharded: names of those that are spread.
        ranks: how many workers there are.
        scheme: of passes.
        inputs: what stays of inputs, see `taihu.worker.fc.tail.Tail`.
    """

    def __init__(
        self, chain: Sequence[Layer], sharded: Collection[str], *, ranks: int, scheme: Scheme, inputs: InputsKept
    ) -> None:
        self._stages = tuple(_stages(chain, sharded, ranks))
        self._rank = ranks - 1
        self._scheme: Scheme = scheme
        self._inputs = inputs

    def trained_bytes(self, batch: int) -> int:
        """Bytes for steps of `batch` examples of each rank."""
        passes = plan_passes(self._scheme, self._rank + 1, batch)
        shares = self._inputs != "all"
        memory = TailMemory(self._stages, passes, self._rank, batch, _DTYPE, shares=shares)
        kept = list(self._receive(passes, memory))
        own = sum(kept) if self._inputs == "own" else max(kept, default=0) if shares else 0
        features = batch * self._stages[0].inputs * _DTYPE.itemsize
        return memory.held_bytes + features + own + self._behind_bytes(passes, memory)

    def tested_bytes(self, examples: int) -> int:
        """Bytes while so many examples of one rank are tested."""
        counts = (*[0] * self._rank, examples)
        one = Pass(tuple(0 for _ in counts), counts, 0)
        return TailMemory(self._stages, (one,), self._rank, examples, _DTYPE).held_bytes

    def _receive(self, passes: Sequence[Pass], memory: TailMemory) -> Iterator[int]:
        """Take the room for sums over ranks as a backward does; yields bytes of own parts that are kept apart."""
        for position, (stage, own) in enumerate(zip(self._stages, memory.stages, strict=True)):
            if stage.columns is None:
                continue
            for one in passes:
                rows = one.stops[self._rank] - one.starts[self._rank]
                if position == 0:
                    own.received(one.first_row, rows, stage.inputs)
                    yield rows * stage.inputs * _DTYPE.itemsize
                    continue
                before = memory.stages[position - 1]
                dy = before.dy[before.rows(one)]
                own.received(0, *dy.shape)
                yield dy.nbytes

    def _behind_bytes(self, passes: Sequence[Pass], memory: TailMemory) -> int:
        """Bytes of elementwise layers that do not write over what they are given, of the largest pass."""
        held = 0
        for stage, own in zip(self._stages, memory.stages, strict=True):
            largest = max(own.dy[own.rows(one)].nbytes for one in passes)
            held += largest * sum(map(_buffers, stage.behind))
        return held


def _buffers(layer: Layer) -> int:
    """Buffers that an elementwise layer takes: for its output, and for the gradient of its input."""
    writes_over = isinstance(layer, ReLU) and layer.may_overwrite_gradient
    return layer.holds_output + (not writes_over)


def _stages(chain: Sequence[Layer], sharded: Collection[str], ranks: int) -> Iterator[Stage]:
    """The stages with weights that nobody reads."""
    linear = [position for position, layer in enumerate(chain) if isinstance(layer, Linear)]
    for start, stop in zip(linear, [*linear[1:], len(chain)], strict=True):
        layer = chain[start]
        assert isinstance(layer, Linear)  # noqa: S101
        inputs, units = layer.tensors[0].shape
        columns = all_bounds(units, ranks) if layer.name in sharded else None
        width = units if columns is None else columns[-1] - columns[-2]
        weight = np.broadcast_to(np.zeros((), _DTYPE), (inputs, width))
        yield Stage(layer.name, FcWeights(weight, None, weight[:1], None), columns, chain[start + 1 : stop])
