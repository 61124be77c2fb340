"""The place where others reach a process: a gRPC server and the port of connections beside it."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from taihu.core.job import Job
from taihu.core.job.security import check_own_certificate, security_of
from taihu.core.security.identity import Role
from taihu.core.security.security import Security
from taihu.core.wire.base.address import advertised_host, host_of, is_loopback, join_address, split_address
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.links.direct_connection import DirectListener
from taihu.core.wire.serving.health import Health
from taihu.core.wire.serving.server import RpcServer


@dataclass(frozen=True)
class ListenOptions:
    """The address at which a process listens.

    `bind` is the `host:port` to listen on (port 0 takes a free one; empty: the coordinator's port for its host, a
    free one for the others), `advertise` the host that others are told, `direct_port` that of connections beside gRPC
    (0: a free one). `patience` is that with those who connect, `security` what is demanded of them;
    `health` is told what gRPC's health service says.
    """

    bind: str = ""
    advertise: str = ""
    direct_port: int = 0
    patience: Patience = field(default_factory=Patience)
    security: Security = field(default_factory=Security)
    health: Health = field(default_factory=Health, compare=False)


def listen_options(
    job: Job, role: Role, rank: int, *, bind: str = "", advertise: str = "", direct_port: int = 0
) -> ListenOptions:
    """The options of server or worker `rank` of `job`, with the certificate and the token that it has.

    Raises:
        ConfigError: the certificate is another one's, not good now, or cannot be read; or the token is none.
    """
    security = security_of(job, role, rank)
    check_own_certificate(security, role, rank)
    return ListenOptions(bind, advertise, direct_port, job.patience, security)


@dataclass(frozen=True)
class Listener:
    """A server that listens at `address` and is not started yet: who connects waits."""

    rpc: RpcServer
    address: str
    direct: DirectListener
    threads: int
    options: ListenOptions

    def close(self, grace_s: float = 1.0) -> None:
        """Stop listening, and cut calls that do not end within `grace_s`; may be called again."""
        self.direct.close()
        self.rpc.stop(grace_s)

    def again(self) -> Listener:
        """Another one at the same address, when this one is closed."""
        host, port = split_address(self.address)
        options = ListenOptions(
            join_address(host_of(self.options.bind) or "0.0.0.0", port),  # noqa: S104
            self.options.advertise or host,
            self.options.direct_port,
            self.options.patience,
            self.options.security,
            self.options.health,
        )
        return open_listener(options, None, threads=self.threads)


def open_listener(options: ListenOptions, coordinator: str | None, *, threads: int, hosts: bool = False) -> Listener:
    """Listen.

    Args:
        options: where.
        coordinator: its address, as far as it is known.
        threads: calls that are answered at a time; every open stream is one.
        hosts: whether this process hosts the coordinator.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    security = options.security
    rpc = RpcServer.create(threads=threads, patience=options.patience, security=security, own_health=options.health)
    address = _listen(rpc, options, coordinator, hosts=hosts)
    host = host_of(options.bind)
    direct = DirectListener(host, options.direct_port, options.patience, security.sealing())
    return Listener(rpc, address, direct, threads, options)


def _listen(rpc: RpcServer, options: ListenOptions, coordinator: str | None, *, hosts: bool) -> str:
    """Listen on `bind` and return the address that others are told: by default that which reaches the coordinator."""
    bind, security = options.bind, options.security
    if not bind and hosts and coordinator is not None:
        bind = join_address("0.0.0.0", split_address(coordinator)[1])  # noqa: S104
    host, port = split_address(bind or "0.0.0.0:0")
    bound = rpc.listen(join_address(host, port))
    if not security.authenticates and not is_loopback(join_address(host, port)):
        structlog.get_logger().warning(
            "anybody who reaches this port can join, read and change the run; set security.ca, certificate and key",
            address=join_address(host, bound),
        )
    return join_address(options.advertise or advertised_host(host, coordinator), bound)
