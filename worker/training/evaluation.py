"""Testing a model on a data set's test samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from taihu.worker.data.base.dataset import Dataset, evaluation_batches
from taihu.worker.engine import Array, Model, StepContext
from taihu.worker.engine.base.loss import Loss

_SAMPLES: Final = 250
_PLACES: Final = 2048
# Activations that a test may hold where a step holds fewer, in values: 128 MiB.
_ROOM: Final = 32 << 20
TESTING: Final = StepContext(training=False, seed=0, step=0, first_sample=0)
"""The context of every evaluation."""


@dataclass(frozen=True)
class Scores:
    """Mean loss on a test set, and what else the model's loss counts there, such as `accuracy`."""

    loss: float
    metrics: Mapping[str, float]


def samples_at_once(model: Model, trained: int = _SAMPLES) -> int:
    """Samples that are tested at once: 250, of sequences fewer, since each is many places.

    Where their activations are many, it is no more than the `trained` ones of a step: testing must not take memory
    that training did not.
    """
    most = max(1, _PLACES // model.output_shape[0]) if len(model.output_shape) > 1 else _SAMPLES
    return min(most, max(trained, _ROOM // max(1, model.activations)))


def evaluate(
    model: Model,
    dataset: Dataset,
    batch: int | None = None,
    before_layer: Callable[[int], None] | None = None,
) -> Scores:
    """Test `model` on the whole test set, by its loss, so many samples at a time, or `samples_at_once`.

    Its arenas hold its parameters, at least those of a layer when `before_layer` has been called with its index.
    """
    outputs_of = partial(model.forward, context=TESTING, before_layer=before_layer)
    return scores(outputs_of, model.loss, dataset, batch or samples_at_once(model))


def scores(outputs_of: Callable[[Array], Array], loss: Loss, dataset: Dataset, batch: int = _SAMPLES) -> Scores:
    """The scores of whatever computes outputs of inputs, on the whole test set, in `batch_sizes`."""
    total, tally = 0.0, loss.tally()
    for inputs, targets in evaluation_batches(dataset, batch):
        outputs = outputs_of(inputs)
        total += loss(outputs, targets)[0] * len(targets)
        tally.add(outputs, targets)
    return Scores(total / len(dataset.test), tally.metrics())


def batch_sizes(examples: int, batch: int = _SAMPLES) -> list[int]:
    """The sizes of the batches in which a test set of so many examples is evaluated."""
    return [min(batch, examples - start) for start in range(0, examples, batch)]


def read_along(samples: int, batch: int, model: Model, read_layer: Callable[[int], None]) -> None:
    """Call `read_layer` as an `evaluate` of `model` on so many samples does, `batch` at a time; computes nothing."""
    for _ in batch_sizes(samples, batch):
        for layer in model.reading_order:
            read_layer(layer)
