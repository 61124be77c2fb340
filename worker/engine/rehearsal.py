"""The memory of a training step, found by a rehearsal: its buffers are taken, and next to nothing is computed."""

from __future__ import annotations

from typing import Final

import numpy as np

from taihu.core.model.layout import Layout
from taihu.worker.engine.base.layer import Array, StepContext, ignore_layer
from taihu.worker.engine.base.team import IdleTeam
from taihu.worker.engine.models.model import Model, StepHooks

# What passes share has its size once all of them have been seen, and given back once.
_STEPS: Final = 2
_TRAINING: Final = StepContext(training=True, seed=0, step=1, first_sample=0)
_TESTING: Final = StepContext(training=False, seed=0, step=0, first_sample=0)


def rehearsed_bytes(model: Model, batch: int, *, tested: int = 0, threads: int = 1, stop: int | None = None) -> int:
    """Bytes of the buffers that training on batches takes, as `Model.held_bytes` after a step.

    The memory is reserved, and for the most part not written. Layers of the user's own that compute by themselves
    write theirs.

    Args:
        model: not bound yet; it is of no use any more afterwards.
        batch: samples of a step.
        tested: samples that are tested at once, after the step; 0 for none.
        threads: that compute.
        stop: only `chain[:stop]` is run, as `Model.forward_until` does.
    """
    _bind(model)
    model.use_team(IdleTeam(threads))
    x = np.zeros((batch, *model.input_shape), np.float32)
    # What nobody has computed may be anything.
    with np.errstate(all="ignore"):
        for _ in range(_STEPS):
            _train(model, x, stop)
        if tested:
            _test(model, np.zeros((tested, *model.input_shape), np.float32), stop)
    return model.held_bytes


def _bind(model: Model) -> None:
    """Have all layers share the memory of the largest one's parameters, which nobody reads."""
    largest = max((layer.elements for layer in model.layout.layers), default=0)
    parameters, gradients = (np.zeros(largest, np.float32) for _ in range(2))
    # Of no layer, for the dtype.
    model.bind_layers((), Layout(()), parameters[:0], gradients[:0])
    for layer, spec in zip(model.parameter_layers, model.layout.layers, strict=True):
        layer.bind(parameters[: spec.elements], gradients[: spec.elements])


def _train(model: Model, x: Array, stop: int | None) -> None:
    if stop is None:
        outputs = model.forward(x, _TRAINING)
        model.backward(np.zeros_like(outputs))
        return
    features, run = model.forward_until(stop, x, _TRAINING, StepHooks())
    model.backward_from(stop, np.zeros_like(features), run, ignore_layer)


def _test(model: Model, x: Array, stop: int | None) -> None:
    if stop is None:
        model.forward(x, _TESTING)
    else:
        model.forward_until(stop, x, _TESTING, StepHooks())
