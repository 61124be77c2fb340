"""The life of a server process: listen, join, serve, and end when the run ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from taihu.core.base.errors import ConfigError, RecoveringError, WriteError
from taihu.core.base.words import counted
from taihu.core.chaos.points import Chaos, NoChaos, Point
from taihu.core.coordination.generations import ONLY, Generation, in_generations
from taihu.core.coordination.listener import listen_options, open_listener
from taihu.core.coordination.membership.members import MemberId, Role, RunState
from taihu.core.job import Job
from taihu.core.process.entry import Interrupts
from taihu.core.process.memory.use import MemoryGrowth
from taihu.core.process.notices import Notices
from taihu.core.process.results import RESULTS_FORMAT
from taihu.core.trace import Tracer
from taihu.core.wire.base.address import host_of
from taihu.core.wire.serving.metrics import MetricsPage, RefusedCalls, ServerMetrics
from taihu.core.wire.serving.server import RpcServer
from taihu.ps_server.participation import Participation
from taihu.ps_server.seat import MovedError, OwnSeat

# Calls of a generation that is over are answered with an error: nobody needs long to hear it.
_GRACE_S = 0.2


@dataclass(frozen=True)
class ServerOptions:
    """The options of one server of a job, and what SIGTERM and SIGINT lead to.

    `bind` is the `host:port` to listen on (port 0 takes a free one; empty: the coordinator's port for server 0, a
    free one for the others); `advertise` is the host that workers are told, `direct_port` that of connections beside
    gRPC (0: a free one); `metrics_port` None serves no metrics,
    which are served for `linger_s` after the end; with `hold` a server that has finished stays,
    healthy but not ready, until it is told to end; `trace` is where this process's part of the trace is written at
    the end. While this server serves, it takes the first of the `interrupts` as a wish that the run ends in order.
    `chaos` is asked at each point. `notices` get what cannot be written. One that joined has its place by `seat`.
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
    chaos: Chaos = field(default_factory=NoChaos)
    notices: Notices = field(default_factory=Notices)
    seat: OwnSeat | None = None


class ServerDaemon:
    """One server process; a context manager around `run`."""

    def __init__(self, job: Job, options: ServerOptions) -> None:
        servers = job.servers
        if not servers:
            raise ConfigError("exchange.kind 'ring' has no servers: start workers only, worker 0 is the coordinator")
        if options.seat is None and not 0 <= options.index < servers:
            raise ConfigError(
                f"server {options.index}: outside the world of {counted(servers, 'server')}; "
                f"expected --rank 0 to {servers - 1}, or raise cluster.servers"
            )
        self._memory = MemoryGrowth()
        self._job = job
        self._options = options
        self._member = MemberId(Role.SERVER, options.index)
        self._log = structlog.get_logger().bind(role="server", rank=options.index)
        self.metrics = ServerMetrics(options.index)
        self._page: MetricsPage | None = None
        listening = listen_options(
            job,
            "server",
            options.index,
            bind=options.bind,
            advertise=options.advertise,
            direct_port=options.direct_port,
        )
        self.metrics.exported.put(RefusedCalls("server", options.index, listening.security.refusals))
        self._listener = open_listener(
            listening,
            job.cluster.coordinator,
            threads=4 * job.world.workers + servers + 8,
            hosts=options.index == 0,
        )
        self._part = self._participation(job, ONLY)
        if options.metrics_port is not None:
            host = host_of(options.bind)
            self._page = MetricsPage(
                self.metrics.registry,
                options.metrics_port,
                host,
                linger_s=options.linger_s,
                health=listening.health,
                refusals=listening.security.refusals,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._options.hold and kind is None and not self._options.interrupts.reason:
            self._options.interrupts.await_end()
            if self._page is not None:
                self._page.close()
        elif self._page is not None:
            goes_on = isinstance(value, MovedError)
            has_stopped = self._part.outcome[0] is RunState.STOPPED or self._part.stop_is_expected
            self._page.lingers = not (goes_on or has_stopped)
            self._page.__exit__(kind, value, trace)
        self._listener.close()

    @property
    def address(self) -> str:
        """The address that others are told."""
        return self._listener.address

    @property
    def metrics_port(self) -> int | None:
        """The port of /metrics, when served."""
        return self._page.port if self._page is not None else None

    def run(self) -> RunState:
        """Serve until the run has ended; whether it has finished or was stopped.

        Raises:
            RunError: the run failed.
            ConfigError, PeerUnreachableError: this server could not join.
            MovedError: this server, that joined, has another place in the run now.
            BaseException: what interrupted this; all others of the run have been told.
        """
        self._options.chaos.passes(Point.START_UP)
        try:
            if (seat := self._options.seat) is None:
                in_generations(self._job, self._member, self._live, self._between)
            else:
                in_generations(self._job, self._member, self._live, self._between, agent=seat.life, check=seat.check)
        finally:
            self._write_trace()
        if self._options.hold and not self._options.interrupts.reason:
            self._options.interrupts.are_no_error()
        state, reason = self._part.outcome
        self._log.info(state.value, **({"reason": reason} if reason else {}))
        return state

    def _live(self, job: Job, generation: Generation) -> None:
        self._part = self._participation(job, generation)
        try:
            self._part.run()
        except RecoveringError:
            self._listen_again()
            raise

    @contextmanager
    def _between(self) -> Iterator[RpcServer]:
        """A server at this one's address, between two generations."""
        try:
            yield self._listener.rpc
        finally:
            self._listen_again()

    def _listen_again(self) -> None:
        self._listener.close(_GRACE_S)
        self._listener = self._listener.again()

    def _participation(self, job: Job, generation: Generation) -> Participation:
        options = self._options
        return Participation(
            job,
            options.index,
            generation,
            self._listener,
            metrics=self.metrics,
            tracer=options.tracer,
            interrupts=options.interrupts,
            chaos=options.chaos,
            notices=options.notices,
        )

    def results(self) -> dict[str, Any]:
        """Results for `--json`, once the run has ended."""
        state, reason = self._part.outcome
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
        self._part.stop(reason)

    def _write_trace(self) -> None:
        if self._options.trace is not None:
            clock = self._part.coordinator_clock
            try:
                self._options.tracer.write_part(
                    self._options.trace,
                    str(self._member),
                    self._options.index,
                    offset_s=clock.offset_s,
                    error_s=0.0 if self._options.index == 0 else clock.error_s,
                )
            except WriteError as error:
                self._options.notices.say(str(error))
