"""Log lines of refusals, which strangers can cause at will: so many of a kind in a time, then a count."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from typing import Final

import structlog

from taihu.core.system.threads import Lock
from taihu.core.wire.base.clock import Clock, SystemClock

_LINES: Final = 10
_WITHIN_S: Final = 60.0


class FewOfEach:
    """Whether one more line of a kind is told: at most `most` in any `within_s`. Pure; kinds are few."""

    def __init__(self, most: int = _LINES, within_s: float = _WITHIN_S) -> None:
        self._most = most
        self._within_s = within_s
        self._told_s: dict[Hashable, deque[float]] = {}
        self._left_out: Counter[Hashable] = Counter()

    def admits(self, kind: Hashable, now_s: float) -> int | None:
        """None where the line is left out; else the number that were left out since the last one that was told."""
        told_s = self._told_s.setdefault(kind, deque(maxlen=self._most))
        if len(told_s) == self._most and now_s - told_s[0] < self._within_s:
            self._left_out[kind] += 1
            return None
        told_s.append(now_s)
        return self._left_out.pop(kind, 0)


class RefusalLog:
    """Warnings of refusals in the log, few of each kind; metrics count all of them. Any thread may call."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = Lock()
        self._few = FewOfEach()

    def tell(self, event: str, kind: str, **fields: object) -> None:
        """Log `event` with `fields`, unless there were too many of its `kind`, one of a few words."""
        with self._lock:
            left_out = self._few.admits((event, kind), self._clock.now())
        if left_out is None:
            return
        more = {"left_out": left_out} if left_out else {}
        structlog.get_logger().warning(event, **fields, **more)
