"""Training steps of a model of the zoo, for benchmarks: no exchange, one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from taihu.core.model.model_defaults import usual_input
from taihu.core.system.clocks import perf_counter
from taihu.kernels.optim import SgdRule, sgd_momentum
from taihu.worker.engine import Array, Layer, ParameterLayer, StepContext, StepHooks, build_model

MOMENTUM: Final = 0.9
# Small, so that a model that is trained on the same batch again and again stays where numbers are ordinary.
LEARNING_RATE: Final = 1e-4


def example_batch(name: str, batch: int) -> tuple[Array, Array]:
    """Images (batch, height, width, 3), fp32, and labels as model `name` takes them: always the same ones.

    Of a model of text, tokens (batch, time), and those that follow.
    """
    shape, classes = usual_input(name)
    generator = np.random.default_rng(0)
    if len(shape) == 1:
        tokens = generator.integers(0, classes, (batch, shape[0] + 1))
        return tokens[:, :-1].astype(np.float32), tokens[:, 1:]
    return generator.standard_normal((batch, *shape), dtype=np.float32), generator.integers(0, classes, batch)


@dataclass
class LayerTime:
    """Seconds of a layer in a step, and its multiplications and additions in products."""

    name: str
    kind: str
    forward_seconds: float
    backward_seconds: float
    flops: int


class EngineStep:
    """Forward, loss, backward and an update by SGD with momentum; BLAS should have one thread.

    Args:
        name: of the model, as in a job file.
        batch: images in a step.
        threads: that compute.
    """

    def __init__(self, name: str, batch: int, threads: int) -> None:
        self.model = build_model(name, *usual_input(name))
        self._parameters, self._gradients, self._momentum = (
            np.zeros(self.model.layout.elements, np.float32) for _ in range(3)
        )
        self.model.bind(self._parameters, self._gradients)
        self.model.initialize(0)
        self.model.use_threads(threads)
        self._images, self._labels = example_batch(name, batch)
        self._rule = SgdRule(1.0, LEARNING_RATE, 0.0, MOMENTUM, nesterov=False)
        self._steps = 0

    def step(self) -> float:
        """Train on the batch; returns the loss before the update."""
        context = StepContext(training=True, seed=0, step=self._steps, first_sample=0)
        loss = self.model.train(self._images, self._labels, context, StepHooks())
        self.model.team.run(_update, len(self._parameters), *self._update_arguments())
        self._steps += 1
        return loss

    def _update_arguments(self) -> tuple[Any, ...]:
        return self._parameters, self._gradients, self._momentum, self._rule

    def layer_times(self, steps: int) -> list[LayerTime]:
        """The mean over `steps` steps of every layer without children, and of the update."""
        model, batch = self.model, len(self._images)
        times = [LayerTime(leaf.name, leaf.kind, 0.0, 0.0, step_flops(leaf, batch)) for leaf in model.leaves]
        for leaf, row in zip(model.leaves, times, strict=True):
            _add_time(leaf, "forward", row, "forward_seconds")
            _add_time(leaf, "backward", row, "backward_seconds")
        for _ in range(steps):
            self.step()
        for row in times:
            row.forward_seconds /= steps
            row.backward_seconds /= steps
        return times

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products of a step."""
        return sum(step_flops(leaf, len(self._images)) for leaf in self.model.leaves)


def _update(  # noqa: PLR0917 - the arrays of the update and the part of the work
    parameters: Array, gradients: Array, momentum: Array, rule: SgdRule, first: int, last: int, lane: int
) -> None:
    sgd_momentum(parameters[first:last], gradients[first:last], momentum[first:last], rule)


def step_flops(layer: Layer, batch: int) -> int:
    """Operations of forward and both gradients of a layer; the first layer's input has no gradient."""
    if not isinstance(layer, ParameterLayer) or layer.tensors[0].name != "weight":
        return 0
    weight = layer.tensors[0]
    products = 3 if layer.needs_input_gradient else 2
    return int(products * 2 * batch * weight.elements * (layer.output_elements // weight.shape[-1]))


def _add_time(layer: Layer, method: str, row: LayerTime, field: str) -> None:
    call: Callable[..., Array] = getattr(layer, method)

    def timed(*arguments: Any) -> Array:
        begin = perf_counter()
        result = call(*arguments)
        setattr(row, field, getattr(row, field) + perf_counter() - begin)
        return result

    setattr(layer, method, timed)
