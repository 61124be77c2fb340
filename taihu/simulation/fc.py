"""The fully connected end of a model, some layers of which are spread over the workers, on the virtual clock.

Which layers are is `choose_fc`'s decision, as before a run's first step, and the passes are `plan_passes`'. What
moves in them is what `worker.fc.tail` moves: all features of all examples to a spread layer, its columns back to
their rows where the next one is whole, and the same the other way in backward. Workers that do the same at once are
one; where they take turns, each is simulated for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, takewhile
from typing import Final

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.fc_mode import FcJob, FcLayer, FcLinks, choose_fc
from taihu.core.planner.profile import Profile
from taihu.core.wire.frames.format import HEADER_BYTES
from taihu.simulation.compute import Compute, Segments
from taihu.simulation.events import EventQueue
from taihu.simulation.machines import Network
from taihu.simulation.network import Fabric, Path
from taihu.worker.fc.passes import Pass, plan_passes

_VALUE_BYTES: Final = 4

_Values = Callable[[Pass, float, int, int], float]


@dataclass(frozen=True)
class Stage:
    """One fully connected layer of the end: K inputs, N outputs, and the seconds of its own part of the products."""

    name: str
    inputs: int
    outputs: int
    is_spread: bool
    forward_seconds: float
    backward_seconds: float


@dataclass(frozen=True)
class End:
    """A model whose end is in part spread.

    Attributes:
        stages: of the end, in forward order.
        layout: of what is exchanged, its first layers those of the end that are not spread.
        compute: of the layers of `layout`; those of the end take none there.
        whole: how many of `layout` belong to the end.
    """

    stages: tuple[Stage, ...]
    layout: Layout
    compute: Compute
    whole: int


def end_of(job: Job, layout: Layout, compute: Compute, network: Network, profile: Profile | None) -> End | None:
    """The end of the model if any layer of it is to be spread.

    Raises:
        ConfigError: all are to be, and none can.
    """
    if job.exchange.fc == "data":
        return None
    known = _connected(layout, profile)
    names = list(takewhile(known.__contains__, (layer.name for layer in layout.layers)))
    layers = [known[name] for name in reversed(names)]
    facts = FcJob(job.train.batch, job.world.workers, job.servers)
    insist, everything = job.exchange.fc == "shard", len(layers) == len(layout.layers)
    choices = choose_fc(layers, facts, _links(job, network), insist=insist, leave_one=everything)
    spread = {choice.layer.name for choice in choices if choice.choice == "shard"}
    if not spread:
        if insist and job.world.workers > 1:
            raise ConfigError(
                f"exchange.fc 'shard': model {job.model.name} has no fully connected layer at its end that can be "
                f"split over {job.world.workers} workers; set exchange.fc = 'data'"
            )
        return None
    return _end(layout, compute, layers, spread)


def _end(layout: Layout, compute: Compute, layers: Sequence[FcLayer], spread: set[str]) -> End:
    index_of = {layer.name: index for index, layer in enumerate(layout.layers)}
    stages = tuple(
        Stage(
            layer.name,
            layer.inputs,
            layer.outputs,
            layer.name in spread,
            compute.forward[index_of[layer.name]],
            compute.backward[index_of[layer.name]],
        )
        for layer in layers
    )
    kept = [index for index, layer in enumerate(layout.layers) if layer.name not in spread]
    at_end = {index_of[layer.name] for layer in layers}
    forward, backward = (
        tuple(0.0 if index in at_end else seconds[index] for index in kept)
        for seconds in (compute.forward, compute.backward)
    )
    rest = Layout(tuple(layout.layers[index] for index in kept))
    whole = sum(index in at_end for index in kept)
    return End(stages, rest, Compute(compute.source, forward, backward, _before(compute, len(at_end), whole)), whole)


def _before(compute: Compute, of_end: int, whole: int) -> Segments:
    """The segments that are run again before the end, which has so many layers, of which `whole` are exchanged.

    They are those of the whole model, although a run cuts what is before the end by itself.
    """
    moved = ((max(first, of_end), last) for first, last in compute.run_again if last >= of_end)
    return tuple((first - of_end + whole, last - of_end + whole) for first, last in moved)


def _connected(layout: Layout, profile: Profile | None) -> dict[str, FcLayer]:
    """The layers whose weights are matrices: a profile says which, as its layout knows no shapes."""
    if profile is not None:
        return {layer.name: layer for layer in profile.fc_layers}
    shapes = {layer.name: layer.tensors[0].shape for layer in layout.layers if layer.tensors}
    return {name: FcLayer(name, shape[0], shape[1]) for name, shape in shapes.items() if len(shape) == 2}


def _links(job: Job, network: Network) -> FcLinks:
    """The links as the workers' probe before the first step would find them."""
    start_up = network.alpha_seconds + network.message_seconds
    exchange = 2.0 * start_up * (1 if job.servers else max(1, job.world.workers - 1))
    return FcLinks(start_up, exchange, 1.0 / network.bytes_per_second)


