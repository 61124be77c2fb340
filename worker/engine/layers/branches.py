"""Layers beside one another: branches whose outputs are concatenated, and auxiliary classifiers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from taihu.core.base.errors import ModelError
from taihu.kernels.nn.elementwise import add, grains
from taihu.worker.engine.base.layer import Array, Layer, ParameterLayer, Run, Shape
from taihu.worker.engine.base.loss import Loss
from taihu.worker.engine.base.workspace import Workspace


class Concat(Layer):
    """The channels of all branches, one after another; every branch has the same input (Szegedy et al. 2015).

    Branches run in their order in the forward, and in the reverse order in the backward.
    """

    output_is_free = True
    gradient_is_free = True

    def __init__(self, branches: Sequence[Layer]) -> None:
        super().__init__()
        self._branches = tuple(branches)
        if not self._branches or not all(isinstance(branch, Layer) for branch in self._branches):
            raise ModelError(f"Concat: expected layers, at least one, seen {branches!r}")
        self._channels: tuple[int, ...] = ()

    @property
    def children(self) -> tuple[Layer, ...]:
        """The branches."""
        return self._branches

    @property
    def channels(self) -> tuple[int, ...]:
        """Channels, or features, of every branch."""
        return self._channels

    def build(self, name: str, input_shape: Shape) -> Shape:
        """(H, W, C) -> (H', W', sum of channels), or (features,) likewise."""
        self.name = name
        shapes = [branch.build(f"{name}.branch{i}", input_shape) for i, branch in enumerate(self._branches, start=1)]
        if len({shape[:-1] for shape in shapes}) > 1:
            raise ModelError(
                f"{name}: expected branches whose outputs differ in their last dimension alone, seen "
                f"{', '.join(map(str, shapes))}; change strides or padding"
            )
        for branch, shape in zip(self._branches, shapes, strict=True):
            branch.output_elements = math.prod(shape)
        self._channels = tuple(shape[-1] for shape in shapes)
        return (*shapes[0][:-1], sum(self._channels))

    def _parts(self) -> list[slice]:
        ends = accumulate(self._channels, initial=0)
        return [slice(begin, end) for begin, end in pairwise(ends)]

    def forward(self, x: Array, run: Run) -> Array:
        """Copy what the branches return side by side."""
        y: Array | None = None
        for branch, part in zip(self._branches, self._parts(), strict=True):
            made = branch.forward(x, run)
            if y is None:
                y = self.workspace.take("output", (*made.shape[:-1], sum(self._channels)), made.dtype)
            y[..., part] = made
        assert y is not None  # noqa: S101
        return y

    def backward(self, dy: Array, run: Run) -> Array:
        """Add the gradients of the branches."""
        dx: Array | None = None
        for i, part in reversed(list(enumerate(self._parts()))):
            gradient = self._branches[i].backward(self.workspace.copy(f"gradient{i}", dy[..., part]), run)
            if dx is None:
                dx = self.workspace.copy("input_gradient", gradient)
            else:
                run.team.run(add, grains(dx), dx.reshape(-1), gradient.reshape(-1), dx.reshape(-1))
        assert dx is not None  # noqa: S101
        return dx


class Auxiliary(Layer):
    """y = x; in training `head` classifies x as well, and its loss counts `weight` times (Szegedy et al. 2015).

    Its gradient joins that of x, which so learns from nearby. In evaluation there is no head.

    Args:
        head: layers from x to as many outputs as the model has.
        weight: of the head's loss in that of the model.
    """

    def __init__(self, head: Layer, weight: float = 0.3) -> None:
        super().__init__()
        if not 0 <= weight < math.inf:
            raise ModelError(f"Auxiliary: expected a weight of at least 0, seen {weight}")
        self._head, self._weight = head, weight
        self._outputs: Shape = ()
        # Until the model's loss is known: not in memory that layers share.
        self._kept = Workspace()
        self._output = self._gradient = np.empty(0)

    @property
    def children(self) -> tuple[Layer, ...]:
        """The head."""
        return (self._head,)

    @property
    def outputs(self) -> Shape:
        """The shape of the head's output for one sample."""
        return self._outputs

    @property
    def holds_output(self) -> bool:
        """Never: it returns its input."""
        return False

    @property
    def lasting_bytes(self) -> int:
        """Bytes of what the head said, and of its gradient."""
        return self._kept.held_bytes

    def build(self, name: str, input_shape: Shape) -> Shape:
        """Any shape, unchanged."""
        self.name = name
        self._outputs = self._head.build(f"{name}.head", input_shape)
        self._head.output_elements = math.prod(self._outputs)
        return input_shape

    def forward(self, x: Array, run: Run) -> Array:
        """Keep what the head says, in training."""
        if not run.context.training:
            for leaf in self._head.leaves():
                if isinstance(leaf, ParameterLayer):
                    run.before_layer(leaf.index)
            return x
        made = self._head.forward(x, run)
        if not run.recompute:
            self.keep(made)
        return x

    def keep(self, made: Array) -> None:
        """Keep what the head said, (B, *outputs), for `learn`; until then it learns nothing."""
        self._output = self._kept.copy("output", made)
        self._gradient = self._kept.take("gradient", made.shape, made.dtype)
        self._gradient[...] = 0

    @property
    def gradient(self) -> Array:
        """The gradient of the head's output, which `learn` wrote."""
        return self._gradient

    def learn(self, loss: Loss, targets: Array) -> tuple[float, Array]:
        """The weighted loss of the latest forward, and its gradient, which backward starts from and may be scaled."""
        value, gradient = loss(self._output, targets)
        np.multiply(gradient, gradient.dtype.type(self._weight), out=self._gradient)
        return self._weight * value, self._gradient

    def backward(self, dy: Array, run: Run) -> Array:
        """Add the head's gradient."""
        head = self._head.backward(self._gradient, run)
        dx = self.workspace.take("input_gradient", dy.shape, dy.dtype)
        run.team.run(add, grains(dx), dy.reshape(-1), head.reshape(-1), dx.reshape(-1))
        return dx
