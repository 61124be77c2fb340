"""The fully connected end of a model, some layers of which are spread over the workers, on the virtual clock.

Which layers are is `choose_fc`'s decision, as before a run's first step, and the passes are `plan_passes`'. What
moves in them is what `worker.fc.tail` moves: all features of all examples to a spread layer, its columns back to
their rows where the next one is whole, and the same the other way in backward. All workers do the same at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from taihu.errors import ConfigError
from taihu.job import Job
from taihu.layout import Layout
from taihu.planner.fc_mode import FcJob, FcLayer, FcLinks, choose_fc
from taihu.planner.profile import Profile
from taihu.simulation.compute import Compute
from taihu.simulation.events import EventQueue
from taihu.simulation.machines import Network
from taihu.simulation.network import Fabric, Path
from taihu.wire.direct_frames import HEADER_BYTES
from worker.fc.passes import plan_passes

__all__ = ["End", "Stage", "TailSteps", "end_of", "seconds_alone"]

_VALUE_BYTES: Final = 4


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
    facts = FcJob(job.train.batch, job.cluster.workers, job.servers)
    insist, everything = job.exchange.fc == "shard", len(layers) == len(layout.layers)
    choices = choose_fc(layers, facts, _links(job, network), insist=insist, leave_one=everything)
    spread = {choice.layer.name for choice in choices if choice.choice == "shard"}
    if not spread:
        if insist and job.cluster.workers > 1:
            raise ConfigError(
                f"exchange.fc 'shard': model {job.model.name} has no fully connected layer at its end that can be "
                f"split over {job.cluster.workers} workers; set exchange.fc = 'data'"
            )
        return None
    if job.exchange.fc_scheme == "turns":
        raise ConfigError("exchange.fc_scheme 'turns' is not simulated: workers differ; set gather or slices")
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
    return End(stages, rest, Compute(compute.source, forward, backward), sum(index in at_end for index in kept))


def _connected(layout: Layout, profile: Profile | None) -> dict[str, FcLayer]:
    """The layers whose weights are matrices: a profile says which, as its layout knows no shapes."""
    if profile is not None:
        return {layer.name: layer for layer in profile.fc_layers}
    shapes = {layer.name: layer.tensors[0].shape for layer in layout.layers if layer.tensors}
    return {name: FcLayer(name, shape[0], shape[1]) for name, shape in shapes.items() if len(shape) == 2}


def _links(job: Job, network: Network) -> FcLinks:
    """The links as the workers' probe before the first step would find them."""
    start_up = network.alpha_seconds + network.message_seconds
    exchange = 2.0 * start_up * (1 if job.servers else max(1, job.cluster.workers - 1))
    return FcLinks(start_up, exchange, 1.0 / network.bytes_per_second)


class TailSteps:
    """The end of one step on one worker: computes, and moves parts by `path` to all others."""

    def __init__(self, end: End, job: Job, path: Path, later: Callable[[], None]) -> None:
        self._end = end
        self._workers = job.cluster.workers
        passes = plan_passes(job.exchange.fc_scheme, self._workers, job.train.batch)
        self._passes = len(passes)
        self._rows = job.train.batch / self._passes
        self._path = path
        self._later = later

    @property
    def seconds(self) -> float:
        """Compute of a step."""
        return sum(stage.forward_seconds + stage.backward_seconds for stage in self._end.stages)

    def step(self, pace: float) -> Iterator[float | Callable[[], bool]]:
        """Forward and backward of all passes."""
        stages, returning = self._end.stages, list[Callable[[], bool]]()
        arriving = self._features()
        for number in range(self._passes):
            yield arriving
            if number + 1 < self._passes:
                arriving = self._features()
            for before, stage in zip((None, *stages[:-1]), stages, strict=True):
                if before is not None:
                    yield self._move(self._between(before, stage))
                yield stage.forward_seconds * pace / self._passes
            yield self._move(self._out(stages[-1]))
            yield self._move(self._out(stages[-1]))
            for stage, before in zip(reversed(stages), (*reversed(stages[:-1]), None), strict=True):
                yield stage.backward_seconds * pace / self._passes / 2.0
                if before is not None:
                    yield self._move(self._between(before, stage))
            returning.append(self._features())
        yield sum(stage.backward_seconds for stage in stages) * pace / 2.0
        yield from returning

    def _features(self) -> Callable[[], bool]:
        first = self._end.stages[0]
        return self._move(first.inputs if first.is_spread else 0)

    def _out(self, last: Stage) -> float:
        return last.outputs / self._workers if last.is_spread else 0

    def _between(self, before: Stage, stage: Stage) -> float:
        """Values of an example that each other worker gets of what is between two layers."""
        if stage.is_spread:
            return stage.inputs
        return stage.inputs / self._workers if before.is_spread else 0

    def _move(self, values: float) -> Callable[[], bool]:
        """Send so many values of each own example to each other worker; returns whether all have come."""
        if not values:
            return lambda: True
        came: list[None] = []

        def arrived() -> None:
            came.append(None)
            self._later()

        self._path.send(HEADER_BYTES + _VALUE_BYTES * values * self._rows, arrived)
        return lambda: bool(came)


def seconds_alone(stage: Stage, job: Job, network: Network) -> float:
    """Seconds of the passes through one spread layer, when nothing else is exchanged."""
    queue = EventQueue()
    fabric = Fabric(queue, network, 0)
    workers = fabric.host(job.cluster.workers)
    end = End((stage,), Layout(()), Compute("none", (), ()), 0)
    for wanted in TailSteps(end, job, fabric.to_all(workers, workers), lambda: None).step(1.0):
        if isinstance(wanted, float):
            queue.now += wanted
        else:
            queue.run()
    return queue.now
