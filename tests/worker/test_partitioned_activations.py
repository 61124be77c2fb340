"""ZeRO-R's partitioned activations (Pa): a transformer whose ranks divide each layer, and the inputs that they keep.

No job trains so, for its workers compute on data of their own. The engine's layers, segments and transfers between
ranks are enough to show the claim: Rajbhandari et al. 2020, sections 6.1 and 8.1, on Shoeybi et al. 2019, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.parts_network import MemoryMover, MemoryNetwork
from typing_extensions import override

from taihu.allreduce.parts.shards import gather_rows, scatter_rows, sum_terms
from taihu.core.planner.partition import all_bounds
from taihu.worker.engine import Layer, LayerNorm, Linear, Model, Residual, Sequential, StepContext
from taihu.worker.engine.base.layer import Run, Shape
from taihu.worker.engine.layers.attention import CausalAttention
from taihu.worker.engine.layers.embedding import Embedding, PositionEmbedding
from taihu.worker.engine.layers.gelu import GELU
from taihu.worker.engine.models.transformer import transformer
from taihu.worker.engine.recompute.chain import SegmentedChain
from taihu.worker.engine.recompute.kept_inputs import KeptInputs

Array = NDArray[Any]

BATCH, TIME, WIDTH, HEADS, TOKENS, LAYERS = 3, 8, 16, 4, 11, 3
INPUT = BATCH * TIME * WIDTH
"""Values of a layer's input: b s h."""


def sum_over_ranks(mover: MemoryMover, values: Array) -> None:
    """Replace `values` by the sum of those of all ranks, by a reduce-scatter and an all-gather."""
    whole = values.reshape(-1, 1)
    rows = all_bounds(len(whole), mover.size)
    own = whole[rows[mover.rank] : rows[mover.rank + 1]]
    received = np.empty((mover.size, *own.shape), whole.dtype)
    mover.start("reduce", scatter_rows(mover.rank, rows, whole, received))()
    sum_terms(mover.rank, own.copy(), received, own)
    mover.start("gather", gather_rows(mover.rank, rows, whole))()


class Between(Layer):
    """The seam of a layer that ranks divide: sums over ranks forward, behind it, or backward, before it."""

    def __init__(self, mover: MemoryMover, *, sums_forward: bool) -> None:
        super().__init__()
        self._mover = mover
        self._sums_forward = sums_forward

    @override
    def build(self, name: str, input_shape: Shape) -> Shape:
        self.name = name
        return input_shape

    @override
    def forward(self, x: Array, run: Run) -> Array:
        return self._summed(x, "output") if self._sums_forward else x

    @override
    def backward(self, dy: Array, run: Run) -> Array:
        return dy if self._sums_forward else self._summed(dy, "input_gradient")

    def _summed(self, values: Array, name: str) -> Array:
        own = self.workspace.copy(name, values)
        sum_over_ranks(self._mover, own)
        return own


class DividedInputs(KeptInputs):
    """Of inputs that all ranks have alike each keeps a part; they are gathered when they are popped.

    What was pushed last is needed first, and stays whole.
    """

    def __init__(self, mover: MemoryMover) -> None:
        super().__init__()
        self._mover = mover
        self._latest: Array | None = None
        self._parts: list[tuple[Array, Shape]] = []

    @override
    def clear(self) -> None:
        self._latest = None
        self._parts.clear()

    @override
    def push(self, x: Array) -> Array:
        if self._latest is not None:
            rows = self._rows(self._latest.size)
            own = self._latest.reshape(-1)[rows[self._mover.rank] : rows[self._mover.rank + 1]]
            kept = self._buffers.copy(f"part {len(self._parts)}", own)
            self._parts.append((kept, self._latest.shape))
        self._latest = self._buffers.copy(self._turn(), x)
        return self._latest

    @override
    def pop(self) -> Array:
        if self._latest is not None:
            latest, self._latest = self._latest, None
            return latest
        own, shape = self._parts.pop()
        x = self._buffers.take(self._turn(), shape, own.dtype)
        whole, rows = x.reshape(-1, 1), self._rows(x.size)
        whole[rows[self._mover.rank] : rows[self._mover.rank + 1], 0] = own
        self._mover.start("gather inputs", gather_rows(self._mover.rank, rows, whole))()
        return x

    def _rows(self, values: int) -> Sequence[int]:
        return all_bounds(values, self._mover.size)

    def _turn(self) -> str:
        return str(len(self._parts) % 2)


