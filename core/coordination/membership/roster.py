"""The places of a run and who has them: pure."""

from __future__ import annotations

from typing import Final

from taihu.core.base.errors import ConfigError, StaleError
from taihu.core.base.words import counted
from taihu.core.coordination.membership.members import MemberId, MemberRecord, Role

_WORKER: Final = Role.WORKER


class Roster:
    """The members of one run or, where it recovers, of one generation of them.

    Args:
        job: its name.
        servers: their number; without any, worker 0 hosts the coordinator, else server 0.
        workers: their number.
        workers_meet: workers exchange with each other beside the servers.

    Attributes:
        job: the name.
        sizes: the number of places by role.
        host: the member that hosts the coordinator.
        peer_roles: whom workers exchange with: their addresses must be known to all of them.
        members: those that have joined.
        withdrawn: processes whose last call to join has ended before anybody knew of them.
    """

    def __init__(self, job: str, *, servers: int, workers: int, workers_meet: bool = False) -> None:
        self.job = job
        self.sizes = {Role.SERVER: servers, _WORKER: workers}
        self.host = MemberId(Role.SERVER if servers else _WORKER, 0)
        self.peer_roles = tuple(
            role for role in Role if self.sizes[role] and (role is self.host.role or (servers and workers_meet))
        )
        self.members: dict[MemberId, MemberRecord] = {}
        self.withdrawn: set[tuple[MemberId, int]] = set()

    def check_place(self, member: MemberId, job: str) -> None:
        """Raise StaleError for a member of another job, ConfigError for one that the world has no place for."""
        self._check_job(member, job)
        size = self.sizes[member.role]
        if not 0 <= member.rank < size:
            raise ConfigError(
                f"{member}: outside the world of {counted(size, member.role.value)}; "
                f"expected 0 to {size - 1}, or raise cluster.{member.role.value}s"
            )

    def record(self, member: MemberId, incarnation: int, *, job: str) -> MemberRecord:
        """The record of a member that has joined.

        Raises:
            StaleError: no such member with this incarnation has.
        """
        if member.role is _WORKER:
            self.check_place(member, job)
        # A server that joined may have had a place in the last generation that this one does not have.
        self._check_job(member, job)
        record = self.members.get(member)
        if record is None or record.incarnation != incarnation:
            raise StaleError(f"{member} with incarnation {incarnation} has not joined job {self.job!r}")
        return record

    def _check_job(self, member: MemberId, job: str) -> None:
        if job != self.job:
            raise StaleError(f"{member} belongs to job {job!r}, this is job {self.job!r}; check the address")

    def missing(self) -> list[MemberId]:
        """Members that have not joined, servers first."""
        everyone = (MemberId(role, rank) for role, size in self.sizes.items() for rank in range(size))
        return [member for member in everyone if member not in self.members]

    def peer_addresses(self) -> tuple[str, ...] | None:
        """The address of every server by index, and of every worker if they meet; None until all have joined."""
        peers = [MemberId(role, rank) for role in self.peer_roles for rank in range(self.sizes[role])]
        if not all(peer in self.members for peer in peers):
            return None
        return tuple(self.members[peer].address for peer in peers)

    def worker_incarnations(self) -> tuple[int, ...]:
        """The life of every worker that has joined, by rank."""
        workers = (MemberId(_WORKER, rank) for rank in range(self.sizes[_WORKER]))
        return tuple(self.members[worker].incarnation for worker in workers if worker in self.members)

    @property
    def workers(self) -> dict[MemberId, MemberRecord]:
        """The workers that have joined."""
        return {member: record for member, record in self.members.items() if member.role is _WORKER}

    @property
    def step(self) -> int:
        """The step that the first of them has made."""
        return max(record.progress.step for record in self.members.values())

    @property
    def total_steps(self) -> int:
        """The steps of the run, as they tell."""
        return max(record.progress.total_steps for record in self.members.values())
