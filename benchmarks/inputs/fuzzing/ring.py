"""The target of a kernel that sums around a ring: what its two neighbours say to it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from crc32c import crc32c

from benchmarks.inputs.fuzzing.target import Target
from taihu.allreduce.ring.kernel_ring import IS_POSSIBLE, KernelRing, sum_number
from taihu.allreduce.ring.passes import flat_pass
from taihu.core.base.errors import MemberLostError, TaihuError

__all__ = ["TARGETS", "frame", "word"]

_COUNT: Final = 8
_GUARD: Final = 64
_HEADER: Final = struct.Struct("<IIQIII")
_WORD: Final = struct.Struct("<III")
_CHECKSUM: Final = struct.Struct("<I")
_MAGIC: Final = 0x67726874


def _sealed(covered: bytes) -> bytes:
    return covered + _CHECKSUM.pack(crc32c(covered))


def frame(index: int, values: bytes, *, flags: int = 0) -> bytes:
    """A frame of the first sum as a neighbour sends it."""
    number = sum_number(1, flat_pass(0, 2, _COUNT, 4), "fp32", mean=False)
    return _sealed(_HEADER.pack(_MAGIC, flags, number, index, len(values), crc32c(values))) + values


def word(kind: int, index: int) -> bytes:
    """A word on the first sum as a neighbour says it, twice."""
    return 2 * _sealed(_WORD.pack(kind, index, 1))


def _whole(data: bytes) -> bytes:
    """A first frame with right checksums: a changed one would be damaged, and nothing behind them be reached."""
    size = _HEADER.size + _CHECKSUM.size
    covered, values = data[: _HEADER.size - 4].ljust(_HEADER.size - 4, b"\0"), data[size : size + 2 * _COUNT]
    return _sealed(covered + _CHECKSUM.pack(crc32c(values))) + data[size:]


def _neighbours(_: Path) -> Callable[[bytes], object]:
    """Two ranks, of which one is the other's left and right neighbour: a byte, and what each connection brings."""
    memory = np.zeros(_COUNT + 2 * _GUARD, dtype=np.float32)
    values = memory[_GUARD:-_GUARD]

    def call(data: bytes) -> object:
        seal, size = (data[0] & 1, data[1]) if len(data) > 1 else (0, 0)
        from_left, from_right = data[2 : 2 + size], data[2 + size :]
        left, right = socket.socketpair(), socket.socketpair()
        ring = KernelRing(0, 2, left[0], right[0], reason_s=0.0)
        try:
            with left[1] as near_left, right[1] as near_right:
                near_left.sendall(_whole(from_left) if seal else from_left)
                near_right.sendall(from_right)
                near_left.shutdown(socket.SHUT_WR)
                near_right.shutdown(socket.SHUT_WR)
                ring.allreduce(values, "fp32", lambda: MemberLostError("nobody is there"), mean=False)
        finally:
            ring.close()
            assert not memory[:_GUARD].any() and not memory[-_GUARD:].any()  # noqa: PT018, S101
        return values

    return call


def _seeds() -> list[bytes]:
    sums = np.ones(_COUNT // 2, dtype=np.float32).tobytes()
    frames = frame(0, sums) + frame(1, sums)
    again = frame(0, sums)[:-1] + b"?" + frame(1, sums) + frame(0, sums, flags=1) + frame(1, sums)
    said = [word(2, 2), word(1, 0) + word(2, 2), word(1, 1) + word(2, 2)]
    whole = [bytes([seal, len(frames)]) + frames + each for seal in (0, 1) for each in said]
    return [*whole, bytes([0, len(again)]) + again + said[0]]


TARGETS: Final = [Target("kernel_ring", _neighbours, (TaihuError,), _seeds())] if IS_POSSIBLE else []
