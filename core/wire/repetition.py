"""Frames that come damaged are asked for again, once: what one side has sent, and what the other has taken.

The frames of each direction of a stream or connection have numbers from 0 on, which both sides count. A connection's
frames say the last eight bits of theirs, by which one that comes twice is known; nobody writes the rest. A receiver
that finds a frame damaged asks for its number (`Again`) and drops what comes, until the other side says that it
begins there again (`Repetition`): so order stays what it was, and nothing is taken twice. It asks once for a number.

Who wants to write to values that it has sent asks whether they have been taken (`Mark`, `Taken`). All these words are
frames without a number, said before what is queued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock, Timer
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from taihu.core.base.errors import DamagedFrameError, FrameError, TaihuError
from taihu.core.wire.checksum import checksum_of_all
from taihu.core.wire.headers import Address, At, FrameHeader
from taihu.core.wire.identity import Sender
from taihu.core.wire.kinds import Again, Encoding, Mark, Repetition, Taken, Word
from taihu.core.wire.sink import Origin

__all__ = [
    "DAMAGED",
    "ArrivingFrames",
    "Back",
    "DamagedFrames",
    "OutgoingFrame",
    "SentFrame",
    "SentFrames",
    "WhenTaken",
    "control_header",
    "damaged_error",
    "once_more_if_damaged",
    "payload_of",
]

T = TypeVar("T")

# More than sockets and streams hold of what nobody has taken yet.
_MOST_BYTES: Final = 32 << 20
_MOST_FRAMES: Final = 4096
# As many as the part of a number can tell apart that is written.
_NUMBERS: Final = 256

Values = NDArray[Any]


class DamagedFrames:
    """Counts the frames that came damaged to this process; any thread may call."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.count = 0

    def add(self) -> None:
        """Count one."""
        with self._lock:
            self.count += 1


DAMAGED: Final = DamagedFrames()


class Back(Protocol):
    """The other direction of a stream or connection."""

    def say(self, word: Word) -> None:
        """Say something about the frames that come."""
        ...

    def repeat(self, number: int) -> None:
        """Send frame `number` once more, and those behind it: the other side has asked for it."""
        ...

    def taken(self, number: int) -> None:
        """The first `number` frames have been taken: call who wants to know."""
        ...


class OutgoingFrame:
    """A frame that goes to one or several others; its checksum is computed once, by the first thread that sends it.

    Attributes:
        header, pieces: as `encode_frame` takes them.
        message: the frame encoded, if anybody has done so.
    """

    __slots__ = ("_checksum", "header", "message", "pieces")

    def __init__(self, header: FrameHeader, pieces: Sequence[Values]) -> None:
        self.header = header
        self.pieces = pieces
        self.message: bytes | None = None
        self._checksum: int | None = None

    @property
    def checksum(self) -> int:
        """The checksum of the pieces."""
        if self._checksum is None:
            self._checksum = checksum_of_all(payload_of(self.pieces))
        return self._checksum


class SentFrame(NamedTuple):
    """A frame that has been sent, with the checksum of its payload."""

    header: FrameHeader
    pieces: Sequence[Values]
    checksum: int
    size: int


@dataclass(frozen=True, slots=True)
class WhenTaken:
    """A place in a queue of frames: `callback` is called when all before it have been taken."""

    callback: Callable[[], None]


class SentFrames:
    """The last frames that were sent to `peer`: their headers, and where their values lie, no copies of them."""

    def __init__(self, peer: str) -> None:
        self.most_bytes = _MOST_BYTES
        self.most_frames = _MOST_FRAMES
        self._peer = peer
        self._number = 0
        self._kept: deque[SentFrame] = deque()
        self._bytes = 0
        self._marking = Lock()
        self._marks: deque[tuple[int, Callable[[], None]]] = deque()
        self.is_given_up = False

    def add(self, frame: OutgoingFrame, size: int) -> int:
        """Keep the next frame, of `size` bytes, but not its message; returns its number."""
        self._number += 1
        self._kept.append(SentFrame(frame.header, frame.pieces, frame.checksum, size))
        self._bytes += size
        while (self._bytes > self.most_bytes or len(self._kept) > self.most_frames) and len(self._kept) > 1:
            self._bytes -= self._kept.popleft().size
        return self._number - 1

    def since(self, number: int) -> list[SentFrame]:
        """Frame `number` and those behind it.

        Raises:
            FrameError: it has not been sent, is not kept any more, or its values have changed since: there is nothing
                that could be sent in its place.
        """
        first = self._number - len(self._kept)
        if not first <= number <= self._number:
            raise FrameError(
                f"{self._peer} asks for frame {number} again: expected one of the last, {first} to {self._number}"
            )
        asked = list(self._kept)[number - first :]
        for frame in asked:
            if checksum_of_all(payload_of(frame.pieces)) != frame.checksum:
                raise FrameError(
                    f"a frame that was sent to {self._peer} came damaged, and cannot be sent again, for its values "
                    f"have changed since: {frame.header.label}"
                )
        return asked

    def mark(self, callback: Callable[[], None]) -> Mark | None:
        """Call `callback` when all frames so far have been taken; returns the word that asks, if that is not now."""
        with self._marking:
            if not self.is_given_up:
                self._marks.append((self._number, callback))
                return Mark(self._number)
        callback()
        return None

    @property
    def marked(self) -> Mark | None:
        """The last word that asks, if it has not been answered."""
        with self._marking:
            return Mark(self._marks[-1][0]) if self._marks else None

    def taken(self, number: int) -> None:
        """The first `number` frames have been taken: call who wants to know."""
        while True:
            with self._marking:
                if not self._marks or self._marks[0][0] > number:
                    return
                callback = self._marks.popleft()[1]
            callback()

    def give_up(self) -> None:
        """The other side has ended it well: it has all that it wants."""
        with self._marking:
            self.is_given_up = True
        self.taken(self._number)


