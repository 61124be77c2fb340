"""Tensors from one rank to another: they go beside the operations of all, as soon as they are issued."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taihu.core.base.errors import ExchangeError
from taihu.core.system.threads import Lock
from taihu.torch.group.operations.bits import bytes_of
from taihu.torch.group.operations.callers import Callers
from taihu.torch.group.operations.exchange import GroupExchange
from taihu.torch.group.operations.moves import filled
from taihu.torch.group.operations.work import GroupWork


class Messages:
    """The messages of one process of a group that are under way; any thread may call.

    Args:
        exchange: the group's.
        explain: makes the error that a work raises of what has ended it.
        callers: the threads for callbacks: those that messages come by must not wait.
    """

    def __init__(
        self, exchange: GroupExchange, explain: Callable[[str, BaseException], BaseException], callers: Callers
    ) -> None:
        self._exchange = exchange
        self._explain = explain
        self._callers = callers
        self._lock = Lock()
        self._open: set[GroupWork] = set()
        exchange.on_failure(self._failed)

    def send(self, tensor: Any, rank: int, tag: int, timeout_s: float) -> GroupWork:
        """Send a tensor; the work ends when the other side has taken it, asked for or not."""
        work = self._begin(f"send to worker {rank}", [], f"worker {rank} has", timeout_s)
        self._exchange.send(rank, tag, bytes_of(tensor.detach().contiguous()), lambda: self._end(work))
        return work

    def receive(self, tensor: Any, rank: int | None, tag: int, timeout_s: float) -> GroupWork:
        """Receive a tensor of a rank, or of any; the work ends when it is there, and says then who has sent it."""
        sender, who = ("any", "the others have") if rank is None else (f"worker {rank}", f"worker {rank} has")
        work = self._begin(f"recv from {sender}", [tensor], who, timeout_s)
        (place,) = filled([tensor])

        def arrived(source: int) -> None:
            if not tensor.is_contiguous():
                tensor.detach().copy_(place)
            self._end(work, source=source)

        self._exchange.receive(rank, tag, bytes_of(place), arrived)
        return work

    def close(self) -> None:
        """End those that are under way with an error."""
        self._failed(ExchangeError("the group has been destroyed"))

    def _begin(self, what: str, result: list[Any], who: str, timeout_s: float) -> GroupWork:
        error = ExchangeError(f"{who} not come to {what}: Timed out after {timeout_s:g} s; see what it does")
        work = GroupWork(what, result, late=lambda: self._exchange.fail(error), limit_s=timeout_s)
        with self._lock:
            self._open.add(work)
        if self._exchange.failure is not None:
            self._failed(self._exchange.failure)
        return work

    def _end(self, work: GroupWork, error: BaseException | None = None, *, source: int = -1) -> None:
        with self._lock:
            self._open.discard(work)
        tell = work.end(error, source=source)
        if tell is not None:
            self._callers.call(tell)

    def _failed(self, error: BaseException) -> None:
        with self._lock:
            failed = list(self._open)
        for work in failed:
            self._end(work, self._explain(work.what, error))
