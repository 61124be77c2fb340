"""The route through parameter servers: a link to each, and groups that are complete when all have answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taihu.core.base.errors import ConfigError, RunError
from taihu.core.checkpoint.held_steps import HeldSteps
from taihu.core.checkpoint.part import State
from taihu.core.compression import GroupCompressor, Selection
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.optimization import OptimizerShard, in_steps
from taihu.core.trace import Tracer
from taihu.core.wire.base.clock import Clock, SystemClock
from taihu.core.wire.frames.frame_faults import FrameFaults
from taihu.core.wire.frames.headers import At, ValueType
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.worker.exchange.base.recording import Recording
from taihu.worker.exchange.base.route import ExchangeTotals, Held, Route, RouteEvents, RoutePath
from taihu.worker.exchange.base.updates import ByEveryWorker, Updates, optimizer_of
from taihu.worker.exchange.servers.answers import ByServers, BySums
from taihu.worker.exchange.servers.end import ServerEnd
from taihu.worker.exchange.servers.link import ServerLink
from taihu.worker.memory.arenas import Arenas
from taihu.worker.memory.initial_parameters import InitialParameters


class ServersPath(RoutePath):
    """Links to all servers, one as good as the other."""

    def __init__(self, ends: Sequence[ServerEnd]) -> None:
        self._ends = ends

    @property
    @override
    def name(self) -> str:
        return " and ".join(sorted({end.path for end in self._ends}))

    def listen(self) -> None:
        """Links tell from their opening on."""

    @override
    def totals(self) -> ExchangeTotals:
        links = [end.link for end in self._ends]
        return ExchangeTotals(sum(link.sent_bytes for link in links), sum(link.received_bytes for link in links))

    @override
    def cancel(self, at: At) -> None:
        for end in self._ends:
            end.link.cancel()

    @override
    def fail(self, error: BaseException) -> None:
        """End with `error`; the coordinator tells the others."""
        for end in self._ends:
            end.abandon()

    @override
    def close(self) -> None:
        for end in self._ends:
            end.close()


class ServerRoute(Route):
    """A route; `initial` makes worker 0's parameters where the arena cannot hold all of them at once.

    `faults` are those of the frames that it sends.
    """

    shares_sums = 1

    def __init__(  # noqa: PLR0917 - one of each
        self,
        job: Job,
        plan: Plan,
        addresses: Sequence[str],
        identity: WorkerIdentity,
        arenas: Arenas,
        events: RouteEvents,
        recording: Recording,
        initial: InitialParameters | None = None,
        clock: Clock | None = None,
        tracer: Tracer | None = None,
        *,
        faults: FrameFaults | None = None,
    ) -> None:
        self._transport = job.exchange.transport
        self._shared = arenas.shared
        self._initial = initial
        self._events = events
        updates = self._updates = _updates(job, plan, arenas, recording)
        make_link = partial(
            ServerLink,
            job=job,
            plan=plan,
            sender=identity.sender,
            arenas=arenas,
            updates=updates,
            events=events,
            now=(clock or SystemClock()).now,
            tracer=tracer or Tracer.off(),
        )
        self._ends = [
            ServerEnd(job, plan, index, address, identity, arenas, make_link, faults)
            for index, address in enumerate(addresses)
        ]
        self._links = [end.link for end in self._ends]
        self.path = ServersPath(self._ends)

    @override
    def start(self) -> None:
        """Bring the initial parameters to the servers, as worker 0, or fetch them."""
        for end in self._ends:
            end.start(self._initial.prepare if self._initial is not None else lambda _: None)
        if self._initial is not None:
            self._initial.close()
        self._share()
        for end in self._ends:
            end.prepare()
        for end in self._ends:
            end.open()

    @override
    def adopt(self, plan: Plan) -> None:
        for end in self._ends:
            end.adopt(plan)

    @override
    def parts(self, group: int) -> int:
        """The frames of the group, each of which is answered by itself."""
        return sum(len(link.frames(group)) for link in self._links)

    @override
    def begin(self, at: At) -> None:
        for link in self._links:
            link.begin(at)

    @override
    def tell(self, rates: Sequence[float]) -> None:
        for link in self._links:
            link.tell(rates)

    @override
    def send(self, group: int, *, loss_scale: float, skipped: bool) -> int:
        return sum(link.push(group, loss_scale=loss_scale, skipped=skipped) for link in self._links)

    @override
    def send_selected(self, group: int, selection: Selection, compressor: GroupCompressor) -> int:
        sent = 0
        for link in self._links:
            for frame in link.frames(group):
                sent += link.push_sparse(frame, compressor.pack(selection, frame), compressor.value_type)
        return sent

    @override
    def apply(self, at: At, loss_scale: float) -> None:
        """Update, as every worker does."""
        if not isinstance(self._updates, ByEveryWorker):
            raise RunError("servers update group by group: optimizer.clip = 'whole' needs exchange.zero = 0")
        self._updates.apply(at.step)
        self._events.applied(at)

    @override
    def held(self) -> Held:
        return self._updates.held() if isinstance(self._updates, ByEveryWorker) else Held()

    def hold(self, held: HeldSteps, make_state: Callable[[], State]) -> bool:
        """Servers update, or all workers have the same."""
        return False

    @override
    def meet(self, *, at_end: bool, fetches: bool) -> bool:
        # Whoever waits for this worker at any server has to hear of it.
        waits = [end.meet(at_end=at_end, fetches=fetches) for end in self._ends]
        came = [wait() for wait in waits]
        return all(came)

    @property
    @override
    def ended_without(self) -> int:
        return min(chain.from_iterable(link.come_to for link in self._links), default=0)

    @override
    def keep(self, step: int, *, until_durable: bool) -> None:
        # All of them copy, and write, at the same time.
        for wait in [end.calls.keep(step, until_durable=until_durable) for end in self._ends]:
            wait()

    @override
    def fetch(self, group: int, step: int) -> None:
        for link in self._links:
            link.ask(group, step)

    def agree(self, flags: NDArray[np.float64]) -> None:
        """Each reads for itself."""

    def agree_on_skipping(self, *, overflowed: bool) -> bool:
        """Servers are told with the gradients."""
        return overflowed

    def _share(self) -> None:
        """Exchange values in shared memory with the servers of this machine; the memory's name is gone after."""
        if self._shared is not None:
            try:
                for end in self._ends:
                    end.share(self._shared)
            finally:
                self._shared.unlink()
        if self._transport == "same-host" and self.path.name != "same-host":
            raise ConfigError(
                "exchange.transport 'same-host': this worker and a server do not share one machine's /dev/shm, or it "
                "is too small; use auto or tcp"
            )


def _updates(job: Job, plan: Plan, arenas: Arenas, recording: Recording) -> Updates:
    if job.stage.divides_optimizer and job.compression.rounds_sums:
        servers = OptimizerShard(in_steps(job.server_optimizer, plan.length), arenas.parameters)
        return BySums(servers, arenas.parameters, plan.world.workers)
    if job.stage.divides_optimizer:
        return ByServers(arenas.received)
    if arenas.value_type is not ValueType.FP32:
        # Servers have made means of them, which they round.
        return ByServers(arenas.sent)
    optimizer = optimizer_of(job, plan, arenas)
    # What workers push has been checked by the servers.
    return ByEveryWorker(
        optimizer,
        arenas.gradients,
        plan.world.workers,
        checks=False,
        recording=recording,
        largest_norm=job.whole_norm,
    )
