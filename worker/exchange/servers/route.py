"""The exchange through parameter servers: one stream to each, groups complete when all servers have answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from taihu.compression import UnitReport
from taihu.coordination.plan import Plan
from taihu.errors import ConfigError, ExchangeError, TaihuError
from taihu.job import Job
from taihu.optimization import OptimizerShard, in_steps
from taihu.planner.groups import group_bounds
from taihu.process.preparation import give_back_freed_memory
from taihu.trace import Tracer
from taihu.wire.clock import Clock, SystemClock
from taihu.wire.codec import FrameHeader
from taihu.wire.identity import WorkerIdentity
from worker.exchange.compressing import Compressing
from worker.exchange.group_compressor import GroupCompressor, Selection
from worker.exchange.interface import ExchangeTotals
from worker.exchange.memory_exchange import MemoryExchange
from worker.exchange.servers.answer_destination import AnswerDestination, UpdatedHere, WrittenHere
from worker.exchange.servers.link import LinkEvents, ServerLink
from worker.exchange.times import GroupTimes
from worker.memory.arenas import Arenas
from worker.memory.initial_parameters import InitialParameters

__all__ = ["ServerExchange"]


class ServerExchange(MemoryExchange):
    """See `GradientExchange`; `start` comes before the first step."""

    def __init__(
        self,
        *,
        job: Job,
        plan: Plan,
        addresses: Sequence[str],
        identity: WorkerIdentity,
        arenas: Arenas,
        initial: InitialParameters | None = None,
        clock: Clock | None = None,
        on_compressed: Callable[[UnitReport], None] = lambda _: None,
        tracer: Tracer | None = None,
    ) -> None:
        super().__init__(job, arenas)
        self._tracer = tracer or Tracer.off()
        self._timeout_s = job.exchange.timeout_s
        self._transport = job.exchange.transport
        self._shared = arenas.shared
        self._rank = identity.rank
        self._initial = initial
        self._clock = clock or SystemClock()
        self._guard = self._changed = threading.Condition()
        self._failure: TaihuError | None = None
        self._step = 0
        own = in_steps(job.optimizer, plan.length)
        self._optimizer = OptimizerShard(own, arenas.parameters) if job.zero == 0 else None
        destination = self._destination()
        self._links = [
            ServerLink(
                job=job,
                plan=plan,
                index=index,
                address=address,
                identity=identity,
                arenas=arenas,
                destination=destination,
                events=LinkEvents(answered=self._answered, fetched=self._fetched, failed=self.fail),
                clock=self._clock,
                tracer=self._tracer,
            )
            for index, address in enumerate(addresses)
        ]
        self._compressing: Compressing | None = None
        if job.compression.method != "none":
            self._compressing = Compressing(
                GroupCompressor(job, plan, arenas),
                send=self._send_selected,
                fail=self.fail,
                on_compressed=on_compressed,
                clock=self._clock,
                tracer=self._tracer,
            )
        self._set_plan(plan, last_step=0)

    def _destination(self) -> AnswerDestination:
        if self._optimizer is None:
            return WrittenHere(self._arenas.received)
        self._optimizer.warm_up()
        return UpdatedHere(self._optimizer, self._arenas.gradients, self._job.cluster.workers)

    def start(self) -> None:
        """Worker 0 brings the initial parameters to the servers, the others fetch them; then open the streams.

        Raises:
            ConfigError: no memory is shared with a server, although `exchange.transport` says so.
            ModelError: this worker's model differs from the servers'.
            PeerUnreachableError: a server does not answer.
            TaihuError: what `fail` was told meanwhile.
        """
        try:
            for link in self._links:
                if self._rank == 0:
                    link.initialize(self._initial.prepare if self._initial is not None else lambda _: None)
                else:
                    link.fetch()
            if self._initial is not None:
                self._initial.close()
            self._share()
        except TaihuError:
            self._raise_failure()
            raise
        for link in self._links:
            link.open()
        if self._compressing is not None:
            self._compressing.start()
        give_back_freed_memory()

    @property
    def path(self) -> str:
        """See `GradientExchange.path`."""
        return " and ".join(sorted({link.path for link in self._links}))

    def _share(self) -> None:
        """Exchange values in shared memory with the servers of this machine; the memory's name is gone after."""
        if self._shared is not None:
            try:
                for link in self._links:
                    link.share(self._shared)
            finally:
                self._shared.unlink()
        if self._transport == "same-host" and self.path != "same-host":
            raise ConfigError(
                "exchange.transport 'same-host': this worker and a server do not share one machine's /dev/shm, or it "
                "is too small; use auto or tcp"
            )

    def adopt(self, plan: Plan) -> None:
        """See `GradientExchange.adopt`."""
        for link in self._links:
            link.adopt(plan)
        if self._compressing is not None:
            self._compressing.compressor.adopt(plan.groups)
        self._memory.close()
        self._set_plan(plan, last_step=self._step)

    def _set_plan(self, plan: Plan, last_step: int) -> None:
        self.plan = plan
        self._elements = [stop - start for start, stop in group_bounds(plan.layout, plan.groups)]
        self._memory = self._memory_of(plan)
        self._pushed_step = [last_step] * len(plan.groups)
        self._fetching = [0] * len(plan.groups)
        self._asked_s = [0.0] * len(plan.groups)
        self._missing = [0] * len(plan.groups)
        self._times = [GroupTimes(elements) for elements in self._elements]

    def begin(self, step: int) -> None:
        """See `GradientExchange.begin`."""
        self._step = step
        self._gradients.begin(len(self.groups))
        with self._changed:
            self._times = [GroupTimes(elements) for elements in self._elements]
            for group in range(len(self.groups)):
                self._missing[group] = self._frames(group)
        for link in self._links:
            link.begin(step)

    def _submit(self, group: int) -> None:
        times = self._times[group]
        with self._changed:
            self._pushed_step[group] = self._step
            self._memory.pushed(group)
        if self._compressing is not None:
            self._compressing.put(group, self._step, times)
            return
        times.submitted_s = self._clock.now()
        times.selected = times.elements
        for link in self._links:
            link.push(group, loss_scale=self.loss_scale, skipped=self._gradients.overflowed)

    def complete(self, group: int) -> None:
        """See `GradientExchange.complete`."""
        self._wait_until(
            lambda: not self._missing[group] and self._memory.is_quiet(group),
            lambda: f"{self._awaited(group)} in step {self._step}",
        )

    def _awaited(self, group: int) -> str:
        missing = self._missing[group]
        return f"{missing} answers for group {group}" if missing else super()._awaited(group)

    def _wait_until(self, predicate: Callable[[], bool], what: Callable[[], str]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: predicate() or self._failure, self._timeout_s)
            self._raise_failure()
            if not predicate():
                raise ExchangeError(
                    f"{what()} did not come within {self._timeout_s:g} s; another worker is slow or stuck, see "
                    "`taihu status`, or raise exchange.timeout_s"
                )

    def _ask(self, group: int) -> None:
        self._fetching[group] = self._frames(group)
        self._asked_s[group] = self._clock.now()
        for link in self._links:
            link.ask(group, self._pushed_step[group])

    def _frames(self, group: int) -> int:
        return sum(len(link.frames(group)) for link in self._links)

    def fail(self, error: BaseException) -> None:
        """See `GradientExchange.fail`."""
        with self._changed:
            if self._failure is None:
                self._failure = error if isinstance(error, TaihuError) else ExchangeError(str(error))
            self._changed.notify_all()
        for link in self._links:
            link.abandon()

    def totals(self) -> ExchangeTotals:
        """See `GradientExchange.totals`."""
        return ExchangeTotals(
            sum(link.sent_bytes for link in self._links), sum(link.received_bytes for link in self._links)
        )

    def group_times(self) -> Sequence[GroupTimes]:
        """See `GradientExchange.group_times`."""
        for group, times in enumerate(self._times):
            times.bytes_up = sum(link.sent_by_group[group] for link in self._links)
        return self._times

    def close(self) -> None:
        """See `GradientExchange.close`."""
        if self._compressing is not None:
            self._compressing.close()
        for link in self._links:
            link.close()

    def _send_selected(self, group: int, selection: Selection) -> None:
        assert self._compressing is not None  # noqa: S101
        compressor = self._compressing.compressor
        for link in self._links:
            for frame in link.frames(group):
                values, sections = compressor.pack(selection, frame)
                link.push_sparse(frame, values, compressor.value_type, sections)

    def _answered(self, header: FrameHeader, size_bytes: int, completed_s: float) -> None:
        group = header.group
        with self._changed:
            times = self._times[group]
            times.bytes_down += size_bytes
            times.first_completed_s = min(times.first_completed_s, completed_s)
            times.completed_s = max(times.completed_s, completed_s)
            self._missing[group] -= 1
            self._gradients.skipped |= header.skipped
            if not self._missing[group]:
                times.answered_s = self._clock.now()
                self._memory.summed(group)
                self._changed.notify_all()

    def _fetched(self, header: FrameHeader, size_bytes: int) -> None:
        group = header.group
        with self._changed:
            self._times[group].fetch_bytes_down += size_bytes
            self._fetching[group] -= 1
            if self._fetching[group]:
                return
        self._memory.widen(group)
        with self._changed:
            self._memory.arrived(group)
            self._changed.notify_all()
        self._tracer.add("fetch", "fetch", self._asked_s[group], self._clock.now(), step=header.step + 1, group=group)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
