"""The lead that a worker's frames may have over a server's answers (docs/adr/0003-window.md). Pure."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

__all__ = ["FrameWindow"]

Item = TypeVar("Item")


class FrameWindow(Generic[Item]):
    """Lets items go in the order in which they come, at most `frames` of them ahead of the answers."""

    def __init__(self, frames: int) -> None:
        self._room = frames
        self._waiting: deque[Item] = deque()

    def put(self, item: Item) -> list[Item]:
        """`item` is to go behind all earlier ones; returns what may go now."""
        self._waiting.append(item)
        return self._admitted()

    def answered(self) -> list[Item]:
        """One of those that went has been answered; returns what may go now."""
        self._room += 1
        return self._admitted()

    def _admitted(self) -> list[Item]:
        count = min(self._room, len(self._waiting))
        self._room -= count
        return [self._waiting.popleft() for _ in range(count)]
