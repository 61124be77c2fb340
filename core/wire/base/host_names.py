"""Whether the name in an address means a host.

A name that nobody knows is a mistake, told at once, except in containers: there the name of another one is known only
when that one has been started. `dns:NAME:port` is waited for everywhere, see `taihu.core.coordination.discovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from taihu.core.base.errors import ConfigError
from taihu.core.system.sockets import EAI_NODATA, EAI_NONAME, SOCK_STREAM, getaddrinfo
from taihu.core.wire.base.address import split_address

Look = Callable[[str], object]

_UNKNOWN: Final = {EAI_NONAME, EAI_NODATA}
_MARKS: Final = (Path("/.dockerenv"), Path("/run/.containerenv"))


def is_known(host: str, look: Look | None = None) -> bool:
    """Whether `host` is an address or a name that has one; a resolver out of reach is no answer, and so True."""
    try:
        (look or _look)(host)
    except UnicodeError:
        return False
    except OSError as error:
        return error.errno not in _UNKNOWN
    return True


def check_host(address: str, look: Look | None = None) -> None:
    """Raise ConfigError for an `address` (`host:port`) whose host nobody knows."""
    host = split_address(address)[0]
    if host and not is_known(host, look):
        raise ConfigError(f"address {address}: no host of the name {host} is known; check the name")


def names_may_come(environment: Mapping[str, str], marks: tuple[Path, ...] = _MARKS) -> bool:
    """Whether this process is in a container, where the names of others are known as soon as they are there."""
    return "KUBERNETES_SERVICE_HOST" in environment or any(mark.exists() for mark in marks)


def _look(host: str) -> object:
    return getaddrinfo(host, None, type=SOCK_STREAM)
