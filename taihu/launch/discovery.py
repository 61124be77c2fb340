"""Ranks and the coordinator by DNS, where a launcher starts equal containers under one name and numbers none of them.

The addresses of the name, in numerical order, are the ranks: everybody who asks when all are there gets the same
answer. `dns:worker` as a rank is this process's place among the addresses of `worker`; `dns:server:7070` as the
coordinator is the first of the addresses of `server`.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from taihu.errors import ConfigError, PeerUnreachableError
from taihu.job import Job
from taihu.job.environment import rank_from_environment
from taihu.wire.address import join_address, split_address
from taihu.wire.clock import Clock, SystemClock
from taihu.wire.host_names import check_host, names_may_come
from taihu.wire.retry import backoff_seconds

__all__ = ["all_addresses", "find_coordinator", "find_rank", "place_among"]

Resolve = Callable[[str], Collection[str]]

_PREFIX = "dns:"
_VARIABLE = "TAIHU_RANK"


def find_rank(
    given: str | None, environment: Mapping[str, str], role: Literal["server", "worker"], job: Job
) -> int | None:
    """The rank by the option `given`, by a launcher's variable, or by DNS; None when nobody says.

    Raises:
        ConfigError: what was given is no rank, or this process has none of the addresses of the name.
        PeerUnreachableError: the name does not have as many addresses as the job has processes in time.
    """
    given = given if given is not None else environment.get(_VARIABLE)
    if given is None or not given.startswith(_PREFIX):
        return rank_from_environment(environment, role) if given is None else _number(given)
    name = given.removeprefix(_PREFIX)
    count = job.cluster.workers if role == "worker" else job.cluster.servers
    return place_among(own_addresses(), all_addresses(name, count, job.cluster.connect_timeout_s), name)


def find_coordinator(job: Job) -> Job:
    """`job` with the address of server 0 in the place of `dns:NAME:port`.

    Raises:
        ConfigError: nobody knows the host of an address, and this is no container, where it may come to be known.
        PeerUnreachableError: the name does not have as many addresses as the job has servers in time.
    """
    given = job.cluster.coordinator
    if given is None:
        return job
    if not given.startswith(_PREFIX):
        if not names_may_come(os.environ):
            check_host(given)
        return job
    name, port = split_address(given.removeprefix(_PREFIX))
    count = job.servers or job.cluster.workers
    first = all_addresses(name, count, job.cluster.connect_timeout_s)[0]
    cluster = job.cluster.model_copy(update={"coordinator": join_address(first, port)})
    return job.model_copy(update={"cluster": cluster})


def resolve(name: str) -> Collection[str]:
    """The IPv4 addresses of a name, or else its IPv6 addresses; none while it is not known."""
    return _addresses(name, socket.AF_INET) or _addresses(name, socket.AF_INET6)


def own_addresses() -> Collection[str]:
    """The addresses of this machine's own name."""
    own = socket.gethostname()
    return _addresses(own, socket.AF_INET) | _addresses(own, socket.AF_INET6)


def _addresses(name: str, family: socket.AddressFamily) -> set[str]:
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return set()


def all_addresses(
    name: str, count: int, timeout_s: float, *, resolve: Resolve = resolve, clock: Clock | None = None
) -> Sequence[str]:
    """The `count` addresses of `name` in numerical order, as soon as it has so many.

    Raises:
        PeerUnreachableError: it has not within `timeout_s`.
    """
    clock = clock or SystemClock()
    start = clock.now()
    for delay in backoff_seconds():
        found = resolve(name)
        if len(found) == count:
            return sorted(found, key=ipaddress.ip_address)
        remaining = timeout_s - (clock.now() - start)
        if remaining <= 0:
            raise PeerUnreachableError(
                f"name {name}: {len(found)} addresses after {timeout_s:g} s, expected {count}; start as many "
                "containers of this name as the job has, or raise cluster.connect_timeout_s"
            )
        clock.sleep(min(delay, remaining))
    raise AssertionError("unreachable")


def place_among(own: Collection[str], addresses: Sequence[str], name: str) -> int:
    """The place of the one address that is `own`; raises ConfigError when there is none."""
    places = [place for place, address in enumerate(addresses) if address in own]
    if len(places) != 1:
        raise ConfigError(
            f"name {name}: expected one address of this machine ({', '.join(sorted(own)) or 'none known'}) among "
            f"{', '.join(addresses)}; give the rank by number"
        )
    return places[0]


def _number(text: str) -> int:
    if not text.isascii() or not text.lstrip("-").isdecimal():
        raise ConfigError(f"rank {text!r}: expected a number or dns:NAME")
    return int(text)
