"""The workers and servers of a job on one virtual clock, with what lies between them, by one plan after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from taihu.core.coordination.membership.members import Role
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.optimization import LossScale
from taihu.core.planner.groups import group_bounds
from taihu.core.planner.profile import Profile
from taihu.core.trace import Tracer
from taihu.core.trace.parts import TracePart
from taihu.simulation.compute import Compute, Pace
from taihu.simulation.costs import costs_of
from taihu.simulation.events import EventQueue
from taihu.simulation.fc import TailSteps, end_of
from taihu.simulation.network import Fabric, Host
from taihu.simulation.placement import Alike, Placement, check, servers_apart, workers_of
from taihu.simulation.ring import join_ring
from taihu.simulation.servers import SimulatedServer, join_servers
from taihu.simulation.sizes import Sizes
from taihu.simulation.sparse import join_sparse
from taihu.simulation.worker import Passes, SimulatedWorker
from taihu.worker.exchange.step_rules import rules_of
from taihu.worker.training.calibration import Measuring, Unmeasured

_FP32_BYTES: Final = 4


class Traffic:
    """Bytes of all hosts at the end of every step of the first worker, and whenever else they are noted."""

    def __init__(self, workers: Sequence[Host], servers: Sequence[Host]) -> None:
        self._hosts = [*workers, *servers]
        self._workers = len(workers)
        self._bytes = [[(0.0, 0.0)] * len(self._hosts)]

    def note(self) -> None:
        """Note what every host has sent and received until now."""
        self._bytes.append([(host.sent_bytes, host.received_bytes) for host in self._hosts])

    def most(self, first: int, last: int, steps: int, role: Role) -> tuple[int, int] | None:
        """The most that a host with a process of this role sent, and received, in each of the `steps` between notes.

        None where there is no such process.
        """
        hosts = slice(None, self._workers) if role is Role.WORKER else slice(self._workers, None)
        pairs = list(zip(self._bytes[first][hosts], self._bytes[last][hosts], strict=True))
        if not pairs:
            return None
        sent, received = (max(new[way] - old[way] for old, new in pairs) for way in (0, 1))
        return round(sent / steps), round(received / steps)


class Members:
    """Workers and servers; `join` comes first, and again with every other plan, when nothing is under way.

    Args:
        job: its world says how many there are.
        layout: of its model.
        compute: of a worker, for every layer of `layout`.
        placement: what it runs on.
        profile: where the costs of selecting are taken from.
        measuring: the steps that are measured; None if none is.
        traced: whether all processes record what they do.

    Attributes:
        layout: of what is exchanged.
        costs: of the links as the model of the network has them.
        queue: the clock.
        places: the workers' ranks, those that are alike together.
        workers: one for each of them.
        servers: those of the present plan.
        traffic: of their hosts.

    Raises:
        ConfigError: the job cannot be simulated, or not on these machines.
    """

    def __init__(
        self,
        job: Job,
        layout: Layout,
        compute: Compute,
        placement: Placement,
        profile: Profile | None,
        *,
        measuring: Measuring | None = None,
        traced: bool = False,
    ) -> None:
        check(job, placement)
        self._end = end_of(job, layout, compute, placement.network, profile)
        self.layout = layout if self._end is None else self._end.layout
        self._compute = compute if self._end is None else self._end.compute
        self.costs = costs_of(job, self.layout, self._compute, placement.felt_network, profile)
        self._job, self._placement, self._measuring, self._traced = job, placement, measuring, traced
        self._rules = rules_of(job, self.layout.elements)
        self._tracers: dict[str, Tracer] = {}
        self.queue = EventQueue()
        self._fabric = Fabric(self.queue, placement.network, placement.seed, placement.machines)
        self.places = workers_of(job, placement)
        hosts = [self._fabric.host(at.count, at.supernode) for at in self.places]
        self._server_hosts = list(self._hosts_of_servers(hosts)) if job.servers else []
        self.traffic = Traffic(hosts, [host for _, host in self._server_hosts])
        self.workers = [self._worker(at, host) for at, host in zip(self.places, hosts, strict=True)]
        self.servers: list[SimulatedServer] = []

    @property
    def parts(self) -> tuple[TracePart, ...]:
        """The records of all processes, where they make any."""
        return tuple(tracer.part(name, place) for place, (name, tracer) in enumerate(self._tracers.items()))

    def join(self, plan: Plan, *, last_step: int) -> None:
        """All go on by `plan` after `last_step`."""
        job, placement = self._job, self._placement
        sizes = Sizes(job, plan, self.costs, placement.machines)
        rate = placement.machines.add_bytes_per_second
        widened = [4 * (stop - start) / rate for start, stop in group_bounds(plan.layout, plan.groups)]
        passes = Passes(widened, *sizes.selecting(by_steps=self._measuring is not None))
        tails = self._tails()
        if job.servers:
            self.servers = [self._server(at, host, plan, sizes, last_step) for at, host in self._server_hosts]
            routes = join_servers(self.workers, self.servers, job, plan, sizes, self._fabric)
        else:
            join_peers = join_sparse if job.compression.method.selects else join_ring
            routes = join_peers(self.workers, job, plan, sizes, self._fabric)
        for worker, route, tail in zip(self.workers, routes, tails, strict=True):
            worker.adopt(plan, passes, route, tail)

    def renew(self, lost: int | None) -> None:
        """All workers and servers go on as other objects, of which old ones hear nothing any more; `join` follows.

        Workers give up what is under way; one that was `lost` is a new process.
        """
        for server in self.servers:
            server.is_over = True
        for rank, (at, old) in enumerate(zip(self.places, self.workers, strict=True)):
            self.workers[rank] = self._worker(at, old.host, None if rank == lost else old)

    def bring_parameters(self, rank: int, brought: Callable[[], None]) -> None:
        """A worker that is back gets all parameters: of the servers their parts, or of the next rank all of them."""
        target, servers = self.workers[rank].host, [server.host for server in self.servers]
        sources = servers or [self.workers[(rank + 1) % len(self.workers)].host]
        missing = len(sources)

        def came() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                brought()

        size_bytes = _FP32_BYTES * self.layout.elements / len(sources)
        for source in sources:
            self._fabric.to_all(source, target).send(size_bytes, came)

    def note(self, track: str, name: str, start_s: float, step: int) -> None:
        """Record what the first worker did until now, after `step`."""
        self.workers[0].tracer.add(track, name, start_s, self.queue.now, step=step)

    def train(self, first: int, last: int) -> None:
        """Steps `first` to `last`, until all of the last one has been exchanged."""
        for worker in self.workers:
            worker.start(first, last)
        self.queue.run()

    def _tails(self) -> Sequence[TailSteps | None]:
        """The end of the model on every worker, with the ends of all others, if any of it is spread."""
        workers = self.workers
        if self._end is None:
            return [None] * len(workers)
        alone = len(workers) == 1
        tails = [TailSteps(self._end, self._job, None if alone else rank) for rank in range(len(workers))]
        for rank, (worker, tail) in enumerate(zip(workers, tails, strict=True)):
            # Each begins with the next rank, so that not all are at one port first: connections share ports instead.
            others = [0] if alone else [(rank + ahead) % len(tails) for ahead in range(1, len(tails))]
            paths = [self._fabric.to_all(worker.host, workers[other].host) for other in others]
            tail.meet(
                [(other, tails[other], path) for other, path in zip(others, paths, strict=True)], worker.changed
            )
        return tails

    def _worker(self, at: Alike, host: Host, before: SimulatedWorker | None = None) -> SimulatedWorker:
        job, placement, rules = self._job, self._placement, self._rules
        return SimulatedWorker(
            queue=self.queue,
            host=host,
            rules=rules,
            compute=self._compute,
            pace=Pace(placement.machines, at.last, job.world.workers, placement.seed),
            scale=LossScale(job.train.loss_scale, job.train.loss_scale_growth_steps) if rules.holds else None,
            measuring=self._measuring or Unmeasured(),
            tracer=self._tracer(f"worker {at.first}"),
            on_step=self.traffic.note if not at.first else lambda: None,
            before=before,
        )

    def _server(self, at: Alike, host: Host, plan: Plan, sizes: Sizes, last_step: int) -> SimulatedServer:
        tracer = self._tracer(f"server {at.first}")
        return SimulatedServer(at, self._job, plan, len(self.workers), last_step, host, sizes, tracer)

    def _hosts_of_servers(self, workers: Sequence[Host]) -> Iterator[tuple[Alike, Host]]:
        for at in servers_apart(self._job, self._placement):
            yield at, self._fabric.host(at.count, at.supernode)
        for at, host in zip(self.places, workers, strict=True):
            if at.servers:
                yield at, host

    def _tracer(self, name: str) -> Tracer:
        """The recorder of a process, the same by all plans."""
        if not self._traced:
            return Tracer.off()
        return self._tracers.setdefault(name, Tracer(lambda: self.queue.now))
