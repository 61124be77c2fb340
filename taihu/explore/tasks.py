"""Simulated processes and their threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Ended(BaseException):
    """The simulated process of this task has ended, or the run: raised where the task would go on."""


class Process:
    """One life of a simulated process.

    Attributes:
        member: `worker 1`, `server 0`, or another name that tells it.
        life: 0 for the first process of this member, 1 for its successor.
        host: the machine that it runs on: one of its own, if no other is named.
        is_dead: whether it was killed: none of its tasks goes on.
        is_stopped: whether it is held, as by SIGSTOP: its tasks go on later.
        clock_rate: seconds that pass on its clocks in a second of virtual time; see `run_clocks_at`.
        wall_ahead_s: how far its wall clock is ahead of the others'.
    """

    __slots__ = (
        "_rate_since_s",
        "_shown_s",
        "clock_rate",
        "held",
        "host",
        "is_dead",
        "is_stopped",
        "life",
        "member",
        "wall_ahead_s",
    )

    def __init__(self, member: str, life: int = 0, host: str = "") -> None:
        self.member = member
        self.life = life
        self.host = host or member
        self.is_dead = False
        self.is_stopped = False
        self.clock_rate = 1.0
        self.wall_ahead_s = 0.0
        self.held: list[Task] = []
        # The virtual time since which its clocks run at this rate, and the time that they showed then.
        self._rate_since_s = self._shown_s = 0.0

    def run_clocks_at(self, rate: float, now: float) -> None:
        """From the virtual time `now` on its clocks run at another rate; they do not jump."""
        self._shown_s, self._rate_since_s = self.clock_at(now), now
        self.clock_rate = rate

    def clock_at(self, now: float) -> float:
        """The time that its clocks show at the virtual time `now`."""
        return self._shown_s + (now - self._rate_since_s) * self.clock_rate

    def __str__(self) -> str:
        return f"{self.member} (life {self.life})" if self.life else self.member


class Task:
    """One thread of a simulated process: it runs until it comes to a point at which others may go on.

    Attributes:
        number: from 0 in the order in which tasks began.
        is_daemon: whether its process ends without it.
        waits_for: the label of the wait it is in; empty while it is none.
        was_woken: how its last wait ended: by a wake, or by its timeout; None while it goes on.
        takes_interruptions: whether signals may come in the middle of a wait: not where C code waits for what it
            had given up, and is to have when a handler runs.
        error: the exception that ended it, if there was one.
    """

    __slots__ = (
        "carrier",
        "error",
        "has_ended",
        "interruptions",
        "is_daemon",
        "joiners",
        "name",
        "number",
        "process",
        "takes_interruptions",
        "target",
        "thread",
        "ticket",
        "waits_for",
        "was_woken",
    )

    def __init__(self, number: int, target: Callable[[], object], name: str, process: Process) -> None:
        self.number = number
        self.target = target
        self.name = name
        self.process = process
        self.has_ended = False
        self.error: BaseException | None = None
        self.waits_for = ""
        # Each wait has a number: a timer or a wake that was meant for an earlier wait does nothing.
        self.ticket = 0
        self.was_woken: bool | None = None
        self.joiners: list[Task] = []
        self.is_daemon = False
        # What signals have it do in the place of its next step.
        self.takes_interruptions = True
        self.interruptions: list[Callable[[], None]] = []
        # The thread that it is, to code that asks.
        self.thread: object = None
        # What carries it: a greenlet, or an OS thread with its baton.
        self.carrier: Any = None

    def __str__(self) -> str:
        return f"{self.process}: {self.name}"
