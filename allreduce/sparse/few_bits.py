"""Selections of few bits between ranks: multiples of steps, as `taihu.kernels.packing.few_bits` has them.

What a rank brings to an allreduce are such multiples already, decoded. They travel as their codes; sums, which are
none, travel as fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.sparse.exchange import Message
from taihu.core.wire.frames.headers import Frame, ValueType
from taihu.kernels.base.half import from_half, to_half
from taihu.kernels.packing import pack, packed_bound, unpack
from taihu.kernels.packing.few_bits import STEP_BYTES, codes_bytes, pack_codes, read_codes


@dataclass(frozen=True, eq=False)
class StepPieces:
    """The pieces of an array, each of which has a step of its own.

    Attributes:
        value_type: of few bits.
        bounds: shape (pieces, 2): start and stop of each, which follow each other from 0 to the array's end.
    """

    value_type: ValueType
    bounds: NDArray[np.int64]

    def decode(self, frame: Frame, indices: NDArray[np.int32], start: int, stop: int) -> NDArray[np.float32]:
        """Find the places of a frame's values, of positions [start, stop), and decode these.

        Args:
            frame: of another rank's own values.
            indices: shape (frame.header.selected,), out: ascending places.
            start: of the range.
            stop: of the range.

        Returns:
            Shape (selected,), fp32.

        Raises:
            ValueError: sections or values are not what they should be.
        """
        pieces = self.bounds[self.within(start, stop)]
        told = len(pieces) * STEP_BYTES
        if len(frame.sections) < told:
            raise ValueError(f"{len(frame.sections)} bytes of sections: expected {len(pieces)} steps before places")
        unpack(frame.sections[told:], _whole(start, stop), len(indices), indices)
        steps = np.empty(len(pieces), dtype=np.float32)
        from_half(np.frombuffer(frame.sections[:told].tobytes(), dtype="<u2"), "bf16", steps)
        values = np.empty(len(indices), dtype=np.float32)
        read_codes(frame.values, self.value_type.few_bits, indices, pieces, steps, values)
        return values

    def within(self, start: int, stop: int) -> slice:
        """The pieces that have positions in [start, stop)."""
        first = int(np.searchsorted(self.bounds[:, 1], start, side="right"))
        return slice(first, max(first, int(np.searchsorted(self.bounds[:, 0], stop, side="left"))))


@dataclass(frozen=True, eq=False)
class FewBits:
    """A rank's own selection in codes.

    Attributes:
        pieces: of the array.
        steps: shape (pieces,), fp32, each a bfloat16.
        indices: shape (k,), int32: the places of the selection, ascending.
        codes: shape (k,), uint8: a code in each byte.
    """

    pieces: StepPieces
    steps: NDArray[np.float32]
    indices: NDArray[np.int32]
    codes: NDArray[np.uint8]

    def pack(self, message: Message) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The codes and the sections, steps before places, of a message of own values."""
        indices, count, bits = message.indices, len(message.indices), self.pieces.value_type.few_bits
        codes = self.codes[np.searchsorted(self.indices, indices)]
        steps = self.steps[self.pieces.within(message.start, message.stop)]
        told = len(steps) * STEP_BYTES
        sections = np.empty(told + packed_bound(count, 1), dtype=np.uint8)
        to_half(steps, "bf16", sections[:told].view(np.uint16))
        chosen = np.empty(count, dtype=np.uint8)
        _, size = pack(indices, codes, _whole(message.start, message.stop), chosen, sections[told:])
        packed = np.empty(codes_bytes(count, bits), dtype=np.uint8)
        pack_codes(chosen, bits, packed)
        return packed, sections[: told + size]


def _whole(start: int, stop: int) -> NDArray[np.int64]:
    return np.array([[start, stop]], dtype=np.int64)
