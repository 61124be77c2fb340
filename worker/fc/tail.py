"""The fully connected end of a network, from its first one to the loss, run in passes over all workers' examples.

Activations are in one of two forms: `rows`, all features of the own examples, or `columns`, the own features of all
examples of the pass. A sharded layer takes all features of all examples and yields columns; its input gradient is a
sum over ranks that is scattered back into the form that came before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from allreduce.parts.mesh import Transfer
from allreduce.parts.shards import (
    columns_to_rows,
    gather_columns,
    gather_rows,
    rows_to_columns,
    scatter_columns,
    scatter_rows,
    sum_terms,
)
from taihu.errors import DataError
from taihu.trace import Tracer
from worker.engine.layer import Array, Run
from worker.fc.passes import Pass, Scheme, plan_passes
from worker.fc.stage import Stage, StageMemory

__all__ = ["Mover", "Tail", "TailResult"]

LossFunction = Callable[[Array, Array], tuple[float, Array]]


class Mover(Protocol):
    """Moves parts between ranks."""

    rank: int
    size: int

    def start(self, name: str, transfer: Transfer, *, urgent: bool = True) -> Callable[[], None]:
        """Start a transfer; returns what waits for its end. `name` is for traces; urgent ones overtake others."""
        ...


@dataclass(frozen=True)
class TailResult:
    """The mean loss of the own examples, and its gradient with respect to the features, (batch, K).

    The gradient lies in memory that the next step writes to again.
    """

    loss: float
    feature_gradient: Array


class Tail:
    """Runs `stages`, of which at least one is sharded.

    `on_gradients(passes)` is called when the gradients of the sharded stages are complete: with `update_each_pass`
    those of one of so many passes, each time, otherwise those of all of them, once. All passes together are the sum
    over ranks of the gradients of their mean losses.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        mover: Mover,
        loss: LossFunction,
        *,
        scheme: Scheme = "gather",
        update_each_pass: bool = False,
        on_gradients: Callable[[int], None] = lambda passes: None,
        tracer: Tracer | None = None,
    ) -> None:
        self._stages = tuple(stages)
        self._mover = mover
        self._rank = mover.rank
        self._scheme: Scheme = scheme
        self._update_each_pass = update_each_pass
        self._on_gradients = on_gradients
        self._loss = loss
        self._tracer = tracer or Tracer.off()
        self._batch = 0
        self._passes: tuple[Pass, ...] = ()
        self._memory: list[StageMemory] = []
        self._logits = self._feature_gradient = np.empty((0, 0))

    def train(self, features: Array, targets: Array, run: Run) -> TailResult:
        """Forward, loss and backward of all passes; writes the gradients of every stage.

        Args:
            features: (batch, K), the own examples; every rank has as many.
            targets: of the own examples, as the loss takes them.
            run: of the step.

        Raises:
            TaihuError: a transfer failed; the message says why.
        """
        self._allocate(features)
        gradient = self._feature_gradient
        total = 0.0
        arriving = self._send_features(features, self._passes[0])
        returning: list[Callable[[], None]] = []
        for number, one in enumerate(self._passes):
            arriving()
            if number + 1 < len(self._passes):
                arriving = self._send_features(features, self._passes[number + 1])
            with self._tracer.span(f"pass {number}", track="fc compute", step=run.context.step):
                logits = self._forward(features, one, run)
                loss, dlogits = self._own_loss(logits, targets, one)
                total += loss
                returning.append(self._backward(dlogits, gradient, one, run))
            if self._update_each_pass:
                self._weight_gradients(one)
                self._on_gradients(len(self._passes))
        if not self._update_each_pass:
            with self._tracer.span("weight gradients", track="fc compute", step=run.context.step):
                self._weight_gradients(None)
            self._on_gradients(len(self._passes))
        for wait in returning:
            wait()
        return TailResult(total, gradient)

    def _allocate(self, features: Array) -> None:
        batch = len(features)
        if not batch or features.shape[1] != self._stages[0].inputs:
            raise DataError(
                f"{self._stages[0].name}: expected features (batch, {self._stages[0].inputs}), seen {features.shape}"
            )
        if batch == self._batch and self._memory[0].x.dtype == features.dtype:
            return
        self._batch = batch
        self._passes = plan_passes(self._scheme, self._mover.size, batch)
        self._memory = [StageMemory(stage, self._passes, self._rank, batch, features.dtype) for stage in self._stages]
        last = self._stages[-1]
        classes = last.width if last.columns is None else last.columns[-1]
        self._logits = np.empty((batch, classes), dtype=features.dtype)
        self._feature_gradient = np.empty_like(features)

    def _own(self, one: Pass) -> slice:
        return slice(one.starts[self._rank], one.stops[self._rank])

    def _send_features(self, features: Array, one: Pass) -> Callable[[], None]:
        """Bring everybody's features of a pass to the first layer, if it is sharded."""
        memory = self._memory[0]
        if self._stages[0].columns is None:
            memory.x[self._own(one)] = features[self._own(one)]
            return _nothing
        whole = memory.x[memory.rows(one)]
        whole[one.rows[self._rank] : one.rows[self._rank + 1]] = features[self._own(one)]
        return self._mover.start("gather", gather_rows(self._rank, one.rows, whole), urgent=False)

    def _forward(self, features: Array, one: Pass, run: Run) -> Array:
        """The logits of the own examples of a pass, whose features are there."""
        y = features
        for position, (stage, memory) in enumerate(zip(self._stages, self._memory, strict=True)):
            rows = memory.rows(one)
            if position:
                self._bring(y, position, one)
            stage_run = stage.run_of(run, one, self._rank, self._batch)
            y = stage.forward(memory.x[rows], memory.y[rows], stage_run)
        last = self._stages[-1]
        if last.columns is None:
            return y
        logits = self._logits[self._own(one)]
        self._move("regather", columns_to_rows(self._rank, one.rows, last.columns, np.ascontiguousarray(y), logits))
        return logits

    def _bring(self, y: Array, position: int, one: Pass) -> None:
        """Bring the output of the stage before to the input of stage `position`."""
        before, stage, memory = self._stages[position - 1], self._stages[position], self._memory[position]
        x = memory.x[memory.rows(one)]
        own = np.ascontiguousarray(y)
        if before.columns is None and stage.columns is None:
            x[...] = y
        elif before.columns is None:
            x[one.rows[self._rank] : one.rows[self._rank + 1]] = y
            self._move("gather", gather_rows(self._rank, one.rows, x))
        elif stage.columns is None:
            self._move("regather", columns_to_rows(self._rank, one.rows, before.columns, own, x))
        else:
            self._move("gather", gather_columns(self._rank, before.columns, own, x))

    def _own_loss(self, logits: Array, targets: Array, one: Pass) -> tuple[float, Array]:
        """The pass's part of the mean loss over the batch, and its gradient."""
        if not len(logits):
            return 0.0, logits
        loss, dlogits = self._loss(logits, targets[self._own(one)])
        share = len(logits) / self._batch
        if share != 1.0:
            dlogits *= dlogits.dtype.type(share)
        return loss * share, dlogits

    def _backward(self, dlogits: Array, gradient: Array, one: Pass, run: Run) -> Callable[[], None]:
        """Through all stages; what is returned waits until the own rows of `gradient` are complete."""
        last, memory = self._stages[-1], self._memory[-1]
        dy = memory.dy[memory.rows(one)]
        if last.columns is None:
            dy[...] = dlogits
        else:
            self._move("scatter", rows_to_columns(self._rank, one.rows, last.columns, dlogits, dy))
        for position in reversed(range(len(self._stages))):
            stage, memory = self._stages[position], self._memory[position]
            rows = memory.rows(one)
            dy, dx = memory.dy[rows], memory.dx[rows]
            stage.through_behind(dy, stage.run_of(run, one, self._rank, self._batch))
            stage.input_gradient(dy, dx)
            if position:
                self._return(position, dx, one)
        return self._return_features(dx, gradient, one)

    def _return(self, position: int, dx: Array, one: Pass) -> None:
        """Bring the input gradient of stage `position` to the output of the stage before."""
        before, stage = self._stages[position - 1], self._stages[position]
        dy = self._memory[position - 1].dy[self._memory[position - 1].rows(one)]
        rank, memory = self._rank, self._memory[position]
        if stage.columns is None:
            if before.columns is None:
                dy[...] = dx
            else:
                self._move("scatter", rows_to_columns(rank, one.rows, before.columns, dx, dy))
        elif before.columns is None:
            received = memory.received(0, *dy.shape)
            self._move("scatter", scatter_rows(rank, one.rows, dx, received))
            sum_terms(rank, dx[one.rows[rank] : one.rows[rank + 1]], received, dy)
        else:
            received = memory.received(0, *dy.shape)
            self._move("scatter", scatter_columns(rank, before.columns, dx, received))
            sum_terms(rank, dx[:, before.columns[rank] : before.columns[rank + 1]], received, dy)

    def _return_features(self, dx: Array, gradient: Array, one: Pass) -> Callable[[], None]:
        out = gradient[self._own(one)]
        if self._stages[0].columns is None:
            out[...] = dx
            return _nothing
        rank = self._rank
        received = self._memory[0].received(one.first_row, *out.shape)
        arrived = self._mover.start("scatter", scatter_rows(rank, one.rows, dx, received), urgent=False)

        def finish() -> None:
            arrived()
            sum_terms(rank, dx[one.rows[rank] : one.rows[rank + 1]], received, out)

        return finish

    def _weight_gradients(self, one: Pass | None) -> None:
        """Write weight gradients of one pass, or of all; layers that are not sharded get theirs after all passes."""
        for stage, memory in zip(reversed(self._stages), reversed(self._memory), strict=True):
            if one is not None and stage.columns is not None:
                rows = memory.rows(one)
                stage.weight_gradients(memory.x[rows], memory.dy[rows])
            elif one is None or one is self._passes[-1]:
                stage.weight_gradients(memory.x, memory.dy)

    def _move(self, name: str, transfer: Transfer) -> None:
        self._mover.start(name, transfer)()


def _nothing() -> None:
    """Nothing is under way."""
