"""A real job and its simulation: the same inputs of every rank's step protocol in the same order, and the same sums.

In one test compute takes much longer than any message, in the simulation by the clock; in the real job every group is
waited for before the next one is pushed. In the other one the real job computes for random times, and the simulation
has what every computation and every message of it took: what overtakes what is the same. What is pushed and updated,
and what is asked for and comes, is compared by event.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, groupby
from random import Random
from time import sleep
from typing import Any, Literal

import pytest
from support.cluster import layout_of
from support.exchanges import run_workers
from support.simulations import job_of, simulated
from support.told_events import Event, Told, ToldProtocol
from support.worker import Worker, train_slowly

import taihu.ps_server.server_shard
import taihu.simulation.members
import taihu.simulation.ring
import taihu.simulation.sparse
import taihu.simulation.worker
import taihu.worker.exchange.shell
from taihu.core.coordination.plans.plan import Plan
from taihu.simulation.events import EventQueue
from taihu.simulation.network import Fabric, Host, Path
from taihu.simulation.sparse import _Operation, _Rank
from taihu.simulation.worker import Passes, SimulatedWorker
from taihu.worker.exchange.step_actions import Ask, Widen

SIZES = (700, 40, 1200, 90, 300)
STEPS, RANKS = 3, 3
Way = Literal["forward", "backward"]
Key = tuple[int, int, int]


def in_order_of_asking(events: list[Event]) -> list[Event]:
    """Questions and what came of them; of what came at about the same time first what was asked for first.

    Servers are threads, and what is widened between them waits for another one.
    """
    ordered = list[Event]()
    told = [event for event in events if event[0] != "widened"]
    for _, run in groupby(told, lambda event: event[0]):
        same = list(run)
        ordered += sorted(same, reverse=True) if same[0][0] == "came" else same
    return ordered


@pytest.mark.parametrize(
    ("servers", "sections"),
    [
        (1, {}),
        (2, {"exchange": {"zero": 3}}),
        (1, {"exchange": {"zero": 2}, "train": {"precision": "bf16"}}),
        (0, {}),
        (0, {"exchange": {"zero": 3}}),
    ],
)
def test_events_have_the_order_of_a_real_job(
    servers: int, sections: Mapping[str, Mapping[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    over = {**sections, "exchange": {"plan": "per-layer", "transport": "tcp", **sections.get("exchange", {})}}
    job = job_of(2, servers, **over)
    with Told().listening(monkeypatch, taihu.worker.exchange.shell, taihu.ps_server.server_shard) as real:
        run_workers(job, layout_of(*SIZES), partial(train_slowly, steps=STEPS))
    with Told().listening(monkeypatch, taihu.simulation.worker, taihu.simulation.members) as own:
        simulated(job, SIZES, each=1.0, distinct=True, steps=STEPS)
    assert own.pushed == real.pushed
    assert [*map(in_order_of_asking, own.fetched)] == [*map(in_order_of_asking, real.fetched)]
    assert sorted(own.summed) == sorted(real.summed)
    pushes = [("push", step, group) for step in range(1, STEPS + 1) for group in range(len(SIZES))]
    assert [[event for event in events if event[0] == "push"] for events in own.pushed] == [pushes] * 2


@dataclass
class Measured:
    """Seconds that a real job took for each of its parts, which lie between two of its events."""

    told: Told
    ranks: dict[int, ToldProtocol] = field(default_factory=dict)
    computed: dict[tuple[int, int, Way, int], float] = field(default_factory=dict)

    def up(self, rank: int, server: int, group: int, step: int) -> float:
        """From a push until the server had it."""
        return self.told.offered[server, group, step][rank] - self.ranks[rank].pushes[step, group]

    def down(self, rank: int, server: int, group: int, step: int) -> float:
        """Seconds from the last worker's push, at the server, until this worker had been updated."""
        complete = max(self.told.offered[server, group, step].values())
        return self.ranks[rank].updates[server, group, step] - complete

    def together(self, rank: int, group: int, step: int) -> float:
        """Seconds from the last rank's push until this one had the sum, where ranks meet."""
        last = max(protocol.pushes[step, group] for protocol in self.ranks.values())
        return self.ranks[rank].updates[0, group, step] - last

    def gathered(self, rank: int, group: int, number: int) -> float:
        """Seconds from the last rank's question for a group's parameters, of that number, until this one had them."""
        times = [self.ranks[each].told_parameters.gathered[group][number] for each in range(RANKS)]
        return times[rank][1] - max(asked for asked, _ in times)

    def widened(self, rank: int, group: int) -> float:
        """From the next wish to widen a group's parameters until that was done."""
        return self.ranks[rank].told_parameters.widening[group].popleft()

    def fetched(self, rank: int, server: int, group: int) -> float:
        """From the next question, or from the answer that it waits for, until the parameters were there."""
        return self.ranks[rank].told_parameters.came[server, group].popleft()

    def train(self, worker: Worker) -> None:
        """Some steps with computations of random lengths, whose seconds are measured."""
        exchange, rank, groups = worker.exchange, worker.rank, len(worker.bounds)
        protocol = exchange._protocol
        assert isinstance(protocol, ToldProtocol)
        self.ranks[rank] = protocol
        pace = Random(rank)
        begun: tuple[int, Way, int] | None = None
        start = self.told.origin

        def compute(step: int, way: Way, group: int) -> None:
            """A turn ends what was computed before it, unless that ended with a push; the next begins."""
            nonlocal begun, start
            reached = protocol.reached()
            if begun is not None and begun[1] == "forward":
                self.computed[rank, *begun] = reached - start
            begun, start = (step, way, group), max(reached, protocol.there(way, group, step))
            sleep(pace.uniform(0.0, 0.003))

        for step in range(1, STEPS + 1):
            for group in reversed(range(groups)):
                protocol.reach()
                exchange.wait(group)
                compute(step, "forward", group)
            for group in range(groups):
                protocol.reach()
                if not group:
                    exchange.begin(step)
                exchange.prepare(group)
                compute(step, "backward", group)
                exchange.push(group)
                self.computed[rank, step, "backward", group] = protocol.pushes[step, group] - start
                if pace.random() < 0.2:
                    sleep(0.01)  # on a busy machine a thread is late: what it does next counts from when it could
        for group in range(groups):
            exchange.complete(group)


