"""The handle of an operation that has been issued: who waits for it gets its tensors, or its error."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from taihu.core.system.clocks import monotonic
from taihu.core.system.threads import Event, Lock, Timer
from taihu.torch.group.operations.devices import HERE, Stage


class GroupWork(dist.Work):
    """An operation of a group; any thread may wait for it.

    Args:
        what: names it in messages.
        result: the tensors that it fills.
        on_wait: is called by a thread that is about to wait.
        late: called once by who has waited for `limit_s`, and ends it; None where something else watches the time.
        limit_s: seconds from now on.
        stage: of its tensors: who waits for it, or for its future, has the present stream wait for its results.
    """

    def __init__(
        self,
        what: str,
        result: list[Any],
        *,
        on_wait: Callable[[], None] = lambda: None,
        late: Callable[[], None] | None = None,
        limit_s: float = 0.0,
        stage: Stage = HERE,
    ) -> None:
        super().__init__()
        self.what = what
        self._result = result
        self._on_wait = on_wait
        self._stage = stage
        self._done = Event()
        self._lock = Lock()
        self._error: BaseException | None = None
        self._source = -1
        self._late = late
        self._deadline = monotonic() + limit_s
        self._future: _Told | None = None

    def end(self, error: BaseException | None = None, *, source: int = -1) -> Callable[[], None] | None:
        """Tell the end, once; later calls change nothing. `source` is the rank that a message came from.

        Returns:
            The telling of its future, which runs callbacks that may wait for anything; None where nobody has asked
            for one.
        """
        with self._lock:
            if self._done.is_set():
                return None
            self._error = error
            self._source = source
            self._done.set()
            return None if self._future is None else self._future.tell

    def _outcome(self) -> list[Any]:
        if self._error is not None:
            raise self._error
        self._stage.reach()
        return self._result

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return True when the operation has ended well.

        Raises:
            DistBackendError: it failed, or did not end within `timeout`; zero and none mean the group's timeout.
        """
        limit = timeout.total_seconds() if timeout is not None else 0.0
        self._on_wait()
        if not self._wait(limit if limit > 0.0 else None):
            raise dist.DistBackendError(f"{self.what} did not end within {limit:g} s; wait longer, or see its group")
        if self._error is not None:
            raise self._error
        self._stage.reach()
        return True

    def _wait(self, limit_s: float | None) -> bool:
        """Wait so long, or until it is late by the group's own timeout; returns whether it has ended."""
        if self._late is None:
            return self._done.wait(limit_s)
        left = max(0.0, self._deadline - monotonic())
        if limit_s is not None and limit_s < left:
            return self._done.wait(limit_s)
        if not self._done.wait(left):
            self._late()
        return self._done.wait()

    def get_future(self) -> Any:
        """A torch.futures.Future of the tensors, or of the error."""
        with self._lock:
            told, ended = self._future, self._done.is_set()
            if told is None:
                told = self._future = _Told(self._outcome, self._stage.devices)
                if ended:
                    told.tell()  # nobody has added a callback yet
        if self._late is not None and not ended:
            timer = Timer(max(0.0, self._deadline - monotonic()), self._look)
            timer.daemon = True
            timer.start()
        return told.future

    def _look(self) -> None:
        if self._late is not None and not self._done.is_set():
            self._late()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Its error, if it has one."""
        return self._error

    def result(self) -> list[Any]:
        """The tensors that it fills."""
        return self._result

    def synchronize(self) -> None:
        """Wait for it, as on a device of its own."""
        self.wait()

    def source_rank(self) -> int:
        """The rank that a message came from; -1 for anything else."""
        return self._source

    def _source_rank(self) -> int:
        return self._source


class _Told:
    """A future of an operation's outcome, which runs callbacks where `tell` is called."""

    def __init__(self, outcome: Callable[[], list[Any]], devices: list[torch.device]) -> None:
        # Callbacks of a future of devices run on streams of their own, `outcome` too: these wait for the results.
        self._ended: Any = torch.futures.Future(devices=devices)
        # What a callback raises becomes an error for C++, too; what `set_exception` is given does not.
        self.future: Any = self._ended.then(lambda _: outcome())

    def tell(self) -> None:
        """The operation has ended."""
        self._ended.set_result(None)
