"""Stand-ins for `concurrent.futures`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, InvalidStateError
from typing import Any, Final, Generic, TypeVar

from taihu.explore.scheduler import RUNNING
from taihu.explore.stand_ins.locks import Event
from taihu.explore.stand_ins.queues import SimpleQueue
from taihu.explore.stand_ins.threads import Thread
from taihu.explore.tasks import Ended

_LOG: Final = logging.getLogger(__name__)

__all__ = ["Future", "ThreadPoolExecutor"]

T = TypeVar("T")


class Future(Generic[T]):
    """`concurrent.futures.Future`."""

    def __init__(self) -> None:
        self._is_done = Event()
        self._state = "pending"
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Future[T]], object]] = []

    def set_running_or_notify_cancel(self) -> bool:
        """Whether it is to be run: it was not cancelled."""
        if self._state == "cancelled":
            return False
        self._state = "running"
        return True

    def set_result(self, result: T) -> None:
        """As `concurrent.futures.Future.set_result`."""
        self._check()
        self._value = result
        self._end("finished")

    def set_exception(self, exception: BaseException) -> None:
        """As `concurrent.futures.Future.set_exception`."""
        self._check()
        self._error = exception
        self._end("finished")

    def cancel(self) -> bool:
        """As `concurrent.futures.Future.cancel`."""
        if self._state in ("running", "finished"):
            return False
        if self._state == "pending":
            self._end("cancelled")
        return True

    def cancelled(self) -> bool:
        """As `concurrent.futures.Future.cancelled`."""
        return self._state == "cancelled"

    def running(self) -> bool:
        """As `concurrent.futures.Future.running`."""
        return self._state == "running"

    def done(self) -> bool:
        """As `concurrent.futures.Future.done`."""
        return self._is_done.is_set()

    def result(self, timeout: float | None = None) -> T:
        """As `concurrent.futures.Future.result`."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._value  # type: ignore[return-value]  # set by the one that ended it without an error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As `concurrent.futures.Future.exception`."""
        if not self._is_done.wait(timeout):
            raise TimeoutError
        if self._state == "cancelled":
            raise CancelledError
        return self._error

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """As `concurrent.futures.Future.add_done_callback`."""
        if self._state in ("pending", "running"):
            self._callbacks.append(fn)
        else:
            self._call(fn)

    def _check(self) -> None:
        if self._state in ("finished", "cancelled"):
            raise InvalidStateError(f"{self._state}: {self!r}")

    def _call(self, callback: Callable[[Future[T]], object]) -> None:
        try:
            callback(self)
        except Exception:
            _LOG.exception("exception calling callback for %r", self)

    def _end(self, state: str) -> None:
        self._state = state
        self._is_done.set()
        for each in self._callbacks:
            self._call(each)


class ThreadPoolExecutor:
    """`concurrent.futures.ThreadPoolExecutor`: at most `max_workers` threads, started as they are needed."""

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "pool",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        self._most = max_workers or 4
        self._prefix = thread_name_prefix or "pool"
        self._initializer = initializer
        self._initargs = initargs
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], None]] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._idle = 0
        self._is_shut_down = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """As `concurrent.futures.Executor.submit`."""
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = Future()

        def do() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = fn(*args, **kwargs)
                except (Ended, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)

        needs_thread = not self._idle and len(self._threads) < self._most
        if self._idle:
            self._idle -= 1
        if needs_thread:
            thread = Thread(target=self._serve, name=f"{self._prefix}_{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._work.put((future, do))
        return future

    def map(self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None) -> Iterator[T]:
        """As `concurrent.futures.Executor.map`."""
        until_s = RUNNING().deadline(timeout)
        futures = [self.submit(fn, *each) for each in zip(*iterables, strict=False)]

        def results() -> Iterator[T]:
            try:
                for future in futures:
                    yield future.result(None if until_s is None else until_s - RUNNING().now)
            finally:
                for future in futures:
                    future.cancel()

        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As `concurrent.futures.Executor.shutdown`."""
        self._is_shut_down = True
        if cancel_futures:
            while not self._work.empty():
                item = self._work.get_nowait()
                if item is not None:
                    item[0].cancel()
        for _ in self._threads:
            self._work.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def __enter__(self) -> ThreadPoolExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _serve(self) -> None:
        if self._initializer is not None:
            self._initializer(*self._initargs)
        while (item := self._work.get()) is not None:
            item[1]()
            self._idle += 1
