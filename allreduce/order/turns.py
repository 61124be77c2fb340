"""Operations that are carried out one after the other, in a thread of their own.

A thread that would only wait for the last one may carry that out itself: nobody has to be woken then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from taihu.allreduce.order.operation import IsFailed, Operation
from taihu.core.base.errors import StaleError, TaihuError
from taihu.core.system.queues import SimpleQueue
from taihu.core.system.threads import Event, Lock, spawn

_POLL_S: Final = 0.05


class Rank(Protocol):
    """The rank whose operations are carried out, see `taihu.allreduce.communicator.Communicator`."""

    @property
    def failure(self) -> BaseException | None:
        """The error with which everything has ended, if it has."""

    @property
    def left(self) -> BaseException | None:
        """The error once another rank has left in good order: nothing can be completed but what it has."""

    @property
    def late(self) -> BaseException | None:
        """The error once the thread that helps has waited for too long."""

    @property
    def finish(self) -> Callable[[Operation], None]:
        """Told of every operation that is complete."""

    def fail(self, error: BaseException) -> None:
        """Told of what went wrong."""


@dataclass(frozen=True)
class _Restart:
    """All ranks have given up attempts before `attempt`; `done` when they know of each other that they have."""

    attempt: int
    done: Event = field(default_factory=Event)


class InTurn:
    """A queue of operations, and the thread that carries them out; all ranks start the same ones in the same order.

    Args:
        name: of the thread.
        carry_out: carries out an operation; asks what it is given as `IsFailed` while it waits, and raises its error.
        restart: called with an attempt that the run has gone back to, and with what to ask while it waits.
        rank: asked for failures, and told of ends.
        finish: told of operations that are complete, in the rank's place.
    """

    def __init__(
        self,
        name: str,
        carry_out: Callable[[Operation, IsFailed], None],
        restart: Callable[[int, IsFailed], None],
        rank: Rank,
        finish: Callable[[Operation], None] | None = None,
    ) -> None:
        self._do, self._do_restart = carry_out, restart
        self._rank, self._finish = rank, finish
        self._queue: SimpleQueue[Operation | _Restart | None] = SimpleQueue()
        self._attempt = self._carried_out_from = 0
        # Guards what follows; `_turn` is held by whoever carries out.
        self._lock, self._turn = Lock(), Lock()
        self._holds_next = False
        self._held: Operation | None = None
        # Items in the queue, and the one that the thread has taken.
        self._before = 0
        self._thread = spawn(name, self._run)

    def start(self, operation: Operation) -> None:
        """Queue an operation, or hold it after `hold_next`."""
        with self._lock:
            self._let_go()
            if self._holds_next:
                self._holds_next, self._held = False, operation
            else:
                self._put(operation)

    def hold_next(self) -> None:
        """Have the operation that is started next wait for `help`, or for the next one."""
        self._holds_next = True

    def help(self) -> None:
        """Carry out in this thread what is held, unless there is something before it."""
        with self._lock:
            self._holds_next = False
            operation = self._held
            if operation is None or self._before:
                self._let_go()
                return
            self._held = None
            self._turn.acquire()
        try:
            self._carry_out(operation)
        except BaseException as error:
            self._failed(error)
        finally:
            self._turn.release()

    def _let_go(self) -> None:
        if self._held is not None:
            operation, self._held = self._held, None
            self._put(operation)

    def _put(self, item: Operation | _Restart | None) -> None:
        self._before += 1
        self._queue.put(item)

    def abort(self, attempt: int) -> None:
        """Give up operations of attempts before this one; returns when all ranks have, or when all has failed."""
        restart = _Restart(attempt)
        self._attempt = attempt
        with self._lock:
            self._held = None
            self._put(restart)
        while not restart.done.wait(_POLL_S) and self._rank.failure is None:
            pass

    def close(self) -> None:
        """End when everything queued is done."""
        with self._lock:
            self._let_go()
            self._put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                with self._turn:
                    if isinstance(item, _Restart):
                        self._do_restart(item.attempt, self._is_ended)
                        self._carried_out_from = item.attempt
                        item.done.set()
                    else:
                        self._carry_out(item)
                with self._lock:
                    self._before -= 1
        except BaseException as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        self._rank.fail(error)
        if not isinstance(error, TaihuError):
            raise error

    def _carry_out(self, operation: Operation) -> None:
        if operation.key.at.attempt < self._carried_out_from:
            return
        try:
            self._do(operation, lambda: self._is_ended() or self._given_up(operation))
            (self._finish or self._rank.finish)(operation)
        except StaleError:
            # What follows in this attempt is given up as well.
            self._carried_out_from = operation.key.at.attempt + 1

    def _is_ended(self) -> BaseException | None:
        return self._rank.failure or self._rank.left or self._rank.late

    def _given_up(self, operation: Operation) -> StaleError | None:
        stale = operation.key.at.attempt < self._attempt
        return StaleError(f"attempt {operation.key.at.attempt} was given up") if stale else None
