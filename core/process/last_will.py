"""The end of a process that should have ended, or gone on, and does not: it is stuck."""

from __future__ import annotations

import os
import sys

from taihu.core.base.errors import RecoveringError, TaihuError
from taihu.core.base.words import one_line
from taihu.core.system.clocks import monotonic
from taihu.core.system.signals import SIGKILL
from taihu.core.system.threads import Lock, Timer


class LastWill:
    """Ends this process `after_s` seconds after `begin`, unless `cancel` comes first; any thread may call.

    A thread that is stuck in a computation or a call cannot be woken. Whoever started the process starts another one.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._lock = Lock()
        self._timer: Timer | None = None
        self._begun_s = 0.0
        self._is_cancelled = False

    def begin(self, error: TaihuError) -> None:
        """All others have ended, or gone on, for `error`."""
        with self._lock:
            if self._is_cancelled or self._timer is not None:
                return
            self._begun_s = monotonic()
            self._timer = Timer(self._after_s, self._end, (error,))
            self._timer.daemon = True
            self._timer.start()

    @property
    def is_near(self) -> bool:
        """Whether half of the time is over: who may still hope for an answer of the others ends that now."""
        return self._timer is not None and monotonic() - self._begun_s >= self._after_s / 2

    def cancel(self) -> None:
        """This process goes on."""
        with self._lock:
            self._is_cancelled = True
            if self._timer is not None:
                self._timer.cancel()

    def _end(self, error: TaihuError) -> None:
        line = one_line(str(error))
        print(  # noqa: T201
            f"error: this process has been stuck for {self._after_s:g} s: {line}", file=sys.stderr, flush=True
        )
        if isinstance(error, RecoveringError):
            os.kill(os.getpid(), SIGKILL)  # as a process that was lost, which another one replaces
        os._exit(error.exit_code)
