"""Testing a model on a data set's test images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from worker.data.dataset import Dataset, testing_batches
from worker.engine import Model, StepContext, softmax_cross_entropy

__all__ = ["Accuracy", "evaluate", "read_along"]

_EVALUATION_BATCH = 250


@dataclass(frozen=True)
class Accuracy:
    """Mean loss and share of right answers on a test set."""

    loss: float
    accuracy: float


def evaluate(
    model: Model,
    dataset: Dataset,
    batch: int = _EVALUATION_BATCH,
    before_layer: Callable[[int], None] | None = None,
) -> Accuracy:
    """Test `model` on the whole test set.

    Its arenas hold its parameters, at least those of a layer when `before_layer` has been called with its index.
    """
    context = StepContext(training=False, seed=0, step=0, first_sample=0)
    loss = right = 0.0
    for images, labels in testing_batches(dataset, batch):
        logits = model.forward(images, context, before_layer)
        loss += softmax_cross_entropy(logits, labels)[0] * len(labels)
        right += float((logits.argmax(axis=1) == labels).sum())
    total = len(dataset.test)
    return Accuracy(loss / total, right / total)


def read_along(images: int, layers: int, read_layer: Callable[[int], None], batch: int = _EVALUATION_BATCH) -> None:
    """Call `read_layer` as an `evaluate` on so many images, of a model of so many layers, does; computes nothing."""
    for _ in range(0, images, batch):
        for layer in reversed(range(layers)):
            read_layer(layer)