class MeasuredPath(Path):
    """Messages take as long as they really did."""

    measured: Measured

    def send(self, size_bytes: float, deliver: Callable[..., None], *args: Any, **way: object) -> None:
        """Send a push, a question, an answer or parameters."""
        del way
        now, seconds = self._queue.now, 0.0
        if deliver.__name__ in {"push", "ask"}:
            link, frame, at = args
        else:
            (frame, at, *_), link = args, deliver.__self__  # type: ignore[attr-defined]
        place = link.sender.rank, link._server.index, frame.group
        match deliver.__name__:
            case "push":
                seconds = self.measured.up(*place, at.step)
            case "answered":
                seconds = self.measured.down(*place, at.step)
            case "fetched":
                seconds = self.measured.fetched(*place)
        self._queue.at(now + seconds, deliver, *args)


class MeasuredRanks:
    """Operations of all ranks end so long after the last of these has begun as they really did.

    Args:
        seconds: of a rank, from a group and a number: that of the step for sums, of the turn for what is gathered.
        queue: the clock.
    """

    def __init__(self, seconds: Callable[[int, int, int], float], queue: EventQueue) -> None:
        self._seconds, self._queue = seconds, queue
        self._waiting: dict[tuple[int, int], dict[int, Callable[[], None]]] = defaultdict(dict)

    def start(self, rank: int, group: int, number: int, end: Callable[[], None]) -> None:
        """One rank takes part."""
        waiting = self._waiting[group, number]
        waiting[rank] = end
        if len(waiting) == RANKS:
            for each, call in waiting.items():
                self._queue.at(self._queue.now + self._seconds(each, group, number), call)


class MeasuredRing:
    """Dense operations."""

    measured: Measured

    def __init__(self, fabric: Fabric, *_: object) -> None:
        self._sums = MeasuredRanks(self.measured.together, fabric.queue)
        self._gathers = MeasuredRanks(self.measured.gathered, fabric.queue)
        self._numbers: dict[tuple[int, int], Iterator[int]] = defaultdict(count)

    def start(self, rank: int, key: Key, chunks: object, phase: str, end: Callable[[float], None], _: object) -> None:
        """One rank takes part."""
        step, group, _number = key
        if phase == "allgather":
            self._gathers.start(rank, group, next(self._numbers[rank, group]), lambda: end(0.0))
        else:
            self._sums.start(rank, group, step, lambda: end(0.0))


