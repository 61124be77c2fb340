"""The agents of a run: who is there, and which workers each is to run. Pure, time comes in as an argument.

A rank without an agent gets another one at once. Others change their agents between two generations alone: who wants
them moved has the present one end in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from taihu.core.base.errors import ConfigError
from taihu.core.base.words import counted
from taihu.core.coordination.agents.assignment import balanced, filled, longest_s
from taihu.core.coordination.membership.presence import Presence

MOST_AGENTS: Final = 1024
"""The most agents that may be there at a time."""

# Who has come as the last one may be followed by others: each is waited for before the first step, and for a move.
_BEGINS_AFTER_S: Final = 3.0
_MOVES_AFTER_S: Final = 1.0
# A move takes about as long as a hundred steps gain that are shorter by so much; less than this share may be chance.
_LEAST_GAIN_S: Final = 0.03
_LEAST_GAIN: Final = 0.1
_MEASURED_OVER: Final = 50
_ANY_S: Final = 1.0
# Who may not have heard that its call broke off has to connect first: some messages, each of which may be late.
_UNHEARD: Final = 3.0


class Lost(NamedTuple):
    """A rank whose agent is gone, by its name."""

    rank: int
    agent: str


class Attending(NamedTuple):
    """An agent, as those who look on see it; `seconds_since` its last call.

    `work_s` is the work of one rank in a step, if it ran that one alone; 0.0 as long as that is not measured.
    """

    name: str
    ranks: tuple[int, ...]
    seconds_since: float
    leaves: bool
    work_s: float


@dataclass
class _Agent:
    """An agent that is there; `has_run` any rank yet."""

    name: str
    came_s: float
    leaves: bool = False
    has_run: bool = False


class Attendance:
    """Knows the agents of a run, over all its generations.

    Args:
        ranks: of the workers that agents may run.
        least: with fewer agents no rank gets one.
        silent_after_s: an agent that says nothing for so long is gone.
        gone_after_s: one whose call has broken off is, if it makes no other one for so long: who lives calls at once.
    """

    def __init__(self, ranks: Iterable[int], *, least: int, silent_after_s: float, gone_after_s: float) -> None:
        self._ranks = set(ranks)
        self._least = least
        self._presence = Presence(
            silent_after_s=silent_after_s, gone_after_s=gone_after_s, unheard_after_s=_UNHEARD * gone_after_s
        )
        self._agents: dict[int, _Agent] = {}
        self._held: dict[int, int] = {}
        self._told: set[int] = set()
        self._ever_held: set[int] = set()
        self._measured_s: dict[int, float] = {}
        self._step = 0
        self._moved_at = 0
        self._has_begun = False
        self._first_s: float | None = None
        self._has_changed = False

    def attends(self, life: int, name: str, runs: Iterable[int] = (), *, leaves: bool = False, now: float) -> int:
        """An agent says that it is there, and which ranks it runs; the number of this call.

        Ranks that nobody is known to have are its own: the coordinator may have been lost, and know of none.

        Raises:
            ConfigError: as many agents are there as may be.
        """
        agent = self._agents.get(life)
        if agent is None:
            if len(self._agents) >= MOST_AGENTS:
                raise ConfigError(f"agent {name}: {MOST_AGENTS:,} agents are there, and no more may come")
            agent = self._agents[life] = _Agent(name, now)
        self._first_s = now if self._first_s is None else self._first_s
        agent.leaves = leaves
        for rank in runs:
            if rank in self._ranks and rank not in self._held:
                self._hold(self._held | {rank: life})
                self._has_begun = True
        return self._presence.calls(life, now)

    def hung_up(self, life: int, call: int, now: float) -> None:
        """A call of an agent has broken off; if it makes no other one, it is gone."""
        self._presence.hung_up(life, call, now)

    def closes(self) -> None:
        """Nobody can be heard until it `opens`: calls that break off tell nothing."""
        self._presence.closes()

    def opens(self, now: float) -> None:
        """Whoever was there when it closed calls soon, or is gone: nobody may have heard of that."""
        self._presence.opens(now)

    def look(self, now: float) -> list[Lost]:
        """Give up agents that are gone, and find others for ranks that have none; the ranks of those given up."""
        gone = {life: self._agents[life].name for life in self._presence.gone(now)}
        lost = sorted(Lost(rank, gone[life]) for rank, life in self._held.items() if life in gone)
        for life in gone:
            del self._agents[life]
            self._measured_s.pop(life, None)
        for each in lost:
            del self._held[each.rank]
        self._has_changed |= bool(lost)
        if self._may_fill(now):
            self._hold(filled(self._ranks, self._held, self._able, self._costs))
            self._has_begun, self._moved_at = True, self._step
        return lost

    def measured(self, work_s: Mapping[int, float], step: int) -> None:
        """Take in the seconds that the work of each rank takes of a step, while it shares its agent's machine.

        They are means of some steps before `step`: those soon behind a move tell of both sides of it.
        """
        self._step = step
        self._moved_at = min(self._moved_at, step)  # all may have gone back to an older one
        if step - self._moved_at < _MEASURED_OVER or not set(self._held) <= set(work_s) or not all(work_s.values()):
            return
        by_agent: dict[int, list[float]] = {}
        for rank, life in self._held.items():
            by_agent.setdefault(life, []).append(work_s[rank])
        # Who has given all its ranks away is as slow as it was.
        self._measured_s |= {life: sum(each) / len(each) ** 2 for life, each in by_agent.items()}

    def takes_place(self, rank: int, life: int, *, is_known: bool = True) -> bool:
        """Whether a process may be the worker `rank` now; `life` is that of its agent, 0 where it has none.

        One without an agent has been started by somebody who wants it there: the rank is no agent's from then on. A
        stranger, that is not `is_known`, takes nothing from an agent.
        """
        if life:
            return self._held.get(rank) == life
        if is_known:
            self._ranks.discard(rank)
            self._held.pop(rank, None)
        return rank not in self._held

    def ranks_of(self, life: int) -> tuple[int, ...]:
        """The ranks that an agent is to run."""
        return tuple(sorted(rank for rank, holder in self._held.items() if holder == life))

    def move(self, now: float, *, may_gain: bool = True) -> str:
        """The reason for which ranks are to change their agents behind the next steps; "" where they stay.

        Where a move ends the run, it is not one that `may_gain`: who leaves is the only reason then.
        """
        if not self._has_begun:
            return ""
        leaving = {self._agents[life].name for life in self._held.values() if self._agents[life].leaves}
        if leaving:
            return f"agent {', '.join(sorted(leaving))} leaves"
        newest_s = max((agent.came_s for agent in self._agents.values()), default=0.0)
        if now - newest_s < _MOVES_AFTER_S or not (may_gain and self._target_gains):
            return ""
        fresh = sorted(self._agents[life].name for life in self._target.values() if not self._agents[life].has_run)
        if fresh:
            return f"agent {', '.join(dict.fromkeys(fresh))} joins"
        return "workers move to faster machines" if self._gain_s > _LEAST_GAIN_S else ""

    def settle(self) -> bool:
        """No generation goes on: ranks change their agents where that is wanted.

        Returns:
            Whether some do, or did since this was asked last: no process has failed then, but machines have changed.
        """
        leaving = {rank for rank, life in self._held.items() if self._agents[life].leaves}
        if self._has_begun and (leaving or self._target_gains):
            self._hold(self._target)
            self._moved_at = self._step
            self._has_changed = True
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def hears_end(self, life: int) -> None:
        """An agent is told that the run has ended."""
        self._told.add(life)

    @property
    def all_know_end(self) -> bool:
        """Whether all have been told that the run has ended who hear of it from nobody else.

        Those that run workers hear of it from them, and those that leave do not ask.
        """
        return set(self._able) <= self._told | set(self._held.values())

    @property
    def awaited(self) -> str:
        """The words for whoever the run waits for before its ranks have agents; "" where they have."""
        able = len(self._able)
        if self._ranks <= set(self._held):
            return ""
        return f"{counted(self._least - able, 'more agent')}" if able < self._least else "others that may come"

    def agents(self, now: float) -> list[Attending]:
        """All that are there, the longest there first."""
        return [
            Attending(
                agent.name,
                self.ranks_of(life),
                self._presence.seconds_since(life, now),
                agent.leaves,
                self._measured_s.get(life, 0.0),
            )
            for life, agent in self._agents.items()
        ]

    @property
    def shared_out(self) -> str:
        """The ranks of each agent that has some, in one line: `anna 0, 2; bert 1, 3`."""
        found = ((agent.name, self.ranks_of(life)) for life, agent in self._agents.items())
        return "; ".join(f"{name} {', '.join(map(str, ranks))}" for name, ranks in found if ranks)

    @property
    def _able(self) -> list[int]:
        return [life for life, agent in self._agents.items() if not agent.leaves]

    @property
    def _costs(self) -> dict[int, float]:
        """The work of a rank by agent, in seconds; those that have made no steps yet are taken for usual ones."""
        usual_s = median(self._measured_s.values()) if self._measured_s else _ANY_S
        return {life: self._measured_s.get(life, usual_s) for life in self._agents}

    @property
    def _target(self) -> dict[int, int]:
        """The agent of each rank as it should be; where too few are there, those that stay keep what they have."""
        able = self._able
        if len(able) < self._least:
            return {rank: life for rank, life in self._held.items() if life in able}
        return balanced(self._ranks, self._held, able, self._costs)

    @property
    def _target_gains(self) -> bool:
        enough = len(self._able) >= self._least
        return enough and self._gain_s > _LEAST_GAIN * longest_s(self._held, self._costs)

    @property
    def _gain_s(self) -> float:
        """The seconds by which a step would be shorter."""
        return longest_s(self._held, self._costs) - longest_s(self._target, self._costs)

    def _hold(self, held: dict[int, int]) -> None:
        self._held = held
        self._ever_held |= set(held)
        for life in held.values():
            self._agents[life].has_run = True

    def _may_fill(self, now: float) -> bool:
        able = self._able
        if len(able) < self._least or self._ranks <= set(self._held):
            return False
        # Where the coordinator was lost others may run what nobody has said yet, and say so soon.
        is_known = not self._has_begun or self._ranks <= self._ever_held
        if len(able) >= len(self._ranks) and is_known:
            return True
        # Behind a loss nobody is waited for, but where the coordinator was lost others have yet to say what they run.
        newest_s = max(self._agents[life].came_s for life in able)
        since_s = self._first_s if self._has_begun and self._first_s is not None else newest_s
        return now - since_s >= _BEGINS_AFTER_S