class TailSteps:
    """The end of one step on one worker: computes, and moves parts to all others; `meet` comes first.

    Transfers are numbered in the order in which all workers make them, so that what comes early is known.

    Args:
        end: of the model.
        job: of the run.
        rank: of the worker; None if it stands for all of them, which do the same at the same time.
    """

    def __init__(self, end: End, job: Job, rank: int | None) -> None:
        self._end = end
        self._workers = job.world.workers
        self._passes = plan_passes(job.exchange.fc_scheme, self._workers, job.train.batch)
        self._rows = self._workers * job.train.batch
        self._rank = rank
        self._others: Sequence[tuple[int, TailSteps, Path]] = ()
        self._later: Callable[[], None] = lambda: None
        self._moves = count()
        self._came: Counter[int] = Counter()

    def meet(self, others: Sequence[tuple[int, TailSteps, Path]], later: Callable[[], None]) -> None:
        """Send to `others`, which are a rank, its end and the way there each; `later` is told of what comes.

        Who stands for all sends to one other, itself.
        """
        self._others, self._later = others, later

    @property
    def seconds(self) -> float:
        """Compute of a step."""
        return sum(stage.forward_seconds + stage.backward_seconds for stage in self._end.stages)

    def step(self, pace: float) -> Iterator[float | Callable[[], bool]]:
        """Forward and backward of all passes."""
        stages, returning = self._end.stages, list[Callable[[], bool]]()
        arriving = self._forward(None, stages[0], self._passes[0])
        for number, one in enumerate(self._passes):
            share = pace * one.rows[-1] / self._rows
            yield arriving
            if number + 1 < len(self._passes):
                arriving = self._forward(None, stages[0], self._passes[number + 1])
            for before, stage in zip((None, *stages[:-1]), stages, strict=True):
                if before is not None:
                    yield self._forward(before, stage, one)
                yield stage.forward_seconds * share
            yield self._forward(stages[-1], None, one)
            yield self._back(stages[-1], None, one)
            for stage, before in zip(reversed(stages), (*reversed(stages[:-1]), None), strict=True):
                yield stage.backward_seconds * share / 2.0
                if before is not None:
                    yield self._back(before, stage, one)
            returning.append(self._back(None, stages[0], one))
        yield sum(stage.backward_seconds for stage in stages) * pace / 2.0
        yield from returning

    def _forward(self, before: Stage | None, stage: Stage | None, one: Pass) -> Callable[[], bool]:
        """Values between two stages go to where the second one needs them; None is what is outside the end."""
        return self._bring(before, stage, one, (_of_rows, _to_rows))

    def _back(self, before: Stage | None, stage: Stage | None, one: Pass) -> Callable[[], bool]:
        """Their gradient goes back."""
        return self._bring(before, stage, one, (_to_rows, _of_rows))

    def _bring(
        self, before: Stage | None, stage: Stage | None, one: Pass, ways: tuple[_Values, _Values]
    ) -> Callable[[], bool]:
        """Move all features of rows by the first of `ways`, or the own columns by the second one."""
        into_spread, of_spread = ways
        if before is not None and before.is_spread:
            way = _of_columns if stage is not None and stage.is_spread else of_spread
            return self._move(partial(way, one, before.outputs / self._workers))
        if stage is not None and stage.is_spread:
            return self._move(partial(into_spread, one, stage.inputs))
        return self._move(None)

    def _move(self, values: Callable[[int, int], float] | None) -> Callable[[], bool]:
        """Send `values(from, to)` to each other worker, as they do; returns whether all have come."""
        if values is None:
            return lambda: True
        number, own, expected = next(self._moves), self._rank or 0, 0
        for rank, tail, path in self._others:
            there, back = values(own, rank), values(rank, own)
            expected += back > 0
            if there > 0:
                path.send(HEADER_BYTES + _VALUE_BYTES * there, tail.arrived, number)
        return lambda: self._came[number] == expected

    def arrived(self, number: int) -> None:
        """A part of a transfer has come."""
        self._came[number] += 1
        self._later()


def _rows_of(one: Pass, rank: int) -> int:
    return one.rows[rank + 1] - one.rows[rank]


def _of_rows(one: Pass, values: float, sender: int, receiver: int) -> float:
    """`values` of each of the sender's rows."""
    return values * _rows_of(one, sender)


def _to_rows(one: Pass, values: float, sender: int, receiver: int) -> float:
    """`values` of each of the receiver's rows."""
    return values * _rows_of(one, receiver)


def _of_columns(one: Pass, values: float, sender: int, receiver: int) -> float:
    """`values` of all rows."""
    return values * one.rows[-1]


def seconds_alone(stage: Stage, job: Job, network: Network) -> float:
    """Seconds of the passes through one spread layer, when nothing else is exchanged."""
    queue = EventQueue()
    fabric = Fabric(queue, network, 0)
    workers = fabric.host(job.world.workers)
    tail = TailSteps(End((stage,), Layout(()), Compute("none", (), ()), 0), job, None)
    tail.meet([(0, tail, fabric.to_all(workers, workers))], lambda: None)
    for wanted in tail.step(1.0):
        if isinstance(wanted, float):
            queue.now += wanted
        else:
            queue.run()
    return queue.now
