"""Testing a model on a data set's test samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from worker.data.dataset import Dataset, evaluation_batches
from worker.engine import Array, Model, StepContext
from worker.engine.loss import Loss

__all__ = ["EVALUATION_BATCH", "TESTING", "Scores", "batch_sizes", "evaluate", "read_along", "scores"]

EVALUATION_BATCH = 250
TESTING: Final = StepContext(training=False, seed=0, step=0, first_sample=0)
"""The context of every evaluation."""


@dataclass(frozen=True)
class Scores:
    """Mean loss on a test set, and what else the model's loss counts there: `accuracy`, or `rmse`, `mae` and `r2`."""

    loss: float
    metrics: Mapping[str, float]


def evaluate(
    model: Model,
    dataset: Dataset,
    batch: int = EVALUATION_BATCH,
    before_layer: Callable[[int], None] | None = None,
) -> Scores:
    """Test `model` on the whole test set, by its loss.

    Its arenas hold its parameters, at least those of a layer when `before_layer` has been called with its index.
    """
    return scores(lambda inputs: model.forward(inputs, TESTING, before_layer), model.loss, dataset, batch)


def scores(
    outputs_of: Callable[[Array], Array], loss: Loss, dataset: Dataset, batch: int = EVALUATION_BATCH
) -> Scores:
    """The scores of whatever computes outputs of inputs, on the whole test set, in `batch_sizes`."""
    total, tally = 0.0, loss.tally()
    for inputs, targets in evaluation_batches(dataset, batch):
        outputs = outputs_of(inputs)
        total += loss(outputs, targets)[0] * len(targets)
        tally.add(outputs, targets)
    return Scores(total / len(dataset.test), tally.metrics())


def batch_sizes(examples: int, batch: int = EVALUATION_BATCH) -> list[int]:
    """The sizes of the batches in which a test set of so many examples is evaluated."""
    return [min(batch, examples - start) for start in range(0, examples, batch)]


def read_along(images: int, layers: int, read_layer: Callable[[int], None], batch: int = EVALUATION_BATCH) -> None:
    """Call `read_layer` as an `evaluate` on so many images, of a model of so many layers, does; computes nothing."""
    for _ in batch_sizes(images, batch):
        for layer in reversed(range(layers)):
            read_layer(layer)
