"""One fully connected layer between real ranks: its gradient exchanged, or its activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from allreduce.communicator import Communicator
from allreduce.parts.shards import columns_to_rows, gather_rows, rows_to_columns, scatter_rows, sum_terms
from taihu.measure import spread
from taihu.planner.fc_mode import FcJob, FcLayer, FcLinks, choose_fc, step_seconds
from taihu.planner.partition import all_bounds
from taihu.trace import Tracer
from taihu.wire.clock import Clock, SystemClock
from worker.engine import Array, Run, StepContext
from worker.fc.mover import PeerMover
from worker.fc.passes import Scheme
from worker.fc.probe import probe_links
from worker.fc.stage import FcWeights, Stage
from worker.fc.tail import Tail

__all__ = ["time_exchanges", "time_schemes"]

_WARMUP_ROUNDS = 1


def time_exchanges(
    communicator: Communicator, layers: Sequence[FcLayer], batches: Sequence[int], *, rounds: int
) -> list[dict[str, Any]]:
    """Communication of a step, data-parallel by a ring and sharded; all ranks call this.

    Each row has the measured seconds of both, what the planner predicts from a probe of the links, and its choice.
    """
    clock = SystemClock()
    links = probe_links(communicator, 0, clock)
    rows = []
    for layer in layers:
        gradient = np.zeros((layer.inputs + 1) * layer.outputs, dtype=np.float32)
        data = _time(communicator, partial(communicator.allreduce, gradient), rounds, clock)
        for batch in batches:
            exchange = _Exchange(communicator, PeerMover(communicator, clock), layer, batch)
            shard = _time(communicator, exchange.step, rounds, clock)
            rows.append(_row(communicator, layer, batch, links, data, shard, exchange))
    return rows


def time_schemes(
    communicator: Communicator,
    layer: FcLayer,
    batch: int,
    schemes: Sequence[Scheme],
    *,
    rounds: int,
    tracer: Tracer | None = None,
) -> list[dict[str, Any]]:
    """Forward, backward and transfers of a sharded layer by every scheme, in turns; all ranks call this.

    `hidden_ratio` is the share of the time of the feature transfers, to the layer and back, that nobody waited for.
    """
    clock = SystemClock()
    movers = {scheme: PeerMover(communicator, clock, tracer) for scheme in schemes}
    tails = {scheme: _tail(movers[scheme], layer, scheme) for scheme in schemes}
    rng = np.random.default_rng(communicator.rank)
    features = rng.standard_normal((batch, layer.inputs), dtype=np.float32)
    seconds: dict[Scheme, list[float]] = {scheme: [] for scheme in schemes}
    for number in range(_WARMUP_ROUNDS + rounds):
        run = Run(StepContext(training=True, seed=0, step=number, first_sample=0))
        for scheme in schemes:
            movers[scheme].step = number
            step = partial(tails[scheme].train, features, features[:, 0], run)
            took = _once(communicator, step, clock)
            if tracer is not None and number >= _WARMUP_ROUNDS:
                stop = clock.now()
                tracer.add("step", scheme, stop - took, stop, step=number)
            if number >= _WARMUP_ROUNDS:
                seconds[scheme].append(took)
    return [
        {
            "inputs": layer.inputs,
            "outputs": layer.outputs,
            "batch": batch,
            "ranks": communicator.size,
            "scheme": scheme,
            "seconds": spread(values),
            # A thread that waits wakes up later than the transfer ends.
            "hidden_ratio": max(0.0, 1.0 - movers[scheme].waited_s / movers[scheme].background_s),
        }
        for scheme, values in seconds.items()
    ]


class _Exchange:
    """The transfers of a step of one sharded layer, on arrays that nobody computes with."""

    def __init__(self, communicator: Communicator, mover: PeerMover, layer: FcLayer, batch: int) -> None:
        self.mover = mover
        self.sent_bytes = 0
        """Bytes of the last step, headers included."""
        self._communicator = communicator
        rank, size = mover.rank, mover.size
        self._rows = range(0, (size + 1) * batch, batch)
        self._columns = all_bounds(layer.outputs, size)
        width = self._columns[rank + 1] - self._columns[rank]
        self._whole = np.zeros((size * batch, layer.inputs), dtype=np.float32)
        self._own = np.zeros((size * batch, width), dtype=np.float32)
        self._mine = np.zeros((batch, layer.outputs), dtype=np.float32)
        self._received = np.zeros((size, batch, layer.inputs), dtype=np.float32)
        self._sum = np.zeros((batch, layer.inputs), dtype=np.float32)

    def step(self) -> None:
        """Forward and backward."""
        rank, rows, columns, start = self.mover.rank, self._rows, self._columns, self.mover.start
        before = self._communicator.sent_bytes
        start("gather", gather_rows(rank, rows, self._whole))()
        start("regather", columns_to_rows(rank, rows, columns, self._own, self._mine))()
        start("scatter", rows_to_columns(rank, rows, columns, self._mine, self._own))()
        start("scatter", scatter_rows(rank, rows, self._whole, self._received))()
        sum_terms(rank, self._whole[rows[rank] : rows[rank + 1]], self._received, self._sum)
        self.sent_bytes = self._communicator.sent_bytes - before


def _row(  # noqa: PLR0917 - what a row is made of
    communicator: Communicator,
    layer: FcLayer,
    batch: int,
    links: FcLinks,
    data: list[float],
    shard: list[float],
    exchange: _Exchange,
) -> dict[str, Any]:
    job = FcJob(batch, communicator.size, 0)
    choice = choose_fc([layer], job, links)[0]
    lean = step_seconds([layer], ["shard"], job, FcLinks(0.0, 0.0, 1.0))
    medians = {"data": float(np.median(data)), "shard": float(np.median(shard))}
    return {
        "inputs": layer.inputs,
        "outputs": layer.outputs,
        "batch": batch,
        "ranks": communicator.size,
        "data_seconds": spread(data),
        "shard_seconds": spread(shard),
        "predicted_data_seconds": choice.data_seconds,
        "predicted_shard_seconds": choice.shard_seconds,
        "choice": choice.choice,
        "rule": choice.rule,
        "winner": min(medians, key=lambda name: medians[name]),
        "bytes_sent": exchange.sent_bytes,
        "lean_bytes": round(lean),
    }


def _tail(mover: PeerMover, layer: FcLayer, scheme: Scheme) -> Tail:
    columns = all_bounds(layer.outputs, mover.size)
    width = columns[mover.rank + 1] - columns[mover.rank]
    arena = np.zeros(2 * (layer.inputs + 1) * width, dtype=np.float32)
    weight, weight_gradient = arena[: 2 * layer.inputs * width].reshape(2, layer.inputs, width)
    bias, bias_gradient = arena[2 * layer.inputs * width :].reshape(2, width)
    weight[...] = np.random.default_rng(mover.rank).standard_normal(weight.shape, dtype=np.float32)
    stage = Stage("fc", FcWeights(weight, bias, weight_gradient, bias_gradient), columns, ())
    return Tail([stage], mover, _no_loss, scheme=scheme, tracer=mover.tracer)


def _no_loss(logits: Array, labels: Array) -> tuple[float, Array]:
    """Layers within a network have gradients as dense as their outputs."""
    return 0.0, logits.copy()


def _time(communicator: Communicator, call: Callable[[], object], rounds: int, clock: Clock) -> list[float]:
    return [_once(communicator, call, clock) for _ in range(_WARMUP_ROUNDS + rounds)][_WARMUP_ROUNDS:]


def _once(communicator: Communicator, call: Callable[[], object], clock: Clock) -> float:
    communicator.allreduce(np.zeros(1, dtype=np.float32))  # all ranks begin together
    start = clock.now()
    call()
    return clock.now() - start
