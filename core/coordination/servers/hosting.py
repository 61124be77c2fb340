"""The servers that joined a run, in the process that hosts its coordinator, over all generations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

import structlog

from taihu.core.checkpoint.salvage import servers_held
from taihu.core.coordination.membership.members import MemberId, Role, RunState
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.shared import SharedMembership
from taihu.core.coordination.servers.seats import Joined, Seats
from taihu.core.job import Job
from taihu.core.system.threads import Lock

# Who is killed hangs up as soon as others lose it, who have told of that.
_HANGS_UP_S: Final = 0.1


class JoinedServers:
    """`Seats` that threads share: those of a generation that is over may still answer.

    Attributes:
        job: of the run, whose settings servers that join must share.
        chosen: the same as the present generation has it, with the compression that the run has chosen.
        held_s: the longest time that a call of one is held: who is not answered cannot call again.
    """

    def __init__(self, seats: Seats, job: Job) -> None:
        self.job = self.chosen = job
        self.held_s = job.cluster.heartbeat_s
        self._seats = seats
        self._lock = Lock()

    @classmethod
    def of(cls, job: Job) -> Self:
        """Those of a run that begins, or that another process of this host has hosted before."""
        seats = Seats(
            job.servers,
            taken=max(0, servers_held(job) - job.servers),
            silent_after_s=job.patience.answer_s,
            gone_after_s=job.cluster.heartbeat_s,
            unheard_after_s=job.patience.answer_s,
            awaited_s=job.cluster.lost_after_s,
        )
        return cls(seats, job)

    @contextmanager
    def changing(self) -> Iterator[Seats]:
        """The seats, alone."""
        with self._lock:
            yield self._seats

    def opens(self, coordinator: SharedMembership) -> None:
        """The coordinator of a generation answers from now on."""
        with coordinator.changing() as (_, now), self.changing() as seats:
            seats.opens(now)

    def ends(self, coordinator: SharedMembership) -> None:
        """The generation is over: where it did not end in order, wait a moment for those that hang up."""
        with coordinator.changing() as (membership, _):
            is_in_order = bool(membership.outcome.stop.reason)
        if not is_in_order and self.are_seated:
            coordinator.wait_for(lambda _: self._has_lost, _HANGS_UP_S)
        with coordinator.changing(), self._lock:
            self._seats.ends()

    @property
    def _has_lost(self) -> bool:
        with self._lock:
            return self._seats.has_lost

    @property
    def all_know_end(self) -> bool:
        """Whether all servers without a place know that the run has ended."""
        with self._lock:
            return self._seats.all_know_end

    def closes(self) -> None:
        """The coordinator of a generation answers no more."""
        with self.changing() as seats:
            seats.closes()

    def leaves(self, index: int) -> None:
        """The server in a place wants to leave the run behind the next steps."""
        with self._lock:
            self._seats.leaves(index)

    def settle(self) -> int:
        """Have seats given away and closed up, no generation going on; the number of servers of the next one."""
        with self._lock:
            self._seats.settle()
            return self._seats.servers

    @property
    def servers(self) -> int:
        """The number of servers of the last generation or, before one, of that which had left its steps here."""
        with self._lock:
            return self._seats.servers

    @property
    def are_seated(self) -> bool:
        """Whether a server that joined has a place."""
        with self._lock:
            return self._seats.are_taken

    @property
    def are_about_to_change(self) -> bool:
        """Whether the next generation will have other servers, as far as is known."""
        with self._lock:
            return self._seats.is_about_to_change

    @property
    def are_given_up(self) -> bool:
        """Whether a seat has been vacant for so long that nobody waits for its server any more."""
        with self._lock:
            return self._seats.is_given_up

    def seen(self, coordinator: SharedMembership) -> list[Joined]:
        """All that are there now."""
        with coordinator.changing() as (_, now), self.changing() as seats:
            return seats.joined(now)

    def look(self, membership: Membership, now: float, *, moves: bool) -> None:
        """Give up those that are gone: the generation ends. Where it `moves`, one that came ends it in order."""
        outcome = membership.outcome
        with self._lock:
            lost, move, is_vacant = self._seats.look(now), self._seats.move(now), self._seats.is_vacant
        for index, name in lost:
            structlog.get_logger().warning("server lost", server=index, name=name)
            outcome.lost(MemberId(Role.SERVER, index), f"server {name} is gone")
        if not outcome.recovers or not moves:
            return
        if is_vacant and outcome.state is RunState.WAITING:
            outcome.end_generation("a server that joined is gone: all go on without it")
        # Some step is made before others are asked to take part: a run gets on, however often servers come.
        if move and outcome.state is RunState.RUNNING and outcome.makes_steps and not outcome.stop.reason:
            structlog.get_logger().info("moving shards", reason=move)
            outcome.ask_to_stop(move, goes_on=True)
