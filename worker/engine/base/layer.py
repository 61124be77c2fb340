"""Layers: shape inference, forward, backward, and views into the arenas."""

from __future__ import annotations

import inspect
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from taihu.core.base.errors import ModelError
from taihu.core.model.layout import TensorSpec
from taihu.worker.engine.base.team import SOLO, Team
from taihu.worker.engine.base.workspace import Array, Workspace

__all__ = [
    "Array",
    "Layer",
    "ParameterLayer",
    "Rectification",
    "Run",
    "Shape",
    "StepContext",
    "check_initial",
    "fill_normal",
    "ignore_layer",
    "row_blocks",
    "shape_error",
]

Shape = tuple[int, ...]
Rectification = Literal["none", "forward", "step"]
_BUILT_IN: Final = "taihu.worker.engine."
_BLOCK_VALUES: Final = 1 << 18


@dataclass(frozen=True)
class StepContext:
    """Everything that randomness in a step may depend on.

    Attributes:
        training: batch statistics and dropout when true, running statistics and no dropout otherwise.
        seed: the seed of the run.
        step: index of the step.
        first_sample: index of this worker's first sample within the global batch (rank * batch).
        samples: (B,), int64, the index of each row, where they are not this worker's one after another.
        first_element: index of the first column, where a layer sees a range of the features only.
    """

    training: bool
    seed: int
    step: int
    first_sample: int
    samples: Array | None = None
    first_element: int = 0


def ignore_layer(index: int) -> None:
    """The hook of whoever does not listen."""


@dataclass(frozen=True)
class Run:
    """One forward or backward pass: what a layer may know about the step.

    Attributes:
        context: the step's identity.
        scratch: buffers shared by all layers, valid within one call of one layer only.
        before_layer: called with a layer's index in the layout right before its parameters are read in the forward.
        before_backward: called with it right before the backward reads its parameters and writes its gradient.
        gradient_ready: called with it when its gradient is complete and its parameters are not needed any more.
        recompute: this is a forward of a batch that the layer has seen in this step already, only to have again what
            its backward needs: what is returned has the same bits, and no state changes.
        team: the threads that compute; how many they are changes no bit.
        part_computed, wait_for_others: of an end that is spread over workers, see `StepHooks`.
    """

    context: StepContext
    scratch: Workspace = field(default_factory=Workspace)
    before_layer: Callable[[int], None] = ignore_layer
    before_backward: Callable[[int], None] = ignore_layer
    gradient_ready: Callable[[int], None] = ignore_layer
    recompute: bool = False
    team: Team = SOLO
    part_computed: Callable[[str, str, int], None] = lambda layer, part, rows: None
    wait_for_others: Callable[[Callable[[], None]], None] = lambda wait: wait()


