"""The members of a run on named hosts: who is where. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from taihu.core.base.errors import ConfigError

_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:,\[\]-][^\s:,\[\]]*))(?::([0-9]{1,6}))?")
_SLOTS: Final = re.compile(r"slots=(0*[1-9][0-9]{0,5})")
_IGNORED: Final = re.compile(r"max[_-]slots=[0-9]+")


@dataclass(frozen=True)
class Host:
    """A host as ssh knows it, `user@host` too, and the number of workers there."""

    name: str
    workers: int


def hosts_of(text: str) -> list[Host]:
    """The hosts of a list such as `host1,host2:2`; of one that is named again the workers are added up.

    Raises:
        ConfigError: it is no such list.
    """
    hosts = []
    for part in text.split(","):
        host = _host(part.strip())
        if host is None:
            raise ConfigError(f"host {part.strip()!r}: expected a name, or a name and workers, as in host1,host2:2")
        hosts.append(host)
    return _added_up(hosts)


def hosts_in(text: str, file: str) -> list[Host]:
    """The hosts of a file with lines such as `host1 slots=2`, as Open MPI and DeepSpeed have them, or `host1:2`.

    A host without a number has one worker; `max_slots`, and all behind a #, are passed over. Of a host that is named
    again the workers are added up.

    Args:
        text: of the file.
        file: its name, for errors.

    Raises:
        ConfigError: a line is none of these, or there is none.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host, slots = _host(words[0]), [word for word in words[1:] if not _IGNORED.fullmatch(word)]
        match = _SLOTS.fullmatch(slots[0]) if slots else None
        if host is None or len(slots) > 1 or (slots and match is None):
            raise ConfigError(
                f"{file}, line {number}: {line.strip()!r}: expected a host and its workers: host1 slots=2"
            )
        hosts.append(host if match is None else Host(host.name, int(match[1])))
    if not hosts:
        raise ConfigError(f"{file} names no host: expected lines such as host1 slots=2")
    return _added_up(hosts)


def _host(word: str) -> Host | None:
    """The host of `name` or `name:2`; None where a word is neither."""
    match = _HOST.fullmatch(word)
    if match is None or (match[3] and not int(match[3])):
        return None
    return Host(match[1] or match[2], int(match[3] or 1))


def _added_up(hosts: Sequence[Host]) -> list[Host]:
    counts: dict[str, int] = {}
    for host in hosts:
        counts[host.name] = counts.get(host.name, 0) + host.workers
    return [Host(name, count) for name, count in counts.items()]


@dataclass(frozen=True)
class Placement:
    """Places of a run's members: workers fill the hosts in their order, servers go to the hosts in turns.

    Attributes:
        hosts: each has a worker at least.
        servers: their number.
    """

    hosts: Sequence[Host]
    servers: int = 0

    @property
    def workers(self) -> int:
        """Their number."""
        return sum(host.workers for host in self.hosts)

    def cut(self, workers: int) -> Placement:
        """The first `workers` workers alone.

        Raises:
            ConfigError: there is no room for so many.
        """
        if workers > self.workers:
            raise ConfigError(
                f"{workers} workers: the hosts have room for {self.workers}; give a host as host:2 for two of them"
            )
        left, hosts = workers, []
        for host in self.hosts:
            if left > 0:
                hosts.append(Host(host.name, min(left, host.workers)))
            left -= host.workers
        return Placement(hosts, self.servers)

    def host_of(self, name: str) -> int:
        """The index of the host of `worker 2` or `server 0`."""
        role, _, number = name.partition(" ")
        if role == "server":
            return int(number) % len(self.hosts)
        return next(index for index in range(len(self.hosts)) if int(number) < self._before(index + 1))

    def members(self, host: int) -> list[str]:
        """The names of the members of a host, its servers first."""
        servers = [f"server {index}" for index in range(self.servers)]
        workers = [f"worker {rank}" for rank in range(self.workers)]
        return [name for name in (*servers, *workers) if self.host_of(name) == host]

    def local(self, rank: int) -> tuple[int, int]:
        """Rank and number of a worker among those of its host."""
        host = self.host_of(f"worker {rank}")
        return rank - self._before(host), self.hosts[host].workers

    def _before(self, host: int) -> int:
        """The number of workers on the hosts before one."""
        return sum(each.workers for each in self.hosts[:host])
