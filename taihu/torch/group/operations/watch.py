"""A look at calls that take long: whether the other ranks have called the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from taihu.core.system.clocks import monotonic
from taihu.core.system.threads import Event, Thread, current_thread, spawn
from taihu.torch.group.operations.calls import Call

_LOOK_S: Final = 1.0


class Watch:
    """Calls `look` with a call that has lasted a second, then again each time it has lasted twice as long.

    One thread at a time is in a call; `look` is called by a thread of the watch's own, which starts with the first.
    """

    def __init__(self, look: Callable[[Call], None]) -> None:
        self._look = look
        self._present: tuple[Call, float] | None = None
        self._closed = Event()
        self._thread: Thread | None = None

    def begin(self, call: Call) -> None:
        """Watch `call`, which begins."""
        self._present = (call, monotonic())
        if self._thread is None:
            self._thread = spawn("taihu-watch", self._run)

    def end(self) -> None:
        """The call has ended."""
        self._present = None

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join()

    def _run(self) -> None:
        looked: tuple[int, float] = (0, 0.0)
        while not self._closed.wait(_LOOK_S):
            present = self._present
            if present is None:
                continue
            call, start = present
            lasted_s = monotonic() - start
            if lasted_s >= (2.0 * looked[1] if looked[0] == call.number else _LOOK_S):
                looked = (call.number, lasted_s)
                self._look(call)