class Layer(ABC):
    """A step of the computation, or a container of such steps; it computes in the dtype of its input.

    Activations are C-contiguous, (batch, height, width, channels), (batch, features) or (batch, time, features). A
    layer keeps what its backward needs from its latest forward, in buffers of its workspace. Arrays that it receives
    belong to others: it may read them until its backward is done, and writes to them only where its container allowed
    that.

    Attributes:
        name: unique in the model, set by `build`; "" before.
        workspace: where its buffers come from.
        output_elements: of one sample, set by the container's `build`; 0 before, and of the outermost layer.
        needs_input_gradient: when false, nobody looks at what `backward` returns.
        output_is_free: the layer itself does not read again what `forward` returned: the next one may overwrite it.
        gradient_is_free: the same for what `backward` returned.
        may_overwrite_input: set by the container: `forward` may write its result over its input.
        may_overwrite_gradient: set by the container: `backward` may write its result over `dy`.
        rectification: what the layer can do for a rectifier behind it: nothing, its forward, or its whole step.
        rectify: set by the container: the layer does that.
    """

    output_is_free: bool = False
    gradient_is_free: bool = False
    rectification: Rectification = "none"

    def __init__(self) -> None:
        self.name = ""
        self.workspace = Workspace()
        self.output_elements = 0
        self.needs_input_gradient = True
        self.may_overwrite_input = False
        self.may_overwrite_gradient = False
        self.rectify = False

    @property
    def kind(self) -> str:
        """The layer's name where its container numbers it, for example `conv`."""
        return type(self).__name__.lower()

    @abstractmethod
    def build(self, name: str, input_shape: Shape) -> Shape:
        """Take the name, infer the shapes and name the children.

        Args:
            name: unique in the model.
            input_shape: shape of one sample, without the batch axis.

        Returns:
            The shape of one sample of the output.

        Raises:
            ModelError: the layer cannot take such an input.
        """

    @abstractmethod
    def forward(self, x: Array, run: Run) -> Array:
        """Return the output for the batch `x`; the result is valid until the next forward."""

    @abstractmethod
    def backward(self, dy: Array, run: Run) -> Array:
        """Write the parameter gradients and return the gradient of the input, both for the latest forward."""

    @property
    def children(self) -> tuple[Layer, ...]:
        """The layers that this one is made of, in forward order; none if it is no container."""
        return ()

    @property
    def holds_output(self) -> bool:
        """Whether `forward` takes a buffer for what it returns."""
        return True

    @property
    def inner_elements(self) -> int:
        """Values of one sample that it holds besides its output, where they may be many more than that has."""
        return 0

    @property
    def lasting_bytes(self) -> int:
        """Bytes of buffers that it has beside its workspace, because they outlast others' use of that."""
        return 0

    @property
    def takes_tokens(self) -> int:
        """Inputs are whole numbers below this one; 0 where they are any numbers."""
        return 0

    @property
    def borrows(self) -> str:
        """The name of the layer whose parameters it uses; empty where it has its own, or none."""
        return ""

    def link(self, layers: Mapping[str, Layer]) -> None:  # noqa: B027 - most need no other
        """Find what it `borrows` among the leaves of the model, by name, once all have been built."""

    def tree(self) -> Iterator[Layer]:
        """This layer and all below it."""
        yield self
        for child in self.children:
            yield from child.tree()

    def leaves(self) -> Iterator[Layer]:
        """The layers without children below this one, or this one alone, in forward order."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    def follow(self, layer: Layer) -> None:  # noqa: B027 - most leave nothing to others
        """Take the place behind `layer`, whose output this one alone reads, and leave to it what it can do."""

    def skip_input_gradient(self) -> None:
        """Say that nobody needs the gradient of the input: what `backward` returns is not looked at."""
        self.needs_input_gradient = False

    def buffers(self) -> dict[str, Array]:
        """State that is saved with the parameters but not trained, by name within the layer."""
        return {}

    def definition(self) -> dict[str, Any] | None:
        """The layer as JSON, which makes it again: its class and arguments; see `build_from_definition`.

        None for a layer of the user's own, and for one that holds such a layer. The built-in ones keep every argument
        of their constructor as an attribute of the same name behind an underscore.
        """
        if not all(type(layer).__module__.startswith(_BUILT_IN) for layer in self.tree()):
            return None
        arguments = inspect.signature(type(self)).parameters
        return {"layer": type(self).__name__, **{name: _plain(getattr(self, f"_{name}")) for name in arguments}}


class ParameterLayer(Layer):
    """A layer with parameters; subclasses write `compute` and `differentiate`, and `tensors` in `build`.

    Attributes:
        tensors: the parameters in the order in which they lie in the arena.
        index: place of the layer in the layout, set by the model.
        parameters: views into the parameter arena, by tensor name.
        gradients: views into the gradient arena, by tensor name.
        initial: writes the initial parameters, and the state in `buffers`, in place of random ones where it is set.
            What is bound are the columns that it is given, of the last axis.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensors: tuple[TensorSpec, ...] = ()
        self.index = -1
        self.parameters: dict[str, Array] = {}
        self.gradients: dict[str, Array] = {}
        self.initial: Callable[[ParameterLayer, slice], None] | None = None

    def bind(self, parameters: Array, gradients: Array) -> None:
        """Keep views of this layer's part of the two arenas, both one-dimensional."""
        offset = 0
        for tensor in self.tensors:
            part = slice(offset, offset + tensor.elements)
            self.parameters[tensor.name] = parameters[part].reshape(tensor.shape)
            self.gradients[tensor.name] = gradients[part].reshape(tensor.shape)
            offset += tensor.elements

    def initialize(self, seed: int) -> None:
        """Write the bound parameters: what depends on `seed` and the layer's name only, or what `initial` says."""
        if self.initial is not None:
            self.initial(self, slice(None))
        else:
            self.fill(self.generator(seed))

    def generator(self, seed: int) -> np.random.Generator:
        """The generator of the initial parameters, at its beginning."""
        return np.random.default_rng((seed, zlib.crc32(self.name.encode())))

    def forward(self, x: Array, run: Run) -> Array:
        """Announce the read of the parameters, then compute."""
        run.before_layer(self.index)
        return self.compute(x, run)

    def backward(self, dy: Array, run: Run) -> Array:
        """Differentiate, then announce the gradient."""
        run.before_backward(self.index)
        dx = self.differentiate(dy, run)
        run.gradient_ready(self.index)
        return dx

    @abstractmethod
    def fill(self, generator: np.random.Generator) -> None:
        """Write initial values into `parameters`."""

    @abstractmethod
    def compute(self, x: Array, run: Run) -> Array:
        """The forward pass."""

    @abstractmethod
    def differentiate(self, dy: Array, run: Run) -> Array:
        """Overwrite `gradients` and return the gradient of the input."""


