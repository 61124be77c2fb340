"""The way to the coordinator, for whoever calls it, and a call, for whoever answers it: interfaces alone.

An `Ask` says all of a call, and by its type which answer comes. Asks and answers are values of ours: no message of
gRPC, no status. Whatever carries them keeps these rules.

- Order. A member says `Begin` where its run recovers, then `Join`, then all else, then `Finish`. Calls of one thread
  are answered in their order; those of several threads in any.
- Again. Each ask may be said again by the same life of a process, where it was not answered: the coordinator may
  have heard it. `ReportSteps` alone may not: it is said once for each step.
- Held. `Join` of a worker, `GetPlan`, `ReportSteps`, `FixLastStep`, `Attend` and a `Finish` that waits for the end
  are answered when what they wait for is there. Before the deadline the coordinator says for whom it waits.
- Failure. A refusal is raised as the `TaihuError` that the coordinator has raised, in its words. Where nobody
  answers, that is a `MemberLostError` at once, or a `PeerUnreachableError` at the deadline, both of them with
  `was_said` False.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


class Ask(Generic[A_co]):
    """A call of the coordinator with all that it says; the answer is an `A_co`."""


class Control(Protocol):
    """The way to one coordinator; any thread may call."""

    @property
    def peer(self) -> str:
        """The coordinator in words, as messages name it: `coordinator at 10.0.0.1:7070`."""

    @property
    def sought(self) -> str:
        """The words for whatever is waited for while it does not answer."""

    def call(self, ask: Ask[A], timeout_s: float | None) -> A:
        """Ask once; the answer within `timeout_s` seconds, or whenever it comes where that is None.

        Raises:
            MemberLostError: nobody is there, or the connection broke before the answer.
            PeerUnreachableError: no answer in time.
            StaleError: this way is closed.
            TaihuError: the coordinator refuses, or its answer makes no sense.
        """

    def renew(self, *, cuts: bool = False) -> None:
        """Have later calls go over a new connection, by certificates as they are now; with `cuts` others end."""

    def close(self) -> None:
        """End this way, and calls that are under way over a network."""


class Call(Protocol):
    """A call that is to be answered."""

    @property
    def peer(self) -> str:
        """Whoever calls, as logs name it."""

    def host(self) -> str:
        """The host that calls, as others may reach it."""

    def left_s(self) -> float:
        """Seconds in which the answer is of use."""

    def when_ended(self, tell: Callable[[], None]) -> None:
        """Have `tell` called when the call has ended, answered or not; at once where it has."""


class Answering(Protocol):
    """Whoever answers the calls of one coordinator."""

    def answer(self, ask: Ask[A], call: Call) -> A:
        """The answer; raises the TaihuError that whoever calls is to hear."""