class ArrivingFrames:
    """The frames of one direction of a link as they come: which are taken, and which are asked for again.

    One thread calls `admits`, and then `took` or `refuse`.

    Args:
        origin: of the frames.
        back: the other direction; without it, nothing can be asked for.
        on_late: called by a thread of its own with an error where a repetition does not begin in time.
    """

    def __init__(self, origin: Origin, back: Back | None, on_late: Callable[[TaihuError], None]) -> None:
        self._link = f"the link from {origin.name} to {origin.receiver}"
        # A repetition waits for what is under way at most.
        self._late_after_s = origin.patience.still_after_s
        self._back = back
        self._on_late = on_late
        self._next = 0
        # The number of what comes now; None while a repetition is awaited.
        self._position: int | None = 0
        self._asked = -1
        self._told: Taken | None = None
        self._timer: Timer | None = None

    @property
    def next(self) -> int:
        """The number of the frame that is to be taken next."""
        return self._next

    @property
    def awaits(self) -> bool:
        """Whether a repetition has been asked for that has not begun."""
        return self._position is None

    def admits(self, number: int | None = None) -> bool:
        """Whether the frame that comes now is the next one; others are dropped.

        Args:
            number: the last eight bits of its own, where it says so much.

        Raises:
            FrameError: it is neither the one that comes now nor the one before, once more.
        """
        if self._position is None:
            return False
        if number is not None and (behind := (self._position - number) % _NUMBERS):
            self._drop_the_last(behind)
            return False
        if self._position == self._next:
            return True
        self._position += 1
        return False

    def _drop_the_last(self, behind: int) -> None:
        if behind != 1 or not self._position:
            raise FrameError(
                f"{self._link}: another frame than number {self._position} came, {behind} before it: expected all of "
                "them in their order"
            )
        self.came_twice()

    def came_twice(self) -> None:
        """The last frame has come once more, and is dropped: it has no number of its own."""
        structlog.get_logger().warning("a frame came twice", link=self._link, frame=self._next - 1)

    def took(self) -> None:
        """The next frame has come whole."""
        self._position = self._next = self._next + 1

    def refuse(self, error: DamagedFrameError) -> None:
        """Refuse what came now, for it is damaged: ask for the next frame again, unless that has been done.

        Raises:
            DamagedFrameError: the frame had been repeated, or cannot be; the message names the link.
        """
        DAMAGED.add()
        if self._position is None:
            return
        if self._back is None or self._asked == self._next:
            times = "" if self._back is None else " twice"
            raise self._error(f"frame {self._next} came damaged{times}: {error}")
        structlog.get_logger().warning("a frame came damaged", link=self._link, frame=self._next, seen=str(error))
        self._asked, self._position = self._next, None
        self._timer = Timer(self._late_after_s, self._late)
        self._timer.daemon = True
        self._timer.start()
        self._back.say(Again(self._next))

    def hear(self, word: Word) -> None:
        """Take what the other side says about frames; raises FrameError where it makes no sense."""
        if isinstance(word, Repetition):
            self._begin(word.number)
        elif self._back is not None:
            self._answer(word, self._back)

    def end(self) -> None:
        """The other side has ended the direction; raises DamagedFrameError if it has not repeated what it should."""
        self.close()
        if self._position is None:
            raise self._error(f"it ended before frame {self._next}, which came damaged, was repeated")

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _answer(self, word: Word, back: Back) -> None:
        match word:
            case Again(number):
                back.repeat(number)
                # What came damaged there may have been a word of this side.
                if self._told is not None:
                    back.say(self._told)
                if self._position is None:
                    back.say(Again(self._next))
            case Taken(number):
                back.taken(number)
            # One behind what is to be repeated comes again, too.
            case Mark(number) if self._position is not None:
                self._told = Taken(min(number, self._next))
                back.say(self._told)

    def _begin(self, number: int) -> None:
        if number > self._next:
            raise FrameError(f"{self._link}: frame {number} is repeated, expected one up to {self._next}")
        self._position = number
        self.close()

    def _late(self) -> None:
        within = f"within {self._late_after_s:g} s"
        self._on_late(self._error(f"frame {self._next} came damaged, and was not repeated {within}"))

    def _error(self, seen: str) -> DamagedFrameError:
        return damaged_error(self._link, seen)


def damaged_error(link: str, seen: str) -> DamagedFrameError:
    """The error that ends a link."""
    return DamagedFrameError(f"{link}: {seen}; check network cards, switches and memory between them")


def control_header(word: Word) -> FrameHeader:
    """The header of a word about frames."""
    return FrameHeader(_NOBODY, _NOWHERE, word, Encoding.NONE)


def payload_of(pieces: Sequence[Values]) -> list[memoryview]:
    """The memory of contiguous arrays."""
    return [piece.view(np.uint8).data for piece in pieces]


_NOBODY: Final = Sender("", 0)
_NOWHERE: Final = Address(At(0, 0), 0, 0, 0)


def once_more_if_damaged(call: Callable[[], T], link: str) -> T:
    """Call `call`, and once more if a frame came damaged that it sends or gets.

    Raises:
        DamagedFrameError: one did so twice; the message names `link`.
    """
    try:
        return call()
    except DamagedFrameError as error:
        DAMAGED.add()
        structlog.get_logger().warning("a frame came damaged", link=link, seen=str(error))
    try:
        return call()
    except DamagedFrameError as error:
        DAMAGED.add()
        raise damaged_error(link, f"a frame came damaged twice: {error}") from None
