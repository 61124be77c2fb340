"""The events of step protocols and aggregators, as they are told of them, with the instants of each."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from taihu.core.wire.frames.headers import At
from taihu.ps_server.aggregator import Aggregator, Complete
from taihu.ps_server.server_shard import ServerShard
from taihu.worker.exchange.servers.link import ServerLink
from taihu.worker.exchange.step_actions import Action, Ask, Widen
from taihu.worker.exchange.step_parameters import Reading, StepParameters
from taihu.worker.exchange.step_protocol import StepProtocol

__all__ = ["Event", "Told", "ToldProtocol"]

Event = tuple[str, int, int]
Key = tuple[int, int, int]


class Told:
    """The events that patched classes were told of, by object.

    Attributes:
        pushed: pushes and updates of each protocol.
        fetched: questions and what came of them, of each.
        summed: sums of each server.
        protocols: in the order in which they were made.
        offered: when a server, a group and a step had been brought by each rank.
        clock: of the instants.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.pushed: list[list[Event]] = []
        self.fetched: list[list[Event]] = []
        self.summed: list[list[Event]] = []
        self.protocols: list[ToldProtocol] = []
        self.offered: dict[Key, dict[int, float]] = defaultdict(dict)
        self.clock = clock
        self.origin = clock()
        self._here = threading.local()

    @property
    def server(self) -> int:
        """The server of whom, or by whom, this thread is told something."""
        return getattr(self._here, "server", 0)

    @contextmanager
    def listening(self, monkeypatch: pytest.MonkeyPatch, protocol: Any, aggregator: Any) -> Iterator[Told]:
        """Listen to what the modules make."""
        told = self
        push, written = ServerShard.push, ServerLink._written

        def push_here(shard: ServerShard, *frame: Any) -> Any:
            told._here.server = shard._partition.index
            return push(shard, *frame)

        def written_here(link: ServerLink, *of: Any) -> None:
            told._here.server = link._index
            written(link, *of)

        with monkeypatch.context() as patched:
            patched.setattr(protocol, "StepProtocol", lambda *of: ToldProtocol(told, *of))
            patched.setattr(aggregator, "Aggregator", lambda **of: _ToldAggregator(told, **of))
            patched.setattr(ServerShard, "push", push_here)
            patched.setattr(ServerLink, "_written", written_here)
            yield self


class ToldParameters(StepParameters):
    """Tells what is asked for, and what has come whole.

    Attributes:
        reached: when the training loop had come to its last turn: with the push before, if nothing was between.
        there: when each group had come, and been widened where it is.
        came: by server and group, how long after it was asked for, or after its answer, each part came.
        gathered: by group, when it was asked for and when it had come whole, each time.
        widening: by group, how long it took from the wish until it was widened, each time.
    """

    def __init__(self, told: Told, rules: Any) -> None:
        super().__init__(rules)
        self.events: list[Event] = []
        self._instants: list[float] = []
        told.fetched.append(self.events)
        self.reached = told.origin
        self.there: dict[int, float] = {}
        self.came: dict[tuple[int, int], deque[float]] = defaultdict(deque)
        self.gathered: dict[int, deque[tuple[float, float]]] = defaultdict(deque)
        self.widening: dict[int, deque[float]] = defaultdict(deque)
        self.answers: dict[tuple[int, int], float] = {}
        self.is_behind_push = True
        self._told = told
        self._asked: dict[int, float] = {}
        self._to_widen: dict[int, float] = {}

    @property
    def by_instants(self) -> list[Event]:
        """The events in the order of their instants.

        A turn has that at which the loop had come to it: its thread may have slept since, and been told later.
        """
        return [self.events[place] for place in sorted(range(len(self.events)), key=self._instants.__getitem__)]

    def _happened(self, event: Event, now: float) -> None:
        self.events.append(event)
        self._instants.append(now)

    def turn(self, reading: Reading) -> Sequence[Action]:
        if not self.is_behind_push:
            self.reached = self._told.clock()
        self.is_behind_push = False
        self.reached = max(self.reached, self._may_turn_from(reading))
        actions = super().turn(reading)
        for action in actions:
            now = self.reached
            if isinstance(action, Ask) and not self._rules.asks_early:
                # It was asked for when it had been updated, however late this thread came to it.
                now = max(now, self._updated(action.group))
            self._tell([action], now)
        return actions

    def updated(self, group: int) -> Sequence[Action]:
        return self._tell(super().updated(group), self._updated(group))

    def _updated(self, group: int) -> float:
        """The instant at which all servers' parts of the group were updated last."""
        return max((instant for (_, each), instant in self.answers.items() if each == group), default=0.0)

    def _may_turn_from(self, reading: Reading) -> float:
        """The instant from which on `may_turn` holds, however late a thread asks."""
        awaited = [at for group, at in self.there.items() if group not in {reading.group, *reading.following}]
        return max([*awaited, self._updated(reading.group) if self._rules.keeps else 0.0], default=0.0)

    def arrived(self, group: int, attempt: int = 0) -> Sequence[Action]:
        missing, now, server = self._groups[group].unfetched, self._told.clock(), self._told.server
        actions = super().arrived(group, attempt)
        asked = max(self._asked[group], self.answers.get((server, group), 0.0))
        self.came[server, group].append(now - asked)
        if missing == 1:
            self.there[group] = now
            self.gathered[group].append((self._asked[group], now))
            self._happened(("came", self._at.step, group), now)
        return self._tell(actions, now)

    def widened(self, group: int) -> Sequence[Action]:
        now = self.there[group] = self._told.clock()
        self.widening[group].append(now - self._to_widen[group])
        self._happened(("widened", self._at.step, group), now)
        return super().widened(group)

    def _tell(self, actions: Sequence[Action], now: float) -> Sequence[Action]:
        for action in actions:
            if isinstance(action, Ask):
                self._asked[action.group] = now
                self._happened(("ask", action.step, action.group), now)
            elif isinstance(action, Widen):
                self._to_widen[action.group] = now
        return actions


