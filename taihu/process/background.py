"""Work that goes on in a thread beside a block, and ends with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["in_background"]


@contextmanager
def in_background(work: Callable[[threading.Event], None], name: str) -> Iterator[threading.Thread]:
    """Run `work(over)` in a daemon thread during the block; `over` is set at its end, and the thread waited for."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        over.set()
        thread.join()
