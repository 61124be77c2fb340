"""A job's steps on the virtual clock: who takes part, where, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ps_server.aggregator import Aggregator
from taihu.coordination.plan import Plan
from taihu.job import Job
from taihu.layout import Layout
from taihu.optimization import LossScale
from taihu.planner.groups import group_bounds
from taihu.planner.partition import Framing, Shard
from taihu.planner.profile import Profile
from taihu.simulation.compute import Compute, Pace
from taihu.simulation.costs import costs_of, plan_of
from taihu.simulation.events import EventQueue
from taihu.simulation.fc import End, TailSteps, end_of
from taihu.simulation.network import Fabric, Host
from taihu.simulation.placement import Alike, Placement, check, servers_apart, workers_of
from taihu.simulation.ring import join_ring
from taihu.simulation.servers import SimulatedServer, join_servers
from taihu.simulation.sizes import Sizes
from taihu.simulation.sparse import join_sparse
from taihu.simulation.worker import Passes, SimulatedWorker
from taihu.trace import Tracer
from taihu.trace.parts import Part
from worker.exchange.step_rules import rules_of
from worker.training.step_record import StepRecord

__all__ = ["Simulated", "simulate_job"]

_LEAST_STEPS: Final = 2
_UNEVEN_STEPS: Final = 8
_ROUNDED: Final = 9


@dataclass(frozen=True)
class Simulated:
    """One step of a job in the long run: the mean of all but the first, of the worker that computes the longest.

    Attributes:
        seconds: from one step's end to the next one's.
        usual_seconds: that a worker computes which neither straggles nor jitters.
        compute_seconds: that this worker computed.
        compress_seconds: spent on selecting, beside compute.
        exchange_seconds: from the first push to the last update, of the last step.
        wait_seconds: in which the worker did not compute.
        worker_bytes, server_bytes: that one of them sent and received between hosts; of the one with the most.
        plan: by which the steps ran.
        events: that were simulated in all.
        parts: what all processes recorded, where steps are traced.
    """

    seconds: float
    usual_seconds: float
    compute_seconds: float
    compress_seconds: float
    exchange_seconds: float
    wait_seconds: float
    worker_bytes: tuple[int, int]
    server_bytes: tuple[int, int] | None
    plan: Plan
    events: int
    parts: tuple[Part, ...] = ()

    @property
    def efficiency(self) -> float:
        """The speed of each worker beside that of one alone."""
        return self.usual_seconds / self.seconds if self.seconds else 1.0

    def to_json(self) -> dict[str, Any]:
        """The step as results show it."""
        processes = {"worker": self.worker_bytes, "server": self.server_bytes}
        return {
            "seconds_per_step": self.seconds,
            "seconds_compute": self.compute_seconds,
            "seconds_compress": self.compress_seconds,
            "seconds_exchange": self.exchange_seconds,
            "seconds_wait": self.wait_seconds,
            "efficiency": self.efficiency,
            "groups": len(self.plan.groups),
            "bytes_per_process": {
                name: {"sent": sent_received[0], "received": sent_received[1]}
                for name, sent_received in processes.items()
                if sent_received is not None
            },
            "events": self.events,
        }


def simulate_job(
    job: Job,
    layout: Layout,
    compute: Compute,
    placement: Placement,
    profile: Profile | None = None,
    *,
    steps: int | None = None,
    traced: bool = False,
) -> Simulated:
    """Simulate `steps` steps of `job` by the plan that its coordinator would make.

    Args:
        job: `cluster.workers` and `cluster.servers` say how many there are.
        layout: of its model.
        compute: of a worker, for every layer of `layout`.
        placement: what it runs on.
        profile: where the costs of selecting are taken from.
        steps: at least 2, for the first one waits for nothing of a step before; by default so many, or 8 where steps
            differ.
        traced: whether all processes record what they do.

    Raises:
        ConfigError: the job cannot be simulated, or not on these machines.
    """
    enough = steps or (_UNEVEN_STEPS if placement.is_random else _LEAST_STEPS)
    return _Simulation(job, layout, compute, placement, profile, traced=traced).run(max(_LEAST_STEPS, enough))


class _Simulation:
    """One simulation: who takes part is made here, `run` lets them go."""

    def __init__(
        self,
        job: Job,
        layout: Layout,
        compute: Compute,
        placement: Placement,
        profile: Profile | None,
        *,
        traced: bool,
    ) -> None:
        check(job, placement)
        self._usual_seconds = compute.seconds
        end = end_of(job, layout, compute, placement.network, profile)
        if end is not None:
            layout, compute = end.layout, end.compute
        costs = costs_of(job, layout, compute, placement.network, profile)
        self._job, self._placement, self._compute, self._traced = job, placement, compute, traced
        self._tracers: list[tuple[str, Tracer]] = []
        self._bytes: list[list[tuple[float, float]]] = []
        self._queue = EventQueue()
        self._fabric = Fabric(self._queue, placement.network, placement.seed, placement.machines)
        self._plan = plan_of(job, layout, costs)
        self._sizes = Sizes(job, self._plan, costs, placement.machines)
        places = workers_of(job, placement)
        self._workers = [self._worker(at) for at in places]
        if end is not None:
            self._spread(end)
        self._servers: list[SimulatedServer] = []
        if job.servers:
            self._servers = [self._server(at, host) for at, host in self._server_hosts(places)]
            join_servers(self._workers, self._servers, job, self._sizes, self._fabric)
        else:
            join_peers = join_ring if job.compression.method == "none" else join_sparse
            join_peers(self._workers, job, self._plan, self._sizes, self._fabric)

    def run(self, steps: int) -> Simulated:
        """All steps, until all of the last one has been exchanged."""
        self._workers[0].on_step = self._count_bytes
        for worker in self._workers:
            worker.start(steps)
        self._queue.run()
        self._count_bytes()
        first, *others = max((worker.records for worker in self._workers), key=_computed_and_took)
        last = others[-1].sample()
        seconds = (others[-1].end_s - first.end_s) / len(others)
        computed = sum(record.sample().compute_seconds for record in others) / len(others)
        return Simulated(
            seconds=seconds,
            usual_seconds=self._usual_seconds,
            compute_seconds=computed,
            compress_seconds=last.compress_seconds,
            exchange_seconds=last.exchange_seconds,
            wait_seconds=seconds - computed,
            worker_bytes=self._most_bytes(0, len(self._workers), steps),
            server_bytes=self._most_bytes(len(self._workers), None, steps) if self._servers else None,
            plan=self._plan,
            events=self._queue.handled,
            parts=tuple(tracer.part(name, place) for place, (name, tracer) in enumerate(self._tracers)),
        )

    def _count_bytes(self) -> None:
        """Note what every host, first those of workers, has sent and received until the end of a step, or of all."""
        hosts = [*(worker.host for worker in self._workers), *(server.host for server in self._servers)]
        self._bytes.append([(host.sent_bytes, host.received_bytes) for host in hosts])

    def _most_bytes(self, first: int, stop: int | None, steps: int) -> tuple[int, int]:
        """The most that one of some hosts sent, and that one received, in a step.

        Where parameters are fetched, the first step fetches more than others and the last one less.
        """
        nothing = [(0.0, 0.0)] * len(self._bytes[0])
        fetches = rules_of(self._job, self._plan.layout.elements).fetches
        before, after, count = nothing, self._bytes[-1], steps
        if fetches:
            before, after, count = self._bytes[0], self._bytes[-2], steps - 1
        pairs = list(zip(before, after, strict=True))[first:stop]
        sent, received = (max(new[way] - old[way] for old, new in pairs) for way in (0, 1))
        return round(sent / count), round(received / count)

    def _spread(self, end: End) -> None:
        """Give every worker the end of the model, and the ends of all others."""
        alone = len(self._workers) == 1
        tails = [TailSteps(end, self._job, None if alone else rank) for rank in range(len(self._workers))]
        for rank, (worker, tail) in enumerate(zip(self._workers, tails, strict=True)):
            # Each begins with the next rank, so that not all are at one port first: connections share ports instead.
            others = [0] if alone else [(rank + ahead) % len(tails) for ahead in range(1, len(tails))]
            paths = [self._fabric.to_all(worker.host, self._workers[other].host) for other in others]
            tail.meet(
                [(other, tails[other], path) for other, path in zip(others, paths, strict=True)], worker.changed
            )
            worker.tail = tail

    def _worker(self, at: Alike) -> SimulatedWorker:
        job, plan, placement = self._job, self._plan, self._placement
        rules = rules_of(job, plan.layout.elements)
        rate = placement.machines.add_bytes_per_second
        widened = [4 * (stop - start) / rate for start, stop in group_bounds(plan.layout, plan.groups)]
        return SimulatedWorker(
            queue=self._queue,
            host=self._fabric.host(at.count, at.supernode),
            plan=plan,
            rules=replace(rules, agrees=not job.servers and job.holds_gradients, asks_early=bool(job.servers)),
            compute=self._compute,
            pace=Pace(placement.machines, at.last, job.cluster.workers, placement.seed),
            passes=Passes(self._sizes.compress_seconds, widened),
            scale=LossScale(job.train.loss_scale, job.train.loss_scale_growth_steps) if rules.holds else None,
            tracer=self._tracer(f"worker {at.first}"),
        )

    def _server(self, at: Alike, host: Host) -> SimulatedServer:
        job, plan = self._job, self._plan
        framing = Framing(Shard(plan.layout, job.servers, at.last), plan.groups, plan.frame_elements)
        aggregator: Aggregator[None] = Aggregator(
            job=job.name, plan=plan.version, workers=len(self._workers), frames=framing.frames
        )
        return SimulatedServer(
            at.first,
            aggregator,
            framing,
            host,
            job.cluster.workers,
            self._sizes,
            self._tracer(f"server {at.first}"),
        )

    def _server_hosts(self, places: Sequence[Alike]) -> Iterator[tuple[Alike, Host]]:
        for at in servers_apart(self._job, self._placement):
            yield at, self._fabric.host(at.count, at.supernode)
        for at, worker in zip(places, self._workers, strict=True):
            if at.servers:
                yield at, worker.host

    def _tracer(self, name: str) -> Tracer:
        if not self._traced:
            return Tracer.off()
        tracer = Tracer(lambda: self._queue.now)
        self._tracers.append((name, tracer))
        return tracer


def _computed_and_took(records: Sequence[StepRecord]) -> tuple[float, float]:
    """The seconds that a worker computed, and that its steps took, in all but the first."""
    computed = sum(record.end_s - record.start_s - record.waited_s for record in records[1:])
    # What was waited is rounded otherwise for workers that compute as long.
    return round(computed, _ROUNDED), records[-1].end_s - records[0].end_s