class ToldProtocol(StepProtocol):
    """Tells what is pushed and updated.

    Attributes:
        pushes: when each group was pushed in each step.
        updates: when each server's part of it had been updated.
    """

    def __init__(self, told: Told, rules: Any, scale: Any = None) -> None:
        super().__init__(rules, scale)
        self._told = told
        self.told_parameters = ToldParameters(told, rules)
        self.parameters = self.told_parameters
        self.events: list[Event] = []
        self.pushes: dict[tuple[int, int], float] = {}
        self.updates: dict[Key, float] = {}
        told.pushed.append(self.events)
        told.protocols.append(self)

    def reach(self) -> None:
        """The training loop comes to a group: with its last push, if there is nothing between."""
        if not self.told_parameters.is_behind_push:
            self.told_parameters.reached = self._told.clock()

    def reached(self) -> float:
        """The instant at which it had come to the group that it computes now."""
        self.told_parameters.is_behind_push = False
        return self.told_parameters.reached

    def there(self, way: str, group: int, step: int) -> float:
        """The instant at which the parameters of the group came that are read in a step."""
        if self._rules.fetches:
            return self.told_parameters.there[group]
        if way == "backward" or step == 1:
            return 0.0
        return max(instant for (_, each, of), instant in self.updates.items() if (each, of) == (group, step - 1))

    def ready(self, group: int, *, fits: bool = True) -> Sequence[Action]:
        self.events.append(("push", self.at.step, group))
        now = self.pushes[self.at.step, group] = self._told.clock()
        self.told_parameters.reached, self.told_parameters.is_behind_push = now, True
        return super().ready(group, fits=fits)

    def updated(self, group: int, at: At, *, skipped: bool = False) -> Sequence[Action]:
        self.events.append(("update", at.step, group))
        now, server = self._told.clock(), self._told.server
        self.updates[server, group, at.step] = self.told_parameters.answers[server, group] = now
        return super().updated(group, at, skipped=skipped)


class _ToldAggregator(Aggregator[Any]):
    """Tells what sums are complete."""

    def __init__(self, told: Told, **of: Any) -> None:
        super().__init__(**of)
        self._told = told
        self.events: list[Event] = []
        told.summed.append(self.events)

    def offer(self, header: Any, payload: Any) -> Any:
        outcome = super().offer(header, payload)
        at, group, *_ = header.address
        self._told.offered[self._told.server, group, at.step][header.sender.rank] = self._told.clock()
        if isinstance(outcome, Complete):
            self.events.append(("sum", outcome.at.step, outcome.frame.offset))
        return outcome
