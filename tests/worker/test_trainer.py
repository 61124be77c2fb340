"""The training loop by a clock that is turned by hand: what counts as waiting, and what randomness depends on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cluster import layout_of, make_job

from taihu.core.base.errors import RunError
from taihu.core.coordination.plans.planning import first_plan
from taihu.core.trace import Tracer
from taihu.worker.engine import Dropout, Flatten, Linear, Model, Sequential, StepContext, StepHooks
from taihu.worker.exchange.ground import Waits
from taihu.worker.exchange.shell import Exchange
from taihu.worker.exchange.step_rules import Rules
from taihu.worker.training.calibration import Measuring
from taihu.worker.training.step_record import StepRecord
from taihu.worker.training.trainer import Trainer

LAYOUT = layout_of(3, 4, 5)
BATCH = 4


@dataclass
class HandClock:
    """Goes on when it is told to."""

    seconds: float = 100.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class SlowExchange:
    """An exchange whose waits take as long as is said here, in seconds; it notes what it is asked for."""

    clock: HandClock
    wait_s: float = 0.0
    prepare_s: float = 0.0
    loss_scale: float = 1.0
    skipped_steps: int = 0
    path: str = "grpc"
    asked: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.steps, self.rules, self.times = self, Rules(), list[Any]()
        self.plan = first_plan(make_job(1, 2, exchange={"plan": "per-layer"}), LAYOUT, one_host=False)

    def begin(self, step: int, attempt: int = 0, rates: object = None, layer_rates: object = None) -> None:
        self.asked.append(("begin", step))

    def push(self, group: int) -> Waits:
        self.asked.append(("push", group))
        yield from ()

    def complete(self, group: int) -> Waits:
        self.asked.append(("complete", group))
        yield from ()

    def wait(self, group: int) -> Waits:
        self.asked.append(("wait", group))
        self.clock.sleep(self.wait_s)
        yield from ()

    def prepare(self, group: int) -> Waits:
        self.asked.append(("prepare", group))
        self.clock.sleep(self.prepare_s)
        yield from ()

    def carry_out(self, waits: Waits) -> None:
        assert not list(waits)

    def settle(self) -> None:
        pass


@dataclass
class TimedModel:
    """A model of three layers: forward of a layer takes 1 s, backward of layer i takes 2 + i seconds."""

    clock: HandClock
    loss: float = 0.5
    contexts: list[StepContext] = field(default_factory=list)

    def train(self, images: NDArray[Any], labels: NDArray[Any], context: StepContext, hooks: StepHooks) -> float:
        self.contexts.append(context)
        for layer in reversed(range(3)):
            hooks.before_layer(layer)
            self.clock.sleep(1.0)
        hooks.forwarded(self.loss)
        for layer in range(3):
            hooks.before_backward(layer)
            self.clock.sleep(2.0 + layer)
            hooks.gradient_ready(layer)
        return self.loss


class NoBatches:
    """Batches that nobody looks at."""

    steps_per_epoch = 10

    def batch(self, step: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        return np.zeros((BATCH, 1), dtype=np.float32), np.zeros(BATCH, dtype=np.int64)


def trainer_of(
    model: Any,
    exchange: SlowExchange,
    rank: int = 0,
) -> tuple[Trainer, list[StepRecord]]:
    records: list[StepRecord] = []
    trainer = Trainer(
        job=make_job(1, 2, train={"batch": BATCH}),
        rank=rank,
        model=model,
        batches=NoBatches(),
        exchange=cast(Exchange, exchange),
        measuring=Measuring(calibration_steps=4, replan_every=100),
        clock=exchange.clock,
        tracer=Tracer.off(),
        on_step=records.append,
    )
    return trainer, records


def test_waiting_is_told_apart_from_computing() -> None:
    clock = HandClock()
    exchange = SlowExchange(clock, wait_s=10.0, prepare_s=100.0)
    trainer, records = trainer_of(TimedModel(clock), exchange)
    trainer.step(1)
    trainer.finish()
    (record,) = records
    assert record.forward_seconds == 3.0
    assert record.backward_seconds == [2.0, 3.0, 4.0]
    assert (record.waited_in_forward_s, record.waited_in_backward_s, record.waited_s) == (30.0, 300.0, 330.0)
    assert record.end_s - record.start_s == 3.0 + 9.0 + 330.0
    assert record.sample().compute_seconds == 12.0


def test_a_step_asks_its_exchange_in_the_order_of_forward_and_backward() -> None:
    clock = HandClock()
    exchange = SlowExchange(clock)
    trainer, records = trainer_of(TimedModel(clock), exchange)
    trainer.step(1)
    backward = [("prepare", 0), ("push", 0), ("prepare", 1), ("push", 1), ("prepare", 2), ("push", 2)]
    assert exchange.asked == [("wait", 2), ("wait", 1), ("wait", 0), ("begin", 1), *backward]
    # The step is over when its parameters have been read, in the forward of the next.
    assert records == []
    trainer.step(2)
    assert [record.step for record in records] == [1]
    trainer.finish()
    assert [record.step for record in records] == [1, 2]


def test_groups_are_exchanged_one_by_one_where_they_are_measured() -> None:
    clock = HandClock()
    exchange = SlowExchange(clock)
    trainer, records = trainer_of(TimedModel(clock), exchange)
    for step in (1, 2, 3, 4):
        trainer.step(step)
    trainer.finish()
    assert [record.serial for record in records] == [False, False, False, True]
    last = exchange.asked[exchange.asked.index(("begin", 4)) :]
    alone = [("push", 0), ("complete", 0), ("push", 1), ("complete", 1), ("push", 2), ("complete", 2)]
    assert [each for each in last if each[0] != "prepare"][1:7] == alone


def test_randomness_depends_on_step_and_rank() -> None:
    clock = HandClock()
    model = TimedModel(clock)
    for rank in (0, 3):
        trainer, _ = trainer_of(model, SlowExchange(clock), rank)
        trainer.step(1)
        trainer.step(2)
    seen = [(context.step, context.first_sample) for context in model.contexts]
    assert seen == [(1, 0), (2, 0), (1, 3 * BATCH), (2, 3 * BATCH)]
    assert all(context.training and context.seed == 1 for context in model.contexts)


def test_no_two_steps_or_ranks_drop_the_same() -> None:
    """Masks of 400 elements that are alike by chance would be a wonder."""

    def gradients_of(step: int, first_sample: int) -> bytes:
        model = Model(Sequential([Flatten(), Linear(400), Dropout(0.5), Linear(2)]), (1, 1, 10), 2)
        parameters, gradients = np.zeros((2, model.layout.elements))
        model.bind(parameters, gradients)
        parameters[:] = 1.0
        context = StepContext(training=True, seed=1, step=step, first_sample=first_sample)
        model.train(np.ones((BATCH, 1, 1, 10)), np.array([0, 1, 0, 0]), context, StepHooks())
        return gradients.tobytes()

    assert len({gradients_of(step, first) for step in (1, 2) for first in (0, BATCH)}) == 4


def test_a_loss_that_is_not_a_number_ends_the_run_before_anything_is_pushed() -> None:
    clock = HandClock()
    exchange = SlowExchange(clock)
    trainer, _ = trainer_of(TimedModel(clock, loss=np.nan), exchange)
    with pytest.raises(RunError, match="the loss is not a number at step 1"):
        trainer.step(1)
    assert not any(verb == "push" for verb, _ in exchange.asked)
