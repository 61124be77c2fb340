"""Training a chain of layers with little memory: activations are computed again when backward needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from taihu.core.base.errors import ModelError
from taihu.worker.engine.base.layer import Array, Layer, Run
from taihu.worker.engine.base.workspace import BufferPool
from taihu.worker.engine.layers.containers import Sequential
from taihu.worker.engine.recompute.kept_inputs import KeptInputs, SpilledInputs
from taihu.worker.engine.recompute.segments import cut, usual_segments


def segmented(chain: Sequential, segments: int | None, *, spill: bool, stop: int | None = None) -> SegmentedChain:
    """`chain`, which has been built, in `segments` segments, or in the best number up to about its square root.

    With `stop`, only the layers before that one.

    Raises:
        ModelError: there are not so many layers, or no segments.
        RunError: the file of spilled inputs cannot be made.
    """
    layers = chain.children[:stop]
    if segments is not None and not 1 <= segments <= len(layers):
        which = "of the model's outermost Sequential" if stop is None else "before those that are sharded"
        raise ModelError(
            f"train.recompute_segments: expected 1 to {len(layers)}, the number of layers {which}, seen {segments}; "
            "leave it out to have the model cut where it needs the least memory"
        )
    bounds = _bounds(layers, segments, spill=spill)
    inputs = SpilledInputs() if spill else KeptInputs()
    return SegmentedChain(layers, chain.first_differentiated, bounds, inputs)


def _bounds(layers: Sequence[Layer], segments: int | None, *, spill: bool) -> tuple[int, ...]:
    # A layer's backward takes about as much again for the gradients of its outputs.
    sizes = [2 * sum(part.output_elements for part in layer.tree() if part.holds_output) for layer in layers]
    inputs = [0, *(layer.output_elements for layer in layers[:-1])]
    if spill:
        # All of them have the same two buffers.
        inputs = [2 * elements for elements in inputs]
    counts = range(1, usual_segments(len(layers)) + 1) if segments is None else range(segments, segments + 1)
    return cut(sizes, inputs, max if spill else sum, counts)


class SegmentedChain:
    """Runs the layers of a chain segment by segment (Chen et al. 2016; ZeRO-R, Rajbhandari et al. 2020, section 6).

    A training forward keeps the input of every segment and nothing else. Before the backward of a segment its forward
    is run again from there, with the same result: a layer depends on its input, its parameters and the step's context
    alone, and `Run.recompute` tells those that also change a state. The last segment's activations are still there
    when its backward begins: its forward is run once.

    All segments' layers use the same memory one after another; what passes from one to the next is copied out of it.

    Args:
        layers: in forward order; what they return is valid as long as their segment is the one that is run.
        first_differentiated: the index of the layer that backward ends with.
        bounds: segment k is made of layers[bounds[k]] to layers[bounds[k + 1] - 1].
        inputs: where the inputs of segments are kept.
    """

    def __init__(
        self, layers: Sequence[Layer], first_differentiated: int, bounds: Sequence[int], inputs: KeptInputs
    ) -> None:
        self._layers = layers
        self._first_differentiated = first_differentiated
        self._segments = tuple(pairwise(bounds))
        self._inputs = inputs
        self._first_input: Array | None = None
        self._pool = BufferPool()
        for layer in layers:
            for part in layer.tree():
                part.workspace = self._pool.workspace()
        for start, _ in self._segments:
            # The segment's forward reads its input twice.
            self._layers[start].may_overwrite_input = False

    @property
    def segments(self) -> tuple[tuple[int, int], ...]:
        """The segments in forward order: of each the index of its first layer, and of the one behind its last."""
        return self._segments

    @property
    def run_again(self) -> tuple[tuple[int, int], ...]:
        """The segments whose forward backward runs again, in its order: not the last one, nor what is not reached."""
        first, end = self._first_differentiated, len(self._layers)
        return tuple((start, stop) for start, stop in reversed(self._segments) if first < stop < end)

    @property
    def held_bytes(self) -> int:
        """Memory of all buffers: those of the layers, and those of kept inputs."""
        return self._pool.held_bytes + self._inputs.held_bytes

    def forward(self, x: Array, run: Run) -> Array:
        """Return the output for the batch `x`, valid until the next forward or backward; see `Layer.forward`."""
        self._inputs.clear()
        self._first_input = None
        return self._train(x, run) if run.context.training else self._evaluate(x, run)

    def _train(self, x: Array, run: Run) -> Array:
        self._first_input = x
        for segment, (start, stop) in enumerate(self._segments):
            if segment:
                x = self._inputs.push(x)
            x = self._compute(start, stop, x, run)
        return x

    def _evaluate(self, x: Array, run: Run) -> Array:
        # Batches are larger than in training, but no output is needed by anyone but the next layer.
        for position in range(len(self._layers)):
            if position:
                self._inputs.clear()
                x = self._inputs.push(x)
            x = self._compute(position, position + 1, x, run)
        return x

    def _compute(self, start: int, stop: int, x: Array, run: Run) -> Array:
        self._pool.reset()
        for layer in self._layers[start:stop]:
            x = layer.forward(x, run)
        return x

    def backward(self, dy: Array, run: Run) -> None:
        """Write the parameter gradients for the latest forward, a training one.

        `run.before_layer` is called in the forward of segments that are computed again.
        """
        again = replace(run, recompute=True)
        for segment, (start, stop) in reversed(list(enumerate(self._segments))):
            x = self._inputs.pop() if segment else self._first_input
            assert x is not None  # noqa: S101
            if stop < len(self._layers):
                self._compute(start, stop, x, again)
            for layer in reversed(self._layers[max(start, self._first_differentiated) : stop]):
                dy = layer.backward(dy, run)
            if start <= self._first_differentiated:
                break
            # The gradient of the segment's input takes the place of that input: both are out of the pool.
            np.copyto(x, dy)
            dy = x
        self._first_input = None
