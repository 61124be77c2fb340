"""The training loop: forward, backward, and an exchange that overlaps both."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from taihu.errors import RunError
from taihu.job import Job
from taihu.planner.groups import group_of_layer
from taihu.wire.clock import Clock
from worker.data import Batches, Dataset, normalise
from worker.engine import Model, StepContext, softmax_cross_entropy
from worker.exchange import GradientExchange
from worker.progress import ProgressMeter, StepSample

__all__ = ["Trainer", "evaluate"]

_EVALUATION_BATCH = 250


@dataclass(frozen=True)
class Accuracy:
    """Mean loss and share of right answers on a test set."""

    loss: float
    accuracy: float


def evaluate(model: Model, dataset: Dataset, batch: int = _EVALUATION_BATCH) -> Accuracy:
    """Test `model` on the whole test set; the model's arenas must hold its parameters."""
    context = StepContext(training=False, seed=0, step=0, first_sample=0)
    loss = right = 0.0
    total = len(dataset.test_labels)
    for start in range(0, total, batch):
        labels = dataset.test_labels[start : start + batch]
        logits = model.forward(normalise(dataset, dataset.test_images[start : start + batch]), context)
        loss += softmax_cross_entropy(logits, labels)[0] * len(labels)
        right += float((logits.argmax(axis=1) == labels).sum())
    return Accuracy(loss / total, right / total)


class Trainer:
    """Trains one worker's replica; `on_step(step, sample)` follows every completed step."""

    def __init__(
        self,
        *,
        job: Job,
        rank: int,
        model: Model,
        batches: Batches,
        exchange: GradientExchange,
        meter: ProgressMeter,
        clock: Clock,
        on_step: Callable[[int, StepSample], None],
    ) -> None:
        self._job = job
        self._rank = rank
        self._model = model
        self._batches = batches
        self._exchange = exchange
        self._meter = meter
        self._clock = clock
        self._on_step = on_step
        self._group_of_layer = group_of_layer(exchange.groups)
        self._last_layers = [group.last_layer for group in exchange.groups]
        self._waited_s = 0.0
        self._counted = exchange.totals()

    def step(self, step: int) -> None:
        """Run one step; its last pulls end during the next step's forward, or in `finish`."""
        start = self._clock.now()
        self._waited_s = 0.0
        images, labels = self._batches.batch(step)
        context = StepContext(
            training=True, seed=self._job.train.seed, step=step, first_sample=self._rank * self._job.train.batch
        )
        logits = self._model.forward(images, context, before_layer=self._before_layer)
        loss, dlogits = softmax_cross_entropy(logits, labels)
        self._check(loss, step)
        exchange_seconds = self._exchange.last_exchange_seconds()
        self._exchange.begin(step)
        self._model.backward(dlogits, gradient_ready=self._gradient_ready)
        after = self._exchange.totals()
        seconds = self._clock.now() - start
        sample = StepSample(
            loss=loss,
            step_seconds=seconds,
            compute_seconds=seconds - self._waited_s,
            exchange_seconds=exchange_seconds,
            wait_seconds=self._waited_s,
            sent_bytes=after.sent_bytes - self._counted.sent_bytes,
            received_bytes=after.received_bytes - self._counted.received_bytes,
        )
        self._counted = after
        self._meter.add(step, sample)
        self._on_step(step, sample)

    def finish(self) -> None:
        """Wait until the parameters of the last step are in the arena."""
        for group in range(len(self._exchange.groups)):
            self._exchange.wait(group)

    def _before_layer(self, layer: int) -> None:
        start = self._clock.now()
        self._exchange.wait(self._group_of_layer[layer])
        self._waited_s += self._clock.now() - start

    def _gradient_ready(self, layer: int) -> None:
        group = self._group_of_layer[layer]
        if layer == self._last_layers[group]:
            self._exchange.push(group)

    def _check(self, loss: float, step: int) -> None:
        if math.isnan(loss) and self._job.exchange.non_finite == "error":
            raise RunError(
                f"the loss is not a number at step {step}; lower optimizer.learning_rate or check the data, "
                "or set exchange.non_finite = 'allow'"
            )
