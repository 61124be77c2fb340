"""A process that waits for others says for whom, and since when."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import structlog

from taihu.core.coordination.client.awaited import pauses_s
from taihu.core.process.background import in_background
from taihu.core.system.clocks import monotonic
from taihu.core.system.threads import Event, Thread


def telling_who_is_awaited(
    awaited: Callable[[], str], pauses: Iterable[float] | None = None
) -> AbstractContextManager[Thread]:
    """Log whom `awaited` names, at growing intervals, during a block or until it names nobody; yields the thread."""
    start = monotonic()

    def watch(over: Event) -> None:
        for pause in pauses or pauses_s():
            if over.wait(pause):
                return
            words = awaited()
            if not words or over.is_set():
                return
            structlog.get_logger().info(f"waiting for {words} since {monotonic() - start:.0f} s")

    return in_background(watch, "waiting")
