"""A worker's waits for others: others are told of them, and they are measured."""

from __future__ import annotations

from collections.abc import Callable

from taihu.core.wire.base.clock import Clock


class Waiting:
    """A block in which this worker waits for others; how long is measured.

    Args:
        waits: called with whether it waits from now on.
        clock: measures.
        has_waited: called with the seconds.
    """

    def __init__(self, waits: Callable[[bool], None], clock: Clock, has_waited: Callable[[float], None]) -> None:
        self._waits, self._clock, self._has_waited = waits, clock, has_waited
        self._start_s = 0.0

    def __enter__(self) -> None:
        self._waits(True)
        self._start_s = self._clock.now()

    def __exit__(self, *_: object) -> None:
        self._waits(False)
        self._has_waited(self._clock.now() - self._start_s)
