"""Frames on their way to one server: how far they may be ahead of its answers, and what waits for these. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from taihu.planner.partition import FrameSpec

__all__ = ["FrameWindow", "FramesUnderWay"]

Item = TypeVar("Item")


class FrameWindow(Generic[Item]):
    """Lets items go in the order in which they come, at most `frames` of them ahead of the answers (ADR 3)."""

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


class FramesUnderWay(Generic[Item]):
    """What one worker has pushed to one server, and what it wants to read as soon as that has been answered.

    At most `window` frames are ahead of their answers, beside those that are not `windowed`.
    """

    def __init__(self, window: int) -> None:
        self._frames = window
        self.cancel()

    def cancel(self) -> None:
        """Forget everything: nothing of it is answered any more."""
        self._window = FrameWindow[Item](self._frames)
        self._unanswered: set[int] = set()
        self._wanted: dict[int, FrameSpec] = {}

    def push(self, offset: int, item: Item, *, windowed: bool = True) -> list[Item]:
        """The frame at `offset` is to go, as `item`; returns what may go now."""
        self._unanswered.add(offset)
        return self._window.put(item) if windowed else [item]

    def ask(self, frames: Iterable[FrameSpec]) -> list[FrameSpec]:
        """The parameters of `frames` are wanted; returns those that may be asked for now, the others wait."""
        now = []
        for frame in frames:
            if frame.offset in self._unanswered:
                self._wanted[frame.offset] = frame
            else:
                now.append(frame)
        return now

    def answered(self, offset: int, *, windowed: bool = True) -> tuple[FrameSpec | None, list[Item]]:
        """The frame at `offset` has been answered; returns what to ask for now, if anything, and what may go now."""
        self._unanswered.discard(offset)
        return self._wanted.pop(offset, None), self._window.answered() if windowed else []
