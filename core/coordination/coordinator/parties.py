"""Those that come and go while a run goes on, in the process that hosts its coordinator: agents, and servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from taihu.core.coordination.agents.hosting import Agents
from taihu.core.coordination.membership.liveness import TICK_S
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.shared import SharedMembership
from taihu.core.coordination.servers.hosting import JoinedServers
from taihu.core.job import Job
from taihu.core.system.threads import Event, spawn


@dataclass(frozen=True)
class Parties:
    """The parties of one run, over all its generations.

    Attributes:
        agents: machines that run workers.
        joined: servers without ranks.
    """

    agents: Agents
    joined: JoinedServers

    @classmethod
    def of(cls, job: Job) -> Self:
        """Those of a run that begins."""
        return cls(Agents.of(job), JoinedServers.of(job))

    def opens(self, coordinator: SharedMembership) -> None:
        """The coordinator of a generation answers from now on."""
        self.agents.opens(coordinator)
        self.joined.opens(coordinator)

    def tell_end(self, coordinator: SharedMembership, patience_s: float) -> None:
        """If the run is over, wait until those know that stand by, or are gone, or for so long.

        They ask again a moment behind each answer: who asks when the coordinator is gone finds nobody.
        """
        with coordinator.changing() as (membership, _):
            is_over = membership.outcome.state.is_over
        if is_over:
            coordinator.wait_for(lambda _: self.agents.all_know_end and self.joined.all_know_end, patience_s)

    def closes(self) -> None:
        """The coordinator of a generation answers no more."""
        self.agents.closes()
        self.joined.closes()

    def look(self, membership: Membership, now: float, *, moves: bool) -> None:
        """Give up those that are gone, and have others take their part, of servers where it `moves`."""
        self.agents.look(membership, now)
        self.joined.look(membership, now, moves=moves)

    @contextmanager
    def watched(self, coordinator: SharedMembership) -> Iterator[None]:
        """Look at them during the block, in which no generation goes on."""
        closed = Event()

        def let_time_pass() -> None:
            self.opens(coordinator)
            while not closed.wait(TICK_S):
                with coordinator.changing() as (membership, now):
                    self.look(membership, now, moves=False)

        watch = spawn("parties", let_time_pass)
        try:
            yield
        finally:
            self.closes()
            closed.set()
            watch.join()

    def settle(self) -> bool:
        """Have ranks change their agents, no generation going on.

        Returns:
            Whether agents or servers change, or did since this was asked last: no process has failed then.
        """
        return self.agents.settle() or self.joined.are_about_to_change
