"""The life of a server process: listen, join, serve, and end when the run ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from ps_server.servicer import PARAMETER_SERVER_SERVICE, ParameterServerServicer
from ps_server.shard_holder import ShardHolder
from taihu.checkpoint.files import PartFile
from taihu.checkpoint.writer import PartWriter, Stored, maybe_writing
from taihu.coordination.awaited import awaited_in_words
from taihu.coordination.client import CoordinatorClient, HeartbeatThread, coordinator_address, failure_reported
from taihu.coordination.host import hosted_coordinator, listen
from taihu.coordination.membership import MemberId, Progress, Role, RunState
from taihu.coordination.metrics import CoordinatorMetrics
from taihu.coordination.service import COORDINATOR_SERVICE, Coordinator, new_incarnation
from taihu.coordination.stopping import StopNotice
from taihu.coordination.waiting import telling_who_is_awaited
from taihu.errors import ConfigError, RunError, TaihuError
from taihu.job import Job
from taihu.process.entry import InterruptedRunError, Interrupts, wait_for_termination
from taihu.process.memory_use import MemoryGrowth
from taihu.results import RESULTS_FORMAT
from taihu.trace import Tracer
from taihu.trace.clock_offset import ClockOffset
from taihu.wire.address import host_of
from taihu.wire.direct_connection import DirectListener
from taihu.wire.metrics import MetricsPage, ServerMetrics
from taihu.wire.server import RpcServer
from taihu.words import counted

__all__ = ["ServerDaemon", "ServerOptions"]

LostCallback = Callable[[int, str], None]

_TICK_S = 0.05


@dataclass(frozen=True)
class ServerOptions:
    """The options of one server of a job, and what SIGTERM and SIGINT lead to.

    `bind` is the `host:port` to listen on (port 0 takes a free one; empty: the coordinator's port for server 0, a
    free one for the others); `advertise` is the host that workers are told, `direct_port` that of connections beside
    gRPC (0: a free one); `metrics_port` None serves no metrics,
    which are served for `linger_s` after the end; with `hold` a server that has finished stays,
    healthy but not ready, until it is told to end; `trace` is where this process's part of the trace is written at
    the end. While this server serves, it takes the first of the `interrupts` as a wish that the run ends in order.
    """

    index: int
    bind: str = ""
    advertise: str = ""
    direct_port: int = 0
    metrics_port: int | None = None
    linger_s: float = 0.0
    hold: bool = False
    trace: Path | None = None
    tracer: Tracer = field(default_factory=Tracer.off)
    interrupts: Interrupts = field(default_factory=Interrupts)


class ServerDaemon:
    """One server process; a context manager around `run`."""

    def __init__(self, job: Job, options: ServerOptions) -> None:
        servers = job.servers
        if not servers:
            raise ConfigError("exchange.kind 'ring' has no servers: start workers only, worker 0 is the coordinator")
        if not 0 <= options.index < servers:
            raise ConfigError(
                f"server {options.index}: outside the world of {counted(servers, 'server')}; "
                f"expected --rank 0 to {servers - 1}, or raise cluster.servers"
            )
        self._memory = MemoryGrowth()
        self._job = job
        self._options = options
        self._member = MemberId(Role.SERVER, options.index)
        self._incarnation = new_incarnation()
        self._log = structlog.get_logger().bind(role="server", rank=options.index)
        self._coordinator_clock = ClockOffset()
        self._ended = threading.Event()
        self._stop = StopNotice()
        self._outcome = (RunState.FAILED, "the server stopped before the run ended")
        self.metrics = ServerMetrics(options.index)
        self._page: MetricsPage | None = None
        self._rpc = RpcServer.create(threads=4 * job.cluster.workers + servers + 8)
        hosts = options.index == 0
        self.address = listen(self._rpc, options.bind, options.advertise, job.cluster.coordinator, hosts=hosts)
        self._direct = DirectListener(host_of(options.bind), options.direct_port)
        if options.metrics_port is not None:
            self._page = MetricsPage(self.metrics.registry, options.metrics_port, linger_s=options.linger_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._options.hold and kind is None and not self._options.interrupts.reason:
            wait_for_termination()
            if self._page is not None:
                self._page.close()
        elif self._page is not None:
            self._page.lingers = self._outcome[0] is not RunState.STOPPED and not self._stop.expected
            self._page.__exit__(kind, value, trace)
        self._direct.close()
        self._rpc.stop()

    @property
    def metrics_port(self) -> int | None:
        """The port of /metrics, when served."""
        return self._page.port if self._page is not None else None

    def run(self) -> RunState:
        """Serve until the run has ended; whether it has finished or was stopped.

        Raises:
            RunError: the run failed.
            ConfigError, PeerUnreachableError: this server could not join.
            BaseException: what interrupted this; all others of the run have been told.
        """
        try:
            if self._options.index == 0:
                self._host()
            else:
                self._follow()
        finally:
            self._write_trace()
        state, reason = self._outcome
        self._log.info(state.value, **({"reason": reason} if reason else {}))
        return state

    def results(self) -> dict[str, Any]:
        """Results for `--json`, once the run has ended."""
        state, reason = self._outcome
        return {
            "format": RESULTS_FORMAT,
            "rank": self._options.index,
            "state": state.value,
            "reason": reason or None,
            "seconds_per_update": self.metrics.mean_update_seconds,
            "memory": self._memory.results(),
        }

    def stop(self, reason: str) -> None:
        """End the run from a signal handler or another thread."""
        self._end(RunState.FAILED, reason)

    def _write_trace(self) -> None:
        if self._options.trace is not None:
            clock = self._coordinator_clock
            self._options.tracer.write_part(
                self._options.trace,
                str(self._member),
                self._options.index,
                offset_s=clock.offset_s,
                error_s=0.0 if self._options.index == 0 else clock.error_s,
            )

    def _host(self) -> None:
        """Server 0: be the coordinator too."""
        timeout_s = self._job.cluster.connect_timeout_s
        with hosted_coordinator(self._job, self._rpc) as coordinator:
            self.metrics.registry.register(CoordinatorMetrics(coordinator, self._member))
            holder = ShardHolder(self._job, 0, self._incarnation, lambda: coordinator.plan(timeout_s))

            def stored(step: int, file: PartFile) -> None:
                coordinator.checkpointing.stored(str(self._member), step, file, coordinator.plan(timeout_s))

            def lost(rank: int, how: str) -> None:
                _report_lost(coordinator, rank, how)

            with (
                self._serving(holder, lost, stored, COORDINATOR_SERVICE),
                _failing(coordinator, self._member),
            ):
                with coordinator.changing() as (members, now):
                    members.join(
                        self._member,
                        self._incarnation,
                        job=self._job.name,
                        digest=self._job.digest,
                        settings=self._job.shared_settings,
                        now=now,
                        address=self.address,
                    )
                with telling_who_is_awaited(lambda: _awaited(coordinator)):
                    self._watch(coordinator)

    def _watch(self, coordinator: Coordinator) -> None:
        """Stay alive in the membership until the run or this process ends."""
        with self._stopping_in_order():
            while not self._ended.is_set():
                coordinator.wait_for(lambda members: members.state.is_final, _TICK_S)
                with coordinator.changing() as (members, now):
                    members.heartbeat(self._member, self._incarnation, self._progress(), job=self._job.name, now=now)
                    if self._stop.wish:
                        members.ask_to_stop(f"{self._member}: {self._stop.wish}")
                    if members.state.is_final:
                        self._end(members.state, members.reason)
            self._raise_if_failed()

    def _follow(self) -> None:
        """Servers 1 and up: join server 0."""
        timeout_s = self._job.cluster.connect_timeout_s
        address = coordinator_address(self._job)
        with CoordinatorClient(address, self._job, self._member, self._incarnation) as client:
            self._coordinator_clock = client.coordinator_clock
            holder = ShardHolder(
                self._job, self._options.index, self._incarnation, lambda: client.get_plan(timeout_s)
            )
            heartbeats = HeartbeatThread(client, self._job, self._progress, self._end, stop=self._stop)

            def gone(rank: int, how: str) -> None:
                self._log.info("worker gone", worker=rank, how=how)
                heartbeats.hurry()

            # An interrupt may come when the coordinator knows of this server, but not yet this server of that.
            with self._serving(holder, gone, client.stored), failure_reported(client):
                client.join(address=self.address)
                with heartbeats, self._stopping_in_order():
                    with telling_who_is_awaited(client.awaited):
                        self._ended.wait()
                    self._raise_if_failed()
            with suppress(TaihuError):  # the run has ended, whether or not the coordinator hears the farewell
                client.finish()

    @contextmanager
    def _serving(self, holder: ShardHolder, on_lost: LostCallback, stored: Stored, *services: str) -> Iterator[None]:
        """Serve; when the block fails, whoever waits for this server is told why."""
        with maybe_writing(self._job, stored) as writer:
            yield from self._served(holder, on_lost, writer, services)

    def _served(
        self, holder: ShardHolder, on_lost: LostCallback, writer: PartWriter | None, services: Sequence[str]
    ) -> Iterator[None]:
        servicer = ParameterServerServicer(
            self._job,
            holder,
            self.metrics,
            on_lost=on_lost,
            tracer=self._options.tracer,
            listener=self._direct,
            writer=writer,
        )
        servicer.register(self._rpc.grpc_server)
        self._rpc.start((PARAMETER_SERVER_SERVICE, *services), with_reflection=self._job.cluster.reflection)
        self._log.info("listening", address=self.address, metrics_port=self.metrics_port)
        try:
            yield
        except BaseException as error:
            self._end(RunState.FAILED, f"{self._member}: {error}")
            servicer.fail(RunError(self._outcome[1]))
            raise
        finally:
            self._rpc.retire()
            servicer.close()
            holder.stop_sharing()

    def _progress(self) -> Progress:
        """The progress that this server tells of itself."""
        return Progress(update_seconds=self.metrics.mean_update_seconds)

    @contextmanager
    def _stopping_in_order(self) -> Iterator[None]:
        """During the block, an interrupt is a wish that the coordinator is told."""

        def take(reason: str) -> bool:
            self._stop.ask(reason)
            return True

        with self._options.interrupts.offered_to(take):
            yield

    def _raise_if_failed(self) -> None:
        state, reason = self._outcome
        if state is RunState.FAILED:
            wish = self._stop.wish
            raise InterruptedRunError(wish) if reason == f"{self._member}: {wish}" else RunError(reason)

    def _end(self, state: RunState, reason: str) -> None:
        if not self._ended.is_set():
            self._outcome = (state, reason)
            self._ended.set()


def _awaited(coordinator: Coordinator) -> str:
    with coordinator.changing() as (members, _):
        return awaited_in_words(members.missing())


def _report_lost(coordinator: Coordinator, rank: int, how: str) -> None:
    with coordinator.changing() as (members, _):
        members.lost(MemberId(Role.WORKER, rank), how)


@contextmanager
def _failing(coordinator: Coordinator, member: MemberId) -> Iterator[None]:
    """Fail the run when the block fails, with `member` as the reason; whoever waits for the run is told."""
    try:
        yield
    except BaseException as error:
        with coordinator.changing() as (members, _):
            members.fail(f"{member}: {error}")
        raise
