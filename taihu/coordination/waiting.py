"""A process that waits for others says for whom, and since when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import structlog

from taihu.coordination.awaited import pauses_s

__all__ = ["telling_who_is_awaited"]


@contextmanager
def telling_who_is_awaited(
    awaited: Callable[[], str], pauses: Iterable[float] | None = None
) -> Iterator[threading.Thread]:
    """During the block, log whom `awaited` names, at growing intervals, until it names nobody; yields who does."""
    over, start = threading.Event(), time.monotonic()

    def watch() -> None:
        for pause in pauses or pauses_s():
            if over.wait(pause):
                return
            words = awaited()
            if not words or over.is_set():
                return
            structlog.get_logger().info(f"waiting for {words} since {time.monotonic() - start:.0f} s")

    thread = threading.Thread(target=watch, name="waiting", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        over.set()
        thread.join()
