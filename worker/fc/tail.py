"""The fully connected end of a network, from its first one to the loss, run in passes over all workers' examples.

Activations are in one of two forms: `rows`, all features of the own examples, or `columns`, the own features of all
examples of the pass. A sharded layer takes all features of all examples and yields columns; its input gradient is a
sum over ranks that is scattered back into the form that came before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from taihu.allreduce.parts.mesh import Transfer
from taihu.allreduce.parts.shards import (
    columns_to_rows,
    gather_columns,
    gather_rows,
    rows_to_columns,
    scatter_columns,
    scatter_rows,
    sum_terms,
)
from taihu.core.base.errors import DataError
from taihu.core.trace import Tracer
from taihu.worker.engine.base.layer import Array, Run
from taihu.worker.fc.own_inputs import InputsKept, OwnInputs
from taihu.worker.fc.passes import Pass, Scheme, plan_passes
from taihu.worker.fc.stage import Stage, StageMemory, StagePart, TailMemory

TakeGradient = Callable[[str, int, Array, int], None]
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

    `on_gradient(name, start, gradient, passes)` is called for each part of the gradient of a sharded stage, see
    `Stage.weight_gradients`: with `update_each_pass` for those of one of so many passes, each time, otherwise for
    those of all of them, once. All passes together are the sum over ranks of the gradients of their mean losses.

    `inputs` says what stays of the inputs of sharded stages until then: those of all examples, or the own part, which
    may lie in a file (`spilled`); all are gathered again then.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        mover: Mover,
        loss: LossFunction,
        *,
        scheme: Scheme = "gather",
        update_each_pass: bool = False,
        inputs: InputsKept = "all",
        on_gradient: TakeGradient = lambda name, start, gradient, passes: None,
        tracer: Tracer | None = None,
    ) -> None:
        self._stages = tuple(stages)
        self._mover = mover
        self._rank = mover.rank
        self._scheme: Scheme = scheme
        self._update_each_pass = update_each_pass
        self._inputs = inputs
        self._own_inputs: OwnInputs | None = None
        self._on_gradient = on_gradient
        self._loss = loss
        self._tracer = tracer or Tracer.off()
        self._passes: tuple[Pass, ...] = ()
        self._memory: TailMemory | None = None
        self._feature_gradient = np.empty((0, 0))

    @property
    def held_bytes(self) -> int:
        """Bytes of activations that steps have taken."""
        memory = 0 if self._memory is None else self._memory.held_bytes
        own = 0 if self._own_inputs is None else self._own_inputs.held_bytes
        behind = sum(layer.workspace.held_bytes for stage in self._stages for layer in stage.behind)
        return memory + own + behind + self._feature_gradient.nbytes

    def no_features(self, dtype: np.dtype[Any]) -> Array:
        """The features of a rank without examples."""
        return np.empty((0, self._stages[0].inputs), dtype=dtype)

    def outputs(self, features: Array, counts: Sequence[int], run: Run) -> Array:
        """The outputs for the own examples, of which rank r has `counts[r]`; nothing is trained.

        Args:
            features: (counts[rank], K).
            counts: of all ranks.
            run: of no training step.
        """
        one = Pass(tuple(0 for _ in counts), tuple(counts), 0)
        memory = TailMemory(self._stages, (one,), self._rank, len(features), features.dtype)
        self._send_features(features, one, memory)()
        return self._forward(features, one, run, memory)

    def parts(self, batch: int) -> tuple[StagePart, ...]:
        """The share of this rank in each stage of a step, in which every rank has `batch` examples."""
        passes = plan_passes(self._scheme, self._mover.size, batch)
        parts: list[StagePart] = []
        for stage in self._stages:
            is_spread = stage.columns is not None
            rows = tuple(one.rows[-1] if is_spread else _length(self._own(one)) for one in passes)
            parts.append(
                StagePart(
                    stage.name,
                    stage.inputs,
                    stage.width,
                    stage.weights.bias is not None,
                    tuple(layer.name for layer in stage.behind),
                    rows,
                    rows if is_spread and self._update_each_pass else (sum(rows),),
                )
            )
        return tuple(parts)

    def train(self, features: Array, targets: Array, run: Run) -> TailResult:
        """Forward, loss and backward of all passes; writes the gradients of every stage.

        Args:
            features: (batch, K), the own examples; every rank has as many.
            targets: of the own examples, as the loss takes them.
            run: of the step; it is told of parts that are computed, and carries out waits for other ranks.

        Raises:
            TaihuError: a transfer failed; the message says why.
        """
        memory, gradient = self._allocate(features), self._feature_gradient
        total = 0.0
        arriving = self._send_features(features, self._passes[0], memory)
        returning: list[Callable[[], None]] = []
        for number, one in enumerate(self._passes):
            run.wait_for_others(arriving)
            if number + 1 < len(self._passes):
                arriving = self._send_features(features, self._passes[number + 1], memory)
            with self._tracer.span(f"pass {number}", track="fc compute", step=run.context.step):
                logits = self._forward(features, one, run, memory)
                loss, dlogits = self._own_loss(logits, targets, one)
                total += loss
                returning.append(self._backward(dlogits, gradient, one, run, memory))
            if self._update_each_pass:
                self._weight_gradients(one, run, memory)
        if not self._update_each_pass:
            with self._tracer.span("weight gradients", track="fc compute", step=run.context.step):
                self._weight_gradients(None, run, memory)
        for wait in returning:
            run.wait_for_others(wait)
        return TailResult(total, gradient)

    def _allocate(self, features: Array) -> TailMemory:
        batch = len(features)
        if not batch or features.shape[1] != self._stages[0].inputs:
            raise DataError(
                f"{self._stages[0].name}: expected features (batch, {self._stages[0].inputs}), seen {features.shape}"
            )
        memory = self._memory
        if memory is None or batch != memory.batch or memory.logits.dtype != features.dtype:
            self._passes = plan_passes(self._scheme, self._mover.size, batch)
            # With the memory: another number of examples has other places in its file.
            self._own_inputs = None if self._inputs == "all" else OwnInputs(spilled=self._inputs == "spilled")
            memory = self._memory = TailMemory(
                self._stages,
                self._passes,
                self._rank,
                batch,
                features.dtype,
                shares=self._own_inputs is not None,
            )
            self._feature_gradient = np.empty_like(features)
        return memory

    def _own(self, one: Pass) -> slice:
        return slice(one.starts[self._rank], one.stops[self._rank])

    def _send_features(self, features: Array, one: Pass, memory: TailMemory) -> Callable[[], None]:
        """Bring everybody's features of a pass to the first layer, if it is sharded."""
        first = memory.stages[0]
        if self._stages[0].columns is None:
            first.x(one)[...] = features[self._own(one)]
            return _nothing
        whole, own = first.x(one), features[self._own(one)]
        whole[one.rows[self._rank] : one.rows[self._rank + 1]] = own
        self._keep(0, one, own, first)
        return self._mover.start("gather", gather_rows(self._rank, one.rows, whole), urgent=False)

    def _forward(self, features: Array, one: Pass, run: Run, memory: TailMemory) -> Array:
        """The logits of the own examples of a pass, whose features are there."""
        y = features
        for position, (stage, own) in enumerate(zip(self._stages, memory.stages, strict=True)):
            rows = own.rows(one)
            if position:
                self._bring(y, position, one, run, own)
            stage_run = stage.run_of(run, one, self._rank, memory.batch)
            x = own.x(one)
            y = stage.forward(x, own.y[rows], stage_run)
            run.part_computed(stage.name, "forward", len(x))
        last = self._stages[-1]
        if last.columns is None:
            return y
        logits = memory.logits[self._own(one)]
        self._move(
            run, "regather", columns_to_rows(self._rank, one.rows, last.columns, np.ascontiguousarray(y), logits)
        )
        return logits

    def _bring(self, y: Array, position: int, one: Pass, run: Run, memory: StageMemory) -> None:
        """Bring the output of the stage before to the input of stage `position`, whose memory it is."""
        before, stage = self._stages[position - 1], self._stages[position]
        own, x = np.ascontiguousarray(y), memory.x(one)
        self._keep(position, one, own, memory)
        if before.columns is None and stage.columns is None:
            x[...] = y
        elif before.columns is None:
            x[one.rows[self._rank] : one.rows[self._rank + 1]] = y
            self._move(run, "gather", gather_rows(self._rank, one.rows, x))
        elif stage.columns is None:
            self._move(run, "regather", columns_to_rows(self._rank, one.rows, before.columns, own, x))
        else:
            self._move(run, "gather", gather_columns(self._rank, before.columns, own, x))

    def _own_loss(self, logits: Array, targets: Array, one: Pass) -> tuple[float, Array]:
        """The pass's part of the mean loss over the batch, and its gradient."""
        if not len(logits):
            return 0.0, logits
        loss, dlogits = self._loss(logits, targets[self._own(one)])
        share = len(logits) / len(targets)
        if share != 1.0:
            dlogits *= dlogits.dtype.type(share)
        return loss * share, dlogits

    def _backward(
        self, dlogits: Array, gradient: Array, one: Pass, run: Run, memory: TailMemory
    ) -> Callable[[], None]:
        """Through all stages; what is returned waits until the own rows of `gradient` are complete."""
        last, own = self._stages[-1], memory.stages[-1]
        dy = own.dy[own.rows(one)]
        if last.columns is None:
            dy[...] = dlogits
        else:
            self._move(run, "scatter", rows_to_columns(self._rank, one.rows, last.columns, dlogits, dy))
        for position in reversed(range(len(self._stages))):
            stage, own = self._stages[position], memory.stages[position]
            rows = own.rows(one)
            dy, dx = own.dy[rows], own.dx[rows]
            stage.through_behind(dy, stage.run_of(run, one, self._rank, memory.batch))
            stage.input_gradient(dy, dx)
            run.part_computed(stage.name, "input gradient", len(dx))
            if position:
                self._return(position, dx, one, run, memory)
        return self._return_features(dx, gradient, one, memory)

    def _return(self, position: int, dx: Array, one: Pass, run: Run, memory: TailMemory) -> None:
        """Bring the input gradient of stage `position` to the output of the stage before."""
        before, stage = self._stages[position - 1], self._stages[position]
        dy = memory.stages[position - 1].dy[memory.stages[position - 1].rows(one)]
        rank, own = self._rank, memory.stages[position]
        if stage.columns is None:
            if before.columns is None:
                dy[...] = dx
            else:
                self._move(run, "scatter", rows_to_columns(rank, one.rows, before.columns, dx, dy))
        elif before.columns is None:
            received = own.received(0, *dy.shape)
            self._move(run, "scatter", scatter_rows(rank, one.rows, dx, received))
            sum_terms(rank, dx[one.rows[rank] : one.rows[rank + 1]], received, dy)
        else:
            received = own.received(0, *dy.shape)
            self._move(run, "scatter", scatter_columns(rank, before.columns, dx, received))
            sum_terms(rank, dx[:, before.columns[rank] : before.columns[rank + 1]], received, dy)

    def _return_features(self, dx: Array, gradient: Array, one: Pass, memory: TailMemory) -> Callable[[], None]:
        out = gradient[self._own(one)]
        if self._stages[0].columns is None:
            out[...] = dx
            return _nothing
        rank = self._rank
        received = memory.stages[0].received(one.first_row, *out.shape)
        arrived = self._mover.start("scatter", scatter_rows(rank, one.rows, dx, received), urgent=False)

        def finish() -> None:
            arrived()
            sum_terms(rank, dx[one.rows[rank] : one.rows[rank + 1]], received, out)

        return finish

    def _weight_gradients(self, one: Pass | None, run: Run, memory: TailMemory) -> None:
        """Write weight gradients of one pass, or of all; layers that are not sharded get theirs after all passes."""
        for position in reversed(range(len(self._stages))):
            stage, own = self._stages[position], memory.stages[position]
            rows = slice(None) if one is None else own.rows(one)
            if stage.columns is not None:
                self._gather_again(position, own, one, run)
                x = own.x(one)
                stage.weight_gradients(x, own.dy[rows], partial(self._take, stage.name))
            elif one is None or one is self._passes[-1]:
                x = own.x(None)
                stage.weight_gradients(x, own.dy)
            else:
                continue
            run.part_computed(stage.name, "weight gradients", len(x))

    def _keep(self, position: int, one: Pass, own: Array, memory: StageMemory) -> None:
        if self._own_inputs is not None and memory.is_shared:
            self._own_inputs.keep(position, one.first_row, own)

    def _gather_again(self, position: int, memory: StageMemory, one: Pass | None, run: Run) -> None:
        """Bring the inputs of a pass, or of all of them, to a stage whose memory others have used since."""
        if self._own_inputs is None:
            return
        before = self._stages[position - 1].columns if position else None
        rank = self._rank
        x = memory.x(one)
        for each in self._passes if one is None else (one,):
            whole = x[memory.rows(each)] if one is None else x
            if before is None:
                own_rows = slice(each.rows[rank], each.rows[rank + 1])
                shape = (own_rows.stop - own_rows.start, x.shape[1])
                whole[own_rows] = self._own_inputs.bring(position, each.first_row, shape, x.dtype)
                self._move(run, "gather again", gather_rows(rank, each.rows, whole))
            else:
                shape = (len(whole), before[rank + 1] - before[rank])
                own = self._own_inputs.bring(position, each.first_row, shape, x.dtype)
                self._move(run, "gather again", gather_columns(rank, before, own, whole))

    def _take(self, name: str, start: int, gradient: Array) -> None:
        self._on_gradient(name, start, gradient, len(self._passes))

    def _move(self, run: Run, name: str, transfer: Transfer) -> None:
        run.wait_for_others(self._mover.start(name, transfer))


def _length(rows: slice) -> int:
    return int(rows.stop - rows.start)


def _nothing() -> None:
    """Nothing is under way."""
