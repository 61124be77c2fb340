"""The fence of a rank before what arrives: what was given up or is of an earlier plan stays out, the early waits."""

from __future__ import annotations

from collections import Counter
from typing import Final, Generic, TypeVar

from taihu.allreduce.order.operation import OperationKey
from taihu.core.base.errors import FrameError, StaleError
from taihu.core.wire.frames.headers import FrameHeader
from taihu.core.wire.frames.kinds import RingSegment

EARLY_BYTES: Final = 1 << 30
"""The most bytes of one sender that wait for operations, unless the job says how much that can be."""
# What a frame takes beside its values: many without any take memory too.
_BESIDE_BYTES: Final = 512

F = TypeVar("F")
Held = Counter[int | None]
"""Bytes of each sender's frames that wait, of whatever kind."""


def waiting_bytes(values: int) -> int:
    """The bytes that a frame with so many bytes of values takes while it waits."""
    return values + _BESIDE_BYTES


class Fence:
    """The attempt and the plan of a rank, and what they admit. Pure; not thread-safe.

    Attempts count for a whole run and never fall. A rank may be a step ahead of its neighbour: when the run goes
    back, what was sent of later steps is undone too, and only a number that stays high tells it from what comes
    again. Such frames are dropped, for their senders had not heard of it. Frames of a higher attempt wait, as those
    of operations that have not begun do. A plan changes while nothing is under way, so that an earlier one's frames
    are a mistake, as segments are that come from another rank than the `left` neighbour.
    """

    def __init__(self, left: int) -> None:
        self._left = left
        self.attempt = 0
        """The number of times that the run has gone back, as far as this rank knows."""
        self._plan = 0

    def begin(self, key: OperationKey) -> None:
        """Take notice of an operation that this rank begins; raises StaleError for one of another attempt."""
        at = key.at
        if at.attempt != self.attempt:
            raise StaleError(
                f"operation {key.group} of step {at.step}, attempt {at.attempt}: this rank is at attempt "
                f"{self.attempt}; abort before a step is replayed, and go on with the same attempt"
            )
        self._plan = max(self._plan, at.plan)

    def abort(self, attempt: int) -> None:
        """Give up all attempts before `attempt`; raises StaleError unless it is a higher one."""
        if attempt <= self.attempt:
            raise StaleError(f"attempt {attempt} after attempt {self.attempt}: expected a higher one")
        self.attempt = attempt
        self._plan = 0

    def admits(self, header: FrameHeader) -> bool:
        """Whether a frame is to be taken in, now or when its operation begins; False for one to drop.

        Raises:
            FrameError: it is of an earlier plan; frames without a plan (0) are of none. Or a segment comes from
                somebody else than the left neighbour.
        """
        at, group, *_ = header.address
        if isinstance(header.kind, RingSegment) and header.sender.rank != self._left:
            raise FrameError(f"{header.sender.label} sent {header.label}: segments come from worker {self._left}")
        if at.attempt < self.attempt:
            return False
        if at.attempt == self.attempt and 0 < at.plan < self._plan:
            raise FrameError(
                f"{header.sender.label} sent {header.kind.label}, group {group}, step {at.step}, by plan {at.plan}: "
                f"plan {self._plan} is in use"
            )
        return True


class EarlyFrames(Generic[F]):
    """Early frames by operation, in the order in which they came; `held` counts them, too. Pure; not thread-safe."""

    def __init__(self, held: Held) -> None:
        self._frames: dict[OperationKey, list[tuple[int | None, int, F]]] = {}
        self._held = held

    def put(self, key: OperationKey, sender: int | None, size: int, frame: F) -> None:
        """Keep a frame of rank `sender` with `size` bytes of values."""
        self._frames.setdefault(key, []).append((sender, waiting_bytes(size), frame))
        self._held[sender] += waiting_bytes(size)

    def pop(self, key: OperationKey) -> list[F]:
        """The frames of an operation, which begins."""
        frames = self._frames.pop(key, [])
        for sender, size, _ in frames:
            self._held[sender] -= size
        return [frame for _, _, frame in frames]

    def abort(self, attempt: int) -> None:
        """Forget those of attempts before `attempt`."""
        for key in [key for key in self._frames if key.at.attempt < attempt]:
            self.pop(key)
