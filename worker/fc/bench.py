"""One fully connected layer between real ranks: its gradient exchanged, or its activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.parts.shards import columns_to_rows, gather_rows, rows_to_columns, scatter_rows, sum_terms
from taihu.core.base.measure import spread
from taihu.core.planner.fc_mode import FcJob, FcLayer, FcLinks, choose_fc, step_seconds
from taihu.core.planner.partition import all_bounds
from taihu.core.trace import Tracer
from taihu.core.wire.base.clock import Clock, SystemClock
from taihu.worker.engine import Array, Run, StepContext
from taihu.worker.fc.mover import Background, PeerMover
from taihu.worker.fc.passes import Scheme
from taihu.worker.fc.probe import probe_links
from taihu.worker.fc.stage import FcWeights, Stage, product
from taihu.worker.fc.tail import Tail

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
            exchange = _DenseExchange(communicator, PeerMover(communicator, clock), layer, batch)
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
    flops: float | None = None,
    tracer: Tracer | None = None,
) -> list[dict[str, Any]]:
    """Forward, backward and transfers of a sharded layer by every scheme, in turns; all ranks call this.

    With `flops` products take as long as on a processor of so many operations a second, see `ModelledProducts`; then
    `products_seconds` are theirs, and `transfers_seconds` what the same steps take without products.

    `hidden_ratio` is the share of the time of the feature transfers that no rank waited for, `hidden_in_ratio` of
    those to the layer, `hidden_back_ratio` of those back; `saved_ratio` the share of `transfers_seconds` by which a
    step is shorter than products and transfers one after the other.
    """
    clock = SystemClock()
    rng = np.random.default_rng(communicator.rank)
    features = rng.standard_normal((batch, layer.inputs), dtype=np.float32)
    make = partial(_SchemeSteps, communicator, clock, layer)
    timed = [make(scheme, flops, tracer) for scheme in schemes]
    alone = [] if flops is None else [make(scheme, np.inf, None) for scheme in schemes]
    for number in range(_WARMUP_ROUNDS + rounds):
        for steps in (*timed, *alone):
            steps.step(features, number)
    sizes = {"inputs": layer.inputs, "outputs": layer.outputs, "batch": batch, "ranks": communicator.size}
    rows: list[dict[str, Any]] = []
    for steps in timed:
        own = steps.gathered()
        rows.append({**sizes, "scheme": steps.scheme, "seconds": spread(own.seconds), **own.hidden_ratios()})
        if flops is not None:
            rows[-1] |= {"gflops": flops / 1e9, "products_seconds": own.products_s / rounds}
    for row, steps in zip(rows, alone, strict=flops is not None):
        transfers = spread(steps.gathered().seconds)
        saved_s = row["products_seconds"] + transfers["median"] - row["seconds"]["median"]
        row.update(transfers_seconds=transfers, saved_ratio=saved_s / transfers["median"])
    return rows


class ModelledProducts:
    """Products that are not computed: they take as long as on a processor of `flops` operations a second.

    The thread sleeps, so that ranks of one machine do not share that processor.
    """

    def __init__(self, flops: float, clock: Clock) -> None:
        self.seconds = 0.0
        """Of all products so far."""
        self._flops = flops
        self._clock = clock

    def __call__(self, a: Array, b: Array, out: Array) -> None:
        """Take the time of a b; `out` stays as it is."""
        seconds = 2.0 * a.size * b.shape[1] / self._flops
        self.seconds += seconds
        if seconds:
            self._clock.sleep(seconds)


@dataclass(frozen=True)
class _OfAllRanks:
    """Steps that count: seconds until the last rank had ended each, means over the ranks of the rest."""

    seconds: list[float]
    products_s: float
    inward: Background
    back: Background

    def hidden_ratios(self) -> dict[str, float]:
        """The shares of the time of feature transfers that nobody waited for."""
        took_s = self.inward.took_s + self.back.took_s
        both = Background(took_s, self.inward.waited_s + self.back.waited_s)
        names = {"hidden_ratio": both, "hidden_in_ratio": self.inward, "hidden_back_ratio": self.back}
        # A thread that waits wakes up later than the transfer ends.
        return {name: max(0.0, 1.0 - times.waited_s / times.took_s) for name, times in names.items()}


class _SchemeSteps:
    """One scheme's steps, of which those of the first rounds do not count."""

    def __init__(  # noqa: PLR0917 - what a step is made of
        self,
        communicator: Communicator,
        clock: Clock,
        layer: FcLayer,
        scheme: Scheme,
        flops: float | None,
        tracer: Tracer | None,
    ) -> None:
        self.scheme = scheme
        self._communicator, self._clock = communicator, clock
        self._mover = PeerMover(communicator, clock, tracer)
        self._products = None if flops is None else ModelledProducts(flops, clock)
        self._tail = _tail(self._mover, layer, scheme, self._products)
        self._seconds: list[float] = []

    def step(self, features: Array, number: int) -> None:
        """Take step `number`."""
        if number == _WARMUP_ROUNDS:
            self._mover.background.clear()
            if self._products is not None:
                self._products.seconds = 0.0
        run = Run(StepContext(training=True, seed=0, step=number, first_sample=0))
        self._mover.step = number
        # Products that take time alone leave what lay in memory, of which sums may be too large for a number.
        with np.errstate(over="ignore", invalid="ignore"):
            took = _once(self._communicator, partial(self._tail.train, features, features[:, 0], run), self._clock)
        if number >= _WARMUP_ROUNDS:
            stop = self._clock.now()
            self._mover.tracer.add("step", self.scheme, stop - took, stop, step=number)
            self._seconds.append(took)

    def gathered(self) -> _OfAllRanks:
        """The times of all ranks; they all call this."""
        size, rank = self._communicator.size, self._communicator.rank
        inward, back = (self._mover.background[name] for name in ("gather", "scatter"))
        products_s = 0.0 if self._products is None else self._products.seconds
        own = [products_s, inward.took_s, inward.waited_s, back.took_s, back.waited_s, *self._seconds]
        everybody = np.zeros((size, len(own)), dtype=np.float32)
        everybody[rank] = own
        self._communicator.allreduce(everybody.reshape(-1))
        mean_products, *times = everybody[:, :5].mean(axis=0).tolist()
        return _OfAllRanks(
            everybody[:, 5:].max(axis=0).tolist(), mean_products, Background(*times[:2]), Background(*times[2:])
        )


class _DenseExchange:
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
    exchange: _DenseExchange,
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


def _tail(mover: PeerMover, layer: FcLayer, scheme: Scheme, products: ModelledProducts | None) -> Tail:
    columns = all_bounds(layer.outputs, mover.size)
    width = columns[mover.rank + 1] - columns[mover.rank]
    arena = np.zeros(2 * (layer.inputs + 1) * width, dtype=np.float32)
    weight, weight_gradient = arena[: 2 * layer.inputs * width].reshape(2, layer.inputs, width)
    bias, bias_gradient = arena[2 * layer.inputs * width :].reshape(2, width)
    if products is None:
        weight[...] = np.random.default_rng(mover.rank).standard_normal(weight.shape, dtype=np.float32)
    weights = FcWeights(weight, bias, weight_gradient, bias_gradient)
    stage = Stage("fc", weights, columns, (), product if products is None else products)
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
