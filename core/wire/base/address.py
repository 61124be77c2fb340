"""`host:port` texts, and which of this machine's addresses others can reach."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from taihu.core.base.errors import ConfigError
from taihu.core.system.chance import random_below
from taihu.core.system.sockets import SOCK_DGRAM, Socket, family_of, getaddrinfo

_EVERY_HOST = ("", "0.0.0.0", "::")  # noqa: S104
_GIVEN_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT: Final = 12_000
_TRIES: Final = 64
_ADDRESS = re.compile(r"(?:\[([^\[\]\s]*)\]|([^\[\]:\s]*)):([0-9]{1,5})")


def free_port(host: str = "") -> int:
    """A port that nobody listens on now; whoever takes it may be too late.

    It is none of those that the system gives to connections, of which some process opens one at any time.
    """
    try:
        return next(free_ports(host)) or _bound(host, 0)
    except OSError:
        raise ConfigError(f"no port of {host or 'this machine'} is free") from None


def free_ports(host: str) -> Iterator[int]:
    """Ports as those of `free_port` to try in turn; the last is 0, with which the system chooses."""
    for port in _own_ports():
        with suppress(OSError):
            yield _bound(host, port)
    yield 0


def _own_ports() -> list[int]:
    """Ports at random that the system does not give to connections."""
    # Not `random`, whose state forks of one process share.
    span = _first_given_port() - _FIRST_PORT
    return [_FIRST_PORT + random_below(span) for _ in range(_TRIES)] if span > 0 else []


def _bound(host: str, port: int) -> int:
    """`port`, or one that the system chose for 0; OSError where it cannot be listened on."""
    with Socket(family_of(host)) as probe:
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def _first_given_port() -> int:
    """The first port that the system gives to connections."""
    try:
        return int(_GIVEN_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def split_address(address: str) -> tuple[str, int]:
    """Host and port; raises ConfigError for anything that is not `host:port` or `[ipv6]:port`."""
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[3]) > 65535:
        raise ConfigError(f"address {address!r}: expected host:port with a port from 0 to 65535")
    return match[1] or match[2] or "", int(match[3])


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(bind: str) -> str:
    """The host of an address to listen on; "", which is every interface, where none is given."""
    return split_address(bind)[0] if bind else ""


def host_of_peer(peer: str) -> str:
    """The host in gRPC's words for who called, `ipv4:10.0.0.1:5000` or `ipv6:%5B::1%5D:5000`; "" in others."""
    family, _, address = unquote(peer).partition(":")
    return split_address(address)[0] if family in ("ipv4", "ipv6") else ""


def is_loopback(address: str) -> bool:
    """Whether only processes of this machine can mean what listens at `address` (`host:port`)."""
    host = split_address(address)[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_every_host(host: str) -> bool:
    """Whether listening on `host` is listening on every interface."""
    return host in _EVERY_HOST


def advertised_host(bound: str, coordinator: str | None) -> str:
    """The host to tell others: the bound one, or the address by which this machine reaches the coordinator."""
    if not is_every_host(bound):
        return bound
    if coordinator is None:
        return "127.0.0.1"
    host, port = split_address(coordinator)
    try:
        family, _, _, _, target = getaddrinfo(host, port or 1, type=SOCK_DGRAM)[0]
        with Socket(family, SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"coordinator {coordinator}: {reason}; check the name, or give --advertise HOST") from None
