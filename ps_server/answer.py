"""What a server sends back for one frame: the updated parameters, or in stage 0 of ZeRO the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from taihu.wire.codec import FrameHeader, encode_frame

__all__ = ["Answer"]


@dataclass(frozen=True)
class Answer:
    """A frame as `encode_frame` takes it.

    `pieces` may be views of the parameters: a range changes only after every worker, having pulled it, has pushed it
    for the next step.
    """

    header: FrameHeader
    pieces: Sequence[NDArray[Any]]

    @property
    def moved_bytes(self) -> int:
        """What the answer moves, see `Frame.moved_bytes`."""
        return sum(piece.nbytes for piece in self.pieces) + self.header.shared_bytes

    @cached_property
    def message(self) -> bytes:
        """The frame encoded, once for all workers whose frames travel in gRPC's stream."""
        return encode_frame(self.header, self.pieces)
