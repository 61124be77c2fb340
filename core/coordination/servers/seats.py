"""The seats of servers that joined a run: who has which, and when their number changes. Pure, time is an argument.

Servers that were started with a rank have the first places, and keep them. Each that joined has a seat behind these.
Seats are given away, and closed up, between two generations alone; but where its server is gone a seat is for the
next one that comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from taihu.core.base.errors import ConfigError
from taihu.core.base.words import listed
from taihu.core.coordination.membership.presence import Presence

MOST_JOINED: Final = 1024
"""The most servers that may have joined at a time."""

# Who has come as the last one may be followed by others: they are seated together.
_MOVES_AFTER_S: Final = 1.0


class LostServer(NamedTuple):
    """A server that is gone, by its place in the run, and its name."""

    place: int
    name: str


class Joined(NamedTuple):
    """A server that joined, as those who look on see it.

    Attributes:
        name: as people know it.
        place: in the run; 0 for none yet.
        seconds_since: its last call.
    """

    name: str
    place: int
    seconds_since: float


@dataclass
class _Server:
    """A server that is there."""

    name: str
    came_s: float


class Seats:
    """Knows the servers that joined a run, over all its generations.

    Args:
        first: the place of the first seat: so many servers have ranks.
        taken: seats that were given away before this was made: their servers, if they live, say so.
        silent_after_s: see `Presence`.
        gone_after_s: see `Presence`.
        unheard_after_s: see `Presence`.
        awaited_s: who is gone has so long to come back, where nobody can go on without what it holds.

    Attributes:
        is_over: the generation is, and calls are answered at once.
    """

    def __init__(
        self,
        first: int,
        *,
        taken: int = 0,
        silent_after_s: float,
        gone_after_s: float,
        unheard_after_s: float,
        awaited_s: float,
    ) -> None:
        self._first = first
        self._awaited_s = awaited_s
        self._presence = Presence(
            silent_after_s=silent_after_s, gone_after_s=gone_after_s, unheard_after_s=unheard_after_s
        )
        self._servers: dict[int, _Server] = {}
        self._seats: list[int | None] = [None] * taken
        self._leaving: set[int] = set()
        self._told: set[int] = set()
        self._empty_since_s: dict[int, float] = {}
        self._now = 0.0
        self.is_over = False

    def attends(self, life: int, name: str, index: int, now: float) -> int:
        """A server says that it is there, and its place, 0 for none; the number of this call.

        An empty seat that it says is its own: the coordinator may have been lost, and know of none.

        Raises:
            ConfigError: as many are there as may be.
        """
        if life not in self._servers:
            if len(self._servers) >= MOST_JOINED:
                raise ConfigError(f"server {name}: {MOST_JOINED:,} servers have joined, and no more may")
            self._servers[life] = _Server(name, now)
        seat = index - self._first
        if not self.index_of(life) and 0 <= seat < len(self._seats) and self._seats[seat] is None:
            self._seats[seat] = life
        return self._presence.calls(life, now)

    def hung_up(self, life: int, call: int, now: float) -> None:
        """A call of a server has broken off; if it makes no other one, it is gone."""
        self._presence.hung_up(life, call, now)

    def closes(self) -> None:
        """Nobody can be heard until it `opens`: calls that break off tell nothing."""
        self._presence.closes()

    def opens(self, now: float) -> None:
        """Whoever was there when it closed calls soon, or is gone."""
        self.is_over = False
        self._presence.opens(now)

    def look(self, now: float) -> list[LostServer]:
        """Give up servers that are gone, and give their seats to others that have none; those that had seats."""
        self._now = now
        lost = []
        for life in self._presence.gone(now):
            name, index = self._servers.pop(life).name, self.index_of(life)
            self._leaving.discard(life)
            if index:
                lost.append(LostServer(index, name))
                self._seats[index - self._first] = None
        self._fill(self._waiting)
        empty = {seat for seat, life in enumerate(self._seats) if life is None}
        self._empty_since_s = {seat: self._empty_since_s.get(seat, now) for seat in empty}
        return sorted(lost)

    def leaves(self, index: int) -> None:
        """The server in a place wants to leave the run behind the next steps."""
        seat = index - self._first
        if 0 <= seat < len(self._seats) and (life := self._seats[seat]) is not None:
            self._leaving.add(life)

    def move(self, now: float) -> str:
        """The reason for which seats are to be given away behind the next steps; "" where they stay."""
        waiting = [self._servers[life] for life in self._waiting]
        if not waiting or now - max(server.came_s for server in waiting) < _MOVES_AFTER_S:
            return ""
        return f"server {listed(sorted(server.name for server in waiting))} joins"

    def settle(self) -> None:
        """No generation goes on: those who wait get seats, and seats of those who leave or are gone are closed up."""
        waiting = self._waiting
        self._seats = [life if self._stays(life) else None for life in self._seats]
        self._seats += waiting[self._fill(waiting) :]
        while None in self._seats:
            last = self._seats.pop()
            if last is not None:
                self._seats[self._seats.index(None)] = last
        self._empty_since_s = {}

    def ends(self) -> None:
        """The generation is over, and whoever hung up is known: the others are answered, and heard again later."""
        self.is_over = True
        self._presence.closes()

    def hears_end(self, life: int) -> None:
        """A server is told that the run has ended."""
        self._told.add(life)

    @property
    def all_know_end(self) -> bool:
        """Whether all who have no seat have been told that the run has ended: they hear of it from nobody else."""
        return set(self._waiting) <= self._told

    @property
    def are_taken(self) -> bool:
        """Whether anybody has a seat."""
        return any(life is not None for life in self._seats)

    @property
    def has_lost(self) -> bool:
        """Whether somebody with a seat has hung up."""
        return any(life is not None and self._presence.has_hung_up(life) for life in self._seats)

    @property
    def is_about_to_change(self) -> bool:
        """Whether the next generation will have other servers, as far as is known: that is no failure."""
        return not all(map(self._stays, self._seats)) or bool(self._waiting)

    @property
    def is_vacant(self) -> bool:
        """Whether a seat has no server: nobody makes a step before it has one, or is closed up."""
        return None in self._seats

    @property
    def is_given_up(self) -> bool:
        """Whether a seat has been vacant for so long that nobody waits for its server any more."""
        return any(self._now - since_s > self._awaited_s for since_s in self._empty_since_s.values())

    @property
    def servers(self) -> int:
        """The number of servers of a generation that begins now, those with ranks among them."""
        return self._first + len(self._seats)

    def index_of(self, life: int) -> int:
        """The place of a server in the run; 0 for none."""
        return self._first + self._seats.index(life) if life in self._seats else 0

    def takes_place(self, index: int, life: int) -> bool:
        """Whether a process may be the server `index` now; `life` is its own, 0 where it has a rank."""
        return life in self._seats and self.index_of(life) == index if life else index < self._first

    def joined(self, now: float) -> list[Joined]:
        """All that are there, the longest there first."""
        return [
            Joined(server.name, self.index_of(life), self._presence.seconds_since(life, now))
            for life, server in self._servers.items()
        ]

    @property
    def _waiting(self) -> list[int]:
        """Those that have no seat, and want one."""
        away = {*self._seats, *self._leaving}
        return [life for life in self._servers if life not in away and not self._presence.has_hung_up(life)]

    def _stays(self, life: int | None) -> bool:
        """Whether the server of a seat has one in the next generation; who hangs up, and lives, joins again."""
        return life is not None and life not in self._leaving and not self._presence.has_hung_up(life)

    def _fill(self, waiting: Sequence[int]) -> int:
        """Give vacant seats to those who wait; so many have got one."""
        vacant = [seat for seat, life in enumerate(self._seats) if life is None]
        for seat, life in zip(vacant, waiting, strict=False):
            self._seats[seat] = life
        return min(len(vacant), len(waiting))
