"""The one factory of gRPC servers: health for every service, reflection on demand, a port of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from taihu.core.base.errors import ConfigError
from taihu.core.security.files import RenewedCertificates
from taihu.core.security.security import Security
from taihu.core.system.pools import ThreadPoolExecutor
from taihu.core.wire.base.address import free_ports, is_loopback, join_address, split_address
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.base.room import SILENT_PLACES, Room
from taihu.core.wire.serving.access import AccessInterceptor, CallerCheck, ClaimInterceptor
from taihu.core.wire.serving.channel import shared_options
from taihu.core.wire.serving.handshakes import Handshakes
from taihu.core.wire.serving.health import Health
from taihu.core.wire.serving.health_service import WATCH_PLACES, HealthService
from taihu.core.wire.serving.refusal_log import RefusalLog
from taihu.core.wire.serving.requests import RequestInterceptor
from taihu.core.wire.serving.silence import SilenceInterceptor

_LONGEST_CALL_S = 3600.0
_IDLE_S = 300.0
_WAY_BACK_S = 0.2
# what one thread of gRPC's needs to read the requests that have come at once
_MOMENT_S = 0.1


def _limits(patience: Patience) -> tuple[tuple[str, int], ...]:
    """The options that bound what one connection may hold."""
    return (
        # of a connection that says nothing of HTTP/2
        ("grpc.server_handshake_timeout_ms", math.ceil(1000.0 * patience.answer_s)),
        # of one on which there is no call
        ("grpc.max_connection_idle_ms", math.ceil(1000.0 * _IDLE_S)),
        ("grpc.max_concurrent_streams", 100),
        # bytes of one call's metadata: who has more is refused
        ("grpc.max_metadata_size", 8 << 10),
        ("grpc.absolute_max_metadata_size", 16 << 10),
    )


def _interceptors(
    security: Security, silence: SilenceInterceptor, handshakes: Handshakes, log: RefusalLog
) -> list[grpc.ServerInterceptor]:
    """The checks of a call in their order: of its caller, its silence, its request, and whom that tells of."""
    requests = RequestInterceptor(security.refusals, log)
    if not security.authenticates:
        return [silence, requests]
    check = CallerCheck(security.access, security.refusals, log)
    claims = [ClaimInterceptor(check)] if check.access.by_certificate else []
    access = AccessInterceptor(check, handshakes.called) if security.encrypts else AccessInterceptor(check)
    return [access, silence, requests, *claims]


@dataclass
class RpcServer:
    """A gRPC server with health; call `listen`, register services on `grpc_server`, then `start`."""

    grpc_server: grpc.Server
    own_health: Health
    _health: HealthService
    _threads: tuple[ThreadPoolExecutor, ...]
    _room: Room
    _handshakes: Handshakes
    _security: Security
    _services: tuple[str, ...] = ()

    @classmethod
    def create(
        cls,
        *,
        threads: int,
        patience: Patience | None = None,
        security: Security | None = None,
        own_health: Health | None = None,
    ) -> RpcServer:
        """A server that answers at most `threads` calls at a time, and has as many open streams beside them.

        Calls and streams that have said nothing yet have room of their own, and none where they have not shown what
        `security` demands. `own_health` is told what gRPC's health service says.
        """
        patience, security = patience or Patience(), security or Security()
        room = Room(SILENT_PLACES, patience.answer_s, at_least_s=_MOMENT_S)
        log = RefusalLog()
        handshakes = Handshakes(security.refusals, patience.answer_s, log=log)
        streams = ThreadPoolExecutor(threads + SILENT_PLACES + WATCH_PLACES, thread_name_prefix="rpc")
        calls = ThreadPoolExecutor(threads + SILENT_PLACES, thread_name_prefix="rpc-call")
        server = grpc.server(
            streams,
            interceptors=_interceptors(security, SilenceInterceptor(room, calls), handshakes, log),
            maximum_concurrent_rpcs=4 * (threads + SILENT_PLACES),
            options=(
                *shared_options(patience),
                *_limits(patience),
                # a port that is taken is an error, not a shared one
                ("grpc.so_reuseport", 0),
                # an idle stream is no reason to cut a client that pings, however often
                ("grpc.http2.max_ping_strikes", 0),
            ),
        )
        service = HealthService()
        service.register(server)
        return cls(server, own_health or Health(), service, (streams, calls), room, handshakes, security)

    def listen(self, address: str) -> int:
        """Bind `host:port` (port 0 takes a free one) and return the port.

        A server that is started again listens where it did before, so that a free one is none of those that the
        system gives to connections: between its two lives nobody else has it.

        Raises:
            ConfigError: the address is not `host:port`, the port is in use, the host is not this machine's, or
                certificates are of no use.
        """
        self._security.check_reach(address, is_local=is_loopback(address))
        # gRPC itself takes a port modulo 65536
        host, asked = split_address(address)
        for port in (asked,) if asked else free_ports(host):
            with suppress(RuntimeError):
                if listening := self._add_port(join_address(host, port)):
                    return listening
        raise ConfigError(
            f"cannot listen on {address}: the port is in use or the address is not this machine's; "
            "choose another with --bind, port 0 takes a free one"
        )

    def _add_port(self, address: str) -> int:
        security = self._security
        if security.files is None:
            return self.grpc_server.add_insecure_port(address)
        certificates = RenewedCertificates(security.files, self._handshakes.begun)
        credentials = certificates.credentials(ask_clients=security.asks_clients)
        return self.grpc_server.add_secure_port(address, credentials)

    def start(self, services: Iterable[str], *, with_reflection: bool = False) -> None:
        """Serve; `services` are the full names that health reports as SERVING."""
        self._services = tuple(services)
        if with_reflection:
            names = (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self.grpc_server)
        self.grpc_server.start()
        self._health.tell(("", *self._services), serving=True)
        self.own_health.serve()

    def retire(self) -> None:
        """Report the services as NOT_SERVING; the process as a whole goes on to be healthy until `stop`."""
        self._health.tell(self._services, serving=False)
        self.own_health.retire()

    def stop(self, grace_s: float = 1.0) -> None:
        """Report NOT_SERVING, let calls end for `grace_s`, then cut them; returns when all is down."""
        self._health.end()
        self.own_health.stop()
        self.grpc_server.stop(grace_s).wait()
        # gRPC leaves them to the end of the process, which may outlive many servers.
        for threads in self._threads:
            threads.shutdown(wait=False)
        self._health.close()
        self._room.close()
        self._handshakes.close()


def remaining_s(context: grpc.ServicerContext) -> float:
    """Time until the caller gives up, less what the answer needs to get there; an hour if it never does."""
    remaining = context.time_remaining()
    return min(_LONGEST_CALL_S, _LONGEST_CALL_S if remaining is None else max(0.0, remaining - _WAY_BACK_S))
