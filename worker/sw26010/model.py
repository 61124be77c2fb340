"""A whole training step on the processor model, behind the interface of the engine's model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from taihu.kernels.optim import SgdRule
from taihu.kernels.sw26010.layer_costs import LayerCost
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.machine import CORE_GROUPS
from taihu.kernels.sw26010.passes import sgd_update
from taihu.worker.engine.base.layer import Array, Run, StepContext
from taihu.worker.engine.models.model import Model, StepHooks
from taihu.worker.sw26010.layer import ProcessorLayer
from taihu.worker.sw26010.layers import on_processor
from taihu.worker.sw26010.times import LayerTime


class ProcessorModel:
    """Trains a bound model of the engine on the SW26010 model: same arenas, same hooks, same results within rounding.

    The loss, of few elements, is the MPE's, and takes no time. This computes every tile for itself: it is for
    showing that what is timed also computes, not for training.

    Args:
        model: built and bound, with float32 arenas.
        core_groups: that share a batch, 1 to 4.

    Raises:
        ModelError: it has a layer that the processor model has not.
    """

    def __init__(self, model: Model, core_groups: int = CORE_GROUPS) -> None:
        self._layers = tuple(on_processor(layer, core_groups) for layer in model.chain)
        self._core_groups = core_groups
        self._loss = model.differentiated_loss
        # Backward ends with the first layer that has parameters.
        self._first = next(i for i, layer in enumerate(model.chain) if not layer.needs_input_gradient)

    def train(self, inputs: Array, targets: Array, context: StepContext, hooks: StepHooks) -> float:
        """Train a step as `Model.train`: forward, the model's loss, and backward into the gradient arena.

        Args:
            inputs: (B, *input_shape).
            targets: as the loss takes them.
            context: the step; training.
            hooks: what is told.
        """
        run = Run(
            context,
            before_layer=hooks.before_layer,
            before_backward=hooks.before_backward,
            gradient_ready=hooks.gradient_ready,
        )
        x = np.ascontiguousarray(inputs, np.float32)
        for layer in self._layers:
            x = layer.forward(x, run)
        loss, gradients = self._loss(x, targets)
        hooks.forwarded(loss)
        if (scale := hooks.loss_scale()) != 1.0:
            for gradient in gradients:
                np.multiply(gradient, gradient.dtype.type(scale), out=gradient)
        dy = gradients[0]
        for layer in reversed(self._layers[self._first :]):
            dy = layer.backward(dy, run)
        return loss

    def update(self, parameters: Array, gradient: Array, buffer: Array | None, rule: SgdRule) -> Ledger:
        """SGD on whole arenas, in place; see `taihu.kernels.sw26010.passes.sgd_update`."""
        return sgd_update(parameters, gradient, buffer, rule, core_groups=self._core_groups)

    def layer_times(self) -> tuple[LayerTime, ...]:
        """Times of the latest step, as it was counted; see `taihu.worker.sw26010.times.layer_times`."""
        return tuple(
            LayerTime(each.layer.name, each.layer.kind, LayerCost(each.forward_ledger, each.backward_ledger))
            for layer in self._layers
            for each in _inside_out(layer)
            if each.forward_ledger.cycles or each.backward_ledger.cycles
        )


def _inside_out(layer: ProcessorLayer) -> Iterator[ProcessorLayer]:
    for child in layer.children:
        yield from _inside_out(child)
    yield layer
