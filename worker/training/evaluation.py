"""Testing a model on a data set's test samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from worker.data.dataset import Dataset, evaluation_batches
from worker.engine import Model, StepContext

__all__ = ["EVALUATION_BATCH", "Scores", "evaluate", "read_along"]

EVALUATION_BATCH = 250


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
    context = StepContext(training=False, seed=0, step=0, first_sample=0)
    loss, tally = 0.0, model.loss.tally()
    for inputs, targets in evaluation_batches(dataset, batch):
        outputs = model.forward(inputs, context, before_layer)
        loss += model.loss(outputs, targets)[0] * len(targets)
        tally.add(outputs, targets)
    return Scores(loss / len(dataset.test), tally.metrics())


def read_along(images: int, layers: int, read_layer: Callable[[int], None], batch: int = EVALUATION_BATCH) -> None:
    """Call `read_layer` as an `evaluate` on so many images, of a model of so many layers, does; computes nothing."""
    for _ in range(0, images, batch):
        for layer in reversed(range(layers)):
            read_layer(layer)
