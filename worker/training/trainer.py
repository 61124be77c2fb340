"""The training loop: forward, backward, and an exchange that overlaps both."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Protocol

from taihu.core.base.errors import RunError
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.trace import Tracer
from taihu.core.wire.base.clock import Clock
from taihu.worker.data.batches import BatchSource
from taihu.worker.engine import Array, StepContext, StepHooks
from taihu.worker.exchange.shell import Exchange
from taihu.worker.training.calibration import Measuring
from taihu.worker.training.clipping import LayerClipping
from taihu.worker.training.local_steps import LocalSteps
from taihu.worker.training.pacing import Pacing
from taihu.worker.training.step_program import StepProgram
from taihu.worker.training.step_record import StepRecord


class TrainedModel(Protocol):
    """A model as a trainer needs it."""

    def train(self, images: Array, labels: Array, context: StepContext, hooks: StepHooks) -> float:
        """Train one step: forward, loss and backward into the gradient arena; returns the loss, as `Model.train`."""
        ...


def context_of(job: Job, rank: int, number: int) -> StepContext:
    """The context of a worker's batch `number`, counted from 1, with its share of the samples of all workers."""
    return StepContext(training=True, seed=job.train.seed, step=number, first_sample=rank * job.train.batch)


class Trainer:
    """Trains one worker's replica.

    `on_step(record)` follows every step whose exchange has ended, `on_move` every layer of it. With `local` steps a
    step has several forwards and backwards; everything before the last backward counts to its forward. With `pacing`
    its layers take as long as another processor's.
    """

    def __init__(
        self,
        *,
        job: Job,
        rank: int,
        model: TrainedModel,
        batches: BatchSource,
        exchange: Exchange,
        measuring: Measuring,
        clock: Clock,
        tracer: Tracer,
        on_step: Callable[[StepRecord], None],
        on_move: Callable[[], None] = lambda: None,
        clipping: LayerClipping | None = None,
        local: LocalSteps | None = None,
        pacing: Pacing | None = None,
    ) -> None:
        self._on_move = on_move
        self._pacing = pacing
        self._clipping = clipping
        self._local = local
        self._turns = 1 if local is None else local.count
        self._job = job
        self._rank = rank
        self._model = model
        self._batches = batches
        self._exchange = exchange
        self._clock = clock
        self._on_step = on_step
        self._open: StepRecord | None = None
        self._program = StepProgram(exchange.steps, measuring, clock.now, tracer, on_move)

    def adopt(self, plan: Plan) -> None:
        """Train on by another plan; `finish` came before."""
        if plan is not self._exchange.plan:
            self._exchange.adopt(plan)
        self._program.layers.adopt(plan)

    def step(self, step: int) -> float:
        """Run one step, and return its loss; its last pulls end during the next step's forward, or in `finish`."""
        record = self._program.start(step)
        losses = [self._pass(record, turn) for turn in range(1, self._turns + 1)]
        record.loss = fmean(losses)
        self._exchange.carry_out(self._program.end())
        self._open = record
        return record.loss

    def _pass(self, record: StepRecord, turn: int) -> float:
        """Forward and backward of one batch, of several in a step with local steps; returns the loss."""
        number = (record.step - 1) * self._turns + turn
        images, labels = self._batches.batch(number)
        context = context_of(self._job, self._rank, number)
        hooks = StepHooks(
            self._read if turn == 1 else self._keep,
            partial(self._forwarded, turn),
            partial(self._gradient_ready, turn),
            lambda layer: self._exchange.carry_out(self._program.prepare(layer)),
            lambda layer: self._exchange.carry_out(self._program.read_again(layer)),
            loss_scale=lambda: self._exchange.loss_scale,
            wait_for_others=partial(self._wait_for_others, record),
        )
        if self._pacing is not None:
            hooks = self._pacing.paced(hooks)
        loss = self._model.train(images, labels, context, hooks)
        self._check(loss, record.step)
        if self._local is not None and self._local.waits_for_norm:
            scale = self._local.scale()
            for layer in self._local.layers:
                self._update(self._local, layer, turn, scale)
        return loss

    def _read(self, layer: int) -> None:
        """Return when the forward that begins a step may read the parameters of a layer."""
        self.read_layer(layer)
        if self._local is not None:
            self._local.begun(layer)

    def _keep(self, layer: int) -> None:
        """Go on with the parameters of a layer as this worker has updated them."""
        self._on_move()

    def finish(self) -> None:
        """Wait until the parameters of the last step are in the arena."""
        self._exchange.carry_out(self._program.layers.finish())
        self._close_record()

    def read_layer(self, layer: int) -> None:
        """Return when the parameters of a layer are in the arena; between steps, in forward order."""
        self._exchange.carry_out(self._program.read(layer))

    def _close_record(self) -> None:
        """Hand on the step before, all of whose answers are there."""
        record, self._open = self._open, None
        if record is not None:
            self._exchange.settle()
            record.path = self._exchange.path
            record.loss_scale = self._exchange.loss_scale
            record.skipped_steps = self._exchange.skipped_steps
            self._on_step(record)

    def _wait_for_others(self, record: StepRecord, wait: Callable[[], None]) -> None:
        """Carry out a wait in an end of the model that is spread over the workers, which is part of its backward."""
        start = self._clock.now()
        wait()
        record.end_waited_s += self._clock.now() - start

    def _forwarded(self, turn: int, loss: float | None) -> None:
        if loss is not None:
            self._check(loss, self._program.record.step)
        self._close_record()
        if turn == self._turns:
            self._program.forwarded()
            self._program.begin()

    def _gradient_ready(self, turn: int, layer: int) -> None:
        self._on_move()
        if self._clipping is not None:
            self._clipping.clip(layer, self._exchange.loss_scale)
        if self._local is None:
            self._push(layer)
        elif not self._local.waits_for_norm:
            self._update(self._local, layer, turn)

    def _update(self, local: LocalSteps, layer: int, turn: int, scale: float = 1.0) -> None:
        """Update a layer here; behind the last local step its difference goes."""
        local.update(layer, self._program.record.step, turn, scale)
        if turn == self._turns:
            local.difference(layer)
            self._push(layer)

    def _push(self, layer: int) -> None:
        self._exchange.carry_out(self._program.ready(layer))

    def _check(self, loss: float, step: int) -> None:
        if math.isnan(loss) and self._job.refuses_non_finite:
            raise RunError(
                f"the loss is not a number at step {step}; lower optimizer.learning_rate or check the data, "
                "or set exchange.non_finite = 'allow'"
            )