def _plain(argument: object) -> object:
    """A constructor's argument as JSON has it."""
    if isinstance(argument, Layer):
        return argument.definition()
    if isinstance(argument, tuple):
        return [_plain(each) for each in argument]
    return argument.item() if isinstance(argument, np.generic) else argument


def fill_normal(
    target: Array,
    generator: np.random.Generator,
    deviation: float,
    *,
    columns: slice = slice(None),
    of: int | None = None,
) -> None:
    """Write normal values; they are drawn in float32, so that both dtypes start from the same ones.

    Few rows are drawn at a time: the stream is the same, and no memory is taken for all of them.

    Args:
        target: float32 or float64, of any shape.
        generator: of the values, in C order.
        deviation: their standard deviation.
        columns: where `target` are these of the last axis alone, of which `of` are drawn.
        of: by default those of `target`.
    """
    rows_of = np.atleast_2d(target)
    drawn = (*rows_of.shape[:-1], rows_of.shape[-1] if of is None else of)
    for rows in row_blocks(drawn):
        values = generator.standard_normal((rows.stop - rows.start, *drawn[1:]), dtype=np.float32)
        values *= np.float32(deviation)
        rows_of[rows] = values[..., columns]


def check_initial(kind: str, gain: float, deviation: float | None) -> None:
    """Raise ModelError unless weights can begin with such a variance, of a layer of this kind."""
    if gain < 0:
        raise ModelError(f"{kind}: expected a gain of at least 0, seen {gain}")
    if deviation is not None and deviation < 0:
        raise ModelError(f"{kind}: expected a deviation of at least 0, seen {deviation}")


def row_blocks(shape: Shape) -> Iterator[slice]:
    """The first axis of `shape` in order, in parts of about a megabyte of float32, and of a row at least."""
    at_once = max(1, _BLOCK_VALUES // max(1, math.prod(shape[1:])))
    for first in range(0, shape[0], at_once):
        yield slice(first, min(first + at_once, shape[0]))


def shape_error(name: str, expected: str, seen: Sequence[int], remedy: str) -> ModelError:
    """The error of a layer that cannot take an input of the shape `seen`, without the batch axis."""
    return ModelError(f"{name}: expected an input of {expected}, seen {tuple(seen)}; {remedy}")
