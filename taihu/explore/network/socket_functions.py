"""Stand-ins for the functions of `socket`."""

from __future__ import annotations

import socket as real_socket
from typing import Any

from taihu.explore.network.sockets import Address, Socket, resolved

__all__ = ["create_connection", "create_server", "getaddrinfo", "gethostname", "has_dualstack_ipv6"]


def create_server(
    address: Address,
    *,
    family: int = real_socket.AF_INET,
    backlog: int | None = None,
    reuse_port: bool = False,
    dualstack_ipv6: bool = False,
) -> Socket:
    """`socket.create_server`."""
    listening = Socket(family)
    try:
        listening.bind(address)
        listening.listen(128 if backlog is None else backlog)
    except OSError as failure:
        listening.close()
        raise OSError(
            failure.errno, f"{failure.strerror} (while attempting to bind on address {address!r})"
        ) from None
    return listening


def create_connection(
    address: Address, timeout: Any = ..., source_address: Any = None, *, all_errors: bool = False
) -> Socket:
    """`socket.create_connection`."""
    connection = Socket()
    if timeout is not ...:
        connection.settimeout(timeout)
    try:
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def getaddrinfo(
    host: str | None,
    port: Any,
    family: int = 0,
    type: int = 0,  # noqa: A002 - its name in the module
    proto: int = 0,
    *,
    flags: int = 0,
) -> list[tuple[Any, Any, int, str, Address]]:
    """`socket.getaddrinfo`: addresses are themselves, `localhost` and this machine's name are its address."""
    kind = real_socket.SOCK_STREAM if not type else real_socket.SocketKind(type)
    return [(real_socket.AF_INET, kind, proto, "", (resolved(host or ""), int(port or 0)))]


def gethostname() -> str:
    """The name of every simulated machine."""
    return "localhost"


def has_dualstack_ipv6() -> bool:
    """Simulated machines have addresses of four numbers alone."""
    return False
