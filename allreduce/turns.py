"""Operations that are carried out one after the other, in a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

from allreduce.ring.operation import IsFailed, Operation
from taihu.errors import StaleError, TaihuError

__all__ = ["InTurn", "TurnEvents"]

_POLL_S: Final = 0.05


@dataclass(frozen=True)
class TurnEvents:
    """Asked for and told of by `InTurn`.

    Attributes:
        is_failed: the error with which everything has ended, if it has.
        is_left: the error once another rank has left in good order, so that nothing can be completed but what it has.
        finished: called with every operation that is complete.
        failed: called with what went wrong.
    """

    is_failed: IsFailed
    is_left: IsFailed
    finished: Callable[[Operation], None]
    failed: Callable[[BaseException], None]


@dataclass(frozen=True)
class _Restart:
    """All ranks have given up attempts before `attempt`; `done` when they know of each other that they have."""

    attempt: int
    done: threading.Event = field(default_factory=threading.Event)


class InTurn:
    """A queue of operations, and the thread that carries them out; all ranks start the same ones in the same order.

    Args:
        name: of the thread.
        carry_out: carries out an operation; asks what it is given as `IsFailed` while it waits, and raises its error.
        restart: called with an attempt that the run has gone back to, and with what to ask while it waits.
        events: see there.
    """

    def __init__(
        self,
        name: str,
        carry_out: Callable[[Operation, IsFailed], None],
        restart: Callable[[int, IsFailed], None],
        events: TurnEvents,
    ) -> None:
        self._do, self._do_restart = carry_out, restart
        self._events = events
        self._queue: SimpleQueue[Operation | _Restart | None] = SimpleQueue()
        self._attempt = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, operation: Operation) -> None:
        """Queue an operation."""
        self._queue.put(operation)

    def abort(self, attempt: int) -> None:
        """Give up operations of attempts before this one; returns when all ranks have, or when all has failed."""
        restart = _Restart(attempt)
        self._attempt = attempt
        self._queue.put(restart)
        while not restart.done.wait(_POLL_S) and self._events.is_failed() is None:
            pass

    def close(self) -> None:
        """End when everything queued is done."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        attempt = 0
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, _Restart):
                    self._do_restart(item.attempt, self._is_ended)
                    attempt = item.attempt
                    item.done.set()
                elif item.key.at.attempt >= attempt:
                    try:
                        self._carry_out(item)
                    except StaleError:
                        # What follows in this attempt is given up as well.
                        attempt = item.key.at.attempt + 1
        except BaseException as error:
            self._events.failed(error)
            if not isinstance(error, TaihuError):
                raise

    def _carry_out(self, operation: Operation) -> None:
        self._do(operation, lambda: self._is_ended() or self._given_up(operation))
        self._events.finished(operation)

    def _is_ended(self) -> BaseException | None:
        return self._events.is_failed() or self._events.is_left()

    def _given_up(self, operation: Operation) -> StaleError | None:
        stale = operation.key.at.attempt < self._attempt
        return StaleError(f"attempt {operation.key.at.attempt} was given up") if stale else None
