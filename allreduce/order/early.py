"""Frames that come before their operation has begun on this rank, and how many bytes of each sender's wait. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Final, Generic, TypeVar

from taihu.allreduce.order.operation import OperationKey

__all__ = ["EARLY_BYTES", "EarlyFrames", "Held", "waiting_bytes"]

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


class EarlyFrames(Generic[F]):
    """Early frames by operation, in the order in which they came; `held` counts them, too. Not thread-safe."""

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
