"""The way to a coordinator in this process: no sockets, no messages, no threads of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeVar

from taihu.core.base.errors import MemberLostError, StaleError
from taihu.core.coordination.control.control import Answering, Ask
from taihu.core.wire.base.clock import Clock, SystemClock

A = TypeVar("A")

_HOST: Final = "127.0.0.1"
_LONGEST_CALL_S: Final = 3600.0


class MemoryPlace:
    """A place where a coordinator answers, one after another, or nobody does, as an address of a network is.

    Attributes:
        answering: whoever answers now; None for nobody.
    """

    def __init__(self, answering: Answering | None = None) -> None:
        self.answering = answering


class _MemoryCall:
    """A `Call` of a thread, which answers it itself."""

    def __init__(self, peer: str, until_s: float, clock: Clock) -> None:
        self.peer = peer
        self._until_s = until_s
        self._clock = clock
        self._tells: list[Callable[[], None]] = []

    def host(self) -> str:
        """This one."""
        return _HOST

    def left_s(self) -> float:
        """Seconds until the deadline; an hour where there is none."""
        return min(_LONGEST_CALL_S, max(0.0, self._until_s - self._clock.now()))

    def when_ended(self, tell: Callable[[], None]) -> None:
        """Have `tell` called when the call returns."""
        self._tells.append(tell)

    def end(self) -> None:
        """The call returns."""
        for tell in self._tells:
            tell()


class MemoryControl:
    """A `Control` of whoever answers at `place`; a call is answered by the thread that makes it.

    Values are handed over as they are. `renew` and `close` leave calls that are under way alone: they go on until
    they are answered, or their time is over.

    Args:
        place: where the coordinator answers.
        caller: who calls, in words.
        clock: by which deadlines pass.
    """

    peer: Final = "coordinator in this process"

    def __init__(self, place: MemoryPlace, *, caller: str = "this process", clock: Clock | None = None) -> None:
        self._place = place
        self._caller = caller
        self._clock = clock or SystemClock()
        self._is_closed = False

    @property
    def sought(self) -> str:
        """The coordinator."""
        return f"the {self.peer}"

    def call(self, ask: Ask[A], timeout_s: float | None) -> A:
        """Ask once, see `Control.call`."""
        if self._is_closed:
            raise StaleError(f"{self._caller} takes no part any more")
        answering = self._place.answering
        if answering is None:
            error = MemberLostError(f"{self.peer}: nobody answers")
            error.was_said = False
            raise error
        until_s = math.inf if timeout_s is None else self._clock.now() + timeout_s
        call = _MemoryCall(self._caller, until_s, self._clock)
        try:
            return answering.answer(ask, call)
        finally:
            call.end()

    def renew(self, *, cuts: bool = False) -> None:
        """Nothing connects the two that could be new."""

    def close(self) -> None:
        """End this way: nobody is asked any more."""
        self._is_closed = True
