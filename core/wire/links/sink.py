"""The two ends of frames: who sends them, and who takes which kinds of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from taihu.core.base.errors import DamagedFrameError
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.frames.headers import Frame, FrameHeader
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Kind

__all__ = ["Origin", "Sink", "damaged_error"]

Values = NDArray[Any]


def damaged_error(link: str, seen: str) -> DamagedFrameError:
    """The error of a frame that has come otherwise than it was sent."""
    return DamagedFrameError(f"{link}: {seen}; check network cards, switches and memory between them")


@dataclass(frozen=True)
class Origin:
    """The sender of the frames of a connection; its name in messages, and that of this process, which gets them.

    `patience` is how long it is waited for.
    """

    name: str
    sender: Sender
    receiver: str = "this process"
    patience: Patience = field(default_factory=Patience)

    @property
    def link(self) -> str:
        """Both ends, for messages."""
        return f"the link from {self.name} to {self.receiver}"

    def damaged(self, seen: str) -> DamagedFrameError:
        """The error of a frame that has come otherwise than it was sent."""
        return damaged_error(self.link, seen)


@dataclass(frozen=True)
class Sink:
    """The receiver of frames of these `kinds`; all are called by the thread that receives.

    `places(header)` gives contiguous arrays of as many values together as the address has in which dense values are
    received without a copy, or None where there are no such; `take(header, values, in_place)` is called when they are
    complete, with those arrays or one that is reused after. `take_frame(frame)` gets sparse frames and ones without
    values, and may keep them.
    """

    kinds: tuple[type[Kind], ...]
    places: Callable[[FrameHeader], Sequence[Values] | None]
    take: Callable[[FrameHeader, Sequence[Values], bool], None]
    take_frame: Callable[[Frame], None]

    def check(self, header: FrameHeader) -> None:
        """Raise FrameError unless frames of this kind are expected."""
        if not isinstance(header.kind, self.kinds):
            raise header.unexpected(*self.kinds)

    def take_any(self, frame: Frame) -> None:
        """Take a frame that came in one message; raises FrameError as `check`."""
        self.check(frame.header)
        if frame.header.is_dense:
            self.take(frame.header, [frame.values], False)
        else:
            self.take_frame(frame)
