"""The hosts of a job's processes, those that are alike together. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job
from taihu.simulation.machines import Machines, Network


@dataclass(frozen=True)
class Placement:
    """The machines that a job runs on.

    Attributes:
        network: their links.
        machines: what hosts do beside computing.
        servers_beside: whether server i has the host of worker i, not one of its own behind those of all workers.
        seed: of all that is random.
        distinct: whether hosts that are alike are simulated one by one, too.
    """

    network: Network
    machines: Machines
    servers_beside: bool = False
    seed: int = 0
    distinct: bool = False

    @property
    def is_random(self) -> bool:
        """Whether steps differ from each other."""
        return bool(self.machines.jitter) or not self.network.is_even

    @property
    def is_even(self) -> bool:
        """Whether workers that are alike do the same at the same time, so that one stands for all."""
        return not self.is_random and not self.is_distinct

    @property
    def is_distinct(self) -> bool:
        """Whether every host is simulated for itself; those that share processors are."""
        return self.distinct or bool(self.machines.shared_cores)

    @property
    def felt_network(self) -> Network:
        """The network as processes measure it: with what processors take for a message at both its ends."""
        start_up_s = self.network.alpha_seconds + 2.0 * self.machines.core_message_seconds
        return replace(self.network, alpha_seconds=start_up_s)

    def supernode(self, host: int) -> int | None:
        """The supernode of a host; None where there is but one."""
        size = self.network.supernode
        return host // size if size else None


@dataclass(frozen=True)
class Alike:
    """Processes `first` to `first + count - 1` of one role, on hosts that are alike; `servers` are beside each."""

    first: int
    count: int
    supernode: int | None = None
    servers: int = 0

    @property
    def last(self) -> int:
        """The last one of them."""
        return self.first + self.count - 1


def check(job: Job, placement: Placement) -> None:
    """Raise ConfigError for what is not simulated, or cannot be on these machines."""
    workers, servers = job.world.workers, job.servers
    if placement.servers_beside and servers > workers:
        raise ConfigError(
            f"{servers} servers beside {workers} workers: expected at most one on each host; give fewer servers, or "
            "hosts of their own"
        )
    hosts = max(workers, servers) if placement.servers_beside else workers + servers
    if 0 < placement.machines.hosts < hosts:
        raise ConfigError(
            f"machines.hosts {placement.machines.hosts}: {workers} workers and {servers} servers take {hosts} hosts; "
            "give fewer of them, or servers beside workers"
        )
    if placement.machines.stragglers > workers:
        raise ConfigError(
            f"machines.stragglers {placement.machines.stragglers}: expected at most {workers}, the number of workers"
        )


def workers_of(job: Job, placement: Placement) -> list[Alike]:
    """The workers by hosts that are alike, in the order of ranks.

    Where they meet one stands for all or none for any: neighbours do the same at the same time, or they do not, as
    where they take turns.
    """
    workers, stragglers = job.world.workers, placement.machines.stragglers
    in_ring = not job.servers

    def kind(rank: int) -> tuple[bool, int | None, int]:
        """The difference of a worker from others."""
        supernode = None if in_ring and placement.is_even else placement.supernode(rank)
        beside = int(placement.servers_beside and rank < job.servers)
        return rank >= workers - stragglers, supernode, beside

    take_turns = job.exchange.fc != "data" and job.exchange.fc_scheme == "turns"
    are_alike = placement.is_even and not take_turns
    runs = _runs(workers, kind) if are_alike else [(rank, 1) for rank in range(workers)]
    if job.workers_meet and len(runs) > 1:
        return [Alike(rank, 1, placement.supernode(rank), kind(rank)[2]) for rank in range(workers)]
    return [Alike(first, count, *kind(first)[1:]) for first, count in runs]


def servers_apart(job: Job, placement: Placement) -> list[Alike]:
    """The servers that have hosts of their own, behind those of the workers."""
    if placement.servers_beside or not job.servers:
        return []

    def supernode(index: int) -> int | None:
        return placement.supernode(job.world.workers + index)

    alike = placement.network.is_even and not placement.is_distinct
    runs = _runs(job.servers, supernode) if alike else [(index, 1) for index in range(job.servers)]
    return [Alike(first, count, supernode(first)) for first, count in runs]


def _runs(members: int, kind: Callable[[int], object]) -> list[tuple[int, int]]:
    """The first, and the number, of neighbours of one kind."""
    runs = [list(run) for _, run in groupby(range(members), kind)]
    return [(run[0], len(run)) for run in runs]