def of_rank(mover: MemoryMover) -> Sequential:
    """The share of a rank in `transformer`: two pairs of linear layers a block, by columns and then by rows."""
    size, first = mover.size, mover.rank == 0
    layers: list[Layer] = [Embedding(TOKENS, WIDTH), PositionEmbedding()]
    for _ in range(LAYERS):
        attention: list[Layer] = [Linear(3 * WIDTH // size), CausalAttention(HEADS // size)]
        perceptron: list[Layer] = [Linear(4 * WIDTH // size), GELU()]
        for body in (attention, perceptron):
            before, behind = Between(mover, sums_forward=False), Between(mover, sums_forward=True)
            # The bias belongs to the sum: one rank has it.
            parts = [LayerNorm(), before, *body, Linear(WIDTH, bias=first), behind]
            layers.append(Residual(Sequential(parts)))
    return Sequential([*layers, LayerNorm(), Linear(TOKENS, bias=False)])


def share(of: str, whole: Array, rank: int, size: int) -> Array:
    """The part that a rank has of a tensor of the whole model."""
    if of.endswith((".body.fc1:weight", ".body.fc1:bias")):
        if whole.shape[-1] != 3 * WIDTH:
            return np.split(whole, size, axis=-1)[rank]
        by_head = whole.reshape(*whole.shape[:-1], 3, HEADS, -1)
        return np.split(by_head, size, axis=-2)[rank].reshape(*whole.shape[:-1], -1)
    return np.split(whole, size)[rank] if of.endswith(".body.fc2:weight") else whole


@dataclass
class Trained:
    """The outcome of a step of one rank: outputs, gradients by tensor, and what its inputs held."""

    outputs: Array
    gradients: dict[str, Array]
    held_bytes: int


def bound(root: Sequential) -> tuple[Model, Array, Array]:
    model = Model(root, (TIME,), TOKENS)
    parameters, gradients = np.zeros((2, model.layout.elements))
    model.bind(parameters, gradients)
    return model, parameters, gradients


def tensors(model: Model, what: str) -> dict[str, Array]:
    return {
        f"{layer.name}:{name}": values
        for layer in model.parameter_layers
        for name, values in getattr(layer, what).items()
    }


TOKENS_SEEN = np.random.default_rng(5).integers(0, TOKENS, (BATCH, TIME)).astype(float)
SLOPES = np.random.default_rng(6).standard_normal((BATCH, TIME, TOKENS))
CONTEXT = StepContext(training=True, seed=1, step=1, first_sample=0)


def in_one_process() -> tuple[Array, dict[str, Array], dict[str, Array]]:
    """Outputs, parameters and gradients of the whole model."""
    model, parameters, _ = bound(transformer(TOKENS, blocks=LAYERS, width=WIDTH, heads=HEADS, tied=False))
    parameters[...] = np.random.default_rng(7).standard_normal(parameters.shape) * 0.3
    outputs = model.forward(TOKENS_SEEN, CONTEXT).copy()
    model.backward(SLOPES)
    return outputs, tensors(model, "parameters"), tensors(model, "gradients")


def one_rank(mover: MemoryMover, inputs: KeptInputs, parameters: dict[str, Array]) -> Trained:
    model, *_ = bound(of_rank(mover))
    for name, values in tensors(model, "parameters").items():
        values[...] = share(name, parameters[name], mover.rank, mover.size)
    bounds = (0, *range(2, 2 * LAYERS + 3, 2), 2 * LAYERS + 4)
    chain = SegmentedChain(model.chain, 0, bounds, inputs)
    run = Run(CONTEXT)
    outputs = chain.forward(TOKENS_SEEN, run).copy()
    chain.backward(SLOPES.copy(), run)
    return Trained(outputs, tensors(model, "gradients"), inputs.held_bytes)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_divided_inputs_cost_a_twelfth_of_what_the_layer_moves(size: int) -> None:
    outputs, parameters, gradients = in_one_process()
    moved, held = {}, {}
    for name in ("whole", "divided"):
        network, is_divided = MemoryNetwork(size), name == "divided"

        def work(mover: MemoryMover, is_divided: bool = is_divided) -> Trained:
            return one_rank(mover, DividedInputs(mover) if is_divided else KeptInputs(), parameters)

        results = network.run(work)
        for rank, trained in enumerate(results):
            np.testing.assert_allclose(trained.outputs, outputs, rtol=1e-9, atol=1e-12)
            for each, gradient in trained.gradients.items():
                own = share(each, gradients[each], rank, size)
                np.testing.assert_allclose(gradient, own, rtol=1e-8, atol=1e-11, err_msg=each)
        moved[name], held[name] = sum(network.received_bytes) / 8 / size, results[0].held_bytes / 8
    # Six sums a layer: two forward, two that are computed again, two of gradients; each is moved twice.
    others = (size - 1) / size
    assert moved["whole"] == pytest.approx(LAYERS * 12 * INPUT * others)
    assert moved["divided"] - moved["whole"] == pytest.approx(LAYERS * INPUT * others)
    # The inputs of all layers, and of what follows; divided, two of them are whole at a time.
    assert held["whole"] == (LAYERS + 1) * INPUT
    assert held["divided"] == 2 * INPUT + LAYERS * math.ceil(INPUT / size)