class MeasuredSparseRank(_Rank):
    """A rank in sparse operations; a frame is a group."""

    measured: Measured
    met: MeasuredRanks

    def meet(self, ranks: Sequence[_Rank]) -> None:
        """The first one knows of all."""
        first = ranks[0]
        assert isinstance(first, MeasuredSparseRank)
        if first is self:
            self.met = MeasuredRanks(self.measured.together, self.worker.queue)
        self.met = first.met

    def start(
        self, key: tuple[int, int], exchange: Any, elements: int, on_finished: Callable[[_Operation], None]
    ) -> None:
        step, group = key
        self.met.start(self.index, group, step, lambda: on_finished(_Operation(exchange)))


def measured_parts(measured: Measured) -> tuple[type[Fabric], type[SimulatedWorker]]:
    """Links and workers of a simulation that take as long as was measured."""

    class OwnPath(MeasuredPath):
        """A path of this job."""

    OwnPath.measured = measured

    class OwnFabric(Fabric):
        """Has such paths."""

        def to_all(self, source: Host, target: Host) -> Path:
            return OwnPath(self, source, target, (1, 1), 0.0)

    class OwnWorker(SimulatedWorker):
        """Computes as long as the real one of its rank."""

        number = 0

        def __init__(self, *, queue: EventQueue, **of: Any) -> None:
            super().__init__(queue=queue, **of)
            self.rank, OwnWorker.number = OwnWorker.number, OwnWorker.number + 1

        def adopt(self, plan: Plan, passes: Passes) -> None:
            """Selecting takes nothing here: it is in what was measured from a push."""
            super().adopt(plan, replace(passes, compress=[0.0] * len(SIZES)))

        def seconds(self, step: int, way: Way, first: int, last: int) -> float:
            assert first == last
            return measured.computed[self.rank, step, way, first]

        def _bring(self, action: Ask | Widen) -> None:
            """Widening ends when it really did, whatever else its thread had to do."""
            if isinstance(action, Widen):
                seconds = measured.widened(self.rank, action.group)
                self.queue.at(self.queue.now + seconds, self._widened, action.group)
            else:
                super()._bring(action)

    return OwnFabric, OwnWorker


DLGS = {"method": "dlgs", "density": 0.1}
# Nothing is looked up in sums, which are not made here.
DENSE_DOWN = {**DLGS, "downlink": "dense"}
BF16 = {"train": {"precision": "bf16"}}


@pytest.mark.parametrize(
    ("servers", "zero", "sections"),
    [
        (1, 1, {}),
        (2, 2, {}),
        (2, 3, {}),
        (2, 1, {"compression": DLGS}),
        (2, 2, BF16),
        (1, 3, BF16),
        (0, 0, {}),
        (0, 1, {}),
        (0, 2, {}),
        (0, 3, {}),
        (0, 2, BF16),
        (0, 3, BF16),
        (0, 0, {"compression": DENSE_DOWN}),
    ],
)
def test_events_have_their_order_with_the_times_that_were_measured(
    servers: int, zero: int, sections: Mapping[str, Mapping[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(RANKS, servers, exchange={"plan": "per-layer", "transport": "tcp", "zero": zero}, **sections)
    measured = Measured(Told())
    with measured.told.listening(monkeypatch, taihu.worker.exchange.shell, taihu.ps_server.server_shard) as real:
        run_workers(job, layout_of(*SIZES), measured.train)
    fabric, simulated_worker = measured_parts(measured)
    monkeypatch.setattr(taihu.simulation.members, "Fabric", fabric)
    monkeypatch.setattr(taihu.simulation.members, "SimulatedWorker", simulated_worker)
    MeasuredRing.measured = MeasuredSparseRank.measured = measured
    monkeypatch.setattr(taihu.simulation.ring, "_EachRank", MeasuredRing)
    monkeypatch.setattr(taihu.simulation.sparse, "_Rank", MeasuredSparseRank)
    with Told().listening(monkeypatch, taihu.simulation.worker, taihu.simulation.members) as own:
        simulated(job, SIZES, distinct=True, steps=STEPS)
    ranks = [measured.ranks[rank] for rank in range(3)]
    assert own.pushed == [protocol.events for protocol in ranks]
    assert own.fetched == [protocol.told_parameters.by_instants for protocol in ranks]
    assert sorted(own.summed) == sorted(real.summed)
