"""Ranks and the coordinator by DNS, where a launcher starts equal containers under one name and numbers none of them.

The addresses of the name, in numerical order, are the ranks: everybody who asks when all are there gets the same
answer. `dns:worker` as a rank is this process's place among the addresses of `worker`; `dns:server:7070` as the
coordinator is the first of the addresses of `server`.

An engine that starts a container again may give it another address, behind all others. So where a container knows the
name that it was given beside its own (`taihu_worker_2`, as podman tells it), ranks are those numbers, and the
coordinator is the one that has number 1, by its name, which stays.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal, TypeVar

from taihu.core.base.errors import ConfigError, PeerUnreachableError
from taihu.core.job import Job
from taihu.core.job.environment import rank_from_environment
from taihu.core.system.sockets import (
    AF_INET,
    AF_INET6,
    SOCK_STREAM,
    AddressFamily,
    getaddrinfo,
    gethostbyaddr,
    gethostname,
)
from taihu.core.wire.base.address import join_address, split_address
from taihu.core.wire.base.clock import Clock, SystemClock
from taihu.core.wire.base.host_names import check_host, names_may_come
from taihu.core.wire.base.retry import backoff_seconds

Resolve = Callable[[str], Collection[str]]

T = TypeVar("T")

_PREFIX = "dns:"
_VARIABLE = "TAIHU_RANK"
# A project, a service and a number, as compose names containers; engines differ in what is between.
_NUMBERED = re.compile(r"(?P<group>.+)(?P<between>[_-])(?P<number>[1-9][0-9]{0,5})", re.ASCII)


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
    count = job.world.workers if role == "worker" else job.cluster.servers
    if (number := number_among(given_names(), name, count)) is not None:
        return number
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
    count = job.servers or job.world.workers
    first = first_host(given_names(), name, count, job.cluster.connect_timeout_s)
    cluster = job.cluster.model_copy(update={"coordinator": join_address(first, port)})
    return job.model_copy(update={"cluster": cluster})


def resolve(name: str) -> Collection[str]:
    """The IPv4 addresses of a name, or else its IPv6 addresses; none while it is not known."""
    return _addresses(name, AF_INET) or _addresses(name, AF_INET6)


def own_addresses() -> Collection[str]:
    """The addresses of this machine's own name."""
    own = gethostname()
    return _addresses(own, AF_INET) | _addresses(own, AF_INET6)


def given_names() -> Collection[str]:
    """Names that an engine gave this container beside its own; none where it does not say."""
    own, found = gethostname(), set[str]()
    for address in own_addresses():
        with suppress(OSError):
            name, others, _ = gethostbyaddr(address)
            found |= {name, *others}
    # Who numbers hosts by their own names may count from 0.
    return {name for name in found if name.partition(".")[0] != own.partition(".")[0]}


def number_among(names: Collection[str], service: str, count: int) -> int | None:
    """The rank that one of `names` tells, of the containers 1 to `count` of a service; None where none does."""
    for match in filter(None, map(_NUMBERED.fullmatch, sorted(names))):
        if match["group"].endswith(f"{match['between']}{service}") and int(match["number"]) <= count:
            return int(match["number"]) - 1
    return None


def first_host(
    names: Collection[str],
    service: str,
    count: int,
    timeout_s: float,
    *,
    resolve: Resolve = resolve,
    clock: Clock | None = None,
) -> str:
    """The host that is the first of a service: by name where `names`, this container's, tell how they are made.

    Raises:
        PeerUnreachableError: that name is not known, and the service's does not have `count` addresses, in time.
    """

    def first(found: Collection[str]) -> str | None:
        named = (host for host in _firsts(names, service) if set(resolve(host)) & set(found))
        return next(named, None) or (_in_order(found)[0] if len(found) == count else None)

    return _awaited(service, count, first, timeout_s, resolve=resolve, clock=clock)


def _firsts(names: Collection[str], service: str) -> Iterator[str]:
    """Names that the first container of a service may have beside containers of `names`."""
    for match in filter(None, map(_NUMBERED.fullmatch, sorted(names))):
        group, between = match["group"], match["between"]
        for end in (at for at, letter in enumerate(group) if letter == between and at):
            yield f"{group[: end + 1]}{service}{between}1"


def _addresses(name: str, family: AddressFamily) -> set[str]:
    try:
        return {str(info[4][0]) for info in getaddrinfo(name, None, family, SOCK_STREAM)}
    except (OSError, UnicodeError):
        return set()


def all_addresses(
    name: str, count: int, timeout_s: float, *, resolve: Resolve = resolve, clock: Clock | None = None
) -> Sequence[str]:
    """The `count` addresses of `name` in numerical order, as soon as it has so many.

    Raises:
        PeerUnreachableError: it has not within `timeout_s`.
    """

    def all_of(found: Collection[str]) -> Sequence[str] | None:
        return _in_order(found) if len(found) == count else None

    return _awaited(name, count, all_of, timeout_s, resolve=resolve, clock=clock)


def _in_order(addresses: Collection[str]) -> Sequence[str]:
    return sorted(addresses, key=ipaddress.ip_address)


def _awaited(
    name: str,
    count: int,
    choose: Callable[[Collection[str]], T | None],
    timeout_s: float,
    *,
    resolve: Resolve,
    clock: Clock | None,
) -> T:
    """Whatever `choose` makes of the addresses of `name`, as soon as it makes something of them."""
    clock = clock or SystemClock()
    start = clock.now()
    for delay in backoff_seconds():
        found = resolve(name)
        if (chosen := choose(found)) is not None:
            return chosen
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
