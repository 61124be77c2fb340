"""One fully connected layer of the tail, with the elementwise layers behind it, as passes go through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from taihu.kernels.nn.elementwise import add_bias, column_sums
from taihu.worker.engine.base.layer import Array, Layer, Run
from taihu.worker.fc.passes import Pass

ComputedPart = Literal["forward", "input gradient", "weight gradients"]
"""A piece of a layer that is computed at a time, with the elementwise layers behind it."""


def ignore_gradient(start: int, gradient: Array) -> None:
    """The gradient stays where it was written."""


class Multiply(Protocol):
    """A product of matrices."""

    def __call__(self, a: Array, b: Array, out: Array) -> None:
        """`out` = a b."""
        ...


def product(a: Array, b: Array, out: Array) -> None:
    """`out` = a b."""
    np.matmul(a, b, out=out)


@dataclass(frozen=True)
class FcWeights:
    """Views of what one rank holds of a layer: `weight` (K, n), `bias` (n,) or None, and their gradients.

    `weight_gradient` has room for at least one row of (K, n): for as many as are computed at once.
    """

    weight: Array
    bias: Array | None
    weight_gradient: Array
    bias_gradient: Array | None


@dataclass(frozen=True)
class Stage:
    """A layer of K inputs and N outputs.

    `columns` are the bounds of every rank's columns, N at the end, where the layer is sharded, else None. `behind`
    are its elementwise layers: they see all columns of the own rows or, behind a sharded layer, the own columns of
    all rows of a pass. `multiply` makes its three products.
    """

    name: str
    weights: FcWeights
    columns: tuple[int, ...] | None
    behind: Sequence[Layer]
    multiply: Multiply = product

    @property
    def inputs(self) -> int:
        """K."""
        return len(self.weights.weight)

    @property
    def width(self) -> int:
        """Number of columns that this rank computes."""
        return int(self.weights.weight.shape[1])

    def forward(self, x: Array, y: Array, run: Run) -> Array:
        """`y` = x W + b, then the elementwise layers; returns what they made of it."""
        if not len(x):
            return y
        self.multiply(x, self.weights.weight, y)
        if self.weights.bias is not None:
            add_bias(y, self.weights.bias)
        for layer in self.behind:
            y = layer.forward(y, run)
        return y

    def through_behind(self, dy: Array, run: Run) -> None:
        """Replace `dy`, the gradient of the stage's output, by that of the layer's own."""
        if not len(dy):
            return
        gradient = dy
        for layer in reversed(self.behind):
            gradient = layer.backward(gradient, run)
        if gradient is not dy:
            dy[...] = gradient

    def input_gradient(self, dy: Array, dx: Array) -> None:
        """`dx` = dy W^T."""
        self.multiply(dy, self.weights.weight.T, dx)

    def weight_gradients(self, x: Array, dy: Array, take: Callable[[int, Array], None] = ignore_gradient) -> None:
        """Overwrite the gradients by x^T dy and the column sums of dy, part by part.

        `take(start, gradient)` is called with each part, flat, and the first of the layer's own values that it is of,
        before the next one is written.
        """
        room = self.weights.weight_gradient
        for first in range(0, self.inputs, len(room)):
            rows = room[: self.inputs - first]
            self.multiply(x[:, first : first + len(rows)].T, dy, rows)
            take(first * self.width, rows.reshape(-1))
        if self.weights.bias_gradient is not None:
            sums = np.zeros(self.width, dtype=np.float64)
            if len(dy):
                column_sums(dy, sums)
            self.weights.bias_gradient[...] = sums
            take(self.inputs * self.width, self.weights.bias_gradient)

    def run_of(self, run: Run, one: Pass, rank: int, batch: int) -> Run:
        """The run as the elementwise layers see it: the samples and the columns that pass them."""
        if self.columns is None:
            first = rank * batch
            samples = np.arange(first + one.starts[rank], first + one.stops[rank])
            first_element = 0
        else:
            ranges = zip(one.starts, one.stops, strict=True)
            samples = np.concatenate([np.arange(start, stop) + r * batch for r, (start, stop) in enumerate(ranges)])
            first_element = self.columns[rank]
        return replace(run, context=replace(run.context, samples=samples, first_element=first_element))


@dataclass(frozen=True)
class StagePart:
    """The share of a layer that one rank computes in a step, in numbers alone.

    Attributes:
        name: of the layer.
        inputs: K.
        width: columns of this rank, all where the layer is not spread.
        bias: whether there is one.
        behind: names of the elementwise layers that follow.
        rows: examples of each pass, which go forward and back.
        gradient_rows: examples of which weight gradients are made at once.
    """

    name: str
    inputs: int
    width: int
    bias: bool
    behind: tuple[str, ...]
    rows: tuple[int, ...]
    gradient_rows: tuple[int, ...]


class StageMemory:
    """Memory of a stage for all passes of a step: inputs, output gradients `dy`, and what is sent and received.

    A sharded layer sees the rows of all ranks, any other the own ones. With `shared`, flat, its inputs lie there,
    where other stages' lie too: those of a pass until another stage's of the same pass are written.
    """

    def __init__(
        self,
        stage: Stage,
        passes: Sequence[Pass],
        rank: int,
        batch: int,
        dtype: np.dtype[np.floating],
        *,
        shared: Array | None = None,
    ) -> None:
        sharded = stage.columns is not None
        self._sharded = sharded
        self._rank = rank
        ranks = len(passes[0].starts)
        rows = all_rows(passes) if sharded else batch
        self.is_shared = shared is not None
        self._pitch = stage.inputs if shared is None else len(shared) // rows
        self._x = np.zeros(rows * stage.inputs, dtype=dtype) if shared is None else shared
        self._shape = rows, stage.inputs
        self.dy = np.zeros((rows, stage.width), dtype=dtype)
        self.y = np.empty((rows, stage.width), dtype=dtype)
        self.dx = np.empty((rows, stage.inputs), dtype=dtype)
        self._ranks = ranks
        self._received: dict[tuple[int, ...], Array] = {}
        self._dtype = dtype

    def x(self, one: Pass | None) -> Array:
        """The inputs of a pass, (rows, K), or of all passes."""
        rows, inputs = self._shape
        if one is None:
            return self._x[: rows * inputs].reshape(rows, inputs)
        place = self.rows(one)
        first, count = place.start, place.stop - place.start
        start = first * self._pitch
        return self._x[start : start + count * inputs].reshape(count, inputs)

    def rows(self, one: Pass) -> slice:
        """The place of a pass's rows."""
        if self._sharded:
            return slice(one.first_row, one.first_row + one.rows[-1])
        return slice(one.starts[self._rank], one.stops[self._rank])

    def received(self, key: int, rows: int, columns: int) -> Array:
        """Room for everybody's terms of a sum, shape (P, rows, columns); the same for the same `key`."""
        shape = (self._ranks, rows, columns)
        if (key, *shape) not in self._received:
            self._received[key, *shape] = np.empty(shape, dtype=self._dtype)
        return self._received[key, *shape]

    @property
    def held_bytes(self) -> int:
        """Bytes of its own arrays, with those of `received` so far."""
        own = [] if self.is_shared else [self._x]
        return sum(array.nbytes for array in (*own, self.dy, self.y, self.dx, *self._received.values()))


def all_rows(passes: Sequence[Pass]) -> int:
    """The examples of all ranks in all passes."""
    return passes[-1].first_row + passes[-1].rows[-1]


class TailMemory:
    """Memory of `stages` for all of `passes`, in which this rank has `batch` examples; `logits` are theirs.

    With `shares`, the inputs of sharded stages take the same memory one after another.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        passes: Sequence[Pass],
        rank: int,
        batch: int,
        dtype: np.dtype[np.floating],
        *,
        shares: bool = False,
    ) -> None:
        self.batch = batch
        widest = max((stage.inputs for stage in stages if stage.columns is not None), default=0)
        shared = np.zeros(all_rows(passes) * widest, dtype=dtype) if shares else None
        self.stages = [
            StageMemory(stage, passes, rank, batch, dtype, shared=shared if stage.columns is not None else None)
            for stage in stages
        ]
        self._shared_bytes = 0 if shared is None else shared.nbytes
        last = stages[-1]
        classes = last.width if last.columns is None else last.columns[-1]
        self.logits = np.empty((batch, classes), dtype=dtype)

    @property
    def held_bytes(self) -> int:
        """Bytes of all its arrays."""
        return self._shared_bytes + self.logits.nbytes + sum(stage.held_bytes for stage in self.stages)
