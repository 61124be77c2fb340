"""Sockets, names of hosts, and the numbers by which the system knows options."""

from __future__ import annotations

import socket
from socket import (
    AF_INET,
    AF_INET6,
    AF_UNIX,
    EAI_NODATA,
    EAI_NONAME,
    IPPROTO_IPV6,
    IPPROTO_TCP,
    IPV6_V6ONLY,
    SHUT_RDWR,
    SHUT_WR,
    SO_ACCEPTCONN,
    SO_ERROR,
    SO_KEEPALIVE,
    SO_REUSEADDR,
    SOCK_DGRAM,
    SOCK_SEQPACKET,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_KEEPIDLE,
    TCP_KEEPINTVL,
    TCP_NODELAY,
    TCP_NOTSENT_LOWAT,
    TCP_USER_TIMEOUT,
    AddressFamily,
    create_connection,
    create_server,
    gaierror,
    getaddrinfo,
    gethostbyaddr,
    gethostname,
    has_dualstack_ipv6,
    if_nameindex,
    inet_ntoa,
    recv_fds,
    send_fds,
    socketpair,
)
from typing import Final

__all__ = [
    "AF_INET",
    "AF_INET6",
    "AF_UNIX",
    "EAI_NODATA",
    "EAI_NONAME",
    "IPPROTO_IPV6",
    "IPPROTO_TCP",
    "IPV6_V6ONLY",
    "MSG_DONTWAIT",
    "MSG_PEEK",
    "MSG_WAITALL",
    "SHUT_RDWR",
    "SHUT_WR",
    "SOCK_DGRAM",
    "SOCK_SEQPACKET",
    "SOCK_STREAM",
    "SOL_SOCKET",
    "SO_ACCEPTCONN",
    "SO_ERROR",
    "SO_KEEPALIVE",
    "SO_REUSEADDR",
    "TCP_KEEPIDLE",
    "TCP_KEEPINTVL",
    "TCP_NODELAY",
    "TCP_NOTSENT_LOWAT",
    "TCP_USER_TIMEOUT",
    "AddressFamily",
    "Socket",
    "create_connection",
    "create_server",
    "family_of",
    "gaierror",
    "getaddrinfo",
    "gethostbyaddr",
    "gethostname",
    "has_dualstack_ipv6",
    "if_nameindex",
    "inet_ntoa",
    "recv_fds",
    "send_fds",
    "socketpair",
]

Socket = socket.socket

# Numbers in place of members of an enum, whose arithmetic takes longer than a call of the kernel's.
MSG_DONTWAIT: Final = int(socket.MSG_DONTWAIT)
MSG_PEEK: Final = int(socket.MSG_PEEK)
MSG_WAITALL: Final = int(socket.MSG_WAITALL)


def family_of(host: str) -> AddressFamily:
    """The family of an address: IPv6 where it has a colon."""
    return AF_INET6 if ":" in host else AF_INET
