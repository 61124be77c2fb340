"""Bases of the layers on the processor model, and what several of them do."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
from typing_extensions import override

from taihu.kernels.sw26010 import passes
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.streams import execute_stream, plan_slabs
from taihu.worker.engine.base.layer import Array, Layer, ParameterLayer, Run


class ProcessorLayer(ABC):
    """One layer on the processor.

    Attributes:
        layer: the engine's, whose parameters, gradients and buffers are used.
        forward_ledger, backward_ledger: of the latest step.
    """

    def __init__(self, layer: Layer, core_groups: int) -> None:
        self.layer = layer
        self.core_groups = core_groups
        self.forward_ledger = Ledger()
        self.backward_ledger = Ledger()

    @property
    def children(self) -> tuple[ProcessorLayer, ...]:
        """The layers that it is made of."""
        return ()

    @abstractmethod
    def forward(self, x: Array, run: Run) -> Array:
        """The output for the batch `x`, in a new array."""

    @abstractmethod
    def backward(self, dy: Array, run: Run) -> Array:
        """Write the gradients of parameters; return that of the input."""


class ParameterProcessorLayer(ProcessorLayer):
    """A layer with parameters: it announces what it reads and has done, as `ParameterLayer` does."""

    def __init__(self, layer: ParameterLayer, core_groups: int) -> None:
        super().__init__(layer, core_groups)
        self._own = layer
        self._input = np.empty(0)

    @override
    def forward(self, x: Array, run: Run) -> Array:
        run.before_layer(self._own.index)
        self._input = x
        return self.compute(x, run)

    @override
    def backward(self, dy: Array, run: Run) -> Array:
        run.before_backward(self._own.index)
        dx = self.differentiate(self._input, dy, run)
        run.gradient_ready(self._own.index)
        return dx

    @abstractmethod
    def compute(self, x: Array, run: Run) -> Array:
        """Forward."""

    @abstractmethod
    def differentiate(self, x: Array, dy: Array, run: Run) -> Array:
        """Backward."""


def rows_of(activation: Array) -> Array:
    """An activation (B, H, W, C) as rows of channels, a view."""
    return activation.reshape(-1, activation.shape[-1])


def copy_rows(source: Array, target: Array, core_groups: int) -> Ledger:
    """Copy an activation, or a range of its channels, as rows of pixels."""
    shape = (math.prod(source.shape[:3]), source.shape[-1])
    given, made = source.reshape(shape), np.empty(shape, target.dtype)

    def move(local: Array, result: Array) -> None:
        result[...] = local

    ledger = Ledger()
    for own, plan in plan_slabs(passes.COPY, *shape, core_groups=core_groups):
        ledger = ledger.then(execute_stream(plan, [given[:, own]], [made[:, own]], move))
    target[...] = made.reshape(target.shape)
    return ledger
